"""What is of a time to come by the store's clock is refused; where it got in, it is nobody's newest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.pipeline.environment import utc_now
from benchgate.store import clock, tables
from benchgate.store.merge import RunSource, copy_store, import_runs
from benchgate.store.migrate import opened
from benchgate.store.queries import newest_runs
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from benchgate.store.stored_run import remove_raw
from tests.shells.exchange_samples import DECIDED_AT, verdict, whole_of
from tests.shells.store_samples import DONE_AT, PLAN, make_load, make_noise, make_run, write_run

pytest_plugins = ["tests.shells.store_databases"]

BY_THE_DATABASE = clock.latest  # as tests find it from here on, it is past the days of all samples
FUTURE, LATER = "2099-01-01T00:00:00.000Z", "2099-01-01T01:00:00.000Z"
EARLY, FAR_AHEAD = "2026-11-20T09:00:00Z", "2098-01-01T00:00:00.000Z"


@contextmanager
def wrong_clock() -> Iterator[None]:
    """The store's clock is far ahead for a while."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clock, "latest", lambda connection: "2999-01-01T00:00:00.000Z")
        yield


def run_of(store: Store, started_at: str = DONE_AT, finished_at: str = DONE_AT) -> Run:
    run = make_run(started_at=started_at)
    writer = store.begin_run(run, PLAN)
    writer.add(make_load())
    writer.finish(RunStatus.COMPLETE, finished_at)
    return run


def ahead(store: Store, started_at: str = FUTURE, finished_at: str = LATER) -> Run:
    """A run that was stored while the clock was wrong."""
    with wrong_clock():
        return run_of(store, started_at, finished_at)


def test_a_verdict_by_a_clock_that_was_behind_is_still_the_later_one(store: Store, store_address: str) -> None:
    run = run_of(store)
    store.save_verdict(run.id, {"outcome": "PASS", "checks": []}, decided_at="2026-11-20T14:02:00.000Z")
    later = store.save_verdict(run.id, {"outcome": "BLOCK", "checks": []}, decided_at="2026-11-20T14:00:00.000Z")
    assert store.own_outcome(run.id) is Outcome.BLOCK and store.own_verdict(run.id) == later
    assert [verdict["outcome"] for verdict in whole_of(store_address, run.id).of(tables.verdict)] == ["PASS", "BLOCK"]


def test_a_run_whose_clock_was_set_back_is_sound_and_can_be_imported(
    store: Store, store_address: str, tmp_path: Path
) -> None:
    run = run_of(store, started_at="2026-11-20T14:00:00.000Z", finished_at="2026-11-20T13:30:00.000Z")
    assert store.run(run.id).finished_at == run.started_at
    assert store.check().findings == ()
    source = RunSource("here", lambda: whole_of(store_address, run.id))
    with Store.open(str(tmp_path / "other.db")) as other:
        (imported,) = import_runs(lambda: other._database, [source])
        assert imported.problem is None and other.evidence(run.id).load


def test_a_database_tells_what_time_it_is(store: Store) -> None:
    with store._database.reading() as connection:
        assert utc_now() < BY_THE_DATABASE(connection) < FUTURE


