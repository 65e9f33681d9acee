"""The last steps of a check's arithmetic: the rule that is printed is the one that was applied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.gate.check_results import Line, check_line
from benchgate.gate.decision import Estimate, Look, decide, invalid
from benchgate.gate.history.cumulative import attempt_notes
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, past_arm
from benchgate.model.verdict import ArithmeticStep, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t, two_sample_t
from benchgate.stats.trace import Trace
from tests.fakes.estimates import changed, estimate
from tests.fakes.measured import SuiteText, measured

GATE = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite().gate

WORSE = estimate(
    Unit.SECONDS, Scale.LOG_RATIO, 0.1, baseline=0.2, candidate=0.25, value=0.02, limits=Limits(-0.03, 0.07),
    p_value=0.2,
)  # fmt: skip
MOST = changed(WORSE, scale=Scale.ABSOLUTE, margin=0.5, baseline=None, value=0.3, limits=Limits(0.2, 0.4))
LEAST = changed(MOST, margin=0.1, lower_is_worse=True, unit=Unit.REQUESTS_PER_S)
EARLY = Look(1, 2, 4, 8, 0.00882, (0.5, 1.0))


def steps(one: Estimate, *others: float, p_holm: float | None = None) -> tuple[tuple[ArithmeticStep, ...], Outcome]:
    """All steps and the outcome, with the p-values of these other checks."""
    one = changed(one)
    p_holm = one.p_value if p_holm is None else p_holm
    outcome = decide(one, p_holm, 0.05, 0.8)
    p_values = [*([one.p_value] if one.p_value is not None else []), *others]
    line = Line("ttft", "Time to first token", "load", "ttft", required=True)
    return check_line(line, one, outcome, p_holm, GATE, advice=None, p_values=p_values).steps, outcome


def rule(one: Estimate) -> str:
    """How the last step came to the outcome, which is the verdict's own."""
    found, outcome = steps(one)
    assert (found[-1].what, found[-1].value) == ("outcome", outcome.value)
    return f"{outcome.value}: {found[-1].formula}"


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (WORSE, "PASS: 0.07 < margin 0.1, and p 0.2 > 0.05"),
        (changed(WORSE, p_value=0.05), "WARN: 0.07 < margin 0.1, and p 0.05 <= 0.05"),
        (changed(WORSE, limits=Limits(-0.03, 0.1)), "INCONCLUSIVE: 0.1 >= margin 0.1, and p 0.2 > 0.05"),
        (changed(WORSE, limits=Limits(0.01, 0.2), p_value=0.01), "BLOCK: 0.2 >= margin 0.1, and p 0.01 <= 0.05"),
        (changed(WORSE, warning="but odd"), "WARN: 0.07 < margin 0.1, and p 0.2 > 0.05, and but odd"),
        (
            changed(WORSE, warning="but odd", limits=Limits(0.01, 0.2)),
            "INCONCLUSIVE: 0.2 >= margin 0.1, and p 0.2 > 0.05",
        ),
        (changed(WORSE, two_sided=True), "PASS: 0.07 < margin 0.1, and p 0.2 > 0.05"),
        (
            changed(WORSE, two_sided=True, limits=Limits(-0.15, 0.07)),
            "INCONCLUSIVE: 0.15 >= margin 0.1, and p 0.2 > 0.05",
        ),
        (
            changed(WORSE, limits=Limits(0.01, 0.2), p_value=0.01, look=EARLY),
            "INCONCLUSIVE: 0.2 >= margin 0.1, and p 0.01 <= 0.05, and regression 0.02 < margin, "
            "which blocks at the last look only",
        ),
        (MOST, "PASS: upper limit 0.4 <= 0.5"),
        (changed(MOST, value=0.41), "WARN: upper limit 0.4 <= 0.5, and 0.82 of what is allowed is used"),
        (changed(MOST, margin=0.35), "INCONCLUSIVE: upper limit 0.4 > 0.35, and p 0.2 > 0.05"),
        (changed(MOST, margin=0.1, p_value=0.01), "BLOCK: upper limit 0.4 > 0.1, and p 0.01 <= 0.05"),
        (LEAST, "PASS: lower limit 0.2 >= 0.1"),
        (changed(LEAST, margin=0.25), "INCONCLUSIVE: lower limit 0.2 < 0.25, and p 0.2 > 0.05"),
        (changed(LEAST, margin=0.19), "PASS: lower limit 0.2 >= 0.19"),
    ],
)
def test_the_rule_is_told_as_it_was_applied(one: Estimate, says: str) -> None:
    assert rule(one) == says


