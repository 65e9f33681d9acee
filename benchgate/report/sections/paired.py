"""The section block by block: the differences that the checks of the load rest on, one chart a check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate import units
from benchgate.gate.summary.figures import BlockDifferences, block_differences
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Scale, Verdict
from benchgate.report import charts, display
from benchgate.report.charts import Figure, Name, Spec
from benchgate.report.section import Charts, Fold, Section, notes, present
from benchgate.report.table import Column, Table
from benchgate.stats.distributions import LARGEST_EXPONENT
from benchgate.suite.schema import Suite

_MAX_DRAWN = 12
_OPEN = 2
_ROOM = 0.12  # of the span, above and below
_FAR = 4.0  # a margin so many times the largest change would press the points flat
_NOTE = (
    "In each block both arms get the same requests, one arm right after the other. A check uses the mean of the blocks "
    "(line) and its confidence interval (band)."
)


@dataclass(frozen=True, slots=True)
class PairedCheck:
    """A check with the change in each block, in per cent of the baseline's value or in points of a share.

    `changes` are None where the candidate alone has no finite value. `numbers` are their blocks from 1 (their places,
    where blocks were grouped), `excluded` the other blocks with the reason. `margins` are one, or one on either side.
    """

    id: str
    title: str
    unit: str
    changes: tuple[float | None, ...]
    group_size: int
    mean: float | None
    lower: float | None
    upper: float | None
    margins: tuple[float, ...]
    worse_is_up: bool
    numbers: tuple[int, ...]
    excluded: tuple[tuple[int, str], ...]

    @property
    def point(self) -> str:
        """The name of a point."""
        return "block" if self.group_size == 1 else "group"

    def shown(self, value: float | None) -> str:
        """Return a change with its sign and unit, and with the digits that keep it on its own side of the margin."""
        if value is None:
            return display.NOT_APPLICABLE
        nearest = min(self.margins, key=lambda margin: abs(margin - value))
        return units.beside(self._show, value / 100, nearest / 100)

    @property
    def margin(self) -> str:
        """The margin with its sign and unit, or both."""
        return " to ".join(units.as_written(self._show, margin / 100) for margin in self.margins)

    @property
    def _show(self) -> units.Show:
        return display.signed_percent if self.unit.endswith("%") else display.points


def paired_section(evidence: Evidence, verdict: Verdict, suite: Suite) -> Section | None:
    """Return the section; None where no check compares blocks of one run."""
    checks = paired_checks(evidence, verdict, suite)
    if not checks:
        return None
    figures = paired_figures(checks[:_MAX_DRAWN])
    rest, left = figures[_OPEN:], len(checks) - len(figures)
    parts = present(
        Charts(figures[:_OPEN]),
        notes(_NOTE),
        Fold(f"{len(rest)} more checks", (Charts(rest),)) if rest else None,
        notes(f"{left} more {'check is' if left == 1 else 'checks are'} not drawn; see the table of checks.")
        if left
        else None,
    )
    return Section("blocks", "Differences by block", parts, link="Blocks")


def paired_checks(evidence: Evidence, verdict: Verdict, suite: Suite) -> list[PairedCheck]:
    """Return the checks that compare blocks: failing ones first, then required ones before advisory ones."""
    found = {one.id: one for one in block_differences(suite, evidence)}
    passing = (check for check in verdict.checks if check.outcome is Outcome.PASS)
    ordered = [*verdict.failing(), *sorted(passing, key=lambda check: not check.required)]
    comparable = (Scale.LOG_RATIO, Scale.DIFFERENCE)
    return [_paired(check, found[check.id]) for check in ordered if check.id in found and check.scale in comparable]


def _paired(check: CheckResult, found: BlockDifferences) -> PairedCheck:
    ends = sorted(one for one in (_change(check, end) for end in (check.lower, check.upper)) if one is not None)
    sides = (-check.margin, check.margin) if check.two_sided else (check.margin,)
    numbered = range(len(found.regressions)) if found.together > 1 else found.blocks
    return PairedCheck(
        id=found.id,
        title=check.title,
        unit="change, %" if check.scale is Scale.LOG_RATIO else "change, points",
        changes=tuple(_change(check, harm) for harm in found.regressions),
        group_size=found.together,
        mean=_change(check, check.harm),
        lower=ends[0] if len(ends) == 2 else None,
        upper=ends[1] if len(ends) == 2 else None,
        margins=tuple(sorted(one for side in sides if (one := _change(check, side)) is not None)),
        worse_is_up=not display.higher_is_better(check.metric),
        numbers=tuple(number + 1 for number in numbered),
        excluded=tuple((block + 1, why) for block, why in found.left_out),
    )


def _change(check: CheckResult, regression: float | None) -> float | None:
    """Return a regression as the value's own change; None where it is not finite."""
    if regression is None or not math.isfinite(regression):
        return None
    moved = -regression if display.higher_is_better(check.metric) else regression
    if check.scale is Scale.DIFFERENCE:
        return moved * 100
    return math.expm1(moved) * 100 if moved < LARGEST_EXPONENT else None


