"""The upper limit of a mean whose values have a long tail above, seen or not yet: Student's is too low there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_sums
from benchgate.stats.distributions import gamma_ppf, norm_ppf, t_ppf
from benchgate.stats.limits import check_alpha
from benchgate.stats.proportions import clopper_pearson

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
