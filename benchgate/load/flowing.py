"""Streams in full flow: read in one loop, past their transports and connections, until something else happens.

A processor that serves hundreds of streams has forgotten each one's objects by the time of its next token. Here is the
loop that works everywhere; `native_flows` has the same one compiled.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import monotonic_ns
from typing import Protocol

from benchgate.load.exchange import IN_FLOW, LAST_CHUNK, Exchange, may_end

READ_BYTES = 2**14  # what is left is read at the next look
GATHER_NS = 200_000  # and some 0.1 ms until the kernel wakes us
READABLE = getattr(select, "EPOLLIN", 0)  # Linux alone has it

_EVENT_BYTES = 479  # in a full flow: as long a text as Python has memory of its own for, which is cheaper than malloc's
_LONG_ONE_IN = 8  # reads: where so many are longer, that would mean two reads for one
_NS = 1_000_000_000
_WEIGH_BYTES = 2**24  # of all streams together: so often each is asked whether it has become too long

OnEvents = Callable[[int], None]
"""Called with the mask of what epoll has seen at a socket."""


def all_of(calls: Sequence[Callable[[], None]]) -> None:
    """Make these calls in their order, each whatever becomes of those before it."""
    if len(calls) == 1:  # as mostly
        calls[0]()
        return
    with ExitStack() as stack:
        for call in reversed(calls):
            stack.callback(call)


class Ending(Protocol):
    """A transport, as far as its connection may end."""

    def came(self, data: bytes) -> None:
        """This was read; no byte at all is the end."""

    def failed(self, exc: OSError) -> None:
        """Reading gave nothing."""


class Flows(Protocol):
    """The answers under way of one epoll, and whoever else watches a socket of it."""

    def add(self, sock: socket.socket, exchange: Exchange, transport: Ending) -> None:
        """Read this one from now on; `transport` gets the end of the connection, and every error.

        To be said when the request has been sent, and again when the answer is in full flow. Before that, one that
        would have to look at every read leaves them to the transport.
        """

    def drop(self, descriptor: int) -> None:
        """Read it no more, if it was read here. All that came is with its exchange."""

    def look(self, gathers: int) -> int:
        """Read every stream that has something, and tell the others. How many sockets had something.

        After so many gathers, with a look after each, until there was somebody to be told or a stream may have ended.
        """

    def settle(self, reads: int) -> None:
        """A stretch of so many reads is over."""

    def close(self) -> None:
        """Read nothing more."""


class PythonFlows:
    """As `Flows` says, in Python."""

    def __init__(self, epoll: select.epoll, watched: Mapping[int, OnEvents]) -> None:
        self._epoll = epoll
        self._watched = watched
        self._flowing: dict[int, _Flowing] = {}
        self._unweighed = 0  # bytes
        self._long = 0  # reads of `_EVENT_BYTES` or more, of the stretch that is under way
        self._at_first = _EVENT_BYTES  # bytes asked for

    def add(self, sock: socket.socket, exchange: Exchange, transport: Ending) -> None:
        """As `Flows` says."""
        if not exchange.trusted:
            return  # here, every read would be looked at as well
        self._flowing[sock.fileno()] = (sock.recv, exchange.keep, exchange.mark, exchange, transport)

    def drop(self, descriptor: int) -> None:
        """As `Flows` says."""
        self._flowing.pop(descriptor, None)

    def look(self, gathers: int) -> int:
        """As `Flows` says."""
        reads, again = 0, True
        while again:
            if gathers:
                time.sleep(GATHER_NS / _NS)
                gathers -= 1
            ready = self._epoll.poll(0)
            reads += len(ready)
            again = self._read(ready) and gathers > 0
        return reads

    def settle(self, reads: int) -> None:
        """As `Flows` says: ask for as much as most reads bring, and have long streams weighed."""
        self._at_first = READ_BYTES if self._long * _LONG_ONE_IN > reads else _EVENT_BYTES
        self._long = 0
        if self._unweighed >= _WEIGH_BYTES:
            self._unweighed = 0
            for _, _, _, exchange, _ in tuple(self._flowing.values()):
                exchange.weigh(READ_BYTES)

    def close(self) -> None:
        """As `Flows` says."""
        self._flowing.clear()

    def _read(self, ready: Iterable[tuple[int, int]]) -> bool:
        """The hottest loop there is: nothing is done here that can be done later, and nothing is looked up twice.

        Whether there was nobody to be told, and nothing that may have been an end.
        """
        watched, flowing, unweighed, at_first = self._watched, self._flowing, self._unweighed, self._at_first
        readable, in_flow, last, now_ns, longer_from = READABLE, IN_FLOW, LAST_CHUNK, monotonic_ns, _EVENT_BYTES
        ended: list[Exchange] = []
        failed: list[tuple[Ending, OSError]] = []
        told = False
        try:
            for descriptor, events in ready:
                flowing_here = flowing.get(descriptor)
                if flowing_here is None or events != readable:
                    told = True
                    on_events = watched.get(descriptor)  # gone when one before it in this turn closed it
                    if on_events is not None:
                        on_events(events)
                    continue
                recv, keep, mark, exchange, transport = flowing_here
                try:
                    data = recv(at_first)
                except OSError as exc:
                    told = True
                    transport.failed(exc)
                    continue
                size = len(data)
                if size >= longer_from:
                    self._long += 1
                    if size == at_first:
                        try:
                            data += recv(READ_BYTES - size)
                            size = len(data)
                        except (BlockingIOError, InterruptedError):
                            pass  # this was all
                        except OSError as exc:
                            failed.append((transport, exc))
                if (not data.endswith(in_flow) or last in data) and may_end(data):
                    if not size:
                        told = True
                        transport.came(data)
                        continue
                    ended.append(exchange)  # looked at when all have been read: it takes as long as ten reads
                keep(data)
                mark(now_ns())
                mark(size)
                unweighed += size
        finally:  # what was read will not wake anybody again, whatever went wrong with another one
            self._unweighed = unweighed
            all_of([exchange.look for exchange in ended])
            all_of([partial(transport.failed, error) for transport, error in failed])
        return not (told or ended or failed)


_Flowing = tuple[Callable[[int], bytes], Callable[[bytes], None], Callable[[int], None], Exchange, Ending]
