"""Means of items that are not independent: those of one passage, one template, one person move together.

The upper limit of a mean whose values have a long tail above, seen or not yet: Student's is too low there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import Limits, check_alpha, gamma_ppf, norm_ppf, t_ppf, t_sf
from benchgate.stats.proportions import clopper_pearson

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


_STRAIGHT = 1e-4
"""A law with less skewness than this is taken for normal."""


@dataclass(frozen=True, slots=True)
class Units:
    """The independent units of a task, items or clusters, so scaled that the mean over units is that over items.

    `harm` is what each was seen to lose, `most` what it could lose: all that the baseline had there.
    """

    harm: FloatArray
    most: FloatArray


@dataclass(frozen=True, slots=True)
class _Law:
    """Mean, variance and third central moment of an estimate."""

    mean: float
    second: float
    third: float


def upper_limit(values: FloatArray, clusters: Sequence[str], alpha: float) -> float | None:
    """One-sided upper limit of the mean, t over clusters with the skewness taken out of t (Hall 1992).

    Log-normal values whose logarithms have the standard deviation 1.5, three to each of 65 clusters: the truth lies
    above it 9 % of the time, and above Student's limit 16 %, where 5 % is promised (1,000 simulations).

    Student's limit itself where nothing is skewed or nothing varies. None below three clusters, or when a value is not
    finite.
    """
    check_alpha(alpha)
    sums = cluster_sums(values, clusters)
    sizes = cluster_sums(np.ones(len(values)), clusters)
    count, n = len(sums), len(values)
    if count < 3 or not np.isfinite(values).all():
        return None
    mean = float(np.mean(values))
    law = _law((sums - sizes * mean) * count / n)
    return mean + _hall(law, t_ppf(1 - alpha, count - 1))


def unseen_limit(tasks: Sequence[Units], freedom: float, alpha: float) -> float:
    """One-sided upper limit of the mean harm over tasks, each with equal weight, when a few units may lose everything.

    Whichever is more of:

    - the share of lost units that Clopper and Pearson's limit allows where none was seen, times what a unit has to
      lose, in the task where that is most;
    - Hall's limit and half a lost unit, as losses come in whole units (a correction for continuity), at most as high as
      the limit of a sum of few large losses: the gamma law whose mean, variance and third moment are those of what was
      seen and of one loss more (Fay and Feuer 1997, with the mean unit for that one: Tiwari, Clegg and Zou 2006).
      Hall's alone jumps up and down where three or four units make all of the harm.

    Truly at the margin, by clusters that lose some or all of what they have, among others that only vary: promoted
    about 5 % of the time at most (tests/core/test_stats_lost_units.py), 6.5 % where clusters are of very unlike sizes;
    with Student's limit up to 36 %.
    """
    check_alpha(alpha)
    weight = 1 / len(tasks)
    laws = [_law(one.harm) for one in tasks]
    law = _Law(
        weight * sum(one.mean for one in laws),
        weight**2 * sum(one.second for one in laws),
        weight**3 * sum(one.third for one in laws),
    )
    unseen = weight * max(float(np.mean(one.most)) * clopper_pearson(0, len(one.most), alpha).upper for one in tasks)
    more = _one_more(tasks)
    hall = law.mean + more.mean / 2 + _hall(law, t_ppf(1 - alpha, freedom))
    return max(unseen, min(hall, _of_few_losses(law, more, alpha)))


def _law(values: FloatArray) -> _Law:
    """Of the mean of these values; without three of them, the third moment is not known and taken for 0."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return _Law(mean, 0.0, 0.0)
    centred = values - mean
    second = float(np.sum(centred**2)) / (count * (count - 1))
    third = float(np.sum(centred**3)) / (count * (count - 1) * (count - 2)) if count > 2 else 0.0
    return _Law(mean, second, third)


def _hall(law: _Law, quantile: float) -> float:
    """How far the upper limit lies above the mean.

    P. Hall, "On the removal of skewness by transformation", JRSS B 54, 1992, 221-228: with the mean's standard error s
    and skewness g, s·3/g (1 - (1 - g (t + g/6))^(1/3)). Student's reach where nothing is skewed.
    """
    error = math.sqrt(law.second)
    skewness = law.third / error**3 if error**3 > 0 else 0.0
    if abs(skewness) < _STRAIGHT:
        return error * quantile
    return error * 3 / skewness * (1 - float(np.cbrt(1 - skewness * (quantile + skewness / 6))))


def _one_more(tasks: Sequence[Units]) -> _Law:
    """What one lost unit more adds to the mean harm, in the task where that is most: its moments, about 0."""
    costs = [one.most / len(one.most) / len(tasks) for one in tasks]
    first, second, third = (max(float(np.mean(cost**power)) for cost in costs) for power in (1, 2, 3))
    return _Law(first, second, third)


def _of_few_losses(law: _Law, more: _Law, alpha: float) -> float:
    """The quantile of the gamma law, moved along, with the moments of what was seen and one lost unit more.

    The third moment counts twice: so it is for Poisson counts, whose exact limit is a quantile of Gamma(seen + 1), and
    there this is that limit.
    """
    error = math.sqrt(law.second + more.second)
    skewness = 2 * (law.third + more.third) / error**3 if error**3 > 0 else 0.0
    return law.mean + more.mean + error * _gamma_quantile(skewness, alpha)


def _gamma_quantile(skewness: float, alpha: float) -> float:
    """The upper quantile of a gamma law that is moved and scaled to mean 0 and variance 1 (Pearson's type III)."""
    if abs(skewness) < _STRAIGHT:
        return norm_ppf(1 - alpha)
    shape = 4 / skewness**2
    turned = skewness < 0
    reach = (gamma_ppf(alpha if turned else 1 - alpha, shape) - shape) / math.sqrt(shape)
    return -reach if turned else reach
