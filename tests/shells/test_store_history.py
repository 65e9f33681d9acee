"""What earlier runs concluded, read from a real store: counted once and for good."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import DeploymentFault, Evidence, Resumption, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import decide_stored
from benchgate.report.document import verdict_document
from benchgate.store.repository import RunWriter, Store
from benchgate.store.retention import Policy
from tests.fakes.measured import Effect, Noise, SuiteText, measured
from tests.shells.store_samples import PLAN, make_load, make_run, write_run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'runs.sqlite'}") as opened:
        yield opened


PLAN_SHA256 = hashlib.sha256(PLAN).hexdigest()
LATER = "2026-11-21T12:00:00Z"


def document(outcome: str, harm: float | str | None = 0.02, **changes: Any) -> dict[str, object]:
    check = {
        "id": "ttft",
        "outcome": outcome,
        "required": True,
        "unit": "s",
        "scale": "log ratio",
        "baseline": 1.0,
        "candidate": 1.02,
        "harm": harm,
    }
    check |= {"lower": 0.01, "upper": 0.03, "n": 8}
    return {"outcome": outcome, "alpha": 0.05, "checks": [check], **changes}


def judged_later(store: Store, **changes: Any) -> str:
    run = make_run(started_at=LATER, **changes)
    store.begin_run(run, PLAN).finish(RunStatus.COMPLETE, "2026-11-21T13:00:00Z")
    return run.id


def test_promoting_runs_before_this_one_are_its_history_with_their_numbers(store: Store) -> None:
    run, blocked, silent = (write_run(store) for _ in range(3))
    store.save_verdict(run.id, document("PASS"))
    store.save_verdict(blocked.id, document("BLOCK"))
    other = write_run(store, measurement_sha256="c" * 64)
    store.save_verdict(other.id, document("PASS"))
    evidence = store.evidence(judged_later(store))
    (past,) = evidence.history
    assert (past.run_id, past.checks["ttft"].harm, past.checks["ttft"].alpha) == (run.id, 0.02, 0.05)
    assert [(one.run_id, one.outcome) for one in evidence.attempts] == [(blocked.id, Outcome.BLOCK)]
    assert silent.id not in {past.run_id, *(one.run_id for one in evidence.attempts)}


def test_history_keeps_the_degrees_of_freedom_of_limits_over_groups_of_blocks(store: Store) -> None:
    """Of 20 requests a block, three blocks make one p95; a binomial limit of failures has those of its requests."""
    lines: list[dict[str, object]] = [
        {"metric": "ttft", "statistic": "p95", "margin": "50%"},
        {"metric": "error_rate", "margin": "5 points"},
    ]
    suite = SuiteText(lines, blocks=8, requests=20).suite()
    evidence = measured(suite, Effect(failed=0), noise=Noise(cv=0.02))
    verdict = judge(suite, evidence)
    run = write_run(store)
    store.save_verdict(run.id, {**verdict_document(evidence.run, verdict), "run": {"id": run.id}, "outcome": "PASS"})
    (past,) = store.evidence(judged_later(store)).history
    assert [(one.n, one.freedom) for one in past.checks.values()] == [(8, (1.0, 1.0)), (160, (None, None))]
    assert [check.freedom for check in verdict.checks] == [(1.0, 1.0), (None, None)]


def test_runs_that_measured_something_and_had_no_verdict_by_then_are_known_for_good(store: Store) -> None:
    judged, silent = write_run(store), write_run(store)
    store.save_verdict(judged.id, document("PASS"))
    ended, nothing, calibration = make_run(), make_run(), make_run(suite={"calibration": True})
    for run in (ended, calibration):
        writer = store.begin_run(run, PLAN)
        writer.add(make_load())
        writer.suspend()
    store.begin_run(nothing, PLAN).suspend()
    later = judged_later(store)
    before = store.evidence(later).unjudged
    assert [(one.run_id, one.outcome) for one in before] == [(silent.id, None), (ended.id, None)]
    store.save_verdict(silent.id, document("BLOCK"), decided_at="2026-11-22T00:00:00Z")
    assert store.evidence(later).unjudged == before


def test_removing_raw_records_changes_no_history(store: Store) -> None:
    measured_some, away = make_run(), make_run()
    for run, record in ((measured_some, make_load()), (away, DeploymentFault(Arm.CANDIDATE, "before", "load"))):
        writer = store.begin_run(run, PLAN)
        writer.add(record)
        writer.finish(RunStatus.PARTIAL, "2026-11-20T13:00:00Z")
    later = judged_later(store)
    before = store.evidence(later).unjudged
    assert [one.run_id for one in before] == [measured_some.id]
    old = store.expendable(Policy(), "2028-01-01T00:00:00Z")
    removed = store.remove_raw(old, now="2028-01-01T00:00:00Z", reason="benchgate store gc")
    assert {one.run_id for one in old} >= {measured_some.id, away.id}
    assert removed.stayed == ()
    assert store.evidence(later).unjudged == before


def test_a_verdict_on_a_run_that_was_being_measured_hides_neither_a_later_one_nor_that_there_is_none(
    store: Store,
) -> None:
    blocked, killed = make_run(), make_run()
    for run in (blocked, killed):
        writer = store.begin_run(run, PLAN)
        writer.add(make_load())
        early = document("INVALID", run={"id": run.id, "status": "running"})
        store.save_verdict(run.id, early, decided_at="2026-11-20T12:30:00.000Z")
        writer.finish(RunStatus.COMPLETE, "2026-11-20T13:00:00.000Z")
    whole = document("BLOCK", run={"id": blocked.id, "status": "complete"})
    store.save_verdict(blocked.id, whole, decided_at="2026-11-20T13:00:00.100Z")
    evidence = store.evidence(judged_later(store))
    assert [(one.run_id, one.outcome) for one in evidence.attempts] == [(blocked.id, Outcome.BLOCK)]
    assert [one.run_id for one in evidence.unjudged] == [killed.id]
    # A clock that is behind does not make a verdict one on a part of its run.
    whole = document("BLOCK", run={"id": killed.id, "status": "complete"})
    store.save_verdict(killed.id, whole, decided_at="2026-11-20T12:59:00.000Z")
    evidence = store.evidence(judged_later(store, measurement_sha256=killed.measurement_sha256))
    assert [one.run_id for one in evidence.attempts] == [blocked.id, killed.id]
    assert killed.id not in [one.run_id for one in evidence.unjudged]


def test_a_run_that_had_begun_to_measure_is_told_whatever_it_keeps_later(store: Store, tmp_path: Path) -> None:
    """Recorded prompts are kept as a whole: who ends a run midway has seen them, and the store has nothing of it."""
    midway, down = make_run(), make_run()
    for run in (midway, down):
        writer = store.begin_run(run, PLAN)
        writer.begin_session({"process": 7, "spool": "there", "addresses": {}})
        if run is midway:
            writer.suspend()
        else:  # a server was not there: over before anything was asked of it
            writer.finish(RunStatus.PARTIAL, "2026-11-20T13:00:00Z")
    later = judged_later(store)
    before = store.evidence(later).unjudged
    assert [(one.run_id, one.outcome) for one in before] == [(midway.id, None)]
    again = store.reopen_run(midway.id, spool=tmp_path / "spool.jsonl")
    again.add(make_load())
    again.finish(RunStatus.COMPLETE, "2026-11-22T00:00:00Z")
    store.save_verdict(midway.id, document("PASS"), decided_at="2026-11-22T00:00:01Z")
    assert store.evidence(later).unjudged == before


def test_a_run_that_went_on_is_of_the_day_on_which_it_did(store: Store, tmp_path: Path) -> None:
    """Else one that was begun long ago knows of no promotion since, nor of what failed beside it."""
    sleeper, seen = make_run(), Resumption("2026-11-23T00:00:00Z", 7, (), ())
    writer = store.begin_run(sleeper, PLAN)
    writer.begin_session({"process": 7, "spool": "there", "addresses": {}})
    writer.suspend()
    promoted, blocked, silent = (write_run(store) for _ in range(3))
    store.save_verdict(promoted.id, document("PASS"), decided_at="2026-11-20T13:00:01Z")
    store.save_verdict(blocked.id, document("BLOCK"), decided_at="2026-11-20T13:00:01Z")
    early = store.evidence(sleeper.id)
    assert (early.history, early.attempts) == ((), ())
    spool = tmp_path / "spool.jsonl"
    writer = store.reopen_run(sleeper.id, spool=spool)
    writer.resume(seen, [])
    for evidence in (store.evidence(sleeper.id), writer.evidence(), _by_spool(writer)):
        assert [one.run_id for one in evidence.history] == [promoted.id]
        assert [one.run_id for one in evidence.attempts] == [blocked.id]
        assert [one.run_id for one in evidence.unjudged] == [silent.id]
    writer.finish(RunStatus.PARTIAL, "2026-11-23T01:00:00Z")


def _by_spool(writer: RunWriter) -> Evidence:
    """As it is read while the store is away."""
    writer._away = "gone"
    try:
        return writer.evidence()
    finally:
        writer._away = None


def test_deciding_an_earlier_run_again_takes_nothing_out_of_the_history(store: Store) -> None:
    run, later = write_run(store), judged_later(store)
    store.save_verdict(run.id, document("WARN"))
    before = store.evidence(later).history
    store.save_verdict(run.id, document("BLOCK", harm=0.5))
    store.save_verdict(run.id, document("PASS", harm=-0.5))
    assert store.evidence(later).history == before != ()
    assert store.evidence(later).attempts == ()


def test_promotion_that_was_decided_after_a_run_began_is_no_history_of_it_and_is_of_the_next(store: Store) -> None:
    run, later = write_run(store), judged_later(store)
    store.save_verdict(run.id, document("BLOCK"), decided_at="2026-11-20T13:00:01Z")
    before = store.evidence(later)
    assert [one.run_id for one in before.attempts] == [run.id]
    store.save_verdict(run.id, document("WARN"), decided_at="2026-11-21T14:00:00Z")  # by a waiver, say
    after = store.evidence(later)
    assert (after.history, after.attempts) == (before.history, before.attempts) == ((), before.attempts)
    next_one = make_run(started_at="2026-11-22T00:00:00Z")
    store.begin_run(next_one, PLAN)
    (past,) = store.evidence(next_one.id).history
    assert (past.run_id, past.promoted_at) == (run.id, "2026-11-21T14:00:00Z")


def test_history_is_in_the_order_in_which_promotions_were_decided(store: Store) -> None:
    waived, prompt, old = (write_run(store) for _ in range(3))
    store.save_verdict(waived.id, document("WARN"), decided_at="2026-11-20T20:00:00Z")
    store.save_verdict(prompt.id, document("PASS"), decided_at="2026-11-20T13:00:01Z")
    store.save_verdict(old.id, document("PASS"))  # of a store that kept no instant: from when the run began
    assert [past.run_id for past in store.evidence(judged_later(store)).history] == [old.id, prompt.id, waived.id]


def test_trials_of_a_policy_and_comparisons_promote_nobody(store: Store) -> None:
    run, other = write_run(store), write_run(store)
    store.save_verdict(run.id, document("PASS", policy_replaced=True))
    store.save_verdict(run.id, document("PASS"), compared_run_id=other.id)
    assert store.evidence(judged_later(store)).history == ()


def test_run_that_was_not_over_when_this_one_began_is_no_history(store: Store) -> None:
    run = write_run(store)
    store.save_verdict(run.id, document("PASS"))
    at_once = make_run(started_at="2026-11-20T12:59:59Z")
    store.begin_run(at_once, PLAN)
    assert store.evidence(at_once.id).history == ()


def test_number_that_is_missing_or_infinite_is_no_link(store: Store) -> None:
    for harm in (None, "infinity"):
        run = write_run(store)
        store.save_verdict(run.id, document("WARN", harm=harm))
    assert [past.checks for past in store.evidence(judged_later(store)).history] == [{}, {}]


def test_numbers_of_an_invalid_check_are_no_link_though_the_run_was_promoted(store: Store) -> None:
    advisory = document("INVALID")["checks"]
    store.save_verdict(write_run(store).id, document("WARN", checks=advisory))
    (past,) = store.evidence(judged_later(store)).history
    assert past.checks == {}


def test_who_only_looks_at_a_run_stores_no_verdict(store: Store) -> None:
    policy = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    evidence = measured(policy)
    writer = store.begin_run(
        replace(evidence.run, status=RunStatus.RUNNING, finished_at=None, plan_sha256=PLAN_SHA256), PLAN
    )
    for seen in evidence.load:
        writer.add(seen)
    writer.finish(RunStatus.COMPLETE, LATER)
    looked = decide_stored(store, evidence.run.id, keep=False)
    assert store.verdicts(evidence.run.id) == []
    assert decide_stored(store, evidence.run.id).document == looked.document
    (first,) = store.verdicts(evidence.run.id)
    assert first.decided_at is not None and first.decided_at.endswith("Z")
    assert decide_stored(store, evidence.run.id).document == looked.document
    assert store.verdicts(evidence.run.id) == [first]  # the same said once more keeps its instant
