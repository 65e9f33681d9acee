"""The quality section: each task's paired difference as table and forest plot, flips, answers and harness settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from benchgate import units
from benchgate.escape import one_line
from benchgate.gate.comparison import Comparison
from benchgate.model.deployment import Arm, flatten_json
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import Verdict
from benchgate.report import charts, display
from benchgate.report.charts import Figure, Spec
from benchgate.report.section import Charts, Facts, Fold, Lines, Section, Style, notes, present
from benchgate.report.sections.tasks import Estimate, TaskRow, count_answers, task_rows
from benchgate.report.table import Table, group_starts, number_columns, of_expected, text_columns
from benchgate.suite.quality import stage_of_task
from benchgate.suite.schema import Suite

_COUNTERS = frozenset({"null_answers", "retries", "stopped_early"})
_COUNTER_ENDINGS = ("_s", "_bytes", "_count")
"""Harness entries that count something; all others are settings."""
_SCORES_NOTE = (
    "Lost: only the baseline was right. Gained: only the candidate was right. Intervals are those of the task's check; "
    "a task with nothing under “allowed” has no check of its own against the baseline. “All tasks” weighs each task "
    "equally."
)
_FLIPS_NOTE = (
    "Flipped: lost or gained. {floor} Wrong → other wrong: both wrong, with different answers. Recovery: candidate's "
    "score / baseline's score."
)
_REPEATED = "Baseline's own flips: between its two answers to the same item."
_NOT_REPEATED = "The baseline answered once, so its own flips are unknown (`repeat_baseline` repeats it)."
_MAX_ROWS = 40
_ROW_HEIGHT = 26
_FOREST_WIDTH = 300
_FOREST_PADDING = {"left": 176, "right": 24, "top": 14, "bottom": 46}
_NAME_LENGTH = 26
_ROOM = 0.06  # of the span, beyond the farthest end

_Pair = tuple[QualityObservation | None, QualityObservation | None]


def quality_section(comparison: Comparison, verdict: Verdict, suite: Suite) -> Section | None:
    """Return the section; None when no task was run on either side."""
    rows = task_rows(comparison, verdict, suite)
    if not rows:
        return None
    tasks = [row.task for row in rows if not row.pooled]
    pairs = {task: (comparison.baseline_quality(task), comparison.candidate_quality(task)) for task in tasks}
    scores = scores_table(rows)
    headline, faults = tuple(headline_of(rows)), tuple(_faults(rows))
    figure = forest_figure(rows, scores)
    facts = tuple(harness_facts(pairs))
    floor = _REPEATED if _baseline_repeated(rows) else _NOT_REPEATED
    parts = present(
        Lines(faults, Style.FAULTS),
        Lines(headline),
        scores if figure is None else Charts((figure,), show_numbers=True),
        notes(_SCORES_NOTE),
        flips_table(rows),
        notes(_FLIPS_NOTE.format(floor=floor)),
        _answers(pairs),
        Fold("Harness settings", (Facts(facts),)) if facts else None,
    )
    return Section(
        "quality", "Accuracy", parts, summary=present(scores, Lines((*headline, *faults))), lines=headline, rank=3
    )


def _faults(rows: Sequence[TaskRow]) -> Iterator[str]:
    """Yield each task's faults, or else why its items cannot be compared."""
    for row in rows:
        if not row.pooled:
            yield from (f"{row.task}, {fault}" for fault in row.counts.faults)
            if row.problem is not None and not row.counts.faults:
                yield row.problem


def _task_table(
    caption: str, titles: Sequence[str], rows: Sequence[TaskRow], cells: Sequence[tuple[str, ...]]
) -> Table:
    """Return a table with a row for each task, pooled rows set off from them."""
    columns = (*text_columns("task"), *number_columns(*titles))
    starts = frozenset(i for i, row in enumerate(rows) if i > 0 and (row.pooled or rows[i - 1].pooled))
    return Table(caption, columns, tuple((row.task, *own) for row, own in zip(rows, cells, strict=True)), starts)


def scores_table(rows: Sequence[TaskRow]) -> Table:
    """Return scores, change and allowed change of each task."""
    titles = ("items paired", "baseline", "candidate", "change", "interval", "allowed", "lost", "gained")
    cells = [
        (
            of_expected(row.counts.paired, row.counts.expected),
            _score(row, row.baseline),
            _score(row, row.candidate),
            row.shown(None if row.lost_ratio is None else -row.lost_ratio),
            row.shown_limits,
            display.NOT_APPLICABLE if row.margin is None else units.as_written(display.points, -row.margin),
            _count(row.counts.lost),
            _count(row.counts.gained),
        )
        for row in rows
    ]
    return _task_table("Scores, items paired by id", titles, rows, cells)


