"""The falling fit: against R's isoreg, and what it refuses to say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from benchgate.stats.capacity_search import isotonic_fit


def test_fit_agrees_with_isoreg_of_r() -> None:
    # R: isoreg(c(1, 0, 4, 3, 3, 5, 4, 2, 0))$yf is 0.5 0.5 3 3 3 3 3 3 3; here in reverse and as tenths.
    fit = isotonic_fit(range(1, 10), [0, 2, 4, 5, 3, 3, 4, 0, 1], [10] * 9)
    assert fit is not None
    assert fit.shares == pytest.approx((0.3,) * 7 + (0.05,) * 2)


def test_fit_agrees_with_scipy_on_random_counts() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        totals = generator.integers(1, 50, size=12)
        good = generator.binomial(totals, np.linspace(1, 0.2, 12))
        fit = isotonic_fit(range(1, 13), good.tolist(), totals.tolist())
        outside = isotonic_regression(good / totals, weights=totals.astype(float), increasing=False)
        assert fit is not None
        assert fit.shares == pytest.approx(outside.x)


def test_level_with_more_requests_weighs_more() -> None:
    fit = isotonic_fit([1, 2], [10, 100], [100, 100])
    assert fit is not None
    assert fit.shares == pytest.approx((0.55, 0.55))
    heavy = isotonic_fit([1, 2], [10, 300], [100, 300])
    assert heavy is not None
    assert heavy.shares == pytest.approx((310 / 400,) * 2)


def test_counts_of_one_level_are_pooled_whatever_their_order() -> None:
    fit = isotonic_fit([4, 2, 4], [0, 10, 10], [10, 10, 10])
    assert fit is not None
    assert (fit.levels, fit.shares) == ((2, 4), (1.0, 0.5))


def test_crossing_lies_between_the_levels_on_either_side() -> None:
    fit = isotonic_fit([1, 2, 4, 8], [100, 100, 90, 10], [100] * 4)
    assert fit is not None
    assert fit.crossing(0.5) == pytest.approx(4 * 2**0.5)  # halfway from 0.9 to 0.1, over ln(level)
    assert fit.crossing(0.9) == pytest.approx(4)


def test_fit_on_one_side_of_the_target_crosses_nowhere() -> None:
    above, below = isotonic_fit([1, 2], [100, 99], [100, 100]), isotonic_fit([1, 2], [50, 40], [100, 100])
    assert above is not None
    assert below is not None
    assert above.crossing(0.95) is None
    assert below.crossing(0.95) is None


def test_without_a_request_there_is_no_fit() -> None:
    assert isotonic_fit([], [], []) is None
    assert isotonic_fit([1], [0], [0]) is None


@pytest.mark.parametrize(
    ("levels", "good", "totals"), [([1], [2], [1]), ([0], [1], [1]), ([float("inf")], [1], [1]), ([1, 2], [1], [1])]
)
def test_counts_that_cannot_be_are_refused(levels: list[float], good: list[int], totals: list[int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        isotonic_fit(levels, good, totals)
