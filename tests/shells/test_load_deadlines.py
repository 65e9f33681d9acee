"""Whether something has lasted too long is looked at when it may have, by one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic_ns

import uvloop

from benchgate.load.deadlines import Deadlines
from benchgate.load.exchange import Exchange, Response
from benchgate.load.raw_body import Read
from benchgate.load.wire import Connection
from benchgate.model.records import ErrorClass
from tests.shells.load_helpers import limits

MS = 1_000_000
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def test_each_is_called_in_order_never_before_its_instant_and_again_when_it_says_so() -> None:
    called = list[tuple[str, bool]]()

    async def run() -> None:
        deadlines, done = Deadlines(), asyncio.Event()
        begin_ns = monotonic_ns()

        def check(name: str, at_ms: int, again_ms: int | None = None) -> None:
            def look() -> int | None:
                now_ns = monotonic_ns()
                times = sum(told == name for told, _ in called)
                due_ms = at_ms if times == 0 or again_ms is None else again_ms
                called.append((name, now_ns >= begin_ns + due_ms * MS))
                if len(called) == 4:
                    done.set()
                return None if again_ms is None or times else begin_ns + again_ms * MS

            deadlines.check_at(begin_ns + at_ms * MS, look)

        check("last", 25)
        check("first", 5, again_ms=15)
        check("second", 10)
        await asyncio.wait_for(done.wait(), 10)
        deadlines.close()

    uvloop.run(run())
    assert called == [("first", True), ("second", True), ("first", True), ("last", True)]


def test_what_goes_wrong_with_one_keeps_nobody_else_from_being_called() -> None:
    async def run() -> bool:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        deadlines, called = Deadlines(), asyncio.Event()

        def fails() -> int | None:
            raise RuntimeError("of one")

        deadlines.check_at(monotonic_ns() + MS, fails)
        deadlines.check_at(monotonic_ns() + 2 * MS, lambda: called.set())
        return await asyncio.wait_for(called.wait(), 10)

    assert uvloop.run(run())


def test_nobody_is_called_once_it_is_closed() -> None:
    async def run() -> list[str]:
        deadlines, called = Deadlines(), list[str]()
        deadlines.check_at(monotonic_ns() + 2 * MS, lambda: called.append("x"))
        deadlines.close()
        await asyncio.sleep(0.02)
        return called

    assert uvloop.run(run()) == []


class Silent(asyncio.Transport):
    """Takes everything and says nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def asked(connection: Connection, *, total_s: float) -> asyncio.Task[Response]:
    def begin() -> Exchange:
        return Exchange(limits(first_token_s=total_s, stall_s=total_s, total_s=total_s), begun)

    return asyncio.create_task(connection.exchange(b"POST", begin))


def begun(body: Iterable[Read]) -> bool:
    return False


def test_a_request_with_less_time_than_the_one_before_it_on_its_connection_is_given_up_in_its_own_time() -> None:
    async def run() -> tuple[Response, list[Response]]:
        connection = Connection()
        connection.connection_made(Silent())
        patient = asked(connection, total_s=3600)
        await asyncio.sleep(0)
        connection.data_received(ANSWER)
        first = await patient
        return first, [await asyncio.wait_for(asked(connection, total_s=0.02), 20)]

    first, [second] = uvloop.run(run())
    assert first.whole
    assert second.fault is not None
    assert (second.fault.error, second.fault.detail) == (ErrorClass.TIMEOUT, "no output within 0.02 s")


def test_one_check_stands_for_all_requests_of_a_connection_and_each_has_its_whole_time() -> None:
    class Counting(Deadlines):
        def __init__(self) -> None:
            super().__init__()
            self.asked = 0

        def check_at(self, instant_ns: int, check: object) -> None:
            self.asked += 1
            super().check_at(instant_ns, check)  # type: ignore[arg-type]  # what it was given

    async def run() -> tuple[int, Response, int]:
        deadlines = Counting()
        connection = Connection(deadlines)
        connection.connection_made(Silent())
        for _ in range(5):
            task = asked(connection, total_s=0.3)
            await asyncio.sleep(0.02)
            connection.data_received(ANSWER)
            assert (await task).whole
        began_ns = monotonic_ns()
        hung = await asyncio.wait_for(asked(connection, total_s=0.3), 20)
        return deadlines.asked, hung, monotonic_ns() - began_ns

    times, hung, took_ns = uvloop.run(run())
    assert (times, hung.fault is not None) == (1, True)
    assert took_ns >= 300 * MS
