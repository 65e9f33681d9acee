"""A call at an instant, to tens of microseconds. The event loop's own timers go by whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from time import monotonic_ns

from benchgate.sim.settings import NS

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_LEAST_S = 0.001  # of the loop's own timers: less would be no wait at all


class Alarm:
    """Calls `ring` once at the instant it was last set to: by a kernel timer on Linux, else by the loop's timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        if self._libc is not None:
            self._when = (ctypes.c_long * 4)()  # struct itimerspec: the interval, which stays 0, and the instant
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            loop.add_reader(self._fd, self._rung)

    def set(self, instant_ns: int) -> None:
        """Ring at that instant of the monotonic clock, at once when it has passed, and at no other."""
        if self._libc is None:
            self.cancel()
            self._timer = self._loop.call_later(max(_LEAST_S, (instant_ns - monotonic_ns()) / NS), self._ring)
            return
        self._when[2], self._when[3] = divmod(instant_ns, NS)
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._when, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def cancel(self) -> None:
        """Ring no more, where it is the loop that rings."""
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Give everything back."""
        self.cancel()
        if self._libc is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _rung(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew between the event and this call
            return
        self._ring()
