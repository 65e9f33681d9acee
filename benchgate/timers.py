"""Timers that go off within tens of microseconds. The event loop's own timers go by whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic_ns
from types import TracebackType
from typing import Self

_NS = 1_000_000_000
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_SHORTEST_S = 0.001  # of the loop's own timers: it calls at once what is due sooner


class KernelTimer:
    """Linux's timerfd. Calls `on_expiry` with the number of expirations since the last call."""

    def __init__(self, on_expiry: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_expiry = on_expiry
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval and first instant, each in s and ns
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop.add_reader(self._fd, self._read)

    def set(self, instant_ns: int, period_ns: int = 0) -> None:
        """Expire at this instant of the monotonic clock, and every `period_ns` after it; replaces earlier settings."""
        spec = self._spec
        spec[0], spec[1] = divmod(period_ns, _NS)
        spec[2], spec[3] = divmod(instant_ns, _NS)
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Release the descriptor; the timer does not expire any more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        try:
            times = int.from_bytes(os.read(self._fd, 8), sys.byteorder)
        except BlockingIOError:  # set anew between the event and this call
            return
        self._on_expiry(times)


class LoopTimer:
    """The same by the event loop's own timers: late by up to two milliseconds, never early."""

    def __init__(self, on_expiry: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_expiry = on_expiry
        self._due_ns = self._period_ns = 0
        self._handle: asyncio.TimerHandle | None = None

    def set(self, instant_ns: int, period_ns: int = 0) -> None:
        """Expire at this instant of the monotonic clock, and every `period_ns` after it; replaces earlier settings."""
        self.close()
        self._due_ns, self._period_ns = instant_ns, period_ns
        wait_s = max(_SHORTEST_S, (instant_ns - monotonic_ns()) / _NS)
        self._handle = self._loop.call_later(wait_s, self._expire)

    def close(self) -> None:
        """Do not expire any more."""
        if self._handle is not None:
            self._handle.cancel()

    def _expire(self) -> None:
        late_ns = monotonic_ns() - self._due_ns
        if late_ns < 0:  # the loop rounds to milliseconds
            self.set(self._due_ns, self._period_ns)
            return
        times = 1
        if self._period_ns:
            times += late_ns // self._period_ns
            self.set(self._due_ns + times * self._period_ns, self._period_ns)
        self._on_expiry(times)


Timer = KernelTimer if sys.platform == "linux" else LoopTimer


class Alarm:
    """Wakes coroutines at instants of the monotonic clock, never before. A context manager inside a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap, by instant and then first come
        self._came = count()
        self._over = False
        self._timer = Timer(self._ring)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._timer.close()

    async def until(self, instant_ns: int) -> None:
        """Return at the instant; at once, but not before others had their turn, when it has passed."""
        if self._over or instant_ns <= monotonic_ns():
            await asyncio.sleep(0)
            return
        rung = self._loop.create_future()
        heappush(self._waiting, (instant_ns, next(self._came), rung))
        if self._waiting[0][2] is rung:
            self._timer.set(instant_ns)
        await rung

    def ring_out(self) -> None:
        """Wake everybody at once; from now on nobody waits."""
        self._over = True
        self._wake(None)

    def _ring(self, times: int) -> None:
        self._wake(monotonic_ns())
        if self._waiting:
            self._timer.set(self._waiting[0][0])

    def _wake(self, until_ns: int | None) -> None:
        """Wake those whose instant has come; None: all of them."""
        while self._waiting and (until_ns is None or self._waiting[0][0] <= until_ns):
            rung = heappop(self._waiting)[2]
            if not rung.done():  # else it was cancelled
                rung.set_result(None)


class Ticker:
    """Calls `tick(due_ns, now_ns)` every `period_ns`. Ticks that a busy loop missed are made up for."""

    def __init__(self, period_ns: int, tick: Callable[[int, int], None]) -> None:
        self.started_ns = 0
        self._period_ns = period_ns
        self._tick = tick
        self._due_ns = 0
        self._timer = Timer(self._ring)

    def start(self) -> None:
        """Begin; the first tick is due one period from now."""
        self.started_ns = monotonic_ns()
        self._due_ns = self.started_ns + self._period_ns
        self._timer.set(self._due_ns, self._period_ns)

    def stop(self) -> int:
        """Return the monotonic ns of the end. Ticks that are due and were not called yet are called first."""
        now_ns = monotonic_ns()
        self._ring(max(0, (now_ns - self._due_ns) // self._period_ns + 1))
        return now_ns

    def close(self) -> None:
        """Tick no more."""
        self._timer.close()

    def _ring(self, times: int) -> None:
        now_ns = monotonic_ns()
        for _ in range(times):
            self._tick(self._due_ns, now_ns)
            self._due_ns += self._period_ns
