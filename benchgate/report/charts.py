"""The charts of the load part: TTFT against throughput, goodput, capacity, and what waited.

Every point of a plane says which stage it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from benchgate import units
from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.capacity_section import CapacityPoint, CapacitySection
from benchgate.report.drawing import (
    COLOURS,
    DASHES,
    HEIGHT,
    PAGE_COLOUR,
    Figure,
    Point,
    beside,
    height,
    numbers_table,
    quantitative,
    series,
    short_name,
    stage_spec,
    svg_of,
)
from benchgate.report.load_section import LoadSection, StageRow
from benchgate.report.summary import StageSummary
from benchgate.report.telemetry_section import TelemetrySection


def figures(load: LoadSection | None) -> tuple[Figure, ...]:
    """The charts of the load part: TTFT against throughput, and goodput where the suite has an SLO."""
    if load is None:
        return ()
    drawn = [
        _ttft_figure(load.rows, "p50", lambda s: s.ttft_p50_s),
        _ttft_figure(load.rows, "p95", lambda s: s.ttft_p95_s),
        _goodput_figure(load.rows),
    ]
    return tuple(figure for figure in drawn if figure is not None)


def _ttft_figure(
    rows: Sequence[StageRow], name: str, quantile: Callable[[StageSummary], float | None]
) -> Figure | None:
    measured = [(row, row.summary) for row in rows if row.summary is not None]
    points = [
        Point(row.role, short_name(row.stage), s.output_tokens_per_s, value * 1e3, joined=row.closed_loop)
        for row, s in measured
        if s.output_tokens_per_s is not None and (value := quantile(s)) is not None and math.isfinite(value)
    ]
    if not points:
        return None
    beyond = [f"{row.stage} {row.role.value}" for row, s in measured if quantile(s) == math.inf]
    caption = f"TTFT {name} against output throughput, one point a stage. Lower and further right is better."
    if not all(point.joined for point in points):
        caption += " Stages at a given rate stand alone."
    if beyond:
        caption += f" Not drawn, because too many requests failed: {', '.join(beyond)}."
    numbers = [
        (row.stage, row.role.value, show.number(s.output_tokens_per_s), show.duration(quantile(s)))
        for row, s in measured
    ]
    largest_x = max(point.x for point in points if isinstance(point.x, float))
    x = quantitative("x", "output tokens per second", largest_x * 1.08 or 1.0)
    top = max(point.y for point in points) * 1.2 or 1.0
    spec = stage_spec([*series(points, x, top), *_stage_names(points, x, top)], f"TTFT {name}, ms", top)
    return Figure(
        anchor=f"figure-ttft-{name}",
        caption=caption,
        svg=svg_of(spec, caption),
        numbers=numbers_table(("output tok/s", f"TTFT {name}"), numbers),
    )


def _goodput_figure(rows: Sequence[StageRow]) -> Figure | None:
    measured = [(row, row.summary.goodput_ratio) for row in rows if row.summary is not None]
    points = [
        Point(row.role, short_name(row.stage), short_name(row.stage), r * 100, joined=False)
        for row, r in measured
        if r is not None
    ]
    stages = list(dict.fromkeys(point.stage for point in points))
    named = {short_name(row.stage): row.target_ratio for row in rows}
    targets = {stage: target for stage in stages if (target := named[stage]) is not None}
    if not targets:
        return None
    x: dict[str, object] = {
        "field": "x",
        "type": "ordinal",
        "scale": {"domain": stages, "type": "point", "padding": 0.3},
        "axis": {"title": "stage", "labelAngle": 0, "labelLimit": 80, "titleY": 34, "titlePadding": 0},
    }
    told, layers = _targets(targets, x)
    caption = f"Requests that succeeded and met every SLO, as a share of those scheduled, stage by stage. {told}."
    spec = stage_spec([*layers, *series(points, x, 105.0)], "goodput, %", 105.0)
    numbers = [(row.stage, row.role.value, show.percent(ratio)) for row, ratio in measured]
    return Figure("figure-goodput", caption, svg_of(spec, caption), numbers_table(("goodput",), numbers))


def _targets(targets: Mapping[str, float], x: dict[str, object]) -> tuple[str, list[dict[str, object]]]:
    """A rule across the plot where all stages have one target, else a short line at each; and what it is, in words."""
    if len(set(targets.values())) > 1:
        values = [{"x": stage, "y": ratio * 100} for stage, ratio in targets.items()]
        line = {"type": "tick", "orient": "horizontal", "size": 34, "thickness": 2, "color": PAGE_COLOUR}
        ticks = {"data": {"values": values}, "mark": line, "encoding": {"x": x, "y": height(105.0)}}
        return "The short line of a stage is its own target", [ticks]
    target_ratio = next(iter(targets.values()))
    rule: dict[str, object] = {
        "data": {"values": [{"y": target_ratio * 100}]},
        "mark": {"type": "rule", "color": PAGE_COLOUR, "strokeDash": [2, 3]},
        "encoding": {"y": {"field": "y", "type": "quantitative"}},
    }
    name = beside([("target", HEIGHT * (1 - target_ratio * 100 / 105.0), PAGE_COLOUR)])
    return f"The rule is the target of {units.as_written(show.percent(target_ratio))}", [rule, name]


def capacity_figure(capacity: CapacitySection | None) -> Figure | None:
    """Goodput against load with the limits of every level, the falling fit as a line; None without two levels."""
    points = capacity.points if capacity is not None else ()
    levels = [point.level for point in points]
    if capacity is None or len(set(levels)) < 2:
        return None
    target = units.as_written(show.percent(capacity.target_ratio))
    caption = (
        f"Goodput against {capacity.axis}, with limits; the line is the falling fit, the rule the target of {target}."
    )
    x = quantitative("x", capacity.axis, 0.0)
    x["scale"] = {"type": "log", "domain": [min(levels) / 1.15, max(levels) * 1.15], "nice": False}
    rule: dict[str, object] = {
        "data": {"values": [{"y": capacity.target_ratio * 100}]},
        "mark": {"type": "rule", "color": PAGE_COLOUR, "strokeDash": [2, 3]},
        "encoding": {"y": {"field": "y", "type": "quantitative"}},
    }
    layers = [rule, beside([("target", HEIGHT * (1 - capacity.target_ratio * 100 / 105.0), PAGE_COLOUR)])]
    for arm in Arm:
        layers += _searched(arm, [point for point in points if point.role is arm], x)
    drawn = [Point(p.role, "", p.level, p.share * 100, joined=False) for p in points]
    spec = stage_spec([*layers, *series(drawn, x, 105.0)], "goodput, %", 105.0)
    return Figure("figure-capacity", caption, svg_of(spec, caption), capacity.table)


def timeline_figure(telemetry: TelemetrySection | None) -> Figure | None:
    """Requests waiting, look by look, where a queue was longest; None where none was seen at three looks or more."""
    timeline = None if telemetry is None else telemetry.longest_queue
    if timeline is None:
        return None
    points = [Point(arm, "", at_s, waiting) for arm, at_s, waiting in timeline.looks]
    where = f"stage {short_name(timeline.stage)}, block {timeline.block + 1}"
    caption = f"Requests waiting at the servers in {where}, where the queue was longest."
    x = quantitative("x", "seconds into the stage", max(at_s for _, at_s, _ in timeline.looks) * 1.08)
    top = max(point.y for point in points) * 1.2
    spec = stage_spec(series(points, x, top), "waiting requests", top)
    numbers = [(timeline.stage, arm.value, show.duration(at_s), show.number(y)) for arm, at_s, y in timeline.looks]
    return Figure("figure-queue", caption, svg_of(spec, caption), numbers_table(("into the stage", "waiting"), numbers))


def _searched(arm: Arm, points: Sequence[CapacityPoint], x: dict[str, object]) -> list[dict[str, object]]:
    """The fit through one arm's levels, and the limits of each."""
    fit = [{"x": p.level, "y": p.fitted * 100, "order": i} for i, p in enumerate(points) if p.fitted is not None]
    limits = [{"x": p.level, "y": p.lower * 100, "y2": p.upper * 100} for p in points]
    order = {"field": "order", "type": "quantitative"}
    line = {"type": "line", "color": COLOURS[arm], "strokeWidth": 2, "strokeDash": DASHES[arm]}
    rule = {"type": "rule", "color": COLOURS[arm], "opacity": 0.6}
    return [
        {"data": {"values": fit}, "mark": line, "encoding": {"x": x, "y": height(105.0), "order": order}},
        {"data": {"values": limits}, "mark": rule, "encoding": {"x": x, "y": height(105.0), "y2": {"field": "y2"}}},
    ]


def _stage_names(points: Sequence[Point], x: dict[str, object], top: float) -> list[dict[str, object]]:
    """Every point says which stage it is: the higher of a stage's two above it, the lower below."""
    above = {
        stage: max((p for p in points if p.stage == stage), key=lambda p: p.y) for stage in {p.stage for p in points}
    }
    return [
        {
            "data": {
                "values": [{"x": p.x, "y": p.y, "stage": p.stage} for p in points if (p is above[p.stage]) is over]
            },
            "mark": {"type": "text", "dy": distance, "fontSize": 11, "opacity": 0.75},
            "encoding": {"x": x, "y": height(top), "text": {"field": "stage"}},
        }
        for over, distance in ((True, -12), (False, 14))
    ]
