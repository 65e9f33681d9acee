"""Many durations in little memory, and what their distribution is called."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, floor
from typing import Any

from benchgate.sim.settings import NS

_BIN_BITS = 10  # a bin is 1,024 ns
_BINS = 1 << 20  # up to 1.07 s; what is longer is rare and kept as it is
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

Spread = dict[str, float | int | None]
"""`n`, `mean`, `p50`, `p90`, `p95`, `p99` and `max`, in seconds; None where there is nothing."""


class Durations:
    """Any number of durations in constant memory, each to within a microsecond up to a second, and exact beyond."""

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 * _BINS))
        self._long_ns: list[int] = []
        self._total_ns = 0
        self._longest_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration, which is not negative."""
        self._total_ns += duration_ns
        if duration_ns > self._longest_ns:
            self._longest_ns = duration_ns
        try:
            self._counts[duration_ns >> _BIN_BITS] += 1
        except IndexError:
            self._long_ns.append(duration_ns)

    def state(self) -> dict[str, Any]:
        """All of it as JSON: the bins that are not empty, and the long ones."""
        used = self._counts[: (self._longest_ns >> _BIN_BITS) + 1]
        bins = [(place, count) for place, count in enumerate(used) if count]
        return {"bins": bins, "long_ns": self._long_ns, "total_ns": self._total_ns, "longest_ns": self._longest_ns}

    def absorb(self, state: dict[str, Any]) -> None:
        """Count all that another has counted."""
        for place, count in state["bins"]:
            self._counts[place] += count
        self._long_ns += state["long_ns"]
        self._total_ns += state["total_ns"]
        self._longest_ns = max(self._longest_ns, state["longest_ns"])

    def spread(self) -> Spread:
        """The distribution; a quantile is the middle of the bin in which it lies."""
        sums = list(accumulate(self._counts[: (self._longest_ns >> _BIN_BITS) + 1]))
        n_short, n = sums[-1], sums[-1] + len(self._long_ns)
        if n == 0:
            return spread([])
        long_ns = sorted(self._long_ns)

        def at(rank: int) -> float:
            if rank >= n_short:
                return float(long_ns[rank - n_short])
            middle_ns = (bisect_right(sums, rank) + 0.5) * (1 << _BIN_BITS)
            return min(middle_ns, float(self._longest_ns))

        quantiles = {name: at(min(n - 1, ceil(q * n) - 1)) / NS for name, q in _QUANTILES.items()}
        return {"n": n, "mean": self._total_ns / n / NS, **quantiles, "max": self._longest_ns / NS}


def spread(durations_ns: Sequence[int]) -> Spread:
    """The distribution of durations, in seconds; quantiles by linear interpolation, as numpy has them."""
    n = len(durations_ns)
    if n == 0:
        return {"n": 0, "mean": None, **dict.fromkeys(_QUANTILES), "max": None}
    ordered = sorted(durations_ns)

    def at(q: float) -> float:
        place = q * (n - 1)
        low, high = ordered[floor(place)], ordered[ceil(place)]
        return (low + (high - low) * (place - floor(place))) / NS

    return {"n": n, "mean": sum(ordered) / n / NS, **{k: at(q) for k, q in _QUANTILES.items()}, "max": ordered[-1] / NS}
