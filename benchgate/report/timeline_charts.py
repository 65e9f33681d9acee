"""A stage over its time, as charts that share one axis: TTFT by when requests were due, queue, running, KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.drawing import (
    COLOURS,
    TOLD,
    Figure,
    height,
    numbers_table,
    quantitative,
    short_name,
    stage_spec,
    svg_of,
)
from benchgate.report.marks import Point, arm_mark, arm_names, names_beside, series
from benchgate.report.timeline_section import Gauged, Look, TimelineSection

_SMALL = 26  # of a mark, among many
_LONG_S = 10.0
_FAILED_AT = 6.0  # pixels below the top of the plot


def timeline_figures(timeline: TimelineSection | None) -> tuple[Figure, ...]:
    """TTFT first, then whatever the servers said; none where nobody looked."""
    if timeline is None or timeline.ends_s <= 0:
        return ()
    waits = [_waits(timeline)] if any(math.isfinite(look.value) for look in timeline.ttft) else []
    return (*waits, *(_gauged(gauged, timeline) for gauged in timeline.gauges))


def _across(timeline: TimelineSection) -> dict[str, object]:
    """One axis for all, so that what stands above each other happened at one time."""
    return quantitative("seconds into the stage", round(timeline.ends_s * 1.04, 3))


def _gauged(gauged: Gauged, timeline: TimelineSection) -> Figure:
    points = [
        Point(one.arm, "", round(one.at_s, 3), round(one.value, 4), told=_seen(one, gauged.title))
        for one in gauged.looks
    ]
    top = max(max(point.y for point in points) * 1.2, 1.0)
    caption = f"{gauged.name}, look by look, as the servers said."
    layers = series(points, _across(timeline), top)
    spec = stage_spec([*layers, *names_beside(arm_names(points, top))], gauged.title, top)
    rows = [(timeline.stage, one.arm.value, show.duration(one.at_s), show.number(one.value)) for one in gauged.looks]
    numbers = numbers_table(gauged.name, ("into the stage", gauged.title), rows)
    return Figure(f"figure-timeline-{gauged.key}", caption, svg_of(spec, f"{caption} {_most(gauged.looks)}"), numbers)


def _waits(timeline: TimelineSection) -> Figure:
    finite = [look for look in timeline.ttft if math.isfinite(look.value)]
    failed = [look for look in timeline.ttft if not math.isfinite(look.value)]
    longest_s = max(look.value for look in finite)
    unit, scale = ("s", 1.0) if longest_s >= _LONG_S else ("ms", 1e3)
    top = float(f"{longest_s * scale * 1.2:.5g}")
    x = _across(timeline)
    of_arms = {arm: [look for look in finite if look.arm is arm] for arm in Arm}
    layers = [_cloud(arm, looks, x, top, scale) for arm, looks in of_arms.items() if looks]
    layers += _failed(failed, x)
    last = [Point(look.arm, "", look.at_s, look.value * scale) for look in finite]
    caption = f"TTFT of the requests by when they were due, {timeline.why}."
    if len(timeline.ttft) < timeline.requests:
        caption += f" Of {timeline.requests:,} requests the slowest of every stretch are drawn."
    if failed:
        caption += f" A cross at the top is a request that failed ({len(failed):,} drawn)."
    spec = stage_spec([*layers, *names_beside(arm_names(last, top))], f"TTFT, {unit}", top)
    rows = [(timeline.stage, o.arm.value, show.duration(o.at_s), show.duration(o.value)) for o in timeline.ttft]
    words = f"In stage {short_name(timeline.stage)}, block {timeline.block + 1}. Slowest {show.duration(longest_s)}."
    label = f"{caption} {words}"
    return Figure(
        "figure-timeline-ttft", caption, svg_of(spec, label), numbers_table("TTFT over time", ("due", "TTFT"), rows)
    )


def _cloud(arm: Arm, looks: Sequence[Look], x: dict[str, object], top: float, scale: float) -> dict[str, object]:
    values = [
        {
            "x": round(look.at_s, 3),
            "y": float(f"{look.value * scale:.5g}"),
            "told": _told(look, f"TTFT {show.duration(look.value)}"),
        }
        for look in looks
    ]
    mark = arm_mark(arm, _SMALL) | {"opacity": 0.75} | TOLD
    return {"data": {"values": values}, "mark": mark, "encoding": {"x": x, "y": height(top)}}


def _failed(looks: Sequence[Look], x: dict[str, object]) -> list[dict[str, object]]:
    layers: list[dict[str, object]] = []
    for arm in Arm:
        values = [{"x": round(look.at_s, 3), "told": _told(look, "failed")} for look in looks if look.arm is arm]
        if values:
            at = _FAILED_AT if arm is Arm.BASELINE else 2 * _FAILED_AT + 2
            mark = {"type": "point", "shape": "cross", "angle": 45, "size": 60, "filled": True, "y": at}
            mark |= {"color": COLOURS[arm]} | TOLD
            layers.append({"data": {"values": values}, "mark": mark, "encoding": {"x": x}})
    return layers


def _seen(look: Look, title: str) -> str:
    """What the servers said at one look; a share has its sign after the number, not in the title."""
    what, percent, _ = title.partition(", %")
    return _told(look, f"{what} {show.number(look.value)}{' %' if percent else ''}")


def _told(look: Look, what: str) -> str:
    """A point in words, for whoever points at it."""
    return f"{look.arm.value}, {show.duration(look.at_s)} into the stage: {what}"


def _most(looks: Sequence[Look]) -> str:
    most = {arm: max((look.value for look in looks if look.arm is arm), default=None) for arm in Arm}
    return " ".join(f"{arm.value}: at most {show.number(value)}." for arm, value in most.items() if value is not None)
