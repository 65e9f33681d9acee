"""What the store promises, on SQLite and on a real Postgres alike."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import signal

import numpy as np
import pytest
from sqlalchemy import text

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run, RunStatus, ServerStart
from benchgate.model.verdict import Outcome
from benchgate.store.database import Address, Database
from benchgate.store.repository import RunWriter, Store
from tests.shells.store_samples import (
    DONE_AT,
    NASTY,
    PLAN,
    assert_same_requests,
    make_deployment,
    make_divergence,
    make_fault,
    make_load,
    make_quality,
    make_requests,
    make_run,
    make_shadow,
    write_run,
)

pytest_plugins = ["tests.shells.store_databases"]


def tamper(address: str, *statements: str) -> None:
    """What somebody with the database's password could do: triggers off, change, triggers on."""
    database = Database.connect(Address.parse(address))
    with database.writing() as connection:
        if connection.dialect.name == "sqlite":
            for name in connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            for name in ("plan", "run", "arm", "observation", "verdict"):
                connection.execute(text(f"ALTER TABLE {name} DISABLE TRIGGER USER"))
        for statement in statements:
            connection.execute(text(statement))
    database.close()


def test_requests_that_were_left_come_back_apart_from_the_others(store: Store) -> None:
    left = make_requests(3)
    left = dataclasses.replace(left, index=left.index * 10 + 1, left=np.ones(len(left), dtype=np.int8))
    run = make_run()
    store.begin_run(run, PLAN).add(dataclasses.replace(make_load(), left=left))
    (found,) = store.evidence(run.id).load
    assert_same_requests(found.requests, make_requests())
    assert_same_requests(found.left, left)


def test_evidence_comes_back_exactly_and_in_order(store: Store) -> None:
    run = write_run(store, label="nightly")
    evidence = store.evidence(run.id)

    assert evidence.run == dataclasses.replace(run, status=RunStatus.COMPLETE, finished_at=DONE_AT)
    written = (make_load(Arm.BASELINE), make_load(Arm.CANDIDATE, position=1, count=0))
    assert len(evidence.load) == len(written)
    for found, expected in zip(evidence.load, written, strict=True):
        assert_same_requests(found.requests, expected.requests)
        assert (found.stage, found.arm, found.block, found.position) == (
            expected.stage,
            expected.arm,
            expected.block,
            expected.position,
        )
        assert (found.window_s, found.client) == (expected.window_s, expected.client)
    assert evidence.quality == (make_quality(Arm.CANDIDATE), make_quality(Arm.BASELINE))
    assert evidence.shadow == make_shadow()
    assert evidence.target_faults == (make_fault(),)


def test_starts_come_back_exactly_and_are_sealed_with_the_run(store: Store, store_address: str) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    starts = (
        ServerStart(Arm.CANDIDATE, 0, 1.25),
        ServerStart(Arm.BASELINE, 0, 0.5),
        ServerStart(Arm.CANDIDATE, 1, 1.0),
    )
    for start in starts:
        writer.add(start)
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    assert store.evidence(run.id).starts == starts
    tamper(store_address, "UPDATE observation SET meta = replace(meta, '1.25', '0.25')")
    with pytest.raises(EvidenceError, match="not what it was"):
        store.evidence(run.id)


def test_run_and_plan_come_back_exactly(store: Store) -> None:
    run = make_run(label="pr-17")
    store.begin_run(run, PLAN)
    assert store.run(run.id) == run
    assert store.plan(run.id) == PLAN


def test_run_without_arms_or_observations_is_readable(store: Store) -> None:
    run = make_run(arms={})
    store.begin_run(run, PLAN)
    evidence = store.evidence(run.id)
    assert evidence.run == run
    assert (evidence.load, evidence.quality, evidence.shadow, evidence.target_faults) == ((), (), None, ())


def test_eval_without_items_keeps_its_fault(store: Store) -> None:
    seen = dataclasses.replace(make_quality(), items=())
    writer = store.begin_run(run := make_run(), PLAN)
    writer.add(seen)
    assert store.evidence(run.id).quality == (seen,)


