"""Finding runs by name, and what was concluded from them: the same on SQLite and on a real Postgres."""

from __future__ import annotations

import dataclasses
import math
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchgate.errors import StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, new_run_id
from benchgate.model.verdict import Outcome
from benchgate.store import rows
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.store.stored_run import begin_run
from tests.shells.store_samples import NASTY, PLAN, make_run, write_run

pytest_plugins = ["tests.shells.store_databases"]


def test_run_is_found_by_id_prefix_label_and_time(store: Store) -> None:
    ids = [new_run_id(1_763_650_000_000 + step, b"0123456789") for step in (0, 1, 2**20)]
    for run_id, label in zip(ids, (None, "nightly", "twice"), strict=True):
        write_run(store, run_id=run_id, label=label)
    assert store.resolve(ids[0]) == ids[0]
    assert store.resolve(ids[2][:13]) == store.resolve(ids[2], whole=True) == ids[2]
    assert store.resolve("nightly") == store.resolve("nightly", whole=True) == ids[1]
    assert store.resolve("@latest") == ids[2]
    assert store.resolve("@previous") == ids[1]
    assert store.resolve("@latest", suite="smoke") == ids[2]


UNCLEAR = (
    ("ffffffff-0000", "means 2 runs; give one of their ids: ffffffff"),
    ("twice", "means 2 runs"),
    ("019a", "too short for a run id: .* at least 13 characters"),
    ("nigthly", "did you mean nightly"),
    ("@lastest", "did you mean @latest"),
    ("zzzzzzzz", "the newest runs are"),
    ("", "too short"),
)


def brought(address: str, run_id: str, label: str) -> None:
    """A run as a bundle brings it, with a label that no command here would give it."""
    run = make_run(run_id=run_id, label=label)
    with opened(address, create=False) as database, database.writing() as connection:
        begin_run(connection, rows.run_row(run), [], zlib.compress(PLAN))


def test_unclear_name_of_a_run_is_refused_with_what_was_near(store: Store, store_address: str) -> None:
    write_run(store, run_id=new_run_id(1_763_650_000_000, b"0123456789"), label="nightly")
    for last in "01":
        brought(store_address, f"ffffffff-0000-7000-8000-00000000000{last}", "twice")
    for ref, message in UNCLEAR:
        with pytest.raises(UsageError, match=message):
            store.resolve(ref)


def test_label_takes_over_no_beginning_of_an_id(store: Store, store_address: str) -> None:
    real, forged = (new_run_id(1_763_650_000_000 + step, b"0123456789") for step in (0, 2**20))
    write_run(store, run_id=real)
    brought(store_address, forged, real[:13])
    for whole in (False, True):
        with pytest.raises(UsageError, match="means 2 runs") as refused:
            store.resolve(real[:13], whole=whole)
        assert real in str(refused.value)
        assert store.resolve(real, whole=whole) == real


def test_label_that_looks_like_the_id_of_no_run_is_no_name(store: Store, store_address: str) -> None:
    absent = new_run_id(1_763_650_000_000, b"0123456789")
    run_id = new_run_id(1_763_660_000_000, b"0123456789")
    brought(store_address, run_id, absent)
    with pytest.raises(UsageError, match=f"no run has the id '{absent}'; it is the label of run {run_id}"):
        store.resolve(absent)


def test_beginning_of_an_id_is_not_the_whole_one(store: Store) -> None:
    run_id = write_run(store, run_id=new_run_id(1_763_650_000_000, b"0123456789")).id
    assert store.resolve(run_id[:20]) == run_id
    with pytest.raises(UsageError, match=f"no whole id; run {run_id} begins so"):
        store.resolve(run_id[:20], whole=True)


NO_LABELS = (
    ("019a9e3b-5480", "looks like the id"),
    ("019A9E3B-5480-7", "looks like the id"),
    ("c0ffee00-0000-4000-8000-000000000000", "looks like the id"),
    ("@latest", "does not begin with @"),
    (" ", "on one line"),
    ("a\x1b[2J", "on one line"),
    ("nightly", "has it already"),
    ("nightly ", "no space around it"),
    ("\u2003nightly", "no space around it"),
    ("nightly\u00a0build", "only plain ones in it"),
)


def test_label_that_is_or_may_be_the_name_of_another_run_is_refused(store: Store) -> None:
    write_run(store, label="nightly")
    for label, says in NO_LABELS:
        with pytest.raises(UsageError, match=says):
            store.begin_run(make_run(label=label), PLAN)
    assert len(store.runs()) == 1


