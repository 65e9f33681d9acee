"""Rows of the quality tables: every task, groups of tasks and all of them, with items paired by their own id.

Nothing here decides anything: a task that a check judges is shown with that check's own limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate import units
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.items import is_continuous, units_of
from benchgate.gate.summary.figures import TaskFigures, pooled_figures
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import CheckResult, Outcome, Scale, Verdict
from benchgate.report import display
from benchgate.stats.distributions import Limits
from benchgate.suite.quality import stage_of_task
from benchgate.suite.schema import Suite

UNPARSED = ("[invalid]", "")
"""The choices that lm-eval's filters leave of an answer in which they find nothing."""


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """Items of a task that both arms had scored, paired by id.

    `lost`: the baseline was right and the candidate wrong; `gained`: the reverse; `flipped_ratio`: the share of both,
    of several tasks its mean. All three are None for a task whose scores are not simply right or wrong. `other_wrong`:
    both were wrong with different answers; None without answers. `expected` items were planned; the items missing from
    `paired` were unscored or unanswered. `continuous` scores are of some scale.
    """

    task: str
    expected: int
    paired: int
    baseline_ratio: float | None
    candidate_ratio: float | None
    lost: int | None
    gained: int | None
    flipped_ratio: float | None
    other_wrong: int | None
    faults: tuple[str, ...]
    continuous: bool = False

    @property
    def flips(self) -> int | None:
        """Items that only one arm got right."""
        return None if self.lost is None or self.gained is None else self.lost + self.gained

    @property
    def recovery_ratio(self) -> float | None:
        """Candidate's score over the baseline's; None when the baseline's is missing or not above 0."""
        if self.candidate_ratio is None or self.baseline_ratio is None or self.baseline_ratio <= 0:
            return None
        return self.candidate_ratio / self.baseline_ratio


def summarise_task(task: str, baseline: QualityObservation | None, candidate: QualityObservation | None) -> TaskSummary:
    """Summarise one task; an arm without an observation leaves nothing paired and is named in the faults."""
    observed = [("baseline", baseline), ("candidate", candidate)]
    faults = tuple(
        f"{name}: {'not measured' if o is None else o.fault}"
        for name, o in observed
        if o is None or o.fault is not None
    )
    pairs = paired_items(baseline, candidate)
    continuous = is_continuous(baseline) or is_continuous(candidate)
    binary = not continuous and all(b.correct is not None and c.correct is not None for b, c in pairs)
    lost = sum(bool(b.correct) and not c.correct for b, c in pairs) if binary else None
    gained = sum(bool(c.correct) and not b.correct for b, c in pairs) if binary else None
    return TaskSummary(
        task=task,
        expected=max((o.expected_n for o in (baseline, candidate) if o is not None), default=0),
        paired=len(pairs),
        baseline_ratio=_mean([b.score for b, _ in pairs]),
        candidate_ratio=_mean([c.score for _, c in pairs]),
        lost=lost,
        gained=gained,
        flipped_ratio=(lost + gained) / len(pairs) if lost is not None and gained is not None and pairs else None,
        other_wrong=_other_wrong(pairs) if binary else None,
        faults=faults,
        continuous=continuous,
    )


def pooled_tasks(tasks: Sequence[TaskSummary], name: str, *, by_items: bool = False) -> TaskSummary:
    """Pool several tasks with equal weights, or `by_items`: those of an lm-eval group are one task of all its items."""
    weights = [t.paired if by_items else 1 for t in tasks]
    return TaskSummary(
        task=name,
        expected=sum(t.expected for t in tasks),
        paired=sum(t.paired for t in tasks),
        baseline_ratio=_mean([t.baseline_ratio for t in tasks], weights),
        candidate_ratio=_mean([t.candidate_ratio for t in tasks], weights),
        lost=_sum(t.lost for t in tasks),
        gained=_sum(t.gained for t in tasks),
        flipped_ratio=_mean([t.flipped_ratio for t in tasks], weights),
        other_wrong=_sum(t.other_wrong for t in tasks),
        faults=tuple(f"{t.task}, {fault}" for t in tasks for fault in t.faults),
        continuous=any(t.continuous for t in tasks),
    )


