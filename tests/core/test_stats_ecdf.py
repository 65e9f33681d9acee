from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.stats.quantiles import MAX_POINTS, ecdf


def test_each_value_has_the_share_at_or_below_it() -> None:
    found = ecdf(np.array([3.0, 1.0, 4.0, 2.0]))
    assert found is not None
    assert (found.values, found.shares) == ((1.0, 2.0, 3.0, 4.0), (0.25, 0.5, 0.75, 1.0))
    assert (found.n, found.never, found.arrived) == (4, 0, 1.0)


def test_what_failed_stays_in_the_denominator_and_the_curve_ends_below_one() -> None:
    found = ecdf(np.array([1.0, math.inf, 2.0, math.inf]))
    assert found is not None
    assert (found.values, found.shares) == ((1.0, 2.0), (0.25, 0.5))
    assert (found.n, found.never, found.arrived) == (4, 2, 0.5)


def test_where_everything_failed_there_is_no_curve_and_all_of_it_is_counted() -> None:
    found = ecdf(np.array([math.inf, math.inf]))
    assert found is not None
    assert (found.values, found.shares, found.n, found.arrived) == ((), (), 2, 0.0)


def test_what_does_not_apply_is_left_out_and_nothing_at_all_has_no_curve() -> None:
    found = ecdf(np.array([math.nan, 5.0]))
    assert found is not None
    assert (found.values, found.shares, found.n) == ((5.0,), (1.0,), 1)
    assert ecdf(np.array([math.nan])) is None
    assert ecdf(np.empty(0)) is None


def test_equal_values_are_one_step() -> None:
    found = ecdf(np.array([1.0, 1.0, 2.0]))
    assert found is not None
    assert found.values == (1.0, 2.0)
    assert found.shares == pytest.approx((2 / 3, 1.0))


def test_leaving_points_out_keeps_both_extremes_and_moves_none_that_stay() -> None:
    values = np.random.default_rng(4).lognormal(0.0, 1.0, 5_001)
    values[:40] = math.inf
    found = ecdf(values)
    assert found is not None
    assert len(found.values) == MAX_POINTS
    arrived = sorted(v for v in values.tolist() if math.isfinite(v))
    assert (found.values[0], found.values[-1]) == (arrived[0], arrived[-1])
    at_or_below = [sum(one <= value for one in arrived) / 5_001 for value in found.values[::20]]
    assert found.shares[::20] == pytest.approx(at_or_below)
    assert found.shares[-1] == pytest.approx(4_961 / 5_001)


def test_a_curve_of_one_point_is_refused() -> None:
    with pytest.raises(ValueError, match="two points at least"):
        ecdf(np.array([1.0]), most=1)
