"""Means of differences: over paired blocks (t, sign-flip, sign) and between two independent groups (Welch).

Differences are on a scale where positive is harm, like ln(candidate/baseline) of a latency. One value per block:
requests inside a block are not independent, blocks are.

A difference of two runs that nothing ties together: what each may be off by itself, and what lies between runs.

Limits of a mean from few values, without a normal law: the means of their subsets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import Limits, binom_sf, check_alpha, t_ppf, t_sf

_EXACT_UP_TO = 20
"""Sign flips are counted up to this many differences (every pattern of one half with every one of the other)."""
_SAMPLED_FLIPS = 9_999
_ROUNDING = 1e-12
"""A spread of log ratios or shares below this is floating point's, not the deployments'."""


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean difference, its one-sided limits, and the p-value of "the mean is at most the margin".

    `n` is the number of differences; of two independent groups it is the size of the smaller one.
    """

    mean: float
    sd: float
    limits: Limits
    p_harm: float
    n: int


def paired_t(differences: FloatArray, alpha: float, *, margin: float = 0.0) -> Paired | None:
    """Student's one-sample t: mean ∓ t(1-alpha, n-1)·sd/√n; p_harm of H0 "mean <= margin".

    None below two differences, or when one is not finite (a failed block has no ratio; see `sign_p`).
    Without any spread t is undefined. The limits are then the mean itself, and p_harm is 1 at or below the margin and
    2**-n above it, the least a sign-flip test can give. Clock readings never agree like that; shares can (two arms
    without a miss), and their limits must then be widened by what the requests alone allow (`newcombe_difference`).
    """
    check_alpha(alpha)
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return None
    if np.ptp(values) <= _ROUNDING:
        mean = float(values[0])
        return Paired(mean, 0.0, Limits(mean, mean), 2.0**-n if mean > margin else 1.0, n)
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    limits, p_harm = _student(mean, sd / math.sqrt(n), n - 1, alpha, margin)
    return Paired(mean, sd, limits, p_harm, n)


def two_sample_t(a: FloatArray, b: FloatArray, alpha: float, *, margin: float = 0.0) -> Paired | None:
    """Welch's t for mean(b) - mean(a), unequal variances, Welch-Satterthwaite degrees of freedom.

    For two groups that were not interleaved. `sd` is √(var(a) + var(b)), that of one difference. None when a group has
    fewer than two values or one is not finite. Without spread in both: limits are the difference itself and p_harm is
    1 at or below the margin and 1/C(n_a+n_b, n_a) above it, the least a permutation test can give.
    """
    check_alpha(alpha)
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n = min(len(first), len(second))
    if n < 2 or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    mean = float(np.mean(second) - np.mean(first))
    if max(np.ptp(first), np.ptp(second)) <= _ROUNDING:
        least = 1 / math.comb(len(first) + len(second), len(first))
        return Paired(mean, 0.0, Limits(mean, mean), least if mean > margin else 1.0, n)
    variances = float(np.var(first, ddof=1)), float(np.var(second, ddof=1))
    parts = variances[0] / len(first), variances[1] / len(second)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    limits, p_harm = _student(mean, math.sqrt(sum(parts)), freedom, alpha, margin)
    return Paired(mean, math.sqrt(sum(variances)), limits, p_harm, n)


def sign_flip_p(differences: FloatArray, *, generator: np.random.Generator | None = None) -> float | None:
    """One-sided sign-flip permutation p of the mean: the share of the 2**n sign patterns with a sum as large or larger.

    Exact up to 20 differences; above, (1 + hits) / (1 + 9,999) over patterns drawn from `generator`, which is then
    required (ValueError without it). At best 2**-n, so it cannot reach 5 % below five differences. Needs no normal
    law, only differences symmetric about 0 under H0. None when empty or not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) == 0 or not np.isfinite(values).all():
        return None
    # Sums of the same numbers in another order differ by rounding; without slack a tie would count as smaller.
    at_least = float(values.sum()) - 1e-12 * float(np.abs(values).sum())
    if len(values) <= _EXACT_UP_TO:
        half = len(values) // 2
        first, second = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
        below = np.searchsorted(second, at_least - first, side="left")
        return 1.0 - float(below.sum()) / float(2 ** len(values))
    if generator is None:
        raise ValueError(f"{len(values)} differences have too many sign patterns to list; pass a seeded generator")
    signs = generator.integers(0, 2, size=(_SAMPLED_FLIPS, len(values)), dtype=np.int8) * 2 - 1
    return float((1 + np.count_nonzero(signs @ values >= at_least)) / (1 + _SAMPLED_FLIPS))


def _signed_sums(values: FloatArray) -> FloatArray:
    """The sums of the values under every pattern of signs."""
    sums = np.zeros(1)
    for value in np.abs(values):
        sums = np.concatenate([sums + value, sums - value])
    return sums


def sign_p(differences: FloatArray) -> float | None:
    """One-sided exact sign test p: P(X >= number above 0), X ~ Bin(number not 0, 1/2).

    Infinite differences keep their sign, so latencies that failures made infinite still count. None when there is no
    difference at all or one is NaN; 1 when all are 0.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) == 0 or np.isnan(values).any():
        return None
    above, below = int(np.count_nonzero(values > 0)), int(np.count_nonzero(values < 0))
    return binom_sf(above - 1, above + below, 0.5)


def _student(mean: float, error: float, freedom: float, alpha: float, margin: float) -> tuple[Limits, float]:
    """t limits of a mean with the given standard error, and the upper-tail p of "at most the margin"."""
    reach = t_ppf(1 - alpha, freedom) * error
    return Limits(mean - reach, mean + reach), t_sf((mean - margin) / error, freedom)


"""A standard error of log ratios or shares below this is floating point's, not the deployments'."""


@dataclass(frozen=True, slots=True)
class Part:
    """One independent part of a variance, and the degrees of freedom that it was estimated with."""

    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Combined:
    """An estimate with its standard error, one-sided limits, and the p-value of "it is at most the margin"."""

    estimate: float
    error: float
    freedom: float
    limits: Limits
    p_harm: float


def combined_t(estimate: float, parts: Sequence[Part], alpha: float, *, margin: float = 0.0) -> Combined | None:
    """t limits of an estimate whose variance is a sum of independent parts.

    SE² = Σ vᵢ, with (Σ vᵢ)² / Σ(vᵢ²/fᵢ) degrees of freedom (Satterthwaite 1946; Welch 1947). None without any variance:
    then there is nothing to tell noise from harm by. ValueError for a part without degrees of freedom.
    """
    check_alpha(alpha)
    if any(part.freedom < 1 for part in parts):
        raise ValueError("a part of a variance has no degrees of freedom; expected one at least")
    total = sum(part.variance for part in parts)
    error = math.sqrt(total)
    if not (math.isfinite(estimate) and _ROUNDING < error < math.inf):
        return None
    freedom = total**2 / sum(part.variance**2 / part.freedom for part in parts)
    reach = t_ppf(1 - alpha, freedom) * error
    limits = Limits(estimate - reach, estimate + reach)
    return Combined(estimate, error, freedom, limits, t_sf((estimate - margin) / error, freedom))


_ALL_SUBSETS_UP_TO = 16
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
    means = np.sort(_all_means(values) if len(values) <= _ALL_SUBSETS_UP_TO else _drawn_means(values, generator))
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
