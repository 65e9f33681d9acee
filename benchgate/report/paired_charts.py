"""One chart for each check of paired blocks: a point a block, their mean with its limits, the margin, and no change."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate import units
from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.drawing import (
    COLOURS,
    PAGE_COLOUR,
    TOLD,
    Figure,
    anchors_of,
    height,
    quantitative,
    stage_spec,
    svg_of,
)
from benchgate.report.marks import Name, arm_mark, names_beside, pixels, rule_across
from benchgate.report.paired_section import PairedCheck
from benchgate.report.tables import Column, Table

_ROOM = 0.12  # of the span, above and below
_FAR = 4.0  # a margin so many times the largest change would leave the points in a line


def paired_figures(checks: Sequence[PairedCheck]) -> tuple[Figure, ...]:
    """One chart each."""
    anchors = anchors_of(f"figure-blocks-{check.id}" for check in checks)
    return tuple(_figure(check, anchor) for check, anchor in zip(checks, anchors, strict=True))


def _figure(check: PairedCheck, anchor: str) -> Figure:
    of = "block" if check.together == 1 else f"group of at least {check.together} blocks"
    bottom, top, margins = _span(check)
    names = [Name("no change", pixels(0.0, top, bottom), PAGE_COLOUR)]
    names += [Name("margin", pixels(margin, top, bottom), PAGE_COLOUR) for margin in margins]
    if check.mean is not None:
        names.append(Name("mean", pixels(check.mean, top, bottom), COLOURS[Arm.CANDIDATE]))
    caption = f"{check.title}: the change in each {of}. {_in_words(check)} {_worse(check)}"
    caption += "" if margins else " The margin lies outside the plot."
    missing = [str(number) for number, y in zip(check.numbers, check.changes, strict=True) if y is None]
    if missing:
        caption += f" Not drawn, because the candidate's requests failed: {', '.join(missing)}."
    if check.left_out:
        blocks = ", ".join(str(number) for number, _ in check.left_out)
        caption += f" Blocks that the check does without: {blocks}; why stands with the numbers."
    layers = [*_limits(check, bottom, top), rule_across(0.0, top, bottom, dashed=False)]
    layers += [*(rule_across(_digits(margin), top, bottom) for margin in margins), _points(check, bottom, top)]
    spec = stage_spec([*layers, *names_beside(names)], check.unit, top, bottom=bottom)
    return Figure(anchor, caption, svg_of(spec, caption), _numbers(check))


def _points(check: PairedCheck, bottom: float, top: float) -> dict[str, object]:
    one = _one(check)
    values = [
        {"x": number, "y": _digits(y), "told": f"{one} {number}: {_told(y, check)}"}
        for number, y in zip(check.numbers, check.changes, strict=True)
        if y is not None
    ]
    last = max((*check.numbers, *(number for number, _ in check.left_out if check.together == 1)))
    x = quantitative(one, last + 0.5, smallest=0.5, whole=True)
    mark = arm_mark(Arm.CANDIDATE) | TOLD
    return {"data": {"values": values}, "mark": mark, "encoding": {"x": x, "y": height(top, bottom)}}


def _one(check: PairedCheck) -> str:
    """What a point stands for."""
    return "block" if check.together == 1 else "group"


def _span(check: PairedCheck) -> tuple[float, float, list[float]]:
    """From the lowest to the highest of what is drawn, 0 and the margins among them; and the margins that are."""
    known = [y for y in (*check.changes, check.mean, check.lower, check.upper) if y is not None]
    largest = max((abs(y) for y in known), default=0.0)
    margins = [check.allowed, -check.allowed] if check.both else [check.allowed]
    margins = margins if abs(check.allowed) <= _FAR * largest or largest == 0 else []
    low, high = min(0.0, *known, *margins), max(0.0, *known, *margins)
    room = (high - low) * _ROOM or 1.0
    return _digits(low - room), _digits(high + room), margins


def _digits(value: float) -> float:
    """No finer than anyone sees: the last bits differ between machines."""
    return float(f"{value:.5g}")


def _limits(check: PairedCheck, bottom: float, top: float) -> list[dict[str, object]]:
    """The mean over the whole width with the band of its limits; nothing where there is none."""
    if check.mean is None or check.lower is None or check.upper is None:
        return []
    colour = COLOURS[Arm.CANDIDATE]
    ends = [{"y": _digits(check.lower), "y2": _digits(check.upper)}]
    band = {"type": "rect", "color": colour, "opacity": 0.16}
    mean = {"type": "rule", "color": colour, "strokeWidth": 2}
    y = height(top, bottom)
    return [
        {"data": {"values": ends}, "mark": band, "encoding": {"y": y, "y2": {"field": "y2"}}},
        {"data": {"values": [{"y": _digits(check.mean)}]}, "mark": mean, "encoding": {"y": y}},
    ]


def _worse(check: PairedCheck) -> str:
    if check.both:
        return "Either way is a change."
    return f"{'Higher' if check.worse_is_up else 'Lower'} is worse."


def _told(value: float | None, check: PairedCheck) -> str:
    """A change with its sign and unit."""
    if value is None:
        return show.NOT_APPLICABLE
    return show.signed_percent(value / 100) if check.unit.endswith("%") else show.points(value / 100)


def _in_words(check: PairedCheck) -> str:
    limits = f" ({_told(check.lower, check)} to {_told(check.upper, check)})" if check.lower is not None else ""
    return f"Mean {_told(check.mean, check)}{limits}, margin {units.as_written(_told(check.allowed, check))}."


def _numbers(check: PairedCheck) -> Table:
    drawn = zip(check.numbers, check.changes, strict=True)
    points = [(number, (f"{_one(check)} {number}", _told(y, check))) for number, y in drawn]
    gaps = [(number, (f"block {number}", why)) for number, why in check.left_out]
    in_order = sorted([*points, *gaps]) if check.together == 1 else [*points, *gaps]
    rows = [row for _, row in in_order]
    rows += [("mean", _told(check.mean, check)), ("margin", _told(check.allowed, check))]
    columns = (Column("of", numeric=False), Column("change"))
    return Table(f"{check.title}: the numbers drawn", columns, tuple(rows))
