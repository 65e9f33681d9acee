"""Why a check has its outcome, in words that name what decided, and how much of it the headline repeats."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from benchgate.gate.decision import Estimate, Look, Rule
from benchgate.gate.reasons import check_advice, check_reason, verdict_reason
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from tests.fakes.estimates import changed, estimate

ALPHA = 0.05


def fallen(harm: float, lower: float, upper: float, p_value: float = 0.001) -> Estimate:
    """An accuracy that fell, held to a margin of 30 points."""
    return estimate(
        Unit.RATIO, Scale.DIFFERENCE, 0.3, n=40, n_unit="items", falls=True,
        value=harm, limits=Limits(lower, upper), p_value=p_value,
    )  # fmt: skip


def why(one: Estimate, outcome: Outcome) -> str:
    return check_reason(one, outcome, 0.9, ALPHA)


def test_a_regression_that_may_be_beyond_the_margin_is_told_apart_from_one_that_is() -> None:
    said = why(fallen(0.225, 0.136, 0.349), Outcome.BLOCK)
    not_inside = "a regression, and not shown to stay inside the margin of 30 points"
    assert said == f"fell by 22.5 points (13.6 to 34.9): {not_inside}"
    assert why(fallen(0.34, 0.136, 0.4), Outcome.BLOCK).endswith(not_inside)  # the estimate alone shows nothing
    beyond = why(fallen(0.4, 0.35, 0.45), Outcome.BLOCK)
    assert beyond == "fell by 40.0 points (35.0 to 45.0), beyond the margin of 30 points"
    ratio = changed(
        fallen(0.0138, 0.0058, 0.0223), unit=Unit.PERPLEXITY, scale=Scale.LOG_RATIO, margin=0.02, falls=False
    )
    assert "not shown to stay inside the margin of 2.02 %" in why(ratio, Outcome.BLOCK)


def test_a_regression_that_its_interval_leaves_open_is_one_by_its_test() -> None:
    wide = fallen(0.0417, -0.0062, 0.35, p_value=0.002)
    ends = "fell by 4.17 points (between 0.620 points better and 35.0 points worse)"
    said = why(wide, Outcome.BLOCK)
    assert said == f"{ends}: a regression by its test, and not shown to stay inside the margin of 30 points"
    either = changed(fallen(-0.0417, -0.35, 0.0062), two_sided=True)
    assert ": a change by its test, and not shown to stay inside" in why(either, Outcome.BLOCK)
    early = "probably a regression by its test, but not shown to be beyond the margin of 30 points"
    assert f"{ends}: {early}" in why(
        changed(wide, look=Look(1, 2, 4, 8, 0.00882, (0.5, 1.0), None)), Outcome.INCONCLUSIVE
    )
    assert "neither a regression nor staying" in why(changed(wide, p_value=0.2), Outcome.INCONCLUSIVE)
    inside = why(changed(wide, limits=Limits(-0.0062, 0.0725)), Outcome.WARN)
    assert inside.endswith(": a regression by its test, though inside the margin of 30 points")
    assert why(fallen(0.0417, 0.0062, 0.0725), Outcome.WARN).endswith(
        ": a real regression, though inside the margin of 30 points"
    )
    failed = changed(wide, value=math.inf, limits=Limits(-math.inf, math.inf))
    assert ": a regression, and not shown to stay inside" in why(failed, Outcome.BLOCK)


def test_of_a_change_that_may_have_gone_either_way_both_ends_are_told() -> None:
    said = why(fallen(0.01, -0.02, 0.04), Outcome.PASS)
    ends = "between 2.00 points better and 4.00 points worse"
    assert said == f"fell by 1.00 points ({ends}), inside the margin of 30 points"
    faster = changed(fallen(-0.01, -0.04, 0.02), unit=Unit.SECONDS, scale=Scale.LOG_RATIO, falls=False)
    assert why(faster, Outcome.PASS).startswith("fell by 0.995 % (between 3.92 % better and 2.02 % worse), inside")
    either = changed(faster, two_sided=True)
    assert why(either, Outcome.PASS).startswith("fell by 0.995 % (between 3.92 % lower and 2.02 % higher), inside")
    rates = changed(either, unit=Unit.TOKENS_PER_S)
    assert why(rates, Outcome.PASS).startswith("rose by 1.01 % (between 1.98 % lower and 4.08 % higher), inside")
    still = why(fallen(0.0, -0.02, 0.04), Outcome.PASS)
    assert still == f"is unchanged ({ends}), inside the margin of 30 points"


def test_what_is_shown_to_be_better_does_not_read_like_a_near_miss() -> None:
    better = "rose by 15.0 points (10.0 to 20.0): better; a fall of 30 points is allowed"
    assert why(fallen(-0.15, -0.2, -0.1), Outcome.PASS) == better
    quicker = changed(fallen(-0.15, -0.2, -0.1), unit=Unit.SECONDS, scale=Scale.LOG_RATIO, falls=False)
    assert why(quicker, Outcome.PASS).endswith(": better; a rise of 35 % is allowed")
    rate = changed(quicker, unit=Unit.TOKENS_PER_S)
    assert why(rate, Outcome.PASS).endswith(": better; a fall of 25.9 % is allowed")
    assert "better" not in why(changed(quicker, two_sided=True), Outcome.PASS)
    assert why(fallen(-0.15, -0.2, 0.0), Outcome.PASS).endswith(", inside the margin of 30 points")


def test_of_a_change_in_either_direction_the_limit_nearer_to_zero_counts() -> None:
    both = changed(fallen(-0.2, -math.inf, -0.1), two_sided=True)
    assert ": a change, and not shown to stay inside" in why(both, Outcome.BLOCK)
    assert why(changed(fallen(-0.4, -0.5, -0.35), two_sided=True), Outcome.BLOCK).endswith(
        ", beyond the margin of 30 points"
    )


@pytest.mark.parametrize("limits", [None, Limits(-0.1, 0.4)])
def test_what_has_no_estimate_says_of_no_number_of_items_that_it_would_settle_it(limits: Limits | None) -> None:
    torn = changed(fallen(0.1, -0.1, 0.4), value=None, limits=limits)
    assert check_advice(torn, Outcome.INCONCLUSIVE, ALPHA) == "use a bigger set"


@pytest.mark.parametrize("harm", [0.25, 0.35])
def test_an_estimate_near_or_past_its_margin_is_told_instead_of_a_number(harm: float) -> None:
    advice = check_advice(fallen(harm, -0.1, 0.5), Outcome.INCONCLUSIVE, ALPHA)
    assert advice is not None
    assert "in all" not in advice and advice.endswith("the estimate is near the margin or beyond it")
    inside = check_advice(fallen(0.1, -0.1, 0.4), Outcome.INCONCLUSIVE, ALPHA)
    assert inside is not None
    assert inside.endswith(" items in all would settle it")


def test_a_capacity_is_not_settled_by_more_requests_at_the_same_level() -> None:
    found = estimate(
        Unit.REQUESTS_PER_S, Scale.ABSOLUTE, 8.0, n=400, n_unit="requests",
        value=9.0, limits=Limits(7.0, 11.0), lower_is_worse=True,
    )  # fmt: skip
    more = "measure more requests; no number is sure to settle it"
    assert check_advice(found, Outcome.INCONCLUSIVE, ALPHA) == more


@pytest.mark.parametrize(("lower", "told"), [(0.02, True), (0.0, False)])
def test_a_time_whose_limit_is_nothing_has_no_logarithm_to_say_how_many_more_would_settle_it(
    lower: float, told: bool
) -> None:
    found = estimate(Unit.SECONDS, Scale.ABSOLUTE, 0.03, value=0.04, limits=Limits(lower, 0.1))
    assert ("would settle" in (check_advice(found, Outcome.INCONCLUSIVE, ALPHA) or "")) is told


@pytest.mark.parametrize(("p_value", "words"), [(0.01, "with all checks together"), (0.06, "by its test")])
def test_a_probable_regression_says_whether_other_checks_or_its_own_test_leave_it_open(
    p_value: float, words: str
) -> None:
    assert f"not significant {words};" in why(fallen(0.2, 0.01, 0.4, p_value), Outcome.INCONCLUSIVE)


@pytest.mark.parametrize(("p_value", "words"), [(0.01, "with all checks together"), (0.06, "by its test")])
@pytest.mark.parametrize(("at_least", "bound"), [(True, 100.0), (False, 70.0)])
def test_limits_beyond_a_bound_are_not_said_to_leave_it_open(
    p_value: float, words: str, at_least: bool, bound: float
) -> None:
    missed = estimate(
        Unit.TOKENS_PER_S, Scale.ABSOLUTE, bound, n=5,
        value=90.0, limits=Limits(80.0, 98.0), p_value=p_value, lower_is_worse=at_least,
    )  # fmt: skip
    side = "least" if at_least else "most"
    broken = f"probably breaks the SLO of at {side} {bound:g} tokens/s, but not significant {words}"
    assert why(missed, Outcome.INCONCLUSIVE) == f"90.0 tokens/s (80.0 tokens/s to 98.0 tokens/s) {broken}"
    more = "measure more blocks; no number is sure to settle it"
    assert check_advice(missed, Outcome.INCONCLUSIVE, ALPHA) == more
    assert check_advice(replace(missed, needed_at=lambda alpha: 4), Outcome.INCONCLUSIVE, ALPHA) == more
    open_yet = changed(missed, limits=Limits(60.0, 110.0))
    assert "neither breaks nor surely holds the SLO" in why(open_yet, Outcome.INCONCLUSIVE)
    assert "in all would settle it" in (check_advice(open_yet, Outcome.INCONCLUSIVE, ALPHA) or "")


def test_a_headline_repeats_only_the_beginning_of_a_long_reason() -> None:
    fault = GuardResult("targets-up", True, "it cannot tell its probabilities, " + "and so on, " * 80, None)
    said = verdict_reason(Outcome.INVALID, (), (fault,), ("f16", "q4"))
    assert said.startswith("Nothing can be said about q4: it cannot tell its probabilities, and so on")
    assert (len(said) < 350, said[-2:]) == (True, "….")


def test_a_reason_that_is_a_sentence_of_its_own_stands_behind_a_colon() -> None:
    check = _check("the items of mix come in only 9 clusters")
    said = verdict_reason(Outcome.INCONCLUSIVE, (check,), (), ("f16", "q4"))
    assert said.endswith(": Accuracy on mix: the items of mix come in only 9 clusters.")


def _check(reason: str) -> CheckResult:
    return CheckResult(
        id="accuracy", title="Accuracy on mix", family="quality", metric="accuracy", statistic=None, stage=None,
        task="mix", required=True, outcome=Outcome.INCONCLUSIVE, reason=reason, advice=None, unit=Unit.RATIO,
        scale=Scale.DIFFERENCE, baseline=None, candidate=None, harm=None, lower=None, upper=None, margin=0.1,
        p_value=None, p_holm=None, n=90, n_unit="items", method="none", notes=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "bound", "value", "limits"),
    [
        (Rule(Unit.SECONDS, Scale.ABSOLUTE, breach=True), 0.5, 0.5003, Limits(0.5001, 0.50045)),
        (Rule(Unit.RATIO, Scale.ABSOLUTE, breach=True, lower_is_worse=True), 0.9999, 0.9996, Limits(0.99955, 0.99965)),
        (Rule(Unit.RATIO, Scale.ABSOLUTE, breach=True, lower_is_worse=True), 0.9876, 0.98756, Limits(0.98752, 0.98759)),
        (
            Rule(Unit.REQUESTS_PER_S, Scale.ABSOLUTE, breach=True, lower_is_worse=True),
            8.0,
            7.999,
            Limits(7.998, 7.9995),
        ),
    ],
)
def test_no_number_of_a_breach_is_shown_as_the_bound_or_on_its_other_side(
    rule: Rule, bound: float, value: float, limits: Limits
) -> None:
    breach = Estimate(rule, bound, n=20_000, n_unit="requests", value=value, limits=limits)
    *shown, written = map(float, re.findall(r"[\d.]+", check_reason(breach, Outcome.BLOCK, 0.8, ALPHA)))
    scale = {0.5: 1000, 8.0: 1}.get(bound, 100)
    assert written == pytest.approx(bound * scale)
    assert len(shown) == 3
    assert all(one < written if rule.lower_is_worse else one > written for one in shown)


def test_a_regression_just_beyond_the_margin_is_not_shown_as_the_margin() -> None:
    rule = Rule(Unit.SECONDS, Scale.LOG_RATIO)
    limits = Limits(math.log(1.0502), math.log(1.0504))
    beyond = Estimate(rule, math.log(1.05), n=8, n_unit="blocks", value=math.log(1.0503), limits=limits)
    reason = check_reason(beyond, Outcome.BLOCK, 0.8, ALPHA)
    assert reason == "rose by 5.03 % (5.02 to 5.04), beyond the margin of 5 %"
    closer = Limits(math.log(1.050002), math.log(1.0504))
    reason = check_reason(replace(beyond, limits=closer), Outcome.BLOCK, 0.8, ALPHA)
    assert "(5.0002 to 5.04), beyond the margin of 5 %" in reason


def test_what_is_past_the_warning_is_not_rounded_to_it() -> None:
    near = estimate(
        Unit.SECONDS, Scale.ABSOLUTE, 0.5, n=40, n_unit="requests",
        value=0.402, limits=Limits(0.39, 0.41), p_value=0.001,
    )  # fmt: skip
    used = "but 80.4 % of what it allows is used, past the warning at 80 %"
    assert check_reason(near, Outcome.WARN, 0.8, ALPHA).endswith(used)
    finer = changed(near, value=0.40001)
    assert "but 80.002 % of what it allows is used" in check_reason(finer, Outcome.WARN, 0.8, ALPHA)