def test_two_runs_of_one_plan_both_have_it(store: Store) -> None:
    first, second = write_run(store), write_run(store)
    assert store.plan(first.id) == store.plan(second.id) == PLAN


def test_plan_that_does_not_hash_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="does not hash"):
        store.begin_run(make_run(), PLAN + b" ")
    assert store.runs() == []


def test_set_arm_replaces_what_was_known_of_it(store: Store) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    probed = dataclasses.replace(make_deployment("q8_0"), facts={"build": 1234})
    writer.set_arm(Arm.CANDIDATE, probed)
    assert store.run(run.id).arms == {Arm.BASELINE: make_deployment("f16"), Arm.CANDIDATE: probed}


def test_events_come_back_in_order(store: Store) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    writer.event("stage", {"name": "c4", "text": NASTY})
    writer.add(make_load())
    writer.event("signal", {})
    assert store.events(run.id) == [("stage", {"name": "c4", "text": NASTY}), ("signal", {})]


def test_runs_are_listed_newest_first(store: Store) -> None:
    old, other, new = write_run(store), write_run(store, suite_name="other"), write_run(store)
    assert [run.id for run in store.runs()] == [new.id, other.id, old.id]
    assert [run.id for run in store.runs("smoke")] == [new.id, old.id]
    assert [run.id for run in store.runs(limit=1)] == [new.id]
    assert store.runs("smoke")[0] == store.run(new.id)
    assert store.runs("unknown") == []


@pytest.mark.parametrize("status", [RunStatus.COMPLETE, RunStatus.PARTIAL])
def test_finished_run_takes_no_more(store: Store, status: RunStatus) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    writer.finish(status, DONE_AT)
    with pytest.raises(StoreError, match="finished run"):
        writer.add(make_load())
    with pytest.raises(StoreError, match="finished run"):
        writer.set_arm(Arm.BASELINE, make_deployment("other"))
    with pytest.raises(StoreError, match="finished run"):
        writer.event("load_ended", {"blocks": 1, "of": 4, "why": "decided"})
    with pytest.raises(StoreError, match="finished already"):
        writer.finish(RunStatus.COMPLETE, DONE_AT)
    assert store.run(run.id).status is status
    assert store.evidence(run.id).load == ()
    assert store.evidence(run.id).ended is None


def test_run_cannot_finish_as_running_or_begin_as_finished(store: Store) -> None:
    writer = store.begin_run(make_run(), PLAN)
    with pytest.raises(StoreError, match="cannot finish as running"):
        writer.finish(RunStatus.RUNNING, DONE_AT)
    with pytest.raises(StoreError, match="cannot begin"):
        store.begin_run(make_run(status=RunStatus.COMPLETE), PLAN)


@pytest.mark.parametrize("asked_again", [False, True])
def test_reading_of_fixed_texts_comes_back_exactly_and_there_is_one(store: Store, asked_again: bool) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    seen = make_divergence(asked_again=asked_again)
    writer.add(seen)
    with pytest.raises(StoreError, match="already"):
        writer.add(seen)
    writer.finish(RunStatus.PARTIAL, DONE_AT)
    found = store.evidence(run.id).divergence
    assert found == seen
    assert [type(item.same_top1) for item in found.items] == [bool, bool]


def test_second_shadow_comparison_is_refused(store: Store) -> None:
    writer = store.begin_run(make_run(), PLAN)
    writer.add(make_shadow())
    with pytest.raises(StoreError, match="already"):
        writer.add(make_shadow())


def test_same_run_id_twice_is_refused(store: Store) -> None:
    run = write_run(store)
    with pytest.raises(StoreError):
        store.begin_run(make_run(run.id), PLAN)
    assert len(store.evidence(run.id).load) == 2


