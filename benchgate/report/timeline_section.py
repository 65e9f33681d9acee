"""One execution of a stage over its time: what users waited for, beside what the server said of itself meanwhile."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import LoadObservation
from benchgate.model.telemetry import Gauge, TelemetryWindow
from benchgate.model.verdict import Verdict
from benchgate.report.telemetry_section import Told
from benchgate.suite.stages import stage_part

_LEAST_LOOKS = 3
_STRETCHES = 80
_SHOWN = (Gauge.WAITING, Gauge.RUNNING, Gauge.KV_USAGE)
_SHARES = frozenset({Gauge.KV_USAGE})
_UNSEEN = {
    Gauge.WAITING: "No look at this block found a request waiting, so no queue is drawn.",
    Gauge.RUNNING: "No look at this block found a request running.",
    Gauge.KV_USAGE: "No look at this block found the KV cache in use.",
}


@dataclass(frozen=True, slots=True)
class Look:
    """A value of one arm, `at_s` seconds into the stage; a latency is in seconds, +inf for a request that failed."""

    arm: Arm
    at_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Gauged:
    """What the servers said of one thing, look by look; `title` is its axis, where shares are in per cent."""

    name: str
    title: str
    key: str
    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class TimelineSection:
    """Stage and block (counted from 0) that are shown, and why it is this one.

    `ttft` are requests by when they were due: all of them, or of `requests` the slowest of each of many stretches.
    `unseen` are sentences on what every look found to be 0, which is not in `gauges`; `bottlenecks` say for each side
    what its time went to.
    """

    stage: str
    block: int
    why: str
    ttft: tuple[Look, ...]
    requests: int
    gauges: tuple[Gauged, ...]
    unseen: tuple[str, ...]
    bottlenecks: tuple[str, ...]
    ends_s: float


def timeline_section(
    rows: Sequence[Told], verdict: Verdict, paced_by_client: Collection[tuple[str, int]] = ()
) -> TimelineSection | None:
    """Where most requests were seen waiting; where none were, a stage that a check fails at, else the last one.

    Of blocks in which the load generator set the pace only where there is no other, and then it says so. None where
    nobody looked at least three times.
    """
    looked_at = [(row, window) for row in rows for window in row.windows if _looked_at(window)]
    sound = [(row, window) for row, window in looked_at if (window.stage, window.block) not in paced_by_client]
    chosen = _chosen(sound or looked_at, verdict)
    if chosen is None:
        return None
    (stage, block), why = chosen
    why += "" if sound else "; the load generator set the pace in it, as in every block that was looked at"
    here = [row for row in rows if row.stage == stage]
    windows = [(row.role, w) for row in here for w in row.windows if w.block == block]
    executions = [(row.role, o) for row in here for o in row.executions if o.block == block]
    looked_for = {word: gauged for word in _SHOWN if (gauged := _gauged(word, windows)) is not None}
    gauges = tuple(gauged for gauged in looked_for.values() if any(look.value for look in gauged.looks))
    looks = tuple(look for arm, execution in executions for look in _waits(arm, execution))
    instants = [look.at_s for gauged in gauges for look in gauged.looks] + [look.at_s for look in looks]
    return TimelineSection(
        stage=stage,
        block=block,
        why=why,
        ttft=looks,
        requests=sum(len(o.requests) for _, o in executions),
        gauges=gauges,
        unseen=tuple(_UNSEEN[word] for word, gauged in looked_for.items() if gauged not in gauges),
        bottlenecks=tuple(f"{row.role.value}: {row.bottleneck.name} ({row.bottleneck.why})" for row in here),
        ends_s=max(instants, default=0.0),
    )


def _looked_at(window: TelemetryWindow) -> bool:
    return any(len(window.during(word)) >= _LEAST_LOOKS for word in _SHOWN)


def _chosen(looked_at: Sequence[tuple[Told, TelemetryWindow]], verdict: Verdict) -> tuple[tuple[str, int], str] | None:
    if not looked_at:
        return None
    depth, longest = max(((w.peak(Gauge.WAITING) or 0.0, w) for _, w in looked_at), key=lambda pair: pair[0])
    if depth > 0:
        return (longest.stage, longest.block), "where the queue was longest"
    failing = {stage_part(check.stage) for check in verdict.failing() if check.stage is not None}
    at_fault = [w for _, w in looked_at if w.stage in failing]
    shown = at_fault[0] if at_fault else looked_at[-1][1]
    return (shown.stage, shown.block), "where a check fails" if at_fault else "the last one looked at"


def _gauged(word: Gauge, windows: Sequence[tuple[Arm, TelemetryWindow]]) -> Gauged | None:
    names = {
        Gauge.WAITING: ("Requests waiting", "waiting"),
        Gauge.RUNNING: ("Requests running", "running"),
        Gauge.KV_USAGE: ("KV cache in use", "KV cache, %"),
    }
    scale = 100.0 if word in _SHARES else 1.0
    looks = tuple(
        Look(arm, reading.at_s, value * scale)
        for arm, window in windows
        for reading in window.busy
        if (value := reading.values.get(word)) is not None and math.isfinite(value)
    )
    return Gauged(*names[word], word.value, looks) if looks else None


def _waits(arm: Arm, execution: LoadObservation) -> Iterator[Look]:
    """TTFT by the instant a request was due; of many the slowest in each of equal stretches of the stage."""
    due_s: FloatArray = execution.requests.intended_ns.astype(np.float64) * 1e-9
    waits_s = request_metrics.ttft_s(execution.requests)
    if len(due_s) == 0:
        return
    stretch = np.minimum((due_s / max(float(due_s.max()), 1e-9) * _STRETCHES).astype(np.int64), _STRETCHES - 1)
    for at in range(_STRETCHES) if len(due_s) > _STRETCHES else ():
        inside = np.flatnonzero(stretch == at)
        if len(inside):
            slowest = inside[np.argmax(waits_s[inside])]
            yield Look(arm, float(due_s[slowest]), float(waits_s[slowest]))
    if len(due_s) <= _STRETCHES:
        yield from (Look(arm, float(at_s), float(wait_s)) for at_s, wait_s in zip(due_s, waits_s, strict=True))
