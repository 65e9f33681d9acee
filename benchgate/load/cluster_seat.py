"""One worker's part in a stage that a cluster sends, and how what becomes of it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchgate.load.cluster_crew import Clock
from benchgate.load.lost import of_lost
from benchgate.load.worker import Shard, StageResult

_WITHIN_NS = 5_000_000  # as far apart as workers may start


@dataclass(slots=True, eq=False)
class Seat:
    """The shard of the worker at `address`, which it knows as `job`. `why` says how it was lost, once it is."""

    address: str
    job: str
    shard: Shard
    future: Any = None  # of distributed
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = "was lost"
    clock: Clock | None = None

    @property
    def name(self) -> str:
        """As in the records, and where."""
        return f"{self.shard.name} at {self.address}"

    def is_lost(self, why: str) -> None:
        """Give it up; the first reason counts."""
        if not self.lost.is_set():
            self.why = why
            self.lost.set()

    def told(self, result: StageResult | None) -> StageResult:
        """What it brought home, its faults with its address. None: it is lost, and all of its share was never sent.

        What a lost worker had answered is on its own machine.
        """
        if result is None:
            whole = of_lost(replace(self.shard, spool=None))
            return _with_faults(whole, (f"{self.name} {self.why}",))
        return _with_faults(result, [fault.replace(self.shard.name, self.name, 1) for fault in result.client.faults])


def with_clocks(whole: StageResult, seats: Sequence[Seat]) -> StageResult:
    """A stage with how well its workers could be started together, and the fault of each one that could not."""
    known = [(seat, seat.clock.uncertainty_ns) for seat in seats if seat.clock is not None]
    if len(seats) < 2 or not known:
        return whole
    worst_ns = max(uncertain_ns for _, uncertain_ns in known)
    whole = replace(whole, client=replace(whole.client, start_uncertainty_s=worst_ns / 1e9))
    unsure = [
        f"{seat.name} cannot be started within {_WITHIN_NS / 1e6:.0f} ms of the others: "
        f"its clock is known to {uncertain_ns / 1e6:.1f} ms"
        for seat, uncertain_ns in known
        if uncertain_ns > _WITHIN_NS
    ]
    return _with_faults(whole, [*whole.client.faults, *unsure])


def _with_faults(result: StageResult, faults: Sequence[str]) -> StageResult:
    return replace(result, client=replace(result.client, faults=tuple(faults)))
