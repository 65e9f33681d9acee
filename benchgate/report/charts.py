"""Charts: Vega-Lite specifications rendered to SVG that stands inline in the report.

The layout is fixed in pixels and nothing is measured by fonts, so the same numbers give the same bytes on every
machine. Text and axes take the colour of the page; the arms differ by dash and shape as well as by colour, and are
named beside the plot; every point of a plane says which stage it is.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import vl_convert

from benchgate import units
from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.capacity_section import CapacityPoint, CapacitySection
from benchgate.report.load_section import LoadSection, StageRow
from benchgate.report.summary import StageSummary
from benchgate.report.tables import Column, Table
from benchgate.report.telemetry_section import TelemetrySection
from benchgate.report.untrusted import one_line

_PAGE_COLOUR = "#010203"  # stands for currentColor, which Vega does not know; used for nothing else
_COLOURS = MappingProxyType({Arm.BASELINE: "#7d8796", Arm.CANDIDATE: "#3d7dd8"})  # 3:1 on white and on near-black
_DASHES = MappingProxyType({Arm.BASELINE: [5, 4], Arm.CANDIDATE: [1, 0]})
_SHAPES = MappingProxyType({Arm.BASELINE: "circle", Arm.CANDIDATE: "square"})
_WIDTH, _HEIGHT = 232, 170
_PADDING = MappingProxyType({"left": 44, "right": 84, "top": 32, "bottom": 52})
_LEGEND_TOP = 90  # pixels: below the names of rules, which stand where their rules are
_LABEL_GAP = 18  # pixels between the names beside the plot
_NAME_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its words and the numbers it draws. `svg` is safe to stand in HTML as it is."""

    anchor: str
    caption: str
    svg: str
    numbers: Table


@dataclass(frozen=True, slots=True)
class _Point:
    arm: Arm
    stage: str
    x: float | str
    y: float
    joined: bool = True  # a line runs through the stages of one sweep of concurrency, not on to another kind of load


def figures(load: LoadSection | None) -> tuple[Figure, ...]:
    """The charts of the load part: TTFT against throughput, and goodput where the suite has an SLO."""
    if load is None:
        return ()
    drawn = [
        _ttft_figure(load.rows, "p50", lambda s: s.ttft_p50_s),
        _ttft_figure(load.rows, "p95", lambda s: s.ttft_p95_s),
        _goodput_figure(load.rows, load.slo_target_ratio),
    ]
    return tuple(figure for figure in drawn if figure is not None)


