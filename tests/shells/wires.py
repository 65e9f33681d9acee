"""A connection of the measured path over a real socket, and the server's end of it in the hands of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import uvloop

from benchgate.load.decode.body import Read
from benchgate.load.http.connection import Connection
from benchgate.load.http.exchange import Exchange, Heard, Response
from benchgate.load.http.reader import Sockets, SocketTransport
from tests.shells.load_helpers import limits

T = TypeVar("T")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'19\r\ndata: {"content": "word"}\r\n'
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Counting(Connection):
    """Counts the reads that it was handed itself."""

    def __init__(self) -> None:
        super().__init__()
        self.handed = 0

    def data_received(self, data: bytes) -> None:
        self.handed += 1
        super().data_received(data)


class Wire:
    """A connection over a real socket, and the server's end of it."""

    def __init__(self, sockets: Sockets) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.sock = socket.create_connection(listener.getsockname())
            self.peer = listener.accept()[0]
        self.sock.setblocking(False)
        self.sockets = sockets
        self.connection = Counting()
        _ = SocketTransport(self.sock, self.connection, sockets)

    def ask(self) -> asyncio.Task[Response]:
        return asyncio.create_task(self.connection.exchange(b"POST", lambda: Exchange(limits(), hear)))

    async def tell(self, reads: Iterable[bytes]) -> None:
        """Send these so that each is a read of its own."""
        for data in reads:
            self.peer.sendall(data)
            await turns()


def looking(looks: list[int]) -> Callable[[], Exchange]:
    """Exchanges that note at each look how much had come."""

    class Looking(Exchange):
        def look(self) -> None:
            super().look()
            looks.append(self.size)

    return lambda: Looking(limits(), hear)


def hear(body: Iterable[Read]) -> Heard:
    return Heard(0)


async def turns() -> None:
    """Enough of the loop's for what was sent to be read and looked at."""
    for _ in range(4):
        await asyncio.sleep(0)


def over_a_wire(scenario: Callable[[Wire], Awaitable[T]], *, audited: bool = False) -> T:
    async def run() -> T:
        sockets = Sockets(audited=audited)
        wire = Wire(sockets)
        try:
            return await scenario(wire)
        finally:
            wire.connection.close()
            wire.peer.close()
            sockets.close()

    return uvloop.run(run())


def payload(response: Response) -> bytes:
    return b"".join(data for _, data in response.body)
