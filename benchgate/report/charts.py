"""The chart builder: Vega-Lite specifications of fixed layout, rendered to SVG that stands inline in a page.

Sizes are fixed in pixels and no font is measured, so the same numbers give the same bytes on every machine. Text and
axes take the page's colour. Arms differ by dash and shape as well as by colour, and are named beside the plot.
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

from benchgate.escape import one_line, visible
from benchgate.model.deployment import Arm
from benchgate.report.table import Column, Table

Spec = dict[str, object]

PAGE_COLOUR = "#010203"  # stands for currentColor, which Vega does not know; used for nothing else
COLOURS = MappingProxyType({Arm.BASELINE: "#7d8796", Arm.CANDIDATE: "#3d7dd8"})  # 3:1 on white and on near-black
DASHES = MappingProxyType({Arm.BASELINE: [5, 4], Arm.CANDIDATE: [1, 0]})
SHAPES = MappingProxyType({Arm.BASELINE: "circle", Arm.CANDIDATE: "square"})
WIDTH, HEIGHT = 232, 170
PADDING: Mapping[str, int] = MappingProxyType({"left": 44, "right": 84, "top": 32, "bottom": 52})
PERCENT_TOP = 105.0  # of an axis in per cent, with room above 100
NAME_LENGTH = 16
TITLED: Spec = {"aria": True, "description": {"expr": "datum.title"}}
"""Added to a mark whose values have a `title`: browsers show it on hover."""
DOTTED: Spec = {"color": PAGE_COLOUR, "strokeDash": [2, 3]}
HIDDEN_POINT: Spec = {"type": "point", "opacity": 0, "size": 0}

# A drawing is one image to a screen reader, so Vega's descriptions of its parts are removed, and so is what a browser
# draws without: frames of no size, attributes at their default, digits below a hundredth of a pixel.
_GROUP_ROLES = re.compile(r' role="graphics-(?:object|symbol)" aria-roledescription="[^"]* container"')
_FRAME = re.compile(r'<path class="(?:background|foreground)"[^>]*?(?:/>|></path>)')
_TAG = re.compile(r"<[^>]+>")
_DEFAULT = re.compile(
    r' (?:class|pointer-events|aria-hidden|font-family|font-weight)="[^"]*"| (?:opacity|stroke-width)="1"'
)
_FRACTION = re.compile(r"(\d\.\d\d)\d+")
_TITLED_MARK = re.compile(
    r'<path aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"([^>]*?)(?:/>|></path>)'
)
_LABEL_LENGTH = 2000
_LETTER_PX = 6.5
_MIN_TICKS, _MAX_TICKS = 3, 5  # of a logarithmic axis
_NAME_GAP_PX = 17.0
_INK, _PAPER = "#1b1f24", "#ffffff"  # of a chart in a file of its own
_PNG_SCALE = 2
_AXIS = {name: PAGE_COLOUR for name in ("labelColor", "titleColor", "tickColor", "domainColor", "gridColor")}
_CONFIG: Spec = {
    "aria": False,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": _AXIS
    | {"gridOpacity": 0.15, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    | {"labelLimit": 0, "titleLimit": 0},  # no limits: measuring text for them takes a sixth of the rendering time
    "text": {"color": PAGE_COLOUR},
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its numbers as a table. `title` is its finding, `caption` explains the marks in a line.

    `label` continues both for readers who cannot see it.
    """

    anchor: str
    title: str
    caption: str
    spec: Spec
    label: str
    table: Table  # without rows where a table of the section has the numbers

    @property
    def svg(self) -> str:
        """The drawing, safe to stand in HTML."""
        return svg_of(self.spec, f"{self.title}. {self.caption} {self.label}".strip())


