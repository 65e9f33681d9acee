"""Limits of a sum of independent estimates, of which nothing is kept but each one's own limits.

Harm that adds up over promotions: the sum of comparisons that follow one another, and one across two runs.

Each promotion's candidate is the next one's baseline, so on a scale where harms add (log ratios, differences of shares)
the last candidate's harm against the first baseline is the sum of the links between them. Each link was measured beside
its own live baseline, so what changed between runs is in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.stats.distributions import Limits, check_alpha, t_ppf, t_sf


@dataclass(frozen=True, slots=True)
class Figure:
    """An estimate and its limits, None where the evidence carries none."""

    value: float
    limits: Limits | None

    def times(self, factor: float) -> Figure:
        """So many times this; `factor` is above 0."""
        limits = self.limits
        scaled = None if limits is None else Limits(limits.lower * factor, limits.upper * factor)
        return Figure(self.value * factor, scaled)


def weighted_sum(parts: Sequence[tuple[float, Figure]]) -> Figure:
    """The sum of weight times estimate, with limits of the level that the parts' limits have.

    What each estimate varies is recovered from its own limits, at the end that matters (MOVER; Zou and Donner,
    Statistics in Medicine 27, 2008): with estimates x, lower limits l, upper u and weights above 0 the sum's lower
    limit is Σwx - √Σ(w(x - l))²; a weight below 0 takes the other end. None where a part has none. A ratio or a product
    is the sum of logarithms. ValueError when there is nothing to add.
    """
    if not parts:
        raise ValueError("there is no estimate to add")
    total = sum(weight * one.value for weight, one in parts)
    below, above = list[float](), list[float]()
    for weight, one in parts:
        if one.limits is None:
            return Figure(total, None)
        ends = sorted((weight * (one.value - one.limits.lower), weight * (one.value - one.limits.upper)))
        below.append(ends[1])
        above.append(ends[0])
    return Figure(total, Limits(total - math.hypot(*below), total + math.hypot(*above)))


def ratio(numerator: Figure, denominator: Figure) -> Figure | None:
    """One over the other, both above 0, on the log scale; None where either is not above 0."""
    return _powers((1.0, numerator), (-1.0, denominator))


def product(one: Figure, other: Figure) -> Figure | None:
    """One times the other, likewise."""
    return _powers((1.0, one), (1.0, other))


def _powers(*parts: tuple[float, Figure]) -> Figure | None:
    if any(one.value <= 0 for _, one in parts):
        return None
    summed = weighted_sum([(power, _logarithm(one)) for power, one in parts])
    value, limits = math.exp(summed.value), summed.limits
    return Figure(value, None if limits is None else Limits(math.exp(limits.lower), math.exp(limits.upper)))


def _logarithm(one: Figure) -> Figure:
    """Without limits where one of them is 0: nothing is known of how far down it goes."""
    limits = one.limits
    if limits is None or limits.lower <= 0:
        return Figure(math.log(one.value), None)
    return Figure(math.log(one.value), Limits(math.log(limits.lower), math.log(limits.upper)))


@dataclass(frozen=True, slots=True)
class Link:
    """One comparison: harm with one-sided limits, each wrong with the probability `alpha`, from `n` observations."""

    harm: float
    limits: Limits
    alpha: float
    n: int


@dataclass(frozen=True, slots=True)
class Summed:
    """The harm of all links together; `errors` are its standard errors downwards and upwards."""

    harm: float
    errors: tuple[float, float]
    limits: Limits
    p_harm: float


def summed(links: Sequence[Link], alpha: float) -> Summed:
    """The sum of independent links, with limits by MOVER (Zou and Donner 2008, Statistics in Medicine 27, 1693-1702).

    The variance on each side of a link's harm is had from its own limit there, (limit - harm) / t(1-alpha, n-1), so a
    limit that is not symmetrical keeps its shape; variances add, and the degrees of freedom are Satterthwaite's
    (1946): (sum of v)² / sum of v²/(n-1). `p_harm` tests "the sum is at most 0".

    Where no link has any spread downwards, p_harm is 1 at or below 0 and 2**-n above, the least that signs can give.
    ValueError without links, or for a link of fewer than two observations.
    """
    check_alpha(alpha)
    if not links or min(link.n for link in links) < 2:
        raise ValueError("a sum needs links, each of two observations at least")
    harm = sum(link.harm for link in links)
    below, above = (_side(links, lower=side) for side in (True, False))
    limits = Limits(harm - t_ppf(1 - alpha, below[1]) * below[0], harm + t_ppf(1 - alpha, above[1]) * above[0])
    if below[0] > 0:
        p_harm = t_sf(harm / below[0], below[1])
    else:
        p_harm = 2.0 ** -min(link.n for link in links) if harm > 0 else 1.0
    return Summed(harm, (below[0], above[0]), limits, p_harm)


def across_runs(log_ratio: float, cv_run: float, n: int, alpha: float) -> Link:
    """A comparison of two values that were measured in two runs, as a link.

    Nothing cancels between runs, so each value brings the run-to-run variation: SE = √2·cv_run, where `cv_run` was had
    from `n` runs of one deployment (a small coefficient of variation is the standard deviation of the logarithm).
    """
    check_alpha(alpha)
    reach = t_ppf(1 - alpha, n - 1) * math.sqrt(2) * cv_run
    return Link(log_ratio, Limits(log_ratio - reach, log_ratio + reach), alpha, n)


def _side(links: Sequence[Link], *, lower: bool) -> tuple[float, float]:
    """Standard error and degrees of freedom of the sum, on one side of it."""
    variances = []
    for link in links:
        reach = link.harm - link.limits.lower if lower else link.limits.upper - link.harm
        variances.append((reach / t_ppf(1 - link.alpha, link.n - 1)) ** 2)
    total = sum(variances)
    if total == 0:
        return 0.0, 1.0
    freedom = total**2 / sum(v**2 / (link.n - 1) for v, link in zip(variances, links, strict=True))
    return math.sqrt(total), freedom
