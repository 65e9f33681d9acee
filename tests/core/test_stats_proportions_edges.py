"""Shares at the ends of what can be: every impossible count by itself, and the score statistic at its very edges."""

from __future__ import annotations

import math

import pytest

from benchgate.stats.proportions import (
    clopper_pearson,
    mcnemar_p,
    newcombe_difference,
    poisson_rates_p,
    score_limits,
    score_statistic,
    tango_limits,
    tango_noninferiority_p,
    wilson,
)


@pytest.mark.parametrize(("b", "c"), [(-1, 0), (0, -1), (-1, 5), (5, -1)])
def test_items_that_differ_less_than_not_at_all_are_refused(b: int, c: int) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        mcnemar_p(b, c)


def test_every_pair_may_differ() -> None:
    assert tango_limits(6, 4, 10, 0.05).lower < 0.2 < tango_limits(6, 4, 10, 0.05).upper
    assert tango_limits(1, 0, 1, 0.05).upper == 1.0
    assert tango_limits(0, 1, 1, 0.05).lower == -1.0
    assert tango_limits(0, 0, 1, 0.05).upper < 1.0


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0), (0, -1)])
def test_errors_that_cannot_be_are_refused_of_either_arm(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="not a share"):
        poisson_rates_p(k, n, 1, 10)
    with pytest.raises(ValueError, match="not a share"):
        poisson_rates_p(1, 10, k, n)


def test_one_trial_is_a_share() -> None:
    assert clopper_pearson(0, 1, 0.05).upper == pytest.approx(0.95)
    assert clopper_pearson(1, 1, 0.05).lower == pytest.approx(0.05)
    assert wilson(1, 1, 0.05).lower == pytest.approx(1 / (1 + 1.6448536269514722**2))


def test_one_hit_leaves_a_lower_limit_and_one_miss_an_upper_one() -> None:
    # scipy.stats.binomtest(1, 20).proportion_ci(0.90, "exact"), and "wilson"
    one, but_one = clopper_pearson(1, 20, 0.05), clopper_pearson(19, 20, 0.05)
    assert (one.lower, one.upper) == pytest.approx((0.00256137877653028, 0.21610616420686987))
    assert (but_one.lower, but_one.upper) == pytest.approx((1 - one.upper, 1 - one.lower))
    one, but_one = wilson(1, 20, 0.05), wilson(19, 20, 0.05)
    assert 0 < one.lower < 0.05 < one.upper
    assert (but_one.lower, but_one.upper) == pytest.approx((1 - one.upper, 1 - one.lower))


def test_errors_of_the_candidate_are_its_own() -> None:
    # scipy.stats.binomtest(6, 7, 200 / 1000, alternative="greater"), and of the arms turned round
    assert poisson_rates_p(6, 200, 1, 800) == pytest.approx(7 * 0.2**6 * 0.8 + 0.2**7)
    assert poisson_rates_p(1, 800, 6, 200) == pytest.approx(1 - 0.2**7)


def test_difference_of_shares_is_candidate_less_baseline() -> None:
    limits, turned = newcombe_difference(9, 10, 1, 40, 0.05), newcombe_difference(1, 40, 9, 10, 0.05)
    assert 0.5 < limits.lower < 0.875 < limits.upper < 1
    assert (turned.lower, turned.upper) == pytest.approx((-limits.upper, -limits.lower))


@pytest.mark.parametrize(
    ("b", "c", "n", "delta", "says"),
    [
        (0, 0, 3, -0.9999999999999999, math.inf),  # nothing seen to gain: far from all gained
        (0, 3, 3, -0.9999999999999998, -math.inf),
        (1, 2, 3, -0.9999999999999997, math.inf),
        (0, 0, 5, 0.0, 0.0),  # no item differs and none should
    ],
)
def test_where_the_score_statistic_has_no_variance_the_data_decide(
    b: int, c: int, n: int, delta: float, says: float
) -> None:
    assert score_statistic(b, c, n, delta, weight=1.0) == says


@pytest.mark.parametrize(
    ("weight", "delta"), [(1.0, -1.0), (1.0, 1.0), (0.5, -0.5), (0.5, 1.0), (0.5, -0.7), (1.0, 2.0)]
)
def test_a_mean_at_the_end_of_its_range_cannot_be_tested(weight: float, delta: float) -> None:
    with pytest.raises(ValueError, match="cannot be tested"):
        score_statistic(1, 1, 10, delta, weight=weight)
    assert math.isfinite(score_statistic(1, 1, 10, delta * 0.99 if abs(delta) < 1 else 0.99, weight=1.0))


def test_score_limits_end_where_the_range_does() -> None:
    assert score_limits(0, 10, 10, 0.05, weight=0.5).lower == -0.5
    assert score_limits(10, 0, 10, 0.05, weight=0.5).upper == 1.0
    inside = score_limits(5, 5, 10, 0.05, weight=0.5)
    assert -0.5 < inside.lower < 0.25 < inside.upper < 1


def test_score_limits_are_where_the_statistic_reaches_the_normal_quantile() -> None:
    for weight in (0.5, 1.0):
        limits = score_limits(7, 3, 60, 0.05, weight=weight)
        assert score_statistic(7, 3, 60, limits.lower, weight=weight) == pytest.approx(1.6448536269514722)
        assert score_statistic(7, 3, 60, limits.upper, weight=weight) == pytest.approx(-1.6448536269514722)


def test_margin_p_is_small_below_the_margin_and_large_above() -> None:
    assert tango_noninferiority_p(0, 0, 400, 0.05) < 0.001 < 0.999 < tango_noninferiority_p(40, 0, 400, 0.05)
    assert tango_noninferiority_p(20, 0, 400, 0.05) == pytest.approx(0.5)  # seen at the margin itself
