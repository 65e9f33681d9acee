"""One arm's own mean share over several tasks, each with equal weight, whatever their sizes and clusters."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean
from benchgate.stats.distributions import beta_cdf, beta_ppf
from benchgate.stats.limits import Limits, check_alpha


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
