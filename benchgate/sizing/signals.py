"""By what a fleet may be scaled: what a server said of itself where the SLO held, and where it no longer did.

How full a server's KV cache should have been by what was inside, beside how full the server said it was.

The requests inside, and the tokens of one of them, are means over time (Little's law with tokens as weights; Brumelle
1971): each successful request counts from when it was sent to its end, as its whole prompt and half of its answer.

How long an arm's server took to start, as far as its run started it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType

import numpy as np

from benchgate.gate.evidence.telemetry import executions_of, stage_mean, windows_of
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Gauge
from benchgate.sizing.fleet import Cache
from benchgate.sizing.operating_point import BestRow, lightest

WAITING, KV_USAGE, TOKENS = "waiting requests", "KV cache in use", "output tokens/s"
_GAUGES = ((WAITING, Gauge.WAITING), (KV_USAGE, Gauge.KV_USAGE))
_APART = 1.5  # times more where the SLO did not hold: less is no sign of it
_LEAST = MappingProxyType({WAITING: 1.0, KV_USAGE: 0.5})
"""What there must be where the SLO did not hold: less than one that waits is chance, a cache half empty no limit."""
_FEWEST_BLOCKS = 2  # one value has no spread to be told from


@dataclass(frozen=True, slots=True)
class Seen:
    """A number at one level: its mean, and the least and the most of its blocks (of tokens per second its limits)."""

    stage: str
    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Signal:
    """A number of one replica at the level that it is sized by, and at the least level beyond that does not hold.

    `beyond` is None where no such level was measured, or its server did not tell.
    """

    name: str
    holds: Seen
    beyond: Seen | None

    @property
    def tells(self) -> bool:
        """Whether it was more by its every block where the SLO was not shown to hold, and enough to be its cause."""
        if self.beyond is None:
            return False
        return self.beyond.least >= _LEAST.get(self.name, 0.0) and self.beyond.least > self.holds.most * _APART

    @property
    def threshold(self) -> float | None:
        """Above what to scale up: above every block in which the SLO held. None where it does not tell."""
        return max(self.holds.most, _LEAST.get(self.name, 0.0)) if self.tells else None


def scaling_signals(evidence: Evidence, levels: Sequence[BestRow], sized_by: BestRow, arm: Arm) -> tuple[Signal, ...]:
    """What the server told at the level that counts and at the next one of its kind beyond it, the most telling first.

    A queue says that a replica is full whatever its requests are; how full its cache is depends on their lengths, and
    tokens per second on all of it, so they come in this order. What was not told at the level that counts is left out.
    """
    alike = [row for row in levels if row.kind == sized_by.kind]
    missed = [row for row in alike if not row.holds and not row.has_less_load_than(sized_by)]
    more = [row for row in missed if sized_by.has_less_load_than(row)] or missed  # of as much load, where none has more
    beyond = lightest(more)
    found = [
        Signal(name, holds, None if beyond is None else _told(evidence, beyond, arm, gauge))
        for name, gauge in _GAUGES
        if (holds := _told(evidence, sized_by, arm, gauge)) is not None
    ]
    holds = _pace(sized_by)
    found += [] if holds is None else [Signal(TOKENS, holds, None if beyond is None else _pace(beyond))]
    return tuple(sorted(found, key=lambda one: not one.tells))


def _told(evidence: Evidence, row: BestRow, arm: Arm, gauge: Gauge) -> Seen | None:
    """A gauge by its blocks; None where one of them told nothing, or of a share that is none; and of one alone."""
    windows = windows_of(evidence, row.stage, arm)
    means = [window.mean(gauge) for window in windows.values()]
    known = [mean for mean in means if mean is not None and (gauge is not Gauge.KV_USAGE or 0 <= mean <= 1)]
    untold = executions_of(evidence, row.stage, arm).keys() - windows.keys()
    if untold or len(known) < max(len(means), _FEWEST_BLOCKS):
        return None
    return Seen(row.stage, fmean(known), min(known), max(known))


def _pace(row: BestRow) -> Seen | None:
    """Its tokens per second with their limits; None where they have none."""
    if row.tokens_lower is None or row.tokens_upper is None:
        return None
    return Seen(row.stage, row.tokens_per_s, row.tokens_lower, row.tokens_upper)


# times: pages, a queue and looks once a second make less of a difference
_S_PER_NS = 1e-9


@dataclass(frozen=True, slots=True)
class CacheUse:
    """At one stage: requests inside at once, the tokens that one of them holds, and the share that the server told."""

    stage: str
    in_flight: float
    request_tokens: float
    measured_ratio: float


@dataclass(frozen=True, slots=True)
class CacheCheck:
    """The same beside the share that the model's configuration and the memory make of it."""

    use: CacheUse
    predicted_ratio: float

    @property
    def differs(self) -> bool:
        """Whether one is more than 1.5 times the other."""
        less, more = sorted((self.predicted_ratio, self.use.measured_ratio))
        return more > less * _APART


