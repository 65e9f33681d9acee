"""Several candidates' quality against their cost: text, JSON, rows, a table for a page, and a chart."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchgate.errors import UsageError
from benchgate.escape import one_line
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Outcome
from benchgate.report import charts
from benchgate.report.charts import Figure, Spec
from benchgate.report.screen import PLAIN, Screen, fitting_table
from benchgate.report.sections.cost import price_and_use, saving_text
from benchgate.report.table import Column, Table
from benchgate.sizing.candidates import CandidateRow, CandidateTable
from benchgate.sizing.frontier import FrontierPosition, FrontierStatus
from benchgate.sizing.operating_point import GOOD
from benchgate.stats.meta import EstimateWithLimits
from benchgate.units import show_percent, show_usd

SCHEMA = "benchgate.frontier/1"
COLUMNS = (
    *("suite", "name", "role", "run", "label", "started_at", "verdict", "fault", "on_frontier", "others"),
    *("quality", "quality_lower", "quality_upper", "cost_metric", "stage", "usd", "usd_lower", "usd_upper"),
    *("share_of_baseline", "share_of_baseline_lower", "share_of_baseline_upper"),
    *("usd_per_correct", "usd_per_correct_lower", "usd_per_correct_upper", "price_usd_per_hour", "accelerators"),
    *("passes", "set_apart", "held_back", "waived", "newer_run", "policy_sha256", "cheapest_that_passes", "why_none"),
    "figures_from",
)
_LONGEST = 200
_NOTHING = "-"


def frontier_document(found: CandidateTable) -> dict[str, object]:
    """Return the comparison as plain JSON; an unknown number has its reason."""
    best, saved = found.cheapest, found.saving
    return {
        "schema": SCHEMA,
        "suite": found.suite,
        "cost_metric": found.cost,
        "tasks": list(found.tasks),
        "rows": [_row_document(row) for row in found.rows],
        "cheapest_that_passes": None
        if best is None
        else {"name": best.name, "not_shown_dearer": list(best.unsure), "saving_ratio": _number(saved)},
        "why_none": found.why_none,
        "notes": list(found.notes),
    }


def _row_document(row: CandidateRow) -> dict[str, object]:
    deployment, stand = row.run.arms.get(row.arm), _position(row)
    return {
        "name": row.name,
        "role": row.arm.value,
        "run": row.run.id,
        "label": row.run.label,
        "started_at": row.run.started_at,
        "verdict": None if row.outcome is None else row.outcome.value,
        "fault": row.fault,
        "passes": row.passes,
        "set_apart": row.apart,
        "held_back": row.held_back,
        "figures_from": _source(row),
        "waived": [
            {"check": one.check, "outcome": one.outcome, "expires": one.expires.isoformat()} for one in row.waived
        ],
        "newer_run": None if row.newer is None else row.newer.description,
        "policy_sha256": row.judged_by,
        "on_frontier": stand.standing.value,
        "others": list(stand.others),
        "stage": row.stage,
        "quality_ratio": _number(row.quality),
        "usd_per_million": _number(row.usd),
        "share_of_baseline": _number(row.share),
        "usd_per_correct": _number(row.usd_per_correct),
        "price_usd_per_hour": None if deployment is None else deployment.price_usd_per_hour,
        "accelerators": None if deployment is None else deployment.accelerators,
        "price_terms": {} if deployment is None else deployment.price_terms,
        "token_prices": {} if deployment is None else deployment.token_prices,
    }


def _number(figure: EstimateWithLimits | str | None) -> dict[str, object]:
    if not isinstance(figure, EstimateWithLimits):
        return {"value": None, "lower": None, "upper": None, "why": figure}
    limits = figure.limits
    ends = (None, None) if limits is None else (limits.lower, limits.upper)
    return {"value": figure.value, "lower": ends[0], "upper": ends[1], "why": None}


def frontier_rows(found: CandidateTable) -> Iterator[tuple[object, ...]]:
    """Yield a row of COLUMNS for each deployment; None is unknown."""
    for row in found.rows:
        deployment, stand = row.run.arms.get(row.arm), _position(row)
        identity = (found.suite, row.name, row.arm.value, row.run.id, row.run.label, row.run.started_at)
        outcome = (None if row.outcome is None else row.outcome.value, row.fault, stand.standing.value)
        price = (None, None) if deployment is None else (deployment.price_usd_per_hour, deployment.accelerators)
        best = found.cheapest is not None and found.cheapest.name == row.name and row.arm is Arm.CANDIDATE
        waived = " ".join(one.check for one in row.waived) or None
        since = (row.apart, row.held_back, waived, None if row.newer is None else row.newer.description, row.judged_by)
        yield (
            *(*identity, *outcome, " ".join(stand.others), *_ends(row.quality), found.cost, row.stage, *_ends(row.usd)),
            *(*_ends(row.share), *_ends(row.usd_per_correct), *price, "yes" if row.passes else "no", *since),
            *("yes" if best else "no", found.why_none, _source(row)),
        )


def _source(row: CandidateRow) -> str | None:
    """Return what its figures were made from; None for an excluded run."""
    if row.fault is not None:
        return None
    return "records" if row.unchecked is None else "stored figures"


def _ends(figure: EstimateWithLimits | str) -> tuple[object, ...]:
    known = _number(figure)
    return known["value"], known["lower"], known["upper"]


def frontier_text(found: CandidateTable, screen: Screen = PLAIN) -> str:
    """Render the table, its notes, and last the cheapest candidate that passes."""
    tasks, subject = one_line(", ".join(found.tasks) or "no task"), cost_subject(found)
    about = f"Suite {one_line(found.suite)}: quality is accuracy over {tasks}; dollars are per 1M {subject}."
    table = fitting_table(screen, _TITLES, [_cells(row) for row in found.rows])
    after = [
        *reasons(found.rows),
        *(f"Note: {note}." for note in found.notes),
        "In brackets are 95 % intervals, of each number by itself; where two overlap, nothing is shown.",
        "One is cheaper than another where its dollars show it, and its share of what the baseline beside it costs.",
        "A right answer is paid by the output tokens that the evals generated, by the server's own count.",
        "",
        last_line(found),
    ]
    lines = (*screen.folded([about]), "", *table, "", *screen.folded(after))
    return "".join(f"{line}\n" for line in lines)


def frontier_table(found: CandidateTable) -> Table:
    """Return the table for a page, without the cost of right answers."""
    texts = {"deployment", "verdict", "price", "level", "frontier"}
    kept = [at for at, title in enumerate(_TITLES) if title != _PER_ANSWER]
    columns = tuple(Column(_TITLES[at], numeric=_TITLES[at] not in texts) for at in kept)
    rows = tuple(
        tuple(cells[at].replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}") for at in kept)
        for cells in map(_cells, found.rows)
    )
    return Table("Quality against cost, with 95 % intervals", columns, rows)


_PER_ANSWER = "$/1M right answers"
_OF_BASELINE = "of baseline's"
_TITLES = ("deployment", "verdict", "quality", "$/1M tokens", _OF_BASELINE, _PER_ANSWER, "price", "level", "frontier")


def cost_subject(found: CandidateTable) -> str:
    """Return the kind of tokens that a million are priced of."""
    tokens = "good tokens (SLO met)" if found.cost.startswith(GOOD) else "output tokens (the suite has no SLO)"
    return f"{tokens}, as used" if found.cost.endswith("_in_use") else tokens


def _cells(row: CandidateRow) -> tuple[str, ...]:
    paid = row.run.arms.get(row.arm)
    price = "no price" if paid is None or not paid.has_price else price_and_use(paid)
    share = _NOTHING if row.arm is Arm.BASELINE else shown(row.share, percent=True)
    numbers = (shown(row.quality, percent=True), shown(row.usd), share)
    where = _NOTHING if row.stage is None else row.stage
    cells = (
        row.name,
        ", ".join((outcome_of(row), *marks(row))),
        *numbers,
        _NOTHING if isinstance(row.usd_per_correct, str) else shown(row.usd_per_correct.times(1e6)),
        price,
        where,
        position_text(_position(row)) if row.apart is None else "not comparable",
    )
    return tuple(one_line(cell, _LONGEST) for cell in cells)


def outcome_of(row: CandidateRow) -> str:
    """Return the outcome of its run; a dash for the baseline."""
    if row.arm is Arm.BASELINE:
        return _NOTHING
    return "no verdict" if row.outcome is None else row.outcome.value


def marks(row: CandidateRow) -> tuple[str, ...]:
    """Return a word for each reservation about its verdict and numbers."""
    states = {
        "not comparable": row.apart is not None,
        "waived": bool(row.waived) and row.passes,
        "held back": row.held_back is not None,
        "older": row.newer is not None,
        "unchecked": row.unchecked is not None and row.fault is None,
    }
    return tuple(word for word, holds in states.items() if holds)


def shown(figure: EstimateWithLimits | str, *, percent: bool = False) -> str:
    """Show a share or dollars with its interval; a dash where unknown."""
    if isinstance(figure, str):
        return _NOTHING
    of = show_percent if percent else show_usd
    if figure.limits is None:
        return f"{of(figure.value)} (no interval)"
    return f"{of(figure.value)} ({of(figure.limits.lower)} to {of(figure.limits.upper)})"


def position_text(stand: FrontierPosition) -> str:
    """`no: f8 is as good and cheaper`."""
    others = ", ".join(stand.others)
    if stand.standing is FrontierStatus.OFF:
        return f"no: {others} {'is' if len(stand.others) == 1 else 'are'} as good and cheaper"
    return f"not shown against {others}" if stand.standing is FrontierStatus.NOT_SHOWN else stand.standing.value


def reasons(rows: Sequence[CandidateRow], *, per_answer: bool = True) -> Iterator[str]:
    """Yield the reason for each dash and mark in the table; `per_answer` includes the cost of right answers."""
    for row in rows:
        name = one_line(row.name)
        yield from (f"{name} {one_line(mark)}." for mark in _marked(row))
        if row.fault is not None:
            yield f"{name} is not counted: {one_line(row.fault)}."
            continue
        unknown: dict[str, str] = {}
        figures = {"quality": row.quality, "cost": row.usd, "share of what its baseline costs": row.share}
        for what, figure in (figures | ({"cost of a right answer": row.usd_per_correct} if per_answer else {})).items():
            if isinstance(figure, str):
                unknown.setdefault(figure, what)
        for why, what in unknown.items():
            yield f"{name} has no {what}: {one_line(why)}."


def _marked(row: CandidateRow) -> Iterator[str]:
    """Yield what each mark means, to stand after a name."""
    if row.apart is not None:
        yield f"cannot be compared with the others: {row.apart}"
    if row.held_back is not None:
        yield f"does not pass: {row.held_back}"
    elif row.waived and row.passes:
        waived = ", ".join(f"{one.check} ({one.outcome}) until {one.expires}" for one in row.waived)
        yield f"passes by a waiver alone: of {waived}"
    if row.newer is not None:
        yield f"stands here by an older run; its newest is {row.newer.description}"
    if row.unchecked is not None and row.fault is None:
        yield f"has stored figures, nothing here can check them: {row.unchecked}"


def last_line(found: CandidateTable) -> str:
    """Return the cheapest candidate that passes and what it saves, or why there is none."""
    best = found.cheapest
    if best is None:
        return f"Nothing is the cheapest that passes: {one_line(found.why_none or '')}."
    row = next(row for row in found.rows if row.name == best.name)
    became = ", ".join((outcome_of(row), *marks(row)))
    among = ", of those that can be compared," if found.some_apart else ""
    cost = f"{shown(row.usd)}, {_saved(found.saving)}"
    line = f"The cheapest that passes{among} is {one_line(best.name)} ({became}): {cost}."
    if not best.unsure:
        return line
    passes = "passes too and is" if len(best.unsure) == 1 else "pass too and are"
    return f"{line} {one_line(', '.join(best.unsure))} {passes} not shown to be dearer."


def _saved(saving: EstimateWithLimits | str | None) -> str:
    if not isinstance(saving, EstimateWithLimits):
        return one_line(f"against the baseline nothing is known: {saving}")
    return saving_text(saving)


def _position(row: CandidateRow) -> FrontierPosition:
    return row.stand or FrontierPosition(FrontierStatus.NOT_COUNTED)


# The chart: quality up, dollars on a logarithmic axis across.

_WIDTH, _HEIGHT = 300, 220
_PADDING = {"left": 52, "right": 84, "top": 40, "bottom": 94}
_SHAPES = {
    Outcome.PASS: "circle",
    Outcome.WARN: "triangle-up",
    Outcome.BLOCK: "square",
    Outcome.INCONCLUSIVE: "diamond",
}
_BASELINE_SHAPE = "cross"
_ROOM = 0.06  # of the span, beyond its ends
_LETTER_PX, _LINE_PX = 6.4, 14
_NAME_X_PX, _NAME_Y_PX = 7, 9  # from the middle of a point to its name
_MARK_PX = 6  # from the middle of a point to its edge
_NOTES_LEFT, _NOTES_DOWN = -44.0, _HEIGHT + 100.0
_NOTE_LETTERS = 72  # a line


@dataclass(frozen=True, slots=True)
class _Point:
    row: CandidateRow
    quality: EstimateWithLimits
    usd: EstimateWithLimits


def frontier_figure(found: CandidateTable, anchor: str, caption: str, table: Table) -> Figure:
    """Return the chart for a page that has its notes. Raises UsageError where nothing has both quality and cost."""
    points = _drawn(found)
    title = f"Accuracy against cost of 1M {cost_subject(found)}"
    return Figure(anchor, title, caption, _spec(found, points, []), _label(points), table)


def frontier_file(found: CandidateTable) -> str:
    """Return the chart as an SVG file of its own, with the table's notes below it."""
    points = _drawn(found)
    return charts.svg_file(_spec(found, points, _notes(found)), _label(points))


