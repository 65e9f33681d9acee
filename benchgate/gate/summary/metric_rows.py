"""Metric rows: the derived numbers per arm that the history stores and `trend` plots.

They also compare two stored runs whose raw records were deleted, without a decision: checks need blocks, requests or
items. Recomputing them from the records verifies a store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.gate.checks.capacity import searched
from benchgate.gate.checks.shadow import excess_of
from benchgate.gate.comparison import Comparison, load_of, places
from benchgate.gate.decision import Problem
from benchgate.gate.evidence import intervals
from benchgate.gate.evidence.blocks import LATENCIES, Measure, block_pairs
from benchgate.gate.evidence.costs import cost_in_use, input_tokens, output_tokens, total_tokens, unit_cost
from benchgate.gate.evidence.intervals import ALPHA, block_limits, block_mean, item_limits
from benchgate.gate.evidence.items import is_continuous
from benchgate.gate.evidence.shares import Counts, tally_of
from benchgate.gate.summary.figures import TaskFigures, task_figures
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import MEAN, QUANTILES
from benchgate.model.run import Evidence, LoadObservation, MetricRow, QualityObservation
from benchgate.stats.distributions import Limits
from benchgate.suite.schema import Suite


def divergence_rows(evidence: Evidence) -> Iterator[MetricRow]:
    """Yield means over all positions of the fixed texts; nothing if the reading is incomplete.

    The baseline's divergence is from its own repetition.
    """
    observation = evidence.divergence
    if observation is None or observation.fault is not None or not observation.items:
        return
    items = observation.items
    if len(items) != observation.expected_n:
        return
    found: dict[tuple[Arm, str], list[float | bool | None]] = {
        (Arm.BASELINE, "kld_nats"): [item.floor_kld for item in items],
        (Arm.BASELINE, "same_top1_ratio"): [item.floor_same_top1 for item in items],
        (Arm.BASELINE, "perplexity"): [item.baseline_ln for item in items],
        (Arm.CANDIDATE, "kld_nats"): [item.kld for item in items],
        (Arm.CANDIDATE, "same_top1_ratio"): [item.same_top1 for item in items],
        (Arm.CANDIDATE, "perplexity"): [item.candidate_ln for item in items],
    }
    texts = [item.text_id for item in items]  # positions of one text are correlated
    for (arm, name), values in found.items():
        known = [float(value) for value in values if value is not None]
        if len(known) == len(values):
            mean = sum(known) / len(known)
            limits = item_limits(known, texts, share=name == "same_top1_ratio")
            lower, upper = (limits.lower, limits.upper) if limits is not None else (None, None)
            if name == "perplexity":
                mean, lower, upper = math.exp(-mean), _perplexity(upper), _perplexity(lower)
            elif lower is not None and name == "kld_nats":
                lower = max(0.0, lower)
            yield MetricRow(arm, name, None, None, None, mean, len(items), lower, upper)


def _perplexity(mean_ln: float | None) -> float | None:
    return None if mean_ln is None else math.exp(-mean_ln)


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
"""Further metrics of runs imported from other tools."""
LATENCY_TRENDS = frozenset(f"{name}_s" for name in LATENCIES) | frozenset(IMPORTED_METRICS)
MEAN_METRICS = frozenset(LATENCIES) - {"itl"}  # which has many values per request, so its requests are not paired


def metric_rows(evidence: Evidence) -> tuple[MetricRow, ...]:
    """Return a row for every defined and finite number of TREND_METRICS; () for a calibration."""
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
                found = intervals.quantiles_with_limits(each, tuple(QUANTILES.values()), single=metric != "itl")
                for statistic, (value, limits) in zip(QUANTILES, found, strict=True):
                    if value is not None:
                        n = sum(map(len, each))
                        yield _row(arm, f"{metric}_s", value, n, limits, statistic=statistic, stage=place.name)
        yield from _mean_rows(evidence, place.name)
    yield from _capacity_rows(evidence, suite, each="capacity" in divided)


_OF_EACH = {
    "output_throughput": ("output_tokens_per_s", "output_tokens_per_accelerator_per_s"),
    "request_throughput": ("requests_per_s", "requests_per_accelerator_per_s"),
}
"""Trend names of metrics that a check may divide by accelerators: in total and per accelerator."""


def _divided(number: _Number, by: int) -> _Number:
    value, limits = number
    ends = None if limits is None else Limits(limits.lower / by, limits.upper / by)
    return None if value is None else value / by, ends


def _capacity_rows(evidence: Evidence, suite: Suite, *, each: bool) -> Iterator[MetricRow]:
    """Yield the middle of each arm's capacity bracket with the bracket as limits, unless an end is open."""
    for arm in Arm:
        found = searched(evidence, arm, suite)
        if isinstance(found, Problem) or found.middle is None or found.result.lower is None or found.top is None:
            continue
        name = "capacity_per_s" if found.settings.over == "rate" else "capacity_in_flight"
        limits = Limits(found.result.lower, found.top)
        yield _row(arm, name, found.middle, found.result.sent, limits)
        value, ends = _divided((found.middle, limits), evidence.run.arms[arm].accelerators)
        if each and value is not None:
            base = name.removesuffix("_per_s")
            base += "_per_accelerator_per_s" if base != name else "_per_accelerator"
            yield _row(arm, base, value, found.result.sent, ends)