@pytest.mark.parametrize("missing", ["limits", "value", "p_value"])
def test_a_number_that_is_missing_ends_the_arithmetic(missing: str) -> None:
    one = changed(WORSE, **{missing: None})
    found, outcome = steps(one)
    assert outcome is Outcome.INVALID
    assert found[-1] == ArithmeticStep("outcome", "a value that is missing is never good", "INVALID")
    assert [one.what for one in found[:-1]] == ["method", "blocks", "baseline", "candidate"]


def test_a_problem_decides_and_shows_only_numbers_that_were_made() -> None:
    spoilt = changed(WORSE, problem=invalid("the client was late", "mend it"))
    (only,), _ = steps(spoilt)
    assert only == ArithmeticStep("outcome", "no numbers decide: the client was late", "INVALID")
    recorded = changed(spoilt, trace=Trace([ArithmeticStep("made", "1 + 1", "2")]))
    found, _ = steps(recorded)
    assert [one.what for one in found][:3] == ["made", "regression that is judged", "lower limit that is judged"]
    assert found[-1] == only
    without, _ = steps(changed(recorded, p_value=None))
    assert [one.what for one in without] == ["made", "outcome"]


def test_numbers_are_named_for_what_they_are_and_the_margin_is_told_once() -> None:
    for one, names in (
        (WORSE, ["method", "blocks", "baseline", "candidate", "regression that is judged", "margin"]),
        (MOST, ["method", "blocks", "candidate", "value that is judged", "bound"]),
        (
            changed(WORSE, trace=Trace([ArithmeticStep("margin: ln 1.1", "", "0.1")])),
            ["margin: ln 1.1", "regression that is judged"],
        ),
    ):
        found, _ = steps(one)
        assert [
            one.what for one in found if one.what.split()[0] not in ("lower", "upper", "p-value", "outcome")
        ] == names


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ((), "number 1 of 1 by size: the largest of (m - j + 1) * p(j) up to it, at most 1: 1 * 0.2"),
        ((0.9,), "number 1 of 2 by size: the largest of (m - j + 1) * p(j) up to it, at most 1: 2 * 0.2"),
        ((0.15,), "number 2 of 2 by size: the largest of (m - j + 1) * p(j) up to it, at most 1: 2 * 0.15"),
        ((0.01,), "number 2 of 2 by size: the largest of (m - j + 1) * p(j) up to it, at most 1: 1 * 0.2"),
        ((0.2,), "number 2 of 2 by size: the largest of (m - j + 1) * p(j) up to it, at most 1: 2 * 0.2"),
    ],
)
def test_holms_product_is_the_largest_up_to_the_check(others: tuple[float, ...], says: str) -> None:
    found, _ = steps(WORSE, *others, p_holm=0.3)
    (told,) = [one for one in found if one.what == "p-value among all checks (Holm)"]
    assert (told.formula, told.value) == (says, "0.3")


# What the tests of means record


def recorded_by_paired_t(*values: float, margin: float = 0.0) -> Trace:
    trace = Trace()
    paired_t(np.array(values), 0.05, margin=margin, trace=trace)
    return trace


def value(trace: Trace, what: str) -> float:
    return float(next(one.value for one in trace.steps if one.what == what))


def test_the_arithmetic_of_a_mean_is_students() -> None:
    values = (0.02, 0.05, -0.01, 0.04)
    found = recorded_by_paired_t(*values, margin=0.01)
    test = scipy_stats.ttest_1samp(values, 0.01, alternative="greater")
    low, high = scipy_stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    assert (value(found, "lower limit"), value(found, "upper limit")) == pytest.approx((low, high), rel=1e-6)
    assert value(found, "t statistic") == pytest.approx(float(test.statistic), rel=1e-6)
    assert value(found, "p-value") == pytest.approx(float(test.pvalue), rel=1e-6)


def test_a_test_without_an_answer_records_nothing() -> None:
    assert recorded_by_paired_t(0.1).steps == recorded_by_paired_t(0.1, np.inf).steps == []
    known = np.array([0.2, 0.1, 0.15])
    for one, other in (([0.1], known), (known, [0.1]), ([0.1, np.inf], known), (known, known * np.nan)):
        trace = Trace()
        assert two_sample_t(np.array(one), np.array(other), 0.05, trace=trace) is None
        assert trace.steps == []


@pytest.mark.parametrize(("equal", "p_value"), [(0.1, 0.25), (-0.1, 1.0)])
def test_values_without_spread_have_the_limits_and_the_p_value_of_their_signs(equal: float, p_value: float) -> None:
    still = recorded_by_paired_t(equal, equal)
    assert [float(one.value) for one in still.steps] == [equal, equal, equal, p_value]


