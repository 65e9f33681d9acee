"""Flips: answers that turn from right to wrong or back, beyond what the baseline does when it is asked once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Comparison, quality_of
from benchgate.gate.quality_pairs import Pairs, invalid, pair_task
from benchgate.gate.rule import Finding, Problem
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, QualityObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.clusters import FEWEST_CLUSTERS
from benchgate.stats.excess import Excess, excess_change, excess_of_tasks


@dataclass(frozen=True, slots=True, eq=False)
class Flips:
    """Per item of a task: x, half the times the candidate differs from either baseline answer; y, whether those differ.

    Right or wrong is what differs or not; item ids are in the order of the rows.
    """

    x: FloatArray
    y: FloatArray
    ids: tuple[str, ...]
    clusters: tuple[str, ...] | None


def relative(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], *, margin: float, breach: bool, alpha: float
) -> Finding:
    """Excess flips, e = mean(x - y), each task with equal weight; harm only where e itself is beyond the margin."""
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="paired excess over the baseline's flips against itself",
        n=0,
        n_unit="items",
        breach=breach,
        by_estimate=True,
    )
    found = excess_flips(comparison, units, alpha, tested=margin if breach else 0.0)
    if isinstance(found, Problem):
        return replace(finding, problem=found)
    excess, noise, ours = found
    return replace(
        finding,
        n=excess.n,
        baseline=noise,
        candidate=ours,
        harm=excess.estimate,
        limits=excess.limits,
        p_value=excess.p_harm,
    )


def excess_flips(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], alpha: float, *, tested: float = 0.0
) -> tuple[Excess, float, float] | Problem:
    """The excess with its limits, the baseline's flips against itself, and the candidate's against the baseline.

    Of two stored runs each candidate's excess over its own run's baseline, item by item, is compared.
    """
    judged = _of_units(comparison.judged, units)
    if isinstance(judged, Problem):
        return judged
    noise, ours = _mean([one.y for one in judged]), _mean([one.x for one in judged])
    if comparison.reference is None:
        excess = excess_of_tasks([(one.x, one.y, one.clusters) for one in judged], alpha, margin=tested)
    else:
        reference = _of_units(comparison.reference, units)
        if isinstance(reference, Problem):
            return reference
        if [one.ids for one in reference] != [one.ids for one in judged]:
            return invalid("the two runs did not ask the same items", "measure both with the same suite")
        gaps = [np.concatenate([one.x - one.y for one in run]) for run in (judged, reference)]
        excess = excess_change(gaps[0], gaps[1], alpha, margin=tested)
    if excess is None:
        return Problem(Outcome.INCONCLUSIVE, "there are too few items", "give the task rows, or raise `limit`")
    return excess, noise, ours


def _of_units(evidence: Evidence, units: Mapping[str, tuple[str, ...]]) -> list[Flips] | Problem:
    found: list[Flips] = []
    for tasks in units.values():
        parts: list[Flips] = []
        for task in tasks:
            one = _of_task(evidence, task)
            if isinstance(one, Problem):
                return one
            parts.append(one)
        found.append(_joined(parts))
    if not found:
        return invalid("no eval task is right or wrong", "see the faults of the targets and run the suite again")
    for name, one in zip(units, found, strict=True):
        if one.clusters is not None and len(set(one.clusters)) < FEWEST_CLUSTERS:
            reason = f"the items of {name} come in too few clusters to know how much clusters differ"
            return Problem(Outcome.INCONCLUSIVE, reason, f"use items of at least {FEWEST_CLUSTERS} clusters")
    return found


def _of_task(evidence: Evidence, task: str) -> Flips | Problem:
    first, candidate = (quality_of(evidence, arm, task) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    again = quality_of(evidence, Arm.BASELINE, task, repeat=1)
    if first is None or candidate is None:
        return invalid(f"task {task} was not run on both arms", "see the faults of the targets")
    if again is None:
        reason = f"the baseline was asked {task} only once, so nobody knows how often it flips against itself"
        return invalid(reason, "set `quality.repeat_baseline: true` and measure again")
    ours, itself = pair_task(first, candidate), pair_task(first, again)
    for paired in (ours, itself):
        if isinstance(paired, Problem):
            return paired
        if paired.continuous:
            return invalid(f"the answers to {task} are not simply right or wrong, so none of them flips", "name a task")
        if paired.stopped or len(paired) == 0:
            reason = f"{task} was stopped early, before all of its items were asked"
            return Problem(Outcome.INCONCLUSIVE, reason, "run without `quality.stop_early`")
    assert isinstance(ours, Pairs) and isinstance(itself, Pairs), "problems have returned"
    return _flips(first, ours, itself)


def _flips(first: QualityObservation, ours: Pairs, itself: Pairs) -> Flips:
    x = 0.5 * (ours.candidate != ours.baseline) + 0.5 * (ours.candidate != itself.candidate)
    y = (itself.candidate != itself.baseline).astype(np.float64)
    return Flips(x, y, tuple(item.item_id for item in first.items), ours.clusters)


def _joined(parts: Sequence[Flips]) -> Flips:
    clustered = any(part.clusters is not None for part in parts)
    return Flips(
        x=np.concatenate([part.x for part in parts]),
        y=np.concatenate([part.y for part in parts]),
        ids=tuple(one for part in parts for one in part.ids),
        clusters=tuple(label for part in parts for label in part.clusters or part.ids) if clustered else None,
    )


def _mean(columns: Sequence[FloatArray]) -> float:
    return sum(float(np.mean(column)) for column in columns) / len(columns)
