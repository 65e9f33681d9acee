"""One request on its way through the router: to a replica over a connection of its own, and its answer back.

Bytes are passed on as they come, broken ones too. The connection to the client ends with the answer, so whatever ends
the one to the replica ends that in the same way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import cast

from benchgate.sim.connection import Connection
from benchgate.sim.http import LAST_CHUNK, Request, json_response
from benchgate.sim.replica import Replica

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: chunked\r\n", re.IGNORECASE)
_OWN_HEADERS = frozenset({"connection", "content-length", "transfer-encoding", "expect"})
_LOOK_AGAIN_S = 0.005  # at a client that does not read


class Relay(asyncio.Protocol):
    """Tries the replicas in turn until one takes the request; what happens after that is not tried again."""

    def __init__(
        self, request: Request, line: Connection, replicas: Sequence[Replica], over: Callable[[], None]
    ) -> None:
        self._request = request
        self._line = line
        self._replicas = replicas
        self._over: Callable[[], None] | None = over
        self._tried: Replica | None = None
        self._taken_by: Replica | None = None
        self._transport: asyncio.Transport | None = None
        self._whole = _Whole()
        self._task = asyncio.get_running_loop().create_task(self._connect())

    def abandon(self) -> None:
        """The client has left, and so do we."""
        self._task.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A replica takes the request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        if self._over is None or self._tried is None:
            self._transport.abort()  # the client left meanwhile
            return
        self._taken_by = self._tried
        self._taken_by.requests += 1
        self._taken_by.in_flight += 1
        self._transport.write(_request_bytes(self._request))

    def data_received(self, data: bytes) -> None:
        """A piece of the answer."""
        if self._over is None:
            return
        self._whole.feed(data)
        self._line.write(data)
        if self._line.congested and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._read_on)

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer is over, or the replica is gone."""
        self._transport = None
        if self._over is None or self._taken_by is None:
            return
        if not self._whole.is_over:
            self._taken_by.broken += 1
        if not self._whole.begun:
            self._line.write(_error(502, "Bad Gateway", "the replica ended before it answered"))
        self._end()
        if exc is not None and self._whole.begun:
            self._line.reset()
        else:
            self._line.done(keep=False)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        for replica in self._replicas:
            self._tried = replica
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", replica.port)
            except OSError:
                continue  # it is gone, or not there yet
            return
        self._line.write(_error(503, "Service Unavailable", "no replica takes requests"))
        self._end()
        self._line.done(keep=False)

    def _read_on(self) -> None:
        if self._transport is None:
            return
        if self._line.congested:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._read_on)
        else:
            self._transport.resume_reading()

    def _end(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()
            if self._taken_by is not None:
                self._taken_by.in_flight -= 1


class _Whole:
    """Follows the bytes of one response, only as far as to know whether it came to its end."""

    def __init__(self) -> None:
        self.begun = False
        self._head: bytes | None = b""  # None: it is over
        self._left: int | None = None  # of a body with a length
        self._chunked = False
        self._tail = b""

    @property
    def is_over(self) -> bool:
        """Whether all of it came, as far as it says where it ends."""
        if self._head is not None:
            return False
        if self._chunked:
            return self._tail == LAST_CHUNK
        return self._left is None or self._left <= 0

    def feed(self, data: bytes) -> None:
        """Take in a piece."""
        self.begun = True
        if self._head is not None:
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            length = _LENGTH.search(head + b"\r\n")
            self._left = None if length is None else int(length[1])
            self._chunked = _CHUNKED.search(head + b"\r\n") is not None
            self._head = None
        if self._left is not None:
            self._left -= len(data)
        self._tail = (self._tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]


def _request_bytes(request: Request) -> bytes:
    path = f"{request.path}?{request.query}" if request.query else request.path
    version = "HTTP/1.0" if request.http10 else "HTTP/1.1"
    headers = [f"{name}: {value}" for name, value in request.headers.items() if name not in _OWN_HEADERS]
    lines = [
        f"{request.method} {path} {version}",
        *headers,
        f"content-length: {len(request.body)}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


def _error(status: int, kind: str, message: str) -> bytes:
    document = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return json_response(status, document, "connection: close")
