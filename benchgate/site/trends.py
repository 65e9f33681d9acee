"""Charts of a suite's runs, and the changes between runs that make their numbers hard to compare.

Only the newest runs are drawn, and no line connects two candidates: a suite may have several, one run each. A change of
the workload or the hardware ends every line, because numbers before and after are not comparable; a change of the SLO
ends those of good requests. Level changes are searched after the newest of these. A different address alone is no
different hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

from benchgate.escape import one_line
from benchgate.gate.evidence.costs import PRICE_MISMATCH
from benchgate.model.deployment import Arm, Deployment, describe_hardware, engine_label, reports_hardware
from benchgate.model.metric import depends_on_slo
from benchgate.model.run import Run, TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.report.charts import NAME_LENGTH, Figure
from benchgate.report.display import in_its_unit, minute, value_with_limits
from benchgate.report.sections.cost import price_and_use
from benchgate.report.table import Column, Table
from benchgate.report.trend import (
    MOST_SERIES,
    TrendChart,
    TrendMark,
    TrendSeries,
    TrendValue,
    day_labels,
    fitting,
    trend_spec,
)
from benchgate.site.folder import name_of, run_file
from benchgate.stats.series import MIN_SEGMENT, level_changes
from benchgate.store.queries import RunSummary
from benchgate.store.repository import Store
from benchgate.units import beside

ENDS_LINES = frozenset("SH")
"""Letters at which every line ends: numbers before and after are not comparable."""

IN_THE_LIST_ALONE = frozenset("A")
"""Letters that no chart has: a candidate of every pull request may have an address of its own."""

ON_COSTS_ALONE = frozenset("P")
"""Letters that only charts of costs have."""


_LONGEST = 60
_LONGEST_PRICE = 160


@dataclass(frozen=True, slots=True)
class Change:
    """A change that came with a run, under a letter."""

    letter: str
    file: str
    run: str
    when: str
    description: str


@dataclass(frozen=True, slots=True)
class Hosting:
    """Hardware of a candidate. `hardware` is None if unreported, `url` if benchgate served it itself."""

    hardware: str | None
    accelerators: int
    url: str | None


def hosting_of(run: Run) -> Hosting | None:
    """Return the hosting of the run's candidate; None without a candidate."""
    if Arm.CANDIDATE not in run.arms:
        return None
    deployment = run.arms[Arm.CANDIDATE]
    is_reported = deployment.url is None or reports_hardware(deployment)
    hardware = describe_hardware(deployment, run.environment) if is_reported else None
    return Hosting(hardware, deployment.accelerators, deployment.url)


def engine_of(run: Run) -> str:
    """Return the candidate's engine, with its version if reported."""
    if Arm.CANDIDATE not in run.arms:
        return "none"
    return engine_label(run.arms[Arm.CANDIDATE])


def price_of(run: Run) -> list[object] | None:
    """Return the prices of the candidate's tokens as plain JSON; None if unknown."""
    deployment = _priced(run)
    if deployment is None:
        return None
    accelerators = None if deployment.token_prices else deployment.accelerators
    return [deployment.price_usd_per_hour, accelerators, deployment.price_terms, deployment.token_prices]


def _priced(run: Run) -> Deployment | None:
    deployment = run.arms.get(Arm.CANDIDATE)
    return deployment if deployment is not None and deployment.has_price else None


def change(letter: str, summary: RunSummary, description: str) -> Change:
    """Make a change that came with a run."""
    run = summary.run
    return Change(letter, run_file(run.id), name_of(summary), minute(run.started_at), description)


def slo_changes(drawn: Sequence[RunSummary]) -> Iterator[tuple[int, Change]]:
    """Yield changes of the suite's SLO with their index among the runs, oldest first."""
    for at in range(1, len(drawn)):
        if drawn[at - 1].run.suite.get("slo") != drawn[at].run.suite.get("slo"):
            yield at, change("S", drawn[at], "another `slo` than before, and with it which requests are good")


def comparability_changes(drawn: Sequence[RunSummary]) -> Iterator[tuple[int, Change]]:
    """Yield changes of workload, hardware, engine or price with their index among the runs, oldest first."""
    for at in range(1, len(drawn)):
        if drawn[at - 1].run.measurement_sha256 != drawn[at].run.measurement_sha256:
            yield at, change("S", drawn[at], "the suite measures something else than before")
    by_candidate: dict[str | None, list[int]] = {}
    for at, summary in enumerate(drawn):
        candidate = summary.run.arms.get(Arm.CANDIDATE)
        by_candidate.setdefault(None if candidate is None else candidate.name, []).append(at)
    for name, its in by_candidate.items():
        of = "the candidate" if len(by_candidate) == 1 else f"the candidate {one_line(name or 'none', _LONGEST)}"
        for number, one in _candidate_changes([drawn[at] for at in its], of):
            yield its[number], one


