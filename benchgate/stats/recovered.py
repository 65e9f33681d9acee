"""Limits of a sum of independent estimates, of which nothing is kept but each one's own limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.stats.limits import Limits


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
