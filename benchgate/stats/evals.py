"""What is left of the baseline's score: the candidate's over the baseline's, with limits of the ratio.

How much worse a candidate does the same items than its baseline: one place for every kind of score.

A task is its items' two scores, and which items are of one cluster. Harm is the mean of baseline - candidate, positive
= worse; several tasks count equally, whatever their sizes.

How much more a candidate disagrees with its baseline than the baseline disagrees with itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import BoolArray, FloatArray
from benchgate.stats.clusters import ClusterMean, PooledMean, Units, cluster_mean, cluster_sums, pooled, unseen_limit
from benchgate.stats.distributions import Limits, binom_sf, check_alpha, norm_ppf, norm_sf
from benchgate.stats.means import paired_t, sign_flip_p, sign_p, subset_mean_limits
from benchgate.stats.proportions import (
    Counts,
    clopper_pearson,
    mcnemar_harm_p,
    newcombe_difference,
    score_limits,
    score_statistic,
    stratified_difference,
    stratified_harm_p,
    stratified_limits,
    stratified_p_above,
    tango_limits,
    tango_p_margin,
)


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


_FEW_DIFFER = 10
"""Below this many differing items a t interval is not trusted alone."""
_FEW_ITEMS = 30
"""Below this many items (statistics of small samples) the law of the mean is not taken for normal."""


@dataclass(frozen=True, slots=True)
class ItemHarm:
    """Mean harm over items with one-sided limits, and the p-value of "harm is at most what was tested"."""

    estimate: float
    limits: Limits
    p_harm: float
    n: int
    method: str


def answers_harm(tasks: Sequence[ScorePairs], alpha: float, *, tested: float = 0.0) -> ItemHarm:
    """Of items that are right or wrong (1 or 0).

    Tango's score limits and exact McNemar; over tasks of different sizes what `strata` makes of them. Where items come
    in clusters also t over clusters, raised for those that may lose all they have (`unseen_limit`), and whichever
    claims less: limits that take the items of a cluster for independent are wrong far too often
    (tests/core/test_stats_item_harm.py). ValueError without items.
    """
    check_alpha(alpha)
    counts = [_counts(one) for one in tasks]
    if len({one.n for one in counts}) == 1:
        b, c, n = (sum(getattr(one, name) for one in counts) for name in ("b", "c", "n"))
        estimate, limits = (b - c) / n, tango_limits(b, c, n, alpha)
        p_harm = mcnemar_harm_p(b, c) if tested == 0 else 1 - tango_p_margin(b, c, n, tested)
        method = "Tango's score limits and exact McNemar, items paired by id"
    else:
        estimate = sum((one.b - one.c) / one.n for one in counts) / len(counts)
        limits = stratified_limits(counts, alpha)
        p_harm = stratified_harm_p(counts) if tested == 0 else stratified_p_above(counts, tested)
        method = "score limits and exact test over tasks with equal weight, items paired by id"
    n = sum(one.n for one in counts)
    found = ItemHarm(estimate, limits, p_harm, n, method)
    if all(one.clusters is None for one in tasks):
        return found
    over = _over_clusters(tasks, alpha, tested, f"{method}; t over clusters")
    limits = Limits(min(limits.lower, over.limits.lower), max(limits.upper, over.limits.upper))
    return ItemHarm(estimate, limits, max(p_harm, over.p_harm), n, over.method)


def scores_harm(task: ScorePairs, alpha: float, generator: np.random.Generator, *, tested: float = 0.0) -> ItemHarm:
    """Of items with a score of any scale: t over items, or over clusters where there are any.

    The upper limit is raised for those that may lose all they have (`unseen_limit`): down to 0, or to the lowest score
    of either arm where that is below. Below 30 items also the limits of subset means and the sign-flip test
    (`generator` draws their patterns), and where fewer than ten items differ the sign test, and for the lower limit
    Clopper-Pearson's of the share that gains, times the range of the scores: always whichever claims less. ValueError
    without two items, of two clusters.
    """
    check_alpha(alpha)
    gaps, named = task.baseline - task.candidate, "clusters" if task.clusters is not None else "items"
    found = _over_clusters([task], alpha, tested, f"t over {named}, scores paired by the item's id")
    if len(gaps) < _FEW_ITEMS:
        found = _with_permutations(found, gaps, alpha, tested, generator)
    if np.count_nonzero(gaps) < _FEW_DIFFER:
        found = _with_few(found, gaps, float(np.ptp(np.concatenate([task.baseline, task.candidate, [0.0]]))), alpha)
    return found


def _counts(one: ScorePairs) -> Counts:
    right, ours = one.baseline == 1, one.candidate == 1
    return Counts(int(np.sum(right & ~ours)), int(np.sum(ours & ~right)), len(right))


def _cluster_pool(tasks: Sequence[ScorePairs]) -> PooledMean:
    means: list[ClusterMean] = []
    for one in tasks:
        mean = cluster_mean(one.baseline - one.candidate, one.clusters)
        if mean is None:
            raise ValueError("a task needs at least two items, of two clusters, with finite scores")
        means.append(mean)
    return pooled(means)


def _over_clusters(tasks: Sequence[ScorePairs], alpha: float, tested: float, method: str) -> ItemHarm:
    """Student's t over clusters, where there are none over items, with the upper limit raised for losses not seen."""
    pool = _cluster_pool(tasks)
    limits = pool.limits(alpha)
    upper = max(limits.upper, unseen_limit([_units(one) for one in tasks], pool.freedom, alpha))
    n = sum(len(one.baseline) for one in tasks)
    return ItemHarm(pool.mean, Limits(limits.lower, upper), pool.p_above(tested), n, method)


def _units(one: ScorePairs) -> Units:
    """What each cluster (item, where there are none) lost, and what there was to lose above 0 or the lowest score."""
    gaps = one.baseline - one.candidate
    mean, lowest = float(np.mean(gaps)), min(0.0, float(np.min(one.baseline)), float(np.min(one.candidate)))
    lost, most = (cluster_sums(values, one.clusters) for values in (gaps - mean, one.baseline - lowest))
    mean_size = len(gaps) / len(lost)
    return Units(mean + lost / mean_size, most / mean_size)


def _with_permutations(
    found: ItemHarm, gaps: FloatArray, alpha: float, tested: float, generator: np.random.Generator
) -> ItemHarm:
    subsets = subset_mean_limits(gaps, alpha, generator)
    flipped = sign_flip_p(gaps - tested, generator=generator)
    assert subsets is not None and flipped is not None, "t over the same items found them finite"
    limits = Limits(min(found.limits.lower, subsets.lower), max(found.limits.upper, subsets.upper))
    return ItemHarm(found.estimate, limits, max(found.p_harm, flipped), found.n, f"{found.method}; sign flips")


def _with_few(found: ItemHarm, gaps: FloatArray, span: float, alpha: float) -> ItemHarm:
    """How little harm a handful of differing items, or none, shows: as many may gain unseen as exact limits allow.

    Each is taken to gain the whole span of the scores.
    """
    gain = span * clopper_pearson(int(np.count_nonzero(gaps < 0)), len(gaps), alpha).upper
    limits = Limits(min(found.limits.lower, -gain), found.limits.upper)
    p_sign = sign_p(gaps)
    assert p_sign is not None, "t over the same items found them finite"
    return ItemHarm(found.estimate, limits, max(found.p_harm, p_sign), found.n, found.method)


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
