"""The three-way rule at its boundaries: exactly at, just below, just above, and with one number missing at a time."""

from __future__ import annotations

import math

import pytest

from benchgate.gate.decision import (
    CannotJudge,
    Estimate,
    Look,
    decide,
    too_soon,
    used_share_of_bound,
)
from benchgate.model.verdict import ArithmeticStep, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.trace import Trace
from tests.fakes.estimates import changed, estimate, seen_at

ALPHA, MARGIN = 0.05, 0.1
BELOW, ABOVE = math.nextafter(MARGIN, 0), math.nextafter(MARGIN, 1)
SURE, NOT_SURE = ALPHA, math.nextafter(ALPHA, 1)  # a p-value exactly at alpha shows harm; the next one does not
FRACTIONS = (0.25, 0.5, 1.0)
FIRST, SECOND, LAST = (Look(n, 3, (5, 10, 20)[n - 1], 20, 0.01, FRACTIONS) for n in (1, 2, 3))


def harm_of(harm: float, lower: float, upper: float) -> Estimate:
    return estimate(Unit.SECONDS, Scale.LOG_RATIO, MARGIN, value=harm, limits=Limits(lower, upper), p_value=0.5)


def bound_of(
    value: float, lower: float, upper: float, *, at_least: bool = False, unit: Unit = Unit.SECONDS
) -> Estimate:
    return changed(harm_of(value, lower, upper), scale=Scale.ABSOLUTE, lower_is_worse=at_least, unit=unit)


def outcome(one: Estimate, p_holm: float | None = 0.5, warn_fraction: float = 1.0) -> Outcome:
    return decide(one, p_holm, ALPHA, warn_fraction)


HARMLESS = harm_of(0.0, -0.05, 0.05)


@pytest.mark.parametrize("scale", [Scale.LOG_RATIO, Scale.DIFFERENCE])
@pytest.mark.parametrize(
    ("upper", "says"),
    [(BELOW, Outcome.PASS), (MARGIN, Outcome.INCONCLUSIVE), (ABOVE, Outcome.INCONCLUSIVE)],
)
def test_harm_passes_only_where_its_upper_limit_is_below_the_margin(scale: Scale, upper: float, says: Outcome) -> None:
    assert outcome(changed(harm_of(0.0, -0.05, upper), scale=scale)) is says


def test_an_upper_limit_without_an_end_never_passes() -> None:
    assert outcome(harm_of(0.0, -0.05, math.inf)) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("scale", list(Scale))
@pytest.mark.parametrize("name", ["value", "lower", "upper", "p_value", "p_holm"])
def test_a_number_that_is_undefined_is_missing_whatever_the_others_say(scale: Scale, name: str) -> None:
    whole = changed(HARMLESS, scale=scale, nears=False)
    assert outcome(whole) is Outcome.PASS
    if name in ("lower", "upper"):
        limits = Limits(math.nan, 0.05) if name == "lower" else Limits(-0.05, math.nan)
        broken = changed(whole, limits=limits)
    else:
        broken = whole if name == "p_holm" else changed(whole, **{name: math.nan})
    assert outcome(broken, math.nan if name == "p_holm" else 0.5) is Outcome.INVALID
    assert outcome(changed(broken, two_sided=True), math.nan if name == "p_holm" else 0.5) is Outcome.INVALID


@pytest.mark.parametrize(
    ("lower", "upper", "says"),
    [
        (-BELOW, BELOW, Outcome.PASS),
        (-MARGIN, 0.0, Outcome.INCONCLUSIVE),
        (0.0, MARGIN, Outcome.INCONCLUSIVE),
        (-math.inf, 0.0, Outcome.INCONCLUSIVE),
    ],
)
def test_a_change_either_way_passes_only_where_both_limits_are_inside(
    lower: float, upper: float, says: Outcome
) -> None:
    assert outcome(changed(harm_of(0.0, lower, upper), two_sided=True)) is says


@pytest.mark.parametrize(
    ("at_least", "lower", "upper", "says"),
    [
        (False, -9.0, MARGIN, Outcome.PASS),
        (False, -9.0, ABOVE, Outcome.INCONCLUSIVE),
        (True, MARGIN, 9.0, Outcome.PASS),
        (True, BELOW, 9.0, Outcome.INCONCLUSIVE),
    ],
)
def test_a_bound_is_kept_where_the_worse_limit_does_not_pass_it(
    at_least: bool, lower: float, upper: float, says: Outcome
) -> None:
    assert outcome(changed(bound_of(MARGIN, lower, upper, at_least=at_least), nears=False)) is says


def test_each_number_that_is_missing_is_invalid_by_itself() -> None:
    assert outcome(HARMLESS) is Outcome.PASS
    assert outcome(changed(HARMLESS, limits=None)) is Outcome.INVALID
    assert outcome(changed(HARMLESS, value=None)) is Outcome.INVALID
    assert outcome(changed(HARMLESS, p_value=None)) is Outcome.INVALID
    assert outcome(HARMLESS, None) is Outcome.INVALID