def frontier_png(found: CandidateTable) -> bytes:
    """Return the same in pixels."""
    return charts.png_file(_spec(found, _drawn(found), _notes(found)))


def _drawn(found: CandidateTable) -> list[_Point]:
    points = [
        _Point(row, row.quality, row.usd)
        for row in found.rows
        if isinstance(row.quality, EstimateWithLimits) and isinstance(row.usd, EstimateWithLimits)
    ]
    if not points:
        whys = " ".join(reasons(found.rows, per_answer=False))
        raise UsageError(f"nothing can be drawn, for no deployment has both quality and cost. {whys}")
    return points


def _notes(found: CandidateTable) -> list[str]:
    sentences = [*reasons(found.rows, per_answer=False), *(f"Note: {one_line(note)}." for note in found.notes)]
    return [line for one in (*sentences, last_line(found)) for line in textwrap.wrap(one, _NOTE_LETTERS)]


def _label(points: Sequence[_Point]) -> str:
    return f"Quality against cost of {len(points)} deployments: " + "; ".join(_title(one) for one in points)


def _title(one: _Point) -> str:
    row = one.row
    outcome = "baseline" if row.arm is Arm.BASELINE else outcome_of(row)
    numbers = f"quality {shown(one.quality, percent=True)}, {shown(one.usd)}"
    stand = "" if row.stand is None or row.apart is not None else f", on the frontier: {position_text(row.stand)}"
    return one_line(f"{', '.join((row.name, outcome, *marks(row)))}: {numbers}{stand}")


