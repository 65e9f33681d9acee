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
from benchgate.model import request_metrics
from benchgate.model.columns import select_rows
from benchgate.model.deployment import Arm
from benchgate.model.metric import QUANTILES
from benchgate.model.records import BoolArray, FloatArray, IntArray, RequestColumns
from benchgate.model.request_metrics import Slo
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


def load_metrics(result: StageResult, slo: Slo | None, stage: str) -> tuple[MetricRow, ...]:
    """Return the metrics of a load. An undefined or infinite one has no row, an unknown interval no bounds."""
    if len(result.requests) == 0:
        return ()
    return tuple(row for row in _rows(result, slo, stage) if math.isfinite(row.value))


def _rows(result: StageResult, slo: Slo | None, stage: str) -> Iterator[MetricRow]:
    columns, window_s = result.requests, result.window_s
    parts = stretches(columns)
    succeeded = request_metrics.succeeded(columns)
    tokens = np.where(succeeded, columns.output_tokens, 0)
    rates = {
        "requests_per_s": (request_metrics.requests_per_s(columns, window_s), succeeded.astype(np.float64)),
        "output_tokens_per_s": (request_metrics.output_tokens_per_s(columns, window_s), tokens.astype(np.float64)),
    }
    for name, (rate, amounts) in rates.items():
        if rate is not None:
            yield _row(name, None, stage, rate, len(parts), _rate_limits(columns, window_s, parts, amounts, rate))
    failed = counts_of(~succeeded, parts)
    yield _row("error_ratio", None, stage, float(np.mean(~succeeded)), len(columns), miss_limits(failed))
    if slo is not None:
        good = request_metrics.meets_slo(columns, slo)
        yield _row(
            "goodput_ratio", None, stage, float(np.mean(good)), len(columns), kept_limits(counts_of(~good, parts))
        )
    each = [select_rows(columns, _mask(part, len(columns))) for part in parts]
    measures = {f"{name}_s": measure for name, measure in request_metrics.LATENCIES.items()}
    if not request_metrics.reasoning_ratio(columns):
        del measures["ttfot_s"]  # which is TTFT
    for name, measure in (measures | {"ttft_sent_s": request_metrics.ttft_sent_s}).items():
        values = [measure(part) for part in each]
        n = int(sum(np.count_nonzero(~np.isnan(part)) for part in values))
        found = quantiles_with_limits(values, tuple(QUANTILES.values()), single=name != "itl_s") if n else []
        for statistic, (value, limits) in zip(QUANTILES, found, strict=False):
            if value is not None:
                yield _row(name, statistic, stage, value, n, limits)


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


def _mask(rows: IntArray, count: int) -> BoolArray:
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows] = True
    return mask


def _row(name: str, statistic: str | None, stage: str, value: float, n: int, limits: Limits | None) -> MetricRow:
    known = limits is not None and math.isfinite(limits.lower) and math.isfinite(limits.upper)
    lower, upper = (limits.lower, limits.upper) if limits is not None and known else (None, None)
    return MetricRow(Arm.CANDIDATE, name, statistic, stage, None, value, n, lower, upper)