@pytest.mark.parametrize("said", [Outcome.INVALID, Outcome.INCONCLUSIVE])
def test_a_problem_speaks_before_any_number(said: Outcome) -> None:
    problem = CannotJudge(said, "broken", "mend it")
    assert outcome(changed(HARMLESS, problem=problem)) is said
    assert outcome(changed(harm_of(0.5, 0.4, 0.6), problem=problem), 0.0) is said


def test_harm_beyond_the_margin_blocks_at_alpha_and_not_above_it() -> None:
    beyond = harm_of(0.15, 0.05, 0.2)
    assert outcome(beyond, SURE) is Outcome.BLOCK
    assert outcome(beyond, NOT_SURE) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("harm", "says"), [(BELOW, Outcome.INCONCLUSIVE), (MARGIN, Outcome.INCONCLUSIVE), (ABOVE, Outcome.BLOCK)]
)
def test_what_goes_by_the_estimate_blocks_only_beyond_the_margin_and_never_passes_outside_it(
    harm: float, says: Outcome
) -> None:
    assert outcome(changed(harm_of(harm, 0.05, 0.2), by_estimate=True), SURE) is says


def test_shown_harm_inside_the_margin_warns_at_alpha_and_passes_above_it() -> None:
    inside = harm_of(0.05, 0.01, 0.09)
    assert outcome(inside, SURE) is Outcome.WARN
    assert outcome(inside, NOT_SURE) is Outcome.PASS
    assert outcome(changed(inside, quiet=True), SURE) is Outcome.PASS
    assert outcome(changed(inside, by_estimate=True), SURE) is Outcome.PASS


@pytest.mark.parametrize(("lower", "says"), [(0.02, Outcome.PASS), (math.nextafter(0.02, 1), Outcome.WARN)])
def test_with_breach_harm_inside_the_margin_warns_by_its_lower_limit(lower: float, says: Outcome) -> None:
    inside = changed(harm_of(0.05, lower, 0.09), breach=True, least=0.02)
    assert outcome(inside, 0.9) is says
    assert outcome(inside, 0.0) is says


@pytest.mark.parametrize(
    ("two_sided", "upper", "says"),
    [(True, -0.001, Outcome.WARN), (True, 0.0, Outcome.PASS), (False, -0.001, Outcome.PASS)],
)
def test_with_breach_a_fall_warns_only_where_a_change_either_way_is_harm(
    two_sided: bool, upper: float, says: Outcome
) -> None:
    assert outcome(changed(harm_of(-0.05, -0.09, upper), breach=True, two_sided=two_sided), 0.9) is says


def test_a_warning_turns_a_pass_into_a_warn_and_nothing_else() -> None:
    assert outcome(changed(HARMLESS, warning="look here")) is Outcome.WARN
    beyond = changed(harm_of(0.15, 0.05, 0.2), warning="look here")
    assert outcome(beyond, SURE) is Outcome.BLOCK
    assert outcome(beyond, NOT_SURE) is Outcome.INCONCLUSIVE


def test_a_value_near_its_bound_warns_above_the_fraction_and_not_at_it() -> None:
    near = bound_of(0.08, 0.07, 0.09)
    assert used_share_of_bound(near) == pytest.approx(0.8)
    assert outcome(near, warn_fraction=used_share_of_bound(near)) is Outcome.PASS
    assert outcome(near, warn_fraction=math.nextafter(used_share_of_bound(near), 0)) is Outcome.WARN
    assert outcome(changed(near, nears=False), warn_fraction=0.5) is Outcome.PASS


def test_harm_against_a_baseline_is_not_near_a_bound() -> None:
    assert outcome(harm_of(0.0999, 0.0, BELOW), warn_fraction=0.01) is Outcome.PASS


def test_a_p_value_does_not_warn_of_a_bound_that_is_kept() -> None:
    assert outcome(bound_of(0.01, 0.0, 0.02), 0.0) is Outcome.PASS


@pytest.mark.parametrize(
    ("value", "slo", "at_least", "unit", "share"),
    [
        (0.15, 0.2, False, Unit.SECONDS, 0.75),
        (0.3, 0.2, False, Unit.SECONDS, 1.5),
        (200.0, 100.0, True, Unit.TOKENS_PER_S, 0.5),  # half as much would do
        (80.0, 100.0, True, Unit.TOKENS_PER_S, 1.25),
        (0.97, 0.95, True, Unit.RATIO, 0.6),  # 3 misses in a hundred of the 5 allowed
        (0.90, 0.95, True, Unit.RATIO, 2.0),
        (0.03, 0.05, False, Unit.RATIO, 0.6),
    ],
)
def test_share_of_a_bound_that_is_used_up(value: float, slo: float, at_least: bool, unit: Unit, share: float) -> None:
    one = changed(bound_of(value, value, value, at_least=at_least, unit=unit), margin=slo)
    assert used_share_of_bound(one) == pytest.approx(share)