def flips_table(rows: Sequence[TaskRow]) -> Table:
    """Return flips and recovery of each task; the baseline's own flips only where it was repeated."""
    none = display.NOT_APPLICABLE
    floor = ("baseline's own flips", "beyond its own", "interval") if _baseline_repeated(rows) else ()
    titles = ("flipped", *floor, "wrong → other wrong", "recovery", "interval of recovery")
    cells = []
    for row in rows:
        excess = none if row.excess is None else display.points(row.excess.value)
        cells.append(
            (
                _share(row.counts.flipped_ratio),
                *((_share(row.floor_ratio), excess, _point_limits(row.excess)) if floor else ()),
                _count(row.counts.other_wrong),
                _share(row.recovery_ratio),
                _percent_limits(row.recovery),
            )
        )
    return _task_table("Flipped answers and recovery", titles, rows, cells)


def _baseline_repeated(rows: Sequence[TaskRow]) -> bool:
    return any(row.floor_ratio is not None for row in rows)


def _answers(pairs: Mapping[str, _Pair]) -> Table:
    titles = ("answered", "failed", "empty", "token limit reached", "unparsable", "output tokens, mean")
    rows: list[tuple[str, ...]] = []
    for task, both in pairs.items():
        for arm, observation in zip(Arm, both, strict=True):
            if observation is None:
                rows.append((task, arm.value, display.NOT_MEASURED, *[display.NOT_APPLICABLE] * (len(titles) - 1)))
                continue
            counts = count_answers(observation)
            numbers = map(_count, (counts.failed, counts.empty, counts.cut, counts.unread))
            tokens = display.NOT_APPLICABLE if counts.output_tokens is None else display.number(counts.output_tokens)
            rows.append((task, arm.value, of_expected(counts.answered, observation.expected_n), *numbers, tokens))
    columns = (*text_columns("task", "arm"), *number_columns(*titles))
    return Table("Answers by task", columns, tuple(rows), group_starts([row[0] for row in rows]))


def harness_facts(pairs: Mapping[str, _Pair]) -> Iterator[tuple[str, str]]:
    """Yield the harness settings: once where they are the same everywhere, else by task and arm."""
    settings = {
        (task, arm): dict(
            flatten_json(
                {
                    name: value
                    for name, value in observation.harness.items()
                    if name not in _COUNTERS and not name.endswith(_COUNTER_ENDINGS)
                }
            )
        )
        for task, both in pairs.items()
        for arm, observation in zip(Arm, both, strict=True)
        if observation is not None
    }
    for name in sorted({name for own in settings.values() for name in own}):
        values = {place: own.get(name, display.NOT_APPLICABLE) for place, own in settings.items()}
        if len(set(values.values())) == 1:
            yield name, next(iter(values.values()))
            continue
        by_task = {task: dict.fromkeys(v for (t, _), v in values.items() if t == task) for task in pairs}
        yield name, "; ".join(f"{task}: {' / '.join(found)}" for task, found in by_task.items() if found)


def headline_of(rows: Sequence[TaskRow]) -> Iterator[str]:
    """Yield the short form: recovery and flips over all tasks, the task that lost most, and early stops."""
    tasks = [row for row in rows if not row.pooled]
    alone = [row for row in rows if stage_of_task(row.task) is None]
    if alone and (alone[-1].pooled or len(alone) == 1):
        yield from _whole_lines(alone[-1], sum(not (row.pooled or row.counts.continuous) for row in alone))
    lost = [(row.lost_ratio, row) for row in tasks if row.lost_ratio is not None]
    most, worst = max(lost, key=lambda pair: pair[0], default=(0.0, None))
    if worst is not None and most <= 0 and len(tasks) > 1:
        yield "no task scores lower" if len(lost) == len(tasks) else "no task that could be compared scores lower"
    elif worst is not None and len(tasks) > 1:
        limits = f" ({worst.shown_limits})" if worst.change is not None else ""
        yield f"worst task {worst.task}: {worst.shown(-most)}{limits}"
    if unknown := [row.task for row in tasks if row.lost_ratio is None]:
        yield f"not compared: {', '.join(unknown)}"
    stopped = [
        f"{row.task} after {row.counts.paired:,} of {row.counts.expected:,} items" for row in tasks if row.stopped
    ]
    if stopped:
        yield f"stopped early, because a regression was certain: {', '.join(stopped)}"


def _whole_lines(whole: TaskRow, tasks: int) -> Iterator[str]:
    if whole.recovery_ratio is not None:
        limits = f" ({_percent_limits(whole.recovery)})" if whole.recovery is not None else ""
        over = f"over {tasks} {'task' if tasks == 1 else 'tasks'}" if whole.pooled else f"on {whole.task}"
        yield f"recovery {display.percent(whole.recovery_ratio)}{limits} {over}, {whole.counts.paired:,} items"
    flips, ratio = whole.counts.flips, whole.counts.flipped_ratio
    if flips is not None and ratio is not None:
        beyond = ""
        if whole.excess is not None:
            points, limits = display.points(whole.excess.value), _point_limits(whole.excess)
            beyond = f", {points} beyond the baseline's own ({limits})"
        answers = "1 answer" if flips == 1 else f"{flips:,} answers"
        mean = "" if math.isclose(flips / whole.counts.paired, ratio) else ", the mean of the tasks"
        yield f"{answers} flipped ({display.percent(ratio)}{mean}){beyond}"


