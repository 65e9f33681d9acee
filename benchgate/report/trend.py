"""Numbers over the runs of a store as one chart: lines with interval bands, one place across for each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType

from benchgate.errors import UsageError
from benchgate.escape import one_line
from benchgate.model.metric import TREND_UNITS
from benchgate.model.run import UNKNOWN_SERIES, TrendPoint
from benchgate.model.verdict import Outcome, Unit
from benchgate.report import charts
from benchgate.report.charts import HEIGHT, NAME_LENGTH, PAGE_COLOUR, TITLED, WIDTH, Spec
from benchgate.report.display import minute, value_with_limits

_WITHDRAWN = "withdrawn"
_LONGEST_PART = 40

_WITHIN = {None: "deployment", "suite": "deployment", "hardware": "model", "engine": "model"}
"""Key that separates candidates where the series do not, so that each has its own lines."""

_Line = tuple[str | None, str, str, str]
"""Series, suite, candidate where there are several that nothing else tells apart, and stage or task."""

Place = tuple[str, str | None, str | None]
"""Key of a point: its run, and its stage or task."""

MEASUREMENT, SLO, HARDWARE = "the suite measures something else", "another `slo`", "other hardware"
"""Reasons why a point is not connected to the one before it."""


def place_of(point: TrendPoint) -> Place:
    """Return the run and stage or task that identify a point of a metric."""
    return point.run_id, point.stage, point.task


def breaks_of(
    points: Sequence[TrendPoint],
    measurements: Mapping[str, str],
    by: str | None = None,
    slos: Mapping[str, object] = MappingProxyType({}),
) -> dict[Place, str]:
    """Return the points (oldest first) that are not comparable with the one before them on their line, with the reason.

    `measurements` maps runs to `measurement_sha256`, `slos` to the SLO of a metric that depends on it. Unknown hardware
    is compared with the last known one.
    """
    found, line_of = dict[Place, str](), _line_of(points, by)
    before, known_hardware = dict[_Line, TrendPoint](), dict[_Line, str | None]()
    for point in points:
        line, runs_on = line_of(point), point.hardware
        if (last := before.get(line)) is not None:
            known = known_hardware.get(line) if _is_known(runs_on) else last.hardware
            if measurements.get(last.run_id) != measurements.get(point.run_id):
                found[place_of(point)] = MEASUREMENT
            elif slos.get(last.run_id) != slos.get(point.run_id):
                found[place_of(point)] = SLO
            elif known is not None and runs_on != known and _is_known(known) == _is_known(runs_on):
                found[place_of(point)] = HARDWARE
        before[line] = point
        known_hardware[line] = runs_on if _is_known(runs_on) else known_hardware.get(line)
    return found


def _is_known(hardware: str | None) -> bool:
    return hardware is not None and not hardware.startswith(UNKNOWN_SERIES)


def _line_of(points: Sequence[TrendPoint], by: str | None) -> Callable[[TrendPoint], _Line]:
    """Return a function from a point to its line."""
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
    """Return a chart with a line for each stage or task of each candidate and suite, or of each series of `by`.

    A series by model ignores the candidate's name; one by engine or hardware has lines for each model. No line crosses
    its `breaks`. Raises UsageError for more lines than a chart can show.
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
            f"{len(lines)} lines are too many for one chart (at most {MOST_SERIES}); narrow them with "
            f"--suite, --deployment, --model, --engine, --hardware, --stage or --task: there are {there}"
        )
    names = _names(list(lines), by)
    title = metric.replace("_", " ")
    return TrendChart(
        metric=metric,
        title=" ".join(filter(None, (title, statistic))),
        days=day_labels(tuple(began.values())),
        series=tuple(
            TrendSeries(name, tuple(values), frozenset(ends.get(line, ())))
            for name, (line, values) in zip(names, lines.items(), strict=True)
        ),
        longest_name=max(NAME_LENGTH, *map(len, names)),
    )


def _names(lines: Sequence[_Line], by: str | None) -> list[str]:
    """Return the name of each line: the parts that tell it from the others."""
    one_suite = len({suite for _, suite, _, _ in lines}) == 1 and by != "suite"
    one_place = len({place for _, _, _, place in lines}) == 1 and by is not None
    labels = [
        (series, None if one_suite else suite, candidate, None if one_place else place)
        for series, suite, candidate, place in lines
    ]
    return [" ".join(fitting(part) for part in parts if part) for parts in labels]


