"""The answers part of the report: quality per task, and the shadow comparison."""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.model.records import ShadowItem
from benchgate.model.run import QualityObservation, ShadowObservation
from benchgate.report import show
from benchgate.report.sides import Side, Sides
from benchgate.report.summary import ShadowSummary, TaskSummary, pooled_tasks, summarise_shadow, summarise_task
from benchgate.report.tables import Column, Table

_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class QualitySection:
    """Accuracy per task over the items both sides had scored; `faults` name what broke."""

    table: Table
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt where the baseline agreed with itself and the candidate did not; texts are cut."""

    prompt_id: str
    prompt: str
    baseline: str
    candidate: str


@dataclass(frozen=True, slots=True)
class ShadowSection:
    """How often answers differ. `examples` is empty unless the suite keeps texts."""

    table: Table
    fault: str
    failed: str
    differing: int
    examples: tuple[Example, ...]


def quality_section(sides: Sides) -> QualitySection | None:
    """None when no task was run on either side."""
    names = list(dict.fromkeys(o.task for side in sides for o in side.quality))
    if not names:
        return None
    tasks = [
        summarise_task(name, _observation(sides.baseline, name), _observation(sides.candidate, name)) for name in names
    ]
    rows = [*tasks, pooled_tasks(tasks)] if len(tasks) > 1 else tasks
    columns = ("baseline", "candidate", "lost", "gained", "discordance", "recovery")
    return QualitySection(
        table=Table(
            "Accuracy, items paired by their own id",
            (Column("task", numeric=False), Column("items paired"), *(Column(title) for title in columns)),
            tuple(_task_cells(task) for task in rows),
            starts=frozenset({len(tasks)}) if len(rows) > len(tasks) else frozenset(),
        ),
        faults=tuple(f"{task.task}, {fault}" for task in tasks for fault in task.faults),
    )


def shadow_section(shadow: ShadowObservation | None) -> ShadowSection | None:
    """None when there was no shadow comparison."""
    if shadow is None:
        return None
    summary = summarise_shadow(shadow)
    titles = ("candidate differs from baseline", "baseline differs from itself", "excess")
    return ShadowSection(
        table=Table(
            "Disagreement of normalised answers",
            (Column("prompts answered twice by the baseline"), *(Column(title) for title in titles)),
            (_shadow_cells(summary),),
        ),
        fault=summary.fault or "",
        failed=f"{summary.failed:,} prompts had a call that failed" if summary.failed else "",
        differing=len(summary.differing),
        examples=tuple(_examples(summary)),
    )


def _observation(side: Side, task: str) -> QualityObservation | None:
    return next((o for o in side.quality if o.task == task), None)


def _task_cells(task: TaskSummary) -> tuple[str, ...]:
    return (
        task.task,
        _of_expected(task.paired, task.expected),
        show.percent(task.baseline_ratio),
        show.percent(task.candidate_ratio),
        show.count(task.lost),
        show.count(task.gained),
        show.percent(task.discordance_ratio),
        show.NOT_APPLICABLE if task.recovery_ratio is None else show.percent(task.recovery_ratio),
    )


def _shadow_cells(summary: ShadowSummary) -> tuple[str, ...]:
    return (
        _of_expected(summary.usable, summary.expected),
        show.percent(summary.candidate_ratio),
        show.percent(summary.itself_ratio),
        show.points(summary.excess_ratio),
    )


def _of_expected(found: int, expected: int) -> str:
    return f"{found:,}" if found == expected else f"{found:,} of {expected:,}"


def _examples(summary: ShadowSummary) -> list[Example]:
    ordered = sorted(summary.differing, key=lambda item: item.prompt_id)
    return [example for item in ordered if (example := _example(item)) is not None][:_EXAMPLES]


def _example(item: ShadowItem) -> Example | None:
    if item.prompt_text is None or item.primary_text is None or item.candidate_text is None:
        return None
    return Example(item.prompt_id, _cut(item.prompt_text), _cut(item.primary_text), _cut(item.candidate_text))


def _cut(text: str) -> str:
    if len(text) <= _EXAMPLE_CHARACTERS:
        return text
    return f"{text[:_EXAMPLE_CHARACTERS]}… ({len(text) - _EXAMPLE_CHARACTERS:,} more characters)"