def _ttft_figure(
    rows: Sequence[StageRow], name: str, quantile: Callable[[StageSummary], float | None]
) -> Figure | None:
    measured = [(row, row.summary) for row in rows if row.summary is not None]
    points = [
        _Point(row.role, _name(row.stage), s.output_tokens_per_s, value * 1e3, joined=row.closed_loop)
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
    x = _quantitative("x", "output tokens per second", largest_x * 1.08 or 1.0)
    top = max(point.y for point in points) * 1.2 or 1.0
    spec = _spec([*_series(points, x, top), *_stage_names(points, x, top)], f"TTFT {name}, ms", top)
    return Figure(
        anchor=f"figure-ttft-{name}",
        caption=caption,
        svg=_svg(spec, caption),
        numbers=_numbers(("output tok/s", f"TTFT {name}"), numbers),
    )


def _goodput_figure(rows: Sequence[StageRow], target_ratio: float | None) -> Figure | None:
    measured = [(row, row.summary.goodput_ratio) for row in rows if row.summary is not None]
    points = [
        _Point(row.role, _name(row.stage), _name(row.stage), r * 100, joined=False)
        for row, r in measured
        if r is not None
    ]
    if not points or target_ratio is None:
        return None
    caption = (
        "Requests that succeeded and met every SLO, as a share of those scheduled, stage by stage. "
        f"The rule is the target of {units.as_written(show.percent(target_ratio))}."
    )
    stages = list(dict.fromkeys(point.stage for point in points))
    x: dict[str, object] = {
        "field": "x",
        "type": "ordinal",
        "scale": {"domain": stages, "type": "point", "padding": 0.3},
        "axis": {"title": "stage", "labelAngle": 0, "labelLimit": 80, "titleY": 34, "titlePadding": 0},
    }
    rule: dict[str, object] = {
        "data": {"values": [{"y": target_ratio * 100}]},
        "mark": {"type": "rule", "color": _PAGE_COLOUR, "strokeDash": [2, 3]},
        "encoding": {"y": {"field": "y", "type": "quantitative"}},
    }
    target = _beside([("target", _HEIGHT * (1 - target_ratio * 100 / 105.0), _PAGE_COLOUR)])
    spec = _spec([rule, target, *_series(points, x, 105.0)], "goodput, %", 105.0)
    numbers = [(row.stage, row.role.value, show.percent(ratio)) for row, ratio in measured]
    return Figure("figure-goodput", caption, _svg(spec, caption), _numbers(("goodput",), numbers))


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
    x = _quantitative("x", capacity.axis, 0.0)
    x["scale"] = {"type": "log", "domain": [min(levels) / 1.15, max(levels) * 1.15], "nice": False}
    rule: dict[str, object] = {
        "data": {"values": [{"y": capacity.target_ratio * 100}]},
        "mark": {"type": "rule", "color": _PAGE_COLOUR, "strokeDash": [2, 3]},
        "encoding": {"y": {"field": "y", "type": "quantitative"}},
    }
    layers = [rule, _beside([("target", _HEIGHT * (1 - capacity.target_ratio * 100 / 105.0), _PAGE_COLOUR)])]
    for arm in Arm:
        layers += _searched(arm, [point for point in points if point.role is arm], x)
    drawn = [_Point(p.role, "", p.level, p.share * 100, joined=False) for p in points]
    spec = _spec([*layers, *_series(drawn, x, 105.0)], "goodput, %", 105.0)
    return Figure("figure-capacity", caption, _svg(spec, caption), capacity.table)


def timeline_figure(telemetry: TelemetrySection | None) -> Figure | None:
    """Requests waiting, look by look, where a queue was longest; None where none was seen at three looks or more."""
    timeline = None if telemetry is None else telemetry.longest_queue
    if timeline is None:
        return None
    points = [_Point(arm, "", at_s, waiting) for arm, at_s, waiting in timeline.looks]
    where = f"stage {_name(timeline.stage)}, block {timeline.block + 1}"
    caption = f"Requests waiting at the servers in {where}, where the queue was longest."
    x = _quantitative("x", "seconds into the stage", max(at_s for _, at_s, _ in timeline.looks) * 1.08)
    top = max(point.y for point in points) * 1.2
    spec = _spec(_series(points, x, top), "waiting requests", top)
    numbers = [(timeline.stage, arm.value, show.duration(at_s), show.number(y)) for arm, at_s, y in timeline.looks]
    return Figure("figure-queue", caption, _svg(spec, caption), _numbers(("into the stage", "waiting"), numbers))


def _searched(arm: Arm, points: Sequence[CapacityPoint], x: dict[str, object]) -> list[dict[str, object]]:
    """The fit through one arm's levels, and the limits of each."""
    fit = [{"x": p.level, "y": p.fitted * 100, "order": i} for i, p in enumerate(points) if p.fitted is not None]
    limits = [{"x": p.level, "y": p.lower * 100, "y2": p.upper * 100} for p in points]
    order = {"field": "order", "type": "quantitative"}
    line = {"type": "line", "color": _COLOURS[arm], "strokeWidth": 2, "strokeDash": _DASHES[arm]}
    rule = {"type": "rule", "color": _COLOURS[arm], "opacity": 0.6}
    return [
        {"data": {"values": fit}, "mark": line, "encoding": {"x": x, "y": _y(105.0), "order": order}},
        {"data": {"values": limits}, "mark": rule, "encoding": {"x": x, "y": _y(105.0), "y2": {"field": "y2"}}},
    ]


def _series(points: Sequence[_Point], x: dict[str, object], top: float) -> list[dict[str, object]]:
    """Points for every arm, a line through those that belong together, and what they look like beside the plot."""
    layers: list[dict[str, object]] = []
    for arm in Arm:
        own = [point for point in points if point.arm is arm]
        line = {"type": "line", "color": _COLOURS[arm], "strokeWidth": 2, "strokeDash": _DASHES[arm]}
        mark = {
            "type": "point",
            "shape": _SHAPES[arm],
            "size": 60,
            "filled": True,
            "color": _COLOURS[arm],
            "opacity": 1,
        }
        for drawn, chosen in ((line, [p for p in own if p.joined]), (mark, own)):
            if chosen:
                values = [{"x": p.x, "y": p.y, "order": i} for i, p in enumerate(chosen)]
                encoding = {"x": x, "y": _y(top), "order": {"field": "order", "type": "quantitative"}}
                layers.append({"data": {"values": values}, "mark": drawn, "encoding": encoding})
    names = [(arm, i) for i, arm in enumerate(arm for arm in Arm if any(p.arm is arm for p in points))]
    layers += [_beside([(arm.value, _LEGEND_TOP + _LABEL_GAP * i, _COLOURS[arm])], _SHAPES[arm]) for arm, i in names]
    return layers


def _beside(entries: Sequence[tuple[str, float, str]], shape: str | None = None) -> dict[str, object]:
    """Names beside the plot, each (name, pixels from the top, colour); with a shape, the mark they stand for."""
    pixel = {"field": "pixel", "type": "quantitative", "scale": None, "axis": None}
    text = {"type": "text", "align": "left", "baseline": "middle", "x": _WIDTH + 16, "fontSize": 12}
    layers: list[dict[str, object]] = [{"mark": text, "encoding": {"y": pixel, "text": {"field": "name"}}}]
    if shape is not None:
        mark = {"type": "point", "shape": shape, "x": _WIDTH + 8, "size": 60, "filled": True, "opacity": 1}
        layers.append({"mark": mark | {"color": entries[0][2]}, "encoding": {"y": pixel}})
    return {"data": {"values": [{"name": name, "pixel": round(y, 1)} for name, y, _ in entries]}, "layer": layers}


def _stage_names(points: Sequence[_Point], x: dict[str, object], top: float) -> list[dict[str, object]]:
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
            "encoding": {"x": x, "y": _y(top), "text": {"field": "stage"}},
        }
        for over, distance in ((True, -12), (False, 14))
    ]


