"""Numbers beside a verdict, for the report: load stages, missed SLOs, block differences, and evals by task.

They decide nothing. Those of one stage have 95 % intervals, as in the history (`metric_limits`), each by itself: two
that overlap can still differ. Block differences and evals are the numbers that checks decide by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.checks.flips import ExcessFlips, excess_flips
from benchgate.gate.comparison import Comparison, LiveBaseline, paired_load
from benchgate.gate.decision import CannotJudge, invalid
from benchgate.gate.evidence.blocks import block_pairs
from benchgate.gate.evidence.client_strain import usable, without_clouded_blocks
from benchgate.gate.evidence.costs import output_tokens, unit_cost
from benchgate.gate.evidence.intervals import block_limits, block_mean, kept_limits, quantiles_with_limits
from benchgate.gate.evidence.items import Pairs, pair_units, require_clusters
from benchgate.gate.evidence.shares import Counts, differences_of, tally_of
from benchgate.gate.evidence.tokens import demonstrated_inflation
from benchgate.gate.guards.base import SPEED_METRICS
from benchgate.gate.policy import CheckSpec, concrete_checks
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import METRICS, POINTS_METRICS, Slo
from benchgate.model.request_metrics import LATENCIES
from benchgate.model.run import Evidence, LoadObservation
from benchgate.stats.distributions import Limits
from benchgate.stats.evals import ItemRegression, accuracy_regression, score_regression, score_retention
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

SHOWN_LATENCIES = ("ttft", "tpot")
CHART_STATISTICS: Mapping[str, float] = {"p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Value with its 95 % limits, None if the evidence gives none; +inf if too many requests failed."""

    value: float
    limits: Limits | None


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Values of one arm over all blocks of a stage. None: not measured, not applicable, or no price or SLO.

    `quantiles` are seconds by latency and statistic, as `ttft_p95`; costs are dollars per million output tokens.
    """

    quantiles: Mapping[str, Estimate]
    output_tokens_per_s: Estimate | None
    goodput_ratio: Estimate | None
    usd_per_million_output: Estimate | None
    usd_per_million_good: Estimate | None


def stage_figures(blocks: Sequence[LoadObservation], slo: Slo | None, deployment: Deployment) -> StageFigures | None:
    """Return the figures of one arm's executions of a stage, or of a class of it; None if there are none."""
    if not blocks:
        return None
    tokens = [request_metrics.output_tokens_per_s(o.requests, o.window_s) for o in blocks]
    goodput, of_good = None, None
    if slo is not None:
        counts = Counts.of(blocks, tally_of("goodput", slo))
        goodput = _estimate(sum(counts.kept) / counts.scheduled if counts.scheduled else None, kept_limits(counts))
        of_good = _estimate(*unit_cost(deployment, blocks, output_tokens(slo)))
    quantiles: dict[str, Estimate] = {}
    for latency in SHOWN_LATENCIES:
        each = [LATENCIES[latency](o.requests) for o in blocks]
        estimates = quantiles_with_limits(each, tuple(CHART_STATISTICS.values()), single=True)
        for statistic, (value, limits) in zip(CHART_STATISTICS, estimates, strict=True):
            if value is not None:
                quantiles[f"{latency}_{statistic}"] = Estimate(value, limits)
    return StageFigures(
        quantiles=quantiles,
        output_tokens_per_s=_estimate(block_mean(tokens), block_limits(tokens)),
        goodput_ratio=goodput,
        usd_per_million_output=_estimate(*unit_cost(deployment, blocks, output_tokens())),
        usd_per_million_good=of_good,
    )


def _estimate(value: float | None, limits: Limits | None) -> Estimate | None:
    return None if value is None else Estimate(value, limits)


FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Attainment:
    """Number of `scheduled` requests of one arm at a stage, and of those that met every bound (`good`).

    `missed` counts by reason: `failed` for requests that did not succeed, and `ttft`, `tpot` and `e2e` for answered
    ones past that bound. One answer may miss several, so the counts may add up to more than `scheduled - good`, never
    to less. `limits` are 95 % limits of the share of good requests, None if there are none.
    """

    scheduled: int
    good: int
    missed: Mapping[str, int]
    limits: Limits | None

    @property
    def share(self) -> float | None:
        """Return good of scheduled; None if nothing was scheduled."""
        return self.good / self.scheduled if self.scheduled else None


