"""The section on server telemetry: stage by stage, and one block over time beside its TTFT.

A column appears where a server reported its metric; servers without telemetry are named once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate import units
from benchgate.gate.evidence.client_saturation import strains
from benchgate.gate.evidence.client_strain import STRAINED_SHARE
from benchgate.gate.summary.bottleneck import Bottleneck, bottleneck
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import Slo
from benchgate.model.records import BoolArray, FloatArray, RequestColumns
from benchgate.model.request_metrics import meets_slo, succeeded
from benchgate.model.run import LoadObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow, ratio_of_changes
from benchgate.model.verdict import ReplicaFigures, Verdict
from benchgate.report import charts, display
from benchgate.report.charts import Figure, Point, Spec
from benchgate.report.comparability import Side, Sides
from benchgate.report.section import Charts, Fold, Lines, Part, Section, Style, notes, present
from benchgate.report.table import Table, group_starts, number_columns, text_columns
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import stage_part

_REPLICA_NOTE = "Replicas as the metrics tell them apart. A role's figures are those of its replicas together."
_TABLE_NOTE = "Counters are changes over a stage; gauges are sampled once a second."
_MIN_SAMPLES = 3
_BINS = 80
_DRAWN_GAUGES = {
    Gauge.WAITING: ("Requests waiting", "waiting"),
    Gauge.RUNNING: ("Requests running", "running"),
    Gauge.KV_USAGE: ("KV cache in use", "KV cache, %"),
}
_ALWAYS_ZERO = {
    Gauge.WAITING: "No sample of this block has a waiting request.",
    Gauge.RUNNING: "No sample of this block has a running request.",
    Gauge.KV_USAGE: "The KV cache was empty in every sample of this block.",
}
_SMALL = 26  # size of a mark among many
_LONG_S = 10.0
_FAILED_AT_PX = 6.0  # below the top of the plot


@dataclass(frozen=True, slots=True)
class StageTelemetry:
    """A stage on one side: its telemetry windows and the load observations beside them, all classes together."""

    stage: str
    role: Arm
    windows: tuple[TelemetryWindow, ...]
    executions: tuple[LoadObservation, ...]
    bottleneck: Bottleneck
    slos: Mapping[str, Slo]  # by the name of a level; empty without an SLO

    def mean(self, gauge: Gauge) -> float | None:
        """Return the mean over all samples in all blocks."""
        samples = [value for window in self.windows for value in window.during(gauge)]
        return sum(samples) / len(samples) if samples else None

    def peak(self, gauge: Gauge) -> float | None:
        """Return the largest sample."""
        return max((value for window in self.windows for value in window.during(gauge)), default=None)

    def after(self, gauge: Gauge) -> float | None:
        """Return the largest value after a stage."""
        return max((v for window in self.windows if (v := window.after(gauge)) is not None), default=None)

    def total(self, counter: Counter) -> float | None:
        """Return the change over the blocks that report it."""
        changes = [change for window in self.windows if (change := window.change(counter)) is not None]
        return sum(changes) if changes else None

    def ratio(self, part: Counter, whole: Counter) -> float | None:
        """Return one counter's change over another's; None where nothing was counted."""
        return ratio_of_changes(self.windows, part, whole)

    def joules_per_token(self, *, of_good: bool) -> float | None:
        """Return the accelerators' energy over the output tokens (or good ones) of the blocks that report it."""
        energies = {window.block: window.energy_j for window in self.windows}
        used = {block: energy_j for block, energy_j in energies.items() if energy_j is not None}
        tokens = sum(self._tokens(o, of_good) for o in self.executions if o.block in used)
        return sum(used.values()) / tokens if used and tokens else None

    def _tokens(self, seen: LoadObservation, of_good: bool) -> int:
        """Count the ramp's tokens too: the energy is that of the whole stage."""
        marked = [self._good(seen.stage, rows) if of_good else succeeded(rows) for rows in seen.with_ramp]
        pairs = zip(seen.with_ramp, marked, strict=True)
        return sum(int(rows.output_tokens[which].clip(min=0).sum()) for rows, which in pairs)

    def _good(self, level: str, columns: RequestColumns) -> BoolArray:
        """Return which requests are good: every success of a class without an SLO, as the check counts them."""
        slo = self.slos.get(level)
        return succeeded(columns) if slo is None else meets_slo(columns, slo)


