"""How much a number varies, and how well that is known from so few values."""

from __future__ import annotations

import math

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import gamma_ppf
from benchgate.stats.limits import Limits, check_alpha


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
