"""Instants at which somebody must look whether something has lasted too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic_ns

_NS = 1_000_000_000
_SOON_S = 0.001  # the loop's timers go by whole milliseconds

Check = Callable[[], int | None]
"""Looks, and says when to look again (monotonic ns), if ever."""


class Deadlines:
    """One timer of the loop for all: one for each request is made and given up thousands of times before any rings.

    To be used inside one running loop, and closed there.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Check]] = []  # a heap, by instant and then by who came first
        self._came = count()
        self._timer: asyncio.TimerHandle | None = None

    def check_at(self, instant_ns: int, check: Check) -> None:
        """Call `check` at this instant, never before; later by a millisecond, and by what keeps the loop busy."""
        number = next(self._came)
        heappush(self._waiting, (instant_ns, number, check))
        if self._waiting[0][1] == number:
            self._set()

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
                check = heappop(self._waiting)[2]
                again_ns = check()
                if again_ns is not None:
                    heappush(self._waiting, (max(again_ns, now_ns + 1), next(self._came), check))
        finally:  # whatever went wrong with one, the others have theirs
            self._set()