def servers_section(
    sides: Sides, suite: Suite, verdict: Verdict, paced_by_client: Collection[tuple[str, int]]
) -> Section | None:
    """Return the section; None for a run without telemetry."""
    if not any(side.telemetry for side in sides):
        return None
    rows = stage_telemetry(sides, suite)
    over_time = timeline(rows, verdict, paced_by_client)
    charted = timeline_parts(over_time) if over_time is not None else ()
    table = _table(rows) if rows else None
    bottlenecks = tuple(
        f"{row.stage}, {row.role.value}: {row.bottleneck.name} ({units.without_zeros(row.bottleneck.why)})"
        for row in rows
    )
    fold = Fold("Bottleneck of each stage", (Lines(bottlenecks),), opened=not charted) if table else None
    silent = [f"Telemetry of the {line}." for side in sides for line in _silence(side)]
    replicas = _replica_table(verdict.replicas)
    by_replica = (replicas, notes(_REPLICA_NOTE)) if replicas is not None else ()
    return Section(
        "servers",
        "Server telemetry",
        present(*charted, table, notes(_TABLE_NOTE) if table else None, *by_replica, fold, notes(*silent)),
        summary=present(table, Lines(bottlenecks), replicas) if table else (),
        link="Servers",
        rank=8,
    )


def stage_telemetry(sides: Sides, suite: Suite) -> tuple[StageTelemetry, ...]:
    """Return every stage and side with telemetry in the order of the sweep."""
    slos = {traffic.name: traffic.slo for traffic in traffic_classes(suite) if traffic.slo is not None}
    rows = []
    for stage in dict.fromkeys(window.stage for side in sides for window in side.telemetry):
        for side in sides:
            windows = tuple(window for window in side.telemetry if window.stage == stage)
            executions = tuple(o for o in side.load if stage_part(o.stage) == stage)
            if any(window.readings for window in windows):
                strained = [
                    reasons[0]
                    for o in executions
                    if (reasons := strains(o.client, o.requests, None, suite.gate.client))
                ]
                # one disturbed block among many does not make the client the bottleneck
                client = strained[0] if strained and len(strained) > STRAINED_SHARE * len(executions) else None
                limit = bottleneck(windows, executions, client)
                rows.append(StageTelemetry(stage, side.role, windows, executions, limit, slos))
    return tuple(rows)


def _silence(side: Side) -> Iterator[str]:
    windows = side.telemetry
    if side.load and not windows:
        yield f"{side.role.value}: not read"
    for problem in dict.fromkeys(problem for window in windows for problem in window.problems):
        missing = sum(problem in window.problems for window in windows)
        where = "" if missing == len(windows) else f" ({missing} of {len(windows)} stage executions)"
        yield f"{side.role.value}: {problem}{where}"


def _table(rows: Sequence[StageTelemetry]) -> Table:
    cells = {title: [cell(row) for row in rows] for title, cell in _COLUMNS}
    shown = {title: own for title, own in cells.items() if any(cell is not None for cell in own)}
    named = tuple(
        (row.stage, row.role.value, *(own[i] or display.NOT_APPLICABLE for own in shown.values()), row.bottleneck.name)
        for i, row in enumerate(rows)
    )
    columns = (*text_columns("stage", "arm"), *number_columns(*shown), *text_columns("bottleneck"))
    return Table("Telemetry of servers and accelerators", columns, named, group_starts([row.stage for row in rows]))


def _number(value: float | None) -> str | None:
    return None if value is None or math.isnan(value) else display.number(value)


def _share(value: float | None) -> str | None:
    return None if value is None else display.percent(value)


def _duration(value: float | None) -> str | None:
    return None if value is None else display.duration(value)


def _joules(value: float | None) -> str | None:
    return None if value is None else f"{display.number(value)} J"


def _acceptance(row: StageTelemetry) -> float | None:
    counted = row.ratio(Counter.ACCEPTED, Counter.DRAFTED)
    return row.mean(Gauge.ACCEPTANCE) if counted is None else counted