def paired_items(
    baseline: QualityObservation | None, candidate: QualityObservation | None
) -> list[tuple[EvalItem, EvalItem]]:
    """Pair the items that both arms had scored, in the baseline's order."""
    ours = {item.item_id: item for item in candidate.items if item.score is not None} if candidate else {}
    theirs = [item for item in baseline.items if item.score is not None] if baseline else []
    return [(item, ours[item.item_id]) for item in theirs if item.item_id in ours]


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Counts over one arm's answers to one task. `unread`: no choice could be parsed from the answer.

    `cut` (by the token limit) is None for imported answers, which do not say.
    """

    answered: int
    failed: int
    empty: int
    cut: int | None
    unread: int | None
    output_tokens: float | None


def count_answers(observation: QualityObservation) -> AnswerCounts:
    """Count the answered items; tokens are the mean over items whose server reported them."""
    answered = [item for item in observation.items if item.error is None]
    tokens = [item.output_tokens for item in answered if item.output_tokens is not None]
    read = [item.choice for item in answered if item.choice is not None]
    is_cut_known = not observation.harness.get("imported") or any(i.finish_reason is not None for i in answered)
    return AnswerCounts(
        answered=len(answered),
        failed=len(observation.items) - len(answered),
        empty=sum(not (item.answer or "").strip() for item in answered),
        cut=sum(i.finish_reason == "length" for i in answered) if is_cut_known else None,
        unread=sum(choice in UNPARSED for choice in read) if read else None,
        output_tokens=sum(tokens) / len(tokens) if tokens else None,
    )


def _other_wrong(pairs: Sequence[tuple[EvalItem, EvalItem]]) -> int | None:
    wrong = [(b.choice, c.choice) for b, c in pairs if b.correct is False and c.correct is False]
    if any(one is None or other is None for one, other in wrong):
        return None
    return sum(one != other for one, other in wrong)


def _mean(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float | None:
    """Return the weighted mean; None when one value is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    each = weights or [1] * len(known)
    return sum(value * weight for value, weight in zip(known, each, strict=True)) / sum(each)


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(v for v in known if v is not None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value between its one-sided limits."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task, or several `pooled` with equal weights. None is unknown.

    `change` is the candidate's mean score minus the baseline's, `margin` the largest loss that its check allows.
    `recovery` is the candidate's score over the baseline's. `floor_ratio` is the baseline's own flip rate, `excess` the
    candidate's flip rate beyond it. `problem` is why nothing is estimated.
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
    stopped: bool = False  # before all its items were sent

    @property
    def lost_ratio(self) -> float | None:
        """The candidate's loss, also where it has no limits."""
        if self.change is not None:
            return -self.change.value
        return None if self.baseline is None or self.candidate is None else self.baseline - self.candidate

    def shown(self, change: float | None) -> str:
        """Show a change in points, with the digits that keep it on its own side of the margin."""
        if change is None or self.margin is None:
            return display.points(change)
        return units.beside(display.points, change, -self.margin)

    @property
    def shown_limits(self) -> str:
        """The limits of the change, shown like it; a dash without any."""
        if self.change is None:
            return display.NOT_APPLICABLE
        return display.with_unit_once(self.shown(self.change.lower), self.shown(self.change.upper), " to ")


def task_rows(comparison: Comparison, verdict: Verdict, suite: Suite) -> tuple[TaskRow, ...]:
    """Return every observed task, each lm-eval group below its tasks, and last all of several tasks together."""
    units = dict(units_of(suite, comparison))
    for task in (o.task for run in reversed(comparison.runs) for o in run.quality if o.repeat == 0):
        if not any(task in tasks for tasks in units.values()):
            units[task] = (task,)
    binary = [name for name, tasks in units.items() if not _is_continuous(comparison, tasks)]
    stages = Counter(map(stage_of_task, binary))  # a check of the accuracy over all tasks judges the only one
    rows = [
        row
        for name, tasks in units.items()
        for row in _of_unit(comparison, verdict, name, tasks, whole=name in binary and stages[stage_of_task(name)] == 1)
    ]
    right_or_wrong = {name: units[name] for name in binary if stage_of_task(name) is None}
    if len(right_or_wrong) > 1:
        by_unit = [
            pooled_tasks(
                [summarise_task(t, comparison.baseline_quality(t), comparison.candidate_quality(t)) for t in tasks],
                name,
                by_items=True,
            )
            for name, tasks in right_or_wrong.items()
        ]
        found = _figures(comparison, right_or_wrong, verdict, "all tasks")
        check = _check_of(verdict, None, whole=True)
        rows.append(_row(pooled_tasks(by_unit, "all tasks"), found, check, pooled=True))
    return tuple(rows)


def _is_continuous(comparison: Comparison, tasks: tuple[str, ...]) -> bool:
    return any(
        is_continuous(comparison.baseline_quality(task)) or is_continuous(comparison.candidate_quality(task))
        for task in tasks
    )


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
        whole_group = pooled_tasks(counts, name, by_items=True)
        yield _row(whole_group, found, _check_of(verdict, name, whole=whole), pooled=True)


def _figures(
    comparison: Comparison, units: Mapping[str, tuple[str, ...]], verdict: Verdict, name: str
) -> TaskFigures | CannotJudge:
    try:
        return pooled_figures(comparison, units, verdict.alpha, name=name)
    except CannotJudge as cannot:
        return cannot


def _check_of(verdict: Verdict, task: str | None, *, whole: bool) -> CheckResult | None:
    """Return the check that judges a task against the baseline; None if there is none.

    `whole`: these are all tasks that are right or wrong, or the only one (at its stage). A check of the accuracy that
    names no task judges them; a check of the score always names its task.
    """
    stage = None if task is None else stage_of_task(task)
    of_scores = [c for c in verdict.checks if c.metric in ("accuracy", "score") and c.scale is Scale.DIFFERENCE]
    of_scores = [c for c in of_scores if c.stage == stage]
    own = [check for check in of_scores if task is not None and check.task == task]
    of_all = [check for check in of_scores if whole and check.task is None and check.metric == "accuracy"]
    return next(iter((*own, *of_all)), None)


def _row(counts: TaskSummary, found: TaskFigures | CannotJudge, check: CheckResult | None, *, pooled: bool) -> TaskRow:
    """Build a row, with the numbers of its check where one judges it."""
    figures = None if isinstance(found, CannotJudge) else found
    lost = None if figures is None else _estimate(figures.regression, figures.limits)
    change = None if lost is None else Estimate(-lost.value, -lost.upper, -lost.lower)
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
