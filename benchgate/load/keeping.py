"""Answers on their way to disk while a stage runs: kept soon, but never all of those that end together at once."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns

from benchgate.errors import StoreError
from benchgate.load.spool import Spool, Spooled

_KEEP_NS = 1_000_000  # of keeping answers at a time, and
_KEEP_AGAIN_S = 0.002  # until the next time: five hundred answers that end together must not hold up what arrives


class Keeper:
    """Puts the answers of one class into its spool. `count` is how many there were so far."""

    def __init__(self, spool: Spool) -> None:
        self.count = 0
        self._spool = spool
        self._unkept: deque[Spooled] = deque()
        self._keeping = False
        self._unkeepable: StoreError | None = None

    def keep(self, spooled: Spooled) -> None:
        """Keep an answer at once; of several that end together the others when all have sent their next request.

        Raises StoreError when this one, or one before it, could not be kept.
        """
        if self._unkeepable is not None:
            raise self._unkeepable
        self.count += 1
        if self._keeping:
            self._unkept.append(spooled)
        else:
            self._keeping = True
            asyncio.get_running_loop().call_soon(self._keep_some)
            self._spool.append(spooled)

    def keep_rest(self) -> None:
        """Keep what is still waiting. Raises StoreError when answers could not be kept."""
        if self._unkeepable is not None:
            raise self._unkeepable
        while self._unkept:
            self._spool.append(self._unkept.popleft())

    def _keep_some(self) -> None:
        """Keep answers for a moment, and go on a little later when there are more."""
        until_ns = monotonic_ns() + _KEEP_NS
        try:
            while self._unkept:
                self._spool.append(self._unkept.popleft())
                if monotonic_ns() > until_ns:
                    asyncio.get_running_loop().call_later(_KEEP_AGAIN_S, self._keep_some)
                    return
        except StoreError as exc:  # nobody waits for a callback: the next answer, or the end of the stage, raises it
            self._unkeepable = exc
        self._keeping = False
