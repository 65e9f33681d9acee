"""Means of differences: over paired blocks (t, sign-flip, sign) and between two independent groups (Welch).

Differences are on a scale where positive is harm, like ln(candidate/baseline) of a latency. One value per block:
requests inside a block are not independent, blocks are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import binom_sf, t_ppf, t_sf
from benchgate.stats.limits import Limits, check_alpha

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