def test_the_arithmetic_of_two_lists_is_welchs() -> None:
    theirs, ours = np.array([0.02, 0.05, -0.01, 0.04]), np.array([0.2, 0.1, 0.15])
    found = Trace()
    two_sample_t(theirs, ours, 0.05, margin=0.05, trace=found)
    test = scipy_stats.ttest_ind(ours - 0.05, theirs, equal_var=False, alternative="greater")
    low, high = scipy_stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.9)
    assert (value(found, "lower limit"), value(found, "upper limit")) == pytest.approx((low, high), rel=1e-6)
    assert value(found, "degrees of freedom (Welch)") == pytest.approx(float(test.df), rel=1e-6)
    assert value(found, "p-value") == pytest.approx(float(test.pvalue), rel=1e-6)


@pytest.mark.parametrize(("ours", "p_value"), [(0.2, 1 / 6), (0.0, 1.0)])
def test_two_lists_without_spread_have_the_p_value_of_a_permutation(ours: float, p_value: float) -> None:
    found = Trace()
    test = two_sample_t(np.array([0.1, 0.1]), np.array([ours, ours]), 0.05, trace=found)
    assert test is not None and test.p_value == pytest.approx(p_value)
    assert value(found, "p-value") == pytest.approx(p_value)
    assert value(found, "lower limit") == value(found, "upper limit") == pytest.approx(test.mean)


def test_lists_are_shown_up_to_two_hundred_values() -> None:
    trace = Trace()
    for count in (200, 201):
        trace.observed("values", [0.5] * count)
    assert trace.steps[0].value.count(",") == 199
    assert trace.steps[1].value.endswith("0.5, and 1 more")


# Earlier runs of the same two


def test_a_run_that_measured_one_arm_has_no_pair_that_was_tried_before() -> None:
    evidence = measured(SuiteText([{"metric": "ttft", "margin": "10%"}]).suite())
    arms = [past_arm(evidence.run.arms[one], evidence.run.environment) for one in Arm]
    tried = Attempt("01a1fc6d-1", "2026-01-01T00:00:00Z", None, arms[0], arms[1], Outcome.BLOCK)
    both = replace(evidence, attempts=(tried,))
    assert len(attempt_notes(both)) == 1
    alone = {Arm.CANDIDATE: evidence.run.arms[Arm.CANDIDATE]}
    assert attempt_notes(replace(both, run=replace(both.run, arms=alone))) == ()


def test_five_earlier_runs_are_named_and_of_six_the_newest_five() -> None:
    evidence = measured(SuiteText([{"metric": "ttft", "margin": "10%"}]).suite())
    arms = [past_arm(evidence.run.arms[one], evidence.run.environment) for one in Arm]
    tried = tuple(Attempt(f"run-{k}", "2026-01-01T00:00:00Z", None, arms[0], arms[1], Outcome.BLOCK) for k in range(6))
    (five,), (six,) = (attempt_notes(replace(evidence, attempts=tried[:count])) for count in (5, 6))
    assert "more" not in five and five.count("BLOCK") == 5 and "run-0" in five
    assert "and 1 more" in six and six.count("BLOCK") == 5 and "run-0" not in six and "run-5" in six


def test_runs_that_ended_before_anybody_said_what_they_came_to_are_told_and_change_nothing() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    evidence = measured(suite)
    arms = [past_arm(evidence.run.arms[one], evidence.run.environment) for one in Arm]
    ended = tuple(Attempt(f"run-{k}", "2026-01-01T00:00:00Z", None, arms[0], arms[1], None) for k in range(6))
    other = replace(ended[0], candidate=replace(arms[1], release="another", fingerprint="another"))
    assert attempt_notes(replace(evidence, unjudged=(other,))) == ()
    (one,) = attempt_notes(replace(evidence, unjudged=(ended[0], other)))
    said = "had results but no verdict when this one began"
    assert one == f"1 earlier run of this candidate and baseline {said} (run-0 of 2026-01-01)"
    (six,) = attempt_notes(replace(evidence, unjudged=ended))
    assert six.startswith("6 earlier runs of") and six.endswith("run-1 of 2026-01-01, and 1 more)")
    blocked = replace(ended[0], outcome=Outcome.BLOCK)
    assert len(attempt_notes(replace(evidence, unjudged=ended, attempts=(blocked,)))) == 2
    assert judge(suite, replace(evidence, unjudged=ended)).outcome is judge(suite, evidence).outcome