def test_of_several_jobs_that_want_one_label_at_once_one_gets_it(store_address: str) -> None:
    Store.open(store_address).close()
    together = threading.Barrier(4)

    def job(_: int) -> str:
        with Store.open(store_address) as store:
            together.wait()
            try:
                store.begin_run(make_run(label="nightly"), PLAN).suspend()
            except UsageError as error:
                return str(error)
            return "begun"

    with ThreadPoolExecutor(4) as jobs:
        told = sorted(jobs.map(job, range(4)), key=len)
    assert told[0] == "begun" and all("has it already" in one for one in told[1:])


def test_dates_commits_and_words_are_labels(store: Store) -> None:
    labels = ("20261121-0930", "night ly", "0a1b2c3d", "019a9e3b-rerun", "c0ffee" * 6 + "abcd", "caf\u00e9")
    ids = [write_run(store, label=label).id for label in labels]
    assert [store.resolve(label, whole=True) for label in labels] == ids


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


def test_jobs_that_judge_a_run_at_once_store_all_their_verdicts(store_address: str) -> None:
    jobs, each = 4, 8
    with Store.open(store_address) as store:
        run = write_run(store)
    together = threading.Barrier(jobs)

    def judge(job: int) -> None:
        with Store.open(store_address) as store:
            together.wait()
            for number in range(each):
                store.save_verdict(run.id, {"outcome": "PASS", "reason": f"{job} {number}", "checks": []})
                store.save_metrics(run.id, [MetricRow(Arm.CANDIDATE, "ttft", "p50", "c4", None, float(job), 5)])

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(judge, range(jobs)))
    with Store.open(store_address) as store:
        assert len(store.verdicts(run.id)) == jobs * each and len(store.metrics(run.id)) == 1


def test_verdict_without_a_known_outcome_is_refused(store: Store) -> None:
    run = write_run(store)
    for document in ({}, {"outcome": None}, {"outcome": "GREAT"}, {"outcome": "PASS", "x": math.nan}):
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
                MetricRow(Arm.CANDIDATE, "accuracy", "mean", None, "reverse", 0.5, 100),
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
    names = {arm: deployment.name for arm, deployment in first.arms.items()}
    assert [(p.suite, p.deployment) for p in cost] == [("smoke", names[Arm.CANDIDATE])] * 2
    both = store.trend("usd_per_million_output_tokens")
    assert {p.arm: p.deployment for p in both} == names
    assert {p.suite for p in both} == {"smoke", "other"}
    assert [p.value for p in store.trend("usd_per_million_output_tokens", arm=Arm.BASELINE)] == [1.1, 3.5, 10.0]
    assert [p.task for p in store.trend("accuracy", statistic="mean", task="reverse")] == ["reverse"] * 3
    assert store.trend("accuracy", stage="c4") == []


def test_a_trial_of_another_policy_is_kept_and_does_not_change_what_became_of_the_run(store: Store) -> None:
    run, untried = write_run(store), write_run(store)
    store.save_metrics(run.id, [MetricRow(Arm.CANDIDATE, "goodput", None, "c4", None, 0.5, 8)])
    store.save_verdict(run.id, {"outcome": "BLOCK", "policy_replaced": False})
    store.save_verdict(run.id, {"outcome": "PASS", "policy_replaced": True})
    store.save_verdict(run.id, {"outcome": "WARN"}, compared_run_id=untried.id)
    assert [point.outcome for point in store.trend("goodput")] == [Outcome.BLOCK]
    assert (store.own_outcome(run.id), store.own_outcome(untried.id)) == (Outcome.BLOCK, None)
    assert len(store.verdicts(run.id)) == 3
    with pytest.raises(UsageError, match="no run"):
        store.own_outcome("nobody")


def test_metrics_computed_again_take_the_place_of_the_old(store: Store) -> None:
    run = write_run(store)
    row = MetricRow(Arm.CANDIDATE, "goodput", None, "c4", None, 0.5, 8)
    store.save_metrics(run.id, [row])
    store.save_metrics(run.id, [dataclasses.replace(row, value=0.75)])
    assert [point.value for point in store.trend("goodput")] == [0.75]
    with pytest.raises(StoreError, match="twice"):
        store.save_metrics(run.id, [row, row])
    assert [point.value for point in store.trend("goodput")] == [0.75]
