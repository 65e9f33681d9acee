"""The points of `benchgate trend` as one chart, and which of them do not go on from those before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchgate.errors import UsageError
from benchgate.model.run import UNKNOWN_SERIES, TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.report.drawing import NAME_LENGTH
from benchgate.report.show import minute
from benchgate.report.trend_chart import MOST_SERIES, TrendChart, TrendSeries, TrendValue, days_told
from benchgate.report.untrusted import one_line

_WITHDRAWN = "withdrawn"
_LONGEST_PART = 40

_WITHIN = {None: "deployment", "suite": "deployment", "hardware": "model", "engine": "model"}
"""What tells candidates apart where the series do not, so that each has lines of its own."""

_Line = tuple[str | None, str, str, str]
"""Series, suite, candidate where there are several that nothing else tells apart, and stage or task."""

Place = tuple[str, str | None, str | None]
"""Of a point: its run, and its stage or task."""

ASKED, HARDWARE = "the suite asks something else", "other hardware"
"""Why a point does not go on from the one before it."""


def place_of(point: TrendPoint) -> Place:
    """Where it stands; no other point of one metric does."""
    return point.run_id, point.stage, point.task


def breaks_of(points: Sequence[TrendPoint], asked: Mapping[str, str], by: str | None = None) -> dict[Place, str]:
    """The points, oldest first, that begin a line anew, and why: they do not compare with the one before them in it.

    `asked` is what was asked of both arms in each run (`measurement_sha256`). Of hardware that nobody told nothing is
    known: there what is told is held against what was last told.
    """
    found, line_of = dict[Place, str](), _line_of(points, by)
    before, told = dict[_Line, TrendPoint](), dict[_Line, str | None]()
    for point in points:
        line, runs_on = line_of(point), point.hardware
        if (last := before.get(line)) is not None:
            known = told.get(line) if _is_told(runs_on) else last.hardware
            if asked.get(last.run_id) != asked.get(point.run_id):
                found[place_of(point)] = ASKED
            elif known is not None and runs_on != known and _is_told(known) == _is_told(runs_on):
                found[place_of(point)] = HARDWARE
        before[line] = point
        told[line] = runs_on if _is_told(runs_on) else told.get(line)
    return found


def _is_told(hardware: str | None) -> bool:
    return hardware is not None and not hardware.startswith(UNKNOWN_SERIES)


def _line_of(points: Sequence[TrendPoint], by: str | None) -> Callable[[TrendPoint], _Line]:
    """Gives the line that a point is of."""
    apart = _WITHIN.get(by)
    several = apart is not None and len({point.series(apart) for point in points}) > 1

    def line(point: TrendPoint) -> _Line:
        series = None if by is None or by == "suite" else point.series(by)
        candidate = point.series(apart) if apart is not None and several else ""
        return series, point.suite, candidate, point.stage or point.task or ""

    return line


def chart_of(
    points: Sequence[TrendPoint],
    metric: str,
    statistic: str | None,
    by: str | None = None,
    breaks: Mapping[Place, str] | None = None,
) -> TrendChart:
    """A line for each stage or task of each candidate of each suite, or of each series that `by` tells apart.

    A series by model goes on whatever its candidate was called; in one by engine or hardware each model has lines of
    its own. None goes through `breaks`. Over the runs in the order of the points. Raises UsageError for more lines than
    can be told apart.
    """
    places = {run_id: at for at, run_id in enumerate(dict.fromkeys(point.run_id for point in points))}
    line_of, ends = _line_of(points, by), dict[_Line, set[int]]()
    lines: dict[_Line, list[TrendValue]] = {}
    began = dict[str, str]()
    for point in points:
        began.setdefault(point.run_id, point.started_at)
        promotes = point.outcome is not None and point.outcome.promotes
        invalid = point.outcome is Outcome.INVALID
        promoted = point.promoted is not None and point.promoted != _WITHDRAWN
        run = f"{point.label or point.run_id}, {minute(point.started_at)}"
        number = point.value, point.lower, point.upper
        value = TrendValue(places[point.run_id], *number, promotes, promoted, invalid, run, point.doubt)
        lines.setdefault(line_of(point), []).append(value)
        if place_of(point) in (breaks or {}):
            ends.setdefault(line_of(point), set()).add(value.at)
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
        series=tuple(
            TrendSeries(name, tuple(values), frozenset(ends.get(line, ())))
            for name, (line, values) in zip(names, lines.items(), strict=True)
        ),
        longest_name=max(NAME_LENGTH, *map(len, names)),
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
