"""Client delay: an event-loop probe, and the kernel's receive timestamps."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import replace
from time import process_time_ns
from typing import Self

import numpy as np

from benchgate.load.http.library import library
from benchgate.model.histogram import TimeHistogram
from benchgate.model.records import FloatArray, IntArray
from benchgate.model.request_metrics import quantile
from benchgate.model.run import ClientUse
from benchgate.targets.address import ServerAddress
from benchgate.timers import Ticker
from benchgate.timestamps import kernel_stamps

_MOST_KEPT = 2**20
_LEAST_STAMPED = 0.9  # of the reads: the kernel takes a moment to begin with it


class ReadDelays:
    """Delays between a read's last byte in the kernel and the read; of too many, every second one is dropped."""

    def __init__(self) -> None:
        self._kept_ns = array("q")
        self._stride = 1
        self._reads = 0  # with a stamp
        self._unstamped = 0
        self._most_ns = 0

    def extend(self, delays_ns: Iterable[int]) -> None:
        """Add reads; a delay below 0 is that of a read without a timestamp."""
        for delay_ns in delays_ns:
            if delay_ns < 0:
                self._unstamped += 1
                continue
            self._most_ns = max(self._most_ns, delay_ns)
            if self._reads % self._stride == 0:
                self._kept_ns.append(delay_ns)
                if len(self._kept_ns) >= _MOST_KEPT:
                    self._kept_ns = self._kept_ns[::2]
                    self._stride *= 2
            self._reads += 1

    def seconds(self) -> FloatArray | None:
        """The delays, the longest one always among them; None when there is no saying: too few reads had a stamp."""
        if self._reads == 0 or self._reads < _LEAST_STAMPED * (self._reads + self._unstamped):
            return None
        delays = np.array(self._kept_ns, dtype=np.float64) / 1e9
        return np.append(delays, self._most_ns / 1e9) if delays.max() * 1e9 < self._most_ns else delays


def audit_refusal(server: ServerAddress) -> str | None:
    """Return the reason why reads from this server cannot be audited on this machine, or None."""
    if (refusal := never_stamped(server)) is not None:
        return refusal
    if sys.platform != "linux" or not kernel_stamps():
        return "the kernel of this system does not timestamp what arrives (Linux does); leave it out"
    if library() is None:
        return "it needs the compiled reader: install benchgate where a C compiler is, or leave it out"
    return None


def never_stamped(server: ServerAddress) -> str | None:
    """Return the reason why no machine can audit reads from such an address, or None."""
    if server.socket is not None:
        return "what comes over a Unix socket is stamped by no kernel; leave it out"
    if server.scheme == "https":
        return "what the kernel stamps is still encrypted, and TLS hands it on in other pieces; ask over http instead"
    return None


_NS = 1_000_000_000
_PERIOD_NS = 19_000_000  # a tick in step with tokens paced at a round 10 or 20 ms would always meet the same moment
_BUSY_OVER_NS = 5 * _NS
_MOST_TICKS = 2**12  # kept one by one: 78 s


class EventLoopProbe:
    """Ticks between `start` and `stop`. Use as a context manager inside the running loop.

    Delays are exact for the first minute and in a histogram after that: a stage of days needs no more memory.
    """

    def __init__(self) -> None:
        self._earlier = TimeHistogram()
        self._busiest: float | None = None  # share of a core, of the samples that are not kept any more
        self._late_ns = array("q")
        self._at_ns = array("q")
        self._cpu_ns = array("q")
        self._ticker = Ticker(_PERIOD_NS, self._tick)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.close()

    def start(self) -> None:
        """The stage begins."""
        self._ticker.start()
        self._sample(self._ticker.started_ns)

    def stop(self) -> None:
        """The stage is over."""
        self._sample(self._ticker.stop())

    def seen(self, use: ClientUse) -> ClientUse:
        """Return the use with read delays and CPU share. The p99 of fewer than 100 ticks (2 s) is the largest."""
        delays_s: FloatArray | TimeHistogram = _ints(self._late_ns) / _NS
        if len(self._earlier):
            self._condense()
            delays_s = self._earlier
        return replace(with_read_delays(use, delays_s, by_kernel=False), busiest_share=self._busiest_share())

    def _tick(self, due_ns: int, now_ns: int) -> None:
        self._late_ns.append(now_ns - due_ns)
        self._sample(now_ns)
        if len(self._late_ns) >= _MOST_TICKS:
            self._condense()

    def _condense(self) -> None:
        """Count the delays kept so far, and keep of the CPU samples those of windows that are not over."""
        self._earlier.add(_ints(self._late_ns) / _NS)
        del self._late_ns[:]
        self._busiest = self._busiest_share()
        over = int(np.searchsorted(_ints(self._at_ns), self._at_ns[-1] - _BUSY_OVER_NS))
        del self._at_ns[:over], self._cpu_ns[:over]

    def _busiest_share(self) -> float | None:
        latest = peak_cpu_share(_ints(self._at_ns), _ints(self._cpu_ns))
        return max((share for share in (self._busiest, latest) if share is not None), default=None)

    def _sample(self, now_ns: int) -> None:
        self._at_ns.append(now_ns)
        self._cpu_ns.append(process_time_ns())


def with_read_delays(use: ClientUse, delays_s: FloatArray | TimeHistogram, *, by_kernel: bool) -> ClientUse:
    """Return client use with quantiles of these read delays, a histogram's rounded up; unchanged without any."""
    if len(delays_s) == 0:
        return use

    def at(q: float) -> float | None:
        if isinstance(delays_s, TimeHistogram):
            return None if (bounds := delays_s.quantile(q)) is None else bounds.upper
        return quantile(delays_s, q)

    return replace(
        use,
        read_delay_p50_s=at(0.5),
        read_delay_p99_s=at(0.99),
        read_delay_max_s=at(1.0),
        read_delay_by="kernel" if by_kernel else "canary",
    )


def with_stamps(use: ClientUse, delays_s: FloatArray) -> ClientUse:
    """Return the worse of kernel (last packet of a read: the newest one's wait) and canary (the others') delays."""
    stamped = with_read_delays(use, delays_s, by_kernel=True)
    if stamped.read_delay_by != "kernel":
        return use
    return replace(
        stamped,
        read_delay_p50_s=max(use.read_delay_p50_s or 0.0, stamped.read_delay_p50_s or 0.0),
        read_delay_p99_s=max(use.read_delay_p99_s or 0.0, stamped.read_delay_p99_s or 0.0),
        read_delay_max_s=max(use.read_delay_max_s or 0.0, stamped.read_delay_max_s or 0.0),
    )


def peak_cpu_share(at_ns: IntArray, cpu_ns: IntArray) -> float | None:
    """Return the largest share of one core used over 5 s, from a sample to the first one 5 s later; None if shorter."""
    end = np.searchsorted(at_ns, at_ns + _BUSY_OVER_NS)
    whole = end < len(at_ns)
    if not whole.any():
        return None
    begin, end = np.flatnonzero(whole), end[whole]
    return float(np.max((cpu_ns[end] - cpu_ns[begin]) / (at_ns[end] - at_ns[begin])))


def _ints(values: array[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
