"""One number over the runs of a store, as a chart: lines with interval bands, one place across for each run.

Runs stand side by side whatever time lay between them, and the lines of a chart a little beside each other. A filled
point is of a candidate that its verdict let through, a hollow one of any other, a cross of a run whose evidence is no
use, and a ring is around what was promoted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from benchgate.report.drawing import CONFIG, HEIGHT, NAME_LENGTH, PAGE_COLOUR, TOLD, WIDTH, svg_of
from benchgate.report.metric_values import value_with_limits
from benchgate.report.picture import png_file, svg_file
from benchgate.report.untrusted import one_line

_Spec = dict[str, object]

MOST_SERIES = 4
"""As many can be told apart; which others there are is the caller's to say."""

_COLOURS = ("#3d7dd8", "#c2672a", "#2f8f5b", "#9a6bd0")  # each 3:1 on white and on near-black
_DASHES: tuple[list[int], ...] = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
_SHAPES = ("square", "circle", "triangle-up", "triangle-down")
_STATES_TOLD = {"let through": "", "invalid": "INVALID", "not": "not let through"}
_CROSS = "M-1,-1L1,1M-1,1L1,-1"  # as the mark of INVALID
_BESIDE = 0.16  # of the room of a run, from one line's point to the next one's
_NAMES_AT, _NAME_LETTER = 16, 6.4  # pixels right of the plot where the names begin, and of one of their letters
_PADDING = {"left": 44, "right": 84, "top": 40, "bottom": 56}
_ROOM = 0.08  # of the span, above and below
_FROM_ZERO = 0.35  # where the smallest is below this share of the largest, the axis begins at 0
_LABEL_GAP = 15  # pixels between the names beside the plot
_DAY_LETTER, _DAYS_APART = 6.4, 10  # pixels of a letter below the plot, and between two days
_LINE = 13
_DIGITS = 6
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class TrendValue:
    """One run's value, in the metric's own unit; `at` is the run's place, 0 for the oldest drawn.

    `run` is which run that is, in words, for whoever points at it; `doubt` why the number is none of what ran.
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
    """One line of a chart: of a stage, a task or a suite. It crosses none of its own `breaks`, which are places."""

    name: str
    values: tuple[TrendValue, ...]
    breaks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TrendMark:
    """That something changed with the run at a place, as one capital letter."""

    at: int
    letter: str


@dataclass(frozen=True, slots=True)
class TrendChart:
    """What a chart shows, at most `MOST_SERIES` lines; no line crosses a break.

    Breaks are of all lines, beside those of each. `days` has one text for each place, as `days_told` gives them. Names
    of lines have `longest_name` letters at most.
    """

    metric: str
    title: str
    days: tuple[str, ...]
    series: tuple[TrendSeries, ...]
    marks: tuple[TrendMark, ...] = ()
    breaks: frozenset[int] = frozenset()
    longest_name: int = NAME_LENGTH


def days_told(instants: Sequence[str]) -> tuple[str, ...]:
    """The day of each run (RFC 3339, UTC), oldest first; where all are of one day, their times, and it below one."""
    if len(instants) < 2 or len({one[:10] for one in instants}) > 1:
        return tuple(one_line(one[:10]) for one in instants)
    first, *others = (one_line(one[11:16]) for one in instants)
    return (f"{first}\n{one_line(instants[0][:10])}", *others)


def inline_svg(chart: TrendChart, label: str) -> str:
    """The chart to stand in a page, in the page's colours; `label` is for readers who do not see it."""
    return svg_of(_spec(chart), label)


def whole_svg(chart: TrendChart, label: str) -> str:
    """The chart as a file of its own, on white."""
    return svg_file(inline_svg(chart, label))


def whole_png(chart: TrendChart) -> bytes:
    """The same picture in pixels, twice as many each way as it is wide and high."""
    return png_file(_spec(chart))


def _spec(chart: TrendChart) -> _Spec:
    factor, unit = _unit(chart)
    low, high = _span(chart, factor)
    y: _Spec = {"type": "quantitative", "scale": {"domain": [low, high], "nice": False, "zero": False}}
    x: _Spec = {"field": "x", "type": "quantitative", "axis": None}
    x |= {"scale": {"domain": [-0.5, len(chart.days) - 0.5], "nice": False}}
    layers = [_frame(x, y, f"{chart.title}, {unit}" if unit else chart.title), *_days(chart.days, x)]
    layers += _marks(chart.marks, x)
    for number, series in enumerate(chart.series):
        beside = _BESIDE * (number - (len(chart.series) - 1) / 2)
        layers += _line(
            number, _parts(series, chart.breaks | series.breaks, chart.metric, factor, beside), len(chart.days), x, y
        )
    layers += _names(chart, factor, low, high)
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": WIDTH,
        "height": HEIGHT,
        "padding": _padding(chart),
        "autosize": {"type": "none"},
        "background": None,
        "layer": layers,
        "resolve": {"axis": {"y": "shared"}},
        "config": CONFIG,
    }