def _candidate_changes(drawn: Sequence[RunSummary], of: str) -> Iterator[tuple[int, Change]]:
    """Yield changes of hardware, engine or price with their index among the runs of one candidate."""
    places = [hosting_of(summary.run) for summary in drawn]
    # a run without a price has no costs to compare, so it is skipped
    priced = [(at, one) for at, summary in enumerate(drawn) if (one := _priced(summary.run)) is not None]
    for (before, old_price), (at, new_price) in pairwise(priced):
        if price_of(drawn[before].run) != price_of(drawn[at].run):
            prices = _from(price_and_use(old_price), price_and_use(new_price), longest=_LONGEST_PRICE)
            yield at, change("P", drawn[at], f"price of {of}: {prices}")
    for at in range(1, len(drawn)):
        if difference := _other_hardware(places[:at], places[at]):
            yield at, change("H", drawn[at], f"hardware of {of}: {difference}")
        old, new = engine_of(drawn[at - 1].run), engine_of(drawn[at].run)
        if old != new:
            yield at, change("E", drawn[at], f"engine of {of}: {_from(old, new)}")
    at_others = [at for at in range(1, len(drawn)) if _other_address(places[at - 1], places[at])]
    if at_others:
        more = f", as with {len(at_others) - 1:,} of the runs before it" if len(at_others) > 1 else ""
        whose = "" if of == "the candidate" else f" of {of}"
        yield at_others[-1], change("A", drawn[at_others[-1]], f"another address{whose}, hardware not reported{more}")


def _other_hardware(before: Sequence[Hosting | None], new: Hosting | None) -> str | None:
    """Describe how a run's hardware differs from the last reported one; None if it does not."""
    last = before[-1]
    if last is None or new is None:
        return None
    last_told = next((one.hardware for one in reversed(before) if one is not None and one.hardware), None)
    if new.hardware is not None and last_told is not None:
        return _from(last_told, new.hardware) if new.hardware != last_told else None
    if (new.url is None) != (last.url is None):
        return _from(*(one.hardware or "not reported, at an address" for one in (last, new)))
    if new.accelerators != last.accelerators:
        return _from(*(f"accelerators {one.accelerators}" for one in (last, new)))
    return None


def _other_address(old: Hosting | None, new: Hosting | None) -> bool:
    """Return True if the addresses differ and the hardware of one is unreported."""
    if old is None or new is None or old.url is None or new.url is None:
        return False
    return old.url != new.url and None in (old.hardware, new.hardware)


def _from(old: str, new: str, *, longest: int = _LONGEST) -> str:
    return f"{one_line(old, longest)} → {one_line(new, longest)}"


MOST_DRAWN = 60
"""Limit of runs in a chart."""

_ALPHA = 0.05  # false positive rate of level changes, of all series of a page together
_LONGEST = 60
_NO_PLACE = "all"


@dataclass(frozen=True, slots=True)
class Kind:
    """A metric of the page: its name, its statistic, and its title for readers."""

    metric: str
    statistic: str | None
    title: str


METRICS = (
    Kind("ttft", "p50", "TTFT p50"),
    Kind("ttft", "p95", "TTFT p95"),
    Kind("tpot", "p50", "TPOT p50"),
    Kind("output_throughput", None, "Throughput"),
    Kind("goodput", None, "Goodput"),
    Kind("capacity", None, "Capacity"),
    Kind("capacity_in_flight", None, "Capacity in flight"),
    Kind("accuracy", None, "Accuracy"),
    Kind("score", None, "Score"),
    Kind("shadow_excess", None, "Shadow excess"),
    Kind("usd_per_million_output_tokens", None, "Cost of 1M output tokens"),
    Kind("usd_per_million_good_tokens", None, "Cost of 1M good tokens"),
)
"""Metrics of a suite's page, in its order; a metric that a suite does not measure has no chart."""

Points = Mapping[Kind, Sequence[TrendPoint]]


