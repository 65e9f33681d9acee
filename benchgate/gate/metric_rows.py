"""The derived numbers of a run that the history keeps, per arm: what `trend` draws."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from benchgate.gate import metric_limits
from benchgate.gate.block_pairs import Measure, block_pairs
from benchgate.gate.block_values import LATENCIES
from benchgate.gate.capacity import searched
from benchgate.gate.comparison import Comparison, load_of
from benchgate.gate.divergence_rows import divergence_rows
from benchgate.gate.metric_limits import ALPHA, block_limits, block_mean
from benchgate.gate.places import places
from benchgate.gate.quality_figures import TaskFigures, task_figures
from benchgate.gate.quality_pairs import is_continuous
from benchgate.gate.rule import Problem
from benchgate.gate.shadow_checks import excess_of
from benchgate.gate.shares import Counts, tally_of
from benchgate.gate.unit_costs import cost_in_use, input_tokens, output_tokens, total_tokens, unit_cost
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation, MetricRow, QualityObservation
from benchgate.stats.limits import Limits
from benchgate.suite.metric_kinds import MEAN
from benchgate.suite.schema import STATISTICS, Suite

TREND_METRICS = (
    "output_tokens_per_s", "requests_per_s", "goodput_ratio", "error_ratio", "usd_per_million_output_tokens",
    "usd_per_million_good_tokens", "usd_per_million_output_tokens_in_use", "usd_per_million_good_tokens_in_use",
    "usd_per_million_input_tokens", "usd_per_million_total_tokens",
    "ttft_s", "ttfot_s", "tpot_s", "itl_s", "e2e_s", "accuracy_ratio",
    "score", "recovery_ratio", "flips_ratio", "kld_nats", "same_top1_ratio", "perplexity", "shadow_disagreement_ratio",
    "shadow_validity_ratio", "shadow_excess_ratio", "capacity_per_s", "capacity_in_flight",
    "output_tokens_per_accelerator_per_s", "requests_per_accelerator_per_s", "capacity_per_accelerator_per_s",
    "capacity_in_flight_per_accelerator",
)  # fmt: skip
_Number = tuple[float | None, Limits | None]
IMPORTED_METRICS = ("ttft_sent_s",)
"""What only runs have that are another tool's file, beside the names of TREND_METRICS."""
LATENCY_TRENDS = frozenset(f"{name}_s" for name in LATENCIES) | frozenset(IMPORTED_METRICS)
MEAN_METRICS = frozenset(LATENCIES) - {"itl"}  # which has many values a request, so its requests are not paired


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
    divided = {check.metric for check in suite.gate.checks if check.per is not None}
    for place in places(suite):
        for arm in Arm:
            blocks = list(load_of(evidence, place.name, arm).values())
            if not blocks:
                continue
            rates = _rates(evidence, arm, blocks, place.slo)
            rates |= {
                name: _divided(rates[of], evidence.run.arms[arm].accelerators)
                for metric, (of, name) in _OF_EACH.items()
                if metric in divided
            }
            for name, (value, limits) in rates.items():
                if value is not None:
                    yield _row(arm, name, value, len(blocks), limits, stage=place.name)
            for metric, of in LATENCIES.items():
                each = [of(block.requests) for block in blocks]
                found = metric_limits.quantiles_with_limits(each, tuple(STATISTICS.values()), single=metric != "itl")
                for statistic, (value, limits) in zip(STATISTICS, found, strict=True):
                    if value is not None:
                        n = sum(map(len, each))
                        yield _row(arm, f"{metric}_s", value, n, limits, statistic=statistic, stage=place.name)
        yield from _mean_rows(evidence, place.name)
    yield from _capacity_rows(evidence, suite, each="capacity" in divided)


_OF_EACH = {
    "output_throughput": ("output_tokens_per_s", "output_tokens_per_accelerator_per_s"),
    "request_throughput": ("requests_per_s", "requests_per_accelerator_per_s"),
}
"""Trend names of metrics that a check may divide by accelerators: of the whole, and of one accelerator."""


def _divided(number: _Number, by: int) -> _Number:
    value, limits = number
    ends = None if limits is None else Limits(limits.lower / by, limits.upper / by)
    return None if value is None else value / by, ends


def _capacity_rows(evidence: Evidence, suite: Suite, *, each: bool) -> Iterator[MetricRow]:
    """The middle of each arm's bracket, which its limits are; none while an end of it is open."""
    for arm in Arm:
        found = searched(evidence, arm, suite)
        if isinstance(found, Problem) or found.middle is None or found.result.lower is None or found.top is None:
            continue
        name = "capacity_per_s" if found.settings.over == "rate" else "capacity_in_flight"
        limits = Limits(found.result.lower, found.top)
        yield _row(arm, name, found.middle, found.result.sent, limits)
        value, ends = _divided((found.middle, limits), evidence.run.arms[arm].accelerators)
        if each and value is not None:
            of_each = name.removesuffix("_per_s")
            of_each += "_per_accelerator_per_s" if of_each != name else "_per_accelerator"
            yield _row(arm, of_each, value, found.result.sent, ends)