def _spec(found: CandidateTable, points: Sequence[_Point], notes: Sequence[str]) -> Spec:
    low, high = _span([100 * end for one in points for end in _values_of(one.quality)], 0.5)
    low, high = max(0.0, low), min(100.0, high)
    least, most = (
        math.exp(end) for end in _span([math.log(end) for one in points for end in _values_of(one.usd)], 0.05)
    )
    x = charts.log_x(f"$ per 1M {cost_subject(found)}", charts.rounded(least), charts.rounded(most))
    domain = [charts.rounded(low), charts.rounded(high)]
    y: Spec = {"type": "quantitative", "scale": {"domain": domain, "nice": False, "zero": False}}
    values = [_value(one) for one in points]
    title = f"accuracy over {len(found.tasks)} task{'s' if len(found.tasks) != 1 else ''}, %"
    axis = charts.flat_title(title, x=-40, y=-22) | {"tickCount": 5}
    frame = charts.layer(
        charts.HIDDEN_POINT | {"clip": True}, [{"x": 1, "y": 0}], x=x, y={"field": "y", **y, "axis": axis}
    )
    layers = [frame, *_crosses(values, x, y), *_points(values, x, y), *_names(values, (least, most), (low, high))]
    layers += [*_key(), *(_words(line, _NOTES_LEFT, _NOTES_DOWN + _LINE_PX * at) for at, line in enumerate(notes))]
    bottom = _PADDING["bottom"] + (_LINE_PX * (len(notes) + 1) if notes else 0)
    padding = {**_PADDING, "bottom": bottom}
    return charts.chart_spec(layers, width=_WIDTH, height=_HEIGHT, padding=padding, shared=("x", "y"))