def fitting(part: str) -> str:
    """Shorten a name in the middle: names of models begin alike."""
    line = one_line(part)
    return line if len(line) <= _LONGEST_PART else f"{line[: _LONGEST_PART // 2]}…{line[1 - _LONGEST_PART // 2 :]}"


MOST_SERIES = 4
"""Limit of series that a reader can tell apart; the caller names the others."""

_COLOURS = ("#3d7dd8", "#c2672a", "#2f8f5b", "#9a6bd0")  # each 3:1 on white and on near-black
_DASHES: tuple[list[int], ...] = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
_SHAPES = ("square", "circle", "triangle-up", "triangle-down")
_STATE_WORDS = {"let through": "", "invalid": "INVALID", "not": "not let through"}
_CROSS = "M-1,-1L1,1M-1,1L1,-1"  # as the mark of INVALID
_OFFSET = 0.16  # of the room of a run, from one line's point to the next one's
_NAMES_AT, _NAME_LETTER = 16, 6.4  # pixels right of the plot where the names begin, and of one of their letters
_PADDING = {"left": 44, "right": 84, "top": 40, "bottom": 56}
_ROOM = 0.08  # of the span, above and below
_LEAST_ROOM = 0.001  # of the largest value, so that ends that are rounded to six digits differ
_FROM_ZERO = 0.35  # where the smallest is below this share of the largest, the axis begins at 0
_LABEL_GAP = 15  # pixels between the names beside the plot
_DAY_LETTER, _DAYS_APART = 6.4, 10  # pixels of a letter below the plot, and between two days
_LINE = 13
_DIGITS = 6
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class TrendValue:
    """A run's value in the metric's unit; `at` is the run's place, 0 for the oldest.

    `run` names the run, `doubt` is why the number may not describe what ran.
    """

    at: int
    value: float
    lower: float | None
    upper: float | None
    promotes: bool
    promoted: bool
    invalid: bool = False
    run: str = ""
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class TrendSeries:
    """A line of a chart: a stage, a task or a suite. It is interrupted at its `breaks`, which are places."""

    name: str
    values: tuple[TrendValue, ...]
    breaks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TrendMark:
    """A change at a run's place, as one capital letter."""

    at: int
    letter: str


@dataclass(frozen=True, slots=True)
class TrendChart:
    """A chart of at most `MOST_SERIES` lines; no line crosses a break.

    `breaks` hold for all lines. `days` has a text for each place, as `day_labels` gives them. Names have at most
    `longest_name` letters.
    """

    metric: str
    title: str
    days: tuple[str, ...]
    series: tuple[TrendSeries, ...]
    marks: tuple[TrendMark, ...] = ()
    breaks: frozenset[int] = frozenset()
    longest_name: int = NAME_LENGTH


def day_labels(instants: Sequence[str]) -> tuple[str, ...]:
    """Return the day of each run (oldest first), or the times and one date where all are of one day."""
    if len(instants) < 2 or len({one[:10] for one in instants}) > 1:
        return tuple(one_line(one[:10]) for one in instants)
    first, *others = (one_line(one[11:16]) for one in instants)
    return (f"{first}\n{one_line(instants[0][:10])}", *others)


def trend_spec(chart: TrendChart) -> Spec:
    """Return the specification of the chart."""
    factor, unit = _unit(chart)
    low, high = _span(chart, factor)
    y: Spec = {"type": "quantitative", "scale": {"domain": [low, high], "nice": False, "zero": False}}
    x: Spec = {"field": "x", "type": "quantitative", "axis": None}
    x |= {"scale": {"domain": [-0.5, len(chart.days) - 0.5], "nice": False}}
    title = f"{chart.title}, {unit}" if unit else chart.title
    axis = charts.flat_title(title, y=-28) | {"tickCount": 4}
    layers = [charts.layer(charts.HIDDEN_POINT, [{"x": 0}], x=x, y={"field": "y", **y, "axis": axis})]
    layers += [*_days(chart.days, x), *_marks(chart.marks, x)]
    for number, series in enumerate(chart.series):
        offset = _OFFSET * (number - (len(chart.series) - 1) / 2)
        parts = _parts(series, chart.breaks | series.breaks, chart.metric, factor, offset)
        layers += _line_layers(number, parts, len(chart.days), x, y)
    layers += _name_layers(chart, factor, low, high)
    longest = max((len(one_line(one.name, chart.longest_name)) for one in chart.series), default=0)
    right = max(_PADDING["right"], _NAMES_AT + round(_NAME_LETTER * longest))
    return charts.chart_spec(layers, padding={**_PADDING, "right": right}, shared=("y",))


