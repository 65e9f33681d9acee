"""The derived numbers of a run that the history keeps, per arm: what `trend` draws."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from benchgate.cost.prices import usd_per_million_tokens
from benchgate.gate.block_values import LATENCIES
from benchgate.gate.comparison import Comparison, load_of
from benchgate.gate.divergence_rows import divergence_rows
from benchgate.gate.places import places
from benchgate.gate.quality_figures import task_figures
from benchgate.gate.quality_pairs import is_continuous
from benchgate.gate.rule import Problem
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation, MetricRow
from benchgate.suite.schema import STATISTICS, Suite

TREND_METRICS = (
    "output_tokens_per_s", "requests_per_s", "goodput_ratio", "error_ratio", "usd_per_million_output_tokens",
    "usd_per_million_good_tokens", "ttft_s", "ttfot_s", "tpot_s", "itl_s", "e2e_s", "accuracy_ratio",
    "score", "recovery_ratio", "flips_ratio", "kld_nats", "same_top1_ratio", "perplexity", "shadow_disagreement_ratio",
    "shadow_validity_ratio",
)  # fmt: skip
_LIMITS = 0.05
"""The error probability of limits that no row keeps."""
LATENCY_TRENDS = frozenset(f"{name}_s" for name in LATENCIES)


def metric_rows(evidence: Evidence) -> tuple[MetricRow, ...]:
    """Every number of TREND_METRICS that is defined and finite; an undefined one has no row, never a zero.

    A calibration has none: what it measured twice is nobody's candidate.
    """
    if evidence.run.calibrates:
        return ()
    rows = [*_load_rows(evidence), *_quality_rows(evidence), *divergence_rows(evidence), *_shadow_rows(evidence)]
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
                values = metrics.quantiles(pooled, tuple(STATISTICS.values()))
                for statistic, value in zip(STATISTICS, values, strict=True):
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
    """Of what is judged; a repeat shows only in the flips of the baseline against itself."""
    comparison = Comparison(evidence)
    for observation in evidence.quality:
        whole = observation.fault is None and len(observation.items) == observation.expected_n > 0
        if not whole or observation.repeat:
            continue
        continuous = is_continuous(observation)
        name = "score" if continuous else "accuracy_ratio"
        values = [item.score if continuous else item.correct for item in observation.items]
        known = [float(value) for value in values if value is not None]
        if len(known) == len(values):
            share = sum(known) / len(known)
            yield MetricRow(observation.arm, name, None, None, observation.task, share, len(known))
    for task in dict.fromkeys(o.task for o in evidence.quality if o.repeat == 0):
        figures = task_figures(comparison, task, _LIMITS)
        if not isinstance(figures, Problem) and not figures.stopped:
            for arm, name, value in (
                (Arm.CANDIDATE, "recovery_ratio", figures.recovery_ratio),
                (Arm.CANDIDATE, "flips_ratio", figures.flips_ratio),
                (Arm.BASELINE, "flips_ratio", figures.floor_ratio),
            ):
                if value is not None:
                    yield MetricRow(arm, name, None, None, task, value, figures.n)


def _shadow_rows(evidence: Evidence) -> Iterator[MetricRow]:
    shadow = evidence.shadow
    if shadow is None or shadow.fault is not None or not shadow.items:
        return
    name, n = "shadow_disagreement_ratio", len(shadow.items)
    twice = [item for item in shadow.items if not item.once]
    noise = sum(item.differs_itself for item in twice) / len(twice) if twice else math.nan
    ours = sum(item.differs_from_primary for item in shadow.items) / n
    if len(twice) == n:
        ours = (ours + sum(item.differs_from_secondary for item in shadow.items) / n) / 2
    yield MetricRow(Arm.BASELINE, name, None, None, None, noise, len(twice))
    yield MetricRow(Arm.CANDIDATE, name, None, None, None, ours, n)
    sides = {
        Arm.BASELINE: [i.primary_facts for i in shadow.items],
        Arm.CANDIDATE: [i.candidate_facts for i in shadow.items],
    }
    for arm, facts in sides.items():
        valid = [one.valid for one in facts if one is not None and one.valid is not None]
        if valid:
            yield MetricRow(arm, "shadow_validity_ratio", None, None, None, sum(valid) / len(valid), len(valid))


def _mean(values: list[float | None]) -> float | None:
    """None when any block has no value: a mean over the rest would flatter."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
