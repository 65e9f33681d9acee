"""Quality up, dollars across where equal steps multiply: a cross of two intervals and a name for each deployment.

The shape of a point is its verdict's, as everywhere in a report; it is filled where the deployment is on the frontier.
What stands in the table's marks stands beside the name; a file of its own has every note of the table below it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Outcome
from benchgate.report.drawing import CONFIG, PAGE_COLOUR, TOLD, multiplied, short_name, svg_of
from benchgate.report.frontier import judged, last_line, marks, reasons, shown, standing_told, what_of
from benchgate.report.picture import png_file, svg_file
from benchgate.report.untrusted import one_line
from benchgate.sizing.candidates import CandidateRow, CandidateTable
from benchgate.sizing.frontier import FrontierStatus
from benchgate.stats.meta import EstimateWithLimits

_Spec = dict[str, object]

_WIDTH, _HEIGHT = 300, 220
_PADDING = {"left": 52, "right": 84, "top": 40, "bottom": 94}
_CANDIDATE, _BASELINE = "#3d7dd8", "#7d8796"  # 3:1 on white and on near-black
_SHAPES = {
    Outcome.PASS: "circle",
    Outcome.WARN: "triangle-up",
    Outcome.BLOCK: "square",
    Outcome.INCONCLUSIVE: "diamond",
}
_OF_BASELINE = "cross"
_FILLED = "filled: on the frontier"
_ROOM = 0.06  # of the span, beyond its ends
_LETTER, _LINE = 6.4, 14  # pixels of a name, across and down
_BESIDE, _ABOVE = 7, 9  # from the middle of a point to its name
_MARK = 6  # from the middle of a point to its edge
_DIGITS = 6
_NOTES_LEFT, _NOTES_DOWN = -44.0, _HEIGHT + 100.0
_WIDEST_LINE = 72  # letters of a note


@dataclass(frozen=True, slots=True)
class _Point:
    row: CandidateRow
    quality: EstimateWithLimits
    usd: EstimateWithLimits


def frontier_svg(found: CandidateTable) -> str:
    """The chart to stand in a page that has its notes. UsageError where nothing has both a quality and a cost."""
    points = _drawn(found)
    return svg_of(_spec(found, points, []), _label(points))


def frontier_file(found: CandidateTable) -> str:
    """The same as a file of its own, with all that is to be known of it."""
    points = _drawn(found)
    return svg_file(svg_of(_spec(found, points, _notes(found)), _label(points)))


def frontier_png(found: CandidateTable) -> bytes:
    """The same in pixels."""
    return png_file(_spec(found, _drawn(found), _notes(found)))


def _drawn(found: CandidateTable) -> list[_Point]:
    points = _points(found)
    if not points:
        whys = " ".join(reasons(found.rows, per_answer=False))
        raise UsageError(f"nothing can be drawn, for no deployment has both quality and cost. {whys}")
    return points


def _notes(found: CandidateTable) -> list[str]:
    """What the table says below itself, in lines as wide as the picture."""
    said = [*reasons(found.rows, per_answer=False), *(f"Note: {one_line(note)}." for note in found.notes)]
    return [line for one in (*said, last_line(found)) for line in textwrap.wrap(one, _WIDEST_LINE)]


def _points(found: CandidateTable) -> list[_Point]:
    return [
        _Point(row, row.quality, row.usd)
        for row in found.rows
        if isinstance(row.quality, EstimateWithLimits) and isinstance(row.usd, EstimateWithLimits)
    ]


def _label(points: Sequence[_Point]) -> str:
    return f"Quality against cost of {len(points)} deployments: " + "; ".join(_told(one) for one in points)


def _told(one: _Point) -> str:
    """What the chart says of a point, in words."""
    row = one.row
    became = "baseline" if row.arm is Arm.BASELINE else judged(row)
    numbers = f"quality {shown(one.quality, percent=True)}, {shown(one.usd)}"
    stand = "" if row.stand is None or row.apart is not None else f", on the frontier: {standing_told(row.stand)}"
    return one_line(f"{', '.join((row.name, became, *marks(row)))}: {numbers}{stand}")


def _spec(found: CandidateTable, points: Sequence[_Point], notes: Sequence[str]) -> _Spec:
    low, high = _span([100 * end for one in points for end in _ends(one.quality)])
    low, high = max(0.0, low), min(100.0, high)
    least, most = (math.exp(end) for end in _span([math.log(end) for one in points for end in _ends(one.usd)]))
    x = multiplied(f"$ per 1M {what_of(found)}", _rounded(least), _rounded(most))
    y: _Spec = {
        "type": "quantitative",
        "scale": {"domain": [_rounded(low), _rounded(high)], "nice": False, "zero": False},
    }
    values = [_value(one) for one in points]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": _WIDTH,
        "height": _HEIGHT,
        "padding": {**_PADDING, "bottom": _PADDING["bottom"] + (_LINE * len(notes) + _LINE if notes else 0)},
        "autosize": {"type": "none"},
        "background": None,
        "layer": [
            _frame(x, y, len(found.tasks)),
            *_crosses(values, x, y),
            *_marks(values, x, y),
            *_names(values, (least, most), (low, high)),
            *_key(),
            *(_words(line, _NOTES_LEFT, _NOTES_DOWN + _LINE * at) for at, line in enumerate(notes)),
        ],
        "resolve": {"axis": {"x": "shared", "y": "shared"}},
        "config": CONFIG,
    }


def _span(ends: Sequence[float]) -> tuple[float, float]:
    """From where to where an axis goes: around everything drawn."""
    low, high = min(ends), max(ends)
    room = _ROOM * (high - low) or 0.05 * abs(high) or 0.5
    return low - room, high + room


def _ends(figure: EstimateWithLimits) -> list[float]:
    limits = figure.limits
    return [figure.value] if limits is None else [limits.lower, figure.value, limits.upper]


def _value(one: _Point) -> _Spec:
    row = one.row
    baseline = row.arm is Arm.BASELINE
    drawn: _Spec = {"x": _rounded(one.usd.value), "y": _rounded(100 * one.quality.value), "told": _told(one)}
    drawn |= {"shape": _OF_BASELINE if baseline or row.outcome is None else _SHAPES[row.outcome]}
    drawn |= {"colour": _BASELINE if baseline or row.apart is not None else _CANDIDATE, "name": _called(row)}
    drawn |= {"filled": row.stand is not None and row.stand.standing is FrontierStatus.ON}
    if one.usd.limits is not None:
        drawn |= {"left": _rounded(one.usd.limits.lower), "right": _rounded(one.usd.limits.upper)}
    if one.quality.limits is not None:
        drawn |= {"low": _rounded(100 * one.quality.limits.lower), "high": _rounded(100 * one.quality.limits.upper)}
    return drawn


def _called(row: CandidateRow) -> str:
    """The baseline is told by its shape; whatever is marked in the table is marked here."""
    name = short_name(row.name if row.arm is Arm.CANDIDATE else row.name.removesuffix(" (baseline)"))
    return f"{name} ({', '.join(marks(row))})" if marks(row) else name


def _frame(x: _Spec, y: _Spec, tasks: int) -> _Spec:
    """The first layer, whose axes are the chart's."""
    title = f"accuracy over {tasks} task{'s' if tasks != 1 else ''}, %"
    axis = {"title": title, "titleAngle": 0, "titleAlign": "left", "titleX": -40, "titleY": -22}
    axis |= {"titleBaseline": "middle", "tickCount": 5, "grid": True, "labelOverlap": False}
    data = {"values": [{"x": 1, "y": 0}]}
    encoding = {"x": x, "y": {"field": "y", **y, "axis": axis}}
    return {"data": data, "mark": {"type": "point", "opacity": 0, "size": 0, "clip": True}, "encoding": encoding}


