"""The load section: speed, failures and the client of every stage on both sides, with a curve for each number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from benchgate import units
from benchgate.escape import one_line
from benchgate.gate.comparison import in_region
from benchgate.gate.summary.figures import CHART_STATISTICS, Estimate, StageFigures
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadEnd, LoadObservation
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from benchgate.report import charts, display
from benchgate.report.charts import Figure, Name, Point, Spec
from benchgate.report.comparability import Sides
from benchgate.report.document import OWN
from benchgate.report.section import Charts, Fold, Lines, Part, Section, notes, present
from benchgate.report.sections.stages import (
    Requests,
    StageRow,
    StageSummary,
    requests_of,
    stage_table,
    summarise_stage,
    unmeasured,
)
from benchgate.report.table import Table, group_starts, number_columns, text_columns
from benchgate.stats.knee import MIN_LEVELS, NoKnee, ServerKnee, find_server_knee
from benchgate.suite.load import Load
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import SloSpec

TWO_NUMBERS = "Checks use the geometric mean over the valid blocks instead, so the same metric can have two values"
IN_FLIGHT = "requests in flight"
_BANDS = "Bands are 95 % intervals of each arm alone. Checks compare pairs of blocks, which is more precise."
_ROOM_ABOVE = 1.15
_ROOM_BESIDE = 1.15  # factor beyond the first and the last level
_MAX_TICKS = 6
_MIN_DRAWN = 3  # stages of a chart; fewer are read faster in the table
_FAR = 3.0  # a bound so many times the largest value would press the curves flat
_APART_PX = 5
_LONG_MS = 10_000.0
_SPEED_TITLES = ("output tok/s", "req/s", "TTFT p50", "TTFT p95", "TPOT p50", "E2E p50", "goodput")
_END_REASONS = {
    "decided": "every required check was decided",
    "invalid": "the undecided checks are INVALID, which more blocks do not change",
    "time": "the next interim analysis would exceed the suite's time limit",
    "cost": "the next interim analysis would exceed the suite's cost limit",
    "last": "no interim analysis was left",
}


def load_section(rows: Sequence[StageRow], sides: Sides, suite: Suite, *, paired: bool) -> Section | None:
    """Return the section; None when no load was measured. `paired`: checks compare blocks of this run."""
    if not rows:
        return None
    sweeps = knee_sweeps(suite, {(row.stage, row.role): row.summary for row in rows})
    found = {arm: sweep.knee for arm, sweep in sweeps.items() if sweep is not None}
    drawn = {stage for axis in axes(rows) if len(axis.stages) >= _MIN_DRAWN for stage in axis.stages}
    bends = {arm: knee.level for arm, knee in found.items() if not isinstance(knee, NoKnee)}
    figures = load_figures([row for row in rows if row.stage in drawn], bends)
    knees = tuple(f"{arm.value}: {knee_line(sweep)}" for arm, sweep in sweeps.items())
    more = tuple(figure for sweep in figures[1:] for figure in sweep)
    cells = [
        (row.level, *(_speed_cells(row.summary, row.target_ratio) if row.summary else unmeasured(7))) for row in rows
    ]
    speed = stage_table("Speed", (*text_columns("level"), *number_columns(*_SPEED_TITLES)), rows, cells)
    slo = slo_sentence(suite)
    two_numbers = [TWO_NUMBERS] if paired else []
    sentences = ["Quantiles pool the requests of all blocks; rates are means over blocks", *two_numbers]
    brief = [f"Quantiles pool the requests of all blocks. {one}" for one in two_numbers]
    return Section(
        "load",
        "Latency and throughput",
        present(
            speed,
            notes(". ".join([*sentences, *([slo] if slo else [])]) + "."),
            regions_table(sides, suite),
            Charts(figures[0]) if figures else None,
            notes(_BANDS if figures else ""),
            Fold(f"Other load modes ({len(more)} charts)", (Charts(more),)) if more else None,
            _intervals([row for row in rows if row.stage not in drawn]),
            notes(*(f"{line}." for line in knees)),
            _requests(rows),
        ),
        summary=present(speed, Lines((*brief, *knees))),
        rank=6,
    )


def regions_table(sides: Sides, suite: Suite) -> Table | None:
    """Return TTFT, goodput and failures of every stage by region and arm, and how far TTFT differs between the arms."""
    found = []
    for place in traffic_classes(suite):
        target_ratio = place.slo_spec.target_ratio if place.slo_spec is not None else None
        for region in suite.regions:
            medians: list[float | None] = []
            for side in sides:
                own = [in_region(o, region) for o in side.load if o.stage == place.name]
                if (s := summarise_stage(own, place.slo)) is None:
                    continue
                medians.append(s.ttft_p50_s)
                first, last = medians[0], medians[-1]
                apart = None if len(medians) < 2 or first is None or last is None else last - first
                failed = sum(s.failed.values())
                found.append(
                    (
                        *(place.name, region, side.role.value, _scheduled(s), display.count(failed)),
                        *(display.duration(s.ttft_p50_s), display.duration(s.ttft_p95_s)),
                        display.signed_duration(apart),
                        display.NOT_APPLICABLE
                        if s.goodput_ratio is None
                        else display.percent_beside(s.goodput_ratio, target_ratio),
                    )
                )
    titles = ("scheduled", "failed", "TTFT p50", "TTFT p95", "TTFT p50 over the baseline", "goodput")
    columns = (*text_columns("stage", "region", "arm"), *number_columns(*titles))
    return Table("By region", columns, tuple(found), group_starts([row[:2] for row in found])) if found else None


def client_section(rows: Sequence[StageRow], sides: Sides) -> Section | None:
    """Return what the load generator itself cost, and the order in which it measured the arms."""
    if not rows:
        return None
    columns = number_columns("CPU, worst block", "send lag p99", "read delay p99, worst block")
    cells = [
        unmeasured(len(columns))
        if row.summary is None
        else (
            display.percent(row.summary.client_cpu_share),
            display.duration(row.summary.send_lag_p99_s),
            display.duration(row.summary.read_delay_p99_s),
        )
        for row in rows
    ]
    order = _order(sides)
    return Section(
        "client",
        "Load generator",
        present(
            stage_table("CPU use and delays of the load generator", columns, rows, cells),
            notes(f"Order of the blocks, B for baseline and C for candidate: {order}" if order else ""),
        ),
    )


def _intervals(rows: Sequence[StageRow]) -> Part | None:
    """Return the numbers of stages that have no chart with their 95 % intervals."""
    curves = list(_curves(rows))
    cells = []
    for row in rows:
        found = [(curve, curve.estimate(row.figures) if row.figures else None) for curve in curves]
        cells.append(
            tuple(
                display.NOT_APPLICABLE
                if one is None
                else curve.value(row, one.value) + (f" ({curve.interval(row, one)})" if one.limits is not None else "")
                for curve, one in found
            )
        )
    table = stage_table("Values with their 95 % intervals", number_columns(*(c.name for c in curves)), rows, cells)
    return Fold("95 % intervals", (table,)) if rows else None


def _speed_cells(s: StageSummary, target_ratio: float | None) -> tuple[str, ...]:
    return (
        display.number(s.output_tokens_per_s),
        display.number(s.requests_per_s),
        display.duration(s.ttft_p50_s),
        display.duration(s.ttft_p95_s),
        display.duration(s.tpot_p50_s),
        display.duration(s.e2e_p50_s),
        display.NOT_APPLICABLE if s.goodput_ratio is None else display.percent_beside(s.goodput_ratio, target_ratio),
    )


def _requests(rows: Sequence[StageRow]) -> Table:
    columns = (
        *(*number_columns("blocks", "scheduled", "succeeded"), *text_columns("failed by class")),
        *(*number_columns("input tokens", "output tokens"), *text_columns("counted by")),
    )
    cells = [_request_cells(row.summary) if row.summary else unmeasured(len(columns)) for row in rows]
    return stage_table("Requests and tokens", columns, rows, cells)


def _request_cells(s: StageSummary) -> tuple[str, ...]:
    return (
        display.count(s.blocks),
        _scheduled(s),
        display.count(s.succeeded)
        + ("" if s.validity_ratio is None else f", {display.percent(s.validity_ratio)} valid"),
        _counts(s.failed) or "none",
        display.count(s.input_tokens),
        display.count(s.output_tokens)
        + (f", {display.percent(s.reasoning_ratio)} reasoning" if s.reasoning_ratio else ""),
        next(iter(s.token_sources), display.NOT_APPLICABLE) if len(s.token_sources) <= 1 else _counts(s.token_sources),
    )


def _scheduled(s: StageSummary) -> str:
    """Return the number of requests with those of the ramp, whose failures count, and those that were cancelled."""
    scheduled = display.count(s.scheduled)
    scheduled += f", and {display.count(s.ramp)} of the ramp" if s.ramp else ""
    return scheduled + (f", and {display.count(s.left)} cancelled on purpose" if s.left else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())


def _order(sides: Sides) -> str:
    """Return the arms of each block in the order they ran, as in `B C · C B`; empty for two stored runs."""
    if sides.alone or sides.baseline.run is not sides.candidate.run:
        return ""
    first_seen: dict[tuple[int, str], list[LoadObservation]] = {}
    for observation in sorted((o for side in sides for o in side.load), key=lambda o: o.position):
        first_seen.setdefault((observation.block, observation.stage), []).append(observation)
    blocks: dict[int, str] = {}
    for (block, _), pair in first_seen.items():
        blocks.setdefault(block, " ".join(o.arm.value[0].upper() for o in pair))
    return " · ".join(blocks[block] for block in sorted(blocks))


def slo_sentence(suite: Suite) -> str:
    """Return the SLO of the suite and of each class with one of its own, without the last full stop; may be empty."""
    sentences = [] if suite.slo is None else [f"A good request succeeds with {_bounds_of(suite.slo)}"]
    for traffic in traffic_classes(suite):
        if traffic.has_own_slo and traffic.slo_spec is not None:
            start = f"At {traffic.name}" if suite.slo else f"A good request of {traffic.name} succeeds"
            sentences.append(f"{start} with {_bounds_of(traffic.slo_spec)}")
    return ". ".join(sentences)


def _bounds_of(slo: SloSpec) -> str:
    bounds = (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s))
    each = ", ".join(
        f"{name} ≤ {units.as_written(units.show_duration, bound)}" for name, bound in bounds if bound is not None
    )
    target = units.as_written(units.show_percent, slo.target_ratio)
    return f"{each}; the target is {target} of the requests scheduled"


# How many blocks the load had.


def load_end_lines(evidence: Evidence, verdict: Verdict) -> tuple[str, ...]:
    """Return why the load ended after so many blocks; nothing when their number is fixed."""
    if evidence.ended is None:
        return ()
    replaced = OWN.policy_replaced(evidence.run, verdict)  # then other checks block than those that ended the load
    return (_load_end(evidence.ended, () if replaced else verdict.checks),)


def planned_blocks(load: Load) -> str:
    """Return `20`, or `at most 20 (interim analyses after 5, 10 and 20)`."""
    if not load.looks:
        return str(load.blocks)
    *first, last = load.looks
    return f"at most {load.blocks} (interim analyses after {', '.join(map(str, first))} and {last})"


def _load_end(ended: LoadEnd, checks: Sequence[CheckResult]) -> str:
    """Name the blocking checks where these ended the load: others may be open."""
    blocking = [
        check.id
        for check in checks
        if check.required and check.family == "load" and check.metric != "capacity" and check.counted is Outcome.BLOCK
    ]
    if ended.why == "decided" and blocking:
        why = f"{', '.join(blocking)} blocked, which more blocks do not change"
    else:
        why = _END_REASONS[ended.why]
    return f"ended after {ended.blocks} of at most {ended.of} blocks: {why}"


# The knee of each side.


@dataclass(frozen=True, slots=True)
class Sweep:
    """A side's means at every level of a closed-loop sweep; `decoding` is None where one is unknown."""

    levels: tuple[int, ...]
    tokens_per_s: tuple[float, ...]
    decoding: tuple[float, ...] | None
    waits_s: tuple[float, ...]

    @property
    def knee(self) -> ServerKnee | NoKnee:
        """The level at which its curves bend."""
        return find_server_knee(self.levels, self.tokens_per_s, self.decoding, self.waits_s)


