"""Runs go from store to store and back, on SQLite and on a real Postgres, and nothing is lost or made up on the way."""

from __future__ import annotations

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run, RunStatus, TrendPoint
from benchgate.store import tables
from benchgate.store.bundle import bundle_sources
from benchgate.store.database import Address
from benchgate.store.export import export_bundle
from benchgate.store.merge import ImportResult, MergeResult, import_runs, insert_rows, merge_run
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.store.stored_run import WholeRun, read_whole, remove_raw, suspend
from tests.shells.exchange_samples import (
    DECIDED_AT,
    add_document,
    bundle_of,
    ids_in,
    verdict,
    whole_of,
    write_everything,
)
from tests.shells.exchange_strategies import whole_runs
from tests.shells.store_samples import DONE_AT, PLAN, make_load, make_run, write_run

pytest_plugins = ["tests.shells.store_databases", "tests.shells.store_elsewhere"]


def bring(origin: str, target: str, *run_ids: str) -> list[ImportResult]:
    """By bundles in a folder."""
    files = export_to(origin, Path(Address.parse(target).path or Address.parse(origin).path or "x").parent, *run_ids)
    with opened(target, create=True) as database:
        return list(import_runs(lambda: database, bundle_sources(files)))


def export_to(origin: str, folder: Path, *run_ids: str) -> list[Path]:
    files = [folder / "runs" / f"{run_id}.json" for run_id in run_ids]
    with opened(origin, create=False) as database:
        for run_id, file in zip(run_ids, files, strict=True):
            file.unlink(missing_ok=True)
            export_bundle(database, run_id, file)
    return files


def points(store: Store, run: Run) -> list[TrendPoint]:
    return [point for point in store.trend("ttft") if point.run_id == run.id]


def fates(taken: list[ImportResult]) -> list[tuple[str, int] | None]:
    return [(one.merged.fate, one.merged.added) if one.merged else None for one in taken]


def test_whole_run_goes_through_both_databases_and_comes_back_byte_for_byte(
    shared_address: str, elsewhere: str, third: str
) -> None:
    run = write_everything(elsewhere)
    assert fates(bring(elsewhere, shared_address, run.id)) == [("new", 0)]
    assert fates(bring(shared_address, third, run.id)) == [("new", 0)]
    first = bundle_of(elsewhere, run.id)
    assert bundle_of(shared_address, run.id) == first
    assert bundle_of(third, run.id) == first
    with Store.open(elsewhere) as one, Store.open(shared_address) as other:
        assert one.plan(run.id) == other.plan(run.id) == PLAN
        assert one.verdicts(run.id) == other.verdicts(run.id)
        assert points(one, run) == points(other, run)
        assert one.evidence(run.id).quality == other.evidence(run.id).quality
        assert other.check().findings == ()


@given(whole=whole_runs())
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_rows_come_back_from_a_database_as_they_were(whole: WholeRun, store_address: str) -> None:
    with opened(store_address, create=True) as database:
        with database.writing() as connection:
            merge_run(connection, whole)
        with database.reading() as connection:
            found = read_whole(connection, whole.id)
    assert found == whole


def test_taking_in_what_is_known_changes_nothing(shared_address: str, elsewhere: str) -> None:
    run = write_everything(elsewhere)
    bring(elsewhere, shared_address, run.id)
    before = bundle_of(shared_address, run.id)
    assert fates(bring(elsewhere, shared_address, run.id)) == [("known", 0)]
    assert bundle_of(shared_address, run.id) == before


def test_several_jobs_may_take_in_one_bundle_at_once(shared_address: str, elsewhere: str) -> None:
    run = write_everything(elsewhere)
    (file,) = export_to(elsewhere, Path(elsewhere).parent, run.id)
    together = threading.Barrier(4)

    def job(_: int) -> list[tuple[str, int] | None]:
        with opened(shared_address, create=True) as database:
            together.wait()
            return fates(list(import_runs(lambda: database, bundle_sources([file]))))

    with ThreadPoolExecutor(4) as jobs:
        done = sorted(str(one) for one in jobs.map(job, range(4)))
    assert done == ["[('known', 0)]"] * 3 + ["[('new', 0)]"]
    assert bundle_of(shared_address, run.id) == file.read_bytes()


