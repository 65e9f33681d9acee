"""Figures of each replica of a deployment, and of each role where prefill and decode are split. For reports only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product

from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import (
    Counter,
    Gauge,
    Role,
    TelemetrySample,
    TelemetryWindow,
    combine_replicas,
    ratio_of_changes,
    total_change,
)
from benchgate.model.verdict import ReplicaFigures
from benchgate.suite.load import level_of_stage


def replica_figures(run: Evidence) -> tuple[ReplicaFigures, ...]:
    """Return the figures of every replica of every stage of the sweep, then those of each role where there are two."""
    stages = dict.fromkeys(window.stage for window in run.telemetry if level_of_stage(window.stage) is None)
    return tuple(figures for stage, arm in product(stages, Arm) for figures in _of_stage(run, stage, arm))


def _of_stage(run: Evidence, stage: str, arm: Arm) -> Iterator[ReplicaFigures]:
    windows = [window for window in run.telemetry if window.arm is arm and window.stage == stage]
    roles = {replica.name: replica.role for window in windows for replica in window.replicas}
    for name, role in roles.items():
        yield _figures(windows, {name}, name, role)
    known = sorted({role for role in roles.values() if role is not None})
    for role in known if len(known) > 1 else ():
        yield _figures(windows, {name for name, of in roles.items() if of is role}, None, role)


def _figures(
    windows: Sequence[TelemetryWindow], names: Collection[str], name: str | None, role: Role | None
) -> ReplicaFigures:
    own = [_window_of(window, names) for window in windows]
    # At the instants at which the whole deployment was at work: one that was idle then had no requests.
    busy = [{reading.at_s for reading in window.busy} for window in windows]
    sampled = [one.values for of, at in zip(own, busy, strict=True) for one in of.readings[1:-1] if one.at_s in at]
    running, waiting, usage, mean_usage = (
        [values[gauge] for values in sampled if gauge in values]
        for gauge in (Gauge.RUNNING, Gauge.WAITING, Gauge.KV_USAGE, Gauge.KV_USAGE_MEAN)
    )
    return ReplicaFigures(
        windows[0].arm,
        windows[0].stage,
        name,
        role,
        restarts=sum(one in names for window in windows for one in window.restarted_replicas),
        requests=total_change(own, Counter.REQUESTS),
        output_tokens=total_change(own, Counter.GENERATION_TOKENS),
        running_mean=_mean(running),
        waiting_max=max(waiting, default=None),
        queue_s=ratio_of_changes(own, Counter.QUEUE_S, Counter.QUEUED),
        prefill_s=ratio_of_changes(own, Counter.PREFILL_S, Counter.PREFILLED),
        per_token_s=None
        if role is Role.PREFILL
        else ratio_of_changes(own, Counter.DECODE_S, Counter.GENERATION_TOKENS),
        kv_usage_mean=_mean(mean_usage),
        kv_usage_max=max(usage, default=None),
        prefix_hit_ratio=ratio_of_changes(own, Counter.PREFIX_HITS, Counter.PREFIX_QUERIES),
        preemptions=total_change(own, Counter.PREEMPTIONS),
    )


def _window_of(window: TelemetryWindow, names: Collection[str]) -> TelemetryWindow:
    """Return the window of these replicas together: while one does not answer, there is no value."""
    members = tuple(replica for replica in window.replicas if replica.name in names)
    samples = zip(*(replica.readings for replica in members), strict=True)
    readings = tuple(
        TelemetrySample(of_all[0].at_s, combine_replicas([(None, sample.values) for sample in of_all]))
        for of_all in samples
    )
    return replace(window, readings=readings, replicas=members)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
