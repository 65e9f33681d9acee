"""What every chart is drawn with: a Vega-Lite specification rendered to SVG that stands inline in the report.

The layout is fixed in pixels and nothing is measured by fonts, so the same numbers give the same bytes on every
machine. Text and axes take the colour of the page; the arms differ by dash and shape as well as by colour, and are
named beside the plot.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import vl_convert

from benchgate.model.deployment import Arm
from benchgate.report.tables import Column, Table
from benchgate.report.untrusted import one_line, visible

PAGE_COLOUR = "#010203"  # stands for currentColor, which Vega does not know; used for nothing else
COLOURS = MappingProxyType({Arm.BASELINE: "#7d8796", Arm.CANDIDATE: "#3d7dd8"})  # 3:1 on white and on near-black
DASHES = MappingProxyType({Arm.BASELINE: [5, 4], Arm.CANDIDATE: [1, 0]})
SHAPES = MappingProxyType({Arm.BASELINE: "circle", Arm.CANDIDATE: "square"})
WIDTH, HEIGHT = 232, 170
_PADDING = MappingProxyType({"left": 44, "right": 84, "top": 32, "bottom": 52})
NAME_LENGTH = 16
TOLD: dict[str, object] = {"aria": True, "description": {"expr": "datum.told"}}
"""Of a mark: what each of its values says in `told` is its title, which a browser shows to whoever points at it."""

# The drawing is one image to who cannot see it, so what Vega says of its parts stays out.
_GROUP_ROLES = re.compile(r' role="graphics-(?:object|symbol)" aria-roledescription="[^"]* container"')
_TOLD_MARK = re.compile(
    r'<path aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"([^>]*?)(?:/>|></path>)'
)
_LABEL_LENGTH = 2000
_LETTER = 6.5  # pixels across
_FEWEST_TICKS, _MOST_TICKS = 3, 6  # of an axis that multiplies


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its words and the numbers it draws. `svg` is safe to stand in HTML as it is."""

    anchor: str
    caption: str
    svg: str
    numbers: Table


def stage_spec(
    layers: Sequence[dict[str, object]],
    title: str,
    top: float,
    *,
    bottom: float = 0.0,
    ticks: Sequence[float] | None = None,
) -> dict[str, object]:
    """A plot of the usual size from `bottom` to `top`; its title lies flat above the axis, as a reader reads."""
    # The axis of the first layer is the chart's.
    y_axis: dict[str, object] = {
        "title": title,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleX": -34,
        "titleY": -18,
        "titleBaseline": "middle",
        "grid": True,
        "labelOverlap": False,
    }
    y_axis |= {"tickCount": 4} if ticks is None else {"values": list(ticks)}
    first = {"data": {"values": [{"y": bottom}]}, "mark": {"type": "point", "opacity": 0, "size": 0}}
    first |= {"encoding": {"y": height(top, bottom) | {"axis": y_axis}}}
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


def height(top: float, bottom: float = 0.0) -> dict[str, object]:
    """The field `y` up the plot."""
    return {"field": "y", "type": "quantitative", "scale": {"domain": [bottom, top], "nice": False}}


def quantitative(title: str, largest: float, *, smallest: float = 0.0, whole: bool = False) -> dict[str, object]:
    """The field `x` across the plot; `whole`: it is a count."""
    axis = {"title": title, "tickCount": 4, "grid": False, "titleY": 34, "labelOverlap": False}
    if whole:
        axis["tickMinStep"] = 1
    return {
        "field": "x",
        "type": "quantitative",
        "scale": {"domain": [smallest, largest], "nice": False, "zero": False},
        "axis": axis,
    }


def multiplied(title: str, smallest: float, largest: float, at: Sequence[float] | None = None) -> dict[str, object]:
    """The field `x` across the plot where equal steps multiply; ticks at 1, 2, 5, 10, or where they are said to be."""
    ticks = list(at) if at is not None else ticks_between(smallest, largest)
    axis = {"title": title, "values": ticks, "grid": False, "titleY": 34, "labelOverlap": False}
    return {
        "field": "x",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [smallest, largest], "nice": False},
        "axis": axis | {"labelExpr": "datum.value"},
    }


