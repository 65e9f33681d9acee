"""Metrics of a run, per arm, that the history keeps: what `trend` plots, and what is left when records are deleted.

Two stored runs can be compared by these rows alone, but never judged: a check tests blocks, requests or items, which
were deleted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from benchgate.gate.checks.capacity import replay_search
from benchgate.gate.checks.shadow import candidate_valid, excess_of_rows
from benchgate.gate.comparison import LiveBaseline, load_of
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence import intervals
from benchgate.gate.evidence.blocks import Measure, block_pairs
from benchgate.gate.evidence.costs import cost_in_use, input_tokens, output_tokens, total_tokens, unit_cost
from benchgate.gate.evidence.intervals import ALPHA, block_limits, block_mean, item_limits
from benchgate.gate.evidence.items import is_continuous, lacks_similarity, require_similarity, usable_rows
from benchgate.gate.evidence.shares import Counts, tally_of
from benchgate.gate.summary.figures import TaskFigures, task_figures
from benchgate.model.deployment import Arm
from benchgate.model.metric import MEAN, MEAN_METRICS, PER_ACCELERATOR, QUANTILES, Slo
from benchgate.model.records import ShadowItem
from benchgate.model.request_metrics import LATENCIES, THROUGHPUTS
from benchgate.model.run import Evidence, LoadObservation, MetricRow
from benchgate.stats.distributions import Limits, exp_or_inf
from benchgate.stats.meta import EstimateWithLimits, weighted_sum
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import region_name


def divergence_rows(evidence: Evidence) -> Iterator[MetricRow]:
    """Yield the means over all positions of the fixed texts; nothing if the reading is incomplete.

    The baseline's own divergence is from itself, if it was queried twice.
    """
    reading = evidence.divergence
    if reading is None or reading.fault is not None or not reading.items or len(reading.items) != reading.expected_n:
        return
    items = reading.items
    found: dict[tuple[Arm, str], list[float | bool | None]] = {
        (Arm.BASELINE, "kld"): [item.floor_kld for item in items],
        (Arm.BASELINE, "same_top1"): [item.floor_same_top1 for item in items],
        (Arm.BASELINE, "perplexity"): [item.baseline_ln for item in items],
        (Arm.CANDIDATE, "kld"): [item.kld for item in items],
        (Arm.CANDIDATE, "same_top1"): [item.same_top1 for item in items],
        (Arm.CANDIDATE, "perplexity"): [item.candidate_ln for item in items],
    }
    texts = [item.text_id for item in items]  # positions of one text go together
    for (arm, name), values in found.items():
        mean = block_mean(values)
        if mean is not None:
            known = [float(value) for value in values if value is not None]
            limits = item_limits(known, texts, share=name == "same_top1")
            lower, upper = (limits.lower, limits.upper) if limits is not None else (None, None)
            if name == "perplexity":
                mean = exp_or_inf(-mean)
                if lower is not None and upper is not None:
                    lower, upper = exp_or_inf(-upper), exp_or_inf(-lower)
                if upper is not None and math.isinf(upper):
                    lower = upper = None
            elif lower is not None and name == "kld":
                lower = max(0.0, lower)
            yield MetricRow(arm, name, None, None, None, mean, len(items), lower, upper)


_Number = tuple[float | None, Limits | None]


def metric_rows(evidence: Evidence) -> tuple[MetricRow, ...]:
    """Return every metric of TREND_UNITS that is defined and finite; an undefined one has no row, never a zero.

    A calibration has none: it measured one deployment twice, and has no candidate.
    """
    if evidence.run.calibrates:
        return ()
    rows = [*_load_rows(evidence), *_quality_rows(evidence), *divergence_rows(evidence), *_shadow_rows(evidence)]
    return tuple(row for row in rows if math.isfinite(row.value))


def _load_rows(evidence: Evidence) -> Iterator[MetricRow]:
    suite = Suite.from_stored(evidence.run.suite)
    divided = {check.metric for check in suite.gate.checks if check.per is not None}
    for place in traffic_classes(suite):
        for arm in Arm:
            blocks = list(load_of(evidence, place.name, arm).values())
            if not blocks:
                continue
            rates = _rates(evidence, arm, blocks, place.slo)
            rates |= {
                f"{metric}{PER_ACCELERATOR}": _divided(rates[metric], evidence.run.arms[arm].accelerators)
                for metric in THROUGHPUTS
                if metric in divided
            }
            for name, (value, limits) in rates.items():
                if value is not None:
                    yield _row(arm, name, value, len(blocks), limits, stage=place.name)
            yield from _latency_rows(arm, place.name, blocks)
            for region in suite.regions:
                name = region_name(place.name, region)
                own = list(load_of(evidence, name, arm).values())
                for share, (value, limits) in _shares(own, place.slo).items():
                    if value is not None:
                        yield _row(arm, share, value, len(own), limits, stage=name)
                yield from _latency_rows(arm, name, own)
        yield from _mean_rows(evidence, place.name)
    yield from _capacity_rows(evidence, suite, each="capacity" in divided)


def _latency_rows(arm: Arm, stage: str, blocks: Sequence[LoadObservation]) -> Iterator[MetricRow]:
    for metric, of in LATENCIES.items():
        each = [of(block.requests) for block in blocks]
        found = intervals.quantiles_with_limits(each, tuple(QUANTILES.values()), single=metric != "itl")
        n = sum(int(np.count_nonzero(~np.isnan(values))) for values in each)  # a TPOT, say, not every request has
        for statistic, (value, limits) in zip(QUANTILES, found, strict=True):
            if value is not None:
                yield _row(arm, metric, value, n, limits, statistic=statistic, stage=stage)


def _divided(number: _Number, by: int) -> _Number:
    value, limits = number
    ends = None if limits is None else Limits(limits.lower / by, limits.upper / by)
    return None if value is None else value / by, ends


def _capacity_rows(evidence: Evidence, suite: Suite, *, each: bool) -> Iterator[MetricRow]:
    """Yield each arm's capacity with its bracket as limits; nothing while an end of the bracket is open."""
    for arm in Arm:
        try:
            found = replay_search(evidence, arm, suite)
        except CannotJudge:
            continue
        if found.middle is None or found.result.lower is None or found.top is None:
            continue
        name = "capacity" if found.settings.over == "rate" else "capacity_in_flight"
        limits = Limits(found.result.lower, found.top)
        yield _row(arm, name, found.middle, found.result.sent, limits)
        value, ends = _divided((found.middle, limits), evidence.run.arms[arm].accelerators)
        if each and value is not None:
            yield _row(arm, f"{name}{PER_ACCELERATOR}", value, found.result.sent, ends)


