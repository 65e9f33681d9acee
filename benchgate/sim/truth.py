"""What really happened, by the server's own clock: when requests were whole, and when bytes went to the kernel.

Instants are of CLOCK_MONOTONIC in ns, so a client on the same machine can be held against them one by one. What comes
once a token is counted in bins of about a microsecond: hours of streams then take no more memory than the first second.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, floor
from typing import Literal

from benchgate.sim.settings import NS

Outcome = Literal["finished", "aborted", "failed"]
"""The whole answer went to the kernel; the client left before; the server answered with an error or cut the answer."""

_BIN_BITS = 10  # a bin is 1,024 ns
_BINS = 1 << 20  # up to 1.07 s; what is longer is rare and kept as it is
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_ABSENT = -1

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


class Truth:
    """Everything since one reset. An answer belongs to the truth in which its request arrived."""

    def __init__(self) -> None:
        self.requests = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.faults: Counter[str] = Counter()
        self.over_tokens = 0  # of answers that are over
        self.in_flight = 0
        self.max_in_flight = 0
        self.late_writes = 0  # the kernel did not take them whole at once: their stamps are too early
        self.gaps = Durations()
        self.lags = Durations()
        self._began_cpu_s = time.process_time()
        self._began_ns: int | None = None
        self._ended_ns = 0
        self._ids: list[str | None] = []
        self._how: list[tuple[Outcome, str]] = []
        self._received_ns, self._first_ns, self._last_ns = array("q"), array("q"), array("q")
        self._tokens = array("q")

    def arrived(self, received_ns: int, fault: str) -> None:
        """A whole request was read."""
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if fault:
            self.faults[fault] += 1
        if self._began_ns is None:
            self._began_ns = received_ns

    def refused(self, received_ns: int, request_id: str | None) -> None:
        """A request was read that asked for something the server does not give."""
        self.arrived(received_ns, "")
        self.ended(
            "failed",
            request_id=request_id,
            fault="",
            received_ns=received_ns,
            first_ns=None,
            last_ns=None,
            tokens=0,
        )

    def ended(
        self,
        outcome: Outcome,
        *,
        request_id: str | None,
        fault: str,
        received_ns: int,
        first_ns: int | None,
        last_ns: int | None,
        tokens: int,
    ) -> None:
        """An answer is over. `first_ns` and `last_ns` are of writes with output, None when there was none."""
        self.in_flight -= 1
        self.outcomes[outcome] += 1
        self.over_tokens += tokens
        self._ids.append(request_id)
        self._how.append((outcome, fault))
        self._received_ns.append(received_ns)
        self._first_ns.append(_ABSENT if first_ns is None else first_ns)
        self._last_ns.append(_ABSENT if last_ns is None else last_ns)
        self._tokens.append(tokens)
        if last_ns is not None:
            self._ended_ns = max(self._ended_ns, last_ns)

    def document(self, *, tokens_under_way: int, with_requests: bool) -> dict[str, object]:
        """The truth so far; with one row for each request that is over, in the order in which they ended."""
        told: dict[str, object] = {
            "requests": self.requests,
            "finished": self.outcomes["finished"],
            "aborted": self.outcomes["aborted"],
            "failed": self.outcomes["failed"],
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
            "output_tokens": self.over_tokens + tokens_under_way,
            "span_s": self._span_s(),
            "ttft_s": spread(self._since_received(self._first_ns)),
            "itl_s": self.gaps.spread(),
            "e2e_s": spread(self._since_received(self._last_ns, finished_only=True)),
            "schedule_lag_s": self.lags.spread(),
            "late_writes": self.late_writes,
            "cpu_s": time.process_time() - self._began_cpu_s,
            "faults": dict(self.faults),
        }
        return told | {"rows": self._rows()} if with_requests else told

    def _span_s(self) -> float | None:
        """From the first request to the last output of an answer that is over."""
        if self._began_ns is None or self._ended_ns < self._began_ns:
            return None
        return (self._ended_ns - self._began_ns) / NS

    def _since_received(self, instants_ns: Sequence[int], *, finished_only: bool = False) -> list[int]:
        return [
            instant - received
            for instant, received, (outcome, _) in zip(instants_ns, self._received_ns, self._how, strict=True)
            if instant != _ABSENT and not (finished_only and outcome != "finished")
        ]

    def _rows(self) -> list[dict[str, object]]:
        columns = zip(self._ids, self._how, self._received_ns, self._first_ns, self._last_ns, self._tokens, strict=True)
        return [
            {
                "id": request_id,
                "outcome": outcome,
                "fault": fault or None,
                "received_ns": received_ns,
                "first_ns": None if first_ns == _ABSENT else first_ns,
                "last_ns": None if last_ns == _ABSENT else last_ns,
                "output_tokens": tokens,
            }
            for request_id, (outcome, fault), received_ns, first_ns, last_ns, tokens in columns
        ]


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