def _span(ends: Sequence[float], least: float) -> tuple[float, float]:
    """Return the ends of an axis around everything drawn, with `least` room on either side."""
    low, high = min(ends), max(ends)
    room = max(_ROOM * (high - low), least)
    return low - room, high + room


def _values_of(figure: EstimateWithLimits) -> list[float]:
    limits = figure.limits
    return [figure.value] if limits is None else [limits.lower, figure.value, limits.upper]


def _value(one: _Point) -> Spec:
    row = one.row
    baseline = row.arm is Arm.BASELINE
    name = charts.short_name(row.name.removesuffix(" (baseline)") if baseline else row.name)
    drawn: Spec = {
        "x": charts.rounded(one.usd.value),
        "y": charts.rounded(100 * one.quality.value),
        "title": _title(one),
        "shape": _BASELINE_SHAPE if baseline or row.outcome is None else _SHAPES[row.outcome],
        "colour": charts.COLOURS[Arm.BASELINE if baseline or row.apart is not None else Arm.CANDIDATE],
        "name": f"{name} ({', '.join(marks(row))})" if marks(row) else name,
        "filled": row.stand is not None and row.stand.standing is FrontierStatus.ON,
    }
    if one.usd.limits is not None:
        drawn |= {"left": charts.rounded(one.usd.limits.lower), "right": charts.rounded(one.usd.limits.upper)}
    if one.quality.limits is not None:
        limits = one.quality.limits
        drawn |= {"low": charts.rounded(100 * limits.lower), "high": charts.rounded(100 * limits.upper)}
    return drawn


