"""The compiled socket reader: it timestamps and keeps what arrives on plain sockets (`reader.c`).

uvloop owns the sockets and writes to them. An attached connection is read here from its first byte to its end; bytes
and instants stay in C until an answer may have ended. TLS connections, and all where nothing was compiled, are read by
uvloop (`Connection.data_received`).
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Iterator
from typing import Protocol

from benchgate.load.client_delay import ReadDelays
from benchgate.load.http.library import library
from benchgate.load.http.parser import LARGEST_RESPONSE_BYTES

_MOST_EVENTS = 1024
_MARK_BYTES = 8
DATA, CLOSED = 0, -(2**31)
"""Notices of a connection; any other is the negative errno of a failed read."""


class Reading(Protocol):
    """A connection that is read here."""

    def read_notice(self, notice: int) -> None:
        """Handle the end of the connection, a failed read, or data that may end an answer."""


class Reader:
    """All attached connections of one event loop. Must be closed.

    With `audited` the kernel's receive timestamps are collected in `delays`.
    """

    def __init__(self, compiled: ctypes.CDLL, *, audited: bool = False) -> None:
        self.delays = ReadDelays() if audited else None
        self._compiled = compiled
        self._attached: dict[int, Reading] = {}
        self._notices = (ctypes.c_int32 * (2 * _MOST_EVENTS))()
        self._delays = (ctypes.c_int64 * _MOST_EVENTS)()
        self._taken = (ctypes.c_int64 * 4)()
        self._at_notices, self._at_taken = ctypes.addressof(self._notices), ctypes.addressof(self._taken)
        self._reader: int | None = compiled.reader_start(LARGEST_RESPONSE_BYTES, audited)
        if self._reader is None:
            raise MemoryError("the compiled reader could not start")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(compiled.reader_descriptor(self._reader), self._read_ready)

    def attach(self, descriptor: int, connection: Reading) -> bool:
        """Read this socket from now on. Return False when that is not possible; the transport goes on reading it."""
        if self._reader is None or self._compiled.reader_attach(self._reader, descriptor):
            return False
        self._attached[descriptor] = connection
        return True

    def detach(self, descriptor: int) -> None:
        """Read this socket no more, before it is closed."""
        if self._attached.pop(descriptor, None) is not None:
            self._compiled.reader_detach(self._reader, descriptor)

    def notify_on_end(self, descriptor: int) -> None:
        """Give notice only of reads that may end the answer under way."""
        if descriptor in self._attached:
            self._compiled.reader_notify_on_end(self._reader, descriptor)

    def next_answer(self, descriptor: int) -> None:
        """Give notice of every read again: an answer is over."""
        if descriptor in self._attached:
            self._compiled.reader_next(self._reader, descriptor)

    def take(self, descriptor: int, *, rest: bool = False) -> tuple[bytes, bytes] | None:
        """Return the unread bytes and the marks of their reads. With `rest`, read all that is left at the socket."""
        if descriptor not in self._attached:
            return None
        if rest:
            self._compiled.reader_read_rest(self._reader, descriptor)
        if not self._compiled.reader_take(self._reader, descriptor, self._at_taken):
            return None
        raw, size, marks, count = self._taken
        return ctypes.string_at(raw, size), ctypes.string_at(marks, _MARK_BYTES * count)

    def close(self) -> None:
        """Detach every connection."""
        if self._reader is not None:
            self._loop.remove_reader(self._compiled.reader_descriptor(self._reader))
            self._compiled.reader_stop(self._reader)
            self._reader = None
            self._attached.clear()

    def _read_ready(self) -> None:
        """Read all sockets first, then handle their notices: what was read gives no second notice."""
        count = self._compiled.reader_ready(self._reader, self._at_notices)
        if self.delays is not None:
            self.delays.extend(self._delays[: self._compiled.reader_delays(self._reader, self._delays)])
        if not count:
            return
        notices = self._notices[: 2 * count]
        self._handle(zip(notices[::2], notices[1::2], strict=True))

    def _handle(self, notices: Iterator[tuple[int, int]]) -> None:
        for descriptor, notice in notices:
            connection = self._attached.get(descriptor)  # None: one before it in this turn closed it
            try:
                if connection is not None:
                    connection.read_notice(notice)
            except BaseException:  # one failure must not keep another answer from ending
                self._handle(notices)
                raise


def start_reader(*, audited: bool = False) -> Reader | None:
    """Return a reader for the running event loop; None where nothing was compiled."""
    compiled = library()
    return None if compiled is None else Reader(compiled, audited=audited)
