"""By what a fleet may be scaled: what a server said of itself where the SLO held, and where it no longer did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benchgate.gate.best_row import BestRow
from benchgate.gate.telemetry_values import stage_mean
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Gauge

WAITING, KV_USAGE, TOKENS = "waiting requests", "KV cache in use", "output tokens/s"
_GAUGES = ((WAITING, Gauge.WAITING), (KV_USAGE, Gauge.KV_USAGE))
_APART = 1.5  # times more where the SLO did not hold: less is no sign of it
_LEAST = MappingProxyType({WAITING: 1.0})  # there, on the mean: half a request that waits is chance


@dataclass(frozen=True, slots=True)
class Signal:
    """A number of one replica: `holds` is its mean at the best level, `misses` at the least level beyond it.

    `tells`: the two are far enough apart that a fleet may be scaled up above `holds`.
    """

    name: str
    stage: str
    holds: float
    beyond: str | None
    misses: float | None

    @property
    def tells(self) -> bool:
        """Whether it was much more where the SLO was not shown to hold."""
        return (
            self.misses is not None and self.misses >= _LEAST.get(self.name, 0.0) and self.misses > self.holds * _APART
        )


def scaling_signals(evidence: Evidence, levels: Sequence[BestRow], arm: Arm) -> tuple[Signal, ...]:
    """What the server told at the best of these levels and at the next one, the most telling first.

    A queue says that a replica is full whatever its requests are; how full its cache is depends on their lengths, and
    tokens per second on all of it, so they come in this order. What was not told at the best level is left out.
    """
    held = [row for row in levels if row.holds]
    if not held:
        return ()
    best = max(held, key=lambda row: row.tokens_per_s)
    more = [row for row in levels if not row.holds and _load_of(row) > _load_of(best)]
    beyond = min(more, key=_load_of) if more else None
    found = [
        Signal(name, best.stage, holds, *_at(evidence, beyond, arm, gauge))
        for name, gauge in _GAUGES
        if (holds := stage_mean(evidence, best.stage, arm, gauge)) is not None
    ]
    tokens = (None, None) if beyond is None else (beyond.stage, beyond.tokens_per_s)
    found.append(Signal(TOKENS, best.stage, best.tokens_per_s, *tokens))
    return tuple(sorted(found, key=lambda one: not one.tells))


def _at(evidence: Evidence, row: BestRow | None, arm: Arm, gauge: Gauge) -> tuple[str | None, float | None]:
    """A level's name and what was told there; nothing where it was not."""
    seen = None if row is None else stage_mean(evidence, row.stage, arm, gauge)
    return (None, None) if row is None or seen is None else (row.stage, seen)


def _load_of(row: BestRow) -> float:
    """Requests inside at once, by which levels are ordered; where their time is not known, by tokens."""
    return float(row.in_flight) if row.in_flight is not None else row.tokens_per_s