def _crosses(values: Sequence[_Spec], x: _Spec, y: _Spec) -> Iterator[_Spec]:
    for keys, across in ((("left", "right"), True), (("low", "high"), False)):
        some = [value for value in values if keys[0] in value]
        if not some:
            continue
        first, second = ({"field": key} for key in keys)
        encoding = {"x": x | first, "x2": second, "y": {"field": "y", **y}}
        if not across:
            encoding = {"x": x, "y": {**first, **y}, "y2": second}
        mark = {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6}
        yield {"data": {"values": some}, "mark": mark, "encoding": encoding | {"color": _as_said("colour")}}


def _marks(values: Sequence[_Spec], x: _Spec, y: _Spec) -> Iterator[_Spec]:
    for filled in (True, False):
        for value in values:
            if value["filled"] is not filled:
                continue
            mark: _Spec = {"type": "point", "size": 90, "opacity": 1, "filled": filled, "strokeWidth": 1.5} | TOLD
            mark |= {"shape": value["shape"], "color": value["colour"]}
            mark |= {} if filled else {"fill": value["colour"], "fillOpacity": 0}  # a hollow one can be pointed at
            yield {"data": {"values": [value]}, "mark": mark, "encoding": {"x": x, "y": {"field": "y", **y}}}


def _names(values: Sequence[_Spec], dollars: tuple[float, float], shares: tuple[float, float]) -> Iterator[_Spec]:
    """Each name beside its point, above or below, where it lies on no other name and on no point."""
    points = [
        (
            _WIDTH * math.log(float(str(value["x"])) / dollars[0]) / math.log(dollars[1] / dollars[0]),
            _HEIGHT * (shares[1] - float(str(value["y"]))) / (shares[1] - shares[0]),
        )
        for value in values
    ]
    taken = [_Box(x - _MARK, x + _MARK, y - _MARK, y + _MARK) for x, y in points]
    for value, (x, y) in zip(values, points, strict=True):
        box = _free(x, y, _LETTER * len(str(value["name"])), taken)
        taken.append(box)
        yield _words(value["name"], box.left, (box.top + box.bottom) / 2)


