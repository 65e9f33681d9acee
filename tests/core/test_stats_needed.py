"""How many more observations a t-limit needs: against t quantiles from tables, and against doing it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchgate.stats.distributions import LimitWidth, sample_size_for_width
from benchgate.stats.means import paired_t


def test_few_observations_need_fewer_more_than_the_root_of_their_number_says() -> None:
    # t(0.95) is 6.314 for 1 degree of freedom, 1.895 for 7 and 1.860 for 8 (any table).
    half = 6.314 / 2**0.5
    assert sample_size_for_width(LimitWidth(2, half, 0.05, 1), 1.895 / 8**0.5 + 1e-3, 0.05) == 8
    assert sample_size_for_width(LimitWidth(2, half, 0.05, 1), 1.895 / 8**0.5 - 1e-3, 0.05) == 9


@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_as_many_observations_of_the_same_spread_do_fit_into_the_room(alpha: float) -> None:
    seen = np.array([0.0, 1.0, 2.0, 3.0])
    spread = float(np.std(seen, ddof=1))
    test = paired_t(seen, alpha)
    assert test is not None
    measured = LimitWidth(len(seen), test.limits.upper - test.mean, alpha, test.freedom)
    needed = sample_size_for_width(measured, 0.5, alpha)
    assert needed is not None

    def width(n: int) -> float:
        return float(stats.t.ppf(1 - alpha, n - 1)) * spread / math.sqrt(n)

    assert width(needed) < 0.5 <= width(needed - 1)


@pytest.mark.parametrize(("n", "width", "room"), [(1, 1.0, 1.0), (5, np.inf, 1.0), (5, 1.0, 0.0), (5, 1.0, 0.001)])
def test_no_number_is_told_where_none_would_do(n: int, width: float, room: float) -> None:
    assert sample_size_for_width(LimitWidth(n, width, 0.05, n - 1), room, 0.05) is None


@pytest.mark.parametrize(("n", "groups"), [(5, 5), (20, 4), (300, 5)])
def test_limits_at_a_small_alpha_are_projected_to_the_alpha_that_will_count(n: int, groups: int) -> None:
    """300 requests in 5 blocks: the limits have 4 degrees of freedom, and 600 requests in 10 blocks have 9."""
    small, later = 0.000393, 0.0466
    spread = 2.0
    measured = LimitWidth(n, float(stats.t.ppf(1 - small, groups - 1)) * spread / math.sqrt(n), small, groups - 1)
    room = float(stats.t.ppf(1 - later, 2 * groups - 1)) * spread / math.sqrt(2 * n)
    assert sample_size_for_width(measured, room * (1 + 1e-6), later) == 2 * n
    assert sample_size_for_width(measured, room * (1 - 1e-6), later) == 2 * n + 1
