"""What stands in a plot of the usual size: the arms' points, lines, limits and names, and rules for what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.model.deployment import Arm
from benchgate.report.drawing import COLOURS, DASHES, HEIGHT, PAGE_COLOUR, SHAPES, TOLD, WIDTH, height

DOTTED: dict[str, object] = {"color": PAGE_COLOUR, "strokeDash": [2, 3]}
_NAME_GAP = 17.0  # pixels between the names beside the plot


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one arm: across the plot a number or the name of a stage, up it a number with its limits, if any.

    `told` are the words for it, for whoever points at it.
    """

    arm: Arm
    stage: str
    x: float | str
    y: float
    joined: bool = True  # a line runs through the stages of one sweep, not on to another kind of load
    lower: float | None = None
    upper: float | None = None
    told: str = ""


@dataclass(frozen=True, slots=True)
class Name:
    """A word beside the plot, `at` pixels from its top where there is room; with a shape, beside the mark it names."""

    text: str
    at: float
    colour: str
    shape: str | None = None


def series(points: Sequence[Point], x: dict[str, object], top: float, *, apart: int = 0) -> list[dict[str, object]]:
    """Every arm's points with their limits, and a line with its band through those that belong together.

    `apart`: how many pixels the arms stand to either side of a stage that has a name and no number.
    """
    layers: list[dict[str, object]] = []
    for arm in Arm:
        own = [point for point in points if point.arm is arm]
        place = {"xOffset": -apart if arm is Arm.BASELINE else apart} if apart else {}
        line = {"type": "line", "color": COLOURS[arm], "strokeWidth": 2, "strokeDash": DASHES[arm]}
        for mark, chosen in (
            ({"type": "area", "color": COLOURS[arm], "opacity": 0.14}, [p for p in own if p.joined and _bounded(p)]),
            ({"type": "rule", "color": COLOURS[arm], "opacity": 0.6}, [p for p in own if _bounded(p)]),
            (line, [p for p in own if p.joined]),
            (arm_mark(arm), own),
        ):
            if chosen:
                layers.append(_points(mark | place, chosen, x, top))
    return layers


def _bounded(point: Point) -> bool:
    return point.lower is not None and point.upper is not None


def _points(mark: dict[str, object], points: Sequence[Point], x: dict[str, object], top: float) -> dict[str, object]:
    """One kind of mark over an arm's points; what stands for limits ends at the edge of the plot."""
    encoding: dict[str, object] = {"x": x, "y": height(top)}
    if mark["type"] in ("area", "rule"):
        values = [{"x": p.x, "y": max(p.lower or 0.0, 0.0), "y2": min(p.upper or top, top)} for p in points]
        return {"data": {"values": values}, "mark": mark, "encoding": encoding | {"y2": {"field": "y2"}}}
    ordered = [{"x": p.x, "y": p.y, "order": i, "told": p.told} for i, p in enumerate(points)]
    encoding |= {"order": {"field": "order", "type": "quantitative"}}
    if mark["type"] == "point" and all(p.told for p in points):
        mark = mark | TOLD
    return {"data": {"values": ordered}, "mark": mark, "encoding": encoding}


def arm_mark(arm: Arm, size: int = 60) -> dict[str, object]:
    """The shape that stands for an arm."""
    return {
        "type": "point",
        "shape": SHAPES[arm],
        "size": size,
        "filled": True,
        "color": COLOURS[arm],
        "opacity": 1,
    }


def arm_names(points: Sequence[Point], top: float) -> list[Name]:
    """Each arm's name, beside the end of its line."""
    ends = {arm: [p for p in points if p.arm is arm] for arm in Arm}
    return [arm_name(arm, pixels(own[-1].y, top)) for arm, own in ends.items() if own]


def arm_name(arm: Arm, at: float) -> Name:
    """An arm's name at a height."""
    return Name(arm.value, at, COLOURS[arm], SHAPES[arm])


def names_beside(names: Sequence[Name]) -> list[dict[str, object]]:
    """The names right of the plot, moved apart where two would meet."""
    placed = _moved_apart(sorted(names, key=lambda name: name.at))
    text = {"type": "text", "align": "left", "baseline": "middle", "x": WIDTH + 16, "fontSize": 12}
    pixel = {"field": "pixel", "type": "quantitative", "scale": None, "axis": None}
    values = [{"name": name.text, "pixel": at} for name, at in placed]
    layers: list[dict[str, object]] = [
        {
            "data": {"values": values},
            "mark": text,
            "encoding": {"y": pixel, "text": {"field": "name"}},
        }
    ]
    for name, at in placed:
        if name.shape is not None:
            mark = {"type": "point", "shape": name.shape, "x": WIDTH + 8, "size": 60, "filled": True, "opacity": 1}
            own = {"data": {"values": [{"pixel": at}]}, "encoding": {"y": pixel}}
            layers.append(own | {"mark": mark | {"color": name.colour}})
    return layers


def _moved_apart(names: Sequence[Name]) -> list[tuple[Name, float]]:
    """From the top down each below the one before, then from the bottom up back into the plot."""
    tops: list[float] = []
    for name in names:
        tops.append(max(min(name.at, HEIGHT), tops[-1] + _NAME_GAP if tops else 0.0))
    lowest = float(HEIGHT)
    for i in reversed(range(len(tops))):
        tops[i] = min(tops[i], lowest)
        lowest = tops[i] - _NAME_GAP
    return [(name, round(at, 1)) for name, at in zip(names, tops, strict=True)]


def pixels(y: float, top: float, bottom: float = 0.0) -> float:
    """How far a value lies below the top of the plot."""
    return HEIGHT * (top - y) / (top - bottom)


def rule_across(y: float, top: float, bottom: float = 0.0, *, dashed: bool = True) -> dict[str, object]:
    """A line over the whole width, in the colour of the page."""
    mark: dict[str, object] = {"type": "rule", "color": PAGE_COLOUR}
    mark |= {"strokeDash": [2, 3]} if dashed else {}
    return {"data": {"values": [{"y": y}]}, "mark": mark, "encoding": {"y": height(top, bottom)}}


def rule_up(name: str, at: float, x: dict[str, object], look: dict[str, object] = DOTTED) -> list[dict[str, object]]:
    """A line over the whole height at one place across, with its name above it."""
    place = {"data": {"values": [{"x": at}]}, "encoding": {"x": x}}
    text = {"type": "text", "y": -6, "align": "center", "fontSize": 11, "text": name, "color": PAGE_COLOUR}
    return [place | {"mark": {"type": "rule"} | look}, place | {"mark": text}]