def _mean_rows(evidence: Evidence, stage: str) -> Iterator[MetricRow]:
    """Yield geometric means over paired requests, as in checks; nothing for a run of one arm."""
    for metric in sorted(MEAN_METRICS):
        pairs = block_pairs(evidence, stage, Measure(metric, 0.5, MEAN))
        if isinstance(pairs, Problem):
            continue
        for arm, values in ((Arm.BASELINE, pairs.baseline), (Arm.CANDIDATE, pairs.candidate)):
            if np.isfinite(values).all():
                value, limits = float(np.exp(np.log(values).mean())), intervals.log_block_limits(values)
                yield _row(arm, f"{metric}_s", value, len(values), limits, statistic=MEAN, stage=stage)


def _rates(
    evidence: Evidence, arm: Arm, blocks: list[LoadObservation], slo: request_metrics.Slo | None
) -> dict[str, _Number]:
    """Return means over blocks and shares of all scheduled requests, each with its limits."""
    deployment = evidence.run.arms[arm]
    tokens = [request_metrics.output_tokens_per_s(b.requests, b.window_s) for b in blocks]
    requests = [request_metrics.requests_per_s(b.requests, b.window_s) for b in blocks]
    failed = Counts.of(blocks, tally_of("error_rate", slo))
    rates: dict[str, _Number] = {
        "output_tokens_per_s": (block_mean(tokens), block_limits(tokens)),
        "requests_per_s": (block_mean(requests), block_limits(requests)),
        "error_ratio": (failed.share if failed.scheduled else None, intervals.miss_limits(failed)),
        "usd_per_million_output_tokens": unit_cost(deployment, blocks, output_tokens()),
        "usd_per_million_input_tokens": unit_cost(deployment, blocks, input_tokens),
        "usd_per_million_total_tokens": unit_cost(deployment, blocks, total_tokens),
    }
    rates["usd_per_million_output_tokens_in_use"] = cost_in_use(deployment, rates["usd_per_million_output_tokens"])
    if slo is not None:
        counts = Counts.of(blocks, tally_of("goodput", slo))
        good = sum(counts.kept) / counts.scheduled if counts.scheduled else None
        rates["goodput_ratio"] = good, intervals.kept_limits(counts)
        rates["usd_per_million_good_tokens"] = unit_cost(deployment, blocks, output_tokens(slo))
        rates["usd_per_million_good_tokens_in_use"] = cost_in_use(deployment, rates["usd_per_million_good_tokens"])
    return rates


def _quality_rows(evidence: Evidence) -> Iterator[MetricRow]:
    """Yield the eval results. Repeats count only for the flips of the baseline against itself."""
    comparison = Comparison(evidence)
    for observation in evidence.quality:
        is_complete = observation.fault is None and len(observation.items) == observation.expected_n > 0
        if not is_complete or observation.repeat:
            continue
        continuous = is_continuous(observation)
        name = "score" if continuous else "accuracy_ratio"
        values = [item.score if continuous else item.correct for item in observation.items]
        known = [float(value) for value in values if value is not None]
        if len(known) == len(values):
            limits = intervals.item_limits(known, _clusters(observation), share=not continuous)
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
    """Return the cluster of each item; None if there are no clusters."""
    if all(item.cluster is None for item in observation.items):
        return None
    return [item.cluster or item.item_id for item in observation.items]


def _flip_limits(figures: TaskFigures, ratio: float | None) -> Limits | None:
    """Return limits of a share of flips; None for clustered items, which flip together."""
    if ratio is None or figures.clusters is not None:
        return None
    return intervals.count_limits(round(ratio * figures.n), figures.n)


