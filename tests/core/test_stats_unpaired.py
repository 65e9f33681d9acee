"""Two runs that nothing ties together: limits of a difference whose variance has several parts, against scipy's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.model.records import FloatArray
from benchgate.stats.means import VarianceComponent, combined_t

THEIRS = np.array([1.02, 0.97, 1.01, 1.05, 0.99])
OURS = np.array([1.10, 1.21, 1.07, 1.15, 1.30, 1.18, 1.09])


def part(values: FloatArray) -> VarianceComponent:
    return VarianceComponent(float(np.var(values, ddof=1)) / len(values), len(values) - 1)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.3])
def test_two_samples_are_welchs_test(margin: float) -> None:
    difference = float(OURS.mean() - THEIRS.mean())
    found = combined_t(difference, [part(THEIRS), part(OURS)], 0.05, margin=margin)
    assert found is not None
    outside = scipy_stats.ttest_ind(OURS - margin, THEIRS, equal_var=False, alternative="greater")
    interval = scipy_stats.ttest_ind(OURS, THEIRS, equal_var=False).confidence_interval(0.9)
    assert found.estimate == difference
    assert (found.limits.lower, found.limits.upper) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(float(outside.pvalue))
    assert found.freedom == pytest.approx(float(outside.df))
    assert (difference - margin) / found.error == pytest.approx(float(outside.statistic))


def test_a_third_part_widens_the_limits_and_the_order_of_parts_is_nothing() -> None:
    parts = [part(THEIRS), part(OURS)]
    two, three = combined_t(0.1, parts, 0.05), combined_t(0.1, [*parts, VarianceComponent(0.01, 9)], 0.05)
    assert two is not None and three is not None
    assert three.limits.upper > two.limits.upper
    assert three.limits.lower < two.limits.lower
    assert three.error == pytest.approx(math.sqrt(two.error**2 + 0.01))
    turned = combined_t(0.1, [VarianceComponent(0.01, 9), *parts[::-1]], 0.05)
    assert turned is not None
    assert turned.limits.upper == pytest.approx(three.limits.upper)


def test_one_degree_of_freedom_is_enough_and_gives_cauchys_limits() -> None:
    found = combined_t(0.3, [VarianceComponent(0.01, 1)], 0.05)
    assert found is not None
    assert (found.estimate, found.freedom) == (0.3, 1)
    reach = 0.1 * math.tan(math.pi * 0.45)  # the quantile of t with one degree of freedom
    assert (found.limits.lower, found.limits.upper) == pytest.approx((0.3 - reach, 0.3 + reach))
    assert found.p_value == pytest.approx(0.5 - math.atan(3) / math.pi)


@pytest.mark.parametrize("freedom", [0.0, 0.5, 0.999, -1.0])
def test_a_part_without_a_degree_of_freedom_is_refused_beside_any_other(freedom: float) -> None:
    for parts in (
        [VarianceComponent(0.01, freedom)],
        [VarianceComponent(0.01, 9), VarianceComponent(0.01, freedom)],
        [VarianceComponent(0.01, freedom), VarianceComponent(0.01, 9)],
    ):
        with pytest.raises(ValueError, match="no degrees of freedom"):
            combined_t(0.3, parts, 0.05)


@pytest.mark.parametrize("variance", [0.0, 1e-26, math.inf])
def test_without_a_variance_or_with_one_that_has_no_end_nothing_is_said(variance: float) -> None:
    assert combined_t(0.3, [VarianceComponent(variance, 5)], 0.05) is None
    assert combined_t(0.3, [], 0.05) is None


@pytest.mark.parametrize("estimate", [math.inf, -math.inf, math.nan])
def test_an_estimate_that_is_no_number_has_no_limits(estimate: float) -> None:
    assert combined_t(estimate, [VarianceComponent(0.01, 5)], 0.05) is None


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_an_alpha_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        combined_t(0.3, [VarianceComponent(0.01, 5)], alpha)
