"""Wrong answers that say nothing of a model: they make no loss and pay for none, and nothing rests on them."""

from __future__ import annotations

import numpy as np
import pytest

from benchgate.gate.checks.accuracy import accuracy_against_baseline
from benchgate.gate.comparison import compare
from benchgate.gate.decision import Estimate, Rule, decide
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.evals import ScorePairs, accuracy_regression
from tests.fakes.evals import Answers, evidence_of, suite_of

SUITE = suite_of([{"metric": "accuracy", "margin": "5 points"}], ["t"])
N = 300


def accuracy(
    lost: int, gained: int, *, cut: int = 0, cut_gained: int = 0, margin: float = 0.05, breach: bool = False
) -> Estimate:
    """Of 300 items so many lost and gained, and of these so many in which the wrong answer was cut short."""
    theirs = Answers(
        [0.0 if lost <= i < lost + gained else 1.0 for i in range(N)],
        finish=dict.fromkeys(range(lost, lost + cut_gained), "length"),
    )
    ours = Answers([0.0 if i < lost else 1.0 for i in range(N)], finish=dict.fromkeys(range(cut), "length"))
    comparison = compare(evidence_of(SUITE, {"t": (theirs, ours)}))
    estimate = Estimate(Rule(Unit.RATIO, Scale.DIFFERENCE, breach=breach), margin)
    with estimate.keeping_problems():
        accuracy_against_baseline(estimate, comparison, {"t": ("t",)}, 0.05)
    return estimate


def outcome(estimate: Estimate) -> Outcome:
    return decide(estimate, estimate.p_value, 0.05, 0.8)


def upper_of(lost: int, gained: int) -> float:
    """The upper limit of the harm of so many lost and gained items."""
    ours = [0.0 if i < lost else 1.0 for i in range(N)]
    theirs = [0.0 if lost <= i < lost + gained else 1.0 for i in range(N)]
    return accuracy_regression([ScorePairs(np.array(theirs), np.array(ours))], 0.05).limits.upper


@pytest.mark.parametrize(
    ("lost", "gained", "cut", "expected"),
    [
        (20, 0, 0, Outcome.BLOCK),
        (20, 0, 20, Outcome.INVALID),  # without them it would pass
        (20, 0, 16, Outcome.INVALID),
        (60, 0, 2, Outcome.BLOCK),  # the others are harm enough
        (50, 24, 0, Outcome.BLOCK),
        (50, 24, 20, Outcome.INVALID),  # without them nothing would be shown
        (32, 24, 0, Outcome.INCONCLUSIVE),
        (32, 24, 2, Outcome.INCONCLUSIVE),  # as open as it would be without
        (32, 24, 12, Outcome.INVALID),  # open with them, and without them it would pass
        (3, 3, 3, Outcome.PASS),  # inside the margin with them
    ],
)
def test_a_loss_counts_where_answers_that_were_cut_do_not_make_it(
    lost: int, gained: int, cut: int, expected: Outcome
) -> None:
    estimate = accuracy(lost, gained, cut=cut)
    assert outcome(estimate) is expected
    told = estimate.problem.reason if estimate.problem is not None else ""
    assert (f"{cut} of the {lost} lost items were cut short" in told) is (expected is Outcome.INVALID)


def test_a_breach_that_answers_make_that_were_cut_is_none() -> None:
    assert outcome(accuracy(6, 0, breach=True)) is Outcome.WARN  # harm that is shown, and no breach
    assert outcome(accuracy(60, 0, breach=True)) is Outcome.BLOCK
    assert outcome(accuracy(60, 0, cut=2, breach=True)) is Outcome.BLOCK
    assert outcome(accuracy(60, 0, cut=45, breach=True)) is Outcome.INVALID  # 15 of 300 are the margin itself


@pytest.mark.parametrize(
    ("lost", "gained", "cut_gained", "expected"),
    [
        (20, 20, 0, Outcome.PASS),
        (20, 20, 20, Outcome.INVALID),  # 20 of 300 lost, and nothing gained for them
        (20, 20, 14, Outcome.INVALID),
        (20, 20, 2, Outcome.PASS),
        (3, 3, 3, Outcome.PASS),
        (0, 10, 10, Outcome.PASS),
        (32, 20, 20, Outcome.INCONCLUSIVE),  # not inside the margin with them
    ],
)
def test_a_loss_is_not_paid_for_by_answers_of_the_baseline_that_were_cut(
    lost: int, gained: int, cut_gained: int, expected: Outcome
) -> None:
    estimate = accuracy(lost, gained, cut_gained=cut_gained, margin=0.06)
    assert outcome(estimate) is expected
    told = estimate.problem.reason if estimate.problem is not None else ""
    assert (f"{cut_gained} of the {gained} gained items pay for lost ones" in told) is (expected is Outcome.INVALID)


def test_a_limit_at_the_margin_is_not_inside_it_with_or_without_the_answers_that_were_cut() -> None:
    earned = upper_of(20, 0)
    assert outcome(accuracy(20, 20, cut_gained=20, margin=earned)) is Outcome.INVALID
    assert outcome(accuracy(20, 20, cut_gained=20, margin=earned + 1e-9)) is Outcome.PASS
    made, forgiven = upper_of(20, 0), upper_of(0, 0)
    assert outcome(accuracy(20, 0, cut=20, margin=made)) is Outcome.INVALID
    assert forgiven < made
    paid = upper_of(20, 20)
    assert outcome(accuracy(20, 20, cut_gained=20, margin=paid)) is Outcome.INCONCLUSIVE
