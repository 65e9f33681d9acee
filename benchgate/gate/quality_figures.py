"""What is shown of an eval beside its verdict: the very numbers that checks decide by, task by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate import units as shown
from benchgate.gate.comparison import Comparison
from benchgate.gate.quality_flips import ExcessFlips, excess_flips
from benchgate.gate.quality_pairs import Pairs, few_clusters, invalid, pair_unit
from benchgate.gate.rule import Problem
from benchgate.stats.item_harm import ItemHarm, answers_harm, scores_harm
from benchgate.stats.limits import Limits
from benchgate.stats.recovery import Recovery, recovery


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """One task, one group of tasks, or all of them with equal weight.

    `harm` is baseline - candidate, positive = worse, with its limits: None where the items carry none (too few
    clusters, an eval that was stopped early, scores of several scales). `lost`, `gained`, `flips_ratio` and
    `other_wrong` are of answers that are right or wrong; `floor_ratio`, `excess_ratio` and its limits take a baseline
    that was asked twice. `cut` are answers that the token limit cut short or that could not be read, and are wrong, of
    the baseline and of the candidate.
    """

    name: str
    n: int
    continuous: bool
    baseline: float
    candidate: float
    harm: float
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


def task_figures(
    comparison: Comparison, task: str, alpha: float, tasks: tuple[str, ...] | None = None
) -> TaskFigures | Problem:
    """Of one task; of a group, all of whose observed tasks are `tasks`. A Problem where its items cannot be paired."""
    return pooled_figures(comparison, {task: tasks or (task,)}, alpha, name=task)


def pooled_figures(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], alpha: float, *, name: str = "all tasks"
) -> TaskFigures | Problem:
    """Of several tasks, each with equal weight."""
    paired: list[Pairs] = []
    for unit, tasks in units.items():
        one = pair_unit(comparison, unit, tasks)
        if isinstance(one, Problem):
            return one
        paired.append(one)
    if not paired or any(len(one) == 0 for one in paired):
        return invalid("there are no items", "give the task rows, or raise `limit`")
    return figures_of(comparison, units, paired, alpha, name=name)


def figures_of(
    comparison: Comparison,
    units: Mapping[str, tuple[str, ...]],
    paired: Sequence[Pairs],
    alpha: float,
    *,
    name: str,
) -> TaskFigures:
    """The same of items that are paired already."""
    baseline, candidate = (
        sum(float(np.mean(getattr(one, arm))) for one in paired) / len(paired) for arm in ("baseline", "candidate")
    )
    continuous = any(one.continuous for one in paired)
    harm = _harm(paired, alpha, continuous=continuous)
    left = recovery([one.scores for one in paired], alpha, harm=harm.limits if harm is not None else None)
    excess = _excess(comparison, units, alpha, continuous=continuous)
    lost, gained = (sum(int(np.sum(getattr(one, which))) for one in paired) for which in ("lost", "gained"))
    n = sum(len(one) for one in paired)
    wrong = [one.other_wrong for one in paired if one.other_wrong is not None]
    return TaskFigures(
        name=name,
        n=n,
        continuous=continuous,
        baseline=baseline,
        candidate=candidate,
        harm=harm.estimate if harm is not None else baseline - candidate,
        limits=harm.limits if harm is not None else None,
        method=harm.method if harm is not None else "none",
        lost=None if continuous else lost,
        gained=None if continuous else gained,
        flips_ratio=None if continuous else (lost + gained) / n,
        other_wrong=sum(wrong) if len(wrong) == len(paired) else None,
        recovery_ratio=left.ratio if left is not None else None,
        recovery_limits=left.limits if left is not None else None,
        floor_ratio=excess.floor if excess is not None else None,
        excess_ratio=excess.excess.estimate if excess is not None else None,
        excess_limits=excess.excess.limits if excess is not None else None,
        clusters=_clusters(paired),
        cut=_cut(paired),
        stopped=any(one.stopped for one in paired),
    )


def figure_notes(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], paired: Sequence[Pairs], alpha: float
) -> tuple[str, ...]:
    """The figures that stand beside a finding about accuracy or scores, in words."""
    return tuple(_notes(figures_of(comparison, units, paired, alpha, name="")))


def _notes(figures: TaskFigures) -> Iterator[str]:
    if figures.lost is not None:
        yield f"{figures.lost} items lost, {figures.gained} gained, of {figures.n}"
    if figures.flips_ratio is not None:
        other = "" if figures.other_wrong is None else f"; {figures.other_wrong} more are wrong in another way"
        yield f"{shown.show_percent(figures.flips_ratio)} of the answers flipped{other}"
    if figures.floor_ratio is not None:
        yield f"asked twice, the baseline flips {shown.show_percent(figures.floor_ratio)} of its own"
    if figures.recovery_ratio is not None:
        yield f"recovery {_recovery(Recovery(figures.recovery_ratio, figures.recovery_limits))}"
    if figures.clusters is not None:
        yield f"{figures.n} items in {figures.clusters} clusters"


def _recovery(found: Recovery) -> str:
    ratio = shown.show_percent(found.ratio)
    if found.limits is None:
        return ratio
    low, high = (shown.show_percent(limit) for limit in (found.limits.lower, found.limits.upper))
    return f"{ratio} ({low.removesuffix(' %')} to {high.removesuffix(' %')})"


def _harm(paired: Sequence[Pairs], alpha: float, *, continuous: bool) -> ItemHarm | None:
    """None where there are no limits to be had."""
    if few_clusters(paired) is not None or any(one.stopped for one in paired):
        return None
    if not continuous:
        return answers_harm([one.scores for one in paired], alpha)
    if len(paired) > 1 or len(paired[0]) < 2:
        return None
    return scores_harm(paired[0].scores, alpha, np.random.default_rng(0))


def _excess(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], alpha: float, *, continuous: bool
) -> ExcessFlips | None:
    if continuous or not all(comparison.baseline_quality(task, 1) for tasks in units.values() for task in tasks):
        return None
    found = excess_flips(comparison, units, alpha)
    return None if isinstance(found, Problem) else found


def _clusters(paired: Sequence[Pairs]) -> int | None:
    counted = [len(set(one.clusters)) if one.clusters is not None else len(one) for one in paired]
    return sum(counted) if any(one.clusters is not None for one in paired) else None


def _cut(paired: Sequence[Pairs]) -> tuple[int, int]:
    return (
        sum(int(np.sum(one.baseline_unclear)) for one in paired),
        sum(int(np.sum(one.candidate_unclear)) for one in paired),
    )
