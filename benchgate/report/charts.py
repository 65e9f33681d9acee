"""Charts: Vega-Lite specifications rendered to SVG that stands inline in the report.

The layout is fixed in pixels and nothing is measured by fonts, so the same numbers give the same bytes on every
machine. Text and axes take the colour of the page; the arms differ by dash and shape as well as by colour, and are
named at the ends of their lines.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import vl_convert

from benchgate import units
from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.load_section import LoadSection, StageRow
from benchgate.report.summary import StageSummary
from benchgate.report.tables import Column, Table
from benchgate.report.untrusted import one_line

_PAGE_COLOUR = "#010203"  # stands for currentColor, which Vega does not know; used for nothing else
_COLOURS = MappingProxyType({Arm.BASELINE: "#7d8796", Arm.CANDIDATE: "#3d7dd8"})  # 3:1 on white and on near-black
_DASHES = MappingProxyType({Arm.BASELINE: [5, 4], Arm.CANDIDATE: [1, 0]})
_SHAPES = MappingProxyType({Arm.BASELINE: "circle", Arm.CANDIDATE: "square"})
_WIDTH, _HEIGHT = 232, 170
_PADDING = MappingProxyType({"left": 44, "right": 72, "top": 32, "bottom": 52})
_LABEL_GAP = 15  # pixels between the names at the right edge
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
        _Point(row.role, _name(row.stage), s.output_tokens_per_s, value * 1e3)
        for row, s in measured
        if s.output_tokens_per_s is not None and (value := quantile(s)) is not None and math.isfinite(value)
    ]
    if not points:
        return None
    beyond = [f"{row.stage} {row.role.value}" for row, s in measured if quantile(s) == math.inf]
    caption = f"TTFT {name} against output throughput, one point a stage. Lower and further right is better."
    if beyond:
        caption += f" Not drawn, because too many requests failed: {', '.join(beyond)}."
    numbers = [
        (row.stage, row.role.value, show.number(s.output_tokens_per_s), show.duration(quantile(s)))
        for row, s in measured
    ]
    largest_x = max(point.x for point in points if isinstance(point.x, float))
    x = _quantitative("x", "output tokens per second", largest_x * 1.08 or 1.0)
    top = max(point.y for point in points) * 1.2 or 1.0
    spec = _spec([*_series(points, x, top), _stage_names(points, x, top)], f"TTFT {name}, ms", top)
    return Figure(
        anchor=f"figure-ttft-{name}",
        caption=caption,
        svg=_svg(spec, caption),
        numbers=_numbers(("output tok/s", f"TTFT {name}"), numbers),
    )


def _goodput_figure(rows: Sequence[StageRow], target_ratio: float | None) -> Figure | None:
    measured = [(row, row.summary.goodput_ratio) for row in rows if row.summary is not None]
    points = [_Point(row.role, _name(row.stage), _name(row.stage), r * 100) for row, r in measured if r is not None]
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
    spec = _spec([rule, *_series(points, x, 105.0, extra={"target": target_ratio * 100})], "goodput, %", 105.0)
    numbers = [(row.stage, row.role.value, show.percent(ratio)) for row, ratio in measured]
    return Figure("figure-goodput", caption, _svg(spec, caption), _numbers(("goodput",), numbers))


def _series(
    points: Sequence[_Point], x: dict[str, object], top: float, *, extra: Mapping[str, float] | None = None
) -> list[dict[str, object]]:
    """A line with points for every arm, and the names at the right edge."""
    layers: list[dict[str, object]] = []
    ends = dict(extra or {})
    for arm in Arm:
        own = [point for point in points if point.arm is arm]
        if not own:
            continue
        ends[arm.value] = own[-1].y
        colour = _COLOURS[arm]
        mark = {"shape": _SHAPES[arm], "size": 60, "filled": True, "color": colour, "opacity": 1}
        layers.append(
            {
                "data": {"values": [{"x": p.x, "y": p.y, "order": i} for i, p in enumerate(own)]},
                "mark": {"type": "line", "color": colour, "strokeWidth": 2, "strokeDash": _DASHES[arm], "point": mark},
                "encoding": {"x": x, "y": _y(top), "order": {"field": "order", "type": "quantitative"}},
            }
        )
    return [*layers, _end_names(ends, top)]


def _end_names(ends: Mapping[str, float], top: float) -> dict[str, object]:
    """Names beside the plot at the height of their lines' ends, moved apart where they would cover each other."""
    placed: list[dict[str, object]] = []
    free = 0.0
    for name, y in sorted(ends.items(), key=lambda item: -item[1]):
        pixel = max(_HEIGHT * (1 - y / top), free)
        placed.append({"name": name, "pixel": round(pixel, 1)})
        free = pixel + _LABEL_GAP
    return {
        "data": {"values": placed},
        "mark": {"type": "text", "align": "left", "baseline": "middle", "x": _WIDTH + 8, "fontSize": 12},
        "encoding": {
            "y": {"field": "pixel", "type": "quantitative", "scale": None, "axis": None},
            "text": {"field": "name"},
        },
    }


def _stage_names(points: Sequence[_Point], x: dict[str, object], top: float) -> dict[str, object]:
    """Each stage is named once, above the higher of its points."""
    highest: dict[str, _Point] = {}
    for point in points:
        if point.stage not in highest or point.y > highest[point.stage].y:
            highest[point.stage] = point
    return {
        "data": {"values": [{"x": p.x, "y": p.y, "stage": p.stage} for p in highest.values()]},
        "mark": {"type": "text", "dy": -12, "fontSize": 11, "opacity": 0.75},
        "encoding": {"x": x, "y": _y(top), "text": {"field": "stage"}},
    }


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