def test_two_stores_that_decided_a_run_differently_agree_after_taking_in_each_others_bundles(
    shared_address: str, elsewhere: str, tmp_path: Path
) -> None:
    run = write_everything(elsewhere)
    bring(elsewhere, shared_address, run.id)
    with Store.open(elsewhere) as here:
        here.save_verdict(run.id, verdict("BLOCK", run), decided_at="2026-11-21T12:00:00.000Z")
    with Store.open(shared_address) as there:
        there.save_verdict(run.id, verdict("WARN", run, reason="a"), decided_at="2026-11-21T11:00:00.000Z")
        there.save_verdict(run.id, verdict("INVALID", run), decided_at="2026-11-21T13:00:00.000Z")
    with opened(shared_address, create=False) as database:
        promotion = add_document(database, tables.promotion, run, "2020-01-02T00:00:00Z")

    assert fates(bring(elsewhere, shared_address, run.id)) == [("known", 1)]
    assert fates(bring(shared_address, elsewhere, run.id)) == [("known", 3)]
    assert bundle_of(elsewhere, run.id) == bundle_of(shared_address, run.id)
    for address in (elsewhere, shared_address):
        with Store.open(address) as store:
            said = [one.outcome.value for one in store.verdicts(run.id)]
            assert said == ["PASS", "WARN", "WARN", "BLOCK", "INVALID"]
            assert store.own_outcome(run.id) == "INVALID"
            assert {point.outcome for point in points(store, run)} == {"INVALID"}
            assert store.check().findings == ()
        assert promotion in {row["id"] for row in whole_of(address, run.id).of(tables.promotion)}


def test_same_id_with_other_evidence_is_refused_and_nothing_is_lost(shared_address: str, elsewhere: str) -> None:
    run = write_everything(elsewhere, label=None)
    with Store.open(shared_address) as store:
        writer = store.begin_run(run, PLAN)
        writer.add(make_load(count=1))
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        other = make_run(run_id=str(make_run().id), seed=1)
        write_run(store, run_id=other.id, seed=1)
    with Store.open(elsewhere) as store:
        write_run(store, run_id=other.id, seed=2)
    before = bundle_of(shared_address, run.id), bundle_of(shared_address, other.id)
    taken = bring(elsewhere, shared_address, run.id, other.id)
    problems = sorted(one.problem or "" for one in taken)
    assert "differs in its suite, plan, seed or start" in problems[0] or "differs in its suite" in problems[1]
    assert any("differs in what was observed in it" in problem for problem in problems)
    assert (bundle_of(shared_address, run.id), bundle_of(shared_address, other.id)) == before


def test_same_records_with_another_end_are_other_evidence(shared_address: str, elsewhere: str) -> None:
    run = make_run()
    for address, ended in ((elsewhere, DONE_AT), (shared_address, "2026-11-20T14:00:00Z")):
        with Store.open(address) as store:
            writer = store.begin_run(run, PLAN)
            writer.add(make_load())
            writer.finish(RunStatus.COMPLETE, ended)
    (taken,) = bring(elsewhere, shared_address, run.id)
    assert "differs in what was observed in it" in (taken.problem or "")


def test_rows_that_the_database_refuses_leave_nothing_behind(store_address: str) -> None:
    row = {"run_id": "nobody", "seq": 0, "arm": "baseline", "name": "x", "value": 1.0, "n": 1}
    with opened(store_address, create=True) as database:
        with pytest.raises(StoreError, match=r"(?i)foreign key"), database.writing() as connection:
            insert_rows(connection, tables.metric, [row])
        with database.reading() as connection:
            assert connection.execute(tables.metric.select()).all() == []
            with pytest.raises(UsageError, match="no run with the id 'nobody'"):
                read_whole(connection, "nobody")


