"""Summaries of requests that are too many to hold: exact counts, quantiles within the stated error, a fair sample."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.results import ClassResult, StageResult, merged
from benchgate.load.stage_summary import Offered, StageSummary, merge_shares, summarise
from benchgate.load.standalone.metrics import load_metrics
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import describe, offered_load
from benchgate.model import request_metrics
from benchgate.model.columns import select_rows
from benchgate.model.histogram import RELATIVE_ERROR, TimeHistogram
from benchgate.model.metric import Slo
from benchgate.model.records import ABSENT, ErrorClass, RequestColumns, TokenSource
from benchgate.model.request_summary import TIMES, RecordSample, RequestSummary
from benchgate.model.run import ClientUse
from benchmarks.gate_million import answered
from tests.fakes.blocks import record

QUANTILES = (0.001, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
SLO = Slo(ttft_s=0.2, tpot_s=0.03)
USE = ClientUse(cpu_s=1.0, wall_s=2.0, workers=1)


@pytest.fixture(scope="module")
def columns() -> RequestColumns:
    """Twenty thousand requests, some of which failed."""
    return answered(20_000, 6, 1.0, np.random.default_rng(7))


def dealt(columns: RequestColumns, shards: int) -> list[RequestColumns]:
    return [select_rows(columns, columns.index % shards == shard) for shard in range(shards)]


@given(
    st.lists(st.one_of(st.floats(1e-9, 1e9), st.just(math.inf), st.just(math.nan)), max_size=60),
    st.sampled_from(QUANTILES),
)
def test_a_quantile_lies_within_its_bounds_and_the_stated_error(values: list[float], q: float) -> None:
    histogram = TimeHistogram()
    histogram.add(np.array(values, dtype=np.float64))
    exact, found = request_metrics.quantile(np.array(values, dtype=np.float64), q), histogram.quantile(q)
    assert (exact is None) == (found is None)
    if exact is not None and found is not None:
        assert found.lower <= exact <= found.upper
        assert found.middle == exact or abs(found.middle / exact - 1) <= RELATIVE_ERROR


def test_every_quantile_of_a_stage_is_within_the_stated_error(columns: RequestColumns) -> None:
    summary = RequestSummary()
    summary.add(columns)
    for name, measure in TIMES.items():
        for q in QUANTILES:
            exact, found = request_metrics.quantile(measure(columns), q), summary.times[name].quantile(q)
            assert exact is not None and found is not None and found.lower <= exact <= found.upper
            assert found.middle == exact or abs(found.middle / exact - 1) <= RELATIVE_ERROR


def test_ttfot_counts_answers_that_never_began_wherever_they_lie(columns: RequestColumns) -> None:
    """Whether or not the server counts reasoning tokens, and however the records are divided."""
    streamed = np.diff(columns.chunk_start) > 0
    first_ns = np.full(len(columns), ABSENT)
    first_ns[streamed] = columns.chunk_ns[columns.chunk_start[:-1][streamed]]
    begun = columns.intended_ns > np.quantile(columns.intended_ns, 0.3)
    reasoned = replace(columns, first_answer_ns=np.where(begun & (first_ns != ABSENT), first_ns + 1, ABSENT))
    summary = RequestSummary()
    for part in (~begun, begun):
        summary.add(select_rows(reasoned, part))
    assert len(summary.known_times["ttfot"]) == len(columns)
    rows = load_metrics(StageResult.of(reasoned, 60.0, USE), None, "c8")
    assert [row.n for row in rows if row.name == "ttfot" and row.statistic == "p50"] == [len(columns)]
    plain = replace(columns, first_answer_ns=first_ns)
    nobody = replace(columns, first_answer_ns=np.full_like(first_ns, ABSENT))
    for same_or_none in (plain, nobody):
        assert not any(row.name == "ttfot" for row in load_metrics(StageResult.of(same_or_none, 60.0, USE), None, "c8"))
    summary = RequestSummary()
    summary.add(nobody)
    assert len(summary.known_times["ttfot"]) == 0


def test_values_below_a_nanosecond_keep_their_place_without_a_relative_error() -> None:
    histogram = TimeHistogram()
    histogram.add(np.array([-0.5, 0.0, 1e-12, 3.0]))
    median = histogram.quantile(0.5)
    assert median is not None and median.lower <= 0.0 <= median.upper <= 1e-9
    assert (histogram.quantile(0.01), histogram.quantile(1.0)) == ((-0.5, -0.5), (3.0, 3.0))


def test_a_mean_is_exact_and_a_failure_leaves_none() -> None:
    histogram = TimeHistogram()
    histogram.add(np.array([0.1, 0.2, 0.4, math.nan]))
    assert histogram.mean_s == pytest.approx(0.7 / 3, abs=1e-9)
    histogram.add(np.array([math.inf]))
    assert (histogram.mean_s, len(histogram)) == (None, 4)


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_counts_and_histograms_do_not_depend_on_the_shards(columns: RequestColumns, shards: int) -> None:
    whole, parts = RequestSummary(SLO), RequestSummary(SLO)
    whole.add(columns)
    for share in reversed(dealt(columns, shards)):
        part = RequestSummary(SLO)
        part.add(share)
        parts.merge(part)
    for name, histogram in whole.times.items():
        other = parts.times[name]
        assert (histogram.counts == other.counts).all()
        assert (histogram.total_ns, histogram.infinite, histogram.below) == (
            other.total_ns, other.infinite, other.below,
        )  # fmt: skip
    for name in ("scheduled", "succeeded", "good", "failures", "token_sources", "tokens", "unknown_tokens"):
        assert getattr(whole, name) == getattr(parts, name)
    assert whole.by_second.stretches(10) == parts.by_second.stretches(10)


def test_counts_are_those_of_the_records(columns: RequestColumns) -> None:
    summary = RequestSummary(SLO)
    for share in dealt(columns, 3):
        summary.add(share)
    ok, good = request_metrics.succeeded(columns), request_metrics.meets_slo(columns, SLO)
    assert (summary.scheduled, summary.succeeded, summary.good) == (len(columns), ok.sum(), good.sum())
    assert summary.tokens["output_tokens"] == request_metrics.output_tokens(columns)
    assert summary.token_ratio("cached_tokens", "input_tokens") is None  # no server reported them
    failed = Counter(
        (error, detail) for error, detail in zip(columns.error, columns.error_detail, strict=True) if error
    )
    assert summary.failures == failed and sum(failed.values()) == (~ok).sum() > 0
    parts = summary.by_second.stretches(10)
    assert len(parts) == 10 and [sum(column) for column in zip(*parts, strict=True)][1:] == [
        len(columns), ok.sum(), good.sum(), columns.output_tokens[ok].sum(),
    ]  # fmt: skip


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_the_sample_is_the_same_however_the_records_were_divided(columns: RequestColumns, shards: int) -> None:
    whole, parts = RecordSample(seed=3, size=500), RecordSample(seed=3, size=500)
    whole.add(columns)
    for share in dealt(columns, shards):
        one = RecordSample(seed=3, size=500)
        one.add(share)
        parts.merge(one)
    sample = whole.columns()
    assert len(sample) == 500 and (sample.index == parts.columns().index).all()
    assert (request_metrics.ttft_s(sample) == request_metrics.ttft_s(columns)[sample.index]).all()


def test_every_record_is_as_likely_to_be_sampled(columns: RequestColumns) -> None:
    """Chi-squared over 20 ranges of numbers: its mean is 19, and 60 has a probability of 4e-6."""
    sample = RecordSample(seed=11, size=4000)
    sample.add(columns)
    found = np.bincount(sample.columns().index // 1000, minlength=20)
    assert ((found - 200) ** 2 / 200).sum() < 60


def stage(columns: RequestColumns) -> StageResult:
    return StageResult((ClassResult("", columns, 20.0, in_steady_state=True),), USE)


def test_a_merge_keeps_every_record_up_to_the_limit_and_summarises_beyond(columns: RequestColumns) -> None:
    shares = [stage(share) for share in dealt(columns, 4)]
    exact = merge_shares(shares, len(columns), Offered(SLO), exact=len(columns)).whole
    assert isinstance(exact, StageResult) and (exact.requests.index == columns.index).all()
    summary = merge_shares(iter(shares), len(columns), Offered(SLO), exact=len(columns) - 1).whole
    assert isinstance(summary, StageSummary)
    assert summary.only.requests.scheduled == len(columns) and summary.client.workers == 4
    assert summary.only.window_s == merged(shares).window_s


def test_the_document_of_a_summary_differs_by_the_stated_error_alone(
    columns: RequestColumns,
) -> None:
    options = LoadOptions.parse(
        url="http://a", model="m", engine="openai", concurrency=64, requests=len(columns), output_tokens=6,
        slo="ttft=200ms,tpot=30ms",
    )  # fmt: skip
    shares = [stage(share) for share in dealt(columns, 4)]
    documents: list[Any] = []
    for exact in (len(columns), 0):
        result = merge_shares(shares, len(columns), offered_load(options), exact=exact).whole
        documents.append(describe(options, "openai", result, partial=False, warmup=None))
    exact_document, summary = documents
    assert (exact_document.pop("quantile_error_ratio"), summary.pop("quantile_error_ratio")) == (0.0, RELATIVE_ERROR)
    assert exact_document.pop("session_e2e_s")["n"] == 0
    assert exact_document["verdict"]["outcome"] == summary.pop("verdict")["outcome"] == "BLOCK"
    rows = {(row["name"], row["statistic"]): row for row in summary.pop("metrics")}
    for row in exact_document["metrics"]:
        found = rows.pop((row["name"], row["statistic"]))
        assert found["value"] == pytest.approx(row["value"], rel=RELATIVE_ERROR) and found["n"] == row["n"]
        assert row["lower"] is None or found["lower"] <= row["value"] <= found["upper"]
    assert not rows
    for key, value in summary.items():
        if key.endswith("_s") and isinstance(value, dict):
            expected = exact_document[key]
            assert [number is None for number in value.values()] == [number is None for number in expected.values()]
            known = {name: number for name, number in expected.items() if number is not None}
            assert {name: value[name] for name in known} == pytest.approx(known, rel=RELATIVE_ERROR)
        else:
            assert value == exact_document[key]


@pytest.mark.parametrize("exact", [1_000, 0])
def test_failures_of_the_ramp_count_in_the_error_rate_alone(exact: int) -> None:
    options = LoadOptions.parse(url="http://a", model="m", engine="openai", concurrency=8, requests=200, slo="e2e=60s")
    measured = RequestColumns.pack([record(index, 0.01) for index in range(200)])
    ramp = RequestColumns.pack([record(1_000 + index, 0.01 if index < 40 else None) for index in range(100)])
    shares = [StageResult((ClassResult("", measured, 2.0, ramp=ramp, in_steady_state=True),), USE)]
    result = merge_shares(shares, 300, offered_load(options), exact=exact).whole
    document: Any = describe(options, "openai", result, partial=False, warmup=0)
    rows = {row["name"]: row for row in document["metrics"] if row["statistic"] is None}
    assert sum(document["requests"]["failed_by_class"].values()) == 60
    assert (rows["error_rate"]["value"], rows["error_rate"]["n"]) == (0.2, 300)
    assert 0 < rows["error_rate"]["lower"] < 0.2 < rows["error_rate"]["upper"]
    assert (rows["goodput"]["value"], rows["goodput"]["n"]) == (1.0, 200)


def test_tokens_of_failed_requests_have_no_source() -> None:
    cut = replace(record(2, 0.01), token_source=TokenSource.CHUNKS, finish_reason=None, end_ns=None,
                  error=ErrorClass.STREAM_BROKEN, error_detail="cut")  # fmt: skip
    summary = RequestSummary()
    summary.add(RequestColumns.pack([record(0, 0.01), replace(record(1, 0.01), token_source=TokenSource.CHUNKS), cut]))
    assert summary.token_sources == {"usage": 1, "chunks": 1}


def test_one_saturated_shard_is_reported_and_leaves_no_verdict(columns: RequestColumns) -> None:
    options = LoadOptions.parse(
        url="http://a", model="m", engine="openai", concurrency=64, requests=len(columns), slo="ttft=200ms"
    )
    shares = [stage(share) for share in dealt(columns, 4)]
    shares[2] = replace(shares[2], client=replace(USE, busiest_share=1.0))
    document: Any = describe(options, "openai", summarise(shares, offered_load(options)), partial=False, warmup=None)
    assert document["verdict"]["outcome"] == "INVALID" and document["client"]["saturated"]
    (reason,) = (reason for reason in document["client"]["reasons"] if "of a core per worker" in reason)
    assert reason.endswith("in 1 of 4 shards")


def test_summaries_of_another_slo_do_not_mix() -> None:
    with pytest.raises(ValueError, match="has no place"):
        RequestSummary(SLO).merge(RequestSummary())
