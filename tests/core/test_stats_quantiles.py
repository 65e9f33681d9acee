"""Limits of a quantile need enough requests, and say when there are not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.stats.quantiles import min_n_for_quantile, min_n_for_upper_limit, order_statistic_limits


@pytest.mark.parametrize(("q", "fewest"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_fewest_requests_for_an_upper_limit(q: float, fewest: int) -> None:
    assert min_n_for_upper_limit(q, 0.05) == fewest
    assert order_statistic_limits(np.arange(1.0, fewest + 1), q, 0.05) is not None
    assert order_statistic_limits(np.arange(1.0, fewest), q, 0.05) is None


@pytest.mark.parametrize(
    ("n", "q", "lower", "upper"),
    [
        # scipy.stats.quantile_test(np.arange(1.0, n + 1), p=q).confidence_interval(0.90)
        (100, 0.9, 85.0, 96.0),
        (60, 0.95, 54.0, 60.0),
    ],
)
def test_ranks_are_those_of_the_binomial_law(n: int, q: float, lower: float, upper: float) -> None:
    values = np.random.default_rng(2).permutation(np.arange(1.0, n + 1))
    limits = order_statistic_limits(values, q, 0.05)
    assert limits is not None
    assert (limits.lower, limits.upper) == (lower, upper)


def test_failures_are_values_and_can_be_the_limit() -> None:
    values = np.concatenate([np.arange(1.0, 59), [math.inf] * 2])
    limits = order_statistic_limits(values, 0.95, 0.05)
    assert limits is not None
    assert limits.upper == math.inf
    assert limits.lower == 54.0


def test_what_does_not_apply_does_not_help_to_reach_the_number() -> None:
    values = np.concatenate([np.arange(1.0, 59), np.full(100, np.nan)])
    assert order_statistic_limits(values, 0.95, 0.05) is None


def test_limits_cover_the_true_quantile_of_a_skewed_law() -> None:
    generator, truth = np.random.default_rng(4), math.exp(0.5 * 1.2815515655446004)  # scipy.stats.norm.ppf(0.9)
    found = [order_statistic_limits(generator.lognormal(0, 0.5, size=80), 0.9, 0.05) for _ in range(2000)]
    limits = [one for one in found if one is not None]
    assert len(limits) == 2000
    assert np.mean([one.upper < truth for one in limits]) <= 0.06
    assert np.mean([one.lower > truth for one in limits]) <= 0.06


@pytest.mark.parametrize("q", [0.0, 1.0, 95.0])
def test_a_quantile_is_between_zero_and_one(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        order_statistic_limits(np.arange(100.0), q, 0.05)


@pytest.mark.parametrize(("q", "fewest"), [(0.9, 29), (0.95, 59), (0.99, 299)])
def test_a_high_quantile_is_taken_of_enough_to_lie_where_it_should(q: float, fewest: int) -> None:
    """The order statistic X(r) of n lies at the quantile r / (n + 1) on average (David and Nagaraja, 2.1)."""
    assert min_n_for_quantile(q) == fewest
    rank = math.ceil(fewest * q)
    assert q - (1 - q) / 2 < rank / (fewest + 1) < 1 - (1 - q) / 2
