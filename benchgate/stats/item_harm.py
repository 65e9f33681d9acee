"""How much worse a candidate does the same items than its baseline: one place for every kind of score.

A task is its items' two scores, and which items are of one cluster. Harm is the mean of baseline - candidate, positive
= worse; several tasks count equally, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import ClusterMean, PooledMean, cluster_mean, pooled
from benchgate.stats.limits import Limits, check_alpha
from benchgate.stats.paired import sign_flip_p, sign_p
from benchgate.stats.proportions import clopper_pearson, mcnemar_harm_p, tango_limits, tango_p_margin
from benchgate.stats.recovery import ScorePairs
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
    in clusters also t over clusters, and whichever claims less: limits that take the items of a cluster for independent
    are wrong far too often (tests/core/test_stats_item_harm.py). ValueError without items.
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
    return _widened(found, _cluster_pool(tasks), alpha, tested, f"{method}; t over clusters")


def scores_harm(task: ScorePairs, alpha: float, generator: np.random.Generator, *, tested: float = 0.0) -> ItemHarm:
    """Of items with a score of any scale: t over items, or over clusters where there are any.

    Below 30 items also the limits of subset means and the sign-flip test (`generator` draws their patterns), and where
    fewer than ten items differ Clopper-Pearson limits of the share that differs, times the widest step seen, and the
    sign test: always whichever claims less. ValueError without two items, of two clusters.
    """
    check_alpha(alpha)
    pool, gaps = _cluster_pool([task]), task.baseline - task.candidate
    method = "t over clusters" if task.clusters is not None else "t over items"
    method = f"{method}, scores paired by the item's id"
    found = ItemHarm(pool.mean, pool.limits(alpha), pool.p_above(tested), len(gaps), method)
    if len(gaps) < _FEW_ITEMS:
        found = _with_permutations(found, gaps, alpha, tested, generator)
    if np.count_nonzero(gaps) < _FEW_DIFFER:
        found = _with_few(found, gaps, float(np.ptp(np.concatenate([task.baseline, task.candidate]))), alpha)
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


def _widened(found: ItemHarm, pool: PooledMean, alpha: float, tested: float, method: str) -> ItemHarm:
    limits = pool.limits(alpha)
    widest = Limits(min(found.limits.lower, limits.lower), max(found.limits.upper, limits.upper))
    return ItemHarm(found.estimate, widest, max(found.p_harm, pool.p_above(tested)), found.n, method)


def _with_permutations(
    found: ItemHarm, gaps: FloatArray, alpha: float, tested: float, generator: np.random.Generator
) -> ItemHarm:
    subsets = subset_mean_limits(gaps, alpha, generator)
    flipped = sign_flip_p(gaps - tested, generator=generator)
    if subsets is None or flipped is None:
        return found
    limits = Limits(min(found.limits.lower, subsets.lower), max(found.limits.upper, subsets.upper))
    return ItemHarm(found.estimate, limits, max(found.p_harm, flipped), found.n, f"{found.method}; sign flips")


def _with_few(found: ItemHarm, gaps: FloatArray, span: float, alpha: float) -> ItemHarm:
    """What a handful of differing items, or none, leaves open: as many unseen ones as exact limits of a share allow.

    Each is taken to cost as much as the widest range of the scores seen.
    """
    above, below = int(np.count_nonzero(gaps > 0)), int(np.count_nonzero(gaps < 0))
    limits = Limits(
        min(found.limits.lower, -span * clopper_pearson(below, len(gaps), alpha).upper),
        max(found.limits.upper, span * clopper_pearson(above, len(gaps), alpha).upper),
    )
    p_sign = sign_p(gaps)
    p_harm = found.p_harm if p_sign is None else max(found.p_harm, p_sign)
    return ItemHarm(found.estimate, limits, p_harm, found.n, found.method)
