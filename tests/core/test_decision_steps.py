"""The last steps of a check's arithmetic: the rule that is printed is the one that was applied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.gate.decision import Finding, Look, Problem, decide
from benchgate.gate.derivation import decision_steps, listed, mean_steps, welch_steps
from benchgate.gate.history.cumulative import attempt_notes
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, past_arm
from benchgate.model.verdict import ArithmeticStep, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from tests.fakes.measured import SuiteText, measured

HARM = Finding(
    unit=Unit.SECONDS, scale=Scale.LOG_RATIO, margin=0.1, method="made up", n=5, n_unit="blocks",
    baseline=0.2, candidate=0.25, harm=0.02, limits=Limits(-0.03, 0.07), p_value=0.2,
)  # fmt: skip
MOST = replace(HARM, scale=Scale.ABSOLUTE, margin=0.5, baseline=None, harm=0.3, limits=Limits(0.2, 0.4))
LEAST = replace(MOST, margin=0.1, lower_is_worse=True, unit=Unit.REQUESTS_PER_S)
EARLY = Look(1, 2, 4, 8, 0.00882, (0.5, 1.0))


def steps(finding: Finding, *others: float, p_holm: float | None = None) -> tuple[tuple[ArithmeticStep, ...], Outcome]:
    """All steps and the outcome, with the p-values of these other checks."""
    p_holm = finding.p_value if p_holm is None else p_holm
    outcome = decide(finding, p_holm, 0.05, 0.8)
    p_values = [*([finding.p_value] if finding.p_value is not None else []), *others]
    return decision_steps(finding, outcome, p_values, p_holm, 0.05), outcome


def rule(finding: Finding) -> str:
    """How the last step came to the outcome, which is the verdict's own."""
    found, outcome = steps(finding)
    assert (found[-1].what, found[-1].value) == ("outcome", outcome.value)
    return f"{outcome.value}: {found[-1].formula}"


@pytest.mark.parametrize(
    ("finding", "says"),
    [
        (HARM, "PASS: 0.07 < margin 0.1, and p 0.2 > 0.05"),
        (replace(HARM, p_value=0.05), "WARN: 0.07 < margin 0.1, and p 0.05 <= 0.05"),
        (replace(HARM, limits=Limits(-0.03, 0.1)), "INCONCLUSIVE: 0.1 >= margin 0.1, and p 0.2 > 0.05"),
        (replace(HARM, limits=Limits(0.01, 0.2), p_value=0.01), "BLOCK: 0.2 >= margin 0.1, and p 0.01 <= 0.05"),
        (replace(HARM, warning="but odd"), "WARN: 0.07 < margin 0.1, and p 0.2 > 0.05, and but odd"),
        (
            replace(HARM, warning="but odd", limits=Limits(0.01, 0.2)),
            "INCONCLUSIVE: 0.2 >= margin 0.1, and p 0.2 > 0.05",
        ),
        (replace(HARM, two_sided=True), "PASS: 0.07 < margin 0.1, and p 0.2 > 0.05"),
        (
            replace(HARM, two_sided=True, limits=Limits(-0.15, 0.07)),
            "INCONCLUSIVE: 0.15 >= margin 0.1, and p 0.2 > 0.05",
        ),
        (
            replace(HARM, limits=Limits(0.01, 0.2), p_value=0.01, look=EARLY),
            "INCONCLUSIVE: 0.2 >= margin 0.1, and p 0.01 <= 0.05, and harm 0.02 < margin, "
            "which blocks at the last look only",
        ),
        (MOST, "PASS: upper limit 0.4 <= 0.5"),
        (replace(MOST, harm=0.41), "WARN: upper limit 0.4 <= 0.5, and 0.82 of what is allowed is used"),
        (replace(MOST, margin=0.35), "INCONCLUSIVE: upper limit 0.4 > 0.35, and p 0.2 > 0.05"),
        (replace(MOST, margin=0.1, p_value=0.01), "BLOCK: upper limit 0.4 > 0.1, and p 0.01 <= 0.05"),
        (LEAST, "PASS: lower limit 0.2 >= 0.1"),
        (replace(LEAST, margin=0.25), "INCONCLUSIVE: lower limit 0.2 < 0.25, and p 0.2 > 0.05"),
        (replace(LEAST, margin=0.19), "PASS: lower limit 0.2 >= 0.19"),
    ],
)
def test_the_rule_is_told_as_it_was_applied(finding: Finding, says: str) -> None:
    assert rule(finding) == says


@pytest.mark.parametrize("missing", ["limits", "harm", "p_value"])
def test_a_number_that_is_missing_ends_the_arithmetic(missing: str) -> None:
    finding = replace(HARM, **{missing: None})  # type: ignore[arg-type]  # one of its fields, by name
    found, outcome = steps(finding)
    assert outcome is Outcome.INVALID
    assert found[-1] == ArithmeticStep("outcome", "a value that is missing is never good", "INVALID")
    assert [one.what for one in found[:-1]] == ["method", "blocks", "baseline", "candidate"]


