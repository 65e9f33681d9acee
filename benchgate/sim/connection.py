"""One connection of a client: its bytes become requests, one at a time."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from benchgate.sim.arriving import Arriving
from benchgate.sim.http import CONTINUE, BadRequest, Request, RequestReader, json_response
from benchgate.sim.turns import Turns


class Leaving(Protocol):
    """What must know when the client of an open request has gone."""

    def abandon(self) -> None:
        """The connection is lost."""


_ROOM = memoryview(bytearray(2**16))  # of all connections: what is read is taken out of it at once

Serve = Callable[[Request, "Connection"], None]
"""Answers one request: at once by `write` and `done`, or later, and then it leaves itself in `reply` meanwhile."""


class Connection(asyncio.BufferedProtocol):
    """Reads requests and keeps the connection alive between them. What is written goes to the kernel at once.

    A request has come when the kernel had it: what it waits in there, it waits in the server.
    """

    def __init__(self, serve: Serve, turns: Turns, connections: set[Connection], keep_alive_s: float | None) -> None:
        self.reply: Leaving | None = None  # the request being answered
        self.received_ns = 0  # when the kernel had the last of what was read
        self.late_writes = 0  # the kernel did not take them whole
        self.write: Callable[[bytes], None] = _nowhere  # the transport's own, without a call between
        self._serve = serve
        self._turns = turns
        self._has_turn = False  # one is to come
        self._connections = connections
        self._keep_alive_s = keep_alive_s
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._arriving = Arriving()
        self._came_ns = 0  # what is about to be read
        self._pumping = False
        self._told_to_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport.set_write_buffer_limits(high=0)  # else uvloop holds a write until its turn is over
        self.write = self._transport.write
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("sslcontext") is None:  # else it has been read before it is given here
                self._arriving = Arriving(sock)
        self._connections.add(self)
        self._wait_for_request()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes; it is asked for when there is something to be read."""
        self._came_ns = self._arriving.came_ns(_ROOM)
        return _ROOM

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of a request, or of the next one while this one is still being answered."""
        self.received_ns = self._came_ns  # of bytes: an end of the connection is read too
        self._stop_waiting()
        self._reader.feed(bytes(_ROOM[:nbytes]))
        if not self._has_turn:
            self._has_turn = True
            self._turns.add(self._take_turn)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was sent away."""
        self._stop_waiting()
        self._connections.discard(self)
        self._transport = None
        if self.reply is not None:
            self.reply.abandon()
            self.reply = None

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        self.late_writes += 1

    @property
    def congested(self) -> bool:
        """Whether written bytes still wait for the kernel to take them."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def done(self, *, keep: bool) -> None:
        """The response is written. Go on with the next request, or end the connection in good order."""
        self.reply = None
        if keep:
            self._pump()
        elif self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """End the connection with a TCP reset: what the client has not read yet may be lost."""
        self.reply = None
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _take_turn(self) -> None:
        self._has_turn = False
        if self._transport is not None:
            self._pump()

    def _pump(self) -> None:
        """Serve what has come whole, one request after the other, without growing the stack."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.reply is None and self._transport is not None and not self._transport.is_closing():
                request = self._reader.next()
                if request is None:
                    break
                self._told_to_continue = False
                self._serve(request, self)
        except BadRequest as error:
            self.write(json_response(error.status, {"detail": str(error)}, "connection: close"))
            self.done(keep=False)
        finally:
            self._pumping = False
        if self.reply is None:
            self._between_requests()

    def _between_requests(self) -> None:
        if self._reader.wants_continue and not self._told_to_continue:
            self._told_to_continue = True
            self.write(CONTINUE)
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._keep_alive_s is not None and self._transport is not None and not self._transport.is_closing():
            self._stop_waiting()
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._keep_alive_s, self._transport.close)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def _nowhere(data: bytes) -> None:
    """Where bytes go before there is a connection."""