def test_one_bad_bundle_keeps_no_other_out(shared_address: str, elsewhere: str, tmp_path: Path) -> None:
    runs = [write_everything(elsewhere, label=None) for _ in range(2)]
    bring(elsewhere, shared_address, runs[0].id)
    folder = tmp_path / "several"
    with opened(elsewhere, create=False) as database:
        export_bundle(database, runs[1].id, folder / "2.json")
    (folder / "1.json").write_text("{}")
    with opened(shared_address, create=False) as database:
        taken = list(import_runs(lambda: database, bundle_sources([folder])))
    assert fates(taken) == [None, ("new", 0)]
    assert {run.id for run in runs} <= set(ids_in(shared_address))


def cut_short(address: str, run: Run, *, parts: int) -> None:
    """The beginning of a run, of so many observations, that may go on."""
    with Store.open(address) as store:
        writer = store.begin_run(run, PLAN)
        for block in range(parts):
            writer.add(make_load(block=block))
    with opened(address, create=False) as database, database.writing() as connection:
        suspend(connection, run.id)


def number(value: float) -> MetricRow:
    return MetricRow(Arm.CANDIDATE, "ttft", "p95", "c4", None, value, 8)


def test_numbers_that_a_store_computed_itself_stay_and_a_run_without_any_gets_them(
    shared_address: str, elsewhere: str
) -> None:
    with Store.open(elsewhere) as here:
        run = write_run(here)
        bring(elsewhere, shared_address, run.id)
        here.save_metrics(run.id, [number(0.75)])
    with Store.open(shared_address) as there:
        assert points(there, run) == []
        assert fates(bring(elsewhere, shared_address, run.id)) == [("known", 0)]
        assert [point.value for point in points(there, run)] == [0.75]
        there.save_metrics(run.id, [number(0.5)])
        bring(elsewhere, shared_address, run.id)
        assert [point.value for point in points(there, run)] == [0.5]


def test_run_that_went_on_elsewhere_is_continued_and_never_goes_back(
    shared_address: str, elsewhere: str, third: str
) -> None:
    run = make_run()
    cut_short(shared_address, run, parts=1)
    cut_short(elsewhere, run, parts=2)
    assert fates(bring(elsewhere, shared_address, run.id)) == [("continued", 0)]
    assert fates(bring(elsewhere, shared_address, run.id)) == [("known", 0)]
    early = bundle_of(elsewhere, run.id)
    assert bundle_of(shared_address, run.id) == early
    with Store.open(elsewhere) as store:
        assert store.run(run.id).status is RunStatus.PARTIAL

    whole = json.loads(early)
    assert whole["run"]["evidence_sha256"] is None
    with Store.open(third) as store:
        writer = store.begin_run(run, PLAN)
        for block in range(3):
            writer.add(make_load(block=block))
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        store.save_metrics(run.id, [number(0.75)])
    with Store.open(shared_address) as store:
        store.save_metrics(run.id, [number(0.5)])  # of the half that it had
    assert fates(bring(third, shared_address, run.id)) == [("continued", 0)]
    assert bundle_of(shared_address, run.id) == bundle_of(third, run.id)
    with Store.open(shared_address) as store:
        assert len(store.evidence(run.id).load) == 3
    assert fates(bring(elsewhere, shared_address, run.id)) == [("known", 0)]
    assert bundle_of(shared_address, run.id) == bundle_of(third, run.id)


def test_numbers_of_an_interrupted_copy_are_not_those_of_the_whole_run(shared_address: str, elsewhere: str) -> None:
    run = make_run()
    cut_short(elsewhere, run, parts=1)
    with Store.open(elsewhere) as store:
        store.save_metrics(run.id, [number(0.5)])  # of its one block
    with Store.open(shared_address) as store:
        writer = store.begin_run(run, PLAN)
        for block in range(3):
            writer.add(make_load(block=block))
        writer.finish(RunStatus.COMPLETE, DONE_AT)
    assert fates(bring(elsewhere, shared_address, run.id)) == [("known", 0)]
    with Store.open(shared_address) as store:
        assert store.metrics(run.id) == []


