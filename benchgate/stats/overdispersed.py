"""The share of requests that missed, over blocks whose requests share the block's bad moments.

One arm's own mean share over several tasks, each with equal weight, whatever their sizes and clusters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean
from benchgate.stats.distributions import Limits, beta_cdf, beta_ppf, check_alpha, t_ppf
from benchgate.stats.proportions import clopper_pearson

_AT_TARGET = 1e-9
_MOST_NEEDED = 10**9


def attainment_limits(good: Sequence[int], scheduled: Sequence[int], alpha: float) -> Limits | None:
    """One-sided limits of the miss share 1 - Σgood/Σscheduled from the counts of each block.

    Clopper-Pearson on an effective number of requests (Korn and Graubard, Survey Methodology 24, 1998):
    n* = n / max(1, deff) · (t(1-alpha, n-1) / t(1-alpha, G-1))², G blocks, and the design effect
    deff = G/(G-1) · Σ(missed_g - p·scheduled_g)² / (n·p·(1-p)), which grows as misses come in bursts. Never narrower
    than Clopper-Pearson on all requests, and just that when none (or all) missed: 0 of 299 shows less than 1 %.
    Limits of t over the blocks' shares are left alone: far too narrow for rare misses (docs/metrics.md, goodput).

    None with fewer than two blocks, or when a block scheduled nothing: its share is undefined. ValueError when the
    sequences differ in length or a count cannot be.
    """
    check_alpha(alpha)
    if len(good) != len(scheduled):
        raise ValueError(f"{len(good)} counts of good requests for {len(scheduled)} blocks; expected one per block")
    if any(not 0 <= kept <= total for kept, total in zip(good, scheduled, strict=True)):
        raise ValueError(f"good requests {list(good)} of {list(scheduled)}; expected 0 <= good <= scheduled in each")
    if len(good) < 2 or min(scheduled) == 0:
        return None
    missed = sum(scheduled) - sum(good)
    exact = clopper_pearson(missed, sum(scheduled), alpha)
    if missed in (0, sum(scheduled)):
        return exact
    effective = _effective_n(np.subtract(scheduled, good), np.asarray(scheduled), alpha)
    hits = effective * missed / sum(scheduled)
    lower = beta_ppf(alpha, hits, effective - hits + 1)
    upper = beta_ppf(1 - alpha, hits + 1, effective - hits)
    return Limits(lower=min(lower, exact.lower), upper=max(upper, exact.upper))


def attainment_p(good: Sequence[int], scheduled: Sequence[int], allowed: float, alpha: float) -> float | None:
    """p-value of "the true miss share is at most `allowed`", the test that `attainment_limits` inverts.

    Below alpha exactly when the lower limit is above `allowed`; `alpha` enters the effective number of requests. None
    where there are no limits. ValueError as there.
    """
    if attainment_limits(good, scheduled, alpha) is None:
        return None
    missed, requests = sum(scheduled) - sum(good), sum(scheduled)
    if missed == 0 or allowed >= 1:
        return 1.0
    exact = _p_at_most(missed, requests, allowed)
    if missed == requests:
        return exact
    effective = _effective_n(np.subtract(scheduled, good), np.asarray(scheduled), alpha)
    return max(exact, _p_at_most(effective * missed / requests, effective, allowed))


def requests_needed(good: Sequence[int], scheduled: Sequence[int], target: float, alpha: float) -> int | None:
    """About how many requests in all would show on which side of `target` the share of good ones is, were it as seen.

    The fewest of which Clopper-Pearson's limit on their effective number reaches the target, each telling as much as
    these did. None where nothing was scheduled, where the share is the target itself, and beyond a thousand million.
    ValueError for a target that is no share.
    """
    check_alpha(alpha)
    if not 0 <= target <= 1:
        raise ValueError(f"target is {target!r}; expected a share from 0 to 1")
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    allowed = 1 - target
    if requests == 0 or abs(missed / requests - allowed) < _AT_TARGET:
        return None
    worth = 1.0
    if len(good) >= 2 and min(scheduled) > 0 and 0 < missed < requests:
        worth = min(1.0, _effective_n(np.subtract(scheduled, good), np.asarray(scheduled), alpha) / requests)

    def shown(n: int) -> bool:
        trials = n * worth
        hits = trials * missed / requests
        if missed / requests < allowed:
            return beta_ppf(1 - alpha, hits + 1, trials - hits) <= allowed
        return beta_ppf(alpha, hits, trials - hits + 1) > allowed

    enough = 1
    while not shown(enough):
        enough *= 2
        if enough > _MOST_NEEDED:
            return None
    few = enough // 2
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if shown(middle) else (middle, enough)
    return enough


def effective_requests(good: Sequence[int], scheduled: Sequence[int], alpha: float) -> float | None:
    """The effective number of requests that `attainment_limits` rests on: all of them when none or all missed.

    None where there are no limits. ValueError as there.
    """
    if attainment_limits(good, scheduled, alpha) is None:
        return None
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    if missed in (0, requests):
        return float(requests)
    return min(float(requests), _effective_n(np.subtract(scheduled, good), np.asarray(scheduled), alpha))


def _p_at_most(missed: float, requests: float, allowed: float) -> float:
    """P(X >= missed) for X ~ Bin(requests, allowed), as the beta integral that also takes a fractional count."""
    return beta_cdf(allowed, missed, requests - missed + 1)


def _effective_n(missed: np.ndarray, scheduled: np.ndarray, alpha: float) -> float:
    """How many independent requests tell as much as these correlated ones."""
    blocks, requests = len(missed), int(scheduled.sum())
    share = missed.sum() / requests
    spread = float(((missed - share * scheduled) ** 2).sum()) * blocks / (blocks - 1)
    design_effect = max(1.0, spread / (requests * share * (1 - share)))
    few_blocks = t_ppf(1 - alpha, requests - 1) / t_ppf(1 - alpha, blocks - 1)
    return float(requests / design_effect * few_blocks**2)


def mean_share_limits(
    tasks: Sequence[FloatArray], clusters: Sequence[Sequence[str] | None], alpha: float
) -> tuple[Limits, float] | None:
    """Limits of the mean over tasks of the share of items that are 1, and the effective number of items behind them.

    Clopper-Pearson on n* items (Korn and Graubard, Survey Methodology 24, 1998), n* = p(1-p)/variance of the mean with
    cluster-robust variances, at most as many as items of equal weight would be worth, K² / Σ 1/n_k. None when a task
    has no two items, of two clusters.
    """
    check_alpha(alpha)
    means = [cluster_mean(values, groups) for values, groups in zip(tasks, clusters, strict=True)]
    known = [mean for mean in means if mean is not None]
    if not known or len(known) < len(means):
        return None
    share = sum(mean.mean for mean in known) / len(known)
    most = len(known) ** 2 / sum(1 / mean.n for mean in known)
    variance = sum(mean.error**2 for mean in known) / len(known) ** 2
    effective = min(most, share * (1 - share) / variance) if variance > 0 and 0 < share < 1 else most
    return share_limits_of(share, effective, alpha), effective


def share_limits_of(share: float, effective: float, alpha: float) -> Limits:
    """Clopper-Pearson's limits for a share of an effective, perhaps fractional, number of items."""
    hits = share * effective
    return Limits(
        lower=beta_ppf(alpha, hits, effective - hits + 1) if share > 0 else 0.0,
        upper=beta_ppf(1 - alpha, hits + 1, effective - hits) if share < 1 else 1.0,
    )


def p_at_least(share: float, effective: float, floor: float) -> float:
    """p-value of "the true share is at least `floor`": P(X <= hits) for X ~ Bin(n*, floor), as the beta integral."""
    hits = share * effective
    if share >= 1:
        return 1.0
    return 1 - beta_cdf(floor, hits + 1, effective - hits)
