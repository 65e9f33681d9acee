"""Ranks of quantile limits against their definition, at every number of values from the fewest on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from benchgate.stats.quantiles import limit_ranks, min_n_for_upper_limit, order_statistic_limits


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.25])
def test_ranks_are_the_innermost_that_keep_the_error_rate(q: float, alpha: float) -> None:
    fewest = max(min_n_for_upper_limit(q, alpha), min_n_for_upper_limit(1 - q, alpha))
    for n in (fewest, fewest + 1, fewest + 7, 2 * fewest):
        lower, upper = limit_ranks(n, q, alpha)
        # P(X(r) > the quantile) = P(Bin(n, q) <= r - 1), and P(X(r) below it) = P(Bin(n, q) >= r)
        assert 1 <= lower <= upper <= n
        assert binom.cdf(lower - 1, n, q) <= alpha < binom.cdf(lower, n, q)
        assert binom.sf(upper - 1, n, q) <= alpha < binom.sf(upper - 2, n, q)


def test_a_chance_that_is_alpha_itself_is_still_allowed() -> None:
    # Of two values the larger is above the median with chance 3/4, and both are below it with 1/4.
    assert limit_ranks(2, 0.5, 0.25) == (1, 2)
    limits = order_statistic_limits(np.array([3.0, 1.0]), 0.5, 0.25)
    assert limits is not None and (limits.lower, limits.upper) == (1.0, 3.0)


@pytest.mark.parametrize("q", [0.05, 0.95])
def test_low_quantiles_need_as_many_values_as_high_ones(q: float) -> None:
    assert order_statistic_limits(np.arange(58.0), q, 0.05) is None
    limits = order_statistic_limits(np.arange(59.0), q, 0.05)
    assert limits is not None
    assert (limits.lower == 0.0) if q < 0.5 else (limits.upper == 58.0)


def test_values_that_do_not_apply_are_no_values() -> None:
    values = np.array([math.nan, *np.arange(59.0), math.nan])
    assert order_statistic_limits(values, 0.95, 0.05) == order_statistic_limits(np.arange(59.0), 0.95, 0.05)
    assert order_statistic_limits(np.full(500, math.nan), 0.5, 0.05) is None
    assert order_statistic_limits(np.empty(0), 0.5, 0.05) is None


def test_failures_alone_are_infinite_limits_and_not_none() -> None:
    limits = order_statistic_limits(np.full(100, math.inf), 0.5, 0.05)
    assert limits is not None and limits.lower == limits.upper == math.inf


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.1, math.nan])
def test_what_is_no_quantile_is_refused_everywhere(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        min_n_for_upper_limit(q, 0.05)
    with pytest.raises(ValueError, match="quantile"):
        order_statistic_limits(np.arange(100.0), q, 0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_error_rates_that_are_none_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        min_n_for_upper_limit(0.5, alpha)
    with pytest.raises(ValueError, match="alpha"):
        order_statistic_limits(np.arange(100.0), 0.5, alpha)