def test_beginnings_that_do_not_fit_are_refused(shared_address: str, elsewhere: str) -> None:
    """Another record at one place; and one after the end that the other says the run has."""
    run, sealed = make_run(), make_run()
    cut_short(shared_address, run, parts=2)
    cut_short(shared_address, sealed, parts=3)
    with Store.open(elsewhere) as store:
        store.begin_run(run, PLAN).add(make_load(Arm.CANDIDATE))
        writer = store.begin_run(sealed, PLAN)
        writer.add(make_load())
        writer.finish(RunStatus.COMPLETE, DONE_AT)
    before = bundle_of(shared_address, run.id), bundle_of(shared_address, sealed.id)
    problems = [one.problem or "" for one in bring(elsewhere, shared_address, run.id, sealed.id)]
    assert "differs in what was observed in it" in problems[0]
    assert "differs in what was observed here after its end there" in problems[1]
    assert (bundle_of(shared_address, run.id), bundle_of(shared_address, sealed.id)) == before
    (backwards,) = bring(shared_address, elsewhere, sealed.id)
    assert "differs in what was observed after its end here" in (backwards.problem or "")


def test_run_without_its_raw_records_goes_on_without_them_and_brings_none_back(
    shared_address: str, elsewhere: str, third: str
) -> None:
    run = write_everything(elsewhere)
    bring(elsewhere, shared_address, run.id)
    with opened(shared_address, create=False) as database, database.writing() as connection:
        remove_raw(connection, run.id, removed_at="2026-12-01T00:00:00Z", reason="store gc")
    assert fates(bring(shared_address, third, run.id)) == [("new", 0)]
    assert bundle_of(third, run.id) == bundle_of(shared_address, run.id)
    assert fates(bring(elsewhere, third, run.id)) == [("known", 0)]
    assert fates(bring(third, elsewhere, run.id)) == [("known", 0)]
    assert whole_of(third, run.id).of(tables.observation) == []
    assert len(whole_of(elsewhere, run.id).of(tables.observation)) > 0
    for address in (third, elsewhere):
        with Store.open(address) as store:
            assert store.check().findings == ()
            assert store.own_outcome(run.id) == "PASS"


def test_verdict_that_compares_two_runs_waits_for_the_other(shared_address: str, elsewhere: str) -> None:
    candidate, reference = (write_everything(elsewhere, label=None) for _ in range(2))
    with Store.open(elsewhere) as store:
        compared = {"outcome": "BLOCK", "against": {"id": reference.id}, "run": {"id": candidate.id}}
        store.save_verdict(candidate.id, compared, compared_run_id=reference.id, decided_at=DECIDED_AT[2])
    (alone,) = bring(elsewhere, shared_address, candidate.id)
    assert alone.merged == MergeResult(candidate.id, "new", 0, (reference.id,))
    assert len(whole_of(shared_address, candidate.id).of(tables.verdict)) == 2
    both = bring(elsewhere, shared_address, candidate.id, reference.id)
    assert {one.merged.run_id: (one.merged.fate, one.merged.added) for one in both if one.merged} == {
        candidate.id: ("known", 1),
        reference.id: ("new", 0),
    }
    assert bundle_of(shared_address, candidate.id) == bundle_of(elsewhere, candidate.id)


def test_promotion_of_a_known_id_that_says_something_else_is_refused(shared_address: str, elsewhere: str) -> None:
    run = write_everything(elsewhere)
    bring(elsewhere, shared_address, run.id)
    before = bundle_of(shared_address, run.id)
    whole = whole_of(elsewhere, run.id)
    (row,) = whole.of(tables.promotion)
    changed = dataclasses.replace(whole, parts={**whole.parts, "promotion": [row | {"in_series": 0}]})
    refused = pytest.raises(EvidenceError, match="another promotion")
    with opened(shared_address, create=False) as database, refused, database.writing() as connection:
        merge_run(connection, changed)
    assert bundle_of(shared_address, run.id) == before
