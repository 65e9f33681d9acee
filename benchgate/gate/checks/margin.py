"""How much worse a candidate may be in a block: its margin, or the least change that matters where that is more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchgate.gate.decision import Problem
from benchgate.gate.evidence.blocks import Measure
from benchgate.model.records import FloatArray
from benchgate.model.verdict import Outcome
from benchgate.units import as_written, show_duration, show_number, show_percent

_MOST_LATENCY, _MOST_RATE = 1 / 2, 1 / 3  # of the baseline's value: a change of more is no small one
_FAR_BEYOND_MARGIN = 3  # a least change so many times the margin is what decides, and not the margin


@dataclass(frozen=True, slots=True)
class Terms:
    """What a relative check of the policy says of harm.

    `margin` is a ratio, `least_change` in the metric's own unit (seconds, or per second). `two_sided`: a change either
    way is harm. `breach`: what blocks is harm beyond the margin.
    """

    margin: float
    breach: bool = False
    two_sided: bool = False
    least_change: float | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """The same on the log scale. `margins` and `leasts` have one element for every block of what is held against.

    A change below `leasts` is no harm; one below `margins`, which is never less, is allowed. `told` says it in words,
    where the number alone does not.
    """

    margins: FloatArray
    leasts: FloatArray
    told: str | None
    plain: float  # the margin alone
    beyond: str | None = None  # what is to be said of harm that only a least change far beyond the margin let through

    @property
    def margin(self) -> float:
        """That of the mean over blocks."""
        return float(self.margins.mean())

    @property
    def least(self) -> float:
        """The same of what is no harm."""
        return float(self.leasts.mean())


def log_margin(terms: Terms, measure: Measure) -> float:
    """5 % of a latency: up to ln 1.05 more; of a rate: down to ln 0.95. Both ways: no more than 5 % in either."""
    if measure.rises and not terms.two_sided:
        return -math.log1p(-terms.margin)
    return math.log1p(terms.margin)


def allowance(terms: Terms, measure: Measure, held_against: FloatArray) -> Allowance | Problem:
    """The terms beside the values, one a block, that the candidate's are held against.

    The least change is what it is of each block's own value. Were it that of their mean, the limits would not hold: the
    mean is measured too, and where blocks vary more than pairs do, it varies more than these limits know. One that
    comes to half of a latency or a third of a rate, and to more than the margin, is no small change and is refused.
    """
    margin = log_margin(terms, measure)
    least = terms.least_change
    if least is None:
        told = f"{_percent(terms.margin)} either way" if terms.two_sided else None
        return Allowance(np.full(len(held_against), margin), np.zeros(len(held_against)), told, margin)
    shown = _amount(least, measure)
    if measure.rises and least >= held_against.min():
        reason = f"a `min_abs` of {shown} is no less than the baseline's own {_amount(held_against.min(), measure)}"
        return Problem(Outcome.INVALID, f"{reason}: it would allow any loss", "write a smaller `min_abs`, or none")
    share = least / held_against
    leasts = -np.log1p(-share) if measure.rises else np.log1p(share)
    allowed = float(-np.expm1(-leasts.mean()) if measure.rises else np.expm1(leasts.mean()))
    if allowed > max(_MOST_RATE if measure.rises else _MOST_LATENCY, terms.margin):
        reason = f"a `min_abs` of {shown} allows {_percent(allowed)} of what the baseline does; that is no small change"
        return Problem(Outcome.INVALID, reason, "write a smaller `min_abs`, or write what is allowed as the `margin`")
    beyond = f"by `min_abs` alone, which allows {_percent(allowed)}: harm beyond the margin of {_percent(terms.margin)}"
    return Allowance(
        np.maximum(leasts, margin),
        leasts,
        f"{_percent(terms.margin)} or {shown}, whichever is more (here {_binding(leasts, margin, terms, shown)})",
        margin,
        f"{beyond} is shown" if allowed > _FAR_BEYOND_MARGIN * terms.margin else None,
    )


def _binding(leasts: FloatArray, margin: float, terms: Terms, shown: str) -> str:
    """Which of the two is more in these blocks."""
    if (leasts >= margin).all():
        return shown
    return _percent(terms.margin) if (leasts < margin).all() else "now the one and now the other"


def _percent(ratio: float) -> str:
    return as_written(show_percent(ratio))


def _amount(value: float, measure: Measure) -> str:
    return as_written(show_duration(value)) if measure.is_latency else f"{as_written(show_number(value))}/s"
