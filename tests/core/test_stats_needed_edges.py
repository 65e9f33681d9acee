"""How many observations are needed, at the ends: two seen, no room, and just a hundred times as many."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from benchgate.stats.distributions import LimitWidth, sample_size_for_width


def needed(n: int, width: float, room: float, alpha: float = 0.05) -> int | None:
    return sample_size_for_width(LimitWidth(n, width, alpha, n - 1), room, alpha)


def reach(n: int, alpha: float = 0.05) -> float:
    """How far a t-limit of n observations lies from their mean, in their own standard deviations."""
    return float(stats.t.ppf(1 - alpha, n - 1)) / math.sqrt(n)


@pytest.mark.parametrize(
    ("n", "width", "room"), [(1, 1.0, 1.0), (0, 1.0, 1.0), (5, math.nan, 1.0), (5, -math.inf, 1.0)]
)
def test_too_few_observations_or_a_limit_without_an_end_need_no_number(n: int, width: float, room: float) -> None:
    assert needed(n, width, room) is None


@pytest.mark.parametrize("room", [0.0, -0.1, -math.inf])
def test_where_there_is_no_room_no_number_makes_any(room: float) -> None:
    assert needed(10, 0.0, room) is None
    assert needed(10, 0.5, room) is None


@pytest.mark.parametrize("n", [2, 3, 10])
def test_a_hundred_times_as_many_is_the_most_that_is_told(n: int) -> None:
    edge = reach(100 * n)
    assert needed(n, reach(n), edge * (1 + 1e-6)) == 100 * n
    assert needed(n, reach(n), edge * (1 - 1e-6)) is None


@pytest.mark.parametrize("n", [2, 5, 40])
@pytest.mark.parametrize("wanted", [1, 2, 17])
def test_the_number_told_is_the_least_that_does(n: int, wanted: int) -> None:
    more = n + wanted
    room = reach(more) * (1 + 1e-6)  # enough for `more` observations, and not for one less
    assert reach(more) < room < reach(more - 1)
    assert needed(n, reach(n), room) == more


def test_a_spread_of_nothing_needs_one_more_at_most() -> None:
    assert needed(4, 0.0, 0.1) == 5


def test_a_lower_error_rate_needs_more() -> None:
    assert needed(5, reach(5, 0.01), reach(9, 0.01) * (1 + 1e-6), 0.01) == 9
