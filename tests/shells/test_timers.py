"""Waiting for instants: many wait for instants of their own, nobody goes before, and everybody can be let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from time import monotonic_ns

import pytest
import uvloop

from benchgate import timers
from benchgate.timers import Alarm, Ticker

MS_NS = 1_000_000
AN_HOUR_NS = 3_600_000 * MS_NS


def run(what: Callable[[Alarm], Awaitable[None]]) -> None:
    """With an alarm; what has not ended within 10 s will not."""

    async def whole() -> None:
        with Alarm() as alarm:
            await asyncio.wait_for(what(alarm), 10)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


@pytest.fixture(params=["kernel", "loop"])
def either_timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's timer where there is one, and the event loop's."""
    if request.param == "loop":
        monkeypatch.setattr(timers, "Timer", timers.LoopTimer)


@pytest.mark.usefixtures("either_timer")
def test_each_of_many_goes_at_its_own_instant_and_none_before() -> None:
    gone: list[int] = []

    async def wait(alarm: Alarm, place: int, instant_ns: int) -> None:
        await alarm.until(instant_ns)
        assert monotonic_ns() >= instant_ns
        gone.append(place)

    async def all_of_them(alarm: Alarm) -> None:
        now_ns = monotonic_ns()
        instants = [now_ns + after_ms * MS_NS + 137_000 for after_ms in (9, 3, 6, 12)]
        await asyncio.gather(*(wait(alarm, place, instant_ns) for place, instant_ns in enumerate(instants)))

    run(all_of_them)
    assert gone == [1, 2, 0, 3]


@pytest.mark.usefixtures("either_timer")
def test_a_ticker_makes_up_for_the_ticks_that_a_busy_loop_missed() -> None:
    due: list[int] = []

    async def whole() -> None:
        ticker = Ticker(2 * MS_NS, lambda due_ns, now_ns: due.append(due_ns))
        ticker.start()
        await asyncio.sleep(0.005)
        time.sleep(0.02)
        await asyncio.sleep(0.005)
        ended_ns = ticker.stop()
        ticker.close()
        assert due == [ticker.started_ns + tick * 2 * MS_NS for tick in range(1, len(due) + 1)]
        assert due[-1] <= ended_ns < due[-1] + 2 * MS_NS

    uvloop.run(whole())
    assert len(due) >= 14


@pytest.mark.usefixtures("either_timer")
def test_a_timer_that_is_set_anew_expires_at_the_new_instant_alone() -> None:
    expired: list[int] = []

    async def whole() -> None:
        timer = timers.Timer(lambda times: expired.append(monotonic_ns()))
        start_ns = monotonic_ns()
        timer.set(start_ns + 2 * MS_NS)
        timer.set(start_ns + 10 * MS_NS)
        await asyncio.sleep(0.03)
        timer.close()
        assert [instant >= start_ns + 10 * MS_NS for instant in expired] == [True]

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
