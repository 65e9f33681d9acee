"""By what a fleet may be scaled: what a server said of itself where the SLO held, and where it no longer did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

from benchgate.gate.best_row import BestRow, lightest
from benchgate.gate.telemetry_values import executions_of, windows_of
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Gauge

WAITING, KV_USAGE, TOKENS = "waiting requests", "KV cache in use", "output tokens/s"
_GAUGES = ((WAITING, Gauge.WAITING), (KV_USAGE, Gauge.KV_USAGE))
_APART = 1.5  # times more where the SLO did not hold: less is no sign of it
_LEAST = MappingProxyType({WAITING: 1.0, KV_USAGE: 0.5})
"""What there must be where the SLO did not hold: less than one that waits is chance, a cache half empty no limit."""
_FEWEST_BLOCKS = 2  # one value has no spread to be told from


@dataclass(frozen=True, slots=True)
class Seen:
    """A number at one level: its mean, and the least and the most of its blocks (of tokens per second its limits)."""

    stage: str
    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Signal:
    """A number of one replica at the level that it is sized by, and at the least level beyond that does not hold.

    `beyond` is None where no such level was measured, or its server did not tell.
    """

    name: str
    holds: Seen
    beyond: Seen | None

    @property
    def tells(self) -> bool:
        """Whether it was more by its every block where the SLO was not shown to hold, and enough to be its cause."""
        if self.beyond is None:
            return False
        return self.beyond.least >= _LEAST.get(self.name, 0.0) and self.beyond.least > self.holds.most * _APART

    @property
    def threshold(self) -> float | None:
        """Above what to scale up: above every block in which the SLO held. None where it does not tell."""
        return max(self.holds.most, _LEAST.get(self.name, 0.0)) if self.tells else None


def scaling_signals(evidence: Evidence, levels: Sequence[BestRow], sized_by: BestRow, arm: Arm) -> tuple[Signal, ...]:
    """What the server told at the level that counts and at the next one of its kind beyond it, the most telling first.

    A queue says that a replica is full whatever its requests are; how full its cache is depends on their lengths, and
    tokens per second on all of it, so they come in this order. What was not told at the level that counts is left out.
    """
    alike = [row for row in levels if row.kind == sized_by.kind]
    missed = [row for row in alike if not row.holds and not row.has_less_load_than(sized_by)]
    more = [row for row in missed if sized_by.has_less_load_than(row)] or missed  # of as much load, where none has more
    beyond = lightest(more)
    found = [
        Signal(name, holds, None if beyond is None else _told(evidence, beyond, arm, gauge))
        for name, gauge in _GAUGES
        if (holds := _told(evidence, sized_by, arm, gauge)) is not None
    ]
    holds = _pace(sized_by)
    found += [] if holds is None else [Signal(TOKENS, holds, None if beyond is None else _pace(beyond))]
    return tuple(sorted(found, key=lambda one: not one.tells))


def _told(evidence: Evidence, row: BestRow, arm: Arm, gauge: Gauge) -> Seen | None:
    """A gauge by its blocks; None where one of them told nothing, or of a share that is none; and of one alone."""
    windows = windows_of(evidence, row.stage, arm)
    means = [window.mean(gauge) for window in windows.values()]
    known = [mean for mean in means if mean is not None and (gauge is not Gauge.KV_USAGE or 0 <= mean <= 1)]
    untold = executions_of(evidence, row.stage, arm).keys() - windows.keys()
    if untold or len(known) < max(len(means), _FEWEST_BLOCKS):
        return None
    return Seen(row.stage, fmean(known), min(known), max(known))


def _pace(row: BestRow) -> Seen | None:
    """Its tokens per second with their limits; None where they have none."""
    if row.tokens_lower is None or row.tokens_upper is None:
        return None
    return Seen(row.stage, row.tokens_per_s, row.tokens_lower, row.tokens_upper)
