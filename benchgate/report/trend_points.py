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

_Line = tuple[str | None, str, str]
"""Series, suite, and stage or task."""


def chart_of(points: Sequence[TrendPoint], metric: str, statistic: str | None, by: str | None = None) -> TrendChart:
    """A line for each stage or task of each suite, of each series where they are told apart `by` a text of theirs.

    Over the runs in the order of the points. Raises UsageError for more lines than can be told apart.
    """
    places = {run_id: at for at, run_id in enumerate(dict.fromkeys(point.run_id for point in points))}
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
        lines.setdefault((series, point.suite, point.stage or point.task or ""), []).append(value)
    if len(lines) > MOST_SERIES:
        there = ", ".join(sorted({" ".join(filter(None, key)) for key in lines}))
        others = "" if by is None else ", --model, --engine, --hardware"
        raise UsageError(
            f"{len(lines)} lines cannot be told apart in one chart, at most {MOST_SERIES} can; narrow them with "
            f"--suite, --stage{others} or --task: there are {there}"
        )
    names = _names(list(lines), by)
    title = metric.removesuffix("_s").removesuffix("_ratio").replace("_", " ")
    return TrendChart(
        metric=metric,
        title=" ".join(filter(None, (title, statistic))),
        days=days_told(tuple(began.values())),
        series=tuple(TrendSeries(name, tuple(values)) for name, values in zip(names, lines.values(), strict=True)),
        longest_name=NAME_LENGTH if by is None else max(NAME_LENGTH, *map(len, names)),
    )


def _names(lines: Sequence[_Line], by: str | None) -> list[str]:
    """What stands beside each line: its series, its suite where there are several, and its stage or task likewise."""
    one_suite = len({suite for _, suite, _ in lines}) == 1 and by != "suite"
    one_place = len({place for _, _, place in lines}) == 1 and by is not None
    wanted = [(series, None if one_suite else suite, None if one_place else place) for series, suite, place in lines]
    if by is None:
        return [" ".join(filter(None, parts)) for parts in wanted]
    return [" ".join(_fitting(part) for part in parts if part) for parts in wanted]


def _fitting(part: str) -> str:
    """Cut in the middle: names of models begin alike, and end with what tells them apart."""
    line = one_line(part)
    return line if len(line) <= _LONGEST_PART else f"{line[: _LONGEST_PART // 2]}…{line[1 - _LONGEST_PART // 2 :]}"
