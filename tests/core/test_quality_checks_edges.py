"""Checks of evals over evidence that is not whole: none of it is taken for an equal candidate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.comparison import Comparison
from benchgate.gate.quality_flips import excess_flips
from benchgate.gate.quality_pairs import pair_unit
from benchgate.gate.rule import Problem
from benchgate.gate.shadow_checks import excess_over
from benchgate.gate.telemetry_guards import telemetry_guards
from benchgate.gate.unjudged import failures_judged
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from tests.fakes.evals import Answers, evidence_of, suite_of
from tests.fakes.shadow_rows import N, different, item, range_of

CHECKS: list[dict[str, object]] = [{"metric": "flips", "margin": "5 points", "required": True}]
SUITE = suite_of(CHECKS, ["t"], repeat_baseline=True)
ONES = [1.0] * 60
WHOLE = Answers(ONES)
UNITS = {"t": ("t",)}


def run(baseline: Answers = WHOLE, candidate: Answers = WHOLE, again: Answers | None = WHOLE) -> Evidence:
    return evidence_of(SUITE, {"t": (baseline, candidate)}, {"t": again} if again is not None else None)


def found(evidence: Evidence, reference: Evidence | None = None) -> tuple[Outcome, str] | None:
    """The problem with its flips; None where there is none."""
    told = excess_flips(Comparison(evidence, reference), UNITS, 0.05)
    return (told.outcome, told.reason) if isinstance(told, Problem) else None


def without(arm: Arm) -> Evidence:
    whole = run()
    return replace(whole, quality=tuple(o for o in whole.quality if o.arm is not arm or o.repeat))


STOPPED = {"stopped_early": True}
NOT_WHOLE = [
    (without(Arm.BASELINE), Outcome.INVALID, "not run on both arms"),
    (without(Arm.CANDIDATE), Outcome.INVALID, "not run on both arms"),
    (run(again=None), Outcome.INVALID, "asked t only once"),
    (run(candidate=Answers(ONES, fault="went away")), Outcome.INVALID, "went away"),
    (run(again=Answers(ONES, fault="went away")), Outcome.INVALID, "went away"),
    (run(candidate=Answers(ONES[1:], expected_n=60)), Outcome.INVALID, "only 59 of 60 items"),
    (
        run(*[Answers([0.5] * 60, harness={"scale": "continuous"})] * 3),
        Outcome.INVALID,
        "not simply right or wrong",
    ),
    (
        run(Answers(ONES, harness=STOPPED), Answers(ONES, harness=STOPPED), Answers(ONES, harness=STOPPED)),
        Outcome.INCONCLUSIVE,
        "stopped early",
    ),
    (run(Answers([]), Answers([]), Answers([])), Outcome.INCONCLUSIVE, "stopped early"),
    (
        run(*(Answers(ONES, clusters=["a", "b"] * 30) for _ in range(3))),
        Outcome.INCONCLUSIVE,
        "too few clusters",
    ),
]


@pytest.mark.parametrize(("evidence", "outcome", "says"), NOT_WHOLE)
def test_flips_of_a_task_that_is_not_whole_are_unknown(evidence: Evidence, outcome: Outcome, says: str) -> None:
    problem = found(evidence)
    assert problem is not None
    assert (problem[0], says in problem[1]) == (outcome, True)


@pytest.mark.parametrize(("evidence", "outcome", "says"), NOT_WHOLE)
def test_flips_beside_a_run_that_is_not_whole_are_unknown(evidence: Evidence, outcome: Outcome, says: str) -> None:
    assert found(run()) is None
    assert found(run(), run()) is None
    assert found(run(), evidence) is not None


def test_flips_of_no_task_are_unknown() -> None:
    told = excess_flips(Comparison(run()), {}, 0.05)
    assert isinstance(told, Problem)
    assert told.outcome is Outcome.INVALID


def test_a_unit_without_a_task_has_no_items() -> None:
    told = pair_unit(Comparison(run()), "t", ())
    assert isinstance(told, Problem)
    assert told.outcome is Outcome.INVALID


def test_the_excess_over_some_prompts_is_the_difference_of_the_two_shares() -> None:
    rows = tuple([*range_of(different, 0, 30), *range_of(item, 30, N)])
    ours, own, excess = excess_over(rows, 0.05)
    assert ours == pytest.approx(0.1)
    assert own == 0.0
    assert excess is not None
    assert excess.estimate == pytest.approx(0.1)
    assert np.isfinite([excess.limits.lower, excess.limits.upper]).all()


def test_without_a_load_nothing_was_served_or_failed() -> None:
    assert telemetry_guards(run(), SUITE) == []
    assert not failures_judged(run(), SUITE).tripped