def _shadow_rows(evidence: Evidence) -> Iterator[MetricRow]:
    shadow = evidence.shadow
    if shadow is None or shadow.fault is not None or not shadow.items:
        return
    name, items = "shadow_disagreement_ratio", shadow.items
    noise = [float(item.differs_itself) for item in items if not item.once]
    candidate = [float(item.differs_from_primary) for item in items]
    if len(noise) == len(items):
        candidate = [(one + item.differs_from_secondary) / 2 for one, item in zip(candidate, items, strict=True)]
    for arm, values in ((Arm.BASELINE, noise), (Arm.CANDIDATE, candidate)):
        if values:
            limits = intervals.item_limits(values, share=True)
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
            limits = intervals.count_limits(sum(valid), len(valid))
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
    """Return a row with the interval if both of its bounds are finite."""
    ends: tuple[float | None, float | None] = (None, None)
    if limits is not None and math.isfinite(limits.lower) and math.isfinite(limits.upper):
        ends = limits.lower, limits.upper
    return MetricRow(arm, name, statistic, stage, task, value, n, *ends)


Key = tuple[str, str | None, str | None, str | None]
"""Name, statistic, stage and task of a row."""


@dataclass(frozen=True, slots=True)
class NumberPair:
    """Number of both candidates of two runs, and of their baselines; None if missing.

    Only latencies and rates have baselines here: on the same eval items, baselines of different days do not differ.
    """

    name: str
    statistic: str | None
    stage: str | None
    task: str | None
    reference: MetricRow | None
    judged: MetricRow | None
    reference_baseline: MetricRow | None
    judged_baseline: MetricRow | None

    @property
    def change_ratio(self) -> float | None:
        """Return the judged candidate over the reference's, minus 1; None if one is missing or the reference is 0."""
        return _change(self.reference, self.judged)

    @property
    def change_beside_baselines_ratio(self) -> float | None:
        """Return the change of the ratios to each run's own baseline, free of differences of machine and time."""
        then, now = _change(self.reference_baseline, self.reference), _change(self.judged_baseline, self.judged)
        return None if then is None or now is None or then <= -1 else (1 + now) / (1 + then) - 1


def number_pairs(reference: Sequence[MetricRow], judged: Sequence[MetricRow]) -> tuple[NumberPair, ...]:
    """Return every number of either candidate, in the order of the judged run, then of the reference."""
    before, after = _by_arm(reference), _by_arm(judged)
    keys = dict.fromkeys([*after[Arm.CANDIDATE], *before[Arm.CANDIDATE]])
    return tuple(
        NumberPair(
            *key,
            reference=before[Arm.CANDIDATE].get(key),
            judged=after[Arm.CANDIDATE].get(key),
            reference_baseline=before[Arm.BASELINE].get(key) if key[2] is not None else None,
            judged_baseline=after[Arm.BASELINE].get(key) if key[2] is not None else None,
        )
        for key in keys
    )


def _by_arm(rows: Sequence[MetricRow]) -> Mapping[Arm, dict[Key, MetricRow]]:
    return {arm: {(r.name, r.statistic, r.stage, r.task): r for r in rows if r.arm is arm} for arm in Arm}


def _change(before: MetricRow | None, after: MetricRow | None) -> float | None:
    if before is None or after is None or before.value == 0:
        return None
    return after.value / before.value - 1


_ROUNDING = 1e-9  # another machine may add in another order


@dataclass(frozen=True, slots=True)
class RowMismatch:
    """Stored row that differs from the one recomputed from the records (None if they give none)."""

    stored: MetricRow
    recomputed: MetricRow | None


def mismatched_rows(stored: Sequence[MetricRow], recomputed: Sequence[MetricRow]) -> list[RowMismatch]:
    """Return the stored rows that differ from the recomputed ones. Missing rows: `missing_rows`."""
    by_key = {_key(row): row for row in recomputed}
    pairs = [(row, by_key.get(_key(row))) for row in stored]
    return [RowMismatch(row, other) for row, other in pairs if other is None or not _is_equal(row, other)]


def missing_rows(stored: Sequence[MetricRow], recomputed: Sequence[MetricRow]) -> list[MetricRow]:
    """Return the recomputed rows that are not stored."""
    keys = {_key(row) for row in stored}
    return [row for row in recomputed if _key(row) not in keys]


def _key(row: MetricRow) -> tuple[object, ...]:
    return row.arm, row.name, row.statistic, row.stage, row.task


def _is_equal(one: MetricRow, other: MetricRow) -> bool:
    return one.n == other.n and all(
        left == right
        if left is None or right is None
        else math.isclose(left, right, rel_tol=_ROUNDING, abs_tol=_ROUNDING * _ROUNDING)
        for left, right in ((one.value, other.value), (one.lower, other.lower), (one.upper, other.upper))
    )
