"""Waiting for instants: many wait for instants of their own, nobody goes before, and everybody can be let go."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from time import monotonic_ns

import pytest
import uvloop

from benchgate.load.http.reader import Sockets
from benchgate.load.pacing import Alarm

MS_NS = 1_000_000
AN_HOUR_NS = 3_600_000 * MS_NS


def run(what: Callable[[Alarm], Awaitable[None]], kernel: bool = True) -> None:
    """With an alarm by the kernel's timer or by the loop's; what has not ended within 10 s will not."""

    async def whole() -> None:
        alarm = Alarm()
        with alarm if kernel else nullcontext():
            await asyncio.wait_for(what(alarm), 10)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


@pytest.mark.parametrize("kernel", [True, False])
def test_each_of_many_goes_at_its_own_instant_and_none_before(kernel: bool) -> None:
    gone: list[int] = []

    async def wait(alarm: Alarm, place: int, instant_ns: int) -> None:
        await alarm.until(instant_ns)
        assert monotonic_ns() >= instant_ns
        gone.append(place)

    async def all_of_them(alarm: Alarm) -> None:
        now_ns = monotonic_ns()
        instants = [now_ns + after_ms * MS_NS + 137_000 for after_ms in (9, 3, 6, 12)]
        await asyncio.gather(*(wait(alarm, place, instant_ns) for place, instant_ns in enumerate(instants)))

    run(all_of_them, kernel)
    assert gone == [1, 2, 0, 3]


def test_who_asked_to_be_told_is_told_before_anybody_is_woken() -> None:
    happened: list[str] = []

    async def whole() -> None:
        with Alarm(lambda: happened.append("rings")) as alarm:
            await alarm.until(monotonic_ns() + MS_NS)
            happened.append("woken")
            await alarm.until(0)
            alarm.ring_out()

    asyncio.run(whole())
    assert happened == ["rings", "woken"]


@pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")
def test_an_alarm_that_was_moved_is_told_of_there_and_no_longer_by_the_loop() -> None:
    async def moved(alarm: Alarm) -> None:
        sockets = Sockets()
        waiting = asyncio.create_task(alarm.until(monotonic_ns() + MS_NS))
        await asyncio.sleep(0)
        alarm.move(sockets)
        sockets._loop.remove_reader(sockets._epoll.fileno())
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        assert sockets._flows.look(0) == 1
        await waiting
        again = asyncio.create_task(alarm.until(monotonic_ns() + MS_NS))
        sockets._loop.add_reader(sockets._epoll.fileno(), sockets._look)
        await again
        alarm.__exit__(None, None, None)
        sockets.close()

    async def whole() -> None:
        await asyncio.wait_for(moved(Alarm().__enter__()), 10)

    uvloop.run(whole())


def test_who_waits_and_who_would_wait_goes_on_once_it_rings_out() -> None:
    async def let_go(alarm: Alarm) -> None:
        later_ns = monotonic_ns() + AN_HOUR_NS
        waiting = [asyncio.create_task(alarm.until(later_ns)) for _ in range(3)]
        await asyncio.sleep(0)
        alarm.ring_out()
        await asyncio.gather(*waiting)
        await alarm.until(later_ns)

    run(let_go)


def test_one_that_gave_up_waiting_keeps_nobody_from_going() -> None:
    async def give_up(alarm: Alarm) -> None:
        first = asyncio.create_task(alarm.until(monotonic_ns() + 2 * MS_NS))
        await asyncio.sleep(0)
        first.cancel()
        await alarm.until(monotonic_ns() + 4 * MS_NS)
        assert first.cancelled()

    run(give_up)
