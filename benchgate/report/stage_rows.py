"""One row for every stage and side: what the tables and the curves of the load part are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchgate.gate.summary.figures import StageFigures, stage_figures
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.request_metrics import Slo
from benchgate.model.run import LoadObservation
from benchgate.report import show
from benchgate.report.sides import Side, Sides
from benchgate.report.summary import StageSummary, summarise_stage
from benchgate.report.tables import Column, Table
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite

_BEHIND = " in the background"


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage on one side; `summary` and `figures` are None when it was planned and never measured.

    `offered` is what its level offers as one number, requests in flight in a closed loop and per second in an open one;
    None for a part of a stage (`of_stage`: a class of traffic, the background), and where there is no such number.
    `slo` and `target_ratio` are what its requests are held to: the class's own, else the suite's; None without
    an SLO.
    """

    stage: str
    level: str
    role: Arm
    deployment: Deployment
    summary: StageSummary | None
    figures: StageFigures | None
    closed_loop: bool
    of_stage: bool
    offered: float | None
    slo: Slo | None
    target_ratio: float | None


Executions = Mapping[tuple[str, Arm], tuple[LoadObservation, ...]]
"""The executions of each stage on each side, in order."""


def executions_of(sides: Sides) -> Executions:
    """By stage and the part that a side plays; nothing of what was not measured."""
    found: dict[tuple[str, Arm], tuple[LoadObservation, ...]] = {}
    for side in sides:
        for seen in side.load:
            found[seen.stage, side.role] = (*found.get((seen.stage, side.role), ()), seen)
    return found


def stage_row(stage: str, traffic: TrafficClass | None, side: Side, suite: Suite) -> StageRow:
    """A stage of the suite, or one that was observed though the suite has none of its name."""
    observations = tuple(o for o in side.load if o.stage == stage)
    held_to = traffic.slo_spec if traffic is not None else suite.slo
    slo = held_to.per_request if held_to is not None else None
    return StageRow(
        stage=stage,
        level="" if traffic is None else traffic.schedule.offered + (_BEHIND if traffic.is_background else ""),
        role=side.role,
        deployment=side.deployment,
        summary=summarise_stage(observations, slo),
        figures=stage_figures(observations, slo, side.deployment),
        closed_loop=traffic is not None and not traffic.is_open,
        of_stage=traffic is not None and _is_part(traffic),
        offered=None if traffic is None else _offered(traffic),
        slo=slo,
        target_ratio=held_to.target_ratio if held_to is not None else None,
    )


def _offered(traffic: TrafficClass) -> float | None:
    concurrency = traffic.schedule.concurrency
    if _is_part(traffic):
        return None
    return traffic.mean_rps if concurrency is None else float(concurrency)


def _is_part(traffic: TrafficClass) -> bool:
    return traffic.class_name is not None or traffic.is_background


def stage_table(
    caption: str, columns: Sequence[Column], rows: Sequence[StageRow], cells: Sequence[tuple[str, ...]]
) -> Table:
    """A row per stage and arm, stages set off from each other."""
    starts = frozenset(i for i, row in enumerate(rows) if i > 0 and row.stage != rows[i - 1].stage)
    named = tuple((row.stage, row.role.value, *values) for row, values in zip(rows, cells, strict=True))
    return Table(caption, (Column("stage", numeric=False), Column("arm", numeric=False), *columns), named, starts)


def unmeasured(columns: int) -> tuple[str, ...]:
    """The cells of a stage that was planned and never measured."""
    return (show.NOT_MEASURED, *[show.NOT_APPLICABLE] * (columns - 1))
