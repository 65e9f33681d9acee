"""How late the client itself is: a tick at known instants through the event loop that a stage runs on.

A tick is handled when it is its turn, like any answer that has arrived, by the same epoll: how long it waited is how
long answers waited. Needs no help from the server and costs one small callback per tick.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from time import process_time_ns
from types import TracebackType
from typing import Self

import numpy as np

from benchgate.model.records import FloatArray, IntArray
from benchgate.model.request_metrics import quantile
from benchgate.model.run import ClientUse
from benchgate.timers import Ticker, Watcher

_NS = 1_000_000_000
_PERIOD_NS = 19_000_000  # a tick in step with tokens paced at a round 10 or 20 ms would always meet the same moment
_BUSY_OVER_NS = 5 * _NS


class Canary:
    """Ticks between `start` and `stop`. Use as a context manager inside the running loop."""

    def __init__(self) -> None:
        self._late_ns = array("q")
        self._at_ns = array("q")
        self._cpu_ns = array("q")
        self._ticker = Ticker(_PERIOD_NS, self._tick)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._ticker.close()

    def start(self, watcher: Watcher | None = None) -> None:
        """The stage begins. The ticks are told by who reads the answers, where that is not the loop itself."""
        self._ticker.start(watcher)
        self._sample(self._ticker.started_ns)

    def stop(self) -> None:
        """The stage is over."""
        self._sample(self._ticker.stop())

    def seen(self, use: ClientUse) -> ClientUse:
        """The same with the read delay, and how busy the worker was, filled in.

        The p99 of fewer than 100 ticks (two seconds) is the largest of them.
        """
        delays_s = _ints(self._late_ns) / _NS
        return replace(
            with_read_delays(use, delays_s, by_kernel=False),
            busiest_share=busiest_share(_ints(self._at_ns), _ints(self._cpu_ns)),
        )

    def _tick(self, due_ns: int, now_ns: int) -> None:
        self._late_ns.append(now_ns - due_ns)
        self._sample(now_ns)

    def _sample(self, now_ns: int) -> None:
        self._at_ns.append(now_ns)
        self._cpu_ns.append(process_time_ns())


def with_read_delays(use: ClientUse, delays_s: FloatArray, *, by_kernel: bool) -> ClientUse:
    """Client use with the quantiles of these read delays; unchanged when there are none."""
    if len(delays_s) == 0:
        return use
    return replace(
        use,
        read_delay_p50_s=quantile(delays_s, 0.5),
        read_delay_p99_s=quantile(delays_s, 0.99),
        read_delay_max_s=quantile(delays_s, 1.0),
        read_delay_by="kernel" if by_kernel else "canary",
    )


def with_stamps(use: ClientUse, delays_s: FloatArray) -> ClientUse:
    """Client use with the kernel's read delays beside the canary's: of both the worse.

    A stamp is that of the last packet of a read. After a stall of the client it tells how long the newest one waited,
    and the canary how long the others did.
    """
    stamped = with_read_delays(use, delays_s, by_kernel=True)
    if stamped.read_delay_by != "kernel":
        return use
    return replace(
        stamped,
        read_delay_p50_s=max(use.read_delay_p50_s or 0.0, stamped.read_delay_p50_s or 0.0),
        read_delay_p99_s=max(use.read_delay_p99_s or 0.0, stamped.read_delay_p99_s or 0.0),
        read_delay_max_s=max(use.read_delay_max_s or 0.0, stamped.read_delay_max_s or 0.0),
    )


def busiest_share(at_ns: IntArray, cpu_ns: IntArray) -> float | None:
    """The largest share of one core used over any 5 s, of CPU time read at these instants; None when none is so long.

    Each window runs from one sample to the first one at least 5 s later.
    """
    end = np.searchsorted(at_ns, at_ns + _BUSY_OVER_NS)
    whole = end < len(at_ns)
    if not whole.any():
        return None
    begin, end = np.flatnonzero(whole), end[whole]
    return float(np.max((cpu_ns[end] - cpu_ns[begin]) / (at_ns[end] - at_ns[begin])))


def _ints(values: array[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