def chart_spec(
    layers: Iterable[Spec],
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
    padding: Mapping[str, int] = PADDING,
    shared: Sequence[str] = (),
    data: Sequence[Spec] | None = None,
) -> Spec:
    """Return the specification of a chart; empty layers are left out. `shared` are axes that all layers share."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": width,
        "height": height,
        "padding": dict(padding),
        "autosize": {"type": "none"},
        "background": None,
        **({"data": {"values": list(data)}} if data is not None else {}),
        "layer": [layer for layer in layers if layer],
        **({"resolve": {"axis": dict.fromkeys(shared, "shared")}} if shared else {}),
        "config": _CONFIG,
    }


def layer(mark: Spec, values: Sequence[Mapping[str, object]], **encoding: object) -> Spec:
    """Return one kind of mark over some values; empty without any."""
    return {"data": {"values": list(values)}, "mark": mark, "encoding": encoding} if values else {}


def plot(
    layers: Iterable[Spec], title: str, top: float, *, bottom: float = 0.0, ticks: Sequence[float] | None = None
) -> Spec:
    """Return a plot of the usual size from `bottom` to `top`, its title set flat above the y axis."""
    axis = flat_title(title) | ({"tickCount": 4} if ticks is None else {"values": list(ticks)})
    first = layer(HIDDEN_POINT, [{"y": bottom}], y=y_field(top, bottom) | {"axis": axis})
    return chart_spec([first, *layers], shared=("y",))


def flat_title(title: str, *, x: int = -34, y: int = -18) -> Spec:
    """Return a y axis whose title reads horizontally above it."""
    return {
        "title": title,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleX": x,
        "titleY": y,
        "titleBaseline": "middle",
        "grid": True,
        "labelOverlap": False,
    }


def y_field(top: float, bottom: float = 0.0) -> Spec:
    """Return the field `y` of a plot."""
    return {"field": "y", "type": "quantitative", "scale": {"domain": [bottom, top], "nice": False}}


def linear_x(title: str, largest: float, *, smallest: float = 0.0, whole: bool = False) -> Spec:
    """Return the field `x` on a linear axis; `whole` allows integer ticks only."""
    axis = {"title": title, "tickCount": 4, "grid": False, "titleY": 34, "labelOverlap": False}
    if whole:
        axis["tickMinStep"] = 1
    scale = {"domain": [smallest, largest], "nice": False, "zero": False}
    return {"field": "x", "type": "quantitative", "scale": scale, "axis": axis}


def log_x(title: str, smallest: float, largest: float, at: Sequence[float] | None = None) -> Spec:
    """Return the field `x` on a logarithmic axis, with round ticks or those given."""
    ticks = list(at) if at is not None else log_ticks(smallest, largest)
    axis = {"title": title, "values": ticks, "grid": False, "titleY": 34, "labelOverlap": False}
    scale = {"type": "log", "domain": [smallest, largest], "nice": False}
    return {"field": "x", "type": "quantitative", "scale": scale, "axis": axis | {"labelExpr": "datum.value"}}


def log_ticks(smallest: float, largest: float) -> list[float]:
    """Return a few round ticks between two positive numbers: powers of ten, or 1, 3 or 1, 2, 5 of each.

    Returns equal steps where the two lie too close for these.
    """
    tens = range(math.floor(math.log10(smallest)), math.ceil(math.log10(largest)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        found = [float(f"{step}e{ten}") for ten in tens for step in steps]
        inside = [tick for tick in found if smallest <= tick <= largest]
        if len(inside) >= _MIN_TICKS:
            return inside[:: math.ceil(len(inside) / _MAX_TICKS)]
    widest = (largest - smallest) / _MIN_TICKS
    ten = 10.0 ** math.floor(math.log10(widest))
    step = max(size * ten for size in (1, 2, 5) if size * ten <= widest)
    first, last = math.ceil(smallest / step), math.floor(largest / step)
    ticks = [float(f"{at * step:.6g}") for at in range(first, last + 1)]
    return ticks[:: math.ceil(len(ticks) / _MAX_TICKS)]


def named_x(names: Sequence[str]) -> Spec:
    """Return the field `x` with one place a name; labels are slanted where they would touch."""
    axis: Spec = {"title": "stage", "labelAngle": 0, "titleY": 34, "titlePadding": 0}
    if max(map(len, names)) * len(names) * _LETTER_PX > WIDTH:
        axis = {"title": None, "labelAngle": -35}
    scale = {"domain": list(names), "type": "point", "padding": 0.3}
    return {"field": "x", "type": "ordinal", "scale": scale, "axis": axis | {"labelLimit": 0, "labelOverlap": False}}


@dataclass(frozen=True, slots=True)
class Point:
    """A value of an arm, at a number or a stage's name, with its limits. `title` is shown on hover."""

    arm: Arm
    x: float | str
    y: float
    joined: bool = True  # to the arm's other points by a line
    lower: float | None = None
    upper: float | None = None
    title: str = ""

    @property
    def bounded(self) -> bool:
        """True with both limits."""
        return self.lower is not None and self.upper is not None


