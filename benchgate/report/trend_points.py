"""The points of `benchgate trend` as one chart."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.errors import UsageError
from benchgate.model.run import TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.report.show import minute
from benchgate.report.trend_chart import MOST_SERIES, TrendChart, TrendSeries, TrendValue, days_told

_WITHDRAWN = "withdrawn"


def chart_of(points: Sequence[TrendPoint], metric: str, statistic: str | None) -> TrendChart:
    """A line for each stage or task of each suite, over the runs in the order of the points.

    Raises UsageError for more lines than can be told apart.
    """
    places = {run_id: at for at, run_id in enumerate(dict.fromkeys(point.run_id for point in points))}
    one_suite = len({point.suite for point in points}) == 1
    lines: dict[tuple[str, str], list[TrendValue]] = {}
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
        lines.setdefault((point.suite, point.stage or point.task or ""), []).append(value)
    if len(lines) > MOST_SERIES:
        there = ", ".join(sorted({" ".join(filter(None, key)) for key in lines}))
        raise UsageError(
            f"{len(lines)} lines cannot be told apart in one chart, at most {MOST_SERIES} can; narrow them with "
            f"--suite, --stage or --task: there are {there}"
        )
    series = [
        TrendSeries(place if one_suite else " ".join(filter(None, (suite, place))), tuple(values))
        for (suite, place), values in lines.items()
    ]
    title = metric.removesuffix("_s").removesuffix("_ratio").replace("_", " ")
    days = days_told(tuple(began.values()))
    return TrendChart(metric, " ".join(filter(None, (title, statistic))), days, tuple(series))
