"""Whether something has lasted too long is looked at when it may have, by one timer for all."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from time import monotonic_ns

import pytest
import uvloop

from benchgate.load.decode.body import Read
from benchgate.load.decode.record import progress_of
from benchgate.load.http.connection import Check, Connection, Deadlines, Due
from benchgate.load.http.exchange import CancellingExchange, Exchange, Progress, Response
from benchgate.model.records import ErrorClass
from tests.fakes.scripted_server import chunk, role_event, stream_head, token
from tests.shells.load_helpers import limits

MS = 1_000_000
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def test_each_is_called_in_order_never_before_its_instant_and_again_when_it_says_so() -> None:
    called = list[tuple[str, bool]]()

    async def run() -> None:
        deadlines, done = Deadlines(), asyncio.Event()
        begin_ns = monotonic_ns()

        def check(name: str, at_ms: int, again_ms: int | None = None) -> None:
            def look() -> None:
                called.append((name, monotonic_ns() >= begin_ns + at_ms * MS))
                if again_ms is not None:
                    check(name, again_ms)
                if len(called) == 4:
                    done.set()

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

        def fails() -> None:
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


def test_what_is_forgotten_is_not_called_and_keeps_nothing_of_who_asked() -> None:
    class Asking:
        def look(self) -> None:
            called.append(self)

    called = list[Asking]()

    async def run() -> tuple[int, int]:
        deadlines, others = Deadlines(), list[str]()
        begin_ns = monotonic_ns()
        all_of_them = [Asking() for _ in range(1000)]
        dues = [deadlines.check_at(begin_ns + 5 * MS, asking.look) for asking in all_of_them]
        alive = [weakref.ref(asking) for asking in all_of_them]
        deadlines.check_at(begin_ns + 8 * MS, lambda: others.append("called"))
        for due in dues:
            deadlines.forget(due)
            deadlines.forget(due)
        all_of_them.clear()
        waiting = len(deadlines._waiting)
        while not others:
            await asyncio.sleep(0.001)
        return waiting, sum(ref() is not None for ref in alive)

    waiting, alive = uvloop.run(run())
    assert (called, alive) == ([], 0)
    assert waiting <= 130


def test_a_connection_that_is_gone_is_not_waited_for() -> None:
    async def run() -> int:
        deadlines = Deadlines()
        for _ in range(500):
            connection = Connection(deadlines)
            connection.connection_made(Silent())
            task = asked(connection, total_s=3600)
            await asyncio.sleep(0)
            connection.data_received(ANSWER)
            assert (await task).whole
            connection.connection_lost(None)
        return len(deadlines._waiting)

    assert uvloop.run(run()) <= 130


class Silent(asyncio.Transport):
    """Takes everything and says nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def asked(connection: Connection, *, total_s: float) -> asyncio.Task[Response]:
    def begin() -> Exchange:
        return Exchange(limits(first_token_s=total_s, stall_s=total_s, total_s=total_s), hear)

    return asyncio.create_task(connection.exchange(b"POST", begin))


def hear(body: Iterable[Read]) -> Progress:
    return Progress()


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


def test_of_a_long_stream_the_end_alone_is_read_while_it_comes_unless_it_has_no_output() -> None:
    reads_of: list[int] = []

    def counting(body: Iterable[Read]) -> Progress:
        reads = list(body)
        reads_of.append(len(reads))
        return progress_of(reads)

    async def run() -> None:
        exchange = Exchange(limits(first_token_s=3600, stall_s=3600, total_s=3600), counting)
        for data in (stream_head() + role_event(), *[token("a")] * 100, *[chunk(b": ping\n\n")] * 31):
            exchange.append(data)
            exchange.append_mark(monotonic_ns())
            exchange.append_mark(len(data))
            exchange.parse_available()
        exchange.check_limits()
        exchange.append(chunk(b": ping\n\n"))
        exchange.append_mark(monotonic_ns())
        exchange.append_mark(len(chunk(b": ping\n\n")))
        exchange.check_limits()
        assert not exchange.over.done()

    uvloop.run(run())
    assert reads_of == [32, 32, 133]


@pytest.mark.parametrize("framing", [b"content-length: 9000000\r\n", b""])
def test_of_a_body_without_chunks_no_read_is_put_together_with_those_before(framing: bytes) -> None:
    """Or a long one, also a hostile one, would cost the square of its length; its end is seen all the same."""

    def come(exchange: Exchange, data: bytes) -> None:
        exchange.append(data)
        exchange.append_mark(monotonic_ns())
        exchange.append_mark(len(data))
        exchange.parse_available()

    async def run() -> tuple[int, bool]:
        exchange = Exchange(limits(first_token_s=3600, stall_s=3600, total_s=3600), hear)
        come(exchange, b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
        for _ in range(100):
            come(exchange, b"data: [DONE] 1\n\n")
        kept = len(exchange._reads)
        for data in (b"data: [DO", b"NE]\n", b"\n"):
            come(exchange, data)
        lingers = exchange._linger is not None
        exchange.cancel_timers()
        return kept, lingers

    assert uvloop.run(run()) == (101, True)


def test_one_check_stands_for_all_requests_of_a_connection_and_each_has_its_whole_time() -> None:
    class Counting(Deadlines):
        def __init__(self) -> None:
            super().__init__()
            self.asked = 0

        def check_at(self, instant_ns: int, check: Check) -> Due:
            self.asked += 1
            return super().check_at(instant_ns, check)

    async def run() -> tuple[int, Response, int]:
        deadlines = Counting()
        connection = Connection(deadlines)
        connection.connection_made(Silent())
        for total_s in (3600, 3600, 3600, 3600, 0.2):
            task = asked(connection, total_s=total_s)
            await asyncio.sleep(0.02)
            connection.data_received(ANSWER)
            assert (await task).whole
        times, began_ns = deadlines.asked, monotonic_ns()
        hung = await asyncio.wait_for(asked(connection, total_s=0.2), 20)
        return times, hung, monotonic_ns() - began_ns

    times, hung, took_ns = uvloop.run(run())
    assert (times, hung.fault is not None) == (2, True)  # the last one's limit comes before that of the others
    assert took_ns >= 200 * MS


def test_of_an_answer_that_its_client_cancels_no_read_is_put_together_with_those_before() -> None:
    """Every read of it is parsed: joined each time, a long answer would cost the square of its length."""
    counted: list[int] = []

    def chunks(body: Iterable[Read]) -> int:
        counted.append(sum(b"data:" in data for _, data in body))
        return counted[-1]

    async def run() -> tuple[int, bool]:
        far = limits(first_token_s=3600, stall_s=3600, total_s=3600)
        exchange = CancellingExchange(far, hear, chunks, at_ns=None, after_chunks=100, hint=b"data:")
        for data in (stream_head(), *[token("a")] * 99):
            exchange.append(data)
            exchange.append_mark(monotonic_ns())
            exchange.append_mark(len(data))
            exchange.parse_available()
        kept, early = len(exchange._reads), exchange.over.done()
        assert not early and counted == []
        exchange.append(token("a"))
        exchange.append_mark(monotonic_ns())
        exchange.append_mark(len(token("a")))
        exchange.parse_available()
        return kept, (await exchange.over).left

    assert uvloop.run(run()) == (100, True)
    assert counted == [100]