def series(points: Sequence[Point], x: Spec, top: float, *, apart_px: int = 0) -> list[Spec]:
    """Return each arm's points with their limits, and a line with a band through the joined ones.

    `apart_px` moves the arms to either side of a stage that has a name and no number.
    """
    layers: list[Spec] = []
    for arm in Arm:
        own = [point for point in points if point.arm is arm]
        place = {"xOffset": -apart_px if arm is Arm.BASELINE else apart_px} if apart_px else {}
        for mark, chosen in (
            ({"type": "area", "color": COLOURS[arm], "opacity": 0.14}, [p for p in own if p.joined and p.bounded]),
            ({"type": "rule", "color": COLOURS[arm], "opacity": 0.6}, [p for p in own if p.bounded]),
        ):
            ends = [{"x": p.x, "y": max(p.lower or 0.0, 0.0), "y2": min(p.upper or top, top)} for p in chosen]
            layers.append(layer(mark | place, ends, x=x, y=y_field(top), y2={"field": "y2"}))
        titled = TITLED if own and all(p.title for p in own) else {}
        for mark, chosen in ((arm_line(arm), [p for p in own if p.joined]), (arm_mark(arm) | titled, own)):
            values = [{"x": p.x, "y": p.y, "order": i, "title": p.title} for i, p in enumerate(chosen)]
            layers.append(layer(mark | place, values, x=x, y=y_field(top), order=ORDER))
    return [one for one in layers if one]


ORDER: Spec = {"field": "order", "type": "quantitative"}


def arm_line(arm: Arm) -> Spec:
    """Return the line of an arm."""
    return {"type": "line", "color": COLOURS[arm], "strokeWidth": 2, "strokeDash": DASHES[arm]}


def arm_mark(arm: Arm, size: int = 60) -> Spec:
    """Return the shape of an arm."""
    return {"type": "point", "shape": SHAPES[arm], "size": size, "filled": True, "color": COLOURS[arm], "opacity": 1}


def rule_across(y: float, top: float, bottom: float = 0.0, *, dashed: bool = True) -> Spec:
    """Return a horizontal line over the whole width."""
    line = DOTTED if dashed else {"color": PAGE_COLOUR}
    return layer({"type": "rule", **line}, [{"y": y}], y=y_field(top, bottom))


def rule_up(name: str, at: float, x: Spec, line: Spec = DOTTED) -> list[Spec]:
    """Return a vertical line over the whole height with its name above it."""
    text = {"type": "text", "y": -6, "align": "center", "fontSize": 11, "text": name, "color": PAGE_COLOUR}
    return [layer({"type": "rule"} | line, [{"x": at}], x=x), layer(text, [{"x": at}], x=x)]


@dataclass(frozen=True, slots=True)
class Name:
    """A word beside the plot, `at` pixels below its top; with a shape, also the mark that it names."""

    text: str
    at: float
    colour: str
    shape: str | None = None


def arm_name(arm: Arm, at: float) -> Name:
    """Return an arm's name at a height."""
    return Name(arm.value, at, COLOURS[arm], SHAPES[arm])


def arm_names(points: Sequence[Point], top: float) -> list[Name]:
    """Return each arm's name beside its last point."""
    last = {point.arm: point for point in points}
    return [arm_name(arm, pixels(last[arm].y, top)) for arm in Arm if arm in last]