def _mean_rows(evidence: Evidence, stage: str) -> Iterator[MetricRow]:
    """Yield the geometric means over paired requests, as in checks; a run of one arm has no pairs."""
    for metric in sorted(MEAN_METRICS):
        try:
            pairs = block_pairs(evidence, stage, Measure(metric, 0.5, MEAN))
        except CannotJudge:
            continue
        for arm, values in ((Arm.BASELINE, pairs.baseline), (Arm.CANDIDATE, pairs.candidate)):
            if np.isfinite(values).all():
                value, limits = float(np.exp(np.log(values).mean())), intervals.log_block_limits(values)
                yield _row(arm, metric, value, len(values), limits, statistic=MEAN, stage=stage)


def _rates(evidence: Evidence, arm: Arm, blocks: list[LoadObservation], slo: Slo | None) -> dict[str, _Number]:
    deployment = evidence.run.arms[arm]
    rates: dict[str, _Number] = {}
    for name, of in THROUGHPUTS.items():
        values = [of(b.requests, b.window_s) for b in blocks]
        rates[name] = block_mean(values), block_limits(values)
    rates |= _shares(blocks, slo)
    rates |= {
        "usd_per_million_output_tokens": unit_cost(deployment, blocks, output_tokens()),
        "usd_per_million_input_tokens": unit_cost(deployment, blocks, input_tokens),
        "usd_per_million_total_tokens": unit_cost(deployment, blocks, total_tokens),
    }
    rates["usd_per_million_output_tokens_in_use"] = cost_in_use(deployment, rates["usd_per_million_output_tokens"])
    if slo is not None:
        rates["usd_per_million_good_tokens"] = unit_cost(deployment, blocks, output_tokens(slo))
        rates["usd_per_million_good_tokens_in_use"] = cost_in_use(deployment, rates["usd_per_million_good_tokens"])
    return rates


def _shares(blocks: Sequence[LoadObservation], slo: Slo | None) -> dict[str, _Number]:
    failed = Counts.of(blocks, tally_of("error_rate", slo))
    shares: dict[str, _Number] = {
        "error_rate": (failed.share if failed.scheduled else None, intervals.miss_limits(failed))
    }
    if slo is not None:
        counts = Counts.of(blocks, tally_of("goodput", slo))
        good = sum(counts.kept) / counts.scheduled if counts.scheduled else None
        shares["goodput"] = good, intervals.kept_limits(counts)
    return shares


