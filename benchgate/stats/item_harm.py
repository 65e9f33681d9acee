"""How much worse a candidate does the same items than its baseline: one place for every kind of score.

A task is its items' two scores, and which items are of one cluster. Harm is the mean of baseline - candidate, positive
= worse; several tasks count equally, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import ClusterMean, PooledMean, cluster_mean, cluster_sums, pooled
from benchgate.stats.limits import Limits, check_alpha
from benchgate.stats.paired import sign_flip_p, sign_p
from benchgate.stats.proportions import clopper_pearson, mcnemar_harm_p, tango_limits, tango_p_margin
from benchgate.stats.recovery import ScorePairs
from benchgate.stats.skewed import Units, unseen_limit
from benchgate.stats.strata import Counts, stratified_harm_p, stratified_limits, stratified_p_above
from benchgate.stats.subsets import subset_mean_limits

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
