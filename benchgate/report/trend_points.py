"""The points of `benchgate trend` as one chart."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.errors import UsageError
from benchgate.model.run import TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.report.drawing import NAME_LENGTH
from benchgate.report.show import minute
from benchgate.report.trend_chart import MOST_SERIES, TrendChart, TrendSeries, TrendValue, days_told
from benchgate.report.untrusted import one_line

_WITHDRAWN = "withdrawn"
_LONGEST_PART = 40

_OWN_SERIES = (None, "suite")
"""What tells no candidates apart by itself, so that each has lines of its own."""

_Line = tuple[str | None, str, str, str]
"""Series, suite, candidate where there are several that nothing else tells apart, and stage or task."""


def chart_of(
    points: Sequence[TrendPoint], metric: str, statistic: str | None, by: str | None = None, note: str = ""
) -> TrendChart:
    """A line for each stage or task of each candidate of each suite, or of each series that `by` tells apart.

    A series by what a run remembers of its candidate (model, engine, hardware) goes on whatever that was called. Over
    the runs in the order of the points. Raises UsageError for more lines than can be told apart.
    """
    places = {run_id: at for at, run_id in enumerate(dict.fromkeys(point.run_id for point in points))}
    several = by in _OWN_SERIES and len({point.deployment for point in points}) > 1
    lines: dict[_Line, list[TrendValue]] = {}
    began = dict[str, str]()
    for point in points:
        began.setdefault(point.run_id, point.started_at)
        promotes = point.outcome is not None and point.outcome.promotes
        invalid = point.outcome is Outcome.INVALID
        promoted = point.promoted is not None and point.promoted != _WITHDRAWN
        run = f"{point.label or point.run_id}, {minute(point.started_at)}"
        value = TrendValue(
            places[point.run_id], point.value, point.lower, point.upper, promotes, promoted, invalid, run
        )
        series = None if by is None or by == "suite" else point.series(by)
        candidate = point.deployment if several else ""
        lines.setdefault((series, point.suite, candidate, point.stage or point.task or ""), []).append(value)
    if len(lines) > MOST_SERIES:
        there = ", ".join(sorted({" ".join(filter(None, key)) for key in lines}))
        raise UsageError(
            f"{len(lines)} lines cannot be told apart in one chart, at most {MOST_SERIES} can; narrow them with "
            f"--suite, --deployment, --model, --engine, --hardware, --stage or --task: there are {there}"
        )
    names = _names(list(lines), by)
    title = metric.removesuffix("_s").removesuffix("_ratio").replace("_", " ")
    return TrendChart(
        metric=metric,
        title=" ".join(filter(None, (title, statistic))),
        days=days_told(tuple(began.values())),
        series=tuple(TrendSeries(name, tuple(values)) for name, values in zip(names, lines.values(), strict=True)),
        longest_name=max(NAME_LENGTH, *map(len, names)),
        note=note,
    )


def _names(lines: Sequence[_Line], by: str | None) -> list[str]:
    """What stands beside each line: its series, its suite where there are several, its candidate, its stage or task."""
    one_suite = len({suite for _, suite, _, _ in lines}) == 1 and by != "suite"
    one_place = len({place for _, _, _, place in lines}) == 1 and by is not None
    wanted = [
        (series, None if one_suite else suite, candidate, None if one_place else place)
        for series, suite, candidate, place in lines
    ]
    return [" ".join(fitting(part) for part in parts if part) for parts in wanted]


def fitting(part: str) -> str:
    """Cut in the middle: names of models begin alike, and end with what tells them apart."""
    line = one_line(part)
    return line if len(line) <= _LONGEST_PART else f"{line[: _LONGEST_PART // 2]}…{line[1 - _LONGEST_PART // 2 :]}"
