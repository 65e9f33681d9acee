"""How much more a candidate disagrees with its baseline than the baseline disagrees with itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import BoolArray, FloatArray
from benchgate.stats.clusters import cluster_mean, pooled
from benchgate.stats.distributions import binom_sf, norm_sf
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t, sign_p
from benchgate.stats.proportions import clopper_pearson, newcombe_difference, score_limits, score_statistic
from benchgate.stats.strata import (
    Counts,
    stratified_difference,
    stratified_harm_p,
    stratified_limits,
    stratified_p_above,
)

_SELF_WEIGHT = 0.5
"""What a prompt takes off the excess when the baseline differs from itself and the candidate sides with one answer."""
_LEAST_P = 1e-12
_FEW = 10
"""Below this many differing prompts a t interval is not trusted alone."""
WIDEST = 1.5
"""The largest difference of two excesses of one prompt: +1 in one run, -1/2 in the other."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Excess disagreement over n prompts (a share), its one-sided limits, and the p-value of "at most the margin"."""

    estimate: float
    limits: Limits
    p_harm: float
    n: int


def excess_disagreement(x: FloatArray, y: FloatArray, alpha: float, *, margin: float = 0.0) -> Excess | None:
    """Mean of x - y over independent prompts, each answered by the baseline twice (P, S) and the candidate once (C).

    x = ½(1[C≠P] + 1[C≠S]), y = 1[P≠S] per prompt. Then x - y is one of three values: +1 (P = S, C differs), -½ (P ≠ S,
    C sides with one), 0. So the limits are Tango's score limits with weight ½ (`score_statistic`), and p_harm of
    H0 "excess <= 0" is exact: given m prompts that are not 0, the +1 are at most Bin(m, ⅓) under H0. For a margin above
    0 it is 1 - Φ(T).

    t limits are too narrow where few prompts differ (no spread at all when none does): at 100 prompts, a margin of
    5 points and 1 % self-disagreement they accept a candidate at the margin 9.5 % of the time where 5 % is promised,
    the score limits 4.3 % (40,000 simulations). One or two differing prompts never show harm at alpha 5 %.

    None without prompts. ValueError when x and y differ in length or x - y takes any other value: the equality of three
    answers cannot give one, so the answers were not those of one prompt.
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"x has {first.size} prompts and y {second.size}; expected the same prompts in both")
    gap, n = first - second, len(first)
    more, fewer = int(np.count_nonzero(gap == 1)), int(np.count_nonzero(gap == -_SELF_WEIGHT))
    if more + fewer + int(np.count_nonzero(gap == 0)) != n:
        raise ValueError("x - y must be 1, -½ or 0 for every prompt; expected x and y of the same three answers")
    if n == 0:
        return None
    limits = score_limits(more, fewer, n, alpha, weight=_SELF_WEIGHT)
    if margin == 0:
        p_harm = binom_sf(more - 1, more + fewer, _SELF_WEIGHT / (1 + _SELF_WEIGHT))
    else:
        p_harm = norm_sf(score_statistic(more, fewer, n, margin, weight=_SELF_WEIGHT))
    return Excess((more - _SELF_WEIGHT * fewer) / n, limits, p_harm, n)


def excess_of_tasks(
    tasks: Sequence[tuple[FloatArray, FloatArray, Sequence[str] | None]], alpha: float, *, margin: float = 0.0
) -> Excess | None:
    """The mean over tasks of `excess_disagreement`, each task (x, y, clusters) with equal weight.

    Tasks of one size are one sample; of different sizes, their limits combined and an exact test over all. Where
    prompts come in clusters also t over clusters, and whichever claims less. None without prompts or where a clustered
    task has no two clusters. ValueError as there.
    """
    parts = [excess_disagreement(x, y, alpha, margin=margin) for x, y, _ in tasks]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if len({part.n for part in known}) == 1:
        x, y = (np.concatenate([task[i] for task in tasks]) for i in (0, 1))
        found = excess_disagreement(x, y, alpha, margin=margin)
    else:
        found = _stratified([task[0] - task[1] for task in tasks], alpha, margin)
    if found is None or all(clusters is None for _, _, clusters in tasks):
        return found
    means = [cluster_mean(x - y, clusters) for x, y, clusters in tasks]
    if any(mean is None for mean in means):
        return None
    pool = pooled([mean for mean in means if mean is not None])
    limits = pool.limits(alpha)
    widest = Limits(min(found.limits.lower, limits.lower), max(found.limits.upper, limits.upper))
    return Excess(found.estimate, widest, max(found.p_harm, pool.p_above(margin)), found.n)


def _stratified(gaps: Sequence[FloatArray], alpha: float, margin: float) -> Excess:
    counts = [
        Counts(int(np.count_nonzero(gap == 1)), int(np.count_nonzero(gap == -_SELF_WEIGHT)), len(gap)) for gap in gaps
    ]
    return Excess(
        estimate=stratified_difference(counts, weight=_SELF_WEIGHT),
        limits=stratified_limits(counts, alpha, weight=_SELF_WEIGHT),
        p_harm=stratified_harm_p(counts, weight=_SELF_WEIGHT)
        if margin == 0
        else stratified_p_above(counts, margin, weight=_SELF_WEIGHT),
        n=sum(one.n for one in counts),
    )


def excess_sampled(differs: BoolArray, itself: BoolArray, alpha: float, *, margin: float = 0.0) -> Excess | None:
    """The same where the baseline was asked twice on a part of the prompts only: mean(differs) - mean(itself).

    `differs` is 1[C≠P] of every prompt, `itself` 1[P≠S] of those of the part. The limits are Newcombe's (1998, method
    10): each share's distance to its Wilson limit, combined as a root sum of squares. It adds variances as if the two
    shares were of other prompts; they have prompts in common and agree there, so the limits are on the wide side.
    p_harm is the error rate at which the lower limit just reaches the margin. None where either has no prompts.
    """
    n, m = len(differs), len(itself)
    if n == 0 or m == 0:
        return None
    more, own = int(np.count_nonzero(differs)), int(np.count_nonzero(itself))
    limits = newcombe_difference(more, n, own, m, alpha)
    return Excess(more / n - own / m, limits, _newcombe_p(more, n, own, m, margin), n)


def _newcombe_p(more: int, n: int, own: int, m: int, margin: float) -> float:
    """By bisection: a limit moves away from the estimate as alpha falls."""
    if more / n - own / m <= margin:
        return 1.0
    low, high = _LEAST_P, 0.5
    for _ in range(60):
        middle = math.sqrt(low * high)
        if newcombe_difference(more, n, own, m, middle).lower > margin:
            high = middle
        else:
            low = middle
    return high


def excess_change_of_tasks(
    tasks: Sequence[tuple[FloatArray, FloatArray, Sequence[str] | None]], alpha: float, *, margin: float = 0.0
) -> Excess | None:
    """The mean over tasks of `excess_change`, each task (judged, reference, clusters) with equal weight.

    Each task's distance to its own limit, combined as a root sum of squares (Zou and Donner 2008), and t over the mean
    of all, also over clusters where there are any: whichever claims less. None where a task has no two prompts, of two
    clusters, or there is no task.
    """
    parts = [excess_change(judged, reference, alpha, margin=margin) for judged, reference, _ in tasks]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if len(tasks) == 1 and tasks[0][2] is None:
        return known[0]
    estimate = sum(part.estimate for part in known) / len(known)
    below = math.sqrt(sum((part.estimate - part.limits.lower) ** 2 for part in known)) / len(known)
    above = math.sqrt(sum((part.limits.upper - part.estimate) ** 2 for part in known)) / len(known)
    gaps = [judged - reference for judged, reference, _ in tasks]
    lower, upper, p_harm = estimate - below, estimate + above, 0.0
    if sum(int(np.count_nonzero(gap)) for gap in gaps) < _FEW:
        p_harm = sign_p(np.concatenate(gaps)) or 1.0
    for grouped in (False, True):
        means = [cluster_mean(gap, task[2] if grouped else None) for gap, task in zip(gaps, tasks, strict=True)]
        if any(mean is None for mean in means):
            return None
        pool = pooled([mean for mean in means if mean is not None])
        limits = pool.limits(alpha)
        lower, upper = min(lower, limits.lower), max(upper, limits.upper)
        p_harm = max(p_harm, pool.p_above(margin))
    return Excess(estimate, Limits(lower, upper), p_harm, sum(part.n for part in known))


def excess_change(
    judged: FloatArray, reference: FloatArray, alpha: float, *, margin: float = 0.0, widest: float = WIDEST
) -> Excess | None:
    """Mean of judged - reference: what one run's candidate adds to another's, prompt by prompt.

    Both are the x - y of `excess_disagreement`, over the same prompts in the same order. t limits and p; below ten
    differing prompts also Clopper-Pearson limits on the share that differs, times the `widest` difference that one
    prompt can make, and the sign test, whichever claims less. None below two prompts or when a value is not finite.
    """
    gap = np.asarray(judged, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    test, sign = paired_t(gap, alpha, margin=margin), sign_p(gap)
    if test is None or sign is None:
        return None
    limits, p_harm, n = test.limits, test.p_harm, len(gap)
    above, below = int(np.count_nonzero(gap > 0)), int(np.count_nonzero(gap < 0))
    if above + below < _FEW:
        upper = widest * clopper_pearson(above, n, alpha).upper
        lower = -widest * clopper_pearson(below, n, alpha).upper
        limits, p_harm = Limits(min(limits.lower, lower), max(limits.upper, upper)), max(p_harm, sign)
    return Excess(test.mean, limits, p_harm, n)