def _padding(chart: TrendChart) -> dict[str, int]:
    """Room for the whole of each name beside the plot."""
    longest = max((len(one_line(one.name, chart.longest_name)) for one in chart.series), default=0)
    return {**_PADDING, "right": max(_PADDING["right"], _NAMES_AT + round(_NAME_LETTER * longest))}


def _unit(chart: TrendChart) -> tuple[float, str]:
    """What values are multiplied by to be drawn, and the unit they are then in."""
    name, values = chart.metric, [abs(one.value) for series in chart.series for one in series.values]
    if name.startswith("usd_"):
        return 1.0, "$"
    if name.endswith("_ratio"):
        return 100.0, "%"
    if name.startswith("output_tokens_per_"):
        return 1.0, "tok/s"
    if name.endswith("_per_s"):
        return 1.0, "req/s"
    if name.endswith("_nats"):
        return 1.0, "nats"
    if name.endswith("_s"):
        return (1.0, "s") if max(values, default=0.0) >= 10 else (1e3, "ms")
    return 1.0, ""


def _span(chart: TrendChart, factor: float) -> tuple[float, float]:
    """From where to where the axis goes: around all values and limits, from 0 where that costs little."""
    values = [one for series in chart.series for one in series.values]
    ends = [end * factor for one in values for end in (one.value, one.lower, one.upper) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    room = _ROOM * (high - low) or _ROOM * abs(high) or 1.0
    from_zero = 0 <= low <= _FROM_ZERO * high
    return _rounded(0.0 if from_zero else low - room), _rounded(high + room)


def _frame(x: _Spec, y: _Spec, title: str) -> _Spec:
    """The first layer, whose axis is the chart's: its title lies flat above it, as a reader reads."""
    axis: _Spec = {
        "title": title,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleX": -34,
        "titleY": -28,
    }
    axis |= {"titleBaseline": "middle", "tickCount": 4, "grid": True, "labelOverlap": False}
    mark = {"type": "point", "opacity": 0, "size": 0}
    return {
        "data": {"values": [{"x": 0}]},
        "mark": mark,
        "encoding": {"x": x, "y": {"field": "y", **y, "axis": axis}},
    }


def _days(days: Sequence[str], x: _Spec) -> Iterator[_Spec]:
    """The first, the last and where there is room the middle day below the plot, each once; and which way time goes."""
    last = len(days) - 1
    wanted = {days[at]: at for at in (last, last // 2, 0)} if days else {}
    if len(wanted) == 3 and not _fit(list(wanted), WIDTH * last / len(days)):
        wanted = {days[at]: at for at in (last, 0)}
    for day, at in wanted.items():
        align = "center"
        if len(wanted) > 1:
            align = "left" if at == 0 else "right" if at == last else "center"
        yield _below(day, at, align, 8, x)
    if len(days) > 1:
        y = 8 + _LINE * (1 + max(day.count("\n") for day in days))
        yield _below("← oldest", 0, "left", y, x)
        yield _below("newest →", last, "right", y, x)


def _fit(days: Sequence[str], width: float) -> bool:
    """Whether they lie side by side without meeting."""
    letters = sum(len(day.partition("\n")[0]) for day in days)
    return letters * _DAY_LETTER + _DAYS_APART * (len(days) - 1) <= width


def _below(words: str, at: int, align: str, y: int, x: _Spec) -> _Spec:
    """Words `y` pixels below the plot, at the place of a run."""
    mark = {"type": "text", "align": align, "baseline": "top", "y": HEIGHT + y, "fontSize": 11, "lineBreak": "\n"}
    return {"data": {"values": [{"x": at, "day": words}]}, "mark": mark, "encoding": {"x": x, "text": {"field": "day"}}}


def _marks(marks: Sequence[TrendMark], x: _Spec) -> Iterator[_Spec]:
    """A dashed rule where something changed, with all its letters above."""
    by_place = {at: "".join(sorted({one.letter for one in some})) for at, some in groupby(_by_place(marks), _place)}
    if not by_place:
        return
    data = {"values": [{"x": at - 0.5, "letters": letters} for at, letters in by_place.items()]}
    rule = {"type": "rule", "color": PAGE_COLOUR, "opacity": 0.6, "strokeDash": [3, 3]}
    text = {"type": "text", "y": -10, "fontSize": 11, "fontWeight": "bold"}
    yield {"data": data, "mark": rule, "encoding": {"x": x}}
    yield {"data": data, "mark": text, "encoding": {"x": x, "text": {"field": "letters"}}}


def _place(mark: TrendMark) -> int:
    return mark.at


def _by_place(marks: Sequence[TrendMark]) -> list[TrendMark]:
    return sorted(marks, key=_place)


def _parts(series: TrendSeries, breaks: frozenset[int], metric: str, factor: float, beside: float) -> list[list[_Spec]]:
    """The values as they are drawn, `beside` their places, and cut where a line may not go through."""
    parts: list[list[_Spec]] = []
    before: int | None = None
    for one in series.values:
        if before is None or any(before < at <= one.at for at in breaks):
            parts.append([])
        ends = {name: end for name, end in (("low", one.lower), ("high", one.upper)) if end is not None}
        drawn = {name: _rounded(end * factor) for name, end in (("y", one.value), *ends.items())}
        told = {"state": _state(one), "ring": one.promoted, "told": _told(one, series.name, metric)}
        parts[-1].append({"x": _rounded(one.at + beside), "part": len(parts), **told, **drawn})
        before = one.at
    return parts


def _told(one: TrendValue, line: str, metric: str) -> str:
    """Line and run with the value as the table has it."""
    became = ("promoted" if one.promoted else "", _STATES_TOLD[_state(one)], one.doubt)
    of = ", ".join(filter(None, (one_line(line, _LONGEST), one.run, *became)))
    return one_line(f"{of}: {value_with_limits(metric, one.value, one.lower, one.upper)}")


def _state(one: TrendValue) -> str:
    """By its verdict, whoever promoted it all the same."""
    return "let through" if one.promotes else "invalid" if one.invalid else "not"


def _line(number: int, parts: list[list[_Spec]], places: int, x: _Spec, y: _Spec) -> Iterator[_Spec]:
    colour, size = _COLOURS[number], 50 if places <= 20 else 22 if places <= 40 else 12
    across: _Spec = {"x": x, "detail": {"field": "part"}}
    up: _Spec = {"y": {"field": "y", **y}}
    within: _Spec = {"y": {"field": "low", **y}, "y2": {"field": "high"}}
    every = [value for part in parts for value in part]
    bands = [value for part in parts for some in _with_limits(part) if len(some) > 1 for value in some]
    alone = [value for part in parts for some in _with_limits(part) if len(some) == 1 for value in some]
    stroke: _Spec = {"type": "line", "color": colour, "strokeWidth": 1.5, "strokeDash": _DASHES[number]}
    yield from _layer({"type": "area", "color": colour, "opacity": 0.18}, bands, across | within)
    yield from _layer({"type": "rule", "color": colour, "opacity": 0.5}, alone, {"x": x} | within)
    yield from _layer(stroke, every, across | up)
    for state in _STATES_TOLD:
        some = [value for value in every if value["state"] == state]
        shape = _CROSS if state == "invalid" else _SHAPES[number]
        point: _Spec = {"type": "point", "shape": shape, "size": size, "opacity": 1, "color": colour} | TOLD
        filled = state == "let through"
        point |= {} if filled else {"fill": colour, "fillOpacity": 0}  # a hollow one can be pointed at
        yield from _layer(point | {"filled": filled, "strokeWidth": 1}, some, {"x": x} | up)
    ring: _Spec = {"type": "point", "shape": "circle", "size": max(90, 3 * size), "filled": False, "strokeWidth": 1.5}
    promoted = [value for value in every if value["ring"]]
    yield from _layer(ring | {"color": PAGE_COLOUR, "opacity": 1}, promoted, {"x": x} | up)


def _layer(mark: _Spec, values: list[_Spec], encoding: _Spec) -> Iterator[_Spec]:
    if values:
        yield {"data": {"values": values}, "mark": mark, "encoding": encoding}


def _with_limits(part: list[_Spec]) -> Iterator[list[_Spec]]:
    """Stretches of values that have limits; each one a band of its own."""
    for there, some in groupby(part, lambda value: "low" in value and "high" in value):
        if there:
            stretch = list(some)
            yield [value | {"part": stretch[0]["x"]} for value in stretch]


def _names(chart: TrendChart, factor: float, low: float, high: float) -> Iterator[_Spec]:
    """Every line's name beside its last value, moved apart where they would lie on each other."""
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
    """Places from the top down, at least a line of text apart, and inside the plot."""
    placed = list[float]()
    for pixel in pixels:
        placed.append(max(pixel, placed[-1] + _LABEL_GAP) if placed else pixel)
    beyond = max(0.0, placed[-1] - HEIGHT) if placed else 0.0
    placed = [pixel - beyond for pixel in placed]
    assert all(b - a >= _LABEL_GAP - 1e-6 for a, b in pairwise(placed)), "moved as one"
    return placed


def _rounded(value: float) -> float:
    """No finer than anyone sees: the last bits differ between machines."""
    return float(f"{value:.{_DIGITS}g}")
