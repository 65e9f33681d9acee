"""Instants at which somebody must look whether something has lasted too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic_ns

_NS = 1_000_000_000
_SOON_S = 0.001  # the loop's timers go by whole milliseconds
_FEW = 64  # that are forgotten, and stay until their instant comes

Check = Callable[[], None]
"""Looks, and asks to be called again if need be."""


class Due:
    """One call that is to come."""

    __slots__ = ("at_ns", "check")

    def __init__(self, at_ns: int, check: Check) -> None:
        self.at_ns = at_ns
        self.check: Check | None = check  # None: nobody is to be called


class Deadlines:
    """One timer of the loop for all: one for each request is made and given up thousands of times before any rings.

    To be used inside one running loop, and closed there.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Due]] = []  # a heap, by instant and then by who came first
        self._forgotten = 0  # of those waiting
        self._came = count()
        self._timer: asyncio.TimerHandle | None = None

    def check_at(self, instant_ns: int, check: Check) -> Due:
        """Call `check` at this instant, never before; later by a millisecond, and by what keeps the loop busy."""
        due = Due(instant_ns, check)
        heappush(self._waiting, (instant_ns, next(self._came), due))
        if self._waiting[0][2] is due:
            self._set()
        return due

    def forget(self, due: Due) -> None:
        """Call nobody after all, and keep nothing of who was to be called."""
        if due.check is None:
            return
        due.check = None
        self._forgotten += 1
        if self._forgotten > _FEW and 2 * self._forgotten > len(self._waiting):
            self._waiting = [one for one in self._waiting if one[2].check is not None]
            heapify(self._waiting)
            self._forgotten = 0

    def close(self) -> None:
        """Call nobody any more."""
        self._waiting.clear()
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._waiting:
            left_s = max(_SOON_S, (self._waiting[0][0] - monotonic_ns()) / _NS)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._ring)

    def _ring(self) -> None:
        now_ns = monotonic_ns()
        try:
            while self._waiting and self._waiting[0][0] <= now_ns:
                due = heappop(self._waiting)[2]
                check, due.check = due.check, None
                if check is None:
                    self._forgotten -= 1
                else:
                    check()
        finally:  # whatever went wrong with one, the others have theirs
            self._set()
