"""The quality part of the report: each task's paired difference, what flipped, what the answers were like, and how
they were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate import units
from benchgate.gate.comparison import Comparison, compare
from benchgate.model.deployment import Arm, flatten_json
from benchgate.model.run import Evidence, QualityObservation
from benchgate.model.verdict import Verdict
from benchgate.report import show
from benchgate.report.tables import Column, Table, of_expected
from benchgate.report.task_counts import count_answers
from benchgate.report.task_rows import Estimate, TaskRow, task_rows
from benchgate.report.terms import OWN, Terms
from benchgate.suite.schema import Suite

_COUNTS = frozenset({"null_answers", "retries", "stopped_early"})
_COUNTED = ("_s", "_bytes", "_count")
"""What the harness counted while it went, by the ends of its names; everything else that it tells is how it asked."""

_Pair = tuple[QualityObservation | None, QualityObservation | None]


@dataclass(frozen=True, slots=True)
class QualitySection:
    """Scores per task over the items both sides had scored; `faults` name what broke.

    `facts` are how the tasks were asked; `asked_twice` whether the baseline was, so that it is known how often it
    flips by itself.
    """

    rows: tuple[TaskRow, ...]
    scores: Table
    flips: Table
    answers: Table
    facts: tuple[tuple[str, str], ...]
    headline: tuple[str, ...]
    faults: tuple[str, ...]
    asked_twice: bool


def quality_section(comparison: Comparison, verdict: Verdict, suite: Suite) -> QualitySection | None:
    """None when no task was run on either side."""
    rows = task_rows(comparison, verdict, suite)
    if not rows:
        return None
    tasks = [row.task for row in rows if not row.pooled]
    pairs = {task: (comparison.baseline_quality(task), comparison.candidate_quality(task)) for task in tasks}
    return QualitySection(
        rows=rows,
        scores=_scores(rows),
        flips=_flips(rows),
        answers=_answers(pairs),
        facts=tuple(_facts(pairs)),
        headline=tuple(_headline(rows)),
        faults=tuple(_faults(rows)),
        asked_twice=_asked_twice(rows),
    )


def quality_lines(
    evidence: Evidence, verdict: Verdict, *, against: Evidence | None = None, terms: Terms = OWN
) -> tuple[str, ...]:
    """The section in a line or three; none when no task was run."""
    section = quality_section(compare(evidence, against), verdict, terms.suite(evidence.run))
    return () if section is None else section.headline


def _faults(rows: Sequence[TaskRow]) -> Iterator[str]:
    """What broke of each task, or else why its items cannot be compared."""
    for row in rows:
        if not row.pooled:
            yield from (f"{row.task}, {fault}" for fault in row.counts.faults)
            if row.problem is not None and not row.counts.faults:
                yield row.problem


def _table(caption: str, titles: Sequence[str], rows: Sequence[TaskRow], cells: Sequence[tuple[str, ...]]) -> Table:
    """A row for each task, what stands for several set off from them."""
    columns = (Column("task", numeric=False), *(Column(title) for title in titles))
    starts = frozenset(i for i, row in enumerate(rows) if i > 0 and (row.pooled or rows[i - 1].pooled))
    named = tuple((row.task, *values) for row, values in zip(rows, cells, strict=True))
    return Table(caption, columns, named, starts)


def _scores(rows: Sequence[TaskRow]) -> Table:
    titles = ("items paired", "baseline", "candidate", "change", "interval", "allowed", "lost", "gained")
    cells = [
        (
            of_expected(row.counts.paired, row.counts.expected),
            _score(row, row.baseline),
            _score(row, row.candidate),
            show.points(None if row.lost_ratio is None else -row.lost_ratio),
            _points(row.change),
            show.NOT_APPLICABLE if row.margin is None else units.as_written(show.points(-row.margin)),
            _count(row.counts.lost),
            _count(row.counts.gained),
        )
        for row in rows
    ]
    return _table("Scores, items paired by their own id", titles, rows, cells)


def _flips(rows: Sequence[TaskRow]) -> Table:
    """What the baseline does by itself stands here only where it was asked twice."""
    floor = ("baseline's own flips", "beyond its own", "interval") if _asked_twice(rows) else ()
    titles = ("flipped", *floor, "wrong → other wrong", "recovery", "interval of recovery")
    cells = [
        (
            _share(row.counts.discordance_ratio),
            *((_share(row.floor_ratio), _own_points(row.excess), _points(row.excess)) if floor else ()),
            _count(row.counts.other_wrong),
            _share(row.recovery_ratio),
            _percents(row.recovery),
        )
        for row in rows
    ]
    return _table("What flipped, and how much of the baseline's score is left", titles, rows, cells)


def _asked_twice(rows: Sequence[TaskRow]) -> bool:
    return any(row.floor_ratio is not None for row in rows)


def _answers(pairs: Mapping[str, _Pair]) -> Table:
    titles = ("answered", "failed", "empty", "cut by the token limit", "nothing to read", "output tokens, mean")
    columns = (Column("task", numeric=False), Column("arm", numeric=False), *(Column(title) for title in titles))
    rows: list[tuple[str, ...]] = []
    for task, both in pairs.items():
        for arm, observation in zip(Arm, both, strict=True):
            if observation is None:
                rows.append((task, arm.value, show.NOT_MEASURED, *[show.NOT_APPLICABLE] * (len(titles) - 1)))
                continue
            counts = count_answers(observation)
            told = (counts.failed, counts.empty, counts.cut, counts.unread)
            tokens = show.NOT_APPLICABLE if counts.output_tokens is None else show.number(counts.output_tokens)
            answered = of_expected(counts.answered, observation.expected_n)
            rows.append((task, arm.value, answered, *map(_count, told), tokens))
    starts = frozenset(i for i, row in enumerate(rows) if i > 0 and row[0] != rows[i - 1][0])
    return Table("The answers themselves", columns, tuple(rows), starts)


def _facts(pairs: Mapping[str, _Pair]) -> Iterator[tuple[str, str]]:
    """What the harness says of how it asked: once where it is the same everywhere, else of each task and arm."""
    told = {
        (task, arm): _settings(observation)
        for task, both in pairs.items()
        for arm, observation in zip(Arm, both, strict=True)
        if observation is not None
    }
    for name in sorted({name for facts in told.values() for name in facts}):
        values = {place: facts.get(name, show.NOT_APPLICABLE) for place, facts in told.items()}
        if len(set(values.values())) == 1:
            yield name, next(iter(values.values()))
            continue
        by_task = {task: dict.fromkeys(v for (t, _), v in values.items() if t == task) for task in pairs}
        yield name, "; ".join(f"{task}: {' / '.join(found)}" for task, found in by_task.items() if found)


def _settings(observation: QualityObservation) -> dict[str, str]:
    kept = {k: v for k, v in observation.harness.items() if k not in _COUNTS and not k.endswith(_COUNTED)}
    return dict(flatten_json(kept))


def _headline(rows: Sequence[TaskRow]) -> Iterator[str]:
    """The short form: recovery and flips over all tasks, and the task that lost most."""
    whole, tasks = rows[-1], [row for row in rows if not row.pooled]
    if whole.pooled or len(rows) == 1:
        yield from _of_whole(whole, len([row for row in tasks if not row.counts.continuous]))
    lost = [(row.lost_ratio, row) for row in tasks if row.lost_ratio is not None]
    most, worst = max(lost, key=lambda pair: pair[0], default=(0.0, None))
    if worst is not None and most <= 0 and len(tasks) > 1:
        yield "no task scores lower"
    elif worst is not None and len(tasks) > 1:
        limits = f" ({_points(worst.change)})" if worst.change is not None else ""
        yield f"worst task {worst.task}: {show.points(-most)}{limits}"
    stopped = [
        f"{row.task} after {row.counts.paired:,} of {row.counts.expected:,} items" for row in tasks if row.stopped
    ]
    if stopped:
        yield f"stopped early, because harm was certain: {', '.join(stopped)}"


def _of_whole(whole: TaskRow, tasks: int) -> Iterator[str]:
    if whole.recovery_ratio is not None:
        limits = f" ({_percents(whole.recovery)})" if whole.recovery is not None else ""
        over = f"over {tasks} {'task' if tasks == 1 else 'tasks'}" if whole.pooled else f"on {whole.task}"
        yield f"recovery {show.percent(whole.recovery_ratio)}{limits} {over}, {whole.counts.paired:,} items"
    if whole.counts.flips is not None and whole.counts.paired:
        beyond = ""
        if whole.excess is not None:
            beyond = f", {show.points(whole.excess.value)} beyond the baseline's own ({_points(whole.excess)})"
        answers = "1 answer" if whole.counts.flips == 1 else f"{whole.counts.flips:,} answers"
        yield f"{answers} flipped ({show.percent(whole.counts.discordance_ratio)}){beyond}"


def _score(row: TaskRow, value: float | None) -> str:
    """A share of right answers in per cent; any other score as it is."""
    return show.number(value) if row.counts.continuous else show.percent(value)


def _share(ratio: float | None) -> str:
    return show.NOT_APPLICABLE if ratio is None else show.percent(ratio)


def _count(number: int | None) -> str:
    return show.NOT_APPLICABLE if number is None else show.count(number)


def _own_points(estimate: Estimate | None) -> str:
    return show.NOT_APPLICABLE if estimate is None else show.points(estimate.value)


def _points(estimate: Estimate | None) -> str:
    """Both limits, with their signs: `+1.00 to +5.00 points`."""
    if estimate is None:
        return show.NOT_APPLICABLE
    return f"{show.points(estimate.lower).removesuffix(' points')} to {show.points(estimate.upper)}"


def _percents(estimate: Estimate | None) -> str:
    if estimate is None:
        return show.NOT_APPLICABLE
    return f"{show.percent(estimate.lower).removesuffix(' %')} to {show.percent(estimate.upper)}"