def cache_use(evidence: Evidence, stage: str, arm: Arm) -> CacheUse | str:
    """At a stage of one arm, on the mean over its blocks; else why it is not known.

    What was left early, and what has no count of its tokens, leaves it unknown: a part of the requests is not what was
    inside.
    """
    blocks, windows = executions_of(evidence, stage, arm), windows_of(evidence, stage, arm)
    told = stage_mean(evidence, stage, arm, Gauge.KV_USAGE)
    if told is None or not blocks or not blocks.keys() <= windows.keys():
        return f"its server did not tell in every block of {stage} how full its KV cache was"
    if not 0 <= told <= 1:  # not a number either
        return f"its server told {told!r} of its KV cache at {stage}, which is no share"
    inside = [held for block in blocks.values() if (held := _inside(block)) is not None]
    if len(inside) < len(blocks):
        return f"not every request at {stage} went to its end with its tokens counted"
    in_flight = fmean(requests for requests, _ in inside)
    return CacheUse(stage, in_flight, fmean(tokens for _, tokens in inside) / in_flight, told)


def cache_check(use: CacheUse, cache: Cache) -> CacheCheck | str:
    """Requests inside x bytes of one of them / memory, in pages and windows as a request of that length takes them."""
    if cache.memory_bytes <= 0:
        return "no memory is said for it"
    request_bytes = cache.bytes_of(max(1, round(use.request_tokens)))
    return CacheCheck(use, use.in_flight * request_bytes / cache.memory_bytes)


def _inside(block: Sequence[LoadObservation]) -> tuple[float, float] | None:
    """Requests and tokens inside at once, all classes together; None where that is not known of every request."""
    requests = tokens = 0.0
    for seen in block:
        columns, ok = seen.requests, succeeded(seen.requests)
        read, written = columns.input_tokens[ok], columns.output_tokens[ok]
        if seen.window_s <= 0 or len(seen.left) or bool(np.any((read == ABSENT) | (written == ABSENT))):
            return None
        stay_s = (columns.end_ns - columns.sent_ns)[ok] * _S_PER_NS
        requests += float(stay_s.sum()) / seen.window_s
        tokens += float((stay_s * (read + written / 2)).sum()) / seen.window_s
    return (requests, tokens) if requests > 0 else None


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """So many starts, each from the server's process to its first good completion, in seconds."""

    count: int
    median_s: float
    worst_s: float


def cold_starts(evidence: Evidence, arm: Arm) -> ColdStarts | None:
    """Of this arm alone; None where the run started none, and where one of the times cannot be."""
    times_s = [start.to_answer_s for start in evidence.starts if start.arm is arm]
    if not times_s or not all(math.isfinite(time_s) and time_s > 0 for time_s in times_s):
        return None
    return ColdStarts(len(times_s), median(times_s), max(times_s))
