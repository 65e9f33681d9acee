"""Limits of a mean from few values, without a normal law: the means of their subsets."""

from __future__ import annotations

import math

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.limits import Limits, check_alpha

_EXACT_UP_TO = 16
"""All subsets are listed up to this many values, drawn above."""
_DRAWN = 65_535


def subset_mean_limits(values: FloatArray, alpha: float, generator: np.random.Generator) -> Limits | None:
    """One-sided limits of the centre of independent values that are symmetric about it.

    The 2**n - 1 means of the non-empty subsets split the line into 2**n stretches, each of which holds the centre with
    the same probability (Hartigan, JASA 64, 1969, "typical values"): inverting the sign-flip test gives just these. All
    subsets up to 16 values, 65,535 drawn from `generator` above. A limit is infinite where even the outermost mean is
    too near (at alpha 5 % below 5 values). None when there is no value or one is not finite.
    """
    check_alpha(alpha)
    if len(values) == 0 or not np.isfinite(values).all():
        return None
    means = np.sort(_all_means(values) if len(values) <= _EXACT_UP_TO else _drawn_means(values, generator))
    stretches = len(means) + 1
    outside = math.floor(alpha * stretches)  # as many stretches may lie beyond a limit
    if outside < 1:
        return Limits(-math.inf, math.inf)
    return Limits(float(means[outside - 1]), float(means[-outside]))


def _all_means(values: FloatArray) -> FloatArray:
    sums, sizes = np.zeros(1), np.zeros(1)
    for value in values:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    means: FloatArray = sums[1:] / sizes[1:]
    return means


def _drawn_means(values: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Subsets drawn with equal chance; the empty one, which hardly ever comes, is left out."""
    chosen = generator.integers(0, 2, size=(_DRAWN, len(values)), dtype=np.int8)
    sizes = chosen.sum(axis=1)
    means: FloatArray = (chosen @ values)[sizes > 0] / sizes[sizes > 0]
    return means