def test_values_that_are_not_finite_are_refused_at_the_door(store: Store) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(StoreError, match="cannot be stored"):
            writer.add(dataclasses.replace(make_load(), window_s=value))
        with pytest.raises(StoreError, match="cannot be stored"):
            writer.event("oops", {"value": [value]})
        with pytest.raises(StoreError, match="not finite"):
            store.save_metrics(run.id, [MetricRow(Arm.BASELINE, "goodput", None, "c4", None, value, 1)])
    assert store.evidence(run.id).load == ()
    assert store.events(run.id) == []
    assert store.trend("goodput") == []


def test_text_that_only_one_database_would_take_is_refused_by_both(store: Store) -> None:
    for name in ("nul\0", "half \ud800"):
        with pytest.raises(StoreError, match="the run's suite_name"):
            store.begin_run(make_run(suite_name=name), PLAN)


REFUSED = (
    "UPDATE plan SET sha256 = 'x'",
    "DELETE FROM plan",
    "UPDATE observation SET sha256 = 'x'",
    "DELETE FROM observation",
    "UPDATE event SET kind = 'x'",
    "DELETE FROM event",
    "UPDATE verdict SET outcome = 'PASS'",
    "DELETE FROM verdict",
    "UPDATE run SET status = 'running'",
    "UPDATE run SET suite_name = 'x' WHERE status = 'running'",
    "DELETE FROM run",
    "UPDATE arm SET fingerprint = 'x'",
    "DELETE FROM arm",
)


def test_database_refuses_to_change_evidence_and_finished_runs(store: Store, store_address: str) -> None:
    finished = write_run(store)
    store.save_verdict(finished.id, {"outcome": "BLOCK"})
    running = store.begin_run(make_run(), PLAN)
    running.event("started", {})
    database = Database.connect(Address.parse(store_address))
    for statement in REFUSED:
        with pytest.raises(StoreError, match=r"never change|after their tombstone"), database.writing() as connection:
            connection.execute(text(statement))
    database.close()
    assert store.evidence(finished.id).shadow == make_shadow()
    assert store.run(running.run_id).suite_name == "smoke"


ALTERED = "not what it was when it finished"
TAMPERED = (
    ("UPDATE observation SET data = plan.data FROM plan WHERE {} AND seq = 0", "observation 0 .load baseline c4.*hash"),
    ("UPDATE observation SET codec = 'columns/9' WHERE {} AND seq = 0", "columns/9"),
    ("UPDATE observation SET n_rows = 2 WHERE {} AND seq = 3", "observation 3 .quality candidate reverse.*not the 2"),
    ("UPDATE observation SET meta = 'x' WHERE {} AND seq = 5", "observation 5 .shadow"),
    ("UPDATE observation SET kind = 'dream' WHERE {} AND seq = 5", "dream"),
    ("UPDATE observation SET arm = 'candidate' WHERE {} AND seq = 0", ALTERED),
    ("DELETE FROM observation WHERE {} AND seq = 4", ALTERED),
    ("DELETE FROM arm WHERE {} AND role = 'baseline'", ALTERED),
    ("UPDATE run SET label = 'other' WHERE {}", ALTERED),
    ("UPDATE run SET evidence_sha256 = NULL WHERE {}", ALTERED),
)


def test_tampered_evidence_is_refused_by_name(store: Store, store_address: str) -> None:
    runs = [write_run(store) for _ in TAMPERED]
    of_run = [
        f"{'id' if ' run ' in change else 'run_id'} = '{run.id}'"
        for run, (change, _) in zip(runs, TAMPERED, strict=True)
    ]
    tamper(store_address, *(change.format(where) for where, (change, _) in zip(of_run, TAMPERED, strict=True)))
    for run, (_, reason) in zip(runs, TAMPERED, strict=True):
        with pytest.raises(EvidenceError, match=f"run {run.id}.*{reason}"):
            store.evidence(run.id)


def test_tampered_plan_and_verdict_are_refused(store: Store, store_address: str) -> None:
    run = write_run(store)
    store.save_verdict(run.id, {"outcome": "BLOCK"})
    tamper(
        store_address,
        "UPDATE plan SET data = (SELECT data FROM observation WHERE seq = 0)",
        """UPDATE verdict SET document = '{"outcome":"PASS"}'""",
    )
    with pytest.raises(EvidenceError, match="plan"):
        store.plan(run.id)
    with pytest.raises(EvidenceError, match="verdict 0"):
        store.verdicts(run.id)


