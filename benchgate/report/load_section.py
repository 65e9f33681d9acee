"""The load part of the report: speed, failures and cost of every stage on both sides, and the order they ran in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate import units
from benchgate.model.deployment import Arm
from benchgate.model.run import LoadObservation
from benchgate.report import show
from benchgate.report.cost_lines import cost_lines
from benchgate.report.cost_table import cost_table
from benchgate.report.knee_lines import knee_levels, knee_lines
from benchgate.report.sides import Sides
from benchgate.report.stage_rows import StageRow, stage_row, stage_table, unmeasured
from benchgate.report.summary import StageSummary
from benchgate.report.tables import Column, Table
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import SloSpec

TWO_NUMBERS = (
    "A check takes each block's own number instead, without the blocks that do not count, and the geometric mean of "
    "these: that is why the same name can have two numbers"
)


@dataclass(frozen=True, slots=True)
class LoadSection:
    """All stages on both sides, in the order of the sweep.

    `slo` says what a good request is, that of classes with an SLO of their own included; empty without any.
    """

    rows: tuple[StageRow, ...]
    speed: Table
    requests: Table
    cost: Table | None
    cost_lines: tuple[str, ...]  # which level's price counts, and what it is the price of
    order: str
    slo: str
    knees: tuple[str, ...]  # of a sweep over concurrency, one sentence a side
    knee_levels: Mapping[Arm, float]  # of the sides that have one


def load_section(sides: Sides, suite: Suite) -> LoadSection | None:
    """None when nothing of load was seen; a stage that was planned and never seen is a row of the others' tables."""
    classes = {traffic.name: traffic for traffic in traffic_classes(suite)}
    observed = [o.stage for side in sides for o in side.load]
    if not observed:
        return None
    stages = list(dict.fromkeys([*classes, *observed]))
    rows = tuple(stage_row(stage, classes.get(stage), side, suite) for stage in stages for side in sides)
    summaries = {(row.stage, row.role): row.summary for row in rows}
    return LoadSection(
        rows=rows,
        speed=_speed(rows),
        requests=_requests(rows),
        cost=cost_table(rows),
        cost_lines=cost_lines(rows),
        order=_order(sides),
        slo=". ".join(_slo_lines(suite, list(classes.values()))),
        knees=knee_lines(suite, summaries),
        knee_levels=knee_levels(suite, summaries),
    )


def _speed(rows: Sequence[StageRow]) -> Table:
    titles = ("output tok/s", "req/s", "TTFT p50", "TTFT p95", "TPOT p50", "E2E p50", "goodput")
    columns = (Column("level", numeric=False), *(Column(title) for title in titles))
    cells = [(row.level, *(_speed_cells(row.summary) if row.summary else unmeasured(len(titles)))) for row in rows]
    return stage_table("Speed", columns, rows, cells)


def _speed_cells(s: StageSummary) -> tuple[str, ...]:
    return (
        show.number(s.output_tokens_per_s),
        show.number(s.requests_per_s),
        show.duration(s.ttft_p50_s),
        show.duration(s.ttft_p95_s),
        show.duration(s.tpot_p50_s),
        show.duration(s.e2e_p50_s),
        show.NOT_APPLICABLE if s.goodput_ratio is None else show.percent(s.goodput_ratio),
    )


def _requests(rows: Sequence[StageRow]) -> Table:
    columns = (
        *(Column("blocks"), Column("scheduled"), Column("succeeded"), Column("failed by class", numeric=False)),
        *(Column("input tokens"), Column("output tokens"), Column("counted by", numeric=False)),
        *(Column("client CPU, worst block"), Column("client send lag p99")),
        Column("client read delay p99, worst block"),
    )
    cells = [_request_cells(row.summary) if row.summary else unmeasured(len(columns)) for row in rows]
    return stage_table("Requests, tokens and the client itself", columns, rows, cells)


def _request_cells(s: StageSummary) -> tuple[str, ...]:
    return (
        show.count(s.blocks),
        show.count(s.scheduled)
        + (f", and {show.count(s.ramp)} of the ramp" if s.ramp else "")
        + (f", and {show.count(s.left)} broken off on purpose" if s.left else ""),
        show.count(s.succeeded) + ("" if s.validity_ratio is None else f", {show.percent(s.validity_ratio)} valid"),
        _counts(s.failed) or "none",
        show.count(s.input_tokens),
        show.count(s.output_tokens) + (f", {show.percent(s.reasoning_ratio)} reasoning" if s.reasoning_ratio else ""),
        _sources(s.token_sources),
        show.percent(s.client_cpu_share),
        show.duration(s.send_lag_p99_s),
        show.duration(s.read_delay_p99_s),
    )


def _order(sides: Sides) -> str:
    """The arms of each block in the order they ran, `B` for baseline and `C` for candidate."""
    if sides.alone or sides.baseline.run is not sides.candidate.run:
        return ""
    first_seen: dict[tuple[int, str], list[LoadObservation]] = {}
    for observation in sorted((o for side in sides for o in side.load), key=lambda o: o.position):
        first_seen.setdefault((observation.block, observation.stage), []).append(observation)
    blocks: dict[int, str] = {}
    for (block, _), pair in first_seen.items():
        blocks.setdefault(block, " ".join(o.arm.value[0].upper() for o in pair))
    return " · ".join(blocks[block] for block in sorted(blocks))


def _slo_lines(suite: Suite, classes: Sequence[TrafficClass]) -> Iterator[str]:
    """What holds for all that say nothing of their own, then each class that does."""
    if suite.slo is not None:
        yield f"A good request succeeds with {_bounds(suite.slo)}"
    for traffic in classes:
        if traffic.has_own_slo and traffic.slo_spec is not None:
            start = f"At {traffic.name}" if suite.slo else f"A good request of {traffic.name} succeeds"
            yield f"{start} with {_bounds(traffic.slo_spec)}"


def _bounds(slo: SloSpec) -> str:
    bounds = (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s))
    each = ", ".join(
        f"{name} ≤ {units.as_written(show.duration(bound))}" for name, bound in bounds if bound is not None
    )
    target = units.as_written(show.percent(slo.target_ratio))
    return f"{each}; the target is {target} of the requests scheduled"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())


def _sources(sources: Mapping[str, int]) -> str:
    return next(iter(sources), show.NOT_APPLICABLE) if len(sources) <= 1 else _counts(sources)
