"""The numbers of a suite's runs as charts, and what changed between the runs that makes them hard to compare.

Only the newest runs are drawn, and no line goes from one candidate to another. A change of what was asked, or of the
hardware, ends every line: numbers before and after it are not comparable. Changes of level are looked for after the
newest of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchgate.escape import one_line
from benchgate.gate.evidence.costs import PRICE_MISMATCH
from benchgate.model.deployment import Arm
from benchgate.model.run import TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.report.charts import NAME_LENGTH, Figure
from benchgate.report.display import in_its_unit, minute, value_with_limits
from benchgate.report.table import Column, Table
from benchgate.report.trend import (
    MOST_SERIES,
    TrendChart,
    TrendMark,
    TrendSeries,
    TrendValue,
    day_labels,
    fitting,
    trend_figure,
)
from benchgate.site.changes import (
    ENDS_LINES,
    IN_THE_LIST_ALONE,
    ON_COSTS_ALONE,
    Change,
    change,
    circumstances,
    engine_of,
    place_of,
    price_of,
)
from benchgate.site.listed import name_of
from benchgate.stats.series import MIN_SEGMENT, level_changes
from benchgate.store.queries import RunSummary
from benchgate.store.repository import Store

MOST_DRAWN = 60
"""Runs in a chart: as many as can be told apart in it."""

_ALPHA = 0.05  # of all series of a page together: how often one of them is said to have changed when none did
_LONGEST = 60
_NO_PLACE = "all"


@dataclass(frozen=True, slots=True)
class Kind:
    """A number that a page draws: its metric, the statistic of it, and what a reader calls it."""

    metric: str
    statistic: str | None
    title: str

    @property
    def is_cost(self) -> bool:
        """Whether it is dollars, which change with the price as well."""
        return self.metric.startswith("usd_")


METRICS = (
    Kind("ttft_s", "p50", "TTFT p50"),
    Kind("ttft_s", "p95", "TTFT p95"),
    Kind("tpot_s", "p50", "TPOT p50"),
    Kind("output_tokens_per_s", None, "Throughput"),
    Kind("goodput_ratio", None, "Goodput"),
    Kind("capacity_per_s", None, "Capacity"),
    Kind("capacity_in_flight", None, "Capacity in flight"),
    Kind("accuracy_ratio", None, "Accuracy"),
    Kind("score", None, "Score"),
    Kind("shadow_excess_ratio", None, "Shadow excess"),
    Kind("usd_per_million_output_tokens", None, "Cost of 1M output tokens"),
    Kind("usd_per_million_good_tokens", None, "Cost of 1M good tokens"),
)
"""What a suite's page follows, in the order of the page; a suite that does not measure one has no chart of it."""

Points = Mapping[Kind, Sequence[TrendPoint]]


@dataclass(frozen=True, slots=True)
class Trends:
    """What a suite's page draws. `drawn` and `measured` count runs."""

    figures: tuple[Figure, ...]
    changes: tuple[Change, ...]
    drawn: int
    measured: int


def points_by_suite(store: Store) -> dict[str, dict[Kind, list[TrendPoint]]]:
    """Every number of `METRICS` of every candidate, oldest run first."""
    found: dict[str, dict[Kind, list[TrendPoint]]] = {}
    for kind in METRICS:
        for point in store.trend(kind.metric, statistic=kind.statistic, arm=Arm.CANDIDATE):
            found.setdefault(point.suite, {}).setdefault(kind, []).append(point)
    return found


def drawn_runs(runs: Sequence[RunSummary], points: Points) -> list[RunSummary]:
    """The newest runs that have a number, oldest first."""
    measured = {point.run_id for some in points.values() for point in some}
    return [glance for glance in runs if glance.run.id in measured][-MOST_DRAWN:]


def told_of(drawn: Sequence[RunSummary], points: Points) -> list[object]:
    """Everything that the charts of these runs are made from, as plain JSON."""
    ids = {glance.run.id for glance in drawn}
    of_runs = [
        [one.id, one.seed, one.measurement_sha256, place and asdict(place), engine_of(one), price_of(one)]
        for one, place in ((glance.run, place_of(glance.run)) for glance in drawn)
    ]
    of_points = [
        [kind.metric, kind.statistic, one.run_id, one.deployment, one.stage, one.task, one.value, one.lower, one.upper]
        + [one.doubt] * (one.doubt is not None)
        for kind in METRICS
        for one in points.get(kind, ())
        if one.run_id in ids
    ]
    measured = len({point.run_id for some in points.values() for point in some})
    return [*of_runs, *of_points, measured]


def trends(runs: Sequence[RunSummary], points: Points, promoted: frozenset[str]) -> Trends:
    """The charts of the newest of a suite's `runs` (oldest first); `promoted` are the ids of those that stand."""
    drawn = drawn_runs(runs, points)
    places = {glance.run.id: at for at, glance in enumerate(drawn)}
    candidates = {point.deployment for some in points.values() for point in some if point.run_id in places}
    several = len(candidates) > 1
    lines = {kind: _lines(some, places, drawn, promoted, several=several) for kind, some in points.items()}
    common = list(circumstances(drawn))
    breaks = frozenset(at for at, one in common if one.letter in ENDS_LINES)
    shifts = list(_shifts(lines, drawn, max(breaks, default=0)))
    marked = [(at, one) for at, one in common if one.letter not in IN_THE_LIST_ALONE]
    figures = []
    for kind in METRICS:
        if lines.get(kind):
            common_here = [(at, one) for at, one in marked if kind.is_cost or one.letter not in ON_COSTS_ALONE]
            of_kind = [*common_here, *((at, one) for at, which, one in shifts if which is kind)]
            figures.append(_figure(kind, lines[kind], drawn, of_kind, breaks))
    told = sorted([*common, *((at, one) for at, _, one in shifts)], key=lambda one: -one[0])
    measured = len({point.run_id for some in points.values() for point in some})
    return Trends(tuple(figures), tuple(one for _, one in told), len(drawn), measured)


