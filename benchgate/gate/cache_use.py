"""How full a server's KV cache should have been by what was inside, beside how full the server said it was.

The requests inside, and the tokens of one of them, are means over time (Little's law with tokens as weights; Brumelle
1971): each successful request counts from when it was sent to its end, as its whole prompt and half of its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from benchgate.cost.sizing import Cache
from benchgate.gate.telemetry_values import executions_of, stage_mean, windows_of
from benchgate.model.deployment import Arm
from benchgate.model.metrics import succeeded
from benchgate.model.records import ABSENT
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Gauge

_APART = 1.5  # times: pages, a queue and looks once a second make less of a difference
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
