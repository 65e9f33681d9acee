"""Replicas that come or go during a run: each count is looked at, and a count that is missing is never a good one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import AT_THE_END, AT_THE_START, DeploymentFault, Evidence, ReplicaCount, RunStatus
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from benchgate.suite.schema import Suite
from tests.fakes.measured import SuiteText, measured, with_status

PLAIN = SuiteText(checks=[{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "50%"}]).suite()
BLOCKS = PLAIN.load.blocks if PLAIN.load is not None else 0


def declaring(**replicas: int) -> Suite:
    """The suite with so many replicas of its baseline and candidate."""
    stored = PLAIN.to_stored()
    for role, number in replicas.items():
        stored["deployments"][stored[role]]["ready"] = {"replicas": number}
    return Suite.from_stored(stored)


BOTH = declaring(baseline=8, candidate=8)


def counted(suite: Suite, number: int = 8, arms: tuple[Arm, ...] = tuple(Arm)) -> Evidence:
    """A run with every count that it must have, each of them this number."""
    moments = [(AT_THE_START, None), *((f"before block {block + 1}", block) for block in range(BLOCKS))]
    counts = [
        ReplicaCount(arm, when, block, number, 8) for when, block in [*moments, (AT_THE_END, None)] for arm in arms
    ]
    return replace(measured(suite), replicas=tuple(counts))


def with_count(evidence: Evidence, when: str, arm: Arm, count: int | None, problem: str | None = None) -> Evidence:
    def changed(one: ReplicaCount) -> ReplicaCount:
        return replace(one, count=count, problem=problem) if (one.when, one.arm) == (when, arm) else one

    return replace(evidence, replicas=tuple(map(changed, evidence.replicas)))


def guard_of(verdict: Verdict) -> GuardResult:
    (guard,) = [guard for guard in verdict.guards if guard.id == "replicas-changed"]
    return guard


def test_the_guard_holds_where_all_replicas_were_there_at_every_count() -> None:
    verdict = judge(BOTH, counted(BOTH))
    assert verdict.outcome is Outcome.PASS
    assert not guard_of(verdict).tripped
    assert guard_of(verdict).reason.endswith("8 of the baseline and 8 of the candidate")


def test_a_suite_that_declares_no_replicas_has_no_such_guard() -> None:
    verdict = judge(PLAIN, measured(PLAIN))
    assert verdict.outcome is Outcome.PASS
    assert "replicas-changed" not in {guard.id for guard in verdict.guards}


@pytest.mark.parametrize("count", [7, 9, 0])
@pytest.mark.parametrize("when", [AT_THE_START, "before block 2", AT_THE_END])
def test_fewer_or_more_of_the_candidate_make_the_load_invalid_and_name_the_block(when: str, count: int) -> None:
    verdict = judge(BOTH, with_count(counted(BOTH), when, Arm.CANDIDATE, count))
    assert verdict.outcome is Outcome.INVALID
    assert guard_of(verdict).tripped and guard_of(verdict).invalidates == ("load",)
    assert f"{count} of 8 replicas {when}" in guard_of(verdict).reason
    assert {check.outcome for check in verdict.checks} == {Outcome.INVALID}


def test_replicas_of_the_baseline_speak_against_comparisons_alone() -> None:
    verdict = judge(BOTH, with_count(counted(BOTH), "before block 1", Arm.BASELINE, 7))
    assert guard_of(verdict).invalidates == ("compared-load",)
    assert {check.metric: check.outcome for check in verdict.checks} == {
        "ttft": Outcome.INVALID,
        "error_rate": Outcome.PASS,
    }


def test_a_count_that_could_not_be_taken_trips_with_its_reason() -> None:
    evidence = with_count(counted(BOTH), "before block 2", Arm.CANDIDATE, None, "kubectl printed nothing")
    guard = guard_of(judge(BOTH, evidence))
    assert guard.tripped and "not counted (kubectl printed nothing) before block 2" in guard.reason


@pytest.mark.parametrize("when", [AT_THE_START, "before block 2", AT_THE_END])
def test_a_count_that_is_missing_trips(when: str) -> None:
    evidence = counted(BOTH)
    left = tuple(one for one in evidence.replicas if (one.when, one.arm) != (when, Arm.CANDIDATE))
    guard = guard_of(judge(BOTH, replace(evidence, replicas=left)))
    assert guard.tripped and f"no count {when}" in guard.reason


def test_a_run_that_still_measures_needs_no_count_of_its_end() -> None:
    evidence = counted(BOTH)
    left = tuple(one for one in evidence.replicas if one.when != AT_THE_END)
    running = with_status(replace(evidence, replicas=left), RunStatus.RUNNING)
    assert not guard_of(judge(BOTH, running)).tripped


def test_a_deployment_that_was_gone_owes_no_counts() -> None:
    fault = DeploymentFault(Arm.CANDIDATE, "before block 2", "connection refused")
    verdict = judge(BOTH, replace(measured(BOTH), target_faults=(fault,)))
    assert verdict.outcome is Outcome.INVALID
    assert not guard_of(verdict).tripped


def test_an_early_count_that_was_wrong_stays_wrong_when_the_block_is_measured_again() -> None:
    again = ReplicaCount(Arm.CANDIDATE, "before block 2", 1, 7, 8)
    evidence = counted(BOTH)
    assert guard_of(judge(BOTH, replace(evidence, replicas=(again, *evidence.replicas)))).tripped


def test_the_run_s_own_suite_says_how_many_were_declared_whatever_policy_judges_it() -> None:
    assert guard_of(judge(PLAIN, counted(BOTH, 7))).tripped
    assert "replicas-changed" not in {guard.id for guard in judge(BOTH, measured(PLAIN)).guards}


def test_of_one_deployment_that_declares_its_replicas_only_its_own_counts_are_due() -> None:
    suite = declaring(candidate=8)
    assert not guard_of(judge(suite, counted(suite, arms=(Arm.CANDIDATE,)))).tripped


@pytest.mark.parametrize(
    "change", [{"count": -1}, {"count": True}, {"wanted": None}, {"arm": "other"}, {"count": "8"}, {"block": 1.5}]
)
def test_a_damaged_count_is_not_read(change: dict[str, object]) -> None:
    whole = ReplicaCount(Arm.CANDIDATE, AT_THE_START, None, 8, 8)
    assert ReplicaCount.from_document(whole.document()) == whole
    with pytest.raises((ValueError, TypeError, KeyError)):
        ReplicaCount.from_document(whole.document() | change)
