"""A run over OTLP/HTTP to a receiver on the loopback: one trace with its stages, and histograms with GenAI names."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from benchgate.errors import UsageError
from benchgate.integrations.github_feedback import CheckState, Message
from benchgate.integrations.webhook import OTLP_HEADERS, otlp_headers
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import Decision
from benchgate.release.publish import Judged, notifiers, parse_web_targets
from benchgate.report.document import OWN, verdict_document
from benchgate.report.otlp import render_trace
from benchgate.report.results import VerdictContext
from tests.fakes import evidence as fake
from tests.fakes.receiver import Receiver, receiving

EVIDENCE = fake.evidence()
_IDS = ("traceId", "spanId", "parentSpanId")
Export = TypeVar("Export", ExportTraceServiceRequest, ExportMetricsServiceRequest)
MESSAGE = Message("tiny-q4", "q4", EVIDENCE.run.id, Outcome.BLOCK, CheckState.FAILURE, "BLOCK", lambda budget: "")


def sent(receiver: Receiver, outcome: Outcome = Outcome.BLOCK, doubt: str | None = None) -> tuple[Any, Any]:
    """Publish the run to the receiver, and return its trace and its histograms."""
    verdict = fake.verdict(outcome)
    judged = Judged(Decision(EVIDENCE, None, verdict, OWN, verdict_document(EVIDENCE.run, verdict)), doubt)
    to = parse_web_targets(None, None, slack=False, otlp=f"http://localhost:{receiver.port}/otlp/?tenant=a")
    environment = {OTLP_HEADERS: "Authorization=Basic%20aGk6aGk=, X-Scope=a"}
    publisher = notifiers(judged, to, None, environment, clock=receiver.clock)["otlp"]
    assert publisher(MESSAGE).endswith(EVIDENCE.run.id.replace("-", ""))
    trace, histograms = (json.loads(body) for _, _, _, body in receiver.seen[-2:])
    return trace, histograms


def attributes(of: Any) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in of["attributes"]}


def as_protobuf(document: Any, message: Export) -> Export:
    """Read OTLP's JSON into its own message. Unknown fields are errors; ids are hexadecimal there, and base64 here."""

    def decoded(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: decoded(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [decoded(inner) for inner in value]
        return base64.b64encode(bytes.fromhex(value)).decode() if key in _IDS else value

    json_format.ParseDict(decoded(document), message)
    return message


def test_what_is_sent_are_messages_of_opentelemetry() -> None:
    with receiving([200]) as receiver:
        trace, histograms = sent(receiver)
    spans = as_protobuf(trace, ExportTraceServiceRequest()).resource_spans[0].scope_spans[0].spans
    assert [len(span.trace_id) for span in spans] == [16] * (1 + len(EVIDENCE.load))
    assert {len(span.span_id) for span in spans} == {8}
    assert {span.parent_span_id for span in spans[1:]} == {spans[0].span_id}
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert spans[0].status.code == Status.STATUS_CODE_ERROR
    metrics = as_protobuf(histograms, ExportMetricsServiceRequest()).resource_metrics[0].scope_metrics[0].metrics
    for metric in metrics:
        assert metric.WhichOneof("data") == "histogram"
        assert metric.histogram.aggregation_temporality != AggregationTemporality.AGGREGATION_TEMPORALITY_UNSPECIFIED
        for point in metric.histogram.data_points:
            assert sum(point.bucket_counts) == point.count
            assert list(point.explicit_bounds) == sorted(point.explicit_bounds)
    with pytest.raises(json_format.ParseError, match="spanz"):
        as_protobuf({"resourceSpans": [{"scopeSpans": [{"spanz": []}]}]}, ExportTraceServiceRequest())


def test_the_run_is_one_trace_and_every_stage_a_span_in_it() -> None:
    with receiving([200]) as receiver:
        trace, _ = sent(receiver)
    assert [(method, path) for method, path, _, _ in receiver.seen] == [
        ("POST", "/otlp/v1/traces?tenant=a"), ("POST", "/otlp/v1/metrics?tenant=a"),
    ]  # fmt: skip
    headers = receiver.seen[0][2]
    assert (headers["content-type"], headers["authorization"]) == ("application/json", "Basic aGk6aGk=")
    (resource,) = trace["resourceSpans"]
    assert attributes(resource["resource"])["service.name"] == "benchgate"
    root, *stages = resource["scopeSpans"][0]["spans"]
    assert {span["traceId"] for span in (root, *stages)} == {EVIDENCE.run.id.replace("-", "")}
    assert len({span["spanId"] for span in (root, *stages)}) == 1 + len(EVIDENCE.load)
    assert {span["parentSpanId"] for span in stages} == {root["spanId"]}
    assert attributes(root)["benchgate.verdict"] == "BLOCK"
    assert root["status"] == {"code": 2, "message": "BLOCK"}
    windows = {(one.stage, one.arm, one.block): one for one in EVIDENCE.load}
    for span in stages:
        found = attributes(span)
        one = windows[found["benchgate.stage"], Arm(found["benchgate.arm"]), int(found["benchgate.block"])]
        took_ns = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
        assert took_ns == int(one.window_s * 1e9)
        assert found["benchgate.start.estimated"] is True
        failed = len(one.requests) - int(request_metrics.succeeded(one.requests).sum())
        assert int(found["benchgate.requests.failed"]) == failed
    order = [int(attributes(span)["benchgate.position"]) for span in stages]
    assert order == sorted(order)


def test_a_histogram_holds_every_request_and_failures_have_a_series_of_their_own() -> None:
    with receiving([200]) as receiver:
        _, histograms = sent(receiver)
    metrics = {one["name"]: one for one in histograms["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
    assert {name: one["unit"] for name, one in metrics.items()} == {
        "gen_ai.client.operation.duration": "s",
        "gen_ai.server.time_to_first_token": "s",
        "gen_ai.server.time_per_output_token": "s",
        "gen_ai.client.token.usage": "{token}",
    }
    count, failures = 0, 0
    for point in metrics["gen_ai.client.operation.duration"]["histogram"]["dataPoints"]:
        found = attributes(point)
        counts = [int(number) for number in point["bucketCounts"]]
        assert len(counts) == len(point["explicitBounds"]) + 1
        assert sum(counts) == int(point["count"])
        count += sum(counts)
        if "error.type" in found:
            failures += counts[-1]
            assert sum(counts[:-1]) == 0 and "sum" not in point
    assert count == sum(len(one.requests) for one in EVIDENCE.load)
    assert failures == sum(int((~request_metrics.succeeded(one.requests)).sum()) for one in EVIDENCE.load) > 0
    (point,) = (
        point
        for point in metrics["gen_ai.server.time_to_first_token"]["histogram"]["dataPoints"]
        if (attributes(point)["benchgate.arm"], attributes(point)["benchgate.stage"]) == ("candidate", "c4")
    )
    blocks = [one.requests for one in EVIDENCE.load if (one.arm, one.stage) == (Arm.CANDIDATE, "c4")]
    values = np.concatenate([request_metrics.ttft_s(one) for one in blocks])
    values = values[np.isfinite(values)]
    assert (point["sum"], point["max"]) == pytest.approx((values.sum(), values.max()))
    bounds = [*point["explicitBounds"], np.inf]
    cumulative = np.cumsum([int(number) for number in point["bucketCounts"]])
    assert cumulative.tolist() == [int((values <= bound).sum()) for bound in bounds]
    labels = attributes(point)
    assert (labels["gen_ai.operation.name"], labels["gen_ai.request.model"]) == (
        "chat", EVIDENCE.run.arms[Arm.CANDIDATE].model,
    )  # fmt: skip


OPERATIONS = {
    "chat": "chat", "responses": "chat", "messages": "chat", "completions": "text_completion",
    "generate": "text_completion", "triton-generate": "text_completion", "embeddings": "embeddings",
    "rerank": "rerank", "transcriptions": "transcriptions", "predictions": "predictions", "infer": "infer",
    "grpc-infer": "grpc-infer",
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_endpoint_has_an_operation_of_its_own_kind(endpoint: str) -> None:
    stored: Any = EVIDENCE.run.suite
    load = {**stored["load"], "workload": {**stored["load"]["workload"], "endpoint": endpoint}}
    evidence = replace(EVIDENCE, run=replace(EVIDENCE.run, suite={**stored, "load": load}))
    context = VerdictContext(evidence, fake.verdict(Outcome.PASS), Outcome.PASS.exit_code())
    (scope,) = json.loads(render_trace(context))["resourceSpans"][0]["scopeSpans"]
    found = {attributes(span).get("gen_ai.operation.name") for span in scope["spans"] if "parentSpanId" in span}
    assert found == {OPERATIONS[endpoint]}


def test_a_promoting_verdict_is_no_error_and_one_in_doubt_has_no_outcome() -> None:
    with receiving([200]) as receiver:
        passed, _ = sent(receiver, Outcome.PASS)
        doubtful, _ = sent(receiver, Outcome.PASS, "its newest stored verdict is BLOCK")
    roots = [trace["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for trace in (passed, doubtful)]
    assert "status" not in roots[0] and attributes(roots[0])["benchgate.verdict"] == "PASS"
    assert roots[1]["status"]["code"] == 2 and "benchgate.verdict" not in attributes(roots[1])


@pytest.mark.parametrize("text", ["Authorization", "a b=c", "a=%0d%0aHost: x", "=b"])
def test_headers_that_are_none_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(UsageError, match="expected name=value pairs") as refused:
        otlp_headers({OTLP_HEADERS: text})
    assert text not in str(refused.value)
    assert otlp_headers({}) == {}
