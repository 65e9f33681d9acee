"""What the server counts for Prometheus. Counters run as long as the process; no reset touches them."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from benchgate.sim.asks import Ask
from benchgate.sim.settings import NS
from benchgate.sim.truth import Outcome

_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip


class Histogram:
    """Durations in the buckets of vLLM's time to first token."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._total_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self._counts[bisect_left(_BUCKETS_S, duration_ns / NS)] += 1
        self._total_ns += duration_ns

    @property
    def count(self) -> int:
        """How many."""
        return sum(self._counts)

    @property
    def total_s(self) -> float:
        """All together."""
        return self._total_ns / NS

    def buckets(self) -> list[tuple[str, int]]:
        """Each upper bound in seconds, and how many are no longer."""
        bounds = [str(bound) for bound in _BUCKETS_S] + ["+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


@dataclass(slots=True)
class Counters:
    """Everything that only grows."""

    began_s: float = field(default_factory=time.time)
    requests: int = 0  # of which an answer is over, whatever came of it
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of those
    generation_tokens: int = 0  # of answers that are over
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    ttft: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)
    whole: Histogram = field(default_factory=Histogram)

    def over(self, ask: Ask, *, sent_tokens: int, cached_tokens: int, outcome: Outcome, read: bool) -> None:
        """An answer ended; `read` when its prompt had been read by then."""
        self.requests += 1
        self.generation_tokens += sent_tokens
        if read:
            self.prompt_tokens += ask.input_tokens
            self.cached_tokens += cached_tokens
        if outcome == "finished":
            self.finished["length" if ask.finish_reason == "length" else "stop"] += 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of the server: what it counted, and what it does now."""

    model: str
    counters: Counters
    running: int
    waiting: int
    kv_ratio: float
    generation_tokens: int
    preemptions: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