def knee_sweeps(suite: Suite, rows: Mapping[tuple[str, Arm], StageSummary | None]) -> dict[Arm, Sweep | None]:
    """Return the closed-loop sweep of each side; none with too few levels to have a knee, or with unlike requests.

    A side is None when a stage has no throughput or no latency.
    """
    closed = [one for one in traffic_classes(suite) if one.schedule.concurrency is not None and one.class_name is None]
    levels = {one.name: one.schedule.concurrency for one in closed if one.schedule.concurrency is not None}
    unlike = any(requests_of(traffic) != requests_of(closed[0]) for traffic in closed)
    if unlike or len(set(levels.values())) < max(MIN_LEVELS, len(levels)):
        return {}
    found: dict[Arm, Sweep | None] = {}
    for arm in Arm:
        known = [s for name in levels if (s := rows.get((name, arm))) is not None]
        tokens = tuple(s.output_tokens_per_s for s in known if s.output_tokens_per_s)
        waits_s = tuple(s.e2e_p50_s for s in known if s.e2e_p50_s is not None and math.isfinite(s.e2e_p50_s))
        decoding = tuple(s.decoding_at_once for s in known if s.decoding_at_once is not None)
        whole = min(len(tokens), len(waits_s)) == len(levels)
        known_decoding = decoding if len(decoding) == len(levels) else None
        found[arm] = Sweep(tuple(levels.values()), tokens, known_decoding, waits_s) if whole else None
    return found


