"""What a plan tells of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from benchgate.plan.judged import JudgedCheck
from benchgate.stats.look_power import Seen
from benchgate.suite.metric_kinds import KINDS
from benchgate.suite.schema import Suite

Measure = Literal["ratio", "difference", "share"]
_OF_MARGINS: Mapping[str | None, Measure] = MappingProxyType({"percent": "ratio", "points": "difference"})


@dataclass(frozen=True, slots=True)
class CheckPower:
    """One check: what it has, what it needs, and what it sees.

    `measure` says what `margin`, `sees_80` and `sees_95` are: a part of the baseline's value (or of the SLO), a
    difference of two shares, or a share of requests or items that miss. `sees_80` is the smallest true harm that is
    shown in 80 of 100 runs, with all that the suite measures (its last look). `has` and `needs` count `n_unit`; `needs`
    is for the margin with 95 %. `passes`: how often an equal candidate is promoted by this check alone, over all looks.

    `spread` is what these rest on: the deviation of the paired difference of a block, or the share of answers that
    differ between equals; `source` where it is from. `cannot` is why the check can never hold; None where it can.
    `short`: by what it cannot carry its margin. None everywhere stands for "not known before".
    """

    id: str
    metric: str
    required: bool
    allowed: bool  # by `allow_underpowered`
    margin: float | None = None
    measure: Measure | None = None
    n_unit: str | None = None
    has: int | None = None
    needs: int | None = None
    sees_80: float | None = None
    sees_95: float | None = None
    passes: float | None = None
    spread: float | None = None
    source: str | None = None
    measured: bool = False
    cannot: str | None = None
    remedy: str | None = None
    note: str | None = None

    @property
    def short(self) -> Literal["certain", "measured", "assumed"] | None:
        """By what the check is known not to carry its margin; None where nothing says so."""
        if self.cannot is not None:
            return "certain"
        if self.margin is None or self.sees_80 is None or self.sees_80 <= self.margin:
            return None
        return "measured" if self.measured else "assumed"


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A check with what it would say of an equal candidate at each look, where that was drawn."""

    power: CheckPower
    seen: Seen | None = None


def bare_row(one: JudgedCheck, suite: Suite, note: str | None = None) -> CheckPower:
    """A check of which no more is known than that it is there."""
    return CheckPower(
        id=one.id,
        metric=one.check.metric,
        required=one.check.required,
        allowed=one.check.allow_underpowered or suite.gate.allow_underpowered,
        margin=one.check.margin,
        measure=_OF_MARGINS.get(KINDS[one.check.metric].margin) if one.check.margin is not None else None,
        note=note,
    )
