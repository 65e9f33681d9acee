"""Metrics of a bare load with 95 % intervals, named as in the history of runs.

A load has no blocks. Stretches of consecutive requests stand in for them, in the order in which the requests were due:
requests near each other in time share the server's bad moments and are no independent trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from benchgate.gate.evidence.intervals import block_limits, kept_limits, miss_limits, quantiles_with_limits
from benchgate.gate.evidence.shares import Counts
from benchgate.load.results import StageResult
from benchgate.load.stage_summary import ClassSummary, StageSummary
from benchgate.model import request_metrics
from benchgate.model.columns import concatenate_columns, select_rows
from benchgate.model.deployment import Arm
from benchgate.model.metric import QUANTILES, Slo
from benchgate.model.records import BoolArray, FloatArray, IntArray, RequestColumns
from benchgate.model.request_summary import TIMES, TimeCounts
from benchgate.model.run import MetricRow
from benchgate.stats.distributions import Limits

_MOST_STRETCHES = 10
_LEAST_OF_STRETCH = 5  # requests
_NS = 1_000_000_000


def stretches(columns: RequestColumns) -> list[IntArray]:
    """Return the rows of each stretch of consecutive requests; one stretch where the requests are too few."""
    in_order = np.argsort(columns.intended_ns, kind="stable")
    return np.array_split(in_order, max(1, min(_MOST_STRETCHES, len(columns) // _LEAST_OF_STRETCH)))


def counts_of(misses: BoolArray, parts: list[IntArray]) -> Counts:
    """Count the misses of each stretch."""
    return Counts(tuple(int(misses[part].sum()) for part in parts), tuple(len(part) for part in parts))


def misses_of(result: StageResult | StageSummary, slo: Slo) -> Counts:
    """Count the requests that were not good in each stretch."""
    if isinstance(result, StageSummary):
        parts = result.only.requests.by_second.stretches(_MOST_STRETCHES)
        return Counts(tuple(part.scheduled - part.good for part in parts), tuple(part.scheduled for part in parts))
    return counts_of(~request_metrics.meets_slo(result.requests, slo), stretches(result.requests))


def load_metrics(result: StageResult | StageSummary, slo: Slo | None, stage: str) -> tuple[MetricRow, ...]:
    """Return the metrics of a load. An undefined or infinite one has no row, an unknown interval no bounds."""
    if len(result.only.requests) == 0:
        return ()
    rows = _rows(result, slo, stage) if isinstance(result, StageResult) else _summary_rows(result.only, slo, stage)
    return tuple(row for row in rows if math.isfinite(row.value))


def _rows(result: StageResult, slo: Slo | None, stage: str) -> Iterator[MetricRow]:
    columns, window_s = result.requests, result.window_s
    parts = stretches(columns)
    succeeded = request_metrics.succeeded(columns)
    tokens = np.where(succeeded, columns.output_tokens, 0)
    rates = {
        "request_throughput": (request_metrics.requests_per_s(columns, window_s), succeeded.astype(np.float64)),
        "output_throughput": (request_metrics.output_tokens_per_s(columns, window_s), tokens.astype(np.float64)),
    }
    for name, (rate, amounts) in rates.items():
        if rate is not None:
            yield _row(name, None, stage, rate, len(parts), _rate_limits(columns, window_s, parts, amounts, rate))
    everything = concatenate_columns([columns, result.only.ramp])  # failures count wherever they happen
    yield _error_rate(counts_of(~request_metrics.succeeded(everything), stretches(everything)), stage)
    if slo is not None:
        good = request_metrics.meets_slo(columns, slo)
        yield _row("goodput", None, stage, float(np.mean(good)), len(columns), kept_limits(counts_of(~good, parts)))
    each = [select_rows(columns, _mask(part, len(columns))) for part in parts]
    ttft_s, ttfot_s = request_metrics.ttft_s(columns), request_metrics.ttfot_s(columns)
    for name, measure in (dict(request_metrics.LATENCIES) | {"ttft_sent": request_metrics.ttft_sent_s}).items():
        if name == "ttfot" and np.array_equal(ttfot_s, ttft_s):
            continue
        values = [ttfot_s[part] for part in parts] if name == "ttfot" else [measure(part) for part in each]
        n = int(sum(np.count_nonzero(~np.isnan(part)) for part in values))
        found = quantiles_with_limits(values, tuple(QUANTILES.values()), single=name != "itl") if n else []
        for statistic, (value, limits) in zip(QUANTILES, found, strict=False):
            if value is not None:
                yield _row(name, statistic, stage, value, n, limits)


def _summary_rows(load: ClassSummary, slo: Slo | None, stage: str) -> Iterator[MetricRow]:
    """Yield the metrics of a load whose records are summarised: counts are exact, quantiles those of the histograms.

    A quantile's interval is that of the sample's stretches, widened to its own bounds: never narrower than one of all
    records.
    """
    requests, window_s = load.requests, load.window_s
    parts = requests.by_second.stretches(_MOST_STRETCHES)
    spans_s = np.diff([*(part.begin_s - parts[0].begin_s for part in parts), window_s])
    rates = {
        "request_throughput": [part.succeeded for part in parts],
        "output_throughput": [part.output_tokens for part in parts],
    }
    for name, amounts in rates.items() if window_s > 0 else ():
        rate = sum(amounts) / window_s
        limits = block_limits(np.array(amounts) / spans_s) if (spans_s > 0).all() else None
        yield _row(name, None, stage, rate, len(parts), limits and limits.widened(Limits(rate, rate)))
    everything = TimeCounts()  # failures count wherever they happen
    for one in (requests, load.ramp):
        everything.merge(one.by_second)
    spans = everything.stretches(_MOST_STRETCHES)
    failed = Counts(tuple(one.scheduled - one.succeeded for one in spans), tuple(one.scheduled for one in spans))
    yield _error_rate(failed, stage)
    if slo is not None:
        misses = Counts(tuple(part.scheduled - part.good for part in parts), tuple(part.scheduled for part in parts))
        yield _row("goodput", None, stage, requests.good / requests.scheduled, requests.scheduled, kept_limits(misses))
    sample = requests.sample.columns()
    each = [select_rows(sample, _mask(part, len(sample))) for part in stretches(sample)]
    for name, histogram in requests.known_times.items():
        if not len(histogram) or name == "send_lag":
            continue
        if name == "ttfot" and histogram.equals(requests.times["ttft"]):
            continue
        values = [TIMES[name](part) for part in each]
        found = quantiles_with_limits(values, tuple(QUANTILES.values()), single=name != "itl")
        for (statistic, q), (_, limits) in zip(QUANTILES.items(), found, strict=True):
            if (bounds := histogram.quantile(q)) is not None:
                limits = limits and limits.widened(Limits(*bounds))
                yield _row(name, statistic, stage, bounds.middle, len(histogram), limits)


def _rate_limits(
    columns: RequestColumns, window_s: float, parts: list[IntArray], amounts: FloatArray, rate: float
) -> Limits | None:
    """Return limits of a rate from the rates of the stretches, each of which lasts until the next one begins."""
    begins_s = np.array([columns.intended_ns[part[0]] - columns.intended_ns[parts[0][0]] for part in parts]) / _NS
    spans_s = np.diff(np.append(begins_s, window_s))
    if (spans_s <= 0).any():
        return None
    limits = block_limits([float(amounts[part].sum() / span_s) for part, span_s in zip(parts, spans_s, strict=True)])
    return None if limits is None else limits.widened(Limits(rate, rate))


def _error_rate(failed: Counts, stage: str) -> MetricRow:
    return _row("error_rate", None, stage, failed.share, failed.scheduled, miss_limits(failed))


def _mask(rows: IntArray, count: int) -> BoolArray:
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows] = True
    return mask


def _row(name: str, statistic: str | None, stage: str, value: float, n: int, limits: Limits | None) -> MetricRow:
    known = limits is not None and math.isfinite(limits.lower) and math.isfinite(limits.upper)
    lower, upper = (limits.lower, limits.upper) if limits is not None and known else (None, None)
    return MetricRow(Arm.CANDIDATE, name, statistic, stage, None, value, n, lower, upper)