def _crosses(values: Sequence[Spec], x: Spec, y: Spec) -> Iterator[Spec]:
    rule: Spec = {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6}
    colour: Spec = {"field": "colour", "type": "nominal", "scale": None}
    across, up = ([value for value in values if key in value] for key in ("left", "low"))
    yield charts.layer(
        rule, across, x=x | {"field": "left"}, x2={"field": "right"}, y={"field": "y", **y}, color=colour
    )
    yield charts.layer(rule, up, x=x, y={"field": "low", **y}, y2={"field": "high"}, color=colour)


def _points(values: Sequence[Spec], x: Spec, y: Spec) -> Iterator[Spec]:
    for value in sorted(values, key=lambda one: not one["filled"]):
        mark: Spec = {"type": "point", "size": 90, "opacity": 1, "filled": value["filled"], "strokeWidth": 1.5}
        mark |= {"shape": value["shape"], "color": value["colour"]} | charts.TITLED
        mark |= {} if value["filled"] else {"fill": value["colour"], "fillOpacity": 0}  # so that it reacts to hovering
        yield charts.layer(mark, [value], x=x, y={"field": "y", **y})


def _names(values: Sequence[Spec], dollars: tuple[float, float], shares: tuple[float, float]) -> Iterator[Spec]:
    """Yield each name next to its point, where it covers no other name and no point."""
    points = [
        (
            _WIDTH * math.log(float(str(value["x"])) / dollars[0]) / math.log(dollars[1] / dollars[0]),
            _HEIGHT * (shares[1] - float(str(value["y"]))) / (shares[1] - shares[0]),
        )
        for value in values
    ]
    taken = [_Box(x - _MARK_PX, x + _MARK_PX, y - _MARK_PX, y + _MARK_PX) for x, y in points]
    for value, (x, y) in zip(values, points, strict=True):
        box = _free_box(x, y, _LETTER_PX * len(str(value["name"])), taken)
        taken.append(box)
        yield _words(value["name"], box.left, (box.top + box.bottom) / 2)


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle in pixels from the upper left corner of the plot."""

    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def _free_box(x: float, y: float, width: float, taken: Sequence[_Box]) -> _Box:
    """Return room for a name right or left of its point, else some lines above or below, inside the plot's height."""
    sides = (x + _NAME_X_PX, x - _NAME_X_PX - width)
    rows = [y + way * (_NAME_Y_PX + _LINE_PX * n) for n in range(_HEIGHT // _LINE_PX) for way in (-1, 1)]
    boxes = [_Box(left, left + width, row - _LINE_PX / 2, row + _LINE_PX / 2) for row in rows for left in sides]
    within = [box for box in boxes if box.left > 0 and box.right < _WIDTH + _PADDING["right"]]
    within = [box for box in within if box.top >= 0 and box.bottom <= _HEIGHT] or boxes
    return next((box for box in within if not any(box.meets(other) for other in taken)), within[0])


def _key() -> Iterator[Spec]:
    """Yield the meaning of the shapes, below the plot."""
    across, down = 6.0, _HEIGHT + 58.0
    for words, shape in (
        *((outcome.value, shape) for outcome, shape in _SHAPES.items()),
        ("baseline", _BASELINE_SHAPE),
    ):
        if shape == _BASELINE_SHAPE:
            across, down = 6.0, down + 18
        mark: Spec = {"type": "point", "shape": shape, "size": 50, "filled": True, "opacity": 1}
        yield charts.layer(mark | {"x": round(across, 1), "y": down, "color": charts.PAGE_COLOUR}, [{}])
        yield _words(words, across + 9, down)
        across += 24 + _LETTER_PX * 1.25 * len(words)
    yield _words("filled: on the frontier", across, down)


def _words(words: object, x: float, y: float) -> Spec:
    mark: Spec = {"type": "text", "align": "left", "baseline": "middle", "fontSize": 11}
    return charts.layer(mark | {"x": round(x, 1), "y": round(y, 1)}, [{"words": words}], text={"field": "words"})