def _score(row: TaskRow, value: float | None) -> str:
    """Return a share of right answers in per cent, any other score as it is."""
    return display.number(value) if row.counts.continuous else display.percent(value)


def _share(ratio: float | None) -> str:
    return display.NOT_APPLICABLE if ratio is None else display.percent(ratio)


def _count(number: int | None) -> str:
    return display.NOT_APPLICABLE if number is None else display.count(number)


def _point_limits(estimate: Estimate | None) -> str:
    """`+1.00 to +5.00 points`."""
    if estimate is None:
        return display.NOT_APPLICABLE
    return f"{display.points(estimate.lower).removesuffix(' points')} to {display.points(estimate.upper)}"


def _percent_limits(estimate: Estimate | None) -> str:
    if estimate is None:
        return display.NOT_APPLICABLE
    return f"{display.percent(estimate.lower).removesuffix(' %')} to {display.percent(estimate.upper)}"


# The forest plot.


def forest_figure(rows: Sequence[TaskRow], scores: Table) -> Figure | None:
    """Return every task's paired difference with its interval and margin; None where no task has an interval."""
    drawn = [row for row in rows if row.change is not None]
    if not drawn:
        return None
    shown = drawn
    if len(drawn) > _MAX_ROWS:
        tasks = [row for row in drawn if not row.pooled]
        tasks.sort(key=lambda row: row.change.value if row.change else 0.0)
        shown = [*tasks[: _MAX_ROWS - 1], *(row for row in drawn if row.pooled)]
    caption = "Candidate minus baseline over the same items; left is worse."
    if any(row.margin is not None for row in shown):
        caption += " Short line: margin."
    if any(row.pooled for row in shown):
        caption += " Diamond: all tasks, equally weighted."
    missing = [row.task for row in rows if row.change is None]
    if missing:
        caption += f" Not drawn, because there is no interval: {', '.join(missing)}."
    if len(shown) < len(drawn):
        caption += f" The {len(shown)} of {len(drawn)} rows with the largest losses are drawn."
    last = shown[-1]
    change = last.shown(last.change.value if last.change is not None else None)
    title = f"Change of the score, {last.task}: {change} ({last.shown_limits})"
    return Figure("figure-quality", title, caption, _forest_spec(shown), "", scores)


def _forest_spec(rows: Sequence[TaskRow]) -> Spec:
    values = [_forest_row(i, row) for i, row in enumerate(rows)]
    judged = [v for v in values if v["margin"] is not None]
    ends = [
        0.0,
        *(float(str(v[key])) for v in values for key in ("low", "high")),
        *(float(str(v["margin"])) for v in judged),
    ]
    room = _ROOM * (max(ends) - min(ends)) or 1.0
    x = {"type": "quantitative", "scale": {"domain": [min(ends) - room, max(ends) + room], "nice": False}}
    axis = {"title": "change, points", "tickCount": 5, "grid": True, "titleY": 32, "labelOverlap": False}
    y = {"field": "row", "type": "ordinal", "axis": None, "scale": {"paddingInner": 0.2, "paddingOuter": 0.1}}
    colour = charts.COLOURS[Arm.CANDIDATE]
    zero: Spec = {"type": "rule", "color": charts.PAGE_COLOUR, "opacity": 0.6}
    names: Spec = {"type": "text", "align": "right", "baseline": "middle", "x": -10, "fontSize": 12}
    upright: Spec = {"type": "tick", "orient": "vertical", "size": 20, "thickness": 2, "color": charts.PAGE_COLOUR}
    bar: Spec = {"type": "rule", "color": colour, "strokeWidth": 3}
    point: Spec = {"type": "point", "filled": True, "size": 90, "opacity": 1, "color": colour} | charts.TITLED
    layers = [
        charts.layer(zero, [{"zero": 0}], x={"field": "zero"} | x | {"axis": axis}),
        charts.layer(names, values, y=y, text={"field": "name"}),
        charts.layer(upright, judged, y=y, x={"field": "margin"} | x),
        charts.layer(bar, values, y=y, x={"field": "low"} | x, x2={"field": "high"}),
    ]
    for pooled, shape in ((False, "square"), (True, "diamond")):
        own = [v for v in values if v["pooled"] is pooled]
        layers.append(charts.layer(point | {"shape": shape}, own, y=y, x={"field": "value"} | x))
    height = _ROW_HEIGHT * len(rows)
    return charts.chart_spec(layers, width=_FOREST_WIDTH, height=height, padding=_FOREST_PADDING, data=values)


def _forest_row(number: int, row: TaskRow) -> Spec:
    """Return a row in points; the margin lies on the side of the losses."""
    change = row.change
    assert change is not None, "only rows with an interval are drawn"
    value, low, high = (round(ratio * 100, 4) for ratio in (change.value, change.lower, change.upper))
    return {
        "row": number,
        "name": one_line(row.task, _NAME_LENGTH),
        "value": value,
        "low": low,
        "high": high,
        "margin": None if row.margin is None else round(-row.margin * 100, 4),
        "pooled": row.pooled,
        "title": one_line(f"{row.task}: {row.shown(change.value)} ({row.shown_limits})"),
    }
