"""Distribution-free limits of quantiles by order statistics, and the empirical distribution function."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import Limits, binom_cdf, binom_ppf, check_alpha
from benchgate.stats.trace import Trace, digits

MAX_POINTS = 200  # points of a curve; each step is half a percent of the observations
_ALPHA_OF_MIN_N = 0.05  # fixed, so that a check's error probability does not change the quantile that it compares


def min_n_for_upper_limit(q: float, alpha: float) -> int:
    """Return the least number of observations for an upper (1-alpha) limit of the q-quantile: q**n <= alpha.

    At alpha 5%: p50 5, p90 29, p95 59, p99 299, p99.9 2,995. With fewer there is no limit, whatever the values.
    """
    _check_q(q)
    check_alpha(alpha)
    return math.ceil(math.log(alpha) / math.log(q))


def min_n_for_quantile(q: float) -> int:
    """Return the least number of observations to estimate a high quantile from: 29 for p90, 59 for p95, 299 for p99.

    It is the number that its 95% upper limit takes; three values lie above it on average. With fewer, the estimate is
    the largest value or close to it and belongs to a lower quantile: the 19th of 20 lies at p90, not at p95. A tail
    that grew beyond the quantile would hardly show in it.
    """
    return min_n_for_upper_limit(q, _ALPHA_OF_MIN_N)


def order_statistic_limits(values: FloatArray, q: float, alpha: float, trace: Trace | None = None) -> Limits | None:
    """Return limits of the q-quantile of independent observations (David and Nagaraja, Order Statistics, 7.1).

    The upper one is the smallest X(r) with P(Bin(n, q) <= r-1) >= 1-alpha, the lower one the largest X(r) with P(Bin(n,
    q) >= r) >= 1-alpha. +inf (a failure) is a value and can be a limit. NaN ("does not apply") is dropped, as in
    `request_metrics.quantile`. Return None when there are too few values for either limit.
    """
    _check_q(q)
    check_alpha(alpha)
    ordered = np.sort(values[~np.isnan(values)])
    n = len(ordered)
    if n < max(min_n_for_upper_limit(q, alpha), min_n_for_upper_limit(1 - q, alpha)):
        return None
    lower_rank, upper_rank = limit_ranks(n, q, alpha)
    limits = Limits(float(ordered[lower_rank - 1]), float(ordered[upper_rank - 1]))
    if trace is not None:
        trace.count("requests", n)
        least = f"P(Bin({n}, {digits(q)}) >= {lower_rank}) >= {digits(1 - alpha)}"
        most = f"P(Bin({n}, {digits(q)}) <= {upper_rank - 1}) >= {digits(1 - alpha)}"
        first = f"request {lower_rank}, the last for which {least}"
        last = f"request {upper_rank}, the first for which {most}"
        trace.limits(limits, first, last, " over requests")
    return limits


def limit_ranks(n: int, q: float, alpha: float) -> tuple[int, int]:
    """Return the ranks of the lower and the upper limit among n ordered values, from 1; n must suffice for both."""
    # binom_ppf is the least count with P(X <= count) >= alpha; for every smaller count the probability is below alpha.
    first = binom_ppf(alpha, n, q)
    lower_rank = first + 1 if binom_cdf(first, n, q) <= alpha else first
    return lower_rank, binom_ppf(1 - alpha, n, q) + 1


def _check_q(q: float) -> None:
    if not 0 < q < 1:
        raise ValueError(f"q is {q!r}; expected a quantile above 0 and below 1")


@dataclass(frozen=True, slots=True)
class Ecdf:
    """Empirical distribution: `shares[i]` of all `n` observations are at most `values[i]`; both ascend."""

    values: tuple[float, ...]
    shares: tuple[float, ...]
    n: int
    never: int  # infinite observations, which no share includes

    @property
    def arrived(self) -> float:
        """Return the share of finite observations, where the curve ends."""
        return (self.n - self.never) / self.n


def ecdf(values: FloatArray, most: int = MAX_POINTS) -> Ecdf | None:
    """Return the empirical distribution at `most` evenly spaced ranks at most, both extremes included.

    +inf (a failure) counts in `n`. NaN ("does not apply") is dropped, as in `request_metrics.quantile`. Shares are
    those of the whole sample, so dropped points do not move the others. Return None for no observations. Raises
    ValueError for fewer than two points.
    """
    if most < 2:
        raise ValueError(f"most is {most!r}; a curve has two points at least")
    applicable = values[~np.isnan(values)]
    n = len(applicable)
    if n == 0:
        return None
    arrived = np.sort(applicable[np.isfinite(applicable)])
    if len(arrived) == 0:
        return Ecdf((), (), n, n)
    ranks = np.unique(np.rint(np.linspace(0, len(arrived) - 1, min(most, len(arrived)))).astype(np.int64))
    kept = np.unique(arrived[ranks])
    at_or_below = np.searchsorted(arrived, kept, side="right")
    return Ecdf(tuple(kept.tolist()), tuple((at_or_below / n).tolist()), n, n - len(arrived))
