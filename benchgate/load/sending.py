"""Sends one worker's share of a stage on time and spools what comes back; what an answer means is read later.

All its classes of traffic share one event loop, one start and the connections; each has an arrival process of its own
(`flow`). What runs in the background ends when the others have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import monotonic_ns

from benchgate.clocks import monotonic_of
from benchgate.load.canary import Canary, with_stamps
from benchgate.load.flow import Class, Flow, Steady
from benchgate.load.level import Level
from benchgate.load.pool import Pool
from benchgate.model.run import ClientUse
from benchgate.targets.dialect import Target
from benchgate.timers import Alarm

__all__ = ["Class", "Level", "Sending", "Sent", "Start"]

_NS = 1_000_000_000

Start = Callable[[], int]
"""Tells that the connections are open, waits for the others, and gives the shared start: ns since 1970 in UTC."""


@dataclass(frozen=True, slots=True)
class Sent:
    """How the sending went. `late_s` is how long after the shared start it began."""

    client: ClientUse
    down_after_s: float | None
    late_s: float


class Sending:
    """One share of a stage under way."""

    def __init__(self, target: Target, pool: Pool, classes: Sequence[Class]) -> None:
        self._target = target
        self._pool = pool
        self._classes = classes
        self._epoch_ns = 0

    async def run(self, start: Start | None) -> Sent:
        """Send everything and wait for it all. Without `start` the stage begins once the connections are open."""
        try:
            with ExitStack() as stack:  # before the connections, which may take all files there are
                canary = stack.enter_context(Canary())
                alarms = [stack.enter_context(Alarm(self._pool.hurry)) for _ in self._classes]
                steady = Steady(sum(group.leads for group in self._classes))
                flows = [
                    Flow(self._target, self._pool, group, alarm, steady)
                    for group, alarm in zip(self._classes, alarms, strict=True)
                ]
                alarm = stack.enter_context(Alarm())
                await self._pool.open(sum(group.level.connections for group in self._classes))
                self._epoch_ns, late_s = await _begin(start, alarm)
                cpu_s = time.process_time()
                if (reader := self._pool.reader) is not None:  # which may gather answers for longer than a loop's turn
                    for each in alarms:
                        each.move(reader)
                canary.start(reader)
                await self._run_all(flows)
                canary.stop()
            wall_s = (monotonic_ns() - self._epoch_ns) / _NS
            use = canary.seen(ClientUse(cpu_s=time.process_time() - cpu_s, wall_s=wall_s, workers=1))
            if (stamped_s := self._pool.read_delays_s()) is not None:
                use = with_stamps(use, stamped_s)
            use = replace(use, unasked=self._pool.unasked, closed_early=self._pool.closed_early)
            return Sent(use, self._down_after_s(), late_s)
        finally:
            self._pool.close()
            for group in self._classes:
                group.keeper.keep_rest()

    async def _run_all(self, flows: Sequence[Flow]) -> None:
        """All classes at once; those in the background until the others are done."""
        async with asyncio.TaskGroup() as endless:
            for flow in flows:
                if flow.background:
                    endless.create_task(flow.run(self._epoch_ns))
            async with asyncio.TaskGroup() as ending:
                for flow in flows:
                    if not flow.background:
                        ending.create_task(flow.run(self._epoch_ns))
            for flow in flows:
                if flow.background:
                    flow.end()

    def _down_after_s(self) -> float | None:
        since_ns = self._pool.down_since_ns
        return None if since_ns is None else max(0, since_ns - self._epoch_ns) / _NS


async def _begin(start: Start | None, alarm: Alarm) -> tuple[int, float]:
    """The start of the stage in monotonic ns, waited for, and by how many seconds it was missed.

    Workers on other machines share nothing but the clock of day, so that is what the instant is told in.
    """
    if start is None:
        return monotonic_ns(), 0.0
    start_ns = await asyncio.to_thread(start)  # the loop goes on: a connection may close meanwhile
    epoch_ns = monotonic_of(start_ns)
    late_s = max(0, monotonic_ns() - epoch_ns) / _NS
    await alarm.until(epoch_ns)
    return epoch_ns, late_s
