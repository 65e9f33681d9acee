"""Runs that were killed or cut short: who may go on with them, and that what was set aside is in no evidence."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import SERVER_PROCESSES, SESSION_BEGUN, BudgetReading, MetricRow, Resumption, Run, RunStatus
from benchgate.pipeline.checkpoint import Completed, changed_references, processes_before, same_processes, session_event
from benchgate.pipeline.resume import ResumedRun, SpoolState, recover_spools
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.store.repository import RunWriter, Store
from benchgate.suite.loader import parse_suite
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.telemetry.sources import Sources, process_marker
from tests.shells.store_samples import DONE_AT, PLAN, make_deployment, make_load, make_run, make_shadow

pytest_plugins = ["tests.shells.store_databases"]


def spool(folder: Path) -> Path:
    return folder / "spool.jsonl"


def test_a_run_that_is_measured_is_left_alone_and_one_whose_process_is_gone_is_marked(store_address: str) -> None:
    with Store.open(store_address) as other:
        with Store.open(store_address) as store:
            run = make_run()
            store.begin_run(run, PLAN).add(make_load())
            assert other.mark_abandoned_runs() == []
            with pytest.raises(StoreError, match="is being measured, by"), other.hold_run(run.id):
                pass
            assert other.resumable_runs() == []
        assert other.mark_abandoned_runs() == [run.id]  # closing lets go of it, as death does
        assert other.mark_abandoned_runs() == []
        (left,) = other.resumable_runs("smoke")
        assert (left.id, left.status, left.finished_at) == (run.id, RunStatus.PARTIAL, None)
        assert len(other.evidence(run.id).load) == 1


def test_a_run_that_ended_lets_go_at_once(store_address: str) -> None:
    with Store.open(store_address) as store, Store.open(store_address) as other:
        for _ in range(2):
            run = make_run()
            store.begin_run(run, PLAN).finish(RunStatus.COMPLETE, DONE_AT)
            with other.hold_run(run.id):
                assert other.resumable_runs() == []
        run = make_run()
        store.begin_run(run, PLAN).suspend()
        with other.hold_run(run.id):
            assert [one.id for one in other.resumable_runs()] == [run.id]


def test_a_lock_goes_with_its_process_and_tells_it(tmp_path: Path) -> None:
    address = str(tmp_path / "store.db")
    code = (
        "import sys\n"
        "from benchgate.store.repository import Store\n"
        "from tests.shells.store_samples import PLAN, make_run\n"
        f"store = Store.open({address!r})\n"
        "store.begin_run(make_run('the-run'), PLAN)\n"
        "print('begun', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        with Store.open(address) as store:
            with pytest.raises(StoreError, match=f"by process {process.pid};"), store.hold_run("the-run"):
                pass
            assert store.mark_abandoned_runs() == []
            process.kill()
            process.wait()
            assert store.mark_abandoned_runs() == ["the-run"]
        assert [path.name for path in tmp_path.iterdir() if ".run-" in path.name] == []
    finally:
        process.kill()
        process.communicate()


def went_on(*seqs: int) -> Resumption:
    return Resumption("2026-11-20T12:30:00Z", 42, ("block 1",), seqs)


def test_what_is_set_aside_stays_and_is_in_no_evidence(store: Store, tmp_path: Path) -> None:
    run = make_run()
    writer = store.begin_run(run, PLAN)
    writer.add(make_load(Arm.BASELINE))
    writer.add(replace(make_shadow(), fault="interrupted"))
    writer.suspend()
    again = store.reopen_run(run.id, spool=spool(tmp_path))
    again.resume(went_on(0, 1), [])
    again.add(make_load(Arm.CANDIDATE, position=1))
    again.add(make_shadow())
    with pytest.raises(StoreError, match="has its shadow comparison already"):
        again.add(make_shadow())
    again.finish(RunStatus.COMPLETE, DONE_AT)
    again.close()
    evidence = store.evidence(run.id)
    assert [seen.arm for seen in evidence.load] == [Arm.CANDIDATE]
    assert evidence.shadow is not None
    assert evidence.shadow.fault is None
    assert evidence.resumptions == (went_on(0, 1),)
    journal = store.journal(run.id)
    assert [(entry.seq, entry.aside) for entry in journal] == [(0, True), (1, True), (2, False), (3, False), (4, False)]


def test_what_was_set_aside_cannot_be_said_otherwise_later(tmp_path: Path) -> None:
    address = tmp_path / "store.db"
    with Store.open(str(address)) as store:
        run = make_run()
        store.begin_run(run, PLAN).suspend()
        writer = store.reopen_run(run.id, spool=spool(tmp_path))
        writer.add(make_load())
        writer.resume(went_on(), [])
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        assert len(store.evidence(run.id).load) == 1
        with store._database.writing() as connection:
            connection.execute(text("DROP TRIGGER event_no_update"))
            connection.execute(text("UPDATE event SET data = replace(data, '\"set_aside\":[]', '\"set_aside\":[0]')"))
        with pytest.raises(EvidenceError, match="it is not what it was when it finished"):
            store.evidence(run.id)


def test_a_journal_that_does_not_tell_how_it_went_on_is_damage(store: Store) -> None:
    run = make_run()
    store.begin_run(run, PLAN).event("resumed", {"at": "2026-11-20T12:30:00Z", "set_aside": [0]})
    with pytest.raises(EvidenceError, match=f"run {run.id}: its journal does not tell how it went on"):
        store.evidence(run.id)


def test_only_a_run_that_is_not_over_goes_on(store: Store, tmp_path: Path) -> None:
    run = make_run()
    store.begin_run(run, PLAN).finish(RunStatus.PARTIAL, DONE_AT)
    assert store.resumable_runs() == []
    with pytest.raises(StoreError, match="cannot go on"):
        store.reopen_run(run.id, spool=spool(tmp_path))


def facts(**said: object) -> Deployment:
    return replace(make_deployment("f16"), facts=said)


def test_a_run_that_goes_on_has_no_numbers_of_its_part(store: Store, tmp_path: Path) -> None:
    run = make_run()
    writer = store.begin_run(run, PLAN)
    writer.add(make_load())
    writer.suspend()
    store.save_metrics(run.id, [MetricRow(Arm.CANDIDATE, "ttft", "p95", "c4", None, 0.5, 8)])
    store.reopen_run(run.id, spool=spool(tmp_path)).finish(RunStatus.COMPLETE, DONE_AT)
    assert store.metrics(run.id) == []


def test_a_deployment_that_says_something_else_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = make_run(arms={Arm.BASELINE: facts(version="1", model="m"), Arm.CANDIDATE: facts()})

    def never() -> RunWriter:
        raise AssertionError("the run was opened")

    resumed = ResumedRun(run, Completed(), never, {})
    resumed.check_deployment(Arm.BASELINE, facts(version="1", model="m", more="x"))
    resumed.check_deployment(Arm.CANDIDATE, facts(version="9"))  # it had said nothing yet
    with pytest.raises(UsageError, match=r"the baseline f16 is not what it was .*: version was 1 and is 2; run the"):
        resumed.check_deployment(Arm.BASELINE, facts(version="2", model="m"))
    with pytest.raises(UsageError, match=r"version was 1 and is not reported; resume the run when the server reports"):
        resumed.check_deployment(Arm.BASELINE, facts(model="m"))
    for part in (dict[str, Any](tasks={"reverse": ()}), {"divergence": True}, {"shadow": True}):
        resumed.completed = replace(Completed(), **part)
        with pytest.raises(UsageError, match=r"the candidate f16 .*: version was not reported and is 9; run the"):
            resumed.check_deployment(Arm.CANDIDATE, facts(version="9"))


def test_a_spool_that_is_lost_is_done_without_only_when_it_is_said_and_then_it_is_told(
    store: Store, tmp_path: Path
) -> None:
    run = make_run()
    lost, own = tmp_path / "lost.jsonl", tmp_path / "work" / "spool.jsonl"
    writer = store.begin_run(run, PLAN)
    assert recover_spools(store, run, own, without_spool=False) is SpoolState.NOT_NEEDED  # it was in no spool
    writer.event(SESSION_BEGUN, {"process": 7, "spool": str(lost), "addresses": {}})
    writer.suspend()  # without a spool of its own it says nothing of one
    with pytest.raises(UsageError, match=f"kept in {lost} too, which is not there: .* or put it at {own}"):
        recover_spools(store, run, own, without_spool=False)
    assert recover_spools(store, run, own, without_spool=True) is SpoolState.LOST
    began = {"process": 8, "spool": str(own), "addresses": {}}
    reopen = partial(store.reopen_run, run.id, spool=own)
    resumed = ResumedRun(run, Completed(), reopen, began, spool=SpoolState.LOST)
    resumed.reopen().finish(RunStatus.PARTIAL, DONE_AT)
    (resumption,) = store.evidence(run.id).resumptions
    assert resumption.without_spool and not resumption.by_spool
    assert store.events(run.id)[-1] == (SESSION_BEGUN, began)


@pytest.mark.parametrize("imported", [False, True])
def test_a_spool_of_a_run_that_was_killed_may_be_an_older_copy_which_is_told(
    store: Store, store_address: str, tmp_path: Path, imported: bool
) -> None:
    run, own = make_run(), spool(tmp_path)
    began = {"process": 7, "spool": str(own), "addresses": {}}
    with Store.open(store_address) as killed:
        writer = killed.begin_run(run, PLAN, spool=own)
        writer.begin_session(began)
        early = own.read_bytes()
        writer.add(make_load())
        writer.close()
    own.write_bytes(early)
    assert store.mark_abandoned_runs() == [run.id]
    if imported:  # by `benchgate store import`
        store.recover(own)
    for _ in range(2):  # a resumption that was refused after this is tried again
        assert recover_spools(store, run, own, without_spool=False) is SpoolState.RECOVERED
        own.unlink(missing_ok=True)
    reopen = partial(store.reopen_run, run.id, spool=own)
    resumed = ResumedRun(run, Completed(), reopen, began, spool=SpoolState.RECOVERED)
    resumed.reopen().finish(RunStatus.PARTIAL, DONE_AT)
    (resumption,) = store.evidence(run.id).resumptions
    assert resumption.by_spool and not resumption.without_spool


def test_an_address_that_a_suite_refers_to_is_known_again_and_not_kept(tmp_path: Path) -> None:
    text = (
        "suite: s\nbaseline: a\ncandidate: b\nshadow: {prompts: p.jsonl}\ndeployments:\n"
        "  a: {url: 'http://host:1', model: m}\n  b: {url: '${env:HERE}', model: m, proxy: '${env:WAY}',"
        " api_key: '${env:KEY}', headers: {x-route: '${env:ROUTE}', x-team: open}, metrics: '${env:PAGE}'}\n"
    )
    suite = parse_suite(text, "s.yaml")
    here, way = "http://secret-host:8000/tenant", "http://proxy:3128"

    def began(run_id: str = "the-run", **now: str) -> dict[str, Any]:
        before = {"HERE": here, "WAY": way, "KEY": "key", "ROUTE": "blue", "PAGE": "http://host:2/metrics"}
        return session_event(suite, before | now, run_id, tmp_path / "spool.jsonl")

    first = began()
    assert "secret" not in str(first) and list(first["addresses"]) == ["candidate"]
    assert not set(first["addresses"]["candidate"].values()) & set(began("another")["addresses"]["candidate"].values())
    assert list(changed_references([(SESSION_BEGUN, first)], began(HERE=f"{here}/"), suite)) == []
    for now, place in (
        (began(HERE="http://other:8000/tenant"), "url"),
        (began(WAY="http://other:3128"), "proxy"),
        (began(KEY="another"), "api_key"),
        (began(ROUTE="green"), "headers.x-route"),
        (began(PAGE="http://other:2/metrics"), "metrics"),
    ):
        (told,) = changed_references([(SESSION_BEGUN, first), ("look", {})], now, suite)
        expected = f"the candidate b has another `{place}` than before: set the variable that it refers to"
        assert told.startswith(expected)
    older = first | {"addresses": {"candidate": {"url": first["addresses"]["candidate"]["url"]}}}
    assert (
        len(list(changed_references([(SESSION_BEGUN, older)], first, suite))) == 4
    )  # what is not known is not as it was
    with pytest.raises(UsageError, match="the environment variable KEY is empty"):
        began(KEY="")


def resumed_after(run: Run, before: dict[Arm, tuple[str, ...]], reopen: Any) -> ResumedRun:
    return ResumedRun(run, Completed(), reopen, {"process": 7, "spool": "there", "addresses": {}}, None, before)


def test_a_run_does_not_go_on_where_another_process_answers_at_the_address(store: Store, tmp_path: Path) -> None:
    run = make_run(arms={Arm.BASELINE: facts(version="1"), Arm.CANDIDATE: facts(version="1")})
    writer = store.begin_run(run, PLAN)
    writer.event(SERVER_PROCESSES, {"baseline": None, "candidate": "first"})
    writer.suspend()
    before = processes_before(store.journal(run.id))
    assert before == {Arm.BASELINE: (), Arm.CANDIDATE: ("first",)}

    def never() -> RunWriter:
        raise AssertionError("the run was opened")

    with pytest.raises(UsageError, match=r"the server of the candidate f16 is not the process it was when"):
        resumed_after(run, before, never).reopen_for({Arm.BASELINE: "any", Arm.CANDIDATE: "second"})
    in_turn = {Arm.CANDIDATE: ("one", "another", "one")}
    assert same_processes(run, in_turn, {Arm.CANDIDATE: "third"}) == ()
    assert same_processes(run, {Arm.CANDIDATE: ("one", "another")}, {Arm.CANDIDATE: "one"}) == ()
    assert same_processes(run, before, {Arm.CANDIDATE: None}) == ()

    resumed = resumed_after(run, before, partial(store.reopen_run, run.id, spool=spool(tmp_path)))
    again = resumed.reopen_for({Arm.BASELINE: "any", Arm.CANDIDATE: "first"})
    assert store.evidence(run.id).resumptions[0].same_process == ("candidate",)
    again.finish(RunStatus.PARTIAL, DONE_AT)


def test_which_process_answers_is_told_by_its_page_of_metrics_where_it_has_one() -> None:
    with serve_sim(sim_settings()) as server:
        target = Target(Arm.CANDIDATE, server.url, "sim", DIALECTS["openai"])
        page = Sources(f"{server.url}/metrics")
        marker = process_marker(page, target)
        assert marker is not None and marker == process_marker(page, target)
        assert process_marker(Sources(None), target) is None
        assert process_marker(Sources(f"{server.url}/nothing"), target) is None
    with serve_sim(sim_settings()) as another:
        assert process_marker(Sources(f"{another.url}/metrics"), target) not in (None, marker)


def test_what_production_has_spent_is_what_it_has_when_the_run_goes_on(store: Store, tmp_path: Path) -> None:
    run = make_run()
    writer = store.begin_run(run, PLAN)
    writer.add(BudgetReading(0.1, "the suite itself", "2026-11-20T12:00:00Z"))
    writer.suspend()
    spent = BudgetReading(3.0, "the suite itself", "2026-11-20T12:30:00Z")
    reopen = partial(store.reopen_run, run.id, spool=spool(tmp_path))
    began = {"process": 7, "spool": "there", "addresses": {}}
    resumed = ResumedRun(run, Completed(budget=(0,)), reopen, began, spent)
    resumed.reopen().finish(RunStatus.PARTIAL, DONE_AT)
    evidence = store.evidence(run.id)
    assert (evidence.budget_spent, evidence.resumptions[0].set_aside) == (spent, (0,))


def test_the_run_is_opened_once_and_keeps_what_is_new(store: Store, tmp_path: Path) -> None:
    run = make_run(arms={Arm.BASELINE: facts(version="1"), Arm.CANDIDATE: facts()})
    store.begin_run(run, PLAN).suspend()
    spent = BudgetReading(0.25, "the suite itself", "2026-11-20T12:30:00Z")
    reopen = partial(store.reopen_run, run.id, spool=spool(tmp_path))
    resumed = ResumedRun(run, Completed(), reopen, {"process": 7, "spool": "there", "addresses": {}}, spent)
    resumed.check_deployment(Arm.CANDIDATE, facts(version="9"))
    writer = resumed.reopen()
    assert resumed.reopen_for({}) is writer
    writer.finish(RunStatus.PARTIAL, DONE_AT)
    evidence = store.evidence(run.id)
    assert evidence.run.arms[Arm.CANDIDATE].facts == {"version": "9"}
    assert (evidence.budget_spent, len(evidence.resumptions)) == (spent, 1)


def test_a_store_that_does_not_take_that_a_run_goes_on_lets_nothing_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could count how often it went on."""
    monkeypatch.setattr("benchgate.store.database._SQLITE_PRAGMAS", ("busy_timeout=1",))
    address = str(tmp_path / "store.db")
    with Store.open(address) as store:
        run = make_run()
        store.begin_run(run, PLAN).suspend()
        holder = sqlite3.connect(address, isolation_level=None)

        def reopened() -> RunWriter:
            writer = store.reopen_run(run.id, spool=spool(tmp_path))
            holder.execute("BEGIN IMMEDIATE")
            return writer

        resumed = ResumedRun(run, Completed(), reopened, {"process": 7, "spool": "there", "addresses": {}})
        with pytest.raises(StoreError, match=r"database is locked.*nothing was measured: try again"):
            resumed.reopen()
        holder.close()
        assert not spool(tmp_path).exists()
        assert store.mark_abandoned_runs() == [run.id]
        assert store.events(run.id) == []
        first = make_run()
        writer = store.begin_run(first, PLAN, spool=tmp_path / "first.jsonl")
        holder = sqlite3.connect(address, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="nothing was measured: try again"):
            writer.begin_session({"process": 7, "spool": "there", "addresses": {}})
        holder.close()
        writer.suspend()
        writer.close()
