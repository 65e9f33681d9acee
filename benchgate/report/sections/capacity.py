"""The capacity section: every level that was searched, the brackets, the monotone fit, and why each search ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchgate import units
from benchgate.gate.checks.capacity import ReplayedSearch, replay_search
from benchgate.gate.decision import CannotJudge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.report import charts, display
from benchgate.report.charts import Figure, Name, Point
from benchgate.report.section import Charts, Lines, Section, notes, present
from benchgate.report.table import Table, number_columns, text_columns
from benchgate.stats.capacity_search import Probe
from benchgate.suite.schema import Suite

_NOTE = (
    "The highest load at which enough requests meet the SLO. It lies between the highest level shown to meet the "
    "target and the lowest shown to miss it; a level is shown to do either only when its limits say so."
)


@dataclass(frozen=True, slots=True)
class CapacityPoint:
    """A level of one side; shares from 0 to 1, `fitted` by the monotone fit over all levels."""

    role: Arm
    level: float
    share: float
    lower: float
    upper: float
    fitted: float | None


def capacity_section(evidence: Evidence, against: Evidence | None, suite: Suite, *, alone: bool) -> Section | None:
    """Return the section; None where no capacity was searched. `alone`: one deployment was measured, as candidate."""
    if suite.load is None or suite.load.capacity is None:
        return None
    sources = {Arm.BASELINE: (evidence, Arm.BASELINE), Arm.CANDIDATE: (evidence, Arm.CANDIDATE)}
    if against is not None:
        sources[Arm.BASELINE] = (against, Arm.CANDIDATE)
    if alone:
        del sources[Arm.BASELINE]
    searches: dict[Arm, ReplayedSearch] = {}
    lines: list[str] = []
    for role, (run, arm) in sources.items():
        try:
            searches[role] = replay_search(run, arm, suite)
            lines.append(_line(role, searches[role]))
        except CannotJudge as cannot:
            lines.append(f"{role.value}: {cannot.reason}; {cannot.advice}")
    over = suite.load.capacity.over
    table = _table(searches, over)
    target = next((search.settings.target_ratio for search in searches.values()), 0.0)
    points = [point for role, search in searches.items() for point in _points(role, search)]
    figure = capacity_figure(
        points, "requests per second" if over == "rate" else "requests in flight", target, tuple(lines), table
    )
    shown = table if figure is None else Charts((figure,), show_numbers=True)
    parts = present(notes(_NOTE), Lines(tuple(lines)), shown)
    return Section("capacity", "Capacity", parts, summary=(Lines(tuple(lines)), table), rank=6)


def _line(role: Arm, search: ReplayedSearch) -> str:
    middle, needs = search.middle, search.result.needs
    estimate = f"; best single number {display.number(middle)}" if middle is not None else ""
    more = f"; about {needs:,} more requests at a level would resolve one" if needs is not None else ""
    return f"{search.describe(role)}{estimate}{more}"


def _table(searches: Mapping[Arm, ReplayedSearch], over: str) -> Table:
    columns = (
        *(*text_columns("arm"), *number_columns("level"), *text_columns("result"), *number_columns("goodput")),
        *number_columns("interval", "fit", "measured for", "requests counted", "requests sent"),
    )
    rows: list[tuple[str, ...]] = []
    starts: set[int] = set()
    for role, search in searches.items():
        starts.add(len(rows))
        fitted, target = _fitted(search), search.settings.target_ratio
        rows += [_row(role, probe, fitted.get(probe.level), over, target) for probe in search.result.probes]
    return Table("Measured levels", columns, tuple(rows), frozenset(starts - {0}))


def _row(role: Arm, probe: Probe, fitted: float | None, over: str, target: float) -> tuple[str, ...]:
    def percent(ratio: float) -> str:
        return units.beside(units.show_percent, ratio, target)

    finding = probe.finding
    interval = display.NOT_APPLICABLE
    if finding.limits is not None:
        interval = f"{percent(finding.limits.lower)} to {percent(finding.limits.upper)}"
    return (
        role.value,
        f"{probe.level:g}/s" if over == "rate" else f"{probe.level:g}",
        finding.standing.words + (", backlog grows" if finding.unstable else ""),
        display.NOT_APPLICABLE if finding.share is None else percent(finding.share),
        interval,
        display.NOT_APPLICABLE if fitted is None else percent(fitted),
        display.duration(finding.window_s),
        display.count(finding.scheduled),
        display.count(probe.sent),
    )


def _fitted(search: ReplayedSearch) -> dict[float, float]:
    fit = search.result.fit
    return dict(zip(fit.levels, fit.shares, strict=True)) if fit is not None else {}


def _points(role: Arm, search: ReplayedSearch) -> Iterator[CapacityPoint]:
    fitted = _fitted(search)
    for probe in search.result.probes:
        share, limits = probe.finding.share, probe.finding.limits
        if share is not None and limits is not None:
            yield CapacityPoint(role, probe.level, share, limits.lower, limits.upper, fitted.get(probe.level))


def capacity_figure(
    points: list[CapacityPoint], axis: str, target_ratio: float, lines: tuple[str, ...], table: Table
) -> Figure | None:
    """Return goodput against load with limits and the monotone fit; None without two levels."""
    levels = sorted(point.level for point in points)
    if len(set(levels)) < 2:
        return None
    top, goal = charts.PERCENT_TOP, target_ratio * 100
    target = units.as_written(units.show_percent, target_ratio)
    caption = f"Points with confidence intervals; line: monotone fit; dotted: target {target}."
    x = charts.log_x(axis, levels[0] / 1.15, levels[-1] * 1.15)
    drawn = [
        Point(p.role, p.level, p.share * 100, False, p.lower * 100, p.upper * 100, title=_title(p)) for p in points
    ]
    fits = []
    for arm in Arm:
        own = [p for p in points if p.role is arm]
        values = [{"x": p.level, "y": p.fitted * 100, "order": i} for i, p in enumerate(own) if p.fitted is not None]
        fits.append(charts.layer(charts.arm_line(arm), values, x=x, y=charts.y_field(top), order=charts.ORDER))
    names = [Name("target", charts.pixels(goal, top), charts.PAGE_COLOUR), *charts.arm_names(drawn, top)]
    layers = [charts.rule_across(goal, top), *fits, *charts.series(drawn, x, top), *charts.names_beside(names)]
    label = f"{'. '.join(lines)}."
    return Figure(
        "figure-capacity", f"Goodput against {axis}", caption, charts.plot(layers, "goodput, %", top), label, table
    )


def _title(point: CapacityPoint) -> str:
    limits = f"{display.percent(point.lower)} to {display.percent(point.upper)}"
    return f"{point.role.value} at {point.level:g}: {display.percent(point.share)} ({limits})"