def knee_line(sweep: Sweep | None) -> str:
    """Return where a side's knee lies, with the two curves that show it."""
    if sweep is None:
        return "no knee found: a stage has no throughput or no latency"
    found = sweep.knee
    tokens = f"{_curve(sweep.tokens_per_s)} tok/s"
    decoding = f" and {_curve(sweep.decoding)} requests decoding at once" if sweep.decoding else ""
    seen = f"at {' · '.join(map(str, sweep.levels))} in flight {tokens}{decoding}"
    if isinstance(found, NoKnee):
        return f"no knee: {found.reason}; {seen}"
    return (
        f"knee at {found.level:g} in flight, where {found.curve.value} bend: they grow as the power "
        f"{found.knee.slope_before:.2f} of the concurrency before it and {found.knee.slope_after:.2f} after it; {seen}"
    )


def _curve(values: Sequence[float]) -> str:
    """`0.95 · 1.90 · 1,520`: commas belong to thousands."""
    return " · ".join(display.number(value) for value in values)


# The charts.


@dataclass(frozen=True, slots=True)
class Axis:
    """The stages of one chart: the number that each offers, or a short name for each where there is none."""

    title: str
    levels: Mapping[str, float]
    names: Mapping[str, str]

    @property
    def stages(self) -> tuple[str, ...]:
        """All stages in the order of the sweep."""
        return tuple(self.levels or self.names)

    def encoding(self) -> Spec:
        """Return the field `x` of the plot, with a tick at some of the levels."""
        if not self.levels:
            return charts.named_x(list(self.names.values()))
        levels = sorted(self.levels.values())
        step = math.ceil((len(levels) - 1) / _MAX_TICKS) or 1
        ticks = [*levels[:-1:step], levels[-1]]
        return charts.log_x(self.title, levels[0] / _ROOM_BESIDE, levels[-1] * _ROOM_BESIDE, ticks)

    def place(self, stage: str) -> float | str:
        """Return where a stage stands."""
        return self.levels[stage] if self.levels else self.names[stage]


