"""The capacity part of the report: every level that was looked at, the brackets, the fit, and why each search ended."""

from __future__ import annotations

from dataclasses import dataclass

from benchgate import units
from benchgate.gate.checks.capacity import ReplayedSearch, replay_search
from benchgate.gate.decision import CannotJudge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.report import show
from benchgate.report.tables import Column, Table
from benchgate.stats.capacity_search import Probe
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class CapacityPoint:
    """One level of one side for the chart; shares from 0 to 1, `fitted` by the monotone fit over all levels."""

    role: Arm
    level: float
    share: float
    lower: float
    upper: float
    fitted: float | None


@dataclass(frozen=True, slots=True)
class CapacitySection:
    """Both sides' searches. `axis` names what a level is; `lines` are one sentence a side."""

    axis: str
    target_ratio: float
    table: Table
    lines: tuple[str, ...]
    points: tuple[CapacityPoint, ...]


def capacity_section(
    evidence: Evidence, against: Evidence | None, suite: Suite, *, alone: bool
) -> CapacitySection | None:
    """None where no capacity was searched for. `alone`: one deployment was measured, as the candidate."""
    if suite.load is None or suite.load.capacity is None:
        return None
    sources = {Arm.BASELINE: (evidence, Arm.BASELINE), Arm.CANDIDATE: (evidence, Arm.CANDIDATE)}
    if against is not None:
        sources[Arm.BASELINE] = (against, Arm.CANDIDATE)
    if alone:
        del sources[Arm.BASELINE]
    sound: dict[Arm, ReplayedSearch] = {}
    lines = []
    for role, (run, arm) in sources.items():
        try:
            sound[role] = replay_search(run, arm, suite)
            lines.append(_line(role, sound[role]))
        except CannotJudge as cannot:
            lines.append(f"{role.value}: {cannot.reason}; {cannot.advice}")
    target = next((side.settings.target_ratio for side in sound.values()), 0.0)
    return CapacitySection(
        axis="requests per second" if suite.load.capacity.over == "rate" else "requests in flight",
        target_ratio=target,
        table=_table(sound, suite.load.capacity.over),
        lines=tuple(lines),
        points=tuple(point for role, side in sound.items() for point in _points(role, side)),
    )


def _line(role: Arm, side: ReplayedSearch) -> str:
    middle, needs = side.middle, side.result.needs
    estimate = f"; best single number {show.number(middle)}" if middle is not None else ""
    more = f"; about {needs:,} more requests at a level would resolve one" if needs is not None else ""
    return f"{side.describe(role)}{estimate}{more}"


def _table(sound: dict[Arm, ReplayedSearch], over: str) -> Table:
    columns = (
        *(Column("arm", numeric=False), Column("level"), Column("shown to", numeric=False), Column("goodput")),
        *(Column("interval"), Column("fit"), Column("watched"), Column("requests counted"), Column("requests sent")),
    )
    rows: list[tuple[str, ...]] = []
    starts: set[int] = set()
    for role, side in sound.items():
        starts.add(len(rows))
        rows += [_row(role, probe, _fitted(side, probe.level), over) for probe in side.result.probes]
    return Table("Levels looked at", columns, tuple(rows), frozenset(starts - {0}))


def _row(role: Arm, probe: Probe, fitted: float | None, over: str) -> tuple[str, ...]:
    finding = probe.finding
    interval = show.NOT_APPLICABLE
    if finding.limits is not None:
        interval = f"{units.show_percent(finding.limits.lower)} to {units.show_percent(finding.limits.upper)}"
    return (
        role.value,
        f"{probe.level:g}/s" if over == "rate" else f"{probe.level:g}",
        finding.standing.value + (", backlog grows" if finding.unstable else ""),
        show.NOT_APPLICABLE if finding.share is None else units.show_percent(finding.share),
        interval,
        show.NOT_APPLICABLE if fitted is None else units.show_percent(fitted),
        show.duration(finding.window_s),
        show.count(finding.scheduled),
        show.count(probe.sent),
    )


def _points(role: Arm, side: ReplayedSearch) -> list[CapacityPoint]:
    return [
        CapacityPoint(role, probe.level, share, limits.lower, limits.upper, _fitted(side, probe.level))
        for probe in side.result.probes
        if (share := probe.finding.share) is not None and (limits := probe.finding.limits) is not None
    ]


def _fitted(side: ReplayedSearch, level: float) -> float | None:
    fit = side.result.fit
    return dict(zip(fit.levels, fit.shares, strict=True)).get(level) if fit is not None else None
