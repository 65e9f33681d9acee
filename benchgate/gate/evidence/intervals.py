"""95 % confidence intervals of the derived numbers that the history stores, by the methods of checks.

Each interval covers one number alone: whether two overlap is no verdict. There is none for one block, zero spread, too
few items or clusters, or an infinite bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from benchgate.gate.evidence.shares import Counts
from benchgate.model import request_metrics
from benchgate.model.records import FloatArray
from benchgate.stats.clusters import MIN_CLUSTERS, cluster_mean, miss_share_limits, pool_means
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.quantiles import limit_ranks, min_n_for_upper_limit

ALPHA = 0.025  # error probability of each bound

_FEWEST_ITEMS = 30  # for Student's t on scores that are not binary


def block_mean(per_block: Sequence[float | None]) -> float | None:
    """Return the mean; None if any block has no value, because the rest would be biased."""
    known = [value for value in per_block if value is not None]
    return sum(known) / len(known) if known and len(known) == len(per_block) else None


def block_limits(per_block: Iterable[float | None]) -> Limits | None:
    """Return Student's t limits of a mean over blocks, clipped at 0."""
    values = list(per_block)
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    found = paired_t(known, ALPHA) if len(known) == len(values) else None
    if found is None or found.sd == 0:
        return None
    return Limits(max(0.0, found.limits.lower), found.limits.upper)


def log_block_limits(per_block: FloatArray) -> Limits | None:
    """Return the limits of a geometric mean of times: Student's t over the logarithms."""
    if not (np.isfinite(per_block).all() and (per_block > 0).all()):
        return None
    found = paired_t(np.log(per_block), ALPHA)
    if found is None or found.sd == 0:
        return None
    return Limits(math.exp(found.limits.lower), math.exp(found.limits.upper))


def miss_limits(counts: Counts) -> Limits | None:
    """Return the limits of the share of missed requests, on the effective number of requests as in checks."""
    return miss_share_limits(counts.kept, counts.totals, ALPHA)


def kept_limits(counts: Counts) -> Limits | None:
    """Return the limits of the share of requests that did not miss."""
    missed = miss_limits(counts)
    return None if missed is None else Limits(1 - missed.upper, 1 - missed.lower)


def quantiles_with_limits(
    blocks: Sequence[FloatArray], shares: Sequence[float], *, single: bool
) -> list[tuple[float | None, Limits | None]]:
    """Return quantiles over all blocks, with t limits of the blocks' own quantiles on the log scale.

    `single`: a request has one value, so limits are widened to the order statistics of all requests, as for an SLO on a
    quantile. Inter-token gaps of a stream are correlated, so their limits are widened only to include the value.
    """
    everything = np.concatenate(blocks)
    values = request_metrics.quantiles(everything, shares)
    ends = [None if value is None else Limits(value, value) for value in values]
    if single:
        applicable = everything[~np.isnan(everything)]
        fewest = [max(min_n_for_upper_limit(q, ALPHA), min_n_for_upper_limit(1 - q, ALPHA)) for q in shares]
        n = len(applicable)
        ranks = [limit_ranks(n, q, ALPHA) if n >= least else None for q, least in zip(shares, fewest, strict=True)]
        positions = sorted({rank - 1 for pair in ranks if pair is not None for rank in pair})
        placed = np.partition(applicable, positions) if positions else applicable
        ends = [None if p is None else Limits(float(placed[p[0] - 1]), float(placed[p[1] - 1])) for p in ranks]
    each = np.array([request_metrics.quantiles(block, shares) for block in blocks], dtype=np.float64)
    limits = [log_block_limits(per_block) for per_block in each.T]
    return [
        (value, None if one is None or end is None else one.widened(end))
        for value, one, end in zip(values, limits, ends, strict=True)
    ]


def count_limits(hits: int, n: int) -> Limits | None:
    """Return Clopper-Pearson limits of a share of independent items; None without items."""
    return clopper_pearson(hits, n, ALPHA) if n > 0 else None


def item_limits(values: Sequence[float], clusters: Sequence[str] | None = None, *, share: bool) -> Limits | None:
    """Return limits of a mean over items: exact for independent 0/1 items, else Student's t over items or clusters.

    `share`: clip the limits to [0, 1].
    """
    if share and clusters is None and all(value in (0.0, 1.0) for value in values):
        return count_limits(int(sum(values)), len(values))
    found = cluster_mean(np.asarray(values, dtype=np.float64), clusters)
    fewest = _FEWEST_ITEMS if clusters is None else MIN_CLUSTERS
    if found is None or found.clusters < fewest or found.error == 0:
        return None
    limits = pool_means([found]).limits(ALPHA)
    return Limits(max(0.0, limits.lower), min(1.0, limits.upper)) if share else limits
