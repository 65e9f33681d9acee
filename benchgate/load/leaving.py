"""An exchange whose client goes away on purpose: after so many chunks of output, or at an instant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic_ns

from benchgate.load.exchange import Exchange, Hear
from benchgate.load.raw_body import Read
from benchgate.suite.schema import Limits

_NS = 1_000_000_000
_HINT = b"data:"  # every chunk of a stream has it, though not all that has it is one


class LeavingExchange(Exchange):
    """Looks at every read, as no other exchange does: it must know what has come while it is coming.

    `chunks` counts those with output in a body so far. It reads all of it, so it is asked only when there may be
    enough of them.
    """

    __slots__ = ("_after", "_chunks", "_hinted", "_hints", "_leave_timer", "_look_at")

    def __init__(
        self,
        limits: Limits,
        hear: Hear,
        chunks: Callable[[Iterable[Read]], int],
        *,
        at_ns: int | None,
        after_chunks: int | None,
    ) -> None:
        super().__init__(limits, hear)
        self._chunks = chunks
        self._after = self._look_at = after_chunks
        self._hints = 0  # how often the hint came
        self._hinted = 0  # up to this size
        self._leave_timer: asyncio.TimerHandle | None = None
        if at_ns is not None:
            left_s = max(0, at_ns - monotonic_ns()) / _NS
            self._leave_timer = asyncio.get_running_loop().call_later(left_s, self.leave)

    def look(self) -> None:
        """As ever, and leave when enough has come."""
        super().look()
        self.trusted = False  # look at the next one too
        if self._after is None or self._look_at is None or self.over.done():
            return
        begin = max(0, self._hinted - len(_HINT) + 1)
        self._hints += self._raw().count(_HINT, begin)
        self._hinted = self.size
        if self._hints >= self._look_at:
            came = self._chunks(self._body())
            if came >= self._after:
                self.leave()
            else:
                self._look_at = self._hints + self._after - came

    def forget(self) -> None:
        """Stop all timers."""
        super().forget()
        if self._leave_timer is not None:
            self._leave_timer.cancel()