def _lines(
    points: Sequence[TrendPoint],
    places: Mapping[str, int],
    drawn: Sequence[RunSummary],
    promoted: frozenset[str],
    *,
    several: bool,
) -> dict[str, list[TrendValue]]:
    """The values of the runs drawn, by stage or task, and by candidate where there are several.

    Those seen most first, and of these those seen last, for only so many can be drawn.
    """
    found: dict[str, list[TrendValue]] = {}
    for point in points:
        at = places.get(point.run_id)
        if at is None:
            continue
        said = drawn[at].outcomes
        outcome = said[-1].outcome if said else None
        promotes, invalid = outcome is not None and outcome.promotes, outcome is Outcome.INVALID
        run = f"{name_of(drawn[at])}, {minute(drawn[at].run.started_at)}"
        stands = point.run_id in promoted
        value = TrendValue(at, point.value, point.lower, point.upper, promotes, stands, invalid, run, point.doubt)
        where = point.stage or point.task
        parts = (point.deployment, where) if several else (where or _NO_PLACE,)
        found.setdefault(" ".join(filter(None, parts)), []).append(value)
    return dict(sorted(found.items(), key=lambda one: (-len(one[1]), -one[1][-1].at)))


def _shifts(
    lines: Mapping[Kind, Mapping[str, Sequence[TrendValue]]], drawn: Sequence[RunSummary], since: int
) -> Iterator[tuple[int, Kind, Change]]:
    """Where the level of a line changed, of all lines of the page together."""
    newest = {
        (kind, name): [one for one in values if one.at >= since]
        for kind, of_kind in lines.items()
        for name, values in of_kind.items()
    }
    looked_at = {key: values for key, values in newest.items() if len(values) >= 2 * MIN_SEGMENT}
    for (kind, name), values in looked_at.items():
        as_ratio = all(one.value > 0 for one in values)  # what multiplies is looked at as what multiplies
        series = [math.log(one.value) if as_ratio else one.value for one in values]
        for level in level_changes(series, drawn[-1].run.seed, _ALPHA, len(looked_at)):
            ends = [math.exp(end) if as_ratio else end for end in (level.before, level.after)]
            old, new = (in_its_unit(kind.metric, end) for end in ends)
            at = values[level.at].at
            where = "" if name == _NO_PLACE else f" of {one_line(name, _LONGEST)}"
            yield at, kind, change("L", drawn[at], f"{kind.title}{where} went from {old} to {new}")


def _figure(
    kind: Kind,
    lines: Mapping[str, Sequence[TrendValue]],
    drawn: Sequence[RunSummary],
    changes: Sequence[tuple[int, Change]],
    breaks: frozenset[int],
) -> Figure:
    shown = list(lines)[:MOST_SERIES]
    names = ["" if name == _NO_PLACE else fitting(name) for name in shown]
    chart = TrendChart(
        metric=kind.metric,
        title=kind.title,
        days=day_labels([glance.run.started_at for glance in drawn]),
        series=tuple(TrendSeries(told, tuple(lines[name])) for told, name in zip(names, shown, strict=True)),
        marks=tuple(TrendMark(at, one.letter) for at, one in changes),
        breaks=breaks,
        longest_name=max(NAME_LENGTH, *map(len, names)),
    )
    caption = f"{kind.title} of the candidates of {_counted(len(drawn), 'run')}, oldest first."
    if len(shown) < len(lines):
        caption += f" Of {len(lines)} lines {len(shown)} are drawn; all are in the table."
    anchor = "-".join(filter(None, (kind.metric, kind.statistic))).replace("_", "-")
    return trend_figure(chart, anchor, caption, caption, _table(kind, lines, drawn))


def _table(kind: Kind, lines: Mapping[str, Sequence[TrendValue]], drawn: Sequence[RunSummary]) -> Table:
    """Newest first: what is looked for is at the top."""
    by_place = {name: {one.at: one for one in values} for name, values in lines.items()}
    names = [kind.title if name == _NO_PLACE else one_line(name, _LONGEST) for name in lines]
    rows = [
        (
            name_of(glance),
            minute(glance.run.started_at),
            *(_with_limits(kind.metric, of_line.get(at)) for of_line in by_place.values()),
        )
        for at, glance in reversed(list(enumerate(drawn)))
    ]
    columns = (Column("run", numeric=False), Column("began", numeric=False), *(Column(name) for name in names))
    return Table(f"{kind.title}, with 95 % intervals", columns, tuple(rows))


def _with_limits(metric: str, value: TrendValue | None) -> str:
    if value is None:
        return "-"
    told = value_with_limits(metric, value.value, value.lower, value.upper)
    return told if value.doubt is None else f"{told}, {PRICE_MISMATCH}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
