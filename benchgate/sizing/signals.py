"""Autoscaling signals, KV-cache cross-check and cold starts of a run.

Requests in the system and their tokens are time averages (Little's law with tokens as weights; Brumelle 1971): each
successful request counts from its send to its end, with its whole prompt and half of its answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType

import numpy as np

from benchgate.gate.evidence.telemetry import executions_of, windows_of
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Gauge
from benchgate.sizing.fleet import KvCache
from benchgate.sizing.operating_point import LoadLevel, lightest_level
from benchgate.suite.schema import Suite

WAITING, KV_USAGE, TOKENS = "waiting requests", "KV cache in use", "output tokens/s"
_GAUGES = ((WAITING, Gauge.WAITING), (KV_USAGE, Gauge.KV_USAGE))
_APART = 1.5  # least ratio that counts as a difference
_LEAST = MappingProxyType({WAITING: 1.0, KV_USAGE: 0.5})
"""Least value of a signal where the SLO is not shown to hold; smaller ones are chance, or no bottleneck."""
_FEWEST_BLOCKS = 2
_S_PER_NS = 1e-9


@dataclass(frozen=True, slots=True)
class SignalRange:
    """Value at one level: its mean, and its range over blocks (for tokens per second, its limits)."""

    stage: str
    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class ScalingSignal:
    """Value of the deployment at the operating point, and at the lightest level beyond that is not shown to hold.

    `beyond` is None if no such level was measured, or its server did not report the value.
    """

    name: str
    holds: SignalRange
    beyond: SignalRange | None
    beyond_misses: bool = False  # the SLO is shown not to hold there; else it is not shown to hold

    @property
    def tells(self) -> bool:
        """Return True if it was clearly higher in every block without a held SLO, and high enough to be the cause."""
        if self.beyond is None:
            return False
        return self.beyond.least >= _LEAST.get(self.name, 0.0) and self.beyond.least > self.holds.most * _APART

    @property
    def threshold(self) -> float | None:
        """Return the scale-up threshold, the maximum over blocks with a held SLO; None if it is no signal."""
        return max(self.holds.most, _LEAST.get(self.name, 0.0)) if self.tells else None


def scaling_signals(
    evidence: Evidence, levels: Sequence[LoadLevel], sized_by: LoadLevel, arm: Arm
) -> tuple[ScalingSignal, ...]:
    """Compare signals at the operating point and at the next level of its kind beyond, clear ones first.

    The order is by meaning: a queue shows a full replica for any requests; KV-cache usage depends on their lengths, and
    tokens per second on everything. Values not reported at the operating point are left out.
    """
    alike = [row for row in levels if row.kind == sized_by.kind]
    missed = [row for row in alike if not row.holds and not row.has_less_load_than(sized_by)]
    more = [row for row in missed if sized_by.has_less_load_than(row)] or missed  # of as much load, where none has more
    beyond = lightest_level(more)
    misses = beyond is not None and beyond.misses
    found = [
        ScalingSignal(name, holds, None if beyond is None else _gauge_range(evidence, beyond, arm, gauge), misses)
        for name, gauge in _GAUGES
        if (holds := _gauge_range(evidence, sized_by, arm, gauge)) is not None
    ]
    holds = _token_rate_range(sized_by)
    if holds is not None:
        found.append(ScalingSignal(TOKENS, holds, None if beyond is None else _token_rate_range(beyond), misses))
    return tuple(sorted(found, key=lambda one: not one.tells))


def _gauge_range(evidence: Evidence, row: LoadLevel, arm: Arm, gauge: Gauge) -> SignalRange | None:
    """Return a gauge over blocks; None if unreported in a block, not a valid share, or for a single block."""
    windows = windows_of(evidence, row.stage, arm)
    means = [window.mean(gauge) for window in windows.values()]
    known = [mean for mean in means if mean is not None and (gauge is not Gauge.KV_USAGE or 0 <= mean <= 1)]
    unreported = executions_of(evidence, row.stage, arm).keys() - windows.keys()
    if unreported or len(known) < max(len(means), _FEWEST_BLOCKS):
        return None
    return SignalRange(row.stage, fmean(known), min(known), max(known))


def _token_rate_range(row: LoadLevel) -> SignalRange | None:
    if row.tokens_lower is None or row.tokens_upper is None:
        return None
    return SignalRange(row.stage, row.tokens_per_s, row.tokens_lower, row.tokens_upper)


def deployment_replicas(evidence: Evidence | None, suite: Suite, arm: Arm) -> int | None:
    """Return how many replicas the measured deployment has; None if it is not known to have several.

    They are those that it declares (`ready.replicas`) or its telemetry tells apart, whichever are more.
    """
    spec = suite.deployments.get(suite.baseline if arm is Arm.BASELINE else suite.candidate)
    declared = 1 if spec is None or spec.ready is None else spec.ready.replicas
    windows = () if evidence is None else evidence.telemetry
    most = max([declared, *(len(window.replicas) for window in windows if window.arm is arm)])
    return most if most > 1 else None


@dataclass(frozen=True, slots=True)
class CacheUse:
    """KV cache at one stage: requests in flight, tokens of one of them, and the usage reported by the server."""

    stage: str
    in_flight: float
    request_tokens: float
    measured_ratio: float


@dataclass(frozen=True, slots=True)
class CacheCheck:
    """KV cache use, compared with the share predicted from the model's configuration and the memory."""

    use: CacheUse
    predicted_ratio: float

    @property
    def differs(self) -> bool:
        """Return True if the two differ by a factor above 1.5."""
        less, more = sorted((self.predicted_ratio, self.use.measured_ratio))
        return more > less * _APART