def _mean_rows(evidence: Evidence, stage: str) -> Iterator[MetricRow]:
    """The geometric mean over paired requests, as checks show it; none of a run of one arm, which has no pairs."""
    for metric in sorted(MEAN_METRICS):
        pairs = block_pairs(evidence, stage, Measure(metric, 0.5, MEAN))
        if isinstance(pairs, Problem):
            continue
        for arm, values in ((Arm.BASELINE, pairs.baseline), (Arm.CANDIDATE, pairs.candidate)):
            if np.isfinite(values).all():
                value, limits = float(np.exp(np.log(values).mean())), metric_limits.log_block_limits(values)
                yield _row(arm, f"{metric}_s", value, len(values), limits, statistic=MEAN, stage=stage)


def _rates(evidence: Evidence, arm: Arm, blocks: list[LoadObservation], slo: metrics.Slo | None) -> dict[str, _Number]:
    """Means over blocks, and shares over all scheduled requests, each with its limits."""
    deployment = evidence.run.arms[arm]
    tokens = [metrics.output_tokens_per_s(b.requests, b.window_s) for b in blocks]
    requests = [metrics.requests_per_s(b.requests, b.window_s) for b in blocks]
    failed = Counts.of(blocks, tally_of("error_rate", slo))
    rates: dict[str, _Number] = {
        "output_tokens_per_s": (block_mean(tokens), block_limits(tokens)),
        "requests_per_s": (block_mean(requests), block_limits(requests)),
        "error_ratio": (failed.share if failed.scheduled else None, metric_limits.miss_limits(failed)),
        "usd_per_million_output_tokens": unit_cost(deployment, blocks, output_tokens()),
        "usd_per_million_input_tokens": unit_cost(deployment, blocks, input_tokens),
        "usd_per_million_total_tokens": unit_cost(deployment, blocks, total_tokens),
    }
    rates["usd_per_million_output_tokens_in_use"] = cost_in_use(deployment, rates["usd_per_million_output_tokens"])
    if slo is not None:
        counts = Counts.of(blocks, tally_of("goodput", slo))
        good = sum(counts.kept) / counts.scheduled if counts.scheduled else None
        rates["goodput_ratio"] = good, metric_limits.kept_limits(counts)
        rates["usd_per_million_good_tokens"] = unit_cost(deployment, blocks, output_tokens(slo))
        rates["usd_per_million_good_tokens_in_use"] = cost_in_use(deployment, rates["usd_per_million_good_tokens"])
    return rates


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
            limits = metric_limits.item_limits(known, _clusters(observation), share=not continuous)
            yield _row(observation.arm, name, sum(known) / len(known), len(known), limits, task=observation.task)
    for task in dict.fromkeys(o.task for o in evidence.quality if o.repeat == 0):
        figures = task_figures(comparison, task, ALPHA)
        if not isinstance(figures, Problem) and not figures.stopped:
            for arm, name, value, limits in (
                (Arm.CANDIDATE, "recovery_ratio", figures.recovery_ratio, figures.recovery_limits),
                (Arm.CANDIDATE, "flips_ratio", figures.flips_ratio, _flip_limits(figures, figures.flips_ratio)),
                (Arm.BASELINE, "flips_ratio", figures.floor_ratio, _flip_limits(figures, figures.floor_ratio)),
            ):
                if value is not None:
                    yield _row(arm, name, value, figures.n, limits, task=task)


def _clusters(observation: QualityObservation) -> list[str] | None:
    """Which items go together; None where none do."""
    if all(item.cluster is None for item in observation.items):
        return None
    return [item.cluster or item.item_id for item in observation.items]


def _flip_limits(figures: TaskFigures, ratio: float | None) -> Limits | None:
    """None where items go together: then they flip together too."""
    if ratio is None or figures.clusters is not None:
        return None
    return metric_limits.count_limits(round(ratio * figures.n), figures.n)


def _shadow_rows(evidence: Evidence) -> Iterator[MetricRow]:
    shadow = evidence.shadow
    if shadow is None or shadow.fault is not None or not shadow.items:
        return
    name, items = "shadow_disagreement_ratio", shadow.items
    noise = [float(item.differs_itself) for item in items if not item.once]
    ours = [float(item.differs_from_primary) for item in items]
    if len(noise) == len(items):
        ours = [(one + item.differs_from_secondary) / 2 for one, item in zip(ours, items, strict=True)]
    for arm, values in ((Arm.BASELINE, noise), (Arm.CANDIDATE, ours)):
        if values:
            limits = metric_limits.item_limits(values, share=True)
            yield _row(arm, name, sum(values) / len(values), len(values), limits)
    excess = excess_of(evidence, ALPHA)
    if excess is not None:
        yield _row(Arm.CANDIDATE, "shadow_excess_ratio", excess.estimate, excess.n, excess.limits)
    sides = {
        Arm.BASELINE: [i.primary_facts for i in items],
        Arm.CANDIDATE: [i.candidate_facts for i in items],
    }
    for arm, facts in sides.items():
        valid = [one.valid for one in facts if one is not None and one.valid is not None]
        if valid:
            limits = metric_limits.count_limits(sum(valid), len(valid))
            yield _row(arm, "shadow_validity_ratio", sum(valid) / len(valid), len(valid), limits)


def _row(
    arm: Arm,
    name: str,
    value: float,
    n: int,
    limits: Limits | None,
    *,
    statistic: str | None = None,
    stage: str | None = None,
    task: str | None = None,
) -> MetricRow:
    """A number with its interval, where both ends of that are finite."""
    ends: tuple[float | None, float | None] = (None, None)
    if limits is not None and math.isfinite(limits.lower) and math.isfinite(limits.upper):
        ends = limits.lower, limits.upper
    return MetricRow(arm, name, statistic, stage, task, value, n, *ends)
