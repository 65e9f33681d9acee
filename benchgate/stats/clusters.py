"""Means of items that are not independent: those of one passage, one template, one person move together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import t_ppf, t_sf
from benchgate.stats.limits import Limits, check_alpha

FEWEST_CLUSTERS = 10
"""With fewer the spread between clusters is itself not known well enough (Cameron, Gelbach and Miller 2008)."""


@dataclass(frozen=True, slots=True)
class ClusterMean:
    """A mean over items with the standard error that its clusters give it, and how many clusters there are."""

    mean: float
    error: float
    clusters: int
    n: int


@dataclass(frozen=True, slots=True)
class PooledMean:
    """Means of several tasks, each with equal weight: estimate, standard error, degrees of freedom."""

    mean: float
    error: float
    freedom: float

    def limits(self, alpha: float) -> Limits:
        """One-sided limits, Student's t; the mean itself where nothing varies."""
        check_alpha(alpha)
        reach = t_ppf(1 - alpha, self.freedom) * self.error
        return Limits(self.mean - reach, self.mean + reach)

    def p_above(self, margin: float) -> float:
        """p-value of "the mean is at most the margin"; without any spread 1 there and 0 above."""
        if self.error == 0:
            return 0.0 if self.mean > margin else 1.0
        return t_sf((self.mean - margin) / self.error, self.freedom)


def cluster_sums(values: FloatArray, clusters: Sequence[str] | None = None) -> FloatArray:
    """Each cluster's sum of its items, in the order of the clusters' names; without `clusters` the items themselves.

    ValueError when there is not one cluster for each item.
    """
    if clusters is None:
        return values
    if len(clusters) != len(values):
        raise ValueError(f"{len(clusters)} clusters for {len(values)} items; expected one for each")
    numbers = np.unique(np.asarray(clusters), return_inverse=True)[1]
    return np.bincount(numbers, weights=values).astype(np.float64)


def cluster_mean(values: FloatArray, clusters: Sequence[str] | None = None) -> ClusterMean | None:
    """The mean of the items and its cluster-robust standard error; without `clusters` every item is its own.

    SE² = G/(G-1) · n⁻² · Σ_g (Σ_{i in g} (d_i - d̄))², G clusters, n items (Liang and Zeger 1986; Miller,
    arXiv 2411.00640, 2.2). Items without a common cause give the ordinary s²/n. None below two items or clusters, or
    when a value is not finite; whether there are enough clusters (`FEWEST_CLUSTERS`) is the caller's to ask. ValueError
    when there is not one cluster for each item.
    """
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        return None
    mean = float(np.mean(values))
    sums = cluster_sums(values - mean, clusters)
    groups = len(sums)
    if groups < 2:
        return None
    error = math.sqrt(groups / (groups - 1) * float(np.sum(sums**2))) / n
    return ClusterMean(mean, error, groups, n)


def pooled(means: Sequence[ClusterMean]) -> PooledMean:
    """The mean of the means, each task with equal weight and independent of the others.

    Degrees of freedom by Satterthwaite (Biometrics Bulletin 2, 1946); of one task, clusters - 1. ValueError when empty.
    """
    if not means:
        raise ValueError("there is no mean to pool")
    weight = 1 / len(means)
    variances = [(weight * one.error) ** 2 for one in means]
    total = sum(variances)
    least = min(one.clusters - 1 for one in means)
    spread = sum(v**2 / (one.clusters - 1) for v, one in zip(variances, means, strict=True))
    freedom = total**2 / spread if spread > 0 else float(least)
    return PooledMean(sum(weight * one.mean for one in means), math.sqrt(total), freedom)
