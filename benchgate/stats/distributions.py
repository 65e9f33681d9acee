"""Probabilities and quantiles of the few distributions that the rules need, straight from the special functions.

`scipy.stats` gives the same numbers, and takes longer to load than everything else a verdict needs.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from scipy.special import betainc, betaincc, betaincinv, gammaincinv, gammaln, ndtr, ndtri, stdtr, stdtrit

from benchgate.model.records import FloatArray, IntArray


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