def names_beside(names: Sequence[Name]) -> list[Spec]:
    """Return the names right of the plot, moved apart where two would touch."""
    ordered = sorted(names, key=lambda name: name.at)
    tops: list[float] = []
    for name in ordered:
        tops.append(max(min(name.at, HEIGHT), tops[-1] + _NAME_GAP_PX if tops else 0.0))
    lowest = float(HEIGHT)
    for i in reversed(range(len(tops))):
        tops[i] = min(tops[i], lowest)
        lowest = tops[i] - _NAME_GAP_PX
    text = {"type": "text", "align": "left", "baseline": "middle", "x": WIDTH + 16, "fontSize": 12}
    placed = [(name, round(at, 1)) for name, at in zip(ordered, tops, strict=True)]
    values = [{"name": name.text, "pixel": at} for name, at in placed]
    marks = [
        layer({"type": "point", "shape": name.shape, "x": WIDTH + 8, "size": 60, "filled": True, "opacity": 1}
              | {"color": name.colour}, [{"pixel": at}], y=PIXEL)
        for name, at in placed if name.shape is not None
    ]  # fmt: skip
    return [layer(text, values, y=PIXEL, text={"field": "name"}), *marks]


PIXEL: Spec = {"field": "pixel", "type": "quantitative", "scale": None, "axis": None}


def pixels(y: float, top: float, bottom: float = 0.0) -> float:
    """Return how far a value lies below the top of the plot."""
    return HEIGHT * (top - y) / (top - bottom)


def rounded(value: float, digits: int = 6) -> float:
    """Round to significant digits: the last bits differ between machines."""
    return float(f"{value:.{digits}g}")


def numbers_table(subject: str, titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return the numbers that a chart draws; each row begins with stage and arm."""
    columns = (Column("stage", numeric=False), Column("arm", numeric=False), *(Column(title) for title in titles))
    return Table(f"{subject}: the numbers drawn", columns, tuple(rows))


def anchors_of(names: Iterable[str]) -> list[str]:
    """Return the names in letters that need no escaping in a link, numbered where two would be equal."""
    seen: dict[str, int] = {}
    anchors = []
    for name in names:
        anchor = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")[:80]
        seen[anchor] = seen.get(anchor, 0) + 1
        anchors.append(anchor if seen[anchor] == 1 else f"{anchor}_{seen[anchor]}")
    return anchors


def short_name(stage: str) -> str:
    """Shorten a name to fit into a plot."""
    return one_line(stage, NAME_LENGTH)


def svg_of(spec: Spec, label: str) -> str:
    """Draw a chart with a root element of our own, which the page scales and `label` describes."""
    drawn = _drawn(json.dumps({key: _drawable(part) for key, part in spec.items()}))
    match = re.fullmatch(r"<svg [^>]*?viewBox=\"(0 0 ([0-9.]+) ([0-9.]+))\"[^>]*>(.*)</svg>\s*", drawn, re.DOTALL)
    assert match is not None, "vl_convert gave no SVG"
    inner = _GROUP_ROLES.sub("", match[4].replace(PAGE_COLOUR, "currentColor"))
    inner = _TITLED_MARK.sub(r"<path\2><title>\1</title></path>", inner)
    inner = _TAG.sub(lambda tag: _FRACTION.sub(r"\1", _DEFAULT.sub("", tag[0])), _FRAME.sub("", inner))
    size = f'viewBox="{match[1]}" width="{match[2]}" height="{match[3]}"'  # its size where no style is allowed
    return (
        f'<svg class="chart" {size} role="img" aria-label="{html.escape(one_line(label, _LABEL_LENGTH))}">{inner}</svg>'
    )


@lru_cache(maxsize=128)
def _drawn(spec: str) -> str:
    """Drawing takes most of a report's time, and a report is often made twice: to be read, and to be hashed."""
    import vl_convert  # takes long to import, and few commands draw

    svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    return svg


def _drawable(value: object) -> object:
    """Replace invisible characters in every text of a specification."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {key: _drawable(one) for key, one in value.items()}
    return [_drawable(one) for one in value] if isinstance(value, list | tuple) else value


def svg_file(spec: Spec, label: str) -> str:
    """Draw a chart as a file of its own, on white."""
    opening, _, inner = svg_of(spec, label).replace('"currentColor"', f'"{_INK}"').partition(">")
    named = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f'{named}><rect width="100%" height="100%" fill="{_PAPER}"/>{inner}\n'


def png_file(spec: Spec) -> bytes:
    """Draw a chart in pixels, twice its size, on white."""
    import vl_convert

    text = json.dumps({**spec, "background": _PAPER}).replace(PAGE_COLOUR, _INK)
    return vl_convert.vegalite_to_png(text, scale=_PNG_SCALE, allowed_base_urls=[])
