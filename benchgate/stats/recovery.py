"""What is left of the baseline's score: the candidate's over the baseline's, with limits of the ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean
from benchgate.stats.distributions import norm_ppf
from benchgate.stats.limits import Limits, check_alpha


@dataclass(frozen=True, slots=True)
class Recovery:
    """The ratio (1 = all of it) and its one-sided limits; None for those that the baseline's own spread leaves open."""

    ratio: float
    limits: Limits | None


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """One task's items: both arms' scores, and which items are of one cluster where any are."""

    baseline: FloatArray
    candidate: FloatArray
    clusters: tuple[str, ...] | None = None


def recovery(tasks: Sequence[ScorePairs], alpha: float, *, harm: Limits | None = None) -> Recovery | None:
    """Mean score of the candidate over that of the baseline, each task with equal weight, items paired.

    Limits by Fieller (Journal of the Royal Statistical Society B 16, 1954): all ratios R that a test of
    "mean(candidate - R·baseline) = 0" does not reject, with cluster-robust variances. `harm` are limits of baseline -
    candidate: the ratio's are then never narrower than what those say beside the baseline's mean, for where no item
    differs Fieller's have no width. None without items or where the baseline's mean is not above 0.
    """
    check_alpha(alpha)
    if not tasks or any(len(one.baseline) == 0 for one in tasks):
        return None
    theirs = sum(float(np.mean(one.baseline)) for one in tasks) / len(tasks)
    ours = sum(float(np.mean(one.candidate)) for one in tasks) / len(tasks)
    if not theirs > 0:
        return None
    limits = _fieller(tasks, theirs, ours, norm_ppf(1 - alpha))
    if limits is not None and harm is not None:
        limits = Limits(min(limits.lower, 1 - harm.upper / theirs), max(limits.upper, 1 - harm.lower / theirs))
    return Recovery(ours / theirs, limits)


def _fieller(tasks: Sequence[ScorePairs], theirs: float, ours: float, z: float) -> Limits | None:
    """The roots of (ours - R·theirs)² = z²·var(ours - R·theirs); None where the test rejects no or every far R."""
    parts = [_variances(one) for one in tasks]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    var_theirs, var_ours, covariance = (sum(part[i] for part in known) / len(tasks) ** 2 for i in range(3))
    square = theirs**2 - z**2 * var_theirs
    if square <= 0:
        return None
    middle = ours * theirs - z**2 * covariance
    root = math.sqrt(max(middle**2 - square * (ours**2 - z**2 * var_ours), 0.0))
    return Limits((middle - root) / square, (middle + root) / square)


def _variances(one: ScorePairs) -> tuple[float, float, float] | None:
    """Of the baseline's mean, the candidate's, and their covariance, from the variance of their sum."""
    means = [
        cluster_mean(values, one.clusters) for values in (one.baseline, one.candidate, one.baseline + one.candidate)
    ]
    if any(mean is None for mean in means):
        return None
    theirs, ours, both = (mean.error**2 for mean in means if mean is not None)
    return theirs, ours, (both - theirs - ours) / 2
