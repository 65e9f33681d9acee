"""Distribution functions, confidence limits and bisection: the base of every estimator.

The functions wrap `scipy.special`. `scipy.stats` gives the same numbers but takes longer to import than everything else
that a verdict needs. `scipy.special` itself is imported at its first use.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from benchgate.model.records import FloatArray, IntArray

LARGEST_EXPONENT = 700.0  # exp() overflows a double just above


@dataclass(frozen=True, slots=True)
class Limits:
    """One-sided confidence limits at level 1-alpha, each wrong with probability at most alpha.

    Together they are a (1-2·alpha) interval. A side without a limit is infinite.
    """

    lower: float
    upper: float

    def widened(self, other: Limits) -> Limits:
        """Return the smallest limits that contain both."""
        return Limits(min(self.lower, other.lower), max(self.upper, other.upper))

    def mapped(self, function: Callable[[float], float]) -> Limits:
        """Apply a rising function to both limits."""
        return Limits(function(self.lower), function(self.upper))


def exp_or_inf(x: float) -> float:
    """Return e^x; +inf beyond what a double holds."""
    return math.exp(x) if x <= LARGEST_EXPONENT else math.inf


def expm1_or_inf(x: float) -> float:
    """Return e^x - 1; +inf beyond what a double holds."""
    return math.expm1(x) if x <= LARGEST_EXPONENT else math.inf


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless 0 < alpha < 0.5, the range of a one-sided error probability."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha!r}; expected a one-sided error probability above 0 and below 0.5")


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return P(X <= x) for X ~ Beta(a, b), 0 <= x <= 1."""
    return float(scipy.special.betainc(a, b, x))


def beta_ppf(p: float, a: float, b: float) -> float:
    """Return the p-quantile of Beta(a, b)."""
    return float(scipy.special.betaincinv(a, b, p))


def binom_cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) for X ~ Bin(n, p) by the beta integral (Johnson, Kotz and Kemp 1992, 3.6)."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else float(scipy.special.betaincc(k + 1, n - k, p))


def binom_sf(k: int, n: int, p: float) -> float:
    """Return P(X > k) for X ~ Bin(n, p), exact in the far tail too."""
    if k < 0:
        return 1.0
    return 0.0 if k >= n else float(scipy.special.betainc(k + 1, n - k, p))


def binom_pmf(k: IntArray, n: int, p: float) -> FloatArray:
    """Return P(X = k) for X ~ Bin(n, p), 0 < p < 1, for each k from 0 to n."""
    law: FloatArray = np.exp(
        scipy.special.gammaln(n + 1)
        - scipy.special.gammaln(k + 1)
        - scipy.special.gammaln(n - k + 1)
        + k * np.log(p)
        + (n - k) * np.log1p(-p)
    )
    return law


def binom_ppf(q: float, n: int, p: float) -> int:
    """Return the smallest k with P(X <= k) >= q for X ~ Bin(n, p), 0 < q <= 1."""
    return bisect_left(range(n), q, key=lambda k: binom_cdf(k, n, p))


def gamma_ppf(p: float, shape: float) -> float:
    """Return the p-quantile of Gamma(shape) with scale 1."""
    return float(scipy.special.gammaincinv(shape, p))


def norm_cdf(z: float) -> float:
    """Return P(Z <= z) for a standard normal Z."""
    return float(scipy.special.ndtr(z))


def norm_sf(z: float) -> float:
    """Return P(Z > z) for a standard normal Z, exact in the far tail too."""
    return float(scipy.special.ndtr(-z))


def norm_ppf(p: float) -> float:
    """Return the p-quantile of the standard normal distribution."""
    return float(scipy.special.ndtri(p))


def t_sf(x: float, freedom: float) -> float:
    """Return P(T > x) for Student's t with `freedom` degrees of freedom."""
    return float(scipy.special.stdtr(freedom, -x))


def t_ppf(p: float, freedom: float) -> float:
    """Return the p-quantile of Student's t with `freedom` degrees of freedom."""
    return float(scipy.special.stdtrit(freedom, p))


def bisect(
    holds: Callable[[float], bool], low: float, high: float, *, halvings: int = 60, geometric: bool = False
) -> float:
    """Return the smallest number from `low` to `high` where a condition holds that holds at every larger one."""
    for _ in range(halvings):
        middle = math.sqrt(low * high) if geometric else (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def bisect_integers(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest integer above `low` where a condition holds that fails at `low` and holds at `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def smallest_count(holds: Callable[[int], bool], *, most: int) -> int | None:
    """Return the smallest integer from 1 where a condition holds that holds at every larger one.

    The search doubles, then bisects. Return None when the condition fails at the first power of two from `most` on.
    """
    low, high = 0, 1
    while not holds(high):
        low, high = high, high * 2
        if low >= most:
            return None
    return bisect_integers(holds, low, high)


@dataclass(frozen=True, slots=True)
class LimitWidth:
    """Distance of a t limit from its mean at `n` observations: t(1-alpha, freedom)·s/√n."""

    n: int
    width: float
    alpha: float
    freedom: float  # n - 1 of observations that count one by one


def sample_size_for_width(measured: LimitWidth, room: float, alpha: float, *, most_times: int = 100) -> int | None:
    """Return the least number of observations whose t limit at `alpha` is within `room` of their mean, at this spread.

    A limit narrows with the root of the number and with the t quantile, which is large for few observations and for a
    small alpha. Return None below two observations, for an infinite width, for no room, and above `most_times` as many.
    """
    n, groups = measured.n, measured.freedom + 1
    if n < 2 or room <= 0 or not math.isfinite(measured.width):
        return None
    spread = measured.width * math.sqrt(n) / t_ppf(1 - measured.alpha, measured.freedom)

    def enough(more: int) -> bool:
        return t_ppf(1 - alpha, groups * more / n - 1) * spread / math.sqrt(more) < room

    return bisect_integers(enough, n, n * most_times) if enough(n * most_times) else None


def pooled_deviation(first: FloatArray, second: FloatArray) -> float | None:
    """Return √((var(a) + var(b)) / 2) of two groups of equal size, two or more finite values each; else None."""
    if len(first) != len(second) or len(first) < 2:
        return None
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    return math.sqrt((float(np.var(first, ddof=1)) + float(np.var(second, ddof=1))) / 2)


def deviation_limits(deviation: float, n: int, alpha: float) -> Limits:
    """Return limits of a standard deviation from n normal values: s·√((n-1)/χ²), χ² at 1-alpha and at alpha.

    Example: 4% from 10 values has the limits 2.9% and 6.6%. Raises ValueError below two values.
    """
    check_alpha(alpha)
    if n < 2:
        raise ValueError(f"{n} values have no standard deviation; expected two at least")
    half = (n - 1) / 2
    largest, smallest = 2 * gamma_ppf(1 - alpha, half), 2 * gamma_ppf(alpha, half)
    return Limits(deviation * math.sqrt((n - 1) / largest), deviation * math.sqrt((n - 1) / smallest))
