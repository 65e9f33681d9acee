"""Sums, ratios and products of estimates of which only the limits are known, and regressions summed over promotions.

The candidate of each promotion is the baseline of the next. On an additive scale (log ratios, differences of shares)
the regression of the last candidate against the first baseline is the sum of the links. Each link was measured with its
own live baseline, so changes between runs are in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.stats.distributions import Limits, check_alpha, t_ppf, t_sf
from benchgate.stats.trace import Trace, digits


@dataclass(frozen=True, slots=True)
class EstimateWithLimits:
    """Estimate and its limits, None where the evidence gives none."""

    value: float
    limits: Limits | None

    def times(self, factor: float) -> EstimateWithLimits:
        """Multiply by a factor above 0."""
        limits = None if self.limits is None else self.limits.mapped(lambda limit: limit * factor)
        return EstimateWithLimits(self.value * factor, limits)


def weighted_sum(parts: Sequence[tuple[float, EstimateWithLimits]]) -> EstimateWithLimits:
    """Return Σ weight·estimate with limits at the level of the parts' limits (MOVER).

    Zou and Donner (Statistics in Medicine 27, 2008) recover each variance from the part's own limit on the relevant
    side: with estimates x, lower limits l and weights above 0 the sum's lower limit is Σwx - √Σ(w(x - l))²; a weight
    below 0 takes the other limit. The limits are None where a part has none. A ratio or a product is the sum of
    logarithms. Raises ValueError for no parts.
    """
    if not parts:
        raise ValueError("there is no estimate to add")
    total = sum(weight * one.value for weight, one in parts)
    below, above = list[float](), list[float]()
    for weight, one in parts:
        if one.limits is None:
            return EstimateWithLimits(total, None)
        ends = sorted((weight * (one.value - one.limits.lower), weight * (one.value - one.limits.upper)))
        below.append(ends[1])
        above.append(ends[0])
    return EstimateWithLimits(total, Limits(total - math.hypot(*below), total + math.hypot(*above)))


def ratio(numerator: EstimateWithLimits, denominator: EstimateWithLimits) -> EstimateWithLimits | None:
    """Divide one estimate by another on the log scale; None where either is not above 0."""
    return _powers((1.0, numerator), (-1.0, denominator))


def product(one: EstimateWithLimits, other: EstimateWithLimits) -> EstimateWithLimits | None:
    """Multiply two estimates on the log scale; None where either is not above 0."""
    return _powers((1.0, one), (1.0, other))


def _powers(*parts: tuple[float, EstimateWithLimits]) -> EstimateWithLimits | None:
    if any(one.value <= 0 for _, one in parts):
        return None
    logarithms = []
    for power, one in parts:
        limits = one.limits.mapped(math.log) if one.limits is not None and one.limits.lower > 0 else None
        logarithms.append((power, EstimateWithLimits(math.log(one.value), limits)))
    total = weighted_sum(logarithms)
    return EstimateWithLimits(math.exp(total.value), None if total.limits is None else total.limits.mapped(math.exp))


@dataclass(frozen=True, slots=True)
class ChainLink:
    """Regression in one comparison with its limits, each wrong with probability `alpha`, from `n` observations.

    `freedom` are the degrees of freedom of each limit, None for n - 1. Where `n` is of requests, a t limit over their
    blocks has those of the blocks, and a binomial one nearly those of a normal deviate.
    """

    regression: float
    limits: Limits
    alpha: float
    n: int
    source: str = "a link"  # where it was measured: `this run`
    freedom: tuple[float | None, float | None] = (None, None)

    @property
    def known_freedom(self) -> tuple[float, float]:
        """The degrees of freedom of the lower and of the upper limit."""
        lower, upper = self.freedom
        return self.n - 1 if lower is None else lower, self.n - 1 if upper is None else upper

    @property
    def errors(self) -> tuple[float, float]:
        """Standard errors downwards and upwards: the distance to each limit over t(1-alpha, freedom)."""
        lower_t, upper_t = (t_ppf(1 - self.alpha, freedom) for freedom in self.known_freedom)
        return (self.regression - self.limits.lower) / lower_t, (self.limits.upper - self.regression) / upper_t


@dataclass(frozen=True, slots=True)
class ChainSum:
    """Sum of all links with its limits; `errors` are the standard errors downwards and upwards."""

    regression: float
    errors: tuple[float, float]
    limits: Limits
    p_value: float


def sum_chain(
    links: Sequence[ChainLink], alpha: float, *, shared: bool = False, trace: Trace | None = None
) -> ChainSum:
    """Add independent links, with limits by MOVER (Zou and Donner 2008, Statistics in Medicine 27, 1693-1702).

    The variance of a link on each side comes from its own limit there (`ChainLink.errors`), so asymmetric limits keep
    their shape. Variances add; the degrees of freedom are Satterthwaite's (1946): (sum of v)² / sum of v²/f, for f of a
    link. Links of a `shared` sample may all have the same error: their standard errors add, with the fewest degrees of
    freedom of a link. `p_value` tests "the sum is at most 0". Without any spread downwards it is 1 at or below 0 and
    2**-n above, the least that signs can give. Raises ValueError without links, or for a link of fewer than two
    observations.
    """
    check_alpha(alpha)
    if not links or min(link.n for link in links) < 2:
        raise ValueError("a sum needs links, each of two observations at least")
    total, errors = sum(link.regression for link in links), [link.errors for link in links]
    if trace is not None:
        for link, (down, up) in zip(links, errors, strict=True):
            distance = f"distance to the limits {digits(link.limits.lower)} and {digits(link.limits.upper)}"
            freedom_of = " and ".join(dict.fromkeys(map(digits, link.known_freedom)))
            over = f"{distance} over t({digits(1 - link.alpha)}, {freedom_of})"
            how = f"standard errors {digits(down)} down and {digits(up)} up: {over}"
            trace.made(f"regression in {link.source}", how, link.regression)
        trace.made("sum of the regressions", " + ".join(digits(link.regression) for link in links), total)
    sides: list[tuple[float, float, float]] = []  # standard error, degrees of freedom, t quantile
    for side, name in enumerate(("downwards", "upwards")):
        variances = [pair[side] ** 2 for pair in errors]
        variance, freedom = sum(variances), 1.0
        if shared:
            error, freedom = sum(pair[side] for pair in errors), min(link.known_freedom[side] for link in links)
        elif variance > 0:
            error = math.sqrt(variance)
            freedom = variance**2 / sum(
                v**2 / link.known_freedom[side] for v, link in zip(variances, links, strict=True)
            )
        else:
            error = 0.0
        quantile = t_ppf(1 - alpha, freedom)
        if trace is not None:
            of_error, of_freedom = "root of the sum of the squared standard errors", " (Satterthwaite)"
            how = "V^2 / sum of v^2 / f, V = sum of v, f of each link"
            if shared:
                of_error, of_freedom, how = (
                    "sum of the standard errors, which share a sample",
                    "",
                    "the least of a link",
                )
            trace.made(f"standard error {name}", of_error, error)
            trace.made(f"degrees of freedom {name}{of_freedom}", how, freedom)
            trace.made(f"t quantile {name}", f"t({digits(1 - alpha)}, {digits(freedom)})", quantile)
        sides.append((error, freedom, quantile))
    (below, freedom, lower_t), (above, _, upper_t) = sides
    limits = Limits(total - lower_t * below, total + upper_t * above)
    if below > 0:
        p_value = t_sf(total / below, freedom)
        how = f"P(T({digits(freedom)}) > {digits(total)} / {digits(below)})"
    else:
        shortest = min(link.n for link in links)
        p_value, how = (2.0**-shortest, f"2^-{shortest}") if total > 0 else (1.0, "the sum is not above 0")
    if trace is not None:
        lower, upper = f"{digits(lower_t)} * {digits(below)}", f"{digits(upper_t)} * {digits(above)}"
        trace.limits(limits, f"{digits(total)} - {lower}", f"{digits(total)} + {upper}")
        trace.made("p-value of no regression", how, p_value)
    return ChainSum(total, (below, above), limits, p_value)


def link_across_runs(log_ratio: float, cv_run: float, n: int, alpha: float, source: str = "a link") -> ChainLink:
    """Return the comparison of two values measured in two different runs as a link.

    Nothing cancels between runs, so each value brings the run-to-run variation: SE = √2·cv_run, where `cv_run` is the
    coefficient of variation of `n` runs of one deployment (a small one is the standard deviation of the logarithm).
    """
    check_alpha(alpha)
    reach = t_ppf(1 - alpha, n - 1) * math.sqrt(2) * cv_run
    return ChainLink(log_ratio, Limits(log_ratio - reach, log_ratio + reach), alpha, n, source)
