"""What a server sees when the client stops waiting: its connection ends at once."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import uvloop

from benchgate.load.decode.record import progress_of
from benchgate.load.http.connection import Address
from benchgate.load.http.pool import Pool
from benchgate.model.records import ErrorClass
from benchgate.suite.schema import Limits
from benchgate.targets.address import Route
from tests.fakes.certificates import CA, serving
from tests.fakes.scripted_server import chunk, finish, token
from tests.shells.load_helpers import HALO, closed, limits, run

STALLED = "no further output came for 0.1 s in the middle of the response"
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@dataclass
class Endless:
    """A server that begins to answer, drips on without an end, and notes when the client is gone."""

    tls: ssl.SSLContext | None = None
    drip: bytes = b""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HALO)
        self.begun.set()
        dripping = asyncio.create_task(self._go_on(writer))
        try:
            while await reader.read(1024):
                pass
        except ConnectionError:
            pass
        self.left.set()
        dripping.cancel()
        writer.close()

    async def _go_on(self, writer: asyncio.StreamWriter) -> None:
        while self.drip:
            await asyncio.sleep(0.01)
            writer.write(self.drip)


async def _leave(tls: ssl.SSLContext | None, within: Limits | None, *, audit: bool, drip: bytes) -> str:
    endless = Endless(tls, drip)
    server = await asyncio.start_server(endless.answer, "127.0.0.1", 0, ssl=tls)
    async with server:
        scheme = "http" if tls is None else "https"
        url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
        pool = Pool(Address.of(url, Route(ca=CA)), within or limits(), progress_of, audit=audit)
        try:
            asking = asyncio.create_task(pool.ask(REQUEST))
            await endless.begun.wait()
            if within is None:
                await asyncio.sleep(0)  # into the middle of the wait
                asking.cancel()
            [outcome] = await asyncio.gather(asking, return_exceptions=True)
            async with asyncio.timeout(10):
                await endless.left.wait()  # while the pool is still open: the connection alone was dropped
        finally:
            pool.close()
    if isinstance(outcome, asyncio.CancelledError):
        return "cancelled"
    assert not isinstance(outcome, BaseException)
    assert outcome.fault is not None
    assert outcome.fault.error is ErrorClass.TIMEOUT
    return outcome.fault.detail


def leave(
    tls: ssl.SSLContext | None = None, within: Limits | None = None, *, audit: bool = False, drip: bytes = b""
) -> str:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_leave(tls, within, audit=audit, drip=drip))


@pytest.mark.parametrize("audit", [False, True])
def test_cancelled_request_ends_its_connection_at_once(audit: bool) -> None:
    assert leave(audit=audit) == "cancelled"


def test_cancelled_request_over_tls_ends_its_connection_at_once() -> None:
    assert leave(serving()) == "cancelled"


def test_request_given_up_for_its_time_ends_its_connection_at_once() -> None:
    assert leave(within=limits(stall_s=0.1)) == STALLED


@pytest.mark.parametrize("drip", [b"1\r\nx\r\n", chunk(b": ping\n\n"), token("")], ids=["bytes", "pings", "no text"])
def test_what_drips_without_output_does_not_break_its_silence(drip: bytes) -> None:
    """llama.cpp and many gateways say every second that they are still there."""
    assert leave(within=limits(stall_s=0.1), drip=drip) == STALLED


def test_what_drips_after_the_finish_reason_is_no_stall_and_ends_with_the_total() -> None:
    drip = finish("stop") + chunk(b": ping\n\n")
    assert leave(within=limits(stall_s=0.2, total_s=0.6), drip=drip) == "not over within 0.6 s"


@pytest.fixture
def full_port() -> Iterator[int]:
    """A port that accepts no connection and refuses none: its queue is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = []
        try:
            for _ in range(4):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(listening.getsockname())
            yield listening.getsockname()[1]
        finally:
            for sock in waiting:
                sock.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_connection_that_does_not_come_about_in_time_fails_as_connect(full_port: int, scheme: str) -> None:
    columns = run(f"{scheme}://127.0.0.1:{full_port}", closed(1), limits(connect_s=0.2)).requests
    assert columns.error == (ErrorClass.CONNECT,)
    assert columns.error_detail == ("no connection within 0.2 s",)
