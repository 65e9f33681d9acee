"""Means over clusters and over tasks: unlike sizes and spreads, none at all, and labels that do not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.stats.clusters import ClusterMean, PooledMean, cluster_mean, cluster_sums, pool_means


def test_sums_are_each_clusters_own_in_the_order_of_names() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0])
    assert list(cluster_sums(values, ["b", "a", "b", "c"])) == [2.0, 5.0, 8.0]
    assert list(cluster_sums(values)) == [1.0, 2.0, 4.0, 8.0]
    for labels in (["a"] * 3, ["a"] * 5, []):
        with pytest.raises(ValueError, match="one for each"):
            cluster_sums(values, labels)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.inf], [math.nan, 1.0, 2.0]])
def test_too_few_or_broken_items_have_no_mean(values: list[float]) -> None:
    assert cluster_mean(np.array(values)) is None
    assert cluster_mean(np.array(values), [str(i) for i in range(len(values))]) is None


def test_two_items_of_two_clusters_are_enough() -> None:
    # s²/n of 0 and 2: 2/2
    assert cluster_mean(np.array([0.0, 2.0])) == ClusterMean(1.0, 1.0, 2, 2)
    assert cluster_mean(np.array([0.0, 2.0]), ["a", "b"]) == ClusterMean(1.0, 1.0, 2, 2)


def test_one_task_keeps_its_clusters_degrees_of_freedom() -> None:
    pool = pool_means([ClusterMean(0.2, 0.1, 12, 500)])
    assert (pool.mean, pool.error, pool.freedom) == pytest.approx((0.2, 0.1, 11))


def test_tasks_count_equally_and_their_errors_add_as_squares() -> None:
    # Satterthwaite: (4 + 1)² / (16/9 + 1/4), halves of the errors 4 and 2 (hundredths) with 9 and 4 degrees of freedom
    pool = pool_means([ClusterMean(0.5, 0.04, 10, 1000), ClusterMean(0.1, 0.02, 5, 10)])
    assert pool.mean == pytest.approx(0.3)
    assert pool.error == pytest.approx(math.sqrt(5) / 100)
    assert pool.freedom == pytest.approx(25 / (16 / 9 + 1 / 4))


def test_tasks_without_any_spread_have_the_freedom_of_the_fewest_clusters() -> None:
    pool = pool_means([ClusterMean(0.5, 0.0, 10, 1000), ClusterMean(0.1, 0.0, 5, 10)])
    assert (pool.error, pool.freedom) == (0.0, 4.0)


@pytest.mark.parametrize(("margin", "p_value"), [(0.3, 1.0), (math.nextafter(0.3, 0), 0.0), (0.4, 1.0), (0.0, 0.0)])
def test_without_spread_only_what_is_above_the_margin_is_harm(margin: float, p_value: float) -> None:
    pool = PooledMean(0.3, 0.0, 9.0)
    assert pool.p_above(margin) == p_value
    assert (pool.limits(0.05).lower, pool.limits(0.05).upper) == (0.3, 0.3)


def test_limits_and_p_are_students() -> None:
    # t(0.95, 9) = 1.833113: half of the errors apart the p-value is that of t = 2, scipy.stats.t.sf(2, 9)
    pool = PooledMean(0.3, 0.1, 9.0)
    assert (pool.limits(0.05).lower, pool.limits(0.05).upper) == pytest.approx((0.1166887, 0.4833113))
    assert pool.p_above(0.1) == pytest.approx(0.03827641, abs=1e-7)
    assert pool.p_above(0.3) == 0.5
    with pytest.raises(ValueError, match="alpha"):
        pool.limits(0.5)


def test_clusters_that_move_together_widen_and_those_that_balance_narrow() -> None:
    together = cluster_mean(np.array([1.0, 1.0, -1.0, -1.0]), ["a", "a", "b", "b"])
    balanced = cluster_mean(np.array([1.0, -1.0, 1.0, -1.0]), ["a", "a", "b", "b"])
    assert together is not None and balanced is not None
    assert together.error == pytest.approx(1.0)  # 2/1 · (4 + 4) / 16
    assert balanced.error == 0.0