def cache_use(evidence: Evidence, stage: str, arm: Arm) -> CacheUse | str:
    """Return the mean use over the blocks of a stage, or why it is unknown.

    Cancelled requests and those without token counts make it unknown, because the rest would underestimate it.
    """
    blocks, windows = executions_of(evidence, stage, arm), windows_of(evidence, stage, arm)
    means = [mean for window in windows.values() if (mean := window.mean(Gauge.KV_USAGE)) is not None]
    if not blocks or len(means) < len(windows) or not blocks.keys() <= windows.keys():
        return f"its server did not report its KV cache usage in every block of {stage}"
    usage = fmean(means)
    if not 0 <= usage <= 1:  # or NaN
        return f"its server reported the KV cache usage {usage!r} at {stage}; expected a share from 0 to 1"
    inside = [held for block in blocks.values() if (held := _in_system(block)) is not None]
    if len(inside) < len(blocks):
        return f"not every request at {stage} finished with a token count"
    in_flight = fmean(requests for requests, _ in inside)
    return CacheUse(stage, in_flight, fmean(tokens for _, tokens in inside) / in_flight, usage)


def cache_check(use: CacheUse, cache: KvCache) -> CacheCheck | str:
    """Predict requests in flight x bytes of one of them / memory, in pages and windows for a request of that length."""
    if cache.memory_bytes <= 0:
        return "its memory is not stated"
    request_bytes = cache.bytes_of(max(1, round(use.request_tokens)))
    return CacheCheck(use, use.in_flight * request_bytes / cache.memory_bytes)


def _in_system(block: Sequence[LoadObservation]) -> tuple[float, float] | None:
    """Return mean requests and tokens in the system, all classes together; None if unknown for any request."""
    requests = tokens = 0.0
    for seen in block:
        columns, ok = seen.requests, succeeded(seen.requests)
        read, written = columns.input_tokens[ok], columns.output_tokens[ok]
        if seen.window_s <= 0 or len(seen.left) or bool(np.any((read == ABSENT) | (written == ABSENT))):
            return None
        residence_s = (columns.end_ns - columns.sent_ns)[ok] * _S_PER_NS
        requests += float(residence_s.sum()) / seen.window_s
        tokens += float((residence_s * (read + written / 2)).sum()) / seen.window_s
    return (requests, tokens) if requests > 0 else None


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """Cold starts, from the server's process to its first good completion, in seconds."""

    count: int
    median_s: float
    worst_s: float


def cold_starts(evidence: Evidence, arm: Arm) -> ColdStarts | None:
    """Summarise the cold starts of one side; None without any, or for an invalid time."""
    times_s = [start.to_answer_s for start in evidence.starts if start.arm is arm]
    if not times_s or not all(math.isfinite(time_s) and time_s > 0 for time_s in times_s):
        return None
    return ColdStarts(len(times_s), median(times_s), max(times_s))