def _quality_rows(evidence: Evidence) -> Iterator[MetricRow]:
    """Yield scores and flips by task; a repeated eval appears only in the baseline's flips against itself."""
    comparison = LiveBaseline(evidence)
    for observation in evidence.quality:
        whole = observation.fault is None and len(observation.items) == observation.expected_n > 0
        if not whole or observation.repeat:
            continue
        continuous = is_continuous(observation)
        name = "score" if continuous else "accuracy"
        values = [item.score if continuous else item.correct for item in observation.items]
        known = [float(value) for value in values if value is not None]
        if len(known) == len(values):
            clusters = None
            if any(item.cluster is not None for item in observation.items):
                clusters = [item.cluster or item.item_id for item in observation.items]
            limits = intervals.item_limits(known, clusters, share=not continuous)
            yield _row(observation.arm, name, sum(known) / len(known), len(known), limits, task=observation.task)
    for task in dict.fromkeys(o.task for o in evidence.quality if o.repeat == 0):
        try:
            figures = task_figures(comparison, task, ALPHA)
        except CannotJudge:
            continue
        if not figures.stopped:
            for arm, name, value, limits in (
                (Arm.CANDIDATE, "recovery", figures.recovery_ratio, figures.recovery_limits),
                (Arm.CANDIDATE, "flips", figures.flips_ratio, _flip_limits(figures, figures.flips_ratio)),
                (Arm.BASELINE, "flips", figures.floor_ratio, _flip_limits(figures, figures.floor_ratio)),
            ):
                if value is not None:
                    yield _row(arm, name, value, figures.n, limits, task=task)


def _flip_limits(figures: TaskFigures, ratio: float | None) -> Limits | None:
    if ratio is None or figures.clusters is not None:
        return None
    return intervals.count_limits(round(ratio * figures.n), figures.n)


def _shadow_rows(evidence: Evidence) -> Iterator[MetricRow]:
    """Yield the shares over the prompts that checks judge: those that the baseline answered."""
    try:
        rows = usable_rows(evidence)
    except CannotJudge:
        return
    with suppress(CannotJudge):
        require_similarity(rows)
        yield from _disagreement_rows(tuple(row for row in rows if not lacks_similarity(row)))
    sides = {
        Arm.BASELINE: [None if row.primary_facts is None else row.primary_facts.valid for row in rows],
        Arm.CANDIDATE: [candidate_valid(row) for row in rows],
    }
    for arm, forms in sides.items():
        valid = [one for one in forms if one is not None]
        if valid:
            limits = intervals.count_limits(sum(valid), len(valid))
            yield _row(arm, "shadow_validity", sum(valid) / len(valid), len(valid), limits)


def _disagreement_rows(rows: tuple[ShadowItem, ...]) -> Iterator[MetricRow]:
    noise = [float(row.differs_itself) for row in rows if not row.once]
    ours = [float(row.differs_from_primary) for row in rows]
    if len(noise) == len(rows):
        ours = [(one + row.differs_from_secondary) / 2 for one, row in zip(ours, rows, strict=True)]
    for arm, values in ((Arm.BASELINE, noise), (Arm.CANDIDATE, ours)):
        if values:
            limits = intervals.item_limits(values, share=True)
            yield _row(arm, "shadow_disagreement", sum(values) / len(values), len(values), limits)
    excess = excess_of_rows(rows, ALPHA)[2]
    if excess is not None:
        yield _row(Arm.CANDIDATE, "shadow_excess", excess.estimate, excess.n, excess.limits)


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
    ends: tuple[float | None, float | None] = (None, None)
    if limits is not None and math.isfinite(limits.lower) and math.isfinite(limits.upper):
        ends = limits.lower, limits.upper
    return MetricRow(arm, name, statistic, stage, task, value, n, *ends)


