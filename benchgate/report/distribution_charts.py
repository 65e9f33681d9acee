"""The curves of the distributions: which share of the requests was answered within a time; what failed never is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchgate import units
from benchgate.report import show
from benchgate.report.distribution_section import SHARES, Distribution, SideOfOne
from benchgate.report.drawing import (
    COLOURS,
    DASHES,
    TOLD,
    Figure,
    anchors_of,
    height,
    multiplied,
    numbers_table,
    stage_spec,
    svg_of,
)
from benchgate.report.marks import arm_mark, arm_name, names_beside, pixels, rule_up
from benchgate.report.tables import Table

_TOP = 104.0  # per cent, and a little room above
_TICKS = (0, 25, 50, 75, 95)
_MOST_DECADES = 1e4  # from the left edge to the right one: what is quicker stands at the left edge
_FAR = 3.0
_SMALL = 22  # of a mark at a quantile
_ROOM = 1.06


def distribution_figures(found: Sequence[Distribution]) -> tuple[Figure, ...]:
    """One chart each."""
    anchors = anchors_of(f"figure-ecdf-{one.metric}-{one.stage}" for one in found)
    return tuple(_figure(one, anchor) for one, anchor in zip(found, anchors, strict=True))


def _figure(one: Distribution, anchor: str) -> Figure:
    smallest, largest, slo_s = _span(one)
    unit, scale = ("s", 1.0) if largest >= 10 else ("ms", 1e3)
    x = multiplied(f"{one.name}, {unit}", smallest * scale, largest * scale)
    caption = f"{one.name} at {one.stage}: the share of {_counted(one)} that took at most so long.{_failed(one)}"
    layers: list[dict[str, object]] = []
    if one.slo_s is not None:
        shown = units.as_written(show.duration(one.slo_s))
        caption += (
            f" The upright rule is the SLO of {shown}."
            if slo_s is not None
            else f" The SLO of {shown} lies right of the plot."
        )
    if slo_s is not None:
        layers += rule_up("SLO", round(slo_s * scale, 6), x)
    for side in one.sides:
        layers += [*_curve(side, x, smallest, largest, scale), *_quantiles(side, x, smallest, scale)]
    ends = [arm_name(side.role, pixels(side.curve.arrived * 100, _TOP)) for side in one.sides]
    spec = stage_spec([*layers, *names_beside(ends)], "share, %", _TOP, ticks=_TICKS)
    return Figure(anchor, caption, svg_of(spec, f"{caption} {_told(one)}"), _numbers(one))


def _span(one: Distribution) -> tuple[float, float, float | None]:
    """From the quickest value of either side to the slowest, in seconds; and the SLO, where it is not far beyond."""
    values = [value for side in one.sides for value in side.curve.values]
    largest = max(max(values), 1e-9)
    slo_s = one.slo_s if one.slo_s is not None and one.slo_s <= _FAR * largest else None
    largest = max(largest, slo_s or 0.0)
    above_0 = [value for value in (*values, *([slo_s] if slo_s is not None else [])) if value > 0]
    smallest = max(min(above_0, default=largest), largest / _MOST_DECADES)
    return smallest / _ROOM, largest * _ROOM, slo_s


def _curve(
    side: SideOfOne, x: dict[str, object], smallest: float, largest: float, scale: float
) -> list[dict[str, object]]:
    """A step at every value, from nothing at the left edge to what arrived at the right one."""
    curve = side.curve
    if not curve.values:
        return []
    steps = [(max(value, smallest), share) for value, share in zip(curve.values, curve.shares, strict=True)]
    steps = [(smallest, 0.0), *steps, (largest, curve.arrived)]
    values = [{"x": _digits(at * scale), "y": round(share * 100, 3), "order": i} for i, (at, share) in enumerate(steps)]
    line = {
        "type": "line",
        "interpolate": "step-after",
        "color": COLOURS[side.role],
        "strokeWidth": 2,
        "strokeDash": DASHES[side.role],
    }
    order = {"field": "order", "type": "quantitative"}
    return [{"data": {"values": values}, "mark": line, "encoding": {"x": x, "y": height(_TOP), "order": order}}]


def _quantiles(side: SideOfOne, x: dict[str, object], smallest: float, scale: float) -> list[dict[str, object]]:
    """A mark at every quantile of the table that is finite, with the arm's shape and its words."""
    values = [
        {
            "x": _digits(max(value, smallest) * scale),
            "y": share * 100,
            "told": f"{side.role.value}: {_share(share)} {show.duration(value)}",
        }
        for share, value in zip(SHARES, side.quantiles, strict=True)
        if value is not None and math.isfinite(value)
    ]
    if not values:
        return []
    mark = arm_mark(side.role, _SMALL) | TOLD
    return [{"data": {"values": values}, "mark": mark, "encoding": {"x": x, "y": height(_TOP)}}]


def _share(share: float) -> str:
    return f"{share * 100:g} % within" if share < 1 else "slowest"


def _digits(value: float) -> float:
    """No finer than anyone sees: the last bits differ between machines."""
    return float(f"{value:.6g}")


def _counted(one: Distribution) -> str:
    return "gaps" if one.metric == "itl" else "requests"


def _failed(one: Distribution) -> str:
    """What never came, in words: a curve that ends low could be taken for one that was cut."""
    never = [f"{side.curve.never:,} of the {side.role.value}" for side in one.sides if side.curve.never]
    return f" {' and '.join(never)} failed and never come, so that curve ends below 100 %." if never else ""


def _told(one: Distribution) -> str:
    half, most = SHARES.index(0.5), SHARES.index(0.95)
    return "".join(
        f"{side.role.value}: half within {show.duration(side.quantiles[half])}, "
        f"95 % within {show.duration(side.quantiles[most])}. "
        for side in one.sides
    ).rstrip()


def _numbers(one: Distribution) -> Table:
    titles = (_counted(one), "failed", *(f"p{share * 100:g}" if share < 1 else "slowest" for share in SHARES))
    rows = [
        (
            one.stage,
            side.role.value,
            show.count(side.curve.n),
            show.count(side.curve.never),
            *(show.duration(value) for value in side.quantiles),
        )
        for side in one.sides
    ]
    return numbers_table(f"{one.name} at {one.stage}", titles, rows)