def axes(rows: Sequence[StageRow]) -> tuple[Axis, ...]:
    """Return axes for the closed loops, for the rates and one for the rest, that with most stages first.

    Closed loops and rates have an axis of numbers for each kind of requests of at least two different levels.
    """
    found, kinds = [], list[Requests | None]()
    for row in rows:
        if row.requests not in kinds:
            kinds.append(row.requests)
    for (closed, title), kind in product(((True, IN_FLIGHT), (False, "requests offered per second")), kinds):
        alike = [row for row in rows if row.closed_loop is closed and row.requests == kind]
        levels = {row.stage: row.offered for row in alike if row.offered is not None}
        if len(levels) >= 2 and len(set(levels.values())) == len(levels):
            found.append(Axis(title, levels, {}))
    placed = {stage for axis in found for stage in axis.levels}
    rest = dict.fromkeys(row.stage for row in rows if row.stage not in placed)
    names: dict[str, str] = {}
    for number, stage in enumerate(rest, 1):
        name = charts.short_name(stage)
        names[stage] = f"{name[:-4]}… {number}" if name in names.values() else name
    return tuple(sorted([*found, *([Axis("stage", {}, names)] if rest else [])], key=lambda axis: -len(axis.stages)))


@dataclass(frozen=True, slots=True)
class Curve:
    """A number of every stage. `bounds` are its SLOs or targets by stage, `scale` turns it into the drawn unit."""

    anchor: str
    name: str
    unit: str
    better: str
    scale: float
    estimate: Callable[[StageFigures], Estimate | None]
    shown: units.Show
    bounds: Mapping[str, float]
    bound_name: str = ""

    def value(self, row: StageRow, value: float) -> str:
        """Show a value of a stage, with the digits that keep it on its own side of the stage's bound."""
        bound = self.bounds.get(row.stage)
        return self.shown(value) if bound is None else units.beside(self.shown, value, bound)

    def interval(self, row: StageRow, estimate: Estimate) -> str:
        """Show the limits of an estimate like its value; a dash without any."""
        return display.limits(estimate.limits, lambda end: self.value(row, end))


