"""One row for every task of the quality tables, and for what stands for several: groups of tasks, and all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.items import units_of
from benchgate.gate.summary.figures import TaskFigures, pooled_figures
from benchgate.model.verdict import CheckResult, Outcome, Scale, Verdict
from benchgate.report.task_counts import TaskSummary, pooled_tasks, summarise_task
from benchgate.stats.distributions import Limits
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value between its one-sided limits."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task, or several as one (`pooled`), each of which has the same weight. None where it cannot be told.

    `change` is the candidate's mean score minus the baseline's, so that below 0 is a loss, and `margin` the most that
    may be lost by the check that judges it. `recovery` is the one score over the other; `floor_ratio` how often the
    baseline flips against itself, `excess` how much oftener the candidate does. `problem` is why nothing is estimated.
    """

    task: str
    pooled: bool
    counts: TaskSummary
    baseline: float | None
    candidate: float | None
    change: Estimate | None = None
    margin: float | None = None
    outcome: Outcome | None = None
    recovery_ratio: float | None = None
    recovery: Estimate | None = None
    floor_ratio: float | None = None
    excess: Estimate | None = None
    problem: str | None = None
    stopped: bool = False  # before all its items were asked

    @property
    def lost_ratio(self) -> float | None:
        """How much lower the candidate's score is; also where it has no limits."""
        if self.change is not None:
            return -self.change.value
        return None if self.baseline is None or self.candidate is None else self.baseline - self.candidate


def task_rows(comparison: Comparison, verdict: Verdict, suite: Suite) -> tuple[TaskRow, ...]:
    """Every observed task; a group of lm-eval's below those it consists of; last, where there are several, all."""
    units = dict(units_of(suite, comparison))
    for task in _observed(comparison):
        if not any(task in tasks for tasks in units.values()):
            units[task] = (task,)
    only = next(iter(units)) if len(units) == 1 else None  # what is asked of all tasks is asked of it
    rows = [
        row for name, tasks in units.items() for row in _of_unit(comparison, verdict, name, tasks, whole=name == only)
    ]
    right_or_wrong = {name: tasks for name, tasks in units.items() if not _continuous(rows, name)}
    if len(right_or_wrong) > 1:
        rows.append(_of_all(comparison, verdict, right_or_wrong))
    return tuple(rows)


def _observed(comparison: Comparison) -> Iterator[str]:
    for run in reversed(comparison.runs):
        yield from (o.task for o in run.quality if o.repeat == 0)


def _continuous(rows: list[TaskRow], name: str) -> bool:
    return any(row.task == name and row.counts.continuous for row in rows)


def _of_unit(
    comparison: Comparison, verdict: Verdict, name: str, tasks: tuple[str, ...], *, whole: bool
) -> Iterator[TaskRow]:
    counts = [
        summarise_task(task, comparison.baseline_quality(task), comparison.candidate_quality(task)) for task in tasks
    ]
    group = tasks != (name,)
    for task, one in zip(tasks, counts, strict=True):
        found = _figures(comparison, {task: (task,)}, verdict, task)
        yield _row(one, found, _check_of(verdict, task, whole=whole and not group), pooled=False)
    if group:
        found = _figures(comparison, {name: tasks}, verdict, name)
        yield _row(pooled_tasks(counts, name), found, _check_of(verdict, name, whole=whole), pooled=True)


def _of_all(comparison: Comparison, verdict: Verdict, units: Mapping[str, tuple[str, ...]]) -> TaskRow:
    by_unit = [
        pooled_tasks(
            [summarise_task(t, comparison.baseline_quality(t), comparison.candidate_quality(t)) for t in tasks], name
        )
        for name, tasks in units.items()
    ]
    found = _figures(comparison, units, verdict, "all tasks")
    return _row(pooled_tasks(by_unit, "all tasks"), found, _check_of(verdict, None), pooled=True)


def _figures(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], verdict: Verdict, name: str
) -> TaskFigures | CannotJudge:
    try:
        return pooled_figures(comparison, units, verdict.alpha, name=name)
    except CannotJudge as cannot:
        return cannot


def _check_of(verdict: Verdict, task: str | None, *, whole: bool = False) -> CheckResult | None:
    """The check that holds a task against the baseline; for all tasks together the one that names none.

    `whole`: the task is all there are.
    """
    of_scores = [c for c in verdict.checks if c.metric in ("accuracy", "score") and c.scale is Scale.DIFFERENCE]
    own = next((check for check in of_scores if check.task == task), None)
    return own or next((check for check in of_scores if whole and check.task is None), None)


def _row(counts: TaskSummary, found: TaskFigures | CannotJudge, check: CheckResult | None, *, pooled: bool) -> TaskRow:
    """With the numbers that its check was decided by, where one judges it."""
    figures = None if isinstance(found, CannotJudge) else found
    change = None if figures is None else _estimate(-figures.regression, _turned(figures.limits))
    baseline, candidate = counts.baseline_ratio, counts.candidate_ratio
    if check is not None and check.harm is not None and check.lower is not None and check.upper is not None:
        change, baseline, candidate = Estimate(-check.harm, -check.upper, -check.lower), check.baseline, check.candidate
    return TaskRow(
        task=counts.task,
        pooled=pooled,
        counts=counts,
        baseline=baseline,
        candidate=candidate,
        change=change,
        margin=check.margin if check is not None else None,
        outcome=check.outcome if check is not None else None,
        recovery_ratio=counts.recovery_ratio if figures is None else figures.recovery_ratio,
        recovery=_estimate(figures.recovery_ratio, figures.recovery_limits) if figures is not None else None,
        floor_ratio=figures.floor_ratio if figures is not None else None,
        excess=_estimate(figures.excess_ratio, figures.excess_limits) if figures is not None else None,
        problem=found.reason if isinstance(found, CannotJudge) else None,
        stopped=figures is not None and figures.stopped,
    )


def _estimate(value: float | None, limits: Limits | None) -> Estimate | None:
    return None if value is None or limits is None else Estimate(value, limits.lower, limits.upper)


def _turned(limits: Limits | None) -> Limits | None:
    """Of the negative."""
    return None if limits is None else Limits(-limits.upper, -limits.lower)
