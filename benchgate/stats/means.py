"""Tests of mean differences: paired t, Welch's t, sign flips, signs, and limits from subset means.

A difference above 0 is a regression, such as ln(candidate/baseline) of a latency. Each block gives one value: blocks
are independent, requests inside a block are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import Limits, binom_sf, check_alpha, t_ppf, t_sf
from benchgate.stats.trace import Trace, digits

_EXACT_FLIPS_UP_TO = 20
_SAMPLED_FLIPS = 9_999
_ROUNDING = 1e-12  # A spread of log ratios or shares below this is rounding, not noise of the deployments
_ALL_SUBSETS_UP_TO = 16
_SAMPLED_SUBSETS = 65_535


@dataclass(frozen=True, slots=True)
class MeanTest:
    """Test of a mean difference: estimate, one-sided limits, p-value of "the mean is at most the margin"."""

    mean: float
    sd: float
    limits: Limits
    p_value: float
    n: int  # differences; of two independent groups the size of the smaller one
    freedom: float  # degrees of freedom of the limits


def paired_t(
    differences: FloatArray, alpha: float, *, margin: float = 0.0, trace: Trace | None = None
) -> MeanTest | None:
    """Test paired differences by Student's t: limits mean ∓ t(1-alpha, n-1)·sd/√n, p-value of H0 "mean <= margin".

    Return None below two differences or when one is not finite: a failed block has no ratio, see `sign_p`. Without
    spread t is undefined. The limits are then the mean itself; p_value is 1 at or below the margin and 2**-n above it,
    the least that a sign-flip test can give. Measured times never agree like that. Shares can, as when no request
    missed on either side: their limits must be widened by those of the requests (`newcombe_difference`).
    """
    check_alpha(alpha)
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return None
    if np.ptp(values) <= _ROUNDING:
        mean = float(values[0])
        p_value = 2.0**-n if mean > margin else 1.0
        if trace is not None:
            trace.made("their mean", "all are equal", mean)
            trace.limits(Limits(mean, mean), "their mean", "their mean")
            trace.made("p-value", f"2^-{n}" if mean > margin else "not above the margin", p_value)
        return MeanTest(mean, 0.0, Limits(mean, mean), p_value, n, n - 1)
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    error = sd / math.sqrt(n)
    if trace is not None:
        trace.made("their mean", f"sum of them / {n}", mean)
        trace.made("their standard deviation", f"sqrt(sum of (each - {digits(mean)})^2 / ({n} - 1))", sd)
        trace.made("standard error of the mean", f"{digits(sd)} / sqrt({n})", error)
    limits, p_value = _student(mean, error, n - 1, alpha, margin, trace)
    return MeanTest(mean, sd, limits, p_value, n, n - 1)


def two_sample_t(
    a: FloatArray, b: FloatArray, alpha: float, *, margin: float = 0.0, trace: Trace | None = None
) -> MeanTest | None:
    """Test mean(b) - mean(a) by Welch's t, with Welch-Satterthwaite degrees of freedom.

    For groups that were not interleaved. `sd` is √(var(a) + var(b)), the deviation of one difference. Return None when
    a group has fewer than two values or one is not finite. Without spread in both, the limits are the difference
    itself; p_value is 1 at or below the margin and 1/C(n_a+n_b, n_a) above it, the least that a permutation test can
    give.
    """
    check_alpha(alpha)
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n = min(len(first), len(second))
    if n < 2 or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    means = float(np.mean(first)), float(np.mean(second))
    mean = float(np.mean(second) - np.mean(first))
    if trace is not None:
        trace.made("mean of the reference run", f"sum of them / {len(first)}", means[0])
        trace.made("mean of the judged run", f"sum of them / {len(second)}", means[1])
        trace.made("difference of the means", f"{digits(means[1])} - {digits(means[0])}", mean)
    if max(np.ptp(first), np.ptp(second)) <= _ROUNDING:
        groups = len(first) + len(second), len(first)
        p_value = 1 / math.comb(*groups) if mean > margin else 1.0
        if trace is not None:
            trace.limits(Limits(mean, mean), *["the difference itself: neither run varies"] * 2)
            trace.made("p-value", "1 / C({}, {})".format(*groups) if mean > margin else "not above the margin", p_value)
        return MeanTest(mean, 0.0, Limits(mean, mean), p_value, n, n - 1)
    variances = float(np.var(first, ddof=1)), float(np.var(second, ddof=1))
    parts = variances[0] / len(first), variances[1] / len(second)
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    if trace is not None:
        trace.made("variance of the reference run", "of its list", variances[0])
        trace.made("variance of the judged run", "of its list", variances[1])
        how = f"sqrt({digits(variances[0])} / {len(first)} + {digits(variances[1])} / {len(second)})"
        trace.made("standard error", how, error)
        shown = [digits(part) for part in parts]
        how = f"({shown[0]} + {shown[1]})^2 / ({shown[0]}^2 / {len(first) - 1} + {shown[1]}^2 / {len(second) - 1})"
        trace.made("degrees of freedom (Welch)", how, freedom)
    limits, p_value = _student(mean, error, freedom, alpha, margin, trace)
    return MeanTest(mean, math.sqrt(sum(variances)), limits, p_value, n, freedom)


@dataclass(frozen=True, slots=True)
class VarianceComponent:
    """Independent component of a variance, with the degrees of freedom of its estimate."""

    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class CombinedTest:
    """Test of an estimate with several variance components: standard error, limits, p-value of "at most the margin"."""

    estimate: float
    error: float
    freedom: float
    limits: Limits
    p_value: float


def combined_t(
    estimate: float,
    parts: Sequence[VarianceComponent],
    alpha: float,
    *,
    margin: float = 0.0,
    trace: Trace | None = None,
) -> CombinedTest | None:
    """Test an estimate whose variance is a sum of independent components by Student's t.

    SE² = Σ vᵢ with (Σ vᵢ)² / Σ(vᵢ²/fᵢ) degrees of freedom (Satterthwaite 1946; Welch 1947). Return None without any
    variance, which leaves nothing to compare the estimate with. Raises ValueError for a component without degrees of
    freedom.
    """
    check_alpha(alpha)
    if any(part.freedom < 1 for part in parts):
        raise ValueError("a part of a variance has no degrees of freedom; expected one at least")
    total = sum(part.variance for part in parts)
    error = math.sqrt(total)
    if not (math.isfinite(estimate) and _ROUNDING < error < math.inf):
        return None
    freedom = total**2 / sum(part.variance**2 / part.freedom for part in parts)
    if trace is not None:
        shown = [digits(part.variance) for part in parts]
        sum_of_parts = " + ".join(shown)
        weighted = " + ".join(f"{one}^2 / {part.freedom:g}" for one, part in zip(shown, parts, strict=True))
        trace.made("standard error", f"sqrt({sum_of_parts})", error)
        trace.made("degrees of freedom (Satterthwaite)", f"({sum_of_parts})^2 / ({weighted})", freedom)
    return CombinedTest(estimate, error, freedom, *_student(estimate, error, freedom, alpha, margin, trace))


def _student(
    mean: float, error: float, freedom: float, alpha: float, margin: float, trace: Trace | None
) -> tuple[Limits, float]:
    """Return the t limits of a mean with this standard error, and the upper-tail p of "at most the margin"."""
    quantile = t_ppf(1 - alpha, freedom)
    limits = Limits(mean - quantile * error, mean + quantile * error)
    statistic = (mean - margin) / error
    p_value = t_sf(statistic, freedom)
    if trace is not None:
        trace.made("t quantile", f"t({digits(1 - alpha)}, {digits(freedom)})", quantile)
        reach = f"{digits(quantile)} * {digits(error)}"
        trace.limits(limits, f"{digits(mean)} - {reach}", f"{digits(mean)} + {reach}")
        trace.made("t statistic", f"({digits(mean)} - {digits(margin)}) / {digits(error)}", statistic)
        trace.made("p-value", f"P(T({digits(freedom)}) > {digits(statistic)})", p_value)
    return limits, p_value


def sign_test_p(differences: FloatArray) -> float | None:
    """Return the one-sided exact sign test p: P(X >= number above 0), X ~ Bin(number not 0, 1/2).

    Infinite differences keep their sign, so latencies that failures made infinite count. Return None for no differences
    or when one is NaN, and 1 when all are 0.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) == 0 or np.isnan(values).any():
        return None
    above, below = int(np.count_nonzero(values > 0)), int(np.count_nonzero(values < 0))
    return binom_sf(above - 1, above + below, 0.5)