_COLUMNS: tuple[tuple[str, Callable[[StageTelemetry], str | None]], ...] = (
    ("running", lambda row: _number(row.mean(Gauge.RUNNING))),
    ("waiting", lambda row: _number(row.mean(Gauge.WAITING))),
    ("waiting, max", lambda row: _number(row.peak(Gauge.WAITING))),
    ("queue wait", lambda row: _duration(row.ratio(Counter.QUEUE_S, Counter.QUEUED))),
    ("KV cache, mean", lambda row: _share(row.mean(Gauge.KV_USAGE_MEAN))),
    ("KV cache, max", lambda row: _share(row.peak(Gauge.KV_USAGE))),
    ("KV cache, after", lambda row: _share(row.after(Gauge.KV_USAGE))),
    ("prefix cache hits", lambda row: _share(row.ratio(Counter.PREFIX_HITS, Counter.PREFIX_QUERIES))),
    ("speculation accepted", lambda row: _share(_acceptance(row))),
    ("preempted", lambda row: _number(row.total(Counter.PREEMPTIONS))),
    ("GPU busy", lambda row: _share(row.mean(Gauge.GPU_BUSY))),
    ("memory bandwidth", lambda row: _share(row.mean(Gauge.GPU_BANDWIDTH))),
    ("memory busy", lambda row: _share(row.mean(Gauge.GPU_MEMORY_BUSY))),
    ("memory used", lambda row: _share(row.peak(Gauge.GPU_MEMORY_USED))),
    ("power, W", lambda row: _number(row.mean(Gauge.GPU_POWER))),
    ("energy per token", lambda row: _joules(row.joules_per_token(of_good=False))),
    ("energy per good token", lambda row: _joules(row.joules_per_token(of_good=True) if row.slos else None)),
    ("client's load average", lambda row: _number(row.peak(Gauge.CLIENT_LOAD))),
)


# Replicas.


def _replica_table(replicas: Sequence[ReplicaFigures]) -> Table | None:
    if not replicas:
        return None
    cells = {title: [cell(one) for one in replicas] for title, cell in _REPLICA_COLUMNS}
    shown = {title: own for title, own in cells.items() if any(cell is not None for cell in own)}
    has_roles = any(one.role is not None for one in replicas)
    rows = tuple(
        (
            one.stage,
            one.arm.value,
            one.replica or "all",
            *((one.role.value if one.role is not None else display.NOT_APPLICABLE,) if has_roles else ()),
            *(own[i] or display.NOT_APPLICABLE for own in shown.values()),
            str(one.restarts),
        )
        for i, one in enumerate(replicas)
    )
    titles = text_columns("stage", "arm", "replica", *(("role",) if has_roles else ()))
    columns = (*titles, *number_columns(*shown, "restarts"))
    starts = group_starts([(one.stage, one.arm) for one in replicas])
    return Table("Telemetry by replica", columns, rows, starts)


_REPLICA_COLUMNS: tuple[tuple[str, Callable[[ReplicaFigures], str | None]], ...] = (
    ("requests", lambda one: _number(one.requests)),
    ("output tokens", lambda one: _number(one.output_tokens)),
    ("running", lambda one: _number(one.running_mean)),
    ("waiting, max", lambda one: _number(one.waiting_max)),
    ("queue wait", lambda one: _duration(one.queue_s)),
    ("prefill time", lambda one: _duration(one.prefill_s)),
    ("time per token", lambda one: _duration(one.per_token_s)),
    ("KV cache, mean", lambda one: _share(one.kv_usage_mean)),
    ("KV cache, max", lambda one: _share(one.kv_usage_max)),
    ("prefix cache hits", lambda one: _share(one.prefix_hit_ratio)),
    ("preempted", lambda one: _number(one.preemptions)),
)


# One stage over its time.


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of one arm, `at_s` seconds into the stage; a latency is in seconds, +inf for a failed request."""

    arm: Arm
    at_s: float
    value: float


@dataclass(frozen=True, slots=True)
class GaugeSamples:
    """All samples of one gauge; `title` is its axis, where shares are in per cent."""

    name: str
    title: str
    key: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A block (from 0) of one stage over its time, and why this one.

    `ttft` are requests by when they were due: all of them, or the slowest in each of many bins out of `requests`.
    `zero` are sentences on gauges that were always 0, which are not in `gauges`. `bottlenecks` has a line a side.
    """

    stage: str
    block: int
    why: str
    ttft: tuple[Sample, ...]
    requests: int
    gauges: tuple[GaugeSamples, ...]
    zero: tuple[str, ...]
    bottlenecks: tuple[str, ...]
    ends_s: float