_DRAWN = {
    Unit.USD: (1.0, "$"),
    Unit.RATIO: (100.0, "%"),
    Unit.TOKENS_PER_S: (1.0, "tok/s"),
    Unit.TOKENS_PER_S_EACH: (1.0, "tok/s"),
    Unit.REQUESTS_PER_S: (1.0, "req/s"),
    Unit.REQUESTS_PER_S_EACH: (1.0, "req/s"),
    Unit.NATS: (1.0, "nats"),
}


def _unit(chart: TrendChart) -> tuple[float, str]:
    """Return the factor from stored to drawn values, and the drawn unit."""
    unit = TREND_UNITS.get(chart.metric)
    if unit is Unit.SECONDS:
        longest = max((abs(one.value) for series in chart.series for one in series.values), default=0.0)
        return (1.0, "s") if longest >= 10 else (1e3, "ms")
    return _DRAWN.get(unit, (1.0, "")) if unit is not None else (1.0, "")


def _span(chart: TrendChart, factor: float) -> tuple[float, float]:
    """Return the ends of the y axis: around all values and limits, from 0 where that costs little room."""
    values = [one for series in chart.series for one in series.values]
    ends = [end * factor for one in values for end in (one.value, one.lower, one.upper) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    room = max(_ROOM * (high - low), _LEAST_ROOM * max(abs(low), abs(high))) or 1.0
    from_zero = 0 <= low <= _FROM_ZERO * high
    return charts.rounded(0.0 if from_zero else low - room), charts.rounded(high + room)


def _days(days: Sequence[str], x: Spec) -> Iterator[Spec]:
    """Yield the first, the last and (with room) the middle day below the plot, and the direction of time."""
    last = len(days) - 1
    shown = {days[at]: at for at in (last, last // 2, 0)} if days else {}
    letters = sum(len(day.partition("\n")[0]) for day in shown)
    if len(shown) == 3 and letters * _DAY_LETTER + _DAYS_APART * 2 > WIDTH * last / len(days):
        shown = {days[at]: at for at in (last, 0)}
    for day, at in shown.items():
        align = "center"
        if len(shown) > 1:
            align = "left" if at == 0 else "right" if at == last else "center"
        yield _below(day, at, align, 8, x)
    if len(days) > 1:
        y = 8 + _LINE * (1 + max(day.count("\n") for day in days))
        yield _below("← oldest", 0, "left", y, x)
        yield _below("newest →", last, "right", y, x)


def _below(words: str, at: int, align: str, y: int, x: Spec) -> Spec:
    """Return words `y` pixels below the plot at a run's place."""
    mark: Spec = {"type": "text", "align": align, "baseline": "top", "fontSize": 11, "lineBreak": "\n"}
    return charts.layer(mark | {"y": HEIGHT + y}, [{"x": at, "day": words}], x=x, text={"field": "day"})


def _marks(marks: Sequence[TrendMark], x: Spec) -> Iterator[Spec]:
    """Yield a dashed rule with letters wherever something changed."""
    letters: dict[int, set[str]] = {}
    for one in sorted(marks, key=lambda mark: mark.at):
        letters.setdefault(one.at, set()).add(one.letter)
    values = [{"x": at - 0.5, "letters": "".join(sorted(some))} for at, some in letters.items()]
    yield charts.layer({"type": "rule", "color": PAGE_COLOUR, "opacity": 0.6, "strokeDash": [3, 3]}, values, x=x)
    text: Spec = {"type": "text", "y": -10, "fontSize": 11, "fontWeight": "bold"}
    yield charts.layer(text, values, x=x, text={"field": "letters"})


def _parts(series: TrendSeries, breaks: frozenset[int], metric: str, factor: float, offset: float) -> list[list[Spec]]:
    """Return the drawn values, moved by `offset`, in parts that no line joins."""
    parts: list[list[Spec]] = []
    before: int | None = None
    for one in series.values:
        if before is None or any(before < at <= one.at for at in breaks):
            parts.append([])
        ends = {name: end for name, end in (("low", one.lower), ("high", one.upper)) if end is not None}
        drawn = {name: charts.rounded(end * factor) for name, end in (("y", one.value), *ends.items())}
        words = {"state": _state(one), "ring": one.promoted, "title": _value_title(one, series.name, metric)}
        parts[-1].append({"x": charts.rounded(one.at + offset), "part": len(parts), **words, **drawn})
        before = one.at
    return parts


def _value_title(one: TrendValue, line: str, metric: str) -> str:
    """Return line, run and value as in the table."""
    became = ("promoted" if one.promoted else "", _STATE_WORDS[_state(one)], one.doubt)
    of = ", ".join(filter(None, (one_line(line, _LONGEST), one.run, *became)))
    return one_line(f"{of}: {value_with_limits(metric, one.value, one.lower, one.upper)}")


def _state(one: TrendValue) -> str:
    """Return the verdict's effect, whoever promoted the run all the same."""
    return "let through" if one.promotes else "invalid" if one.invalid else "not"


def _line_layers(number: int, parts: list[list[Spec]], places: int, x: Spec, y: Spec) -> Iterator[Spec]:
    colour, size = _COLOURS[number], 50 if places <= 20 else 22 if places <= 40 else 12
    across: Spec = {"x": x, "detail": {"field": "part"}}
    up: Spec = {"y": {"field": "y", **y}}
    within: Spec = {"y": {"field": "low", **y}, "y2": {"field": "high"}}
    every = [value for part in parts for value in part]
    bands = [value for part in parts for some in _with_limits(part) if len(some) > 1 for value in some]
    alone = [value for part in parts for some in _with_limits(part) if len(some) == 1 for value in some]
    stroke: Spec = {"type": "line", "color": colour, "strokeWidth": 1.5, "strokeDash": _DASHES[number]}
    yield charts.layer({"type": "area", "color": colour, "opacity": 0.18}, bands, **across, **within)
    yield charts.layer({"type": "rule", "color": colour, "opacity": 0.5}, alone, x=x, **within)
    yield charts.layer(stroke, every, **across, **up)
    for state in _STATE_WORDS:
        some = [value for value in every if value["state"] == state]
        shape = _CROSS if state == "invalid" else _SHAPES[number]
        point: Spec = {"type": "point", "shape": shape, "size": size, "opacity": 1, "color": colour} | TITLED
        filled = state == "let through"
        point |= {} if filled else {"fill": colour, "fillOpacity": 0}  # a hollow one can be pointed at
        yield charts.layer(point | {"filled": filled, "strokeWidth": 1}, some, x=x, **up)
    ring: Spec = {"type": "point", "shape": "circle", "size": max(90, 3 * size), "filled": False, "strokeWidth": 1.5}
    promoted = [value for value in every if value["ring"]]
    yield charts.layer(ring | {"color": PAGE_COLOUR, "opacity": 1}, promoted, x=x, **up)


def _with_limits(part: list[Spec]) -> Iterator[list[Spec]]:
    """Yield stretches of values with limits; each has a band of its own."""
    for there, some in groupby(part, lambda value: "low" in value and "high" in value):
        if there:
            stretch = list(some)
            yield [value | {"part": stretch[0]["x"]} for value in stretch]


def _name_layers(chart: TrendChart, factor: float, low: float, high: float) -> Iterator[Spec]:
    """Yield each line's name beside its last value."""
    drawn = [(i, s, s.values[-1].value * factor) for i, s in enumerate(chart.series) if s.values and s.name]
    drawn.sort(key=lambda one: -one[2])
    pixels = [HEIGHT * (high - value) / (high - low) for _, _, value in drawn]
    for (number, series, _), pixel in zip(drawn, _apart(pixels), strict=True):
        data = {"values": [{"name": one_line(series.name, chart.longest_name), "pixel": round(pixel, 1)}]}
        y = {"field": "pixel", "type": "quantitative", "scale": None, "axis": None}
        mark = {"type": "point", "shape": _SHAPES[number], "x": WIDTH + 8, "size": 50, "filled": True, "opacity": 1}
        text = {"type": "text", "align": "left", "baseline": "middle", "x": WIDTH + _NAMES_AT, "fontSize": 11}
        yield {"data": data, "mark": mark | {"color": _COLOURS[number]}, "encoding": {"y": y}}
        yield {"data": data, "mark": text, "encoding": {"y": y, "text": {"field": "name"}}}


def _apart(pixels: Sequence[float]) -> list[float]:
    """Return places at least a line of text apart, inside the plot."""
    placed = list[float]()
    for pixel in pixels:
        placed.append(max(pixel, placed[-1] + _LABEL_GAP) if placed else pixel)
    beyond = max(0.0, placed[-1] - HEIGHT) if placed else 0.0
    placed = [pixel - beyond for pixel in placed]
    assert all(b - a >= _LABEL_GAP - 1e-6 for a, b in pairwise(placed)), "moved as one"
    return placed