@pytest.mark.parametrize(
    ("value", "slo", "at_least", "unit", "share"),
    [
        (0.0, 0.0, False, Unit.RATIO, 0.0),  # no error allowed, none seen
        (0.01, 0.0, False, Unit.RATIO, math.inf),
        (1.0, 1.0, True, Unit.RATIO, 0.0),
        (0.99, 1.0, True, Unit.RATIO, math.inf),
        (0.0, 5.0, True, Unit.TOKENS_PER_S, math.inf),
        (0.5, -1.0, False, Unit.SECONDS, math.inf),
    ],
)
def test_where_nothing_is_allowed_any_use_is_all_of_it(
    value: float, slo: float, at_least: bool, unit: Unit, share: float
) -> None:
    one = changed(bound_of(value, value, value, at_least=at_least, unit=unit), margin=slo)
    assert used_share_of_bound(one) == share


def test_without_a_value_all_of_a_bound_is_used() -> None:
    assert used_share_of_bound(changed(HARMLESS, value=None)) == math.inf


# At a look


@pytest.mark.parametrize(("harm", "soon"), [(BELOW, True), (MARGIN, False), (ABOVE, False), (-ABOVE, True)])
def test_harm_is_too_soon_below_the_margin_and_not_at_it(harm: float, soon: bool) -> None:
    one = changed(harm_of(harm, -0.2, 0.2), look=FIRST)
    assert too_soon(one) is soon
    assert too_soon(changed(one, look=LAST)) is False
    assert too_soon(changed(one, look=None)) is False
    assert too_soon(changed(one, scale=Scale.ABSOLUTE)) is False
    assert too_soon(changed(one, value=None)) is False


@pytest.mark.parametrize(("harm", "soon"), [(BELOW, True), (-BELOW, True), (MARGIN, False), (-MARGIN, False)])
def test_a_change_either_way_is_too_soon_by_its_size(harm: float, soon: bool) -> None:
    assert too_soon(changed(harm_of(harm, -0.2, 0.2), look=SECOND, two_sided=True)) is soon


def test_what_is_too_soon_to_block_is_not_promoted_for_it() -> None:
    early = changed(harm_of(BELOW, 0.05, 0.2), look=FIRST)
    assert outcome(early, 0.0) is Outcome.INCONCLUSIVE
    assert outcome(changed(early, look=LAST), 0.0) is Outcome.BLOCK


def test_a_look_makes_no_p_value_smaller() -> None:
    for look in (FIRST, SECOND, LAST):
        for p_value in (0.0, 1e-6, 0.01, 0.04, 0.5, 1.0):
            for two_sided in (False, True):
                seen = seen_at(changed(HARMLESS, p_value=p_value, two_sided=two_sided), look)
                assert seen.p_value is not None and p_value <= seen.p_value <= 1.0
                assert seen.look is look


def test_the_last_looks_own_tail_is_alpha_over_all_looks() -> None:
    # 1 - Phi(1.679), the last of three O'Brien-Fleming looks after 5, 10 and 20 blocks at 5 %
    seen = seen_at(changed(HARMLESS, p_value=0.04658), LAST)
    assert seen.p_value == pytest.approx(0.05, rel=1e-3)


def test_a_look_leaves_what_has_no_p_value_without_one_and_says_where_it_was() -> None:
    seen = seen_at(changed(HARMLESS, p_value=None, notes=["before"]), SECOND)
    assert (seen.p_value, seen.look) == (None, SECOND)
    assert seen.notes == ["look 2 of 3, after 10 of at most 20 blocks; limits at 1 %", "before"]
    assert outcome(seen) is Outcome.INVALID


def test_a_look_adds_one_step_to_those_there_were() -> None:
    before = ArithmeticStep("a", "b", "c")
    seen = seen_at(changed(HARMLESS, p_value=0.04658, trace=Trace([before])), LAST)
    assert seen.trace.steps[0] == before
    (added,) = seen.trace.steps[1:]
    assert added.what == "p-value over all looks, seen at look 3 of 3, after 20 of at most 20 blocks"
    assert added.formula.startswith(
        "P(B(t) >= z * sqrt(1) at any t of 0.25, 0.5, 1), where P(Z > z) = 0.04658: z = 1.678959"
    )
    assert float(added.value) == pytest.approx(0.05, rel=1e-3)
    assert seen.p_value == pytest.approx(0.05, rel=1e-3)
    assert seen_at(HARMLESS, LAST).trace.steps == []


def test_a_change_either_way_pays_for_both_sides() -> None:
    # Each side at the last look's own tail: 5 % of error on each, 10 % on both.
    seen = seen_at(changed(HARMLESS, p_value=2 * 0.04658, two_sided=True), LAST)
    assert seen.p_value == pytest.approx(0.1, rel=1e-3)
