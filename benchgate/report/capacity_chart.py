"""The chart of the capacity part: goodput at every level that was looked at, and the falling fit."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate import units
from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.capacity_section import CapacityPoint, CapacitySection
from benchgate.report.drawing import COLOURS, DASHES, PAGE_COLOUR, Figure, height, multiplied, stage_spec, svg_of
from benchgate.report.marks import Name, Point, arm_names, names_beside, pixels, rule_across, series

_WHOLE = 105.0  # per cent, and a little room above


def capacity_figure(capacity: CapacitySection | None) -> Figure | None:
    """Goodput against load with the limits of every level, the falling fit as a line; None without two levels."""
    points = capacity.points if capacity is not None else ()
    levels = sorted(point.level for point in points)
    if capacity is None or len(set(levels)) < 2:
        return None
    target = units.as_written(show.percent(capacity.target_ratio))
    caption = (
        f"Goodput against {capacity.axis}, with limits; the line is the falling fit, the rule the target of {target}."
    )
    x = multiplied(capacity.axis, levels[0] / 1.15, levels[-1] * 1.15)
    goal = capacity.target_ratio * 100
    drawn = [
        Point(p.role, "", p.level, p.share * 100, joined=False, lower=p.lower * 100, upper=p.upper * 100, told=_told(p))
        for p in points
    ]
    fits = [_fit(arm, [point for point in points if point.role is arm], x) for arm in Arm]
    names = [Name("target", pixels(goal, _WHOLE), PAGE_COLOUR), *arm_names(drawn, _WHOLE)]
    layers = [rule_across(goal, _WHOLE), *fits, *series(drawn, x, _WHOLE), *names_beside(names)]
    spec = stage_spec([layer for layer in layers if layer], "goodput, %", _WHOLE)
    label = f"{caption} {'. '.join(capacity.lines)}."
    return Figure("figure-capacity", caption, svg_of(spec, label), capacity.table)


def _told(point: CapacityPoint) -> str:
    """What the table says of a level."""
    limits = f"{show.percent(point.lower)} to {show.percent(point.upper)}"
    return f"{point.role.value} at {point.level:g}: {show.percent(point.share)} ({limits})"


def _fit(arm: Arm, points: Sequence[CapacityPoint], x: dict[str, object]) -> dict[str, object]:
    """The fit through one arm's levels; empty without one."""
    fit = [{"x": p.level, "y": p.fitted * 100, "order": i} for i, p in enumerate(points) if p.fitted is not None]
    if not fit:
        return {}
    line = {"type": "line", "color": COLOURS[arm], "strokeWidth": 2, "strokeDash": DASHES[arm]}
    order = {"field": "order", "type": "quantitative"}
    return {"data": {"values": fit}, "mark": line, "encoding": {"x": x, "y": height(_WHOLE), "order": order}}
