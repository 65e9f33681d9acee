"""Connections over real sockets: what a server sent is read, whatever became of the request; what breaks says so."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import uvloop

from benchgate.load.http.connection import Address, Connection, Peers, connect
from benchgate.load.http.exchange import Exchange, Failure, Response
from benchgate.load.http.reader import Reader, start_reader
from benchgate.model.records import ErrorClass
from tests.shells.load_helpers import limits
from tests.shells.wires import HEAD, TOKEN, Wire, hear, over_a_wire, payload

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the compiled reader is for Linux"),
    pytest.mark.usefixtures("compiled_and_not"),
]
T = TypeVar("T")


def with_reader(scenario: Callable[[Reader | None], Awaitable[T]]) -> T:
    async def run() -> T:
        reader = start_reader()
        try:
            return await scenario(reader)
        finally:
            if reader is not None:
                reader.close()

    return uvloop.run(run())


def ask(connection: Connection, request: bytes) -> asyncio.Task[Response]:
    return asyncio.create_task(connection.exchange(request, lambda: Exchange(limits(), hear)))


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_a_reset_ends_its_own_connection_alone() -> None:
    async def scenario(wire: Wire) -> tuple[bool, bool]:
        other = await Wire.open(wire.reader)
        reset(other.peer)
        while other.connection.alive:
            await asyncio.sleep(0.001)
        alive = wire.connection.alive
        return alive, other.connection.alive

    assert over_a_wire(scenario) == (True, False)


def test_a_unix_socket_whose_backlog_is_full_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)
    address = Address("localhost", 80, "", "localhost", socket=path)

    async def scenario(reader: Reader | None) -> int:
        opening = [asyncio.ensure_future(connect(address, 10, Peers(), reader)) for _ in range(4)]
        await asyncio.sleep(0.02)
        waiting = sum(not task.done() for task in opening)
        listener.setblocking(False)
        accepted = []
        while not all(task.done() for task in opening):
            with contextlib.suppress(BlockingIOError):
                accepted.append(listener.accept()[0])
            await asyncio.sleep(0.001)
        for task in opening:
            task.result().close()
        for peer in accepted:
            peer.close()
        return waiting

    assert with_reader(scenario) > 0
    listener.close()


@pytest.mark.parametrize("size", [10, 40_000])
def test_an_answer_to_a_request_that_was_not_taken_whole_is_read(size: int) -> None:
    """The server answers and closes with unread bytes: writing on fails, and the answer is there."""
    refusal = b"HTTP/1.1 413 No\r\ncontent-length: %d\r\n\r\n%b" % (size, b"x" * size)

    async def scenario(wire: Wire) -> Response:
        asked = ask(wire.connection, bytes(2**24))
        await asyncio.sleep(0)
        await asyncio.to_thread(refuse, wire.peer)
        return await asyncio.wait_for(asked, 10)

    def refuse(peer: socket.socket) -> None:
        peer.recv(10)
        peer.sendall(refusal)
        peer.close()

    response = over_a_wire(scenario)
    assert response.head is not None
    assert (response.head.status, response.whole, len(payload(response))) == (413, True, size)


def test_what_was_sent_before_the_request_answers_nothing() -> None:
    async def scenario(wire: Wire) -> Response:
        assert wire.connection._transport is not None
        sock = wire.connection._transport.get_extra_info("socket")
        wire.peer.sendall(b"goodbye")
        reset(wire.peer)
        gone = select.poll()
        gone.register(sock.fileno(), 0)
        assert gone.poll(10_000)
        return await asyncio.wait_for(ask(wire.connection, b"POST"), 10)  # before the loop had a turn

    response = over_a_wire(scenario)
    assert (response.unanswered, payload(response)) == (True, b"")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(12, "Cannot allocate memory"), ErrorClass.CLIENT, "Cannot allocate memory in the middle"),
        (OSError(113, "No route to host"), ErrorClass.STREAM_BROKEN, "the connection broke in the middle"),
        (ConnectionResetError(104, "reset"), ErrorClass.STREAM_BROKEN, "the server reset the connection"),
        (None, ErrorClass.STREAM_BROKEN, "the server closed the connection"),
    ],
)
def test_an_error_of_this_machine_is_not_said_to_be_the_servers(
    error: OSError | None, kind: ErrorClass, said: str
) -> None:
    async def scenario(wire: Wire) -> Failure | None:
        asked = ask(wire.connection, b"POST")
        await asyncio.sleep(0)
        await wire.tell([HEAD, TOKEN])
        wire.connection._end(error)
        return (await asked).fault

    fault = over_a_wire(scenario)
    assert fault is not None
    assert fault.error is kind
    assert fault.detail.startswith(said)