def paired_figures(checks: Sequence[PairedCheck]) -> tuple[Figure, ...]:
    """Return one chart each."""
    anchors = charts.anchors_of(f"figure-blocks-{check.id}" for check in checks)
    return tuple(_figure(check, anchor) for check, anchor in zip(checks, anchors, strict=True))


def _figure(check: PairedCheck, anchor: str) -> Figure:
    bottom, top, margins = _span(check)
    names = [Name("no change", charts.pixels(0.0, top, bottom), charts.PAGE_COLOUR)]
    names += [Name("margin", charts.pixels(margin, top, bottom), charts.PAGE_COLOUR) for margin in margins]
    if check.mean is not None:
        names.append(Name("mean", charts.pixels(check.mean, top, bottom), charts.COLOURS[Arm.CANDIDATE]))
    layers: list[Spec] = []
    if check.mean is not None and check.lower is not None and check.upper is not None:
        colour, y = charts.COLOURS[Arm.CANDIDATE], charts.y_field(top, bottom)
        ends = [{"y": _rounded(check.lower), "y2": _rounded(check.upper)}]
        band: Spec = {"type": "rect", "color": colour, "opacity": 0.16}
        line: Spec = {"type": "rule", "color": colour, "strokeWidth": 2}
        layers.append(charts.layer(band, ends, y=y, y2={"field": "y2"}))
        layers.append(charts.layer(line, [{"y": _rounded(check.mean)}], y=y))
    layers.append(charts.rule_across(0.0, top, bottom, dashed=False))
    layers += [charts.rule_across(_rounded(margin), top, bottom) for margin in margins]
    layers += [_points(check, bottom, top), *charts.names_beside(names)]
    limits = f" ({check.shown(check.lower)} to {check.shown(check.upper)})" if check.lower is not None else ""
    title = f"{check.title}: {check.shown(check.mean)}{limits}, margin {check.margin}"
    worse = (
        "Either way is a change."
        if len(check.margins) > 1
        else f"{'Higher' if check.worse_is_up else 'Lower'} is worse."
    )
    caption = f"Change in each {check.point}. {worse}"
    if check.group_size > 1:
        caption = f"Change in each group of at least {check.group_size} blocks. {worse}"
    if not margins:
        caption += " The margin lies outside the plot."
    missing = [str(number) for number, y in zip(check.numbers, check.changes, strict=True) if y is None]
    if missing:
        caption += f" Not drawn, because the candidate's requests failed: {', '.join(missing)}."
    if check.excluded:
        blocks = ", ".join(str(number) for number, _ in check.excluded)
        caption += f" Excluded: block{'s' if len(check.excluded) > 1 else ''} {blocks} (reasons in the numbers)."
    return Figure(anchor, title, caption, charts.plot(layers, check.unit, top, bottom=bottom), "", _numbers(check))


def _points(check: PairedCheck, bottom: float, top: float) -> Spec:
    values = [
        {"x": number, "y": _rounded(y), "title": f"{check.point} {number}: {check.shown(y)}"}
        for number, y in zip(check.numbers, check.changes, strict=True)
        if y is not None
    ]
    last = max((*check.numbers, *(number for number, _ in check.excluded if check.group_size == 1)))
    x = charts.linear_x(check.point, last + 0.5, smallest=0.5, whole=True)
    return charts.layer(charts.arm_mark(Arm.CANDIDATE) | charts.TITLED, values, x=x, y=charts.y_field(top, bottom))


def _span(check: PairedCheck) -> tuple[float, float, list[float]]:
    """Return the plot's lower and upper end and the margins inside it."""
    known = [y for y in (*check.changes, check.mean, check.lower, check.upper) if y is not None]
    largest = max((abs(y) for y in known), default=0.0)
    nearest = min(map(abs, check.margins))
    margins = [*check.margins] if nearest <= _FAR * largest or largest == 0 else []
    low, high = min(0.0, *known, *margins), max(0.0, *known, *margins)
    room = (high - low) * _ROOM or 1.0
    return _rounded(low - room), _rounded(high + room), margins


def _rounded(value: float) -> float:
    return charts.rounded(value, 5)


def _numbers(check: PairedCheck) -> Table:
    drawn = zip(check.numbers, check.changes, strict=True)
    points = [(number, (f"{check.point} {number}", check.shown(y))) for number, y in drawn]
    gaps = [(number, (f"block {number}", why)) for number, why in check.excluded]
    rows = [row for _, row in (sorted([*points, *gaps]) if check.group_size == 1 else [*points, *gaps])]
    rows += [("mean", check.shown(check.mean)), ("margin", check.margin)]
    return Table(f"{check.title}: the numbers drawn", (Column("of", numeric=False), Column("change")), tuple(rows))
