"""A fault of the baseline speaks against what is compared; one of the candidate against its own numbers as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.guards.base import (
    Caution,
    Finding,
    Guard,
    Need,
    NotApplicable,
    Passed,
    Violation,
    guard,
    most_serious,
)
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns, TokenSource
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult, Outcome
from tests.fakes.drills import drill
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

TTFT: dict[str, object] = {"metric": "ttft", "max": "1s"}
TPOT: dict[str, object] = {"metric": "tpot", "max": "1s"}
ERRORS: dict[str, object] = {"metric": "error_rate", "max": "1%"}
MARGIN: dict[str, object] = {"metric": "e2e", "margin": "10%"}
BOUNDS = [TTFT, TPOT, ERRORS]


def shorter_prompts(execution: LoadObservation) -> LoadObservation:
    columns = execution.requests.to_columns()
    fewer = np.full(len(execution.requests), 4, dtype=np.int64)
    return replace(execution, requests=RequestColumns.from_columns({**columns, "input_tokens": fewer}))


def on(evidence: Evidence, arm: Arm, change: Callable[[LoadObservation], LoadObservation]) -> Evidence:
    return replace(evidence, load=tuple(change(o) if o.arm is arm else o for o in evidence.load))


FAULTS = {
    "tokens-plausible": Effect(usage=8),
    "tokens-alike": Effect(token_source=TokenSource.CHUNKS),
    "answers-not-too-long": Effect(tokens=12),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_baseline_leaves_the_candidates_own_bounds_alone(name: str) -> None:
    faulty = FAULTS[name]
    for candidate, baseline, judged in ((HEALTHY, faulty, True), (faulty, HEALTHY, False)):
        alone = SuiteText([*BOUNDS]).suite()
        verdict = judge(alone, measured(alone, candidate, baseline))
        assert verdict.outcome.promotes is judged, verdict.reason  # answers of other lengths may warn
        compared = SuiteText([*BOUNDS, MARGIN]).suite()
        verdict = judge(compared, measured(compared, candidate, baseline))
        assert verdict.outcome is Outcome.INVALID
        assert name in [guard.id for guard in verdict.guards if guard.tripped]


@pytest.mark.parametrize(("arm", "outcome"), [(Arm.BASELINE, Outcome.PASS), (Arm.CANDIDATE, Outcome.INVALID)])
def test_a_candidate_that_reads_less_of_its_prompts_is_not_judged_by_its_own_bounds(arm: Arm, outcome: Outcome) -> None:
    alone = SuiteText([*BOUNDS]).suite()
    evidence = on(measured(alone), arm, shorter_prompts)
    verdict = judge(alone, evidence)
    assert verdict.outcome is outcome
    (guard,) = [one for one in verdict.guards if one.id == "prompts-alike"]
    assert guard.tripped is (arm is Arm.CANDIDATE)
    assert "tokens" in guard.reason  # it is told in either case


def test_a_fault_of_the_baseline_hides_none_of_the_candidate_in_a_later_stage() -> None:
    suite = drill(TTFT, ERRORS)
    short, long = (one.name for one in suite.load.sweep) if suite.load else ("", "")
    both = measured(suite)
    load = tuple(
        shorter_prompts(o) if (o.stage, o.arm) in ((short, Arm.BASELINE), (long, Arm.CANDIDATE)) else o
        for o in both.load
    )
    verdict = judge(suite, replace(both, load=load))
    (guard,) = [one for one in verdict.guards if one.id == "prompts-alike"]
    assert (guard.tripped, guard.invalidates) == (True, ("speed",))
    assert f"stage {long}" in guard.reason


def test_tokens_that_both_arms_miscount_are_the_candidates_fault_too() -> None:
    suite = SuiteText([*BOUNDS]).suite()
    verdict = judge(suite, measured(suite, Effect(usage=8), Effect(usage=8)))
    (guard,) = [one for one in verdict.guards if one.tripped]
    assert (guard.id, guard.invalidates) == ("tokens-plausible", ("tokens",))


def test_answers_in_other_pieces_than_the_baselines_are_judged_by_their_own_pace() -> None:
    """Two tokens at a time seem quicker than they are: in the candidate's answers that flatters it, in the baseline's
    it changes nothing of what the candidate does."""
    margin: dict[str, object] = {"metric": "tpot", "margin": "10%"}
    alone, compared = SuiteText([TPOT, ERRORS]).suite(), SuiteText([margin, ERRORS]).suite()
    merged = Effect(tokens=5, usage=10)
    for arms, judged in (((HEALTHY, merged), True), ((merged, HEALTHY), False), ((merged, merged), True)):
        assert (judge(alone, measured(alone, *arms)).checks[0].outcome is Outcome.PASS) is judged
    for arms in ((HEALTHY, merged), (merged, HEALTHY)):
        assert judge(compared, measured(compared, *arms)).checks[0].outcome is Outcome.INVALID


def test_the_most_serious_violation_is_of_the_candidates_own_numbers() -> None:
    theirs = Violation("theirs", "mend", Arm.BASELINE)
    ours = Violation("ours", "mend", Arm.CANDIDATE)
    everything = Violation("all", "mend")
    assert most_serious([]) is None
    assert most_serious([theirs]) is theirs
    assert most_serious([theirs, ours, everything]) is ours
    assert most_serious([everything, ours]) is everything
    kinds = [Violation("a", "mend", invalidates=kinds) for kinds in (("compared-load",), ("compared-load", "tokens"))]
    assert most_serious(kinds) is kinds[1]


def test_a_violation_is_never_taken_for_having_had_nothing_to_look_at() -> None:
    missing = Need("a load", lambda run, suite: False, "nothing measured")
    suite = SuiteText([TTFT]).suite()
    findings: tuple[Finding, ...] = (
        Violation("bad", "mend"), Caution("odd", "see"), Passed("fine"), None, NotApplicable("unknown")
    )  # fmt: skip

    def result(finding: Finding) -> GuardResult:
        rule: Guard[Evidence] = guard("g", "fine", invalidates="load", needs=missing)(lambda run, suite: finding)
        return rule(measured(suite), suite)

    found = [result(finding) for finding in findings]
    assert [(one.tripped, one.warns, one.known) for one in found[:2]] == [(True, False, True), (False, True, True)]
    assert {(one.tripped, one.known, one.reason) for one in found[2:]} == {(False, False, "nothing measured")}