@dataclass(frozen=True, slots=True)
class _Box:
    """In pixels from the upper left corner of the plot."""

    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def _free(x: float, y: float, width: float, taken: Sequence[_Box]) -> _Box:
    """Room for a name: to the right or left of its point, else so many lines above or below; in the plot's height."""
    sides = (x + _BESIDE, x - _BESIDE - width)
    rows = [y + way * (_ABOVE + _LINE * further) for further in range(_HEIGHT // _LINE) for way in (-1, 1)]
    boxes = [_Box(left, left + width, down - _LINE / 2, down + _LINE / 2) for down in rows for left in sides]
    within = [box for box in boxes if box.left > 0 and box.right < _WIDTH + _PADDING["right"]]
    within = [box for box in within if box.top >= 0 and box.bottom <= _HEIGHT] or boxes
    return next((box for box in within if not any(box.meets(other) for other in taken)), within[0])


def _key() -> Iterator[_Spec]:
    """What shapes mean, below the plot."""
    across, down = 6.0, _HEIGHT + 58.0
    for words, shape in (*((outcome.value, shape) for outcome, shape in _SHAPES.items()), ("baseline", _OF_BASELINE)):
        if shape == _OF_BASELINE:
            across, down = 6.0, down + 18
        mark: _Spec = {"type": "point", "shape": shape, "size": 50, "filled": True, "opacity": 1}
        mark |= {"x": round(across, 1), "y": down, "color": PAGE_COLOUR}
        yield {"data": {"values": [{}]}, "mark": mark}
        yield _words(words, across + 9, down)
        across += 24 + _LETTER * 1.25 * len(words)
    yield _words(_FILLED, across, down)


def _words(words: object, x: float, y: float) -> _Spec:
    mark = {"type": "text", "align": "left", "baseline": "middle", "fontSize": 11, "x": round(x, 1), "y": round(y, 1)}
    return {"data": {"values": [{"words": words}]}, "mark": mark, "encoding": {"text": {"field": "words"}}}


def _as_said(field: str) -> _Spec:
    return {"field": field, "type": "nominal", "scale": None}


def _rounded(value: float) -> float:
    """No finer than anyone sees: the last bits differ between machines."""
    return float(f"{value:.{_DIGITS}g}")