def _spec(layers: list[dict[str, object]], title: str, top: float) -> dict[str, object]:
    # The axis of the first layer is the chart's; its title lies flat above it, as a reader reads.
    y_axis = {
        "title": title,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleX": -34,
        "titleY": -18,
        "titleBaseline": "middle",
    }
    first = {"data": {"values": [{"y": 0}]}, "mark": {"type": "point", "opacity": 0, "size": 0}}
    first |= {"encoding": {"y": _y(top) | {"axis": y_axis | {"tickCount": 4, "grid": True, "labelOverlap": False}}}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": _WIDTH,
        "height": _HEIGHT,
        "padding": dict(_PADDING),
        "autosize": {"type": "none"},
        "background": None,
        "layer": [first, *layers],
        "resolve": {"axis": {"y": "shared"}},
        "config": _CONFIG,
    }


def _y(top: float) -> dict[str, object]:
    return {"field": "y", "type": "quantitative", "scale": {"domain": [0, top], "nice": False}}


def _quantitative(field: str, title: str, largest: float) -> dict[str, object]:
    return {
        "field": field,
        "type": "quantitative",
        "scale": {"domain": [0, largest], "nice": False},
        "axis": {"title": title, "tickCount": 4, "grid": False, "titleY": 34, "labelOverlap": False},
    }


def _svg(spec: dict[str, object], label: str) -> str:
    """The drawing with a root element of our own: scaled by the page, named for readers who do not see it."""
    drawn: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    match = re.fullmatch(r"<svg [^>]*?viewBox=\"([0-9. ]+)\"[^>]*>(.*)</svg>\s*", drawn, re.DOTALL)
    assert match is not None, "vl_convert gave no SVG"
    inner = match[2].replace(_PAGE_COLOUR, "currentColor")
    return f'<svg class="chart" viewBox="{match[1]}" role="img" aria-label="{html.escape(label)}">{inner}</svg>'


def _numbers(titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    columns = (Column("stage", numeric=False), Column("arm", numeric=False), *(Column(title) for title in titles))
    return Table("The numbers drawn", columns, tuple(rows))


def _name(stage: str) -> str:
    return one_line(stage, _NAME_LENGTH)


_AXIS = {name: _PAGE_COLOUR for name in ("labelColor", "titleColor", "tickColor", "domainColor", "gridColor")}
_CONFIG: dict[str, object] = {
    "aria": False,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": _AXIS | {"gridOpacity": 0.15, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    "text": {"color": _PAGE_COLOUR},
}
