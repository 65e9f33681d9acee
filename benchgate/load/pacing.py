"""Waiting for an instant to tens of microseconds. The event loop's own timers go by whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from time import monotonic_ns
from types import TracebackType
from typing import Self

_NS = 1_000_000_000
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class _Instant(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Instant), ("expires", _Instant))


class Alarm:
    """Wakes one coroutine at instants of the monotonic clock. Use as a context manager inside a running loop.

    On Linux by a kernel timer the loop watches like a socket (no busy waiting, no thread); elsewhere by the loop's own
    timers, late by up to a millisecond. Lateness is recorded with every request either way.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = -1

    def __enter__(self) -> Self:
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            self._loop.add_reader(self._fd, self._ring)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    async def until(self, instant_ns: int) -> None:
        """Return at the instant; at once, but not before others had their turn, when it has passed."""
        left_ns = instant_ns - monotonic_ns()
        if left_ns <= 0:
            await asyncio.sleep(0)
        elif self._libc is None:
            await asyncio.sleep(left_ns / _NS)
        else:
            self._rung = self._loop.create_future()
            when = _Timer(_Instant(0, 0), _Instant(*divmod(instant_ns, _NS)))
            if self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(when), None) < 0:
                raise OSError(ctypes.get_errno(), "timerfd_settime failed")
            await self._rung

    def _ring(self) -> None:
        os.read(self._fd, 8)
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)
