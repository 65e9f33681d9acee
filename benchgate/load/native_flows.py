"""Answers read by the compiled loop: bytes and instants stay there until something may have ended.

It reads an answer from its first byte, so that the first token has its instant at once, whatever else is told of the
same turn; until it is in full flow, every read is looked at.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
from collections.abc import Mapping
from functools import partial

from benchgate.load.exchange import LARGEST_RESPONSE_BYTES, Exchange, nothing
from benchgate.load.flowing import GATHER_NS, Ending, OnEvents, all_of

_MOST_EVENTS = 1024
_LOOK, _CLOSED = 0, -(2**31)  # told of a descriptor; else the events it was seen with, or the error's number below 0
_MARK_BYTES = 8


class NativeFlows:
    """As `flowing.Flows` says. Must be closed."""

    def __init__(self, library: ctypes.CDLL, epoll: select.epoll, watched: Mapping[int, OnEvents]) -> None:
        self._library = library
        self._watched = watched
        self._flowing: dict[int, tuple[Exchange, Ending]] = {}
        self._wary = set[int]()  # those of which every read is looked at
        self._told = (ctypes.c_int32 * (2 * _MOST_EVENTS))()
        self._count = ctypes.c_int32()
        self._taken = (ctypes.c_int64 * 4)()
        self._at_told, self._at_count = ctypes.addressof(self._told), ctypes.addressof(self._count)
        self._at_taken = ctypes.addressof(self._taken)
        self._flows: int | None = library.flows_new(epoll.fileno(), LARGEST_RESPONSE_BYTES)
        if self._flows is None:
            raise MemoryError

    def add(self, sock: socket.socket, exchange: Exchange, transport: Ending) -> None:
        """As `Flows` says."""
        descriptor = sock.fileno()
        if descriptor not in self._flowing:
            if self._flows is None or self._library.flows_add(self._flows, descriptor):
                return  # closed, or no memory: its transport goes on reading it
            self._flowing[descriptor] = exchange, transport
            self._wary.add(descriptor)
            exchange.fetch = partial(self._fetch, descriptor)
        self._trust(descriptor, exchange)

    def drop(self, descriptor: int) -> None:
        """As `Flows` says."""
        if descriptor in self._flowing:
            self._fetch(descriptor)
            exchange, _ = self._flowing.pop(descriptor)
            exchange.fetch = nothing
            self._wary.discard(descriptor)
            self._library.flows_drop(self._flows, descriptor)

    def look(self, gathers: int) -> int:
        """As `Flows` says: the streams are read first, then whatever else was seen is told."""
        if self._flows is None:
            return 0
        reads: int = self._library.flows_look(self._flows, self._at_told, self._at_count, gathers, GATHER_NS)
        if count := self._count.value:
            told = self._told[: 2 * count]
            self._tell(list(zip(told[::2], told[1::2], strict=True)))
        return reads

    def settle(self, reads: int) -> None:
        """As `Flows` says: nothing to be done, for every read is weighed."""

    def close(self) -> None:
        """As `Flows` says. What had come of a stream goes to its exchange."""
        for descriptor in tuple(self._flowing):
            self.drop(descriptor)
        if self._flows is not None:
            self._library.flows_free(self._flows)
            self._flows = None

    def _tell(self, told: list[tuple[int, int]]) -> None:
        """What was read will not wake anybody again, whatever goes wrong with another one of this turn."""
        concluded = [(descriptor, *self._flowing[descriptor], what) for descriptor, what in told if what <= 0]
        try:
            for descriptor, what in told:
                if what > 0:
                    if descriptor in self._flowing:
                        self._fetch(descriptor)  # before what is read by others
                    on_events = self._watched.get(descriptor)  # gone when one before it closed it
                    if on_events is not None:
                        on_events(what)
        finally:
            all_of([partial(self._conclude, *one) for one in concluded])

    def _conclude(self, descriptor: int, exchange: Exchange, transport: Ending, what: int) -> None:
        if what == _LOOK:
            exchange.look()
            self._trust(descriptor, exchange)
        elif what == _CLOSED:
            transport.came(b"")
        else:
            transport.failed(OSError(-what, os.strerror(-what)))

    def _trust(self, descriptor: int, exchange: Exchange) -> None:
        """Look no more at every read once it is in full flow."""
        if exchange.trusted and descriptor in self._wary:
            self._wary.discard(descriptor)
            self._library.flows_trust(self._flows, descriptor)

    def _fetch(self, descriptor: int) -> None:
        """Give its exchange what came since the last time."""
        if self._library.flows_take(self._flows, descriptor, self._at_taken):
            raw, size, marks, count = self._taken
            self._flowing[descriptor][0].take(ctypes.string_at(raw, size), ctypes.string_at(marks, _MARK_BYTES * count))
