"""Waiting for instants to tens of microseconds. The event loop's own timers go by whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sys
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic_ns
from types import TracebackType
from typing import Protocol, Self

_NS = 1_000_000_000
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class _Instant(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Instant), ("expires", _Instant))


class Alarm:
    """Wakes coroutines at instants of the monotonic clock, never before. A context manager inside a running loop.

    On Linux by a kernel timer (no busy waiting, no thread); elsewhere by the loop's own timers, late by up to a
    millisecond. Lateness is recorded with every request either way. `rings` is called before anybody is woken.
    """

    def __init__(self, rings: Callable[[], None] = lambda: None) -> None:
        self._rings = rings
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap, by instant and then by who came first
        self._came = count()
        self._over = False
        self._timer: _KernelTimer | None = None
        self._next: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            self._timer = _KernelTimer(self._loop, self._ring)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.close()
        if self._next is not None:
            self._next.cancel()

    def move(self, watcher: Watcher) -> None:
        """Have the kernel's timer told of there, and no longer by the loop."""
        if self._timer is not None:
            self._timer.move(watcher)

    async def until(self, instant_ns: int) -> None:
        """Return at the instant; at once, but not before others had their turn, when it has passed."""
        if self._over or instant_ns <= monotonic_ns():
            await asyncio.sleep(0)
            return
        rung = self._loop.create_future()
        heappush(self._waiting, (instant_ns, next(self._came), rung))
        if self._waiting[0][2] is rung:
            self._set(instant_ns)
        await rung

    def ring_out(self) -> None:
        """Let go on at once who waits, and who would wait from now on."""
        self._over = True
        self._wake(None)

    def _set(self, instant_ns: int) -> None:
        if self._timer is not None:
            self._timer.set(instant_ns)
            return
        if self._next is not None:
            self._next.cancel()
        self._next = self._loop.call_later(max(0, instant_ns - monotonic_ns()) / _NS, self._ring, 1)

    def _ring(self, times: int) -> None:
        self._rings()
        self._wake(monotonic_ns())
        if self._waiting:
            self._set(self._waiting[0][0])

    def _wake(self, until_ns: int | None) -> None:
        """Those whose instant has come; None: all of them."""
        while self._waiting and (until_ns is None or self._waiting[0][0] <= until_ns):
            rung = heappop(self._waiting)[2]
            if not rung.done():  # else it was cancelled
                rung.set_result(None)


class Ticker:
    """Tells of every `period_ns`-th instant once the loop gets to it: when it was due, and when that is.

    Ticks that a busy loop missed are told of one by one, each with its own lateness.
    """

    def __init__(self, period_ns: int, tick: Callable[[int, int], None]) -> None:
        self.started_ns = 0
        self._loop = asyncio.get_running_loop()
        self._period_ns = period_ns
        self._tick = tick
        self._due_ns = 0
        self._timer = _KernelTimer(self._loop, self._ring) if sys.platform == "linux" else None
        self._next: asyncio.TimerHandle | None = None

    def start(self, watcher: Watcher | None = None) -> None:
        """Begin, told by this watcher or else by the loop; the first tick is due one period from now."""
        self.started_ns = monotonic_ns()
        self._due_ns = self.started_ns + self._period_ns
        if self._timer is not None:
            if watcher is not None:
                self._timer.move(watcher)
            self._timer.set(self._due_ns, self._period_ns)
        else:
            self._next = self._loop.call_later(self._period_ns / _NS, self._ring_by_loop)

    def stop(self) -> int:
        """Tell when (monotonic ns) it ended. Ticks already due and not yet told of are told of first."""
        now_ns = monotonic_ns()
        self._ring(max(0, (now_ns - self._due_ns) // self._period_ns + 1))
        return now_ns

    def close(self) -> None:
        """No more ticks."""
        if self._timer is not None:
            self._timer.close()
        if self._next is not None:
            self._next.cancel()

    def _ring(self, times: int) -> None:
        now_ns = monotonic_ns()
        for _ in range(times):
            self._tick(self._due_ns, now_ns)
            self._due_ns += self._period_ns

    def _ring_by_loop(self) -> None:
        self._ring((monotonic_ns() - self._due_ns) // self._period_ns + 1)
        self._next = self._loop.call_later((self._due_ns - monotonic_ns()) / _NS, self._ring_by_loop)


class HasFileno(Protocol):
    """Whatever has a descriptor."""

    def fileno(self) -> int:
        """The descriptor."""


class Watcher(Protocol):
    """Watches what can be read, as `Sockets` does."""

    def watch(self, sock: HasFileno, mask: int, on_events: Callable[[int], None]) -> None:
        """Call whenever one of these events is there."""

    def unwatch(self, sock: HasFileno) -> None:
        """Call no more."""


class _KernelTimer:
    """Linux's timerfd, watched by the loop like a socket. `ring` gets the number of times it went off."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[int], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._watcher: Watcher | None = None
        loop.add_reader(self._fd, self._read)

    def fileno(self) -> int:
        """The timer's descriptor."""
        return self._fd

    def move(self, watcher: Watcher) -> None:
        """Have it watched there, and no longer by the loop."""
        self._loop.remove_reader(self._fd)
        watcher.watch(self, select.EPOLLIN, lambda _: self._read())
        self._watcher = watcher

    def set(self, instant_ns: int, period_ns: int = 0) -> None:
        """Go off at the instant, and with a period again and again after it."""
        when = _Timer(_Instant(*divmod(period_ns, _NS)), _Instant(*divmod(instant_ns, _NS)))
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(when), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Never go off again."""
        if self._watcher is None:
            self._loop.remove_reader(self._fd)
        else:
            self._watcher.unwatch(self)
        os.close(self._fd)

    def _read(self) -> None:
        self._ring(int.from_bytes(os.read(self._fd, 8), sys.byteorder))