def load_figures(rows: Sequence[StageRow], knees: Mapping[Arm, float]) -> tuple[tuple[Figure, ...], ...]:
    """Return, for each sweep, TTFT and TPOT at median and p95, throughput, and goodput where there is an SLO."""
    groups = []
    for axis in axes(rows):
        own = [row for row in rows if row.stage in axis.stages]
        drawn = (_figure(curve, own, knees if axis.title == IN_FLIGHT else {}, axis) for curve in _curves(own))
        groups.append([figure for figure in drawn if figure is not None])
    anchors = iter(charts.anchors_of(figure.anchor for group in groups for figure in group))
    return tuple(tuple(replace(figure, anchor=next(anchors)) for figure in group) for group in groups if group)


def _curves(rows: Sequence[StageRow]) -> Iterator[Curve]:
    slos = {row.stage: row.slo for row in rows if row.slo is not None}
    bounds = {
        "ttft": {stage: slo.ttft_s for stage, slo in slos.items() if slo.ttft_s is not None},
        "tpot": {stage: slo.tpot_s for stage, slo in slos.items() if slo.tpot_s is not None},
    }
    for latency, own in bounds.items():
        for statistic in CHART_STATISTICS:
            yield _latency_curve(rows, latency, statistic, own)
    yield Curve(
        anchor="figure-throughput",
        name="Output tokens per second",
        unit="tok/s",
        better="Higher is better",
        scale=1.0,
        estimate=lambda figures: figures.output_tokens_per_s,
        shown=units.show_number,
        bounds={},
    )
    if slos:
        yield Curve(
            anchor="figure-goodput",
            name="Goodput",
            unit="goodput, %",
            better="Higher is better",
            scale=100.0,
            estimate=lambda figures: figures.goodput_ratio,
            shown=units.show_percent,
            bounds={row.stage: row.target_ratio for row in rows if row.target_ratio is not None},
            bound_name="target",
        )


def _latency_curve(rows: Sequence[StageRow], latency: str, statistic: str, bounds: Mapping[str, float]) -> Curve:
    def estimate_of(figures: StageFigures) -> Estimate | None:
        return figures.quantiles.get(f"{latency}_{statistic}")

    name = f"{latency.upper()} {statistic}"
    found = [one.value for row in rows if row.figures is not None and (one := estimate_of(row.figures)) is not None]
    longest_ms = max((value * 1e3 for value in found if math.isfinite(value)), default=0.0)
    unit, scale = ("s", 1.0) if longest_ms >= _LONG_MS else ("ms", 1e3)
    return Curve(
        anchor=f"figure-{latency}-{statistic}",
        name=name,
        unit=f"{name}, {unit}",
        better="Lower is better",
        scale=scale,
        estimate=estimate_of,
        shown=units.show_duration,
        bounds=bounds,
        bound_name="SLO",
    )


def _figure(curve: Curve, rows: Sequence[StageRow], knees: Mapping[Arm, float], axis: Axis) -> Figure | None:
    measured = [
        (row, one) for row in rows if row.figures is not None and (one := curve.estimate(row.figures)) is not None
    ]
    points = [_point(row, one, curve, axis) for row, one in measured if math.isfinite(one.value)]
    if not points:
        return None
    top = _top(points, curve)
    bound_words, bounds, names = _bounds(curve, axis, top)
    beyond = [f"{row.stage} {row.role.value}" for row, one in measured if not math.isfinite(one.value)]
    against = f"against {axis.title}" if axis.levels else "stage by stage"
    caption = f"{curve.better}.{bound_words}"
    if beyond:
        caption += f" Not drawn, because too many requests failed: {', '.join(beyond)}."
    upright: list[Spec] = []
    if curve.anchor == "figure-throughput":
        for arm in [arm for arm in reversed(Arm) if arm in knees]:  # the dashed line is drawn over the other
            line = {"color": charts.COLOURS[arm], "strokeWidth": 1.5, "strokeDash": charts.DASHES[arm]}
            upright += charts.rule_up("knee", knees[arm], axis.encoding(), line)
    if upright:
        caption += " Vertical line: knee."
    curves = charts.series(points, axis.encoding(), top, apart_px=0 if axis.levels else _APART_PX)
    labels = charts.names_beside([*names, *charts.arm_names(points, top)])
    spec = charts.plot([*bounds, *upright, *curves, *labels], curve.unit, top)
    cells = [_cells(row, one, curve) for row, one in measured]
    numbers = charts.numbers_table(f"{curve.name} {against}", ("value", "95 % interval"), cells)
    last = [(row, one) for row, one in measured if row.stage == measured[-1][0].stage]
    finding = ", ".join(f"{row.role.value} {curve.value(row, one.value)}" for row, one in last)
    title = f"{curve.name} at {measured[-1][0].stage}: {finding}"
    return Figure(curve.anchor, title, caption, spec, _ends(measured, curve), numbers)


