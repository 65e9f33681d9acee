"""A run as OpenTelemetry's OTLP JSON: a trace with a span for each stage, and histograms of its requests.

Names are those of the GenAI semantic conventions (open-telemetry/semantic-conventions docs/gen-ai/gen-ai-metrics.md @
ce3b534088cbb00e0e9e5261acd7f01699ffedc9). All times are measured by the client; latency counts from the scheduled send.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import numpy as np

from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, FloatArray, RequestColumns
from benchgate.model.request import Endpoint
from benchgate.model.run import LoadObservation, Run
from benchgate.report.results import VerdictContext
from benchgate.suite.schema import Suite, traffic_classes

_Json = dict[str, object]
_NS_PER_S = 1_000_000_000
_INTERNAL, _CLIENT = 1, 3  # SpanKind
_CUMULATIVE = 2
_ERROR = 2  # StatusCode
# Operation of each endpoint. Those after the embeddings have none in the conventions, so theirs is the endpoint's name.
_OPERATIONS: Mapping[Endpoint, str] = MappingProxyType(
    {
        **dict.fromkeys(("chat", "responses", "messages"), "chat"),
        **dict.fromkeys(("completions", "generate", "triton-generate"), "text_completion"),
        "embeddings": "embeddings",
        **{name: name for name in ("rerank", "transcriptions", "predictions", "infer", "grpc-infer")},
    }
)
_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TPOT_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4.0**power for power in range(14))


def render_trace(context: VerdictContext) -> str:
    """Render the run as one trace, whose id is the run's. A verdict in doubt has no outcome.

    The store keeps the duration and the order of stages, not their time of day. So spans follow each other from the
    start of the run, and say that their start is estimated.
    """
    run = context.run
    start_ns, end_ns = _span_of(run)
    root_id = _span_id(run, "run")
    outcome = None if context.doubtful else context.verdict.outcome
    attributes = {
        "benchgate.run.id": run.id,
        "benchgate.suite": run.suite_name,
        "benchgate.run.label": run.label,
        "benchgate.run.status": run.status.value,
        "benchgate.verdict": None if outcome is None else outcome.value,
    }
    root = _span(run, f"benchgate run {run.suite_name}", root_id, start_ns, end_ns, attributes)
    if outcome is None or not outcome.promotes:
        root["status"] = {"code": _ERROR, "message": "verdict in doubt" if outcome is None else outcome.value}
    spans = [root, *_stage_spans(context, root_id, start_ns)]
    scope = {"scope": {"name": "benchgate"}, "spans": spans}
    return json.dumps({"resourceSpans": [{"resource": _resource(run), "scopeSpans": [scope]}]})


def render_histograms(context: VerdictContext) -> str:
    """Render histograms of request duration, TTFT, TPOT and tokens, per arm and stage."""
    metrics = [
        _histogram("gen_ai.client.operation.duration", "s", list(_durations(context))),
        _histogram("gen_ai.server.time_to_first_token", "s", list(_times(context, request_metrics.ttft_s, _TTFT_S))),
        _histogram("gen_ai.server.time_per_output_token", "s", list(_times(context, request_metrics.tpot_s, _TPOT_S))),
        _histogram("gen_ai.client.token.usage", "{token}", list(_token_counts(context))),
    ]
    scope = {"scope": {"name": "benchgate"}, "metrics": metrics}
    return json.dumps({"resourceMetrics": [{"resource": _resource(context.run), "scopeMetrics": [scope]}]})


def _stage_spans(context: VerdictContext, root_id: str, at_ns: int) -> Iterator[_Json]:
    run, labels = context.run, _labels(context)
    executions: dict[tuple[int, int, Arm], list[LoadObservation]] = {}
    for observation in context.evidence.load:  # classes of one stage run at the same time
        executions.setdefault((observation.position, observation.block, observation.arm), []).append(observation)
    for (position, _, _), classes in sorted(executions.items(), key=lambda item: item[0][:2]):
        ends_ns = at_ns
        for one in classes:
            answered = request_metrics.succeeded(one.requests)
            attributes = {
                **labels[one.stage, one.arm],
                "benchgate.block": one.block,
                "benchgate.position": position,
                "benchgate.requests": len(one.requests),
                "benchgate.requests.failed": int(len(one.requests) - answered.sum()),
                "benchgate.start.estimated": True,
            }
            to_ns = at_ns + int(one.window_s * _NS_PER_S)
            span_id = _span_id(run, f"{one.stage}\0{one.arm}\0{one.block}\0{position}")
            span = _span(run, f"{one.stage} {one.arm}", span_id, at_ns, to_ns, attributes, kind=_CLIENT)
            yield {**span, "parentSpanId": root_id}
            ends_ns = max(ends_ns, to_ns)
        at_ns = ends_ns


def _stages(context: VerdictContext) -> Iterator[tuple[_Json, list[RequestColumns]]]:
    """Yield the attributes and the requests of each arm in each stage, over all blocks."""
    found: dict[tuple[str, Arm], list[RequestColumns]] = {}
    for one in context.evidence.load:
        found.setdefault((one.stage, one.arm), []).append(one.requests)
    labels = _labels(context)
    for place, requests in found.items():
        yield labels[place], requests


def _durations(context: VerdictContext) -> Iterator[_Json]:
    """Yield the durations of successes. Failures follow under `error.type`: beyond every bound, without a sum."""
    for attributes, requests in _stages(context):
        values = np.concatenate([request_metrics.e2e_s(one) for one in requests])
        yield from _point(context.run, attributes, values[np.isfinite(values)], _DURATION_S)
        yield from _point(context.run, {**attributes, "error.type": "_OTHER"}, values[np.isinf(values)], _DURATION_S)


def _times(
    context: VerdictContext, measure: Callable[[RequestColumns], FloatArray], bounds: Sequence[float]
) -> Iterator[_Json]:
    for attributes, requests in _stages(context):
        values = np.concatenate([measure(one) for one in requests])
        yield from _point(context.run, attributes, values[np.isfinite(values)], bounds)


def _token_counts(context: VerdictContext) -> Iterator[_Json]:
    for attributes, requests in _stages(context):
        for kind in ("input", "output"):
            columns = [(getattr(one, f"{kind}_tokens"), request_metrics.succeeded(one)) for one in requests]
            counts = np.concatenate([tokens[answered & (tokens != ABSENT)] for tokens, answered in columns])
            yield from _point(
                context.run, {**attributes, "gen_ai.token.type": kind}, counts.astype(np.float64), _TOKENS
            )


def _point(run: Run, attributes: _Json, values: FloatArray, bounds: Sequence[float]) -> Iterator[_Json]:
    """Yield one data point; none without values. A bucket includes its upper bound."""
    if not len(values):
        return
    start_ns, end_ns = _span_of(run)
    counts = np.bincount(np.searchsorted(bounds, values, side="left"), minlength=len(bounds) + 1)
    point: _Json = {
        "attributes": _attributes(attributes),
        "startTimeUnixNano": str(start_ns),
        "timeUnixNano": str(end_ns),
        "count": str(len(values)),
        "bucketCounts": [str(count) for count in counts],
        "explicitBounds": list(bounds),
    }
    if np.isfinite(values).all():
        point |= {"sum": float(values.sum()), "min": float(values.min()), "max": float(values.max())}
    yield point


def _histogram(name: str, unit: str, points: list[_Json]) -> _Json:
    return {
        "name": name,
        "unit": unit,
        "histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": points},
    }


def _labels(context: VerdictContext) -> dict[tuple[str, Arm], _Json]:
    """Return the attributes of each stage and arm."""
    run = context.run
    places = traffic_classes(Suite.from_stored(run.suite))
    operations = {place.name: _OPERATIONS[place.workload.endpoint] for place in places}
    return {
        (one.stage, one.arm): {
            "gen_ai.operation.name": operations.get(one.stage),
            "gen_ai.provider.name": run.arms[one.arm].engine,
            "gen_ai.request.model": run.arms[one.arm].model,
            "benchgate.deployment": run.arms[one.arm].name,
            "benchgate.arm": one.arm.value,
            "benchgate.stage": one.stage,
        }
        for one in context.evidence.load
    }


def _resource(run: Run) -> _Json:
    facts = {"service.name": "benchgate", "service.version": run.tool_version, "service.instance.id": run.id}
    return {"attributes": _attributes(facts)}


def _span(
    run: Run,
    name: str,
    span_id: str,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, object],
    *,
    kind: int = _INTERNAL,
) -> _Json:
    return {
        "traceId": uuid.UUID(run.id).hex,
        "spanId": span_id,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": _attributes(attributes),
    }


def _span_id(run: Run, name: str) -> str:
    return hashlib.sha256(f"{run.id}\0{name}".encode()).hexdigest()[:16]


def _span_of(run: Run) -> tuple[int, int]:
    """Return the start and the end of a run in nanoseconds since 1970; without an end, its start."""
    times = (datetime.fromisoformat(text) for text in (run.started_at, run.finished_at or run.started_at))
    start_ns, end_ns = (int(at.timestamp() * 1e6) * 1000 for at in times)
    return start_ns, end_ns


def _attributes(values: Mapping[str, object]) -> list[_Json]:
    """Return OTLP's list of attributes; those that are None are left out."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: object) -> _Json:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case _:
            return {"stringValue": str(value)}