def attainment(blocks: Sequence[LoadObservation], slo: Slo) -> Attainment | None:
    """Count the good and missed requests of one arm's executions of a stage or class; None if there are none."""
    if not blocks:
        return None
    bounds = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    values = {"ttft": request_metrics.ttft_s, "tpot": request_metrics.tpot_s, "e2e": request_metrics.e2e_s}
    counts = Counts.of(blocks, tally_of("goodput", slo))
    missed = {FAILED: 0} | {name: 0 for name, bound in bounds.items() if bound is not None}
    for block in blocks:
        answered = request_metrics.succeeded(block.requests)
        missed[FAILED] += int(np.count_nonzero(~answered))
        for name, bound in bounds.items():
            if bound is not None:  # a request without such a value meets the bound, as in `request_metrics.good`
                missed[name] += int(np.count_nonzero(answered & (values[name](block.requests) > bound)))
    return Attainment(counts.scheduled, sum(counts.kept), missed, kept_limits(counts))


@dataclass(frozen=True, slots=True)
class BlockDifferences:
    """Regression of the check `id` in each block, or in each group of `together` blocks; above 0 is worse.

    On the scale of the check: ln of a ratio, or a difference of two shares. +inf if only the candidate has no finite
    value. `blocks` are the block numbers, from 0, that the check uses; `left_out` are the others, each with the reason.
    """

    id: str
    regressions: tuple[float, ...]
    together: int = 1
    blocks: tuple[int, ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()


def block_differences(suite: Suite, evidence: Evidence) -> tuple[BlockDifferences, ...]:
    """Return the paired differences behind every check of load against a live baseline, in the policy's order.

    Two stored runs have none: their checks compare two groups of blocks that were not paired.
    """
    comparison = LiveBaseline(evidence)
    timed = usable(comparison, suite)
    found = []
    for spec in concrete_checks(suite, evidence):
        metric, stage = METRICS[spec.check.metric], spec.stage
        if stage is None or spec.check.margin is None or metric.family != "load":
            continue
        timed_or_all = timed if spec.check.metric in SPEED_METRICS else comparison
        clear = without_clouded_blocks(timed_or_all, spec.check.metric, spec.q, spec.stages, tuple(Arm))
        if clear.problem is not None:
            continue
        regressions, together = _regressions(spec, stage, clear.comparison.judged, suite)
        if not regressions:
            continue
        used, measured, kept_up = (
            [baseline.block for baseline, _ in paired_load(run, stage)]
            for run in (clear.comparison.judged, evidence, timed_or_all.judged)
        )
        every = {o.block for o in evidence.load if o.stage in spec.stages}
        reasons = dict.fromkeys(every, UNPAIRED)
        reasons |= dict.fromkeys(measured, CLIENT_SATURATED) | dict.fromkeys(kept_up, CLIENT_DELAYED_TAIL)
        left_out = tuple((block, reasons[block]) for block in sorted(every - set(used)))
        found.append(BlockDifferences(spec.id, regressions, together, tuple(used), left_out))
    return tuple(found)


def _regressions(spec: CheckSpec, stage: str, judged: Evidence, suite: Suite) -> tuple[tuple[float, ...], int]:
    """Return the regression of each group of blocks, and their number in a group; () if a block has none."""
    if spec.check.metric in POINTS_METRICS:
        tally, blocks = tally_of(spec.check.metric, spec.slo, spec.check.of), paired_load(judged, stage)
        if any(tally(side)[1] == 0 for pair in blocks for side in pair):
            return (), 1
        return tuple(differences_of(blocks, tally).tolist()), 1
    inflation = demonstrated_inflation(judged, stage, suite) if METRICS[spec.check.metric].restated else None
    measure = spec.measure if inflation is None else replace(spec.measure, inflation=inflation.by_block)
    try:
        pairs = block_pairs(judged, stage, measure)
    except CannotJudge:
        return (), 1
    return tuple(pairs.harm.tolist()), pairs.together


CLIENT_SATURATED = "excluded: the load generator was the bottleneck"
CLIENT_DELAYED_TAIL = "excluded: its slowest answers waited for the load generator"
UNPAIRED = "excluded: measured on one arm only"


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Figures of one task, of one group of tasks, or of all tasks with equal weight.

    `regression` is baseline - candidate, above 0 = worse. Its limits are None if the items give none (too few clusters,
    an eval that was stopped early, scores of several scales). `lost`, `gained`, `flips_ratio` and `other_wrong` are of
    answers that are right or wrong; `floor_ratio` and `excess_ratio` need a baseline that was queried twice. `cut`
    counts the wrong answers of baseline and candidate that the token limit truncated or that could not be read.
    """

    name: str
    n: int
    continuous: bool
    baseline: float
    candidate: float
    regression: float
    limits: Limits | None
    method: str
    lost: int | None
    gained: int | None
    flips_ratio: float | None
    other_wrong: int | None
    recovery_ratio: float | None
    recovery_limits: Limits | None
    floor_ratio: float | None
    excess_ratio: float | None
    excess_limits: Limits | None
    clusters: int | None
    cut: tuple[int, int]
    stopped: bool


def task_figures(comparison: Comparison, task: str, alpha: float) -> TaskFigures:
    """Return the figures of one task. Raises CannotJudge if it has no pairs."""
    return pooled_figures(comparison, {task: (task,)}, alpha, name=task)


def pooled_figures(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], alpha: float, *, name: str = "all tasks"
) -> TaskFigures:
    """Return the figures of several tasks, each with equal weight. Raises CannotJudge if one has no pairs."""
    paired = pair_units(comparison, units)
    if any(len(one) == 0 for one in paired):
        raise invalid("there are no items", "give the task rows, or raise `limit`")
    return figures_of(comparison, units, paired, alpha, name=name)


def figures_of(
    comparison: Comparison,
    units: Mapping[str, tuple[str, ...]],
    paired: Sequence[Pairs],
    alpha: float,
    *,
    name: str,
) -> TaskFigures:
    """Return the figures of items that are already paired."""
    baseline, candidate = (
        sum(float(np.mean(getattr(one, arm))) for one in paired) / len(paired) for arm in ("baseline", "candidate")
    )
    continuous = any(one.continuous for one in paired)
    regression = _regression(paired, alpha, continuous=continuous)
    limits = regression.limits if regression is not None else None
    left = score_retention([one.scores for one in paired], alpha, regression=limits)
    excess = _excess(comparison, units, alpha, continuous=continuous)
    lost, gained = (sum(int(np.sum(getattr(one, turned))) for one in paired) for turned in ("lost", "gained"))
    n = sum(len(one) for one in paired)
    flipped = [int(np.sum(one.lost) + np.sum(one.gained)) / len(one) for one in paired]  # tasks weigh alike
    wrong = [one.other_wrong for one in paired if one.other_wrong is not None]
    counted = [len(one) for one in paired if one.clusters is None]
    named = {label for one in paired for label in one.clusters or ()}
    return TaskFigures(
        name=name,
        n=n,
        continuous=continuous,
        baseline=baseline,
        candidate=candidate,
        regression=regression.estimate if regression is not None else baseline - candidate,
        limits=limits,
        method=regression.method if regression is not None else "none",
        lost=None if continuous else lost,
        gained=None if continuous else gained,
        flips_ratio=None if continuous else sum(flipped) / len(flipped),
        other_wrong=sum(wrong) if len(wrong) == len(paired) else None,
        recovery_ratio=left.ratio if left is not None else None,
        recovery_limits=left.limits if left is not None else None,
        floor_ratio=excess.floor if excess is not None else None,
        excess_ratio=excess.excess.estimate if excess is not None else None,
        excess_limits=excess.excess.limits if excess is not None else None,
        clusters=sum(counted) + len(named) if named else None,
        cut=(
            sum(int(np.sum(one.baseline_unclear)) for one in paired),
            sum(int(np.sum(one.candidate_unclear)) for one in paired),
        ),
        stopped=any(one.stopped for one in paired),
    )


def figure_notes(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], paired: Sequence[Pairs], alpha: float
) -> tuple[str, ...]:
    """Describe the figures beside an estimate of accuracy or scores."""
    figures, notes = figures_of(comparison, units, paired, alpha, name=""), []
    if figures.lost is not None:
        notes.append(f"{figures.lost} items lost, {figures.gained} gained, of {figures.n}")
    if figures.flips_ratio is not None:
        other = "" if figures.other_wrong is None else f"; {figures.other_wrong} more are wrong in another way"
        notes.append(f"{show_percent(figures.flips_ratio)} of the answers flipped{other}")
    if figures.floor_ratio is not None:
        notes.append(f"asked twice, the baseline flips {show_percent(figures.floor_ratio)} of its own")
    if figures.recovery_ratio is not None:
        note, limits = f"recovery {show_percent(figures.recovery_ratio)}", figures.recovery_limits
        if limits is not None:
            low, high = (show_percent(limit).removesuffix(" %") for limit in (limits.lower, limits.upper))
            note += f" ({low} to {high})"
        notes.append(note)
    if figures.clusters is not None:
        notes.append(f"{figures.n} items in {figures.clusters} clusters")
    return tuple(notes)


def _regression(paired: Sequence[Pairs], alpha: float, *, continuous: bool) -> ItemRegression | None:
    try:
        require_clusters(paired)
    except CannotJudge:
        return None
    if any(one.stopped for one in paired):
        return None
    if not continuous:
        return accuracy_regression([one.scores for one in paired], alpha)
    if len(paired) > 1 or len(paired[0]) < 2:
        return None
    return score_regression(paired[0].scores, alpha, np.random.default_rng(0))


def _excess(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], alpha: float, *, continuous: bool
) -> ExcessFlips | None:
    if continuous or not all(comparison.baseline_quality(task, 1) for tasks in units.values() for task in tasks):
        return None
    try:
        return excess_flips(comparison, units, alpha)
    except CannotJudge:
        return None