def _point(row: StageRow, estimate: Estimate, curve: Curve, axis: Axis) -> Point:
    limits = estimate.limits
    stage, arm, value, interval = _cells(row, estimate, curve)
    lower = upper = None
    if limits is not None:
        lower = round(limits.lower * curve.scale, 6)
        upper = round(limits.upper * curve.scale, 6) if math.isfinite(limits.upper) else 1e12  # above every plot
    return Point(
        row.role,
        axis.place(row.stage),
        round(estimate.value * curve.scale, 6),
        joined=bool(axis.levels),
        lower=lower,
        upper=upper,
        title=one_line(f"{stage}, {arm}: {value}" + (f" ({interval})" if limits is not None else "")),
    )


def _cells(row: StageRow, estimate: Estimate, curve: Curve) -> tuple[str, str, str, str]:
    return row.stage, row.role.value, curve.value(row, estimate.value), curve.interval(row, estimate)


def _top(points: Sequence[Point], curve: Curve) -> float:
    """Return a top above every value, and above limits and bounds that are not far off."""
    if curve.bound_name == "target":
        return charts.PERCENT_TOP
    largest = max(point.y for point in points)
    ends = [point.upper for point in points if point.upper is not None and point.upper <= _FAR * largest]
    bounds = [bound * curve.scale for bound in curve.bounds.values() if bound * curve.scale <= _FAR * largest]
    return max(largest, *ends, *bounds, 0.0) * _ROOM_ABOVE or 1.0


def _bounds(curve: Curve, axis: Axis, top: float) -> tuple[str, list[Spec], list[Name]]:
    """Return the SLOs in words and as marks: one rule where all stages share it, else a short line at each."""
    bounds = {stage: bound * curve.scale for stage, bound in curve.bounds.items()}
    if not bounds:
        return "", [], []
    inside = {stage: bound for stage, bound in bounds.items() if bound <= top}
    if len(set(bounds.values())) > 1 or len(bounds) < len(axis.stages):
        values = [{"x": axis.place(stage), "y": round(bound, 6)} for stage, bound in inside.items()]
        mark: Spec = {"type": "tick", "orient": "horizontal", "size": 34, "thickness": 2, "color": charts.PAGE_COLOUR}
        drawn = charts.layer(mark, values, x=axis.encoding(), y=charts.y_field(top))
        return f" Short lines: {curve.bound_name} of each stage.", [drawn], []
    bound, shown = next(iter(bounds.values())), units.as_written(curve.shown, next(iter(curve.bounds.values())))
    if not inside:
        return f" {curve.bound_name[0].upper()}{curve.bound_name[1:]} {shown}, above the plot.", [], []
    name = Name(curve.bound_name, charts.pixels(bound, top), charts.PAGE_COLOUR)
    return f" Dotted: {curve.bound_name} {shown}.", [charts.rule_across(round(bound, 6), top)], [name]


def _ends(measured: Sequence[tuple[StageRow, Estimate]], curve: Curve) -> str:
    """Return the first and the last value of each side in words."""
    ends = []
    for arm in Arm:
        own = [(row, estimate) for row, estimate in measured if row.role is arm]
        if own:
            (first, opening), (last, closing) = own[0], own[-1]
            to = f" to {curve.value(last, closing.value)} at {last.stage}" if len(own) > 1 else ""
            ends.append(f"{arm.value}: {curve.value(first, opening.value)} at {first.stage}{to}")
    return "; ".join(ends) + "."