def ticks_between(smallest: float, largest: float) -> list[float]:
    """Round numbers from one to the other, both above 0, as few as can be read: the tens, or 1, 3 or 1, 2, 5 of each.

    Where the two lie so close that even those are few, steps that are all alike.
    """
    tens = range(math.floor(math.log10(smallest)), math.ceil(math.log10(largest)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        found = [float(f"{step}e{ten}") for ten in tens for step in steps]
        inside = [tick for tick in found if smallest <= tick <= largest]
        if len(inside) >= _FEWEST_TICKS:
            return inside[:: math.ceil(len(inside) / _MOST_TICKS)]
    widest = (largest - smallest) / _FEWEST_TICKS
    ten = 10.0 ** math.floor(math.log10(widest))
    step = max(size * ten for size in (1, 2, 5) if size * ten <= widest)
    first, last = math.ceil(smallest / step), math.floor(largest / step)
    return [float(f"{at * step:.6g}") for at in range(first, last + 1)]


def named(stages: Sequence[str]) -> dict[str, object]:
    """The field `x` across the plot, one place for each of these names; slanted where they would meet."""
    axis: dict[str, object] = {"title": "stage", "labelAngle": 0, "titleY": 34, "titlePadding": 0}
    if max(map(len, stages)) * len(stages) * _LETTER > WIDTH:
        axis = {"title": None, "labelAngle": -35}
    return {
        "field": "x",
        "type": "ordinal",
        "scale": {"domain": list(stages), "type": "point", "padding": 0.3},
        "axis": axis | {"labelLimit": 0, "labelOverlap": False},
    }


def svg_of(spec: dict[str, object], label: str) -> str:
    """The drawing with a root element of our own: scaled by the page, named for readers who do not see it."""
    drawn = _drawn(json.dumps({key: _drawable(part) for key, part in spec.items()}))
    match = re.fullmatch(r"<svg [^>]*?viewBox=\"(0 0 ([0-9.]+) ([0-9.]+))\"[^>]*>(.*)</svg>\s*", drawn, re.DOTALL)
    assert match is not None, "vl_convert gave no SVG"
    inner = _GROUP_ROLES.sub("", match[4].replace(PAGE_COLOUR, "currentColor"))
    inner = _TOLD_MARK.sub(r"<path\2><title>\1</title></path>", inner)
    size = f'viewBox="{match[1]}" width="{match[2]}" height="{match[3]}"'  # its size where no style is allowed
    return (
        f'<svg class="chart" {size} role="img" aria-label="{html.escape(one_line(label, _LABEL_LENGTH))}">{inner}</svg>'
    )


@lru_cache(maxsize=128)
def _drawn(spec: str) -> str:
    """Most of the time that a report takes; one is often made twice: to be read, and for the hash it is promoted by."""
    svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    return svg


def _drawable(value: object) -> object:
    """A specification in which every text can be seen, whoever wrote it."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {key: _drawable(one) for key, one in value.items()}
    return [_drawable(one) for one in value] if isinstance(value, list | tuple) else value


def numbers_table(of: str, titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """What the chart `of` something draws, as a table; each row begins with stage and arm."""
    columns = (Column("stage", numeric=False), Column("arm", numeric=False), *(Column(title) for title in titles))
    return Table(f"{of}: the numbers drawn", columns, tuple(rows))


def anchors_of(names: Iterable[str]) -> list[str]:
    """The names in letters that need no escaping in a link; a number is added where two would be equal."""
    seen: dict[str, int] = {}
    anchors = []
    for name in names:
        anchor = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")[:80]
        seen[anchor] = seen.get(anchor, 0) + 1
        anchors.append(anchor if seen[anchor] == 1 else f"{anchor}_{seen[anchor]}")
    return anchors


def short_name(stage: str) -> str:
    """A name as it fits into a plot."""
    return one_line(stage, NAME_LENGTH)


_AXIS = {name: PAGE_COLOUR for name in ("labelColor", "titleColor", "tickColor", "domainColor", "gridColor")}
CONFIG: dict[str, object] = {
    "aria": False,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": _AXIS
    | {"gridOpacity": 0.15, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"}
    | {"labelLimit": 0, "titleLimit": 0},  # nothing is cut, and not measuring for it saves a sixth of the time
    "text": {"color": PAGE_COLOUR},
}
