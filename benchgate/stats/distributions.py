"""A pair of one-sided confidence limits, the currency of every decision.

Probabilities and quantiles of the few distributions that the rules need, straight from the special functions.

`scipy.stats` gives the same numbers, and takes longer to load than everything else a verdict needs.

How many more observations would make a t-limit as narrow as it must be.

How much a number varies, and how well that is known from so few values.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, betaincc, betaincinv, gammaincinv, gammaln, ndtr, ndtri, stdtr, stdtrit

from benchgate.model.records import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Limits:
    """One-sided (1-alpha) limits: below `lower` with probability at most alpha, above `upper` likewise.

    Together they are a (1-2*alpha) interval. A side without a bound is infinite.
    """

    lower: float
    upper: float


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless 0 < alpha < 0.5: an error probability, one-sided."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha!r}; expected a one-sided error probability above 0 and below 0.5")


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X <= x) for X ~ Beta(a, b), 0 <= x <= 1."""
    return float(betainc(a, b, x))


def beta_ppf(p: float, a: float, b: float) -> float:
    """The p-quantile of Beta(a, b)."""
    return float(betaincinv(a, b, p))


def binom_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) for X ~ Bin(n, p), as the beta integral (Johnson, Kotz and Kemp 1992, 3.6)."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else float(betaincc(k + 1, n - k, p))


def binom_sf(k: int, n: int, p: float) -> float:
    """P(X > k) for X ~ Bin(n, p), exact also where it is tiny."""
    if k < 0:
        return 1.0
    return 0.0 if k >= n else float(betainc(k + 1, n - k, p))


def binom_pmf(k: IntArray, n: int, p: float) -> FloatArray:
    """P(X = k) for X ~ Bin(n, p), 0 < p < 1, for each k from 0 to n."""
    law: FloatArray = np.exp(
        gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * np.log(p) + (n - k) * np.log1p(-p)
    )
    return law


def binom_ppf(q: float, n: int, p: float) -> int:
    """The smallest k with P(X <= k) >= q for X ~ Bin(n, p), 0 < q <= 1."""
    return bisect_left(range(n), q, key=lambda k: binom_cdf(k, n, p))


def gamma_ppf(p: float, shape: float) -> float:
    """The p-quantile of Gamma(shape) with scale 1."""
    return float(gammaincinv(shape, p))


def norm_cdf(z: float) -> float:
    """P(Z <= z) for a standard normal Z."""
    return float(ndtr(z))


def norm_sf(z: float) -> float:
    """P(Z > z) for a standard normal Z, exact also where it is tiny."""
    return float(ndtr(-z))


def norm_ppf(p: float) -> float:
    """The p-quantile of the standard normal distribution."""
    return float(ndtri(p))


def t_sf(x: float, freedom: float) -> float:
    """P(T > x) for Student's T with so many degrees of freedom."""
    return float(stdtr(freedom, -x))


def t_ppf(p: float, freedom: float) -> float:
    """The p-quantile of Student's t with so many degrees of freedom."""
    return float(stdtrit(freedom, p))


_MOST_TIMES = 100  # as many observations as there were are no plan any more


def observations_needed(n: int, width: float, room: float, alpha: float) -> int | None:
    """The least number of observations whose t-limit would lie within `room` of their mean, the spread as it was seen.

    `width` is how far the limit of `n` observations lies from theirs: t(1-alpha, n-1)·s/√n. More of them narrow it by
    the root of their number and by the quantile, which is large for few. None below two observations, for a limit that
    is not finite, where there is no room, and above a hundred times as many.
    """
    if n < 2 or room <= 0 or not math.isfinite(width):
        return None
    spread = width * math.sqrt(n) / t_ppf(1 - alpha, n - 1)

    def enough(more: int) -> bool:
        return t_ppf(1 - alpha, more - 1) * spread / math.sqrt(more) < room

    low, high = n, n * _MOST_TIMES
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def pooled_deviation(first: FloatArray, second: FloatArray) -> float | None:
    """Standard deviation within two groups of one size, each about its own mean: √((var(a) + var(b)) / 2).

    None below two values, for groups of different sizes, or where a value is not finite.
    """
    if len(first) != len(second) or len(first) < 2:
        return None
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    return math.sqrt((float(np.var(first, ddof=1)) + float(np.var(second, ddof=1))) / 2)


def deviation_limits(deviation: float, n: int, alpha: float) -> Limits:
    """One-sided limits of a standard deviation from n normal values: s·√((n-1)/χ²), χ² at 1-alpha and at alpha.

    Where it says 4 % from 10 values, it may be 2.9 % or 6.6 %. ValueError below two values.
    """
    check_alpha(alpha)
    if n < 2:
        raise ValueError(f"{n} values have no standard deviation; expected two at least")
    half = (n - 1) / 2
    largest, smallest = 2 * gamma_ppf(1 - alpha, half), 2 * gamma_ppf(alpha, half)
    return Limits(deviation * math.sqrt((n - 1) / largest), deviation * math.sqrt((n - 1) / smallest))
