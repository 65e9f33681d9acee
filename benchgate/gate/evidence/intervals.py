"""The 95 % interval of each derived number that the history keeps, by the methods that checks use for their own.

An interval is of one number by itself: two that overlap can still differ, and two that do not are no verdict. None
where the evidence carries none: one block, no spread at all, too few items or clusters, an end that is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from benchgate.gate.evidence.shares import Counts
from benchgate.model import request_metrics
from benchgate.model.records import FloatArray
from benchgate.stats.clusters import MIN_CLUSTERS, cluster_mean, pool_means
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t
from benchgate.stats.overdispersed import miss_share_limits
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.quantiles import limit_ranks, min_n_for_upper_limit

ALPHA = 0.025
"""The error probability of each end."""

_FEWEST_ITEMS = 30  # of a mean by Student's t, where scores are not simply right or wrong


def block_mean(per_block: Sequence[float | None]) -> float | None:
    """None when any block has no value: a mean over the rest would flatter."""
    known = [value for value in per_block if value is not None]
    return sum(known) / len(known) if known and len(known) == len(per_block) else None


def block_limits(per_block: Iterable[float | None]) -> Limits | None:
    """Of a mean over blocks: Student's t, never below 0, which no rate can be."""
    values = list(per_block)
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    found = paired_t(known, ALPHA) if len(known) == len(values) else None
    if found is None or found.sd == 0:
        return None
    return Limits(max(0.0, found.limits.lower), found.limits.upper)


def log_block_limits(per_block: FloatArray) -> Limits | None:
    """The same of a geometric mean of times: t over the logarithms."""
    if not (np.isfinite(per_block).all() and (per_block > 0).all()):
        return None
    found = paired_t(np.log(per_block), ALPHA)
    if found is None or found.sd == 0:
        return None
    return Limits(math.exp(found.limits.lower), math.exp(found.limits.upper))


def price_limits(price: Callable[[float | None], float | None], rates: Limits | None) -> Limits | None:
    """Of a price per token, from those of the rate that it falls with; None where the rate may be nothing."""
    lower, upper = (price(rate) for rate in (rates.upper, rates.lower)) if rates is not None else (None, None)
    return None if lower is None or upper is None else Limits(lower, upper)


def miss_limits(counts: Counts) -> Limits | None:
    """Of the share of requests that missed, on the effective number of requests, as checks of shares have it."""
    return miss_share_limits(counts.kept, counts.totals, ALPHA)


def kept_limits(counts: Counts) -> Limits | None:
    """Of the share that did not miss."""
    missed = miss_limits(counts)
    return None if missed is None else Limits(1 - missed.upper, 1 - missed.lower)


def quantiles_with_limits(
    blocks: Sequence[FloatArray], shares: Sequence[float], *, single: bool
) -> list[tuple[float | None, Limits | None]]:
    """Quantiles over all blocks, each block's values given, and t over the blocks' own quantiles on the log scale.

    `single`: a request has one value, and then limits are widened to the order statistics of all requests, as an SLO on
    a quantile has it. Of the gaps of a stream, which go together, the blocks alone tell; widened to the value itself.
    """
    everything = np.concatenate(blocks)
    values = request_metrics.quantiles(everything, shares)
    own = [None if value is None else Limits(value, value) for value in values]
    ends = _order_limits(everything, shares) if single else own
    each = np.array([request_metrics.quantiles(block, shares) for block in blocks], dtype=np.float64)
    return [
        (value, _wider(log_block_limits(of_blocks), end))
        for value, of_blocks, end in zip(values, each.T, ends, strict=True)
    ]


def _wider(one: Limits | None, other: Limits | None) -> Limits | None:
    if one is None or other is None:
        return None
    return Limits(min(one.lower, other.lower), max(one.upper, other.upper))


def _order_limits(values: FloatArray, shares: Sequence[float]) -> list[Limits | None]:
    """`order_statistic_limits` of several quantiles for the work of one."""
    applicable = values[~np.isnan(values)]
    n = len(applicable)
    ranks = [limit_ranks(n, q, ALPHA) if n >= _fewest(q) else None for q in shares]
    wanted = sorted({rank - 1 for pair in ranks if pair is not None for rank in pair})
    placed = np.partition(applicable, wanted) if wanted else applicable
    return [None if pair is None else Limits(float(placed[pair[0] - 1]), float(placed[pair[1] - 1])) for pair in ranks]


def _fewest(q: float) -> int:
    return max(min_n_for_upper_limit(q, ALPHA), min_n_for_upper_limit(1 - q, ALPHA))


def count_limits(hits: int, n: int) -> Limits | None:
    """Of a share of independent items: Clopper and Pearson's, which are never too narrow."""
    return clopper_pearson(hits, n, ALPHA) if n > 0 else None


def item_limits(values: Sequence[float], clusters: Sequence[str] | None = None, *, share: bool) -> Limits | None:
    """Of a mean over items: exact where each is 0 or 1 and none go together, else Student's t over items or clusters.

    `share`: the mean lies between 0 and 1, and so do its limits.
    """
    if share and clusters is None and all(value in (0.0, 1.0) for value in values):
        return count_limits(int(sum(values)), len(values))
    found = cluster_mean(np.asarray(values, dtype=np.float64), clusters)
    fewest = _FEWEST_ITEMS if clusters is None else MIN_CLUSTERS
    if found is None or found.clusters < fewest or found.error == 0:
        return None
    limits = pool_means([found]).limits(ALPHA)
    return Limits(max(0.0, limits.lower), min(1.0, limits.upper)) if share else limits
