"""A stored run that a fleet can be sized by: three closed loops, of which the last misses its SLO."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.run import LoadObservation, Run, RunStatus, ServerStart
from benchgate.model.telemetry import Gauge, TelemetrySample, TelemetryWindow
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.fakes.measured import Effect, measured

SUITE = """
suite: sized
deployments:
  a: {engine: openai, url: http://a.example, model: m}
  b: {engine: openai, url: http://b.example, model: m}
baseline: a
candidate: b
slo: {ttft: 500ms, target: 95%}
load:
  workload: {input: 8, output: 10}
  blocks: 3
  sweep:
    - {stage: c4, concurrency: 4, requests: 60}
    - {stage: c8, concurrency: 8, requests: 60}
    - {stage: c16, concurrency: 16, requests: 60}
gate: {checks: [{metric: error_rate, max: 10%}]}
"""
STARTS_S = 70.0, 50.0, 60.0
KV_USAGE = 0.1875
PLAN = b'{"blocks":[]}'
DONE_AT = "2026-11-20T13:00:00Z"


def write_sized(
    store: Store, run: Run, *, outcome: str = "PASS", suite: str = SUITE, guards: Sequence[object] = ()
) -> None:
    """Adds the run, begun as `run`, with starts of the candidate, a verdict and the numbers that its records make.

    The candidate answers 5 requests/s at c4 and 10/s at c8, of ten tokens each; at c16 its first token takes a second.
    """
    stored, plan = parse_suite(suite, "suite.yaml").to_stored(), hashlib.sha256(PLAN).hexdigest()
    writer = store.begin_run(replace(run, suite=stored, plan_sha256=plan), PLAN)
    for number, took_s in enumerate(STARTS_S):
        writer.add(ServerStart(Arm.CANDIDATE, number, took_s))
    for seen in loads(suite):
        writer.add(seen)
    looks = tuple(TelemetrySample(float(at), {Gauge.RUNNING: 2.0, Gauge.KV_USAGE: KV_USAGE}) for at in range(4))
    for block in range(3):
        writer.add(TelemetryWindow("c8", Arm.CANDIDATE, block, 0, "vllm", 3.0, True, looks))
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    store.save_metrics(run.id, metric_rows(store.evidence(run.id)))
    store.save_verdict(run.id, {"outcome": outcome, "guards": list(guards)})


def loads(suite: str = SUITE) -> list[LoadObservation]:
    """What the load of such a run left."""
    usual, slow = (measured(parse_suite(suite, "suite.yaml"), Effect(slowdown=by)).load for by in (1.0, 20.0))
    return [
        slower if seen.stage == "c16" else replace(seen, window_s=seen.window_s * (2 if seen.stage == "c4" else 1))
        for seen, slower in zip(usual, slow, strict=True)
    ]
