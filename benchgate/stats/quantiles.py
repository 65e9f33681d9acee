"""Distribution-free limits of a quantile, from order statistics alone.

The empirical distribution of latencies, some of which never came: what a curve of it needs, and no more points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import Limits, binom_cdf, binom_ppf, check_alpha


def min_n_for_upper_limit(q: float, alpha: float) -> int:
    """Fewest observations of which the largest is an upper (1-alpha) limit of the q-quantile: q**n <= alpha.

    At alpha 5 %: p50 5, p90 29, p95 59, p99 299, p99.9 2,995. With fewer there is no limit, whatever the values.
    """
    _check_q(q)
    check_alpha(alpha)
    return math.ceil(math.log(alpha) / math.log(q))


def fewest_of_a_quantile(q: float) -> int:
    """How many observations a high quantile is to be taken of: 29 for p90, 59 for p95, 299 for p99.

    As many as its 95 % upper limit takes; three lie above it on average. Of fewer the order statistic that stands for
    it is the largest one or close to it, and its own quantile is lower: the 19th of 20 lies at p90, not at p95. What
    such a number says of a tail that grew beyond the quantile is too little.
    """
    return min_n_for_upper_limit(q, _OF_A_LIMIT)


_OF_A_LIMIT = 0.05  # whatever error a check may spend: what is compared stays what it is


def order_statistic_limits(values: FloatArray, q: float, alpha: float) -> Limits | None:
    """One-sided limits of the q-quantile of independent observations (David and Nagaraja, Order Statistics, 7.1).

    The upper one is the smallest X(r) with P(Bin(n, q) <= r-1) >= 1-alpha, the lower one the largest X(r) with
    P(Bin(n, q) >= r) >= 1-alpha. +inf (a failure) is a value like any other and can be a limit; NaN ("does not apply")
    is dropped, as in `metrics.quantile`. None when there are too few values for either limit.
    """
    _check_q(q)
    check_alpha(alpha)
    ordered = np.sort(values[~np.isnan(values)])
    n = len(ordered)
    if n < max(min_n_for_upper_limit(q, alpha), min_n_for_upper_limit(1 - q, alpha)):
        return None
    lower_rank, upper_rank = limit_ranks(n, q, alpha)
    return Limits(float(ordered[lower_rank - 1]), float(ordered[upper_rank - 1]))


def limit_ranks(n: int, q: float, alpha: float) -> tuple[int, int]:
    """Which of n ordered values, counted from 1, are the lower and the upper limit; there must be enough for both."""
    # ppf is the first count whose chance of "this many or fewer" reaches alpha; below it the chance is under alpha.
    first = binom_ppf(alpha, n, q)
    lower_rank = first + 1 if binom_cdf(first, n, q) <= alpha else first
    return lower_rank, binom_ppf(1 - alpha, n, q) + 1


def _check_q(q: float) -> None:
    if not 0 < q < 1:
        raise ValueError(f"q is {q!r}; expected a quantile above 0 and below 1")


MOST_POINTS = 200
"""More are not to be told apart on any screen: each step is half a percent of the observations."""


@dataclass(frozen=True, slots=True)
class Ecdf:
    """`shares[i]` of all `n` observations lie at or below `values[i]`; both ascend.

    `never` of them are infinite: they lie at no value, so the last share is 1 only where there is none. Where every one
    is, there are no values.
    """

    values: tuple[float, ...]
    shares: tuple[float, ...]
    n: int
    never: int

    @property
    def arrived(self) -> float:
        """The share that came at all: where the curve ends."""
        return (self.n - self.never) / self.n


def ecdf(values: FloatArray, most: int = MOST_POINTS) -> Ecdf | None:
    """The curve through at most `most` of the observations, at ranks as far apart as can be; both extremes are kept.

    +inf (a failure) counts in `n` like any other; NaN ("does not apply") is dropped, as in `metrics.quantile`. A share
    is that of the whole sample: leaving points out moves none of those that stay. None without any observation.
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
