"""Latency, throughput and goodput of every stage against what was offered, both sides, with intervals and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchgate import units
from benchgate.gate.summary.figures import CHART_STATISTICS, Estimate, StageFigures
from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.drawing import (
    COLOURS,
    DASHES,
    PAGE_COLOUR,
    Figure,
    anchors_of,
    height,
    numbers_table,
    stage_spec,
    svg_of,
)
from benchgate.report.load_axis import IN_FLIGHT, Across, axes
from benchgate.report.load_section import LoadSection
from benchgate.report.marks import Name, Point, arm_names, names_beside, pixels, rule_across, rule_up, series
from benchgate.report.stage_rows import StageRow
from benchgate.report.untrusted import one_line

_ROOM_ABOVE = 1.15
_FAR = 3.0  # a bound so many times the largest value would leave the curves at the bottom
_APART = 5  # pixels
_LONG_MS = 10_000.0
_WHOLE = 105.0  # per cent, and a little room above


@dataclass(frozen=True, slots=True)
class Curve:
    """One number of every stage. `bounds` are what it is held to, by stage; `scale` turns it into what is drawn."""

    anchor: str
    title: str
    name: str
    unit: str
    better: str
    scale: float
    of: Callable[[StageFigures], Estimate | None]
    shown: Callable[[float], str]
    bounds: Mapping[str, float]
    bound_name: str = ""


def load_figures(load: LoadSection | None) -> tuple[tuple[Figure, ...], ...]:
    """TTFT and TPOT at their median and p95, throughput, and goodput where the suite has an SLO: for each sweep."""
    if load is None:
        return ()
    groups = []
    for across in axes(load.rows):
        rows = [row for row in load.rows if row.stage in across.stages]
        knees = load.knee_levels if across.title == IN_FLIGHT else {}
        drawn = (_figure(curve, rows, knees, across) for curve in _curves(rows))
        groups.append([figure for figure in drawn if figure is not None])
    anchors = iter(anchors_of(figure.anchor for group in groups for figure in group))
    return tuple(tuple(replace(figure, anchor=next(anchors)) for figure in group) for group in groups if group)


def _curves(rows: Sequence[StageRow]) -> Iterator[Curve]:
    slos = {row.stage: row.slo for row in rows if row.slo is not None}
    limits = {
        "ttft": {stage: slo.ttft_s for stage, slo in slos.items() if slo.ttft_s is not None},
        "tpot": {stage: slo.tpot_s for stage, slo in slos.items() if slo.tpot_s is not None},
    }
    for latency, bounds in limits.items():
        for statistic in CHART_STATISTICS:
            yield _latency(rows, latency, statistic, bounds)
    yield Curve(
        anchor="figure-throughput",
        title="Output tokens per second",
        name="Output tokens per second",
        unit="tok/s",
        better="Higher is better",
        scale=1.0,
        of=lambda figures: figures.output_tokens_per_s,
        shown=show.number,
        bounds={},
    )
    if slos:
        yield Curve(
            anchor="figure-goodput",
            title="Goodput",
            name="Goodput, the share of scheduled requests that met every SLO,",
            unit="goodput, %",
            better="Higher is better",
            scale=100.0,
            of=lambda figures: figures.goodput_ratio,
            shown=show.percent,
            bounds={row.stage: row.target_ratio for row in rows if row.target_ratio is not None},
            bound_name="target",
        )


def _latency(rows: Sequence[StageRow], latency: str, statistic: str, bounds: Mapping[str, float]) -> Curve:
    def of(figures: StageFigures) -> Estimate | None:
        return figures.quantiles.get(f"{latency}_{statistic}")

    name = f"{latency.upper()} {statistic}"
    found = [estimate.value for row in rows if row.figures is not None and (estimate := of(row.figures)) is not None]
    longest_ms = max((value * 1e3 for value in found if math.isfinite(value)), default=0.0)
    unit, scale = ("s", 1.0) if longest_ms >= _LONG_MS else ("ms", 1e3)
    return Curve(
        anchor=f"figure-{latency}-{statistic}",
        title=name,
        name=name,
        unit=f"{name}, {unit}",
        better="Lower is better",
        scale=scale,
        of=of,
        shown=show.duration,
        bounds=bounds,
        bound_name="SLO",
    )


def _figure(curve: Curve, rows: Sequence[StageRow], knees: Mapping[Arm, float], across: Across) -> Figure | None:
    measured = [
        (row, estimate) for row in rows if row.figures is not None and (estimate := curve.of(row.figures)) is not None
    ]
    points = [_point(row, estimate, curve, across) for row, estimate in measured if math.isfinite(estimate.value)]
    if not points:
        return None
    top = _top(points, curve)
    told, bounds, names = _bounds(curve, across, top)
    beyond = [f"{row.stage} {row.role.value}" for row, estimate in measured if not math.isfinite(estimate.value)]
    against = f"against {across.title}" if across.at else "stage by stage"
    caption = f"{curve.name} {against}. {curve.better}.{told}"
    if beyond:
        caption += f" Not drawn, because too many requests failed: {', '.join(beyond)}."
    upright = _knees(knees, across) if curve.anchor == "figure-throughput" else []
    if upright:
        caption += " An upright line is the knee of a side: beyond it the server does no more at once."
    layers = [*bounds, *upright, *series(points, across.encoding(), top, apart=0 if across.at else _APART)]
    spec = stage_spec([*layers, *names_beside([*names, *arm_names(points, top)])], curve.unit, top)
    numbers = numbers_table(
        f"{curve.title} {against}", ("value", "95 % interval"), [_cells(row, one, curve) for row, one in measured]
    )
    return Figure(curve.anchor, caption, svg_of(spec, f"{caption} {_ends(measured, curve)}"), numbers)


def _point(row: StageRow, estimate: Estimate, curve: Curve, across: Across) -> Point:
    limits = estimate.limits
    return Point(
        row.role,
        row.stage,
        across.place(row.stage),
        round(estimate.value * curve.scale, 6),
        joined=bool(across.at),
        lower=None if limits is None else round(limits.lower * curve.scale, 6),
        upper=None if limits is None else _drawn(limits.upper * curve.scale),
        told=_told(row, estimate, curve),
    )


def _told(row: StageRow, estimate: Estimate, curve: Curve) -> str:
    """The row of the table that a point stands for."""
    stage, arm, value, interval = _cells(row, estimate, curve)
    return one_line(f"{stage}, {arm}: {value}" + (f" ({interval})" if estimate.limits is not None else ""))


def _drawn(value: float) -> float:
    """An end that is infinite lies above every plot."""
    return round(value, 6) if math.isfinite(value) else 1e12


def _top(points: Sequence[Point], curve: Curve) -> float:
    """Above every value, its limit if that is not far off, and the bound if the curves can be read beside it."""
    if curve.bound_name == "target":
        return _WHOLE
    largest = max(point.y for point in points)
    ends = [point.upper for point in points if point.upper is not None and point.upper <= _FAR * largest]
    bounds = [bound * curve.scale for bound in curve.bounds.values() if bound * curve.scale <= _FAR * largest]
    return max(largest, *ends, *bounds, 0.0) * _ROOM_ABOVE or 1.0


def _bounds(curve: Curve, across: Across, top: float) -> tuple[str, list[dict[str, object]], list[Name]]:
    """What the values are held to: a rule where it is one for all stages, else a short line at each; and in words."""
    bounds = {stage: bound * curve.scale for stage, bound in curve.bounds.items()}
    if not bounds:
        return "", [], []
    inside = {stage: bound for stage, bound in bounds.items() if bound <= top}
    if len(set(bounds.values())) > 1 or len(bounds) < len(across.stages):
        values = [{"x": across.place(stage), "y": round(bound, 6)} for stage, bound in inside.items()]
        mark = {"type": "tick", "orient": "horizontal", "size": 34, "thickness": 2, "color": PAGE_COLOUR}
        drawn = {"data": {"values": values}, "mark": mark, "encoding": {"x": across.encoding(), "y": height(top)}}
        return f" The short line of a stage is its own {curve.bound_name}.", [drawn] if values else [], []
    bound, shown = next(iter(bounds.values())), units.as_written(curve.shown(next(iter(curve.bounds.values()))))
    if not inside:
        return f" The {curve.bound_name} of {shown} lies above the plot.", [], []
    name = Name(curve.bound_name, pixels(bound, top), PAGE_COLOUR)
    return f" The rule is the {curve.bound_name} of {shown}.", [rule_across(round(bound, 6), top)], [name]


def _knees(levels: Mapping[Arm, float], across: Across) -> list[dict[str, object]]:
    """The knee of each side, over the whole height; the dashed one above, where both are at one place."""
    layers: list[dict[str, object]] = []
    for arm in reversed(Arm):
        if arm in levels:
            look = {"color": COLOURS[arm], "strokeWidth": 1.5, "strokeDash": DASHES[arm]}
            layers += rule_up("knee", levels[arm], across.encoding(), look)
    return layers


def _cells(row: StageRow, estimate: Estimate, curve: Curve) -> tuple[str, ...]:
    return row.stage, row.role.value, curve.shown(estimate.value), show.limits(estimate.limits, curve.shown)


def _ends(measured: Sequence[tuple[StageRow, Estimate]], curve: Curve) -> str:
    """The first and the last value of each side, for who cannot see the curve."""
    told = []
    for arm in Arm:
        own = [(row, estimate) for row, estimate in measured if row.role is arm]
        if own:
            first, last = own[0], own[-1]
            to = f" to {curve.shown(last[1].value)} at {last[0].stage}" if len(own) > 1 else ""
            told.append(f"{arm.value}: {curve.shown(first[1].value)} at {first[0].stage}{to}")
    return "; ".join(told) + "."