def timeline(
    rows: Sequence[StageTelemetry], verdict: Verdict, paced_by_client: Collection[tuple[str, int]] = ()
) -> Timeline | None:
    """Choose the block with the longest queue; without a queue a stage where a check fails, else the last one.

    A block in which the load generator set the pace is chosen only where there is no other. Returns None without a
    block of at least three samples.
    """
    sampled = [
        (row, window)
        for row in rows
        for window in row.windows
        if any(len(window.during(gauge)) >= _MIN_SAMPLES for gauge in _DRAWN_GAUGES)
    ]
    if not sampled:
        return None
    sound = [(row, window) for row, window in sampled if (window.stage, window.block) not in paced_by_client]
    chosen, why = _chosen([window for _, window in sound or sampled], verdict)
    why += "" if sound else "; the load generator was the bottleneck, as in every sampled block"
    stage, block = chosen.stage, chosen.block
    here = [row for row in rows if row.stage == stage]
    windows = [(row.role, w) for row in here for w in row.windows if w.block == block]
    executions = [(row.role, o) for row in here for o in row.executions if o.block == block]
    found = {gauge: samples for gauge in _DRAWN_GAUGES if (samples := _samples(gauge, windows)) is not None}
    gauges = tuple(one for one in found.values() if any(sample.value for sample in one.samples))
    ttft = tuple(sample for arm, execution in executions for sample in _ttft(arm, execution))
    return Timeline(
        stage=stage,
        block=block,
        why=why,
        ttft=ttft,
        requests=sum(len(o.requests) for _, o in executions),
        gauges=gauges,
        zero=tuple(_ALWAYS_ZERO[gauge] for gauge, one in found.items() if one not in gauges),
        bottlenecks=tuple(f"{row.role.value}: {row.bottleneck.name} ({row.bottleneck.why})" for row in here),
        ends_s=max((sample.at_s for one in (*(g.samples for g in gauges), ttft) for sample in one), default=0.0),
    )


def _chosen(windows: Sequence[TelemetryWindow], verdict: Verdict) -> tuple[TelemetryWindow, str]:
    depth, longest = max(((w.peak(Gauge.WAITING) or 0.0, w) for w in windows), key=lambda pair: pair[0])
    if depth > 0:
        return longest, "where the queue was longest"
    failing = {stage_part(check.stage) for check in verdict.failing() if check.stage is not None}
    at_fault = next((w for w in windows if w.stage in failing), None)
    return (at_fault, "where a check fails") if at_fault is not None else (windows[-1], "the last sampled block")


def _samples(gauge: Gauge, windows: Sequence[tuple[Arm, TelemetryWindow]]) -> GaugeSamples | None:
    scale = 100.0 if gauge is Gauge.KV_USAGE else 1.0
    found = tuple(
        Sample(arm, reading.at_s, value * scale)
        for arm, window in windows
        for reading in window.busy
        if (value := reading.values.get(gauge)) is not None and math.isfinite(value)
    )
    return GaugeSamples(*_DRAWN_GAUGES[gauge], gauge.value, found) if found else None


def _ttft(arm: Arm, execution: LoadObservation) -> Iterator[Sample]:
    """Yield TTFT by the instant a request was due; of many the slowest in each of equal bins."""
    due_s: FloatArray = execution.requests.intended_ns.astype(np.float64) * 1e-9
    ttft_s = request_metrics.ttft_s(execution.requests)
    kept = list(range(len(due_s)))
    if len(due_s) > _BINS:
        bins = np.minimum((due_s / max(float(due_s.max()), 1e-9) * _BINS).astype(np.int64), _BINS - 1)
        members = [np.flatnonzero(bins == at) for at in range(_BINS)]
        kept = [int(inside[np.argmax(ttft_s[inside])]) for inside in members if len(inside)]
    yield from (Sample(arm, float(due_s[at]), float(ttft_s[at])) for at in kept)


def timeline_parts(found: Timeline) -> tuple[Part, ...]:
    """Return the charts with their heading and notes; nothing without a chart."""
    figures = timeline_figures(found)
    if not figures:
        return ()
    heading = f"Stage {found.stage}, block {found.block + 1} over time: {found.why}"
    return present(
        Lines((heading,), Style.HEADING),
        notes("Bottleneck of this stage over all blocks:"),
        Lines(found.bottlenecks),
        Charts(figures),
        notes(*found.zero),
    )


