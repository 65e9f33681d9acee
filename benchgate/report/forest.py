"""The forest plot of the quality part: every task's paired difference with its interval, beside what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.drawing import COLOURS, CONFIG, PAGE_COLOUR, TOLD, Figure, svg_of
from benchgate.report.quality_section import QualitySection
from benchgate.report.task_rows import Estimate, TaskRow
from benchgate.report.untrusted import one_line

_MOST_ROWS = 40
_ROW_HEIGHT = 26
_WIDTH = 300
_PADDING = {"left": 176, "right": 24, "top": 14, "bottom": 46}
_NAME_LENGTH = 26
_ROOM = 0.06  # of the span, beyond the farthest end


def forest_figure(quality: QualitySection | None) -> Figure | None:
    """One row a task and one for all of them; None where no task has an interval."""
    drawn = [row for row in quality.rows if row.change is not None] if quality is not None else []
    if quality is None or not drawn:
        return None
    shown = _most_telling(drawn)
    caption = (
        "Change of each task's score, the candidate's minus the baseline's over the same items, with its interval. "
        "Further left is worse; the rule is no change."
    )
    if any(row.margin is not None for row in shown):
        caption += " The short upright line of a row is the most that may be lost there."
    if any(row.pooled for row in shown):
        caption += " A diamond stands for several tasks together, each of the same weight."
    missing = [row.task for row in quality.rows if row.change is None]
    if missing:
        caption += f" Not drawn, because there is no interval: {', '.join(missing)}."
    if len(shown) < len(drawn):
        caption += f" Of {len(drawn)} rows the {len(shown)} with the largest losses are drawn."
    return Figure("figure-quality", caption, svg_of(_spec(shown), caption), quality.scores)


def _most_telling(rows: Sequence[TaskRow]) -> list[TaskRow]:
    """All of them in their order, or those that lost most and what stands for all together."""
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    tasks = sorted((row for row in rows if not row.pooled), key=lambda row: row.change.value if row.change else 0.0)
    return [*tasks[: _MOST_ROWS - 1], *(row for row in rows if row.pooled)]


def _spec(rows: Sequence[TaskRow]) -> dict[str, object]:
    values = [_values(i, row) for i, row in enumerate(rows)]
    ends = [0.0, *(end for row in rows for end in _ends(row))]
    room = _ROOM * (max(ends) - min(ends)) or 1.0
    x = {"type": "quantitative", "scale": {"domain": [min(ends) - room, max(ends) + room], "nice": False}}
    axis = {"title": "change, points", "tickCount": 5, "grid": True, "titleY": 32, "labelOverlap": False}
    row = {"field": "row", "type": "ordinal", "axis": None, "scale": {"paddingInner": 0.2, "paddingOuter": 0.1}}
    colour = COLOURS[Arm.CANDIDATE]
    names = {"type": "text", "align": "right", "baseline": "middle", "x": -10, "fontSize": 12}
    upright = {"type": "tick", "orient": "vertical", "size": 20, "thickness": 2, "color": PAGE_COLOUR}
    layers: list[dict[str, object]] = [
        {
            "data": {"values": [{"zero": 0}]},
            "mark": {"type": "rule", "color": PAGE_COLOUR, "opacity": 0.6},
            "encoding": {"x": {"field": "zero"} | x | {"axis": axis}},
        },
        {"mark": names, "encoding": {"y": row, "text": {"field": "name"}}},
        _layer(upright, [v for v in values if v["margin"] is not None], row, {"field": "margin"} | x),
        _layer({"type": "rule", "color": colour, "strokeWidth": 3}, values, row, {"field": "low"} | x, "high"),
    ]
    for pooled, shape in ((False, "square"), (True, "diamond")):
        mark = {"type": "point", "shape": shape, "filled": True, "size": 90, "opacity": 1, "color": colour} | TOLD
        layers.append(_layer(mark, [v for v in values if v["pooled"] is pooled], row, {"field": "value"} | x))
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": _WIDTH,
        "height": _ROW_HEIGHT * len(rows),
        "padding": dict(_PADDING),
        "autosize": {"type": "none"},
        "background": None,
        "data": {"values": values},
        "layer": [layer for layer in layers if layer],
        "config": CONFIG,
    }


def _layer(
    mark: dict[str, object], values: list[dict[str, object]], row: object, x: object, until: str | None = None
) -> dict[str, object]:
    """One kind of mark over some rows; empty without any."""
    if not values:
        return {}
    encoding = {"y": row, "x": x} | ({"x2": {"field": until}} if until is not None else {})
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def _ends(row: TaskRow) -> Iterator[float]:
    """In points."""
    if row.change is not None:
        yield _drawn(row.change.lower)
        yield _drawn(row.change.upper)
    if row.margin is not None:
        yield _drawn(-row.margin)


def _drawn(ratio: float) -> float:
    """In points, and no finer than anyone sees: the last bits differ between machines."""
    return round(ratio * 100, 4)


def _values(number: int, row: TaskRow) -> dict[str, object]:
    """A row in points; the margin lies on the side of the losses."""
    assert row.change is not None, "only rows with an interval are drawn"
    return {
        "row": number,
        "name": one_line(row.task, _NAME_LENGTH),
        "value": _drawn(row.change.value),
        "low": _drawn(row.change.lower),
        "high": _drawn(row.change.upper),
        "margin": None if row.margin is None else _drawn(-row.margin),
        "pooled": row.pooled,
        "told": _told(row.task, row.change),
    }


def _told(task: str, change: Estimate) -> str:
    """What stands of a row in the table, for whoever points at it."""
    low, high = show.points(change.lower), show.points(change.upper)
    return one_line(f"{task}: {show.points(change.value)} ({low} to {high})")
