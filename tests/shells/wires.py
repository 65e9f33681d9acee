"""A connection of the measured path over a real socket, and the server's end of it in the hands of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import uvloop

from benchgate.load.decode.body import Read
from benchgate.load.http.connection import Connection
from benchgate.load.http.exchange import Exchange, Progress, Response
from benchgate.load.http.reader import Reader, start_reader
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

    def __init__(self, reader: Reader | None, connection: Counting, peer: socket.socket) -> None:
        self.reader, self.connection, self.peer = reader, connection, peer

    @classmethod
    async def open(cls, reader: Reader | None) -> Wire:
        """Open one; it is read by `reader` where there is one."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sock = socket.create_connection(listener.getsockname())
            peer = listener.accept()[0]
        sock.setblocking(False)
        _, connection = await asyncio.get_running_loop().create_connection(Counting, sock=sock)
        if reader is not None:
            connection.read_by(reader)
        return cls(reader, connection, peer)

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
        def parse_available(self) -> None:
            super().parse_available()
            looks.append(self.size)

    return lambda: Looking(limits(), hear)


def hear(body: Iterable[Read]) -> Progress:
    return Progress(0)


async def turns() -> None:
    """Enough of the loop's for what was sent to be read and looked at."""
    for _ in range(4):
        await asyncio.sleep(0)


def over_a_wire(scenario: Callable[[Wire], Awaitable[T]], *, audited: bool = False) -> T:
    async def run() -> T:
        reader = start_reader(audited=audited)
        wire = await Wire.open(reader)
        try:
            return await scenario(wire)
        finally:
            wire.connection.close()
            wire.peer.close()
            if reader is not None:
                reader.close()

    return uvloop.run(run())


def payload(response: Response) -> bytes:
    return b"".join(data for _, data in response.body)
