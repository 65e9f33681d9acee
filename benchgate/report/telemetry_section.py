"""The telemetry part of the report: what servers and accelerators said of themselves, stage by stage.

A column stands only where somebody told something of its kind; who told nothing at all is named once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate import units
from benchgate.gate.evidence.client_strain import STRAINED_SHARE, strains
from benchgate.gate.summary.bottleneck import Bottleneck, bottleneck
from benchgate.model.deployment import Arm
from benchgate.model.records import BoolArray, RequestColumns
from benchgate.model.request_metrics import Slo, meets_slo, succeeded
from benchgate.model.run import LoadObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow
from benchgate.report import show
from benchgate.report.sides import Side, Sides
from benchgate.report.tables import Column, Table
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import stage_part


@dataclass(frozen=True, slots=True)
class Told:
    """One stage on one side: its windows and what the client recorded beside them, all classes together."""

    stage: str
    role: Arm
    windows: tuple[TelemetryWindow, ...]
    executions: tuple[LoadObservation, ...]
    bottleneck: Bottleneck
    slos: Mapping[str, Slo]  # by the name of a level; empty without an SLO

    def mean(self, word: Gauge) -> float | None:
        """Of a gauge over all looks in all blocks."""
        looks = [value for window in self.windows for value in window.during(word)]
        return sum(looks) / len(looks) if looks else None

    def peak(self, word: Gauge) -> float | None:
        """The largest value of a gauge that any look found."""
        return max((value for window in self.windows for value in window.during(word)), default=None)

    def total(self, word: Counter) -> float | None:
        """The change of a counter over the blocks that tell it."""
        changes = [change for window in self.windows if (change := window.change(word)) is not None]
        return sum(changes) if changes else None

    def ratio(self, part: Counter, whole: Counter) -> float | None:
        """One counter's change over another's; None where nothing was counted."""
        over = self.total(whole)
        value = self.total(part)
        return value / over if value is not None and over else None

    def joules_per_token(self, *, of_good: bool) -> float | None:
        """What the accelerators used in the blocks that tell it, over the output tokens answered, or good, in those."""
        energies = {window.block: window.energy_j for window in self.windows}
        used = {block: energy_j for block, energy_j in energies.items() if energy_j is not None}
        tokens = sum(self._tokens(o, of_good) for o in self.executions if o.block in used)
        return sum(used.values()) / tokens if used and tokens else None

    def _tokens(self, seen: LoadObservation, of_good: bool) -> int:
        """Of the ramp too: the energy is that of the whole stage."""
        marked = [self._good(seen.stage, rows) if of_good else succeeded(rows) for rows in seen.with_ramp]
        pairs = zip(seen.with_ramp, marked, strict=True)
        return sum(int(rows.output_tokens[which].clip(min=0).sum()) for rows, which in pairs)

    def _good(self, level: str, columns: RequestColumns) -> BoolArray:
        slo = self.slos.get(level)
        return np.zeros(len(columns), dtype=np.bool_) if slo is None else meets_slo(columns, slo)


@dataclass(frozen=True, slots=True)
class TelemetrySection:
    """The table in the order of the sweep; `silent` says who told nothing, or not all, and why."""

    table: Table | None
    bottlenecks: tuple[str, ...]
    silent: tuple[str, ...]


def told_rows(sides: Sides, suite: Suite) -> tuple[Told, ...]:
    """Every stage on every side of which somebody told something, in the order of the sweep."""
    stages = list(dict.fromkeys(window.stage for side in sides for window in side.telemetry))
    rows = (_told(stage, side, suite) for stage in stages for side in sides)
    return tuple(row for row in rows if any(window.readings for window in row.windows))


def telemetry_section(sides: Sides, told: Sequence[Told]) -> TelemetrySection | None:
    """None for a run in which nobody looked. `told` is what `told_rows` makes of it."""
    if not any(side.telemetry for side in sides):
        return None
    return TelemetrySection(
        table=_table(told) if told else None,
        bottlenecks=tuple(
            f"{row.stage}, {row.role.value}: {row.bottleneck.name} ({units.as_written(row.bottleneck.why)})"
            for row in told
        ),
        silent=tuple(line for side in sides for line in _silence(side)),
    )


def _told(stage: str, side: Side, suite: Suite) -> Told:
    windows = tuple(window for window in side.telemetry if window.stage == stage)
    executions = tuple(o for o in side.load if stage_part(o.stage) == stage)
    found = bottleneck(windows, executions, _strained(executions, suite))
    return Told(stage, side.role, windows, executions, found, _slos(suite))


def _slos(suite: Suite) -> dict[str, Slo]:
    return {traffic.name: traffic.slo for traffic in traffic_classes(suite) if traffic.slo is not None}


def _strained(executions: Sequence[LoadObservation], suite: Suite) -> str | None:
    """Why the client was the bottleneck; one disturbed block among many is no reason."""
    found = [reasons[0] for o in executions if (reasons := strains(o.client, o.requests, None, suite.gate.client))]
    return found[0] if found and len(found) > STRAINED_SHARE * len(executions) else None


def _silence(side: Side) -> Iterator[str]:
    windows = side.telemetry
    if side.load and not windows:
        yield f"{side.role.value}: nothing was read of it"
    problems = dict.fromkeys(problem for window in windows for problem in window.problems)
    for problem in problems:
        missing = sum(problem in window.problems for window in windows)
        where = "" if missing == len(windows) else f" ({missing} of {len(windows)} stage executions)"
        yield f"{side.role.value}: {problem}{where}"


def _table(rows: Sequence[Told]) -> Table:
    told = [(title, [cell(row) for row in rows]) for title, cell in _COLUMNS]
    shown = [(title, cells) for title, cells in told if any(cell is not None for cell in cells)]
    named = tuple(
        (row.stage, row.role.value, *(cells[i] or show.NOT_APPLICABLE for _, cells in shown), row.bottleneck.name)
        for i, row in enumerate(rows)
    )
    starts = frozenset(i for i, row in enumerate(rows) if i > 0 and row.stage != rows[i - 1].stage)
    columns = (
        *(Column("stage", numeric=False), Column("arm", numeric=False)),
        *(Column(title) for title, _ in shown),
        Column("bottleneck", numeric=False),
    )
    return Table("What the servers said of themselves", columns, named, starts)


def _number(value: float | None) -> str | None:
    return None if value is None or math.isnan(value) else show.number(value)


def _share(value: float | None) -> str | None:
    return None if value is None else show.percent(value)


def _queue_wait(row: Told) -> str | None:
    wait_s = row.ratio(Counter.QUEUE_S, Counter.QUEUED)
    return None if wait_s is None else show.duration(wait_s)


def _kv_after(row: Told) -> str | None:
    return _share(max((v for w in row.windows if (v := w.after(Gauge.KV_USAGE)) is not None), default=None))


def _acceptance(row: Told) -> str | None:
    counted = row.ratio(Counter.ACCEPTED, Counter.DRAFTED)
    return _share(row.mean(Gauge.ACCEPTANCE) if counted is None else counted)


def _joules(row: Told, *, of_good: bool) -> str | None:
    value = row.joules_per_token(of_good=of_good)
    return None if value is None else f"{show.number(value)} J"


_COLUMNS: tuple[tuple[str, Callable[[Told], str | None]], ...] = (
    ("running", lambda row: _number(row.mean(Gauge.RUNNING))),
    ("waiting", lambda row: _number(row.mean(Gauge.WAITING))),
    ("waiting, most", lambda row: _number(row.peak(Gauge.WAITING))),
    ("queue wait", _queue_wait),
    ("KV cache, most", lambda row: _share(row.peak(Gauge.KV_USAGE))),
    ("KV cache, after", _kv_after),
    ("prefix cache hits", lambda row: _share(row.ratio(Counter.PREFIX_HITS, Counter.PREFIX_QUERIES))),
    ("speculation accepted", _acceptance),
    ("preempted", lambda row: _number(row.total(Counter.PREEMPTIONS))),
    ("GPU busy", lambda row: _share(row.mean(Gauge.GPU_BUSY))),
    ("memory bandwidth", lambda row: _share(row.mean(Gauge.GPU_BANDWIDTH))),
    ("memory busy", lambda row: _share(row.mean(Gauge.GPU_MEMORY_BUSY))),
    ("memory used", lambda row: _share(row.peak(Gauge.GPU_MEMORY_USED))),
    ("power, W", lambda row: _number(row.mean(Gauge.GPU_POWER))),
    ("per token", lambda row: _joules(row, of_good=False)),
    ("per good token", lambda row: _joules(row, of_good=True)),
    ("client's load average", lambda row: _number(row.peak(Gauge.CLIENT_LOAD))),
)