@dataclass(frozen=True, slots=True)
class NumberPair:
    """A metric of two runs, of their candidates and of their baselines; None if a run does not have it.

    Only metrics of load have a baseline here: a baseline answers the same items on another day as it does now.
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
        """Return the judged candidate over the reference's, minus 1; None without both or a reference above 0."""
        return _change(self.reference, self.judged)

    @property
    def difference(self) -> EstimateWithLimits | None:
        """Return the judged candidate minus the reference's, for shares, with the 95 % interval that both have.

        None if one is missing.
        """
        return _difference(self.reference, self.judged)

    @property
    def difference_beside_baselines(self) -> float | None:
        """Return by how much more the candidate differs from its own baseline than the reference's did."""
        then = _difference(self.reference_baseline, self.reference)
        now = _difference(self.judged_baseline, self.judged)
        return None if then is None or now is None else now.value - then.value

    @property
    def change_limits(self) -> Limits | None:
        """Return the 95 % interval of `change_ratio` for two independent runs; None without both runs' intervals.

        The method of variance estimates recovery, over logarithms (Zou and Donner, Statistics in Medicine 27, 2008).
        """
        before, after = self.reference, self.judged
        if before is None or after is None:
            return None
        ends = (before.lower, before.value, before.upper, after.lower, after.value, after.upper)
        known = [math.log(end) for end in ends if end is not None and end > 0]
        if len(known) != len(ends):
            return None
        b_lower, b, b_upper, a_lower, a, a_upper = known
        down, up = math.hypot(a - a_lower, b_upper - b), math.hypot(a_upper - a, b - b_lower)
        try:
            return Limits(math.expm1(a - b - down), math.expm1(a - b + up))
        except OverflowError:  # beyond any float
            return None

    @property
    def change_beside_baselines_ratio(self) -> float | None:
        """Return the change of candidate over own baseline, which cancels differences of machine and day."""
        then, now = _change(self.reference_baseline, self.reference), _change(self.judged_baseline, self.judged)
        return None if then is None or now is None or then <= -1 else _finite((1 + now) / (1 + then) - 1)


def number_pairs(reference: Sequence[MetricRow], judged: Sequence[MetricRow]) -> tuple[NumberPair, ...]:
    """Pair every metric that one of the candidates has, in the order of the judged run, then of the reference."""
    theirs, ours = (
        {arm: {(r.name, r.statistic, r.stage, r.task): r for r in rows if r.arm is arm} for arm in Arm}
        for rows in (reference, judged)
    )
    pairs = []
    for key in dict.fromkeys([*ours[Arm.CANDIDATE], *theirs[Arm.CANDIDATE]]):
        candidates = theirs[Arm.CANDIDATE].get(key), ours[Arm.CANDIDATE].get(key)
        of_load = key[2] is not None
        baselines = (theirs[Arm.BASELINE].get(key), ours[Arm.BASELINE].get(key)) if of_load else (None, None)
        pairs.append(NumberPair(*key, *candidates, *baselines))
    return tuple(pairs)


def _difference(before: MetricRow | None, after: MetricRow | None) -> EstimateWithLimits | None:
    if before is None or after is None:
        return None
    known = [
        EstimateWithLimits(row.value, None if row.lower is None or row.upper is None else Limits(row.lower, row.upper))
        for row in (after, before)
    ]
    return weighted_sum([(1.0, known[0]), (-1.0, known[1])])


def _change(before: MetricRow | None, after: MetricRow | None) -> float | None:
    if before is None or after is None or before.value <= 0:  # below 0 a rise would be shown as a fall
        return None
    return _finite(after.value / before.value - 1)


def _finite(ratio: float) -> float | None:
    """Return a ratio; None for an infinite one and for NaN."""
    return ratio if math.isfinite(ratio) else None


_TOLERANCE = 1e-9  # another machine may add in another order


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A stored row, and the one computed from the records; None if they give none."""

    stored: MetricRow
    computed: MetricRow | None


def mismatches(stored: Sequence[MetricRow], computed: Sequence[MetricRow]) -> list[Mismatch]:
    """Return the stored rows that differ from the computed ones. `missing_rows` returns those that were not stored."""
    by_key = {_key(row): row for row in computed}
    pairs = [(row, by_key.get(_key(row))) for row in stored]
    return [Mismatch(row, ours) for row, ours in pairs if ours is None or not _equal(row, ours)]


def missing_rows(stored: Sequence[MetricRow], computed: Sequence[MetricRow]) -> list[MetricRow]:
    """Return the computed rows that were not stored."""
    keys = {_key(row) for row in stored}
    return [row for row in computed if _key(row) not in keys]


def _key(row: MetricRow) -> tuple[object, ...]:
    return row.arm, row.name, row.statistic, row.stage, row.task


def _equal(one: MetricRow, other: MetricRow) -> bool:
    return one.n == other.n and all(
        mine == theirs
        if mine is None or theirs is None
        else math.isclose(mine, theirs, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * _TOLERANCE)
        for mine, theirs in ((one.value, other.value), (one.lower, other.lower), (one.upper, other.upper))
    )