def sign_flip_p(differences: FloatArray, *, generator: np.random.Generator | None = None) -> float | None:
    """Return the one-sided sign-flip permutation p of the mean.

    It is the share of the 2**n sign patterns whose sum is as large or larger. The value is exact up to 20 differences.
    Above, it is (1 + hits) / (1 + 9,999) over patterns drawn from `generator`, which is then required (ValueError
    without it). The least value is 2**-n, so five differences are needed to reach 5%. The test assumes differences
    symmetric about 0 under H0, but not that they are normal. Return None for no differences or when one is not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) == 0 or not np.isfinite(values).all():
        return None
    # Sums of the same numbers in another order differ by rounding; without slack a tie would count as smaller.
    at_least = float(values.sum()) - 1e-12 * float(np.abs(values).sum())
    if len(values) <= _EXACT_FLIPS_UP_TO:
        half = len(values) // 2
        first, second = _flipped_sums(values[:half]), np.sort(_flipped_sums(values[half:]))
        below = np.searchsorted(second, at_least - first, side="left")
        return 1.0 - float(below.sum()) / float(2 ** len(values))
    if generator is None:
        raise ValueError(f"{len(values)} differences have too many sign patterns to list; pass a seeded generator")
    signs = generator.integers(0, 2, size=(_SAMPLED_FLIPS, len(values)), dtype=np.int8) * 2 - 1
    return float((1 + np.count_nonzero(signs @ values >= at_least)) / (1 + _SAMPLED_FLIPS))


def _flipped_sums(values: FloatArray) -> FloatArray:
    sums = np.zeros(1)
    for value in np.abs(values):
        sums = np.concatenate([sums + value, sums - value])
    return sums


def subset_mean_limits(values: FloatArray, alpha: float, generator: np.random.Generator) -> Limits | None:
    """Return limits of the centre of independent values that are symmetric about it, without a normal law.

    The 2**n - 1 means of the non-empty subsets split the line into 2**n intervals. Each holds the centre with the same
    probability (Hartigan, JASA 64, 1969, "typical values"); it is the inverted sign-flip test. All subsets are used up
    to 16 values; above, 65,535 are drawn from `generator`. A limit is infinite where even the outermost mean is too
    close, at alpha 5% below 5 values. Return None for no values or when one is not finite.
    """
    check_alpha(alpha)
    if len(values) == 0 or not np.isfinite(values).all():
        return None
    if len(values) <= _ALL_SUBSETS_UP_TO:
        sums, sizes = np.zeros(1), np.zeros(1)
        for value in values:
            sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    else:
        chosen = generator.integers(0, 2, size=(_SAMPLED_SUBSETS, len(values)), dtype=np.int8)
        sums, sizes = chosen @ values, chosen.sum(axis=1)
    means = np.sort(sums[sizes > 0] / sizes[sizes > 0])
    intervals = len(means) + 1
    outside = math.floor(alpha * intervals)  # intervals that may lie beyond a limit
    if outside < 1:
        return Limits(-math.inf, math.inf)
    return Limits(float(means[outside - 1]), float(means[-outside]))
