"""What every chart is drawn with: a Vega-Lite specification rendered to SVG that stands inline in the report.

The layout is fixed in pixels and nothing is measured by fonts, so the same numbers give the same bytes on every
machine. Text and axes take the colour of the page; the arms differ by dash and shape as well as by colour, and are
named beside the plot.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import vl_convert

from benchgate.model.deployment import Arm
from benchgate.report.tables import Column, Table
from benchgate.report.untrusted import one_line

PAGE_COLOUR = "#010203"  # stands for currentColor, which Vega does not know; used for nothing else
COLOURS = MappingProxyType({Arm.BASELINE: "#7d8796", Arm.CANDIDATE: "#3d7dd8"})  # 3:1 on white and on near-black
DASHES = MappingProxyType({Arm.BASELINE: [5, 4], Arm.CANDIDATE: [1, 0]})
_SHAPES = MappingProxyType({Arm.BASELINE: "circle", Arm.CANDIDATE: "square"})
WIDTH, HEIGHT = 232, 170
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
class Point:
    """One value of one arm: across the plot a number or the name of a stage, up it a number."""

    arm: Arm
    stage: str
    x: float | str
    y: float
    joined: bool = True  # a line runs through the stages of one sweep of concurrency, not on to another kind of load


def series(points: Sequence[Point], x: dict[str, object], top: float) -> list[dict[str, object]]:
    """Points for every arm, a line through those that belong together, and what they look like beside the plot."""
    layers: list[dict[str, object]] = []
    for arm in Arm:
        own = [point for point in points if point.arm is arm]
        line = {"type": "line", "color": COLOURS[arm], "strokeWidth": 2, "strokeDash": DASHES[arm]}
        mark = {
            "type": "point",
            "shape": _SHAPES[arm],
            "size": 60,
            "filled": True,
            "color": COLOURS[arm],
            "opacity": 1,
        }
        for drawn, chosen in ((line, [p for p in own if p.joined]), (mark, own)):
            if chosen:
                values = [{"x": p.x, "y": p.y, "order": i} for i, p in enumerate(chosen)]
                encoding = {"x": x, "y": height(top), "order": {"field": "order", "type": "quantitative"}}
                layers.append({"data": {"values": values}, "mark": drawn, "encoding": encoding})
    names = [(arm, i) for i, arm in enumerate(arm for arm in Arm if any(p.arm is arm for p in points))]
    layers += [beside([(arm.value, _LEGEND_TOP + _LABEL_GAP * i, COLOURS[arm])], _SHAPES[arm]) for arm, i in names]
    return layers


def beside(entries: Sequence[tuple[str, float, str]], shape: str | None = None) -> dict[str, object]:
    """Names beside the plot, each (name, pixels from the top, colour); with a shape, the mark they stand for."""
    pixel = {"field": "pixel", "type": "quantitative", "scale": None, "axis": None}
    text = {"type": "text", "align": "left", "baseline": "middle", "x": WIDTH + 16, "fontSize": 12}
    layers: list[dict[str, object]] = [{"mark": text, "encoding": {"y": pixel, "text": {"field": "name"}}}]
    if shape is not None:
        mark = {"type": "point", "shape": shape, "x": WIDTH + 8, "size": 60, "filled": True, "opacity": 1}
        layers.append({"mark": mark | {"color": entries[0][2]}, "encoding": {"y": pixel}})
    return {"data": {"values": [{"name": name, "pixel": round(y, 1)} for name, y, _ in entries]}, "layer": layers}


def stage_spec(layers: list[dict[str, object]], title: str, top: float) -> dict[str, object]:
    """A plot of the usual size from 0 to `top`; its title lies flat above the axis, as a reader reads."""
    # The axis of the first layer is the chart's.
    y_axis = {
        "title": title,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleX": -34,
        "titleY": -18,
        "titleBaseline": "middle",
    }
    first = {"data": {"values": [{"y": 0}]}, "mark": {"type": "point", "opacity": 0, "size": 0}}
    first |= {"encoding": {"y": height(top) | {"axis": y_axis | {"tickCount": 4, "grid": True, "labelOverlap": False}}}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": WIDTH,
        "height": HEIGHT,
        "padding": dict(_PADDING),
        "autosize": {"type": "none"},
        "background": None,
        "layer": [first, *layers],
        "resolve": {"axis": {"y": "shared"}},
        "config": CONFIG,
    }


def height(top: float) -> dict[str, object]:
    """The field `y` up the plot."""
    return {"field": "y", "type": "quantitative", "scale": {"domain": [0, top], "nice": False}}


def quantitative(field: str, title: str, largest: float) -> dict[str, object]:
    """A field across the plot, from 0."""
    return {
        "field": field,
        "type": "quantitative",
        "scale": {"domain": [0, largest], "nice": False},
        "axis": {"title": title, "tickCount": 4, "grid": False, "titleY": 34, "labelOverlap": False},
    }


def svg_of(spec: dict[str, object], label: str) -> str:
    """The drawing with a root element of our own: scaled by the page, named for readers who do not see it."""
    drawn: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    match = re.fullmatch(r"<svg [^>]*?viewBox=\"([0-9. ]+)\"[^>]*>(.*)</svg>\s*", drawn, re.DOTALL)
    assert match is not None, "vl_convert gave no SVG"
    inner = match[2].replace(PAGE_COLOUR, "currentColor")
    return f'<svg class="chart" viewBox="{match[1]}" role="img" aria-label="{html.escape(label)}">{inner}</svg>'


def numbers_table(titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """What a chart of stages draws, as a table; each row begins with stage and arm."""
    columns = (Column("stage", numeric=False), Column("arm", numeric=False), *(Column(title) for title in titles))
    return Table("The numbers drawn", columns, tuple(rows))


def short_name(stage: str) -> str:
    """A name as it fits into a plot."""
    return one_line(stage, _NAME_LENGTH)


_AXIS = {name: PAGE_COLOUR for name in ("labelColor", "titleColor", "tickColor", "domainColor", "gridColor")}
CONFIG: dict[str, object] = {
    "aria": False,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": _AXIS | {"gridOpacity": 0.15, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    "text": {"color": PAGE_COLOUR},
}
