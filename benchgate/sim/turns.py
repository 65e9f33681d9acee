"""Whose turn it is to have a request served, when many come together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

_MOMENT_NS = 1_000_000  # much shorter ones would serve a single request at a time


class Turns:
    """Serves what has come a moment at a time, in order, so that what comes meanwhile is stamped when it comes.

    What waits here has been received: it waits in the server, and the server's own clock has that in its truth.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._called = False

    def add(self, serve: Callable[[], None]) -> None:
        """Call this when it is its turn, and never at once."""
        self._waiting.append(serve)
        self._call()

    def _call(self) -> None:
        if self._waiting and not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._serve_some)

    def _serve_some(self) -> None:
        self._called = False
        until_ns = monotonic_ns() + _MOMENT_NS
        try:
            while self._waiting and monotonic_ns() < until_ns:
                self._waiting.popleft()()
        finally:
            self._call()