@dataclass(frozen=True, slots=True)
class Trends:
    """Charts and changes of a suite's page. `drawn` and `measured` are numbers of runs."""

    figures: tuple[Figure, ...]
    changes: tuple[Change, ...]
    drawn: int
    measured: int


def points_by_suite(store: Store) -> dict[str, dict[Kind, list[TrendPoint]]]:
    """Return every number of `METRICS` of every candidate by suite, oldest run first."""
    found: dict[str, dict[Kind, list[TrendPoint]]] = {}
    for kind in METRICS:
        for point in store.trend(kind.metric, statistic=kind.statistic, arm=Arm.CANDIDATE):
            found.setdefault(point.suite, {}).setdefault(kind, []).append(point)
    return found


def drawn_runs(runs: Sequence[RunSummary], points: Points) -> list[RunSummary]:
    """Return the newest runs of the whole suite that have a number, oldest first."""
    return _measured(runs, points)[-MOST_DRAWN:]


def _measured(runs: Sequence[RunSummary], points: Points) -> list[RunSummary]:
    """Return the runs that have a number; a quick run or one of a part measured something else, and ends no line."""
    measured = {point.run_id for some in points.values() for point in some}
    return [summary for summary in runs if summary.run.id in measured and summary.run.only_part is None]


def chart_inputs(drawn: Sequence[RunSummary], points: Points) -> list[object]:
    """Return all inputs of the charts of these runs as plain JSON."""
    ids = {summary.run.id for summary in drawn}
    of_runs = [
        [one.id, one.seed, one.measurement_sha256, slo, place and asdict(place), engine_of(one), price_of(one)]
        for one, place, slo in ((one.run, hosting_of(one.run), one.run.suite.get("slo")) for one in drawn)
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
    """Make the charts of the newest of a suite's `runs` (oldest first); `promoted` are ids of promoted runs."""
    drawn = drawn_runs(runs, points)
    places = {summary.run.id: at for at, summary in enumerate(drawn)}
    candidates = {point.deployment for some in points.values() for point in some if point.run_id in places}
    several = len(candidates) > 1
    lines = {kind: _lines(some, places, drawn, promoted, several=several) for kind, some in points.items()}
    common, of_slo = list(comparability_changes(drawn)), list(slo_changes(drawn))
    ends = frozenset(at for at, one in common if one.letter in ENDS_LINES)
    breaks = {kind: ends.union(at for at, _ in of_slo if depends_on_slo(kind.metric)) for kind in METRICS}
    shifts = list(_shifts(lines, drawn, breaks))
    marked = [(at, one) for at, one in common if one.letter not in IN_THE_LIST_ALONE]
    figures = []
    for kind in METRICS:
        if lines.get(kind):
            is_cost = kind.metric.startswith("usd_")  # it changes with the price as well
            common_here = [(at, one) for at, one in marked if is_cost or one.letter not in ON_COSTS_ALONE]
            of_kind = [*common_here, *((at, one) for at, which, one in shifts if which is kind)]
            of_kind += of_slo if depends_on_slo(kind.metric) else []
            figures.append(_figure(kind, lines[kind], drawn, of_kind, breaks[kind]))
    listed = sorted([*common, *of_slo, *((at, one) for at, _, one in shifts)], key=lambda one: -one[0])
    return Trends(tuple(figures), tuple(one for _, one in listed), len(drawn), len(_measured(runs, points)))


def _lines(
    points: Sequence[TrendPoint],
    places: Mapping[str, int],
    drawn: Sequence[RunSummary],
    promoted: frozenset[str],
    *,
    several: bool,
) -> dict[str, list[TrendValue]]:
    """Return the values of the drawn runs by stage or task, and by candidate if there are several.

    The longest lines come first, and of these those with the newest values: only so many can be drawn.
    """
    found: dict[str, list[TrendValue]] = {}
    for point in points:
        at = places.get(point.run_id)
        if at is None:
            continue
        outcomes = drawn[at].outcomes
        outcome = outcomes[-1].outcome if outcomes else None
        promotes, invalid = outcome is not None and outcome.promotes, outcome is Outcome.INVALID
        run = f"{name_of(drawn[at])}, {minute(drawn[at].run.started_at)}"
        stands = point.run_id in promoted
        value = TrendValue(at, point.value, point.lower, point.upper, promotes, stands, invalid, run, point.doubt)
        where = point.stage or point.task
        parts = (point.deployment, where) if several else (where or _NO_PLACE,)
        found.setdefault(" ".join(filter(None, parts)), []).append(value)
    return dict(sorted(found.items(), key=lambda one: (-len(one[1]), -one[1][-1].at)))


def _shifts(
    lines: Mapping[Kind, Mapping[str, Sequence[TrendValue]]],
    drawn: Sequence[RunSummary],
    breaks: Mapping[Kind, frozenset[int]],
) -> Iterator[tuple[int, Kind, Change]]:
    """Yield level changes after the newest break of each line, of all lines of the page together."""
    newest = {
        (kind, name): [one for one in values if one.at >= max(breaks[kind], default=0)]
        for kind, of_kind in lines.items()
        for name, values in of_kind.items()
    }
    looked_at = {key: values for key, values in newest.items() if len(values) >= 2 * MIN_SEGMENT}
    for (kind, name), values in looked_at.items():
        as_ratio = all(one.value > 0 for one in values)  # what multiplies is looked at as what multiplies
        series = [math.log(one.value) if as_ratio else one.value for one in values]
        for level in level_changes(series, drawn[-1].run.seed, _ALPHA, len(looked_at)):
            before, after = (math.exp(end) if as_ratio else end for end in (level.before, level.after))
            show = partial(in_its_unit, kind.metric)
            old, new = beside(show, before, after), beside(show, after, before)
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
    drawn_names = list(lines)[:MOST_SERIES]
    names = ["" if name == _NO_PLACE else fitting(name) for name in drawn_names]
    chart = TrendChart(
        metric=kind.metric,
        title=kind.title,
        days=day_labels([summary.run.started_at for summary in drawn]),
        series=tuple(
            TrendSeries(title, tuple(lines[name]), _gaps(lines[name], drawn))
            for title, name in zip(names, drawn_names, strict=True)
        ),
        marks=tuple(TrendMark(at, one.letter) for at, one in changes),
        breaks=breaks,
        longest_name=max(NAME_LENGTH, *map(len, names)),
    )
    runs = "run" if len(drawn) == 1 else "runs"
    caption = f"Candidates of {len(drawn):,} {runs}, oldest first."
    if len(drawn_names) < len(lines):
        caption += f" {len(drawn_names)} of {len(lines)} lines are drawn; the table has all."
    name = names[0]
    values = lines[drawn_names[0]]
    newest = max(values, key=lambda value: value.at)
    without, shown = sum(at > newest.at for at in _gaps(values, drawn)), in_its_unit(kind.metric, newest.value)
    found = f"newest {shown}"
    if without:
        found = f"{shown}, and no number in the {'newest run' if without == 1 else f'{without} newest runs'}"
    title = f"{kind.title}{f' at {name}' if name else ''}: {found}"
    anchor = "-".join(filter(None, (kind.metric, kind.statistic))).replace("_", "-")
    return Figure(anchor, title, caption, trend_spec(chart), "", _table(kind, lines, drawn))


def _gaps(values: Sequence[TrendValue], drawn: Sequence[RunSummary]) -> frozenset[int]:
    """Return the places of runs of a line's candidate without a number, as where too many requests failed."""
    candidates = [summary.run.arms.get(Arm.CANDIDATE) for summary in drawn]
    own, known = candidates[values[0].at], {value.at for value in values}
    return frozenset(
        at
        for at, one in enumerate(candidates)
        if at not in known and one is not None and own is not None and one.name == own.name
    )


def _table(kind: Kind, lines: Mapping[str, Sequence[TrendValue]], drawn: Sequence[RunSummary]) -> Table:
    """Newest first: what is looked for is at the top."""
    by_place = {name: {one.at: one for one in values} for name, values in lines.items()}
    names = [kind.title if name == _NO_PLACE else one_line(name, _LONGEST) for name in lines]
    rows = [
        (
            name_of(summary),
            minute(summary.run.started_at),
            *(_with_limits(kind.metric, of_line.get(at)) for of_line in by_place.values()),
        )
        for at, summary in reversed(list(enumerate(drawn)))
    ]
    columns = (Column("run", numeric=False), Column("began", numeric=False), *(Column(name) for name in names))
    return Table(f"{kind.title}, with 95 % intervals", columns, tuple(rows))


def _with_limits(metric: str, value: TrendValue | None) -> str:
    if value is None:
        return "-"
    text = value_with_limits(metric, value.value, value.lower, value.upper)
    return text if value.doubt is None else f"{text}, {PRICE_MISMATCH}"