def timeline_figures(found: Timeline) -> tuple[Figure, ...]:
    """Return TTFT first, then the gauges, all over one time axis."""
    if found.ends_s <= 0:
        return ()
    x = charts.linear_x("seconds into the stage", round(found.ends_s * 1.04, 3))
    ttft = [_ttft_figure(found, x)] if any(math.isfinite(one.value) for one in found.ttft) else []
    return (*ttft, *(_gauge_figure(gauge, found.stage, x) for gauge in found.gauges))


def _gauge_figure(gauge: GaugeSamples, stage: str, x: Spec) -> Figure:
    what, percent, _ = gauge.title.partition(", %")
    sign = " %" if percent else ""
    points = [
        Point(
            one.arm,
            round(one.at_s, 3),
            round(one.value, 4),
            title=_title(one, f"{what} {display.number(one.value)}{sign}"),
        )
        for one in gauge.samples
    ]
    top = max(max(point.y for point in points) * 1.2, 1.0)
    caption = "Samples as the server reported them."
    names = charts.names_beside(charts.arm_names(points, top))
    spec = charts.plot([*charts.series(points, x, top), *names], gauge.title, top)
    most = {arm: max((one.value for one in gauge.samples if one.arm is arm), default=None) for arm in Arm}
    words = ", ".join(f"{arm.value} at most {display.number(v)}{sign}" for arm, v in most.items() if v is not None)
    rows = [(stage, one.arm.value, display.duration(one.at_s), display.number(one.value)) for one in gauge.samples]
    numbers = charts.numbers_table(gauge.name, ("into the stage", gauge.title), rows)
    return Figure(f"figure-timeline-{gauge.key}", f"{gauge.name}: {words}", caption, spec, "", numbers)


def _ttft_figure(found: Timeline, x: Spec) -> Figure:
    finite = [one for one in found.ttft if math.isfinite(one.value)]
    failed = [one for one in found.ttft if not math.isfinite(one.value)]
    longest_s = max(one.value for one in finite)
    unit, scale = ("s", 1.0) if longest_s >= _LONG_S else ("ms", 1e3)
    top = charts.rounded(longest_s * scale * 1.2, 5)
    layers: list[Spec] = []
    for arm in Arm:
        values = [
            {
                "x": round(one.at_s, 3),
                "y": charts.rounded(one.value * scale, 5),
                "title": _title(one, f"TTFT {display.duration(one.value)}"),
            }
            for one in finite
            if one.arm is arm
        ]
        mark = charts.arm_mark(arm, _SMALL) | {"opacity": 0.75} | charts.TITLED
        layers.append(charts.layer(mark, values, x=x, y=charts.y_field(top)))
    layers += [_failed(arm, [one for one in failed if one.arm is arm], x) for arm in Arm]
    caption = f"TTFT by the time a request was due, {found.why}."
    if len(found.ttft) < found.requests:
        caption += f" The slowest of {found.requests:,} requests in each interval are drawn."
    if failed:
        caption += f" Cross: failed request ({len(failed):,} drawn)."
    last = [Point(one.arm, one.at_s, one.value * scale) for one in finite]
    spec = charts.plot([*layers, *charts.names_beside(charts.arm_names(last, top))], f"TTFT, {unit}", top)
    place = f"In stage {charts.short_name(found.stage)}, block {found.block + 1}."
    rows = [(found.stage, o.arm.value, display.duration(o.at_s), display.duration(o.value)) for o in found.ttft]
    numbers = charts.numbers_table("TTFT over time", ("due", "TTFT"), rows)
    title = f"TTFT over time: slowest {display.duration(longest_s)}"
    return Figure("figure-timeline-ttft", title, caption, spec, place, numbers)


def _failed(arm: Arm, samples: Sequence[Sample], x: Spec) -> Spec:
    """Return a row of crosses at the top, the candidate's below the baseline's."""
    values = [{"x": round(one.at_s, 3), "title": _title(one, "failed")} for one in samples]
    y = _FAILED_AT_PX if arm is Arm.BASELINE else 2 * _FAILED_AT_PX + 2
    mark = {"type": "point", "shape": "cross", "angle": 45, "size": 60, "filled": True, "y": y}
    return charts.layer(mark | {"color": charts.COLOURS[arm]} | charts.TITLED, values, x=x)


def _title(sample: Sample, what: str) -> str:
    return f"{sample.arm.value}, {display.duration(sample.at_s)} into the stage: {what}"