def test_no_run_begins_in_a_time_to_come(store: Store, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    for kept in (None, spool):
        with pytest.raises(EvidenceError, match=r"its beginning is of 2099-01-01.* set the clock of the machine"):
            store.begin_run(make_run(started_at=FUTURE), PLAN, spool=kept)
    assert (store.runs(), spool.exists()) == ([], False)


def test_no_spool_brings_a_run_of_a_time_to_come(store: Store, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    with wrong_clock(), Store.open(str(tmp_path / "other.db")) as other:
        writer = other.begin_run(make_run(started_at=FUTURE), PLAN, spool=spool)
        kept = spool.with_name("kept.jsonl")
        kept.write_bytes(spool.read_bytes())
        writer.discard()
    with pytest.raises(EvidenceError, match="its beginning is of 2099-01-01"):
        store.recover(kept)
    assert store.runs() == []


def test_run_of_a_time_to_come_is_not_the_newest_and_is_told_by_a_check(store: Store) -> None:
    to_come = ahead(store)
    with pytest.raises(UsageError, match="@latest means nothing here"):
        store.resolve("@latest")
    first, second = run_of(store, EARLY), run_of(store)
    assert (store.resolve("@latest"), store.resolve("@previous")) == (second.id, first.id)
    assert store.resolve(to_come.id) == to_come.id
    found = [(one.run_id, one.place, one.problem.split(":")[0]) for one in store.check().findings]
    assert found == [(to_come.id, "beginning", "it is of 2099-01-01T00"), (to_come.id, "end", "it is of 2099-01-01T01")]
    with store._database.reading() as connection:
        assert newest_runs(connection, [to_come.id, second.id]) == newest_runs(connection, [second.id])
    with wrong_clock():
        assert store.resolve("@latest") == to_come.id


def test_run_of_a_time_to_come_takes_no_newest_one_s_place_when_records_go(store: Store) -> None:
    first, _ = run_of(store, EARLY), run_of(store)
    ahead(store)
    assert [one.run_id for one in store.expendable(Policy(keep_last=1), FAR_AHEAD)] == [first.id]


def test_no_verdict_is_of_a_time_to_come(store: Store) -> None:
    run = write_run(store)
    with pytest.raises(EvidenceError, match=r"its verdict is of 2099-01-01.* set the clock of the machine"):
        store.save_verdict(run.id, verdict("PASS", run), decided_at=FUTURE)
    assert store.verdicts(run.id) == []


def test_verdict_of_a_time_to_come_stands_before_no_other(store: Store, store_address: str) -> None:
    run = run_of(store)
    store.save_metrics(run.id, [MetricRow(Arm.CANDIDATE, "ttft", "p95", "c4", None, 0.25, 8)])
    with wrong_clock():
        store.save_verdict(run.id, verdict("PASS", run), decided_at=FUTURE)
    assert (store.own_outcome(run.id), store.verdicts(run.id), store.overview().runs[0].outcomes) == (None, [], ())
    said_again = store.save_verdict(run.id, verdict("PASS", run), decided_at=DECIDED_AT[0])
    assert said_again.decided_at == DECIDED_AT[0]
    store.save_verdict(run.id, verdict("BLOCK", run), decided_at=DECIDED_AT[1])
    assert store.own_outcome(run.id) is Outcome.BLOCK
    assert [one.outcome for one in store.verdicts(run.id)] == [Outcome.PASS, Outcome.BLOCK]
    assert [point.outcome for point in store.trend("ttft")] == [Outcome.BLOCK]
    (finding,) = store.check().findings
    assert (finding.run_id, f"it is of {FUTURE}, which is still to come" in finding.problem) == (run.id, True)
    with opened(store_address, create=False) as database, database.writing() as connection:
        remove_raw(connection, run.id, removed_at=DECIDED_AT[2], reason="store gc")
    with pytest.raises(EvidenceError, match="its own verdict of 2026-11-20, BLOCK, stands"):
        store.evidence(run.id)


def test_noise_of_a_time_to_come_is_not_the_newest(store: Store) -> None:
    early, late = run_of(store), run_of(store)
    store.save_noise_profile(make_noise(early))
    store.save_noise_profile(make_noise(late, FUTURE))
    key = make_noise(late).key
    assert (found := store.noise_profile(key)) is not None and found.run_id == early.id
    (finding,) = store.check().findings
    assert (finding.run_id, f"it is of {FUTURE}" in finding.problem) == (late.id, True)


def test_no_bundle_and_no_store_brings_what_is_of_a_time_to_come(tmp_path: Path) -> None:
    origin, target = str(tmp_path / "origin.db"), str(tmp_path / "target.db")
    with Store.open(origin) as store:
        told, begun = {ahead(store, DONE_AT).id: "end is of 2099-01-01T01"}, make_run(started_at=FUTURE)
        judged, calibrated, sound = run_of(store), run_of(store), run_of(store)
        with wrong_clock():
            store.begin_run(begun, PLAN).suspend()
            store.save_verdict(judged.id, verdict("PASS", judged), decided_at=FUTURE)
        store.save_noise_profile(make_noise(calibrated, FUTURE))
        told |= {
            begun.id: "beginning is of 2099",
            judged.id: "verdict is of 2099",
            calibrated.id: "noise profile is of 2099",
        }
    with opened(target, create=True) as database:
        sources = [RunSource(run_id, partial(whole_of, origin, run_id)) for run_id in told]
        for taken in import_runs(lambda: database, sources):
            assert taken.merged is None and f"its {told[taken.source]}" in str(taken.problem)
        with opened(origin, create=False) as source:
            assert len([one for one in copy_store(source, database) if one.merged is not None]) == 1
    with Store.open(target) as store:
        assert [run.id for run in store.runs()] == [sound.id]


def test_run_that_is_measured_is_neither_recovered_nor_taken_in(
    store: Store, store_address: str, tmp_path: Path
) -> None:
    """By another copy of its spool, which has a lock of its own, or from another store that has a part of it."""
    spool, kept = tmp_path / "spool.jsonl", tmp_path / "kept.jsonl"
    run = make_run()
    writer = store.begin_run(run, PLAN, spool=spool)
    writer.add(make_load())
    kept.write_bytes(spool.read_bytes())
    with Store.open(str(tmp_path / "other.db")) as other, Store.open(store_address) as here:
        other.recover(kept)
        with pytest.raises(StoreError, match="is being measured, by "):
            here.recover(kept)
        (taken,) = copy_store(other._database, here._database)
        assert taken.merged is None and f"run {run.id} is being measured, by " in str(taken.problem)
        assert here.run(run.id).status is RunStatus.RUNNING
        writer.add(make_load(position=1))
        writer.suspend()
        writer.close()
        assert here.recover(kept).status is RunStatus.PARTIAL
        (taken,) = copy_store(here._database, other._database)
        assert taken.merged is not None and taken.merged.fate == "continued"
        assert len(here.evidence(run.id).load) == 2
