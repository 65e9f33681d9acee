"""Upper limits under a long tail: against the cubic they solve and against Poisson's exact limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import (
    ClusterLosses,
    cluster_mean,
    pool_means,
    rare_loss_upper_limit,
    skewness_adjusted_upper_limit,
)

TAILED = np.array([0.1, 0.2, 0.15, 0.3, 0.1, 0.9, 0.2, 0.25, 1.6, 0.1, 0.2, 0.12])


def names(sizes: list[int]) -> list[str]:
    return [f"c{number}" for number, size in enumerate(sizes) for _ in range(size)]


def studentised(values: FloatArray, limit: float) -> float:
    """Hall's cubic of how far the mean of independent values lies from the limit: t's lower quantile, if it is one."""
    skewness = float(scipy_stats.skew(values, bias=False)) / math.sqrt(len(values))
    gap = float(np.mean(values) - limit) / float(scipy_stats.sem(values))
    return gap + skewness * gap**2 / 3 + skewness**2 * gap**3 / 27 + skewness / 6


def lost(count: int, n: int) -> ClusterLosses:
    """n units with 1 to lose each, of which so many lost it."""
    return ClusterLosses(np.where(np.arange(n) < count, 1.0, 0.0), np.ones(n))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_upper_limit_solves_halls_cubic(sign: float) -> None:
    limit = skewness_adjusted_upper_limit(sign * TAILED, names([1] * 12), 0.05)
    assert limit is not None and limit > np.mean(sign * TAILED)
    assert studentised(sign * TAILED, limit) == pytest.approx(-float(scipy_stats.t.ppf(0.95, 11)))


def test_a_tail_above_raises_the_limit_and_a_tail_below_lowers_it() -> None:
    for sign in (1.0, -1.0):
        limit, mean = skewness_adjusted_upper_limit(sign * TAILED, names([1] * 12), 0.05), cluster_mean(sign * TAILED)
        assert limit is not None and mean is not None
        assert (limit > pool_means([mean]).limits(0.05).upper) == (sign > 0)


def test_items_of_one_cluster_that_are_all_the_same_count_once() -> None:
    thrice = skewness_adjusted_upper_limit(np.repeat(TAILED, 3), names([3] * 12), 0.05)
    assert thrice == pytest.approx(skewness_adjusted_upper_limit(TAILED, names([1] * 12), 0.05))


def test_clusters_of_unlike_sizes_bring_their_residuals() -> None:
    sizes, values = [1, 2, 3, 1, 5], np.array([1.0, 2.0, 2.0, 4.0, 4.0, 5.0, 0.0, 1.0, 1.0, 2.0, 1.0, 0.0])
    residuals = np.array([1 - 23 / 12, 4 - 23 / 6, 13 - 23 / 4, -23 / 12, 5 - 5 * 23 / 12])
    limit = skewness_adjusted_upper_limit(values, names(sizes), 0.05)
    assert limit is not None
    assert studentised(23 / 12 + residuals * 5 / 12, limit) == pytest.approx(-float(scipy_stats.t.ppf(0.95, 4)))


def test_three_clusters_have_a_limit_and_two_have_none() -> None:
    assert skewness_adjusted_upper_limit(np.array([1.0, 2.0, 4.0]), names([1, 1, 1]), 0.05) is not None
    assert skewness_adjusted_upper_limit(np.array([1.0, 2.0, 4.0]), names([2, 1]), 0.05) is None
    assert skewness_adjusted_upper_limit(np.empty(0), [], 0.05) is None


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_leaves_no_limit(broken: float) -> None:
    with np.errstate(invalid="ignore"):
        assert skewness_adjusted_upper_limit(np.array([1.0, 2.0, 3.0, broken]), names([1] * 4), 0.05) is None


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_error_rates_that_are_none_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        skewness_adjusted_upper_limit(TAILED, names([1] * 12), alpha)
    with pytest.raises(ValueError, match="alpha"):
        rare_loss_upper_limit([lost(1, 10)], 9, alpha)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 20, 60])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_a_few_lost_units_are_limited_as_poisson_counts_are(count: int, alpha: float) -> None:
    # Garwood's exact upper limit of a Poisson mean is the quantile of Gamma(count + 1).
    n = 100_000
    exact = float(scipy_stats.gamma.ppf(1 - alpha, count + 1))
    assert n * rare_loss_upper_limit([lost(count, n)], n - 1, alpha) == pytest.approx(exact, rel=2e-4)


def test_halves_of_a_task_are_limited_as_the_whole() -> None:
    whole = rare_loss_upper_limit([lost(4, 40_000)], 39_999, 0.05)
    halves = rare_loss_upper_limit([lost(2, 20_000), lost(2, 20_000)], 39_998, 0.05)
    uneven = rare_loss_upper_limit([lost(4, 20_000), lost(0, 20_000)], 39_998, 0.05)
    assert halves == pytest.approx(whole, rel=1e-3)
    assert uneven == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_not_seen_is_taken_from_where_it_costs_most(turned: bool) -> None:
    rich, poor = ClusterLosses(np.zeros(50), np.full(50, 0.8)), ClusterLosses(np.zeros(50), np.full(50, 0.1))
    small = ClusterLosses(np.zeros(10), np.full(10, 0.4))  # 0.4 of few: 0.4 · (1 - 0.05^(1/10)) = 0.1036
    tasks = [rich, poor][:: -1 if turned else 1]
    assert rare_loss_upper_limit(tasks, 98, 0.05) == pytest.approx(0.8 * (1 - 0.05 ** (1 / 50)) / 2)
    tasks = [rich, small][:: -1 if turned else 1]
    assert rare_loss_upper_limit(tasks, 58, 0.05) == pytest.approx(0.4 * (1 - 0.05 ** (1 / 10)) / 2)


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_units_leave_nearly_all_open(n: int) -> None:
    assert rare_loss_upper_limit([ClusterLosses(np.zeros(n), np.ones(n))], 1, 0.05) == pytest.approx(
        1 - 0.05 ** (1 / n)
    )
    # One unit has no spread of its own to tell of; what it lost is still its mean.
    assert rare_loss_upper_limit([ClusterLosses(np.ones(n), np.ones(n))], 1, 0.05) > 1


def test_units_that_gain_never_lower_the_limit_below_what_is_not_seen() -> None:
    gained = ClusterLosses(np.where(np.arange(100) < 30, -1.0, 0.0), np.ones(100))
    assert rare_loss_upper_limit([gained], 99, 0.05) == pytest.approx(1 - 0.05 ** (1 / 100))


def test_where_few_units_gain_among_losses_the_limit_is_halls_and_half_a_unit() -> None:
    n = 10_000
    harm = np.where(np.arange(n) < 4, -0.5, 0.5)
    found = rare_loss_upper_limit([ClusterLosses(harm, np.full(n, 0.5))], n - 1, 0.05)
    assert studentised(harm, found - 0.25 / n) == pytest.approx(-1.645, abs=1e-3)


def test_where_nothing_is_skewed_it_is_students_and_half_a_unit() -> None:
    n = 100_000
    harm = np.tile([0.1, 0.3], n // 2)
    found = rare_loss_upper_limit([ClusterLosses(harm, np.full(n, 0.5))], n - 1, 0.05)
    assert found == pytest.approx(0.2 + 0.25 / n + 1.644854 * float(scipy_stats.sem(harm)), abs=1e-8)


def test_spread_of_few_clusters_reaches_no_further_than_the_law_of_few_losses() -> None:
    n = 100_000
    harm = np.tile([0.1, 0.3], n // 2)
    found = rare_loss_upper_limit([ClusterLosses(harm, np.full(n, 0.5))], 3, 0.05)
    error = math.hypot(float(scipy_stats.sem(harm)), 0.5 / n)
    assert found == pytest.approx(0.2 + 0.5 / n + 1.644854 * error, abs=1e-8)


@pytest.mark.parametrize(
    ("harm", "mean", "second", "third"),
    [
        ([0.0, 1.0], 1 / 2, 1 / 4, 0.0),  # of two values nothing says which way they lean
        ([0.0, 0.0, 1.0], 1 / 3, 1 / 9, 1 / 27),  # Σc² / 6 and Σc³ / 6 of -1/3, -1/3, 2/3
    ],
)
def test_two_units_have_a_spread_and_three_a_skewness(
    harm: list[float], mean: float, second: float, third: float
) -> None:
    n = len(harm)
    variance = second + 1 / n**2  # with one lost unit more
    skewness = 2 * (third + 1 / n**3) / variance**1.5
    reach = math.sqrt(variance) * float(scipy_stats.pearson3.ppf(0.95, skewness))
    found = rare_loss_upper_limit([ClusterLosses(np.array(harm), np.ones(n))], n - 1, 0.05)
    assert found == pytest.approx(mean + 1 / n + reach)


def test_units_without_anything_to_lose_lose_nothing() -> None:
    assert rare_loss_upper_limit([ClusterLosses(np.zeros(5), np.zeros(5))], 4, 0.05) == 0.0


def test_fewer_degrees_of_freedom_reach_further() -> None:
    harm = np.tile([0.1, 0.3], 500)
    units = [ClusterLosses(harm, np.full(1000, 0.5))]
    found = rare_loss_upper_limit(units, 3, 0.05)
    assert found > rare_loss_upper_limit(units, 999, 0.05)
    # As far as the law of few losses allows and no further: close to the normal one here.
    assert found < 0.2 + 0.5 / 1000 + 1.75 * float(scipy_stats.sem(harm))