def test_a_problem_decides_and_shows_only_numbers_that_were_made() -> None:
    spoilt = replace(HARM, problem=Problem(Outcome.INVALID, "the client was late", "mend it"))
    (only,), _ = steps(spoilt)
    assert only == ArithmeticStep("outcome", "no numbers decide: the client was late", "INVALID")
    made = replace(spoilt, steps=(ArithmeticStep("made", "1 + 1", "2"),))
    found, _ = steps(made)
    assert [one.what for one in found][:3] == ["made", "harm that is judged", "its lower limit"]
    assert found[-1] == only
    without, _ = steps(replace(made, p_value=None))
    assert [one.what for one in without] == ["made", "outcome"]


def test_numbers_are_named_for_what_they_are_and_the_margin_is_told_once() -> None:
    for finding, names in (
        (HARM, ["method", "blocks", "baseline", "candidate", "harm that is judged", "margin"]),
        (MOST, ["method", "blocks", "candidate", "value that is judged", "bound"]),
        (
            replace(HARM, steps=(ArithmeticStep("margin: ln 1.1", "", "0.1"),)),
            ["margin: ln 1.1", "harm that is judged"],
        ),
    ):
        found, _ = steps(finding)
        assert [one.what for one in found if one.what.split()[0] not in ("its", "p-value", "outcome")] == names


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
    found, _ = steps(HARM, *others, p_holm=0.3)
    (told,) = [one for one in found if one.what == "p-value among all checks (Holm)"]
    assert (told.formula, told.value) == (says, "0.3")


# What the lists come to


def value(found: tuple[ArithmeticStep, ...], what: str) -> float:
    return float(next(one.value for one in found if one.what == what))


def test_means_are_students_and_nothing_is_made_of_less_than_two_finite_values() -> None:
    values = np.array([0.02, 0.05, -0.01, 0.04])
    found = mean_steps(values, "differences", 0.05, margin=0.01)
    test = scipy_stats.ttest_1samp(values, 0.01, alternative="greater")
    low, high = scipy_stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    assert (value(found, "lower limit"), value(found, "upper limit")) == pytest.approx((low, high), rel=1e-6)
    assert value(found, "t statistic") == pytest.approx(float(test.statistic), rel=1e-6)
    assert value(found, "p-value") == pytest.approx(float(test.pvalue), rel=1e-6)
    assert mean_steps(values[:1], "d", 0.05) == mean_steps(np.array([0.1, np.inf]), "d", 0.05) == ()
    assert mean_steps(values[:2], "d", 0.05) != ()
    still = mean_steps(np.array([0.1, 0.1]), "d", 0.05)
    assert (still[-1].what, still[-1].value) == ("upper limit", "0.1")


@pytest.mark.parametrize("sign", [1, -1])
def test_of_a_change_either_way_the_side_that_moved_has_the_p_value_that_counts(sign: int) -> None:
    values = sign * np.array([0.02, 0.05, -0.01, 0.04])
    found = mean_steps(values, "differences", 0.05, margin=0.01, two_sided=True)
    tests = [scipy_stats.ttest_1samp(side * values, 0.01, alternative="greater").pvalue for side in (1, -1)]
    assert value(found, "p-value of a positive change") == pytest.approx(float(tests[0]), rel=1e-6)
    assert value(found, "p-value of a negative change") == pytest.approx(float(tests[1]), rel=1e-6)
    assert value(found, "p-value of the likelier one") == pytest.approx(float(min(tests)), rel=1e-6)


def test_two_lists_are_welchs_and_nothing_is_made_of_a_list_of_one() -> None:
    theirs, ours = np.array([0.02, 0.05, -0.01, 0.04]), np.array([0.2, 0.1, 0.15])
    found = welch_steps(theirs, ours, 0.05, margin=0.05)
    test = scipy_stats.ttest_ind(ours - 0.05, theirs, equal_var=False, alternative="greater")
    low, high = scipy_stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.9)
    assert (value(found, "lower limit"), value(found, "upper limit")) == pytest.approx((low, high), rel=1e-6)
    assert value(found, "degrees of freedom (Welch)") == pytest.approx(float(test.df), rel=1e-6)
    assert value(found, "p-value") == pytest.approx(float(test.pvalue), rel=1e-6)
    for one, other in (
        (theirs[:1], ours),
        (theirs, ours[:1]),
        (np.array([0.1, np.inf]), ours),
        (theirs, ours * np.nan),
    ):
        assert welch_steps(one, other, 0.05) == ()
    assert welch_steps(theirs[:2], ours[:2], 0.05) != ()
    still = welch_steps(np.array([0.1, 0.1]), np.array([0.2, 0.2]), 0.05)
    assert (still[-1].what, still[-1].value) == ("standard error", "0")


def test_lists_are_shown_up_to_two_hundred_values() -> None:
    assert listed([0.5] * 200).count(",") == 199
    assert listed([0.5] * 201).endswith("0.5, and 1 more")


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