def test_verdict_listed_as_another_than_its_document_says_is_refused(store: Store, store_address: str) -> None:
    run, other = write_run(store), write_run(store)
    for each in (run, other):
        store.save_verdict(each.id, {"outcome": "BLOCK"})
    tamper(store_address, f"UPDATE verdict SET outcome = 'PASS' WHERE run_id = '{run.id}'")
    for read in (store.verdicts, store.own_outcome):
        with pytest.raises(EvidenceError, match="says BLOCK and is listed as PASS"):
            read(run.id)
    assert store.own_outcome(other.id) is Outcome.BLOCK


UNTRUE = ("compared_run_id = NULL", "decided_at = '2026-01-01T00:00:00Z'", "decided_at = NULL")


def test_comparison_cannot_become_a_verdict_of_its_own_nor_one_of_another_day(store: Store, store_address: str) -> None:
    other, *runs = (write_run(store) for _ in range(1 + len(UNTRUE)))
    for run in runs:
        at = "2026-11-20T13:00:01Z"
        kept = store.save_verdict(run.id, {"outcome": "PASS"}, compared_run_id=other.id, decided_at=at)
        assert store.verdicts(run.id) == [kept]
    changed = zip(runs, UNTRUE, strict=True)
    tamper(store_address, *(f"UPDATE verdict SET {change} WHERE run_id = '{run.id}'" for run, change in changed))
    for run in runs:
        for read in (store.verdicts, store.own_outcome):
            with pytest.raises(EvidenceError, match=f"verdict 0 of run {run.id} does not hash"):
                read(run.id)


def test_what_an_older_store_compared_is_told_by_its_document(store: Store, store_address: str) -> None:
    compared, own, other = (write_run(store) for _ in range(3))
    store.save_verdict(compared.id, {"outcome": "PASS", "against": {"id": other.id}}, compared_run_id=other.id)
    store.save_verdict(own.id, {"outcome": "BLOCK", "against": None})
    assert store.own_outcome(own.id) is Outcome.BLOCK
    tamper(
        store_address,
        f"UPDATE verdict SET compared_run_id = NULL WHERE run_id = '{compared.id}'",
        f"UPDATE verdict SET compared_run_id = '{other.id}' WHERE run_id = '{own.id}'",
    )
    with pytest.raises(EvidenceError, match=f"it is against run {other.id} and is listed as one of the run itself"):
        store.own_outcome(compared.id)
    with pytest.raises(EvidenceError, match=f"it is of the run itself and is listed as one against run {other.id}"):
        store.own_outcome(own.id)


def _write_and_die(address: str, run: Run) -> None:
    writer = Store.open(address).begin_run(run, PLAN)
    writer.add(make_load())
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_process_leaves_what_it_had_added_and_a_run_that_is_not_complete(
    store: Store, store_address: str
) -> None:
    run = make_run()
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(store_address, run))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    evidence = store.evidence(run.id)
    assert evidence.run.status is RunStatus.RUNNING
    assert len(evidence.load) == 1
    assert_same_requests(evidence.load[0].requests, make_requests())


def _write_runs(address: str, runs: list[Run]) -> None:
    with Store.open(address) as store:
        for run in runs:
            writer: RunWriter = store.begin_run(run, PLAN)
            for block in range(10):
                writer.add(make_load(block=block))
            writer.finish(RunStatus.COMPLETE, DONE_AT)


@pytest.mark.slow
def test_processes_that_open_and_write_a_new_store_at_once_lose_nothing(store_address: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    runs = [make_run() for _ in range(4)]
    processes = [spawn.Process(target=_write_runs, args=(store_address, half)) for half in (runs[:2], runs[2:])]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    with Store.open(store_address, create=False) as store:
        for run in runs:
            assert [seen.block for seen in store.evidence(run.id).load] == list(range(10))
