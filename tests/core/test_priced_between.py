"""A cost of two stored runs: at one price list, or not compared at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.costs import require_one_price_list
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from benchgate.suite.schema import Suite
from tests.core.test_gate_cost import ERRORS, HEALTHY, OUTPUT, QUIET, priced, with_arm
from tests.fakes.estimates import refusal
from tests.fakes.measured import Effect, Noise, SuiteText, measured


def repriced(comparison: Comparison) -> CannotJudge | None:
    """Why costs of two runs may not be compared; None if they may."""
    return refusal(lambda: require_one_price_list(comparison))


def two_runs(suite: Suite, candidate: Effect = HEALTHY) -> tuple[Evidence, Evidence]:
    """The judged run and another one, of one pace but for the judged candidate's."""
    judged = measured(suite, candidate, noise=QUIET)
    return judged, measured(suite, noise=Noise(cv=0.002, seed=2), run_id="run-0")


def test_baseline_of_another_price_ties_no_two_runs_together() -> None:
    """$4 to $8 in one run and $1 to $4 in the other: the dearer candidate would seem to cost half of the other."""
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    judged, reference = two_runs(suite)
    moved = judge(suite, priced(judged, 4.0, 8.0), priced(reference, 1.0, 4.0)).checks[0]
    assert moved.outcome is Outcome.INVALID
    assert "did not have the same price in both" in moved.reason
    assert judge(suite, priced(judged, 4.0, 8.0), priced(reference, 4.0, 8.0)).checks[0].outcome is Outcome.PASS


@pytest.mark.parametrize(("then", "now"), [(4.0, 2.0), (2.0, 4.0)])
def test_price_that_moved_between_two_runs_is_nothing_that_the_candidate_did(then: float, now: float) -> None:
    """Half the price would pay for a candidate that is a third slower."""
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    judged, reference = two_runs(suite, Effect(slowdown=1.5))
    found = judge(suite, priced(judged, 4.0, now), priced(reference, 4.0, then)).checks[0]
    assert found.outcome is Outcome.INVALID
    assert f"(${then:g}/h on 2026-01-01 and ${now:g}/h on 2026-01-01)" in found.reason
    assert "at the prices of one day" in str(found.advice)


def of_list(evidence: Evidence, name: str, **said: float) -> Evidence:
    """A run whose candidate is of this name, by a suite that says such prices."""
    spec = {"url": "http://one:8000", "model": "m"}
    deployments = {one: {**spec, "price": usd} for one, usd in said.items()}
    named = with_arm(priced(evidence, 4.0, said[name]), Arm.CANDIDATE, name=name)
    return replace(named, run=replace(named.run, suite={**named.run.suite, "deployments": deployments}))


@pytest.mark.parametrize(
    ("now", "then", "outcome"),
    [
        ({"small": 2.0, "large": 8.0}, {"small": 2.0, "large": 8.0}, Outcome.PASS),
        ({"small": 2.0, "large": 4.0}, {"small": 2.0, "large": 8.0}, Outcome.INVALID),  # the other one became cheaper
        ({"small": 2.0, "large": 8.0}, {"small": 4.0, "large": 8.0}, Outcome.INVALID),
        ({"small": 2.0}, {"small": 2.0, "large": 8.0}, Outcome.INVALID),  # what the other would cost now is not known
        ({"small": 2.0}, {"large": 2.0}, Outcome.PASS),  # paid alike
    ],
)
def test_two_candidates_are_compared_by_one_price_list_alone(
    now: dict[str, float], then: dict[str, float], outcome: Outcome
) -> None:
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    judged, reference = two_runs(suite)
    found = judge(suite, of_list(judged, "small", **now), of_list(reference, "large", **then)).checks[0]
    assert found.outcome is outcome, found.reason


def on_kind(evidence: Evidence, accelerator: str | None) -> Evidence:
    """A run whose suite calls the candidate's accelerator so, or says nothing of it."""
    spec = {"url": "http://one:8000", "model": "m", "price": 4.0, "accelerator": accelerator}
    return replace(
        evidence, run=replace(evidence.run, suite={**evidence.run.suite, "deployments": {"candidate": spec}})
    )


@pytest.mark.parametrize(
    ("now", "then", "told"),
    [
        ("H100", None, None),
        (None, "H100", None),
        ("H100", "H100", None),
        ("NVIDIA H100", "H100", "(H100 on 2026-01-01 and NVIDIA H100 on 2026-01-01)"),
    ],
)
def test_one_price_is_of_two_lists_only_where_other_words_stand_for_its_accelerator(
    now: str | None, then: str | None, told: str | None
) -> None:
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    judged, reference = (priced(one, 4.0, 4.0) for one in two_runs(suite))
    problem = repriced(compare(on_kind(judged, now), on_kind(reference, then)))
    assert (problem is None) is (told is None)
    if problem is not None:
        assert told is not None and told in problem.reason
        assert "both candidates cost $4/h" in problem.reason


def test_a_list_that_says_nothing_of_the_accelerator_is_no_other_list() -> None:
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    prices = {"small": 2.0, "large": 8.0}
    judged, reference = (of_list(one, name, **prices) for one, name in zip(two_runs(suite), prices, strict=True))
    suite_of: dict[str, Any] = dict(judged.run.suite)
    deployments = {name: {**spec, "accelerator": "H100"} for name, spec in suite_of["deployments"].items()}
    kinds = replace(judged, run=replace(judged.run, suite={**suite_of, "deployments": deployments}))
    assert repriced(compare(kinds, reference)) is None


def test_one_price_of_unlike_accelerators_is_of_no_one_price_list() -> None:
    """What costs as much today may have cost twice as much on the other day."""
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS], gate={"allow_different": ["hardware"]}).suite()
    both = [priced(one, 4.0, 4.0) for one in two_runs(suite)]
    told = [
        with_arm(one, Arm.CANDIDATE, facts={"accelerator_names": [name]})
        for one, name in zip(both, ("H200", "A100"), strict=True)
    ]
    comparisons = [compare(both[0], both[1]), compare(*told), compare(told[0], told[0])]
    problems = [repriced(one) for one in comparisons]
    assert [one and one.outcome for one in problems] == [None, Outcome.INVALID, None]
