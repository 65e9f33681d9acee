"""Flows in virtual time: an event loop whose clock jumps to its next timer, and a server that only takes time."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, cast

import pytest

from benchgate.load.http.exchange import Response
from benchgate.load.http.pool import Pool
from benchgate.load.requests import PreparedRequest
from benchgate.load.scheduler import PreparedClass, Steady, TrafficClassRunner
from benchgate.load.shards import Level
from benchgate.load.spool import SpoolEntry, SpoolWriter
from benchgate.timers import Alarm
from tests.shells.load_helpers import target_at

NS = 1_000_000_000
ServiceTime = Callable[[int, float], float]
"""Seconds that the answer to a request takes, by its number and by when it was sent."""


class _Idle(selectors.DefaultSelector):
    """Nothing ever comes: what would be waited for passes at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will come")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.idle = _Idle()
        super().__init__(self.idle)

    def time(self) -> float:
        return self.idle.now_s


class World:
    """What flows find around them: a clock, alarms, a server and a place for answers."""

    def __init__(self, service_s: ServiceTime) -> None:
        self.service_s = service_s
        self.loop = _Loop()
        self.given_up = False
        self.asked = list[int]()

    def now_ns(self) -> int:
        return round(self.loop.time() * NS)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(coroutine)

    async def until(self, instant_ns: int) -> None:
        await asyncio.sleep(max(0, instant_ns - self.now_ns()) / NS)

    async def ask(self, wire: bytes, manner: object) -> Response:
        number, sent_ns = int(wire), self.now_ns()
        self.asked.append(number)
        await asyncio.sleep(self.service_s(number, self.loop.time()))
        return Response(sent_ns, self.now_ns())


class Kept:
    """Answers of one flow, in the order in which they were over."""

    def __init__(self) -> None:
        self.answers = list[SpoolEntry]()

    def keep(self, spooled: SpoolEntry) -> None:
        self.answers.append(spooled)


def tickets(numbers: Sequence[int] | range, offsets_ns: Sequence[int] | None = None) -> Iterator[PreparedRequest]:
    """Tickets with these numbers, at these instants or without any."""
    for number, offset_ns in zip(numbers, itertools.repeat(None) if offsets_ns is None else offsets_ns, strict=False):
        yield PreparedRequest(number, offset_ns, b"%d" % number)


def closed_class(
    level: Level, measured: Sequence[int], ramp: Sequence[int] | None, service_s: float | None = None
) -> tuple[PreparedClass, Kept]:
    """A closed loop, and where its answers are kept."""
    kept = Kept()
    extra = None if ramp is None else tickets(ramp)
    return PreparedClass(level, tickets(measured), cast(SpoolWriter, kept), ramp=extra, service_s=service_s), kept


def send(
    monkeypatch: pytest.MonkeyPatch,
    service_s: ServiceTime,
    *shares: Sequence[PreparedClass],
    world: World | None = None,
) -> World:
    """Send the classes of one worker after the other, all from one start, until all are over."""
    world = World(service_s) if world is None else world
    monkeypatch.setattr("benchgate.load.scheduler.monotonic_ns", world.now_ns)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for classes in shares:
                steady = Steady(sum(one.leads for one in classes), sum(not one.background for one in classes))
                for one in classes:
                    flow = TrafficClassRunner(target_at("http://a"), cast(Pool, world), one, cast(Alarm, world), steady)
                    group.create_task(flow.run(0))

    world.run(all_of_them())
    return world
