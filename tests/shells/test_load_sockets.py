"""Plain sockets behind one epoll: what was written arrives, in order, whatever the rate; what breaks says so."""

import asyncio
import contextlib
import select
import socket
import struct
import sys
from pathlib import Path
from typing import cast

import pytest
import uvloop

from benchgate.load.http import reader as module
from benchgate.load.http.reader import Sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")

STREAMS, LINES = 40, 400


class Keeps(asyncio.Protocol):
    """Keeps what came, and how it ended."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def listening() -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=STREAMS)
    return listener, listener.getsockname()[1]


def test_everything_arrives_in_order_at_a_rate_that_is_gathered() -> None:
    """Forty streams written line by line, as fast as one thread can."""
    listener, port = listening()
    gathered: list[bool] = []

    async def scenario() -> list[bytes]:
        sockets = Sockets()
        kept = [Keeps() for _ in range(STREAMS)]
        for keeps in kept:
            await sockets.open("127.0.0.1", port, keeps)
        peers = [listener.accept()[0] for _ in range(STREAMS)]
        await asyncio.gather(asyncio.to_thread(write_all, peers), watch(sockets), *(keeps.lost for keeps in kept))
        sockets.close()
        return [bytes(keeps.data) for keeps in kept]

    async def watch(sockets: Sockets) -> None:
        for _ in range(100):
            gathered.append(sockets._gathers)
            await asyncio.sleep(0.001)

    seen = uvloop.run(scenario())
    listener.close()
    assert seen == [b"".join(b"%d\n" % number for number in range(LINES))] * STREAMS
    assert any(gathered)


def write_all(peers: list[socket.socket]) -> None:
    for number in range(LINES):
        for peer in peers:
            peer.sendall(b"%d\n" % number)
    for peer in peers:
        peer.close()


def test_name_is_looked_up_and_a_refusal_is_told() -> None:
    listener, port = listening()

    async def scenario() -> tuple[bytes, Exception | None]:
        sockets, keeps = Sockets(), Keeps()
        await sockets.open("localhost", port, keeps)
        peer = listener.accept()[0]
        peer.sendall(b"hello")
        peer.close()
        ended = await keeps.lost
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await sockets.open("127.0.0.1", port, Keeps())
        sockets.close()
        return bytes(keeps.data), ended

    assert uvloop.run(scenario()) == (b"hello", None)


def test_reset_is_an_error_of_its_connection_alone() -> None:
    listener, port = listening()

    async def scenario() -> tuple[Exception | None, bool]:
        sockets, broken, whole = Sockets(), Keeps(), Keeps()
        for keeps in (broken, whole):
            await sockets.open("127.0.0.1", port, keeps)
        peers = [listener.accept()[0] for _ in range(2)]
        peers[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peers[0].close()
        ended = await broken.lost
        still_there = not whole.lost.done()
        whole.transport.abort()
        sockets.close()
        peers[1].close()
        return ended, still_there

    ended, still_there = uvloop.run(scenario())
    listener.close()
    assert isinstance(ended, ConnectionResetError)
    assert still_there


def test_unix_socket_of_a_server_that_is_behind_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its backlog is full, connecting is refused for now: EAGAIN, which TCP never says."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)

    async def scenario() -> int:
        sockets = Sockets()
        kept = [Keeps() for _ in range(4)]
        opening = [asyncio.ensure_future(sockets.open_unix(path, keeps)) for keeps in kept]
        await asyncio.sleep(0.02)
        waiting = sum(not task.done() for task in opening)
        listener.setblocking(False)
        accepted = []
        while not all(task.done() for task in opening):
            with contextlib.suppress(BlockingIOError):
                accepted.append(listener.accept()[0])
            await asyncio.sleep(0.001)
        for keeps in kept:
            keeps.transport.abort()
        sockets.close()
        for peer in accepted:
            peer.close()
        return waiting

    assert uvloop.run(scenario()) > 0
    listener.close()


@pytest.mark.parametrize("answer", [b"refused", b"refused " * 5000])
def test_what_a_server_says_before_it_has_taken_all_is_heard(answer: bytes) -> None:
    """It answers, and closes on what it has not read: writing on fails, and what it said is there."""
    listener, port = listening()

    async def scenario() -> Keeps:
        sockets, keeps = Sockets(), Keeps()
        await sockets.open("127.0.0.1", port, keeps)
        peer, _ = listener.accept()
        keeps.transport.write(bytes(2**24))
        await asyncio.to_thread(refuse, peer)
        await asyncio.wait_for(keeps.lost, 10)
        sockets.close()
        return keeps

    def refuse(peer: socket.socket) -> None:
        with peer:
            peer.recv(10)
            peer.sendall(answer)

    kept = uvloop.run(scenario())
    listener.close()
    assert kept.data == answer
    assert isinstance(kept.lost.result(), ConnectionError)


def test_what_was_said_before_anything_was_written_answers_nothing() -> None:
    listener, port = listening()

    async def scenario() -> Keeps:
        sockets, keeps = Sockets(), Keeps()
        await sockets.open("127.0.0.1", port, keeps)
        peer, _ = listener.accept()
        peer.sendall(b"goodbye")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        gone = select.poll()
        gone.register(keeps.transport.get_extra_info("socket"), 0)  # its end alone
        assert gone.poll(10_000)
        keeps.transport.write(b"GET")  # before the loop had a turn
        await asyncio.wait_for(keeps.lost, 10)
        sockets.close()
        return keeps

    kept = uvloop.run(scenario())
    listener.close()
    assert kept.data == b""
    assert isinstance(kept.lost.result(), ConnectionError)
