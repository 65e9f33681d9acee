"""The derived numbers of a run that the history keeps, per arm: what `trend` draws."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from benchgate.cost.prices import usd_per_million_tokens
from benchgate.gate.block_values import LATENCIES
from benchgate.gate.comparison import load_of
from benchgate.gate.places import places
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation, MetricRow
from benchgate.suite.schema import STATISTICS, Suite

TREND_METRICS = (
    "output_tokens_per_s", "requests_per_s", "goodput_ratio", "error_ratio", "usd_per_million_output_tokens",
    "usd_per_million_good_tokens", "ttft_s", "ttfot_s", "tpot_s", "itl_s", "e2e_s", "accuracy_ratio",
    "shadow_disagreement_ratio",
)  # fmt: skip
LATENCY_TRENDS = frozenset(f"{name}_s" for name in LATENCIES)


def metric_rows(evidence: Evidence) -> tuple[MetricRow, ...]:
    """Every number of TREND_METRICS that is defined and finite; an undefined one has no row, never a zero."""
    rows = [*_load_rows(evidence), *_quality_rows(evidence), *_shadow_rows(evidence)]
    return tuple(row for row in rows if math.isfinite(row.value))


def _load_rows(evidence: Evidence) -> Iterator[MetricRow]:
    suite = Suite.from_stored(evidence.run.suite)
    for place in places(suite):
        for arm in Arm:
            blocks = list(load_of(evidence, place.name, arm).values())
            if not blocks:
                continue
            for name, value in _rates(evidence, arm, blocks, place.slo).items():
                if value is not None:
                    yield MetricRow(arm, name, None, place.name, None, value, len(blocks))
            for metric, of in LATENCIES.items():
                pooled = np.concatenate([of(block.requests) for block in blocks])
                for statistic, q in STATISTICS.items():
                    value = metrics.quantile(pooled, q)
                    if value is not None:
                        yield MetricRow(arm, f"{metric}_s", statistic, place.name, None, value, len(pooled))


def _rates(
    evidence: Evidence, arm: Arm, blocks: list[LoadObservation], slo: metrics.Slo | None
) -> dict[str, float | None]:
    """Means over blocks, and shares over all scheduled requests."""
    deployment = evidence.run.arms[arm]
    scheduled = sum(len(block.requests) for block in blocks)
    succeeded = sum(int(metrics.succeeded(block.requests).sum()) for block in blocks)
    tokens_per_s = _mean([metrics.output_tokens_per_s(b.requests, b.window_s) for b in blocks])
    rates: dict[str, float | None] = {
        "output_tokens_per_s": tokens_per_s,
        "requests_per_s": _mean([metrics.requests_per_s(b.requests, b.window_s) for b in blocks]),
        "error_ratio": 1 - succeeded / scheduled if scheduled else None,
        "usd_per_million_output_tokens": _price(deployment.price_usd_per_hour, deployment.accelerators, tokens_per_s),
    }
    if slo is not None:
        good = sum(int(metrics.good(block.requests, slo).sum()) for block in blocks)
        good_per_s = _mean([metrics.output_tokens_per_s(b.requests, b.window_s, slo=slo) for b in blocks])
        rates["goodput_ratio"] = good / scheduled if scheduled else None
        rates["usd_per_million_good_tokens"] = _price(
            deployment.price_usd_per_hour, deployment.accelerators, good_per_s
        )
    return rates


def _price(price_usd_per_hour: float | None, accelerators: int, tokens_per_s: float | None) -> float | None:
    if price_usd_per_hour is None or tokens_per_s is None:
        return None
    return usd_per_million_tokens(price_usd_per_hour, accelerators, tokens_per_s)


def _quality_rows(evidence: Evidence) -> Iterator[MetricRow]:
    for observation in evidence.quality:
        scored = [item.correct for item in observation.items if item.correct is not None]
        if observation.fault is None and scored and len(scored) == observation.expected_n:
            share = sum(scored) / len(scored)
            yield MetricRow(observation.arm, "accuracy_ratio", None, None, observation.task, share, len(scored))


def _shadow_rows(evidence: Evidence) -> Iterator[MetricRow]:
    shadow = evidence.shadow
    if shadow is None or shadow.fault is not None or not shadow.items:
        return
    name, n = "shadow_disagreement_ratio", len(shadow.items)
    noise = sum(item.primary != item.secondary for item in shadow.items) / n
    ours = sum((item.candidate != item.primary) + (item.candidate != item.secondary) for item in shadow.items) / (2 * n)
    yield MetricRow(Arm.BASELINE, name, None, None, None, noise, n)
    yield MetricRow(Arm.CANDIDATE, name, None, None, None, ours, n)


def _mean(values: list[float | None]) -> float | None:
    """None when any block has no value: a mean over the rest would flatter."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
