"""What the store promises, on SQLite and on a real Postgres alike."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run, RunStatus, new_run_id
from benchgate.model.verdict import Outcome
from benchgate.store.engine import Address, Database
from benchgate.store.repository import RunWriter, Store
from tests.shells.store_samples import (
    NASTY,
    PLAN,
    assert_same_requests,
    make_deployment,
    make_fault,
    make_load,
    make_quality,
    make_requests,
    make_run,
    make_shadow,
)

pytest_plugins = ["tests.shells.store_databases"]

DONE_AT = "2026-11-20T13:00:00Z"


@pytest.fixture
def store(store_address: str) -> Iterator[Store]:
    with Store.open(store_address) as opened:
        yield opened


def write_run(store: Store, **changes: Any) -> Run:
    """A whole run with one observation of each kind, both arms in the load."""
    run = make_run(**changes)
    writer = store.begin_run(run, PLAN)
    writer.add_load(make_load(Arm.BASELINE, block=0, position=0))
    writer.add_target_fault(make_fault())
    writer.add_load(make_load(Arm.CANDIDATE, block=0, position=1, count=0))
    writer.add_quality(make_quality(Arm.CANDIDATE))
    writer.add_quality(make_quality(Arm.BASELINE))
    writer.add_shadow(make_shadow())
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    return run


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
    writer.add_quality(seen)
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
    writer.add_load(make_load())
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
        writer.add_load(make_load())
    with pytest.raises(StoreError, match="finished run"):
        writer.set_arm(Arm.BASELINE, make_deployment("other"))
    with pytest.raises(StoreError, match="finished already"):
        writer.finish(RunStatus.COMPLETE, DONE_AT)
    assert store.run(run.id).status is status
    assert store.evidence(run.id).load == ()


def test_run_cannot_finish_as_running_or_begin_as_finished(store: Store) -> None:
    writer = store.begin_run(make_run(), PLAN)
    with pytest.raises(StoreError, match="cannot finish as running"):
        writer.finish(RunStatus.RUNNING, DONE_AT)
    with pytest.raises(StoreError, match="cannot begin"):
        store.begin_run(make_run(status=RunStatus.COMPLETE), PLAN)


def test_second_shadow_comparison_is_refused(store: Store) -> None:
    writer = store.begin_run(make_run(), PLAN)
    writer.add_shadow(make_shadow())
    with pytest.raises(StoreError, match="already"):
        writer.add_shadow(make_shadow())


def test_same_run_id_twice_is_refused(store: Store) -> None:
    run = write_run(store)
    with pytest.raises(StoreError):
        store.begin_run(make_run(run.id), PLAN)
    assert len(store.evidence(run.id).load) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_at_the_door(store: Store, value: float) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    with pytest.raises(StoreError, match="cannot be stored"):
        writer.add_load(dataclasses.replace(make_load(), window_s=value))
    with pytest.raises(StoreError, match="cannot be stored"):
        writer.event("oops", {"value": [value]})
    with pytest.raises(StoreError, match="not finite"):
        store.save_metrics(run.id, [MetricRow(Arm.BASELINE, "goodput_ratio", None, "c4", None, value, 1)])
    assert store.evidence(run.id).load == ()
    assert store.events(run.id) == []


@pytest.mark.parametrize("label", ["nul\0", "half \ud800"])
def test_text_that_only_one_database_would_take_is_refused_by_both(store: Store, label: str) -> None:
    with pytest.raises(StoreError, match="the run's label"):
        store.begin_run(make_run(label=label), PLAN)


@pytest.mark.parametrize("statement", ["UPDATE {} SET sha256 = 'x'", "DELETE FROM {}"])
@pytest.mark.parametrize("table", ["plan", "observation", "verdict"])
def test_evidence_cannot_be_updated_or_deleted(store: Store, store_address: str, table: str, statement: str) -> None:
    run = write_run(store)
    store.save_verdict(run.id, {"outcome": "PASS"})
    database = Database.connect(Address.parse(store_address))
    with pytest.raises(StoreError, match="never change"), database.writing() as connection:
        connection.execute(text(statement.format(table)))
    database.close()
    assert store.evidence(run.id).shadow == make_shadow()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE run SET status = 'running'",
        "UPDATE run SET suite_name = 'x' WHERE status = 'running'",
        "UPDATE arm SET fingerprint = 'x'",
        "DELETE FROM arm",
        "DELETE FROM run",
        "UPDATE event SET kind = 'x'",
    ],
)
def test_finished_runs_and_identities_cannot_be_changed(store: Store, store_address: str, statement: str) -> None:
    finished = write_run(store)
    running = store.begin_run(make_run(), PLAN)
    running.event("started", {})
    database = Database.connect(Address.parse(store_address))
    with pytest.raises(StoreError, match=r"never change"), database.writing() as connection:
        connection.execute(text(statement))
    database.close()
    assert store.run(finished.id).status is RunStatus.COMPLETE


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE observation SET data = plan.data FROM plan WHERE seq = 0", "observation 0 .load baseline c4.*hash"),
        ("UPDATE observation SET codec = 'columns/9' WHERE seq = 0", "columns/9"),
        ("UPDATE observation SET n_rows = 3 WHERE seq = 3", "observation 3 .quality candidate reverse.*3"),
        ("UPDATE observation SET meta = '{' WHERE seq = 5", "observation 5 .shadow"),
        ("UPDATE observation SET kind = 'dream' WHERE seq = 5", "dream"),
        ("UPDATE observation SET arm = 'candidate' WHERE seq = 0", "not what it was when it finished"),
        ("DELETE FROM observation WHERE seq = 4", "not what it was when it finished"),
        ("UPDATE run SET label = 'other'", "not what it was when it finished"),
        ("DELETE FROM arm WHERE role = 'baseline'", "not what it was when it finished"),
        ("UPDATE run SET evidence_sha256 = NULL", "not what it was when it finished"),
    ],
)
def test_tampered_evidence_is_refused(store: Store, store_address: str, statement: str, reason: str) -> None:
    run = write_run(store)
    if "n_rows = 3" in statement:
        statement = statement.replace("n_rows = 3", "n_rows = 2")
    tamper(store_address, statement)
    with pytest.raises(EvidenceError, match=reason) as refused:
        store.evidence(run.id)
    assert run.id in str(refused.value)


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


def test_run_is_found_by_id_prefix_label_and_time(store: Store) -> None:
    ids = [new_run_id(1_763_650_000_000 + step, b"0123456789") for step in (0, 1, 2**20)]
    for run_id, label in zip(ids, (None, "nightly", "twice"), strict=True):
        write_run(store, run_id=run_id, label=label)
    assert store.resolve(ids[0]) == ids[0]
    assert store.resolve(ids[2][:12]) == ids[2]
    assert store.resolve("nightly") == ids[1]
    assert store.resolve("@latest") == ids[2]
    assert store.resolve("@previous") == ids[1]
    assert store.resolve("@latest", suite="smoke") == ids[2]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("019a", "means 2 runs; give one of their ids: 019a"),
        ("twice", "means 2 runs"),
        ("019", "too short"),
        ("nigthly", "did you mean nightly"),
        ("@lastest", "did you mean @latest"),
        ("zzzzzzzz", "the newest runs are"),
        ("", "no run is called|too short"),
    ],
)
def test_unclear_name_of_a_run_is_refused_with_what_was_near(store: Store, ref: str, message: str) -> None:
    write_run(store, run_id=new_run_id(1_763_650_000_000, b"0123456789"), label="nightly")
    write_run(store, run_id=new_run_id(1_763_650_000_001, b"0123456789"), label="twice")
    write_run(store, run_id="ffffffff-0000-7000-8000-000000000000", label="twice")
    with pytest.raises(UsageError, match=message):
        store.resolve(ref)


def test_names_mean_nothing_in_an_empty_store(store: Store) -> None:
    for ref in ("@latest", "@previous", "nightly"):
        with pytest.raises(UsageError, match="yet"):
            store.resolve(ref)
    with pytest.raises(UsageError, match="no run with the id"):
        store.evidence("nightly")


def test_verdicts_are_added_and_never_replaced(store: Store) -> None:
    base, run = write_run(store), write_run(store)
    store.save_verdict(run.id, {"outcome": "PASS", "reason": NASTY})
    store.save_verdict(run.id, {"outcome": "BLOCK"}, compared_run_id=base.id)
    store.save_verdict(run.id, {"outcome": "PASS", "reason": "again"})
    found = store.verdicts(run.id)
    assert [(item.outcome, item.compared_run_id) for item in found] == [
        (Outcome.PASS, None),
        (Outcome.BLOCK, base.id),
        (Outcome.PASS, None),
    ]
    assert found[0].document == {"outcome": "PASS", "reason": NASTY}
    assert store.verdicts(base.id) == []


def test_deciding_again_with_the_same_result_adds_nothing(store: Store) -> None:
    run = write_run(store)
    first = store.save_verdict(run.id, {"outcome": "PASS", "alpha": 0.05})
    assert store.save_verdict(run.id, {"alpha": 0.05, "outcome": "PASS"}) == first
    assert len(store.verdicts(run.id)) == 1


@pytest.mark.parametrize("document", [{}, {"outcome": None}, {"outcome": "GREAT"}, {"outcome": "PASS", "x": math.nan}])
def test_verdict_without_a_known_outcome_is_refused(store: Store, document: dict[str, object]) -> None:
    run = write_run(store)
    with pytest.raises(StoreError, match="cannot be stored"):
        store.save_verdict(run.id, document)
    with pytest.raises(UsageError, match="no run"):
        store.save_verdict("nobody", {"outcome": "PASS"})
    assert store.verdicts(run.id) == []


def test_trend_gives_each_run_its_value_and_own_verdict(store: Store) -> None:
    first, second, third = write_run(store, label="v1"), write_run(store), write_run(store, suite_name="other")
    for run, value in ((second, 2.5), (first, 0.1), (third, 9.0)):
        store.save_metrics(
            run.id,
            [
                MetricRow(Arm.CANDIDATE, "usd_per_million_output_tokens", None, "c4", None, value, 8),
                MetricRow(Arm.BASELINE, "usd_per_million_output_tokens", None, "c4", None, value + 1, 8),
                MetricRow(Arm.CANDIDATE, "accuracy_ratio", "mean", None, "reverse", 0.5, 100),
            ],
        )
    store.save_verdict(first.id, {"outcome": "BLOCK"})
    store.save_verdict(first.id, {"outcome": "WARN"})
    store.save_verdict(second.id, {"outcome": "PASS"}, compared_run_id=first.id)

    cost = store.trend("usd_per_million_output_tokens", suite="smoke", arm=Arm.CANDIDATE)
    assert [(p.run_id, p.started_at, p.label, p.outcome, p.arm, p.stage, p.task, p.value, p.n) for p in cost] == [
        (first.id, first.started_at, "v1", Outcome.WARN, Arm.CANDIDATE, "c4", None, 0.1, 8),
        (second.id, second.started_at, None, None, Arm.CANDIDATE, "c4", None, 2.5, 8),
    ]
    assert [p.value for p in store.trend("usd_per_million_output_tokens", arm=Arm.BASELINE)] == [1.1, 3.5, 10.0]
    assert [p.task for p in store.trend("accuracy_ratio", statistic="mean", task="reverse")] == ["reverse"] * 3
    assert store.trend("accuracy_ratio", stage="c4") == []


def test_metrics_computed_again_take_the_place_of_the_old(store: Store) -> None:
    run = write_run(store)
    row = MetricRow(Arm.CANDIDATE, "goodput_ratio", None, "c4", None, 0.5, 8)
    store.save_metrics(run.id, [row])
    store.save_metrics(run.id, [dataclasses.replace(row, value=0.75)])
    assert [point.value for point in store.trend("goodput_ratio")] == [0.75]
    with pytest.raises(StoreError, match="twice"):
        store.save_metrics(run.id, [row, row])
    assert [point.value for point in store.trend("goodput_ratio")] == [0.75]


def _write_and_die(address: str, run: Run) -> None:
    writer = Store.open(address).begin_run(run, PLAN)
    writer.add_load(make_load())
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
                writer.add_load(make_load(block=block))
            writer.finish(RunStatus.COMPLETE, DONE_AT)


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
