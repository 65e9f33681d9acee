"""Shares and their differences: one share, two independent ones, and two of the same items (paired).

Counts that cannot be (no trials, more hits than trials) raise ValueError: the caller made them.
Paired counts: `b` items the baseline got right and the candidate wrong, `c` the reverse, `n` items in all.

Tasks of different sizes as one: the mean of their paired differences, each task with equal weight.

Counts as in `proportions`: in n independent differences `b` are +1, `c` are -weight, the rest 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import (
    Limits,
    beta_ppf,
    binom_pmf,
    binom_sf,
    check_alpha,
    norm_cdf,
    norm_ppf,
    norm_sf,
)

_EDGE = 1e-12
"""How near a share difference may come to -1 and 1, where the score statistic loses its variance."""


def clopper_pearson(k: int, n: int, alpha: float) -> Limits:
    """Exact limits of a share, from the beta quantiles (Clopper and Pearson 1934). Never too narrow.

    0 hits of n: upper limit 1 - alpha**(1/n), so 299 clean trials show less than 1 % at alpha 5 %.
    """
    _check_count(k, n)
    check_alpha(alpha)
    return Limits(
        lower=beta_ppf(alpha, k, n - k + 1) if k > 0 else 0.0,
        upper=beta_ppf(1 - alpha, k + 1, n - k) if k < n else 1.0,
    )


def wilson(k: int, n: int, alpha: float) -> Limits:
    """Score limits of a share (Wilson 1927): (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    _check_count(k, n)
    check_alpha(alpha)
    z = norm_ppf(1 - alpha)
    share = k / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Limits(
        lower=(centre - half) / scale if k > 0 else 0.0,
        upper=(centre + half) / scale if k < n else 1.0,
    )


def newcombe_difference(k_candidate: int, n_candidate: int, k_baseline: int, n_baseline: int, alpha: float) -> Limits:
    """Limits of share(candidate) - share(baseline), independent samples (Newcombe 1998 part II, method 10).

    Each side's distance to its Wilson limit, combined as a root sum of squares.
    Positive is harm when the hits are failures.
    """
    candidate, baseline = wilson(k_candidate, n_candidate, alpha), wilson(k_baseline, n_baseline, alpha)
    p_candidate, p_baseline = k_candidate / n_candidate, k_baseline / n_baseline
    difference = p_candidate - p_baseline
    return Limits(
        lower=difference - math.hypot(p_candidate - candidate.lower, baseline.upper - p_baseline),
        upper=difference + math.hypot(candidate.upper - p_candidate, p_baseline - baseline.lower),
    )


def relative_errors_p(k_candidate: int, n_candidate: int, k_baseline: int, n_baseline: int) -> float:
    """Exact one-sided p of "the candidate fails no more often": given k failures in all, Bin(k, n_c/(n_c+n_b)).

    The conditional test of two Poisson rates (Przyborowski and Wilenski 1940); conservative for large shares.
    1 when nothing failed.
    """
    _check_count(k_candidate, n_candidate)
    _check_count(k_baseline, n_baseline)
    share = n_candidate / (n_candidate + n_baseline)
    return binom_sf(k_candidate - 1, k_candidate + k_baseline, share)


def mcnemar_harm_p(b: int, c: int) -> float:
    """Exact one-sided McNemar p of "no harm": P(X >= b), X ~ Bin(b+c, 1/2). 1 when no item differs."""
    if b < 0 or c < 0:
        raise ValueError(f"b={b}, c={c}; expected counts of at least 0")
    return binom_sf(b - 1, b + c, 0.5)


def tango_limits(b: int, c: int, n: int, alpha: float) -> Limits:
    """Score limits of the paired difference (b-c)/n (Tango 1998): where the score statistic crosses ∓z.

    Unlike Wald's, they keep their size for few discordant items and do not shrink to a point for none.
    """
    _check_pairs(b, c, n)
    return score_limits(b, c, n, alpha, weight=1.0)


def tango_p_margin(b: int, c: int, n: int, margin: float) -> float:
    """Non-inferiority p: Φ(T), H0 "harm (b-c)/n is the margin or more" (Tango 1998). Small = shown to be within.

    `tango_limits(b, c, n, alpha).upper < margin` exactly when this is below alpha. Margin in (-1, 1), exclusive.
    """
    _check_pairs(b, c, n)
    return norm_cdf(score_statistic(b, c, n, margin, weight=1.0))


def score_statistic(b: int, c: int, n: int, delta: float, *, weight: float) -> float:
    """Score statistic of H0: E[d] = delta, for n independent d in {+1, -weight, 0} seen b, c and n-b-c times.

    T = (b - h·c - n·delta) / √(n (h(1+h)w + delta(1-delta))), h the weight and w the most likely P(d = -h) under H0,
    the larger root of h(1+h)n·w² - (h(b+c)(1-delta) - (1+h)·delta·(n-b))·w - c·delta·(1-delta) = 0.
    With h = 1 this is Tango's (Statistics in Medicine 17, 1998, p. 891); other weights follow by the same derivation.
    """
    if not -weight < delta < 1:
        raise ValueError(f"a mean difference of {delta!r} cannot be tested; expected above {-weight} and below 1")
    square = weight * (1 + weight) * n
    linear = (1 + weight) * delta * (n - b) - weight * (b + c) * (1 - delta)
    constant = -c * delta * (1 - delta)
    root = math.sqrt(max(linear * linear - 4 * square * constant, 0.0))
    share_minus = (root - linear) / (2 * square)
    variance = weight * (1 + weight) * share_minus + delta * (1 - delta)
    excess = b - weight * c - n * delta
    if variance <= 0:  # only by rounding, at the very edge: the data decide the sign
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(n * variance)


def score_limits(b: int, c: int, n: int, alpha: float, *, weight: float) -> Limits:
    """One-sided limits of E[d] by inverting `score_statistic`; the end of the possible range where it never crosses."""
    from scipy.optimize import brentq  # takes as long to load as all else that a verdict on load alone needs

    check_alpha(alpha)
    z = norm_ppf(1 - alpha)
    lowest, highest = -weight, 1.0

    def crossing(target: float) -> Callable[[float], float]:
        return lambda delta: score_statistic(b, c, n, delta, weight=weight) - target

    def solve(target: float) -> float:
        # The statistic falls as delta grows, from +∞ (unless every d is -h) to -∞ (unless every d is +1).
        gap, start, stop = crossing(target), lowest + _EDGE, highest - _EDGE
        if gap(start) <= 0:
            return lowest
        if gap(stop) >= 0:
            return highest
        return float(brentq(gap, start, stop, xtol=1e-13))

    return Limits(lower=solve(z), upper=solve(-z))


def _check_count(k: int, n: int) -> None:
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is not a share; expected at least one trial and 0 <= k <= n")


def _check_pairs(b: int, c: int, n: int) -> None:
    if n < 1 or b < 0 or c < 0 or b + c > n:
        raise ValueError(f"b={b}, c={c} of n={n} pairs cannot be; expected n >= 1, b, c >= 0 and b + c <= n")


_BINS = 4096
"""Into which the sums of a permutation test are rounded, upwards: its p-value is never too small."""
_LARGEST_Z = 8.0


@dataclass(frozen=True, slots=True)
class Counts:
    """One task's paired items. ValueError for counts that cannot be."""

    b: int
    c: int
    n: int

    def __post_init__(self) -> None:
        if self.n < 1 or self.b < 0 or self.c < 0 or self.b + self.c > self.n:
            raise ValueError(f"b={self.b}, c={self.c} of n={self.n} pairs cannot be; expected b, c >= 0, b + c <= n")

    def difference(self, weight: float) -> float:
        """The mean difference."""
        return (self.b - weight * self.c) / self.n


def stratified_difference(tasks: Sequence[Counts], *, weight: float = 1.0) -> float:
    """The mean over tasks of their mean differences."""
    return sum(one.difference(weight) for one in tasks) / len(tasks)


def stratified_limits(tasks: Sequence[Counts], alpha: float, *, weight: float = 1.0) -> Limits:
    """One-sided limits: each task's distance to its own score limit, combined as a root sum of squares.

    The method of variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008, p. 1693). One score
    statistic over all tasks, with a variance under one common difference (Miettinen and Nurminen 1985), errs 9 % of the
    time at a promised 5 % where one small task carries all of the harm; this one 2 to 5 % (3,000 simulations each).
    """
    check_alpha(alpha)
    centre = stratified_difference(tasks, weight=weight)
    limits = [(one.difference(weight), score_limits(one.b, one.c, one.n, alpha, weight=weight)) for one in tasks]
    return Limits(
        lower=centre - math.hypot(*(own - limit.lower for own, limit in limits)) / len(tasks),
        upper=centre + math.hypot(*(limit.upper - own for own, limit in limits)) / len(tasks),
    )


def stratified_p_above(tasks: Sequence[Counts], margin: float, *, weight: float = 1.0) -> float:
    """p-value of "the mean difference is at most the margin": the alpha at which the lower limit is the margin.

    1 where the mean itself is not above it; never below that of 8 standard errors.
    """
    from scipy.optimize import brentq

    if stratified_difference(tasks, weight=weight) <= margin:
        return 1.0

    def room(z: float) -> float:
        return stratified_limits(tasks, norm_sf(z), weight=weight).lower - margin

    start = -norm_ppf(0.499)
    if room(start) <= 0:
        return 0.5
    return norm_sf(_LARGEST_Z if room(_LARGEST_Z) >= 0 else float(brentq(room, start, _LARGEST_Z, xtol=1e-6)))


def stratified_harm_p(tasks: Sequence[Counts], *, weight: float = 1.0) -> float:
    """One-sided p of "no harm", given how many items differ in each task: exact, but for rounding upwards.

    Where nothing harms, each differing item is a loss with probability weight/(1 + weight), so the mean difference is a
    sum of independent binomials; of one task with weight 1 this is McNemar's exact test. 1 when no item differs.
    """
    differing = [one for one in tasks if one.b + one.c > 0]
    if not differing:
        return 1.0
    span = sum((1 + weight) * (one.b + one.c) / one.n for one in differing)
    width = span / _BINS
    sums = np.ones(1)
    for one in differing:
        sums = np.convolve(sums, _rounded_up(one, width, weight))
    reached = sum((1 + weight) * one.b / one.n for one in differing)  # above the least that could have been
    return float(min(1.0, sums[math.floor(reached / width * (1 - 1e-12)) :].sum()))


def _rounded_up(one: Counts, width: float, weight: float) -> FloatArray:
    """The law of one task's part of the sum, above its least, in bins."""
    losses = np.arange(one.b + one.c + 1)
    bins = np.ceil((1 + weight) * losses / one.n / width * (1 - 1e-12)).astype(np.int64)
    law = binom_pmf(losses, one.b + one.c, weight / (1 + weight))
    binned: FloatArray = np.bincount(bins, weights=law).astype(np.float64)
    return binned
