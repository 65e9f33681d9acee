"""Stages at which the SLO is missed and no check says so: green checks of the others must not hide it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate import units
from benchgate.gate.summary.figures import attainment
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Verdict
from benchgate.report import show
from benchgate.report.stage_rows import Executions, StageRow


def unjudged_slo(rows: Sequence[StageRow], seen: Executions, verdict: Verdict) -> Iterator[str]:
    """A sentence for each stage or class where the candidate misses the target of an SLO and no check looks."""
    judged = {check.stage for check in verdict.checks if check.metric == "goodput"}
    for row in rows:
        if row.role is not Arm.CANDIDATE or row.stage in judged or row.slo is None or row.target_ratio is None:
            continue
        met = attainment(seen.get((row.stage, row.role), ()), row.slo)
        if met is None or met.share is None or met.share >= row.target_ratio:
            continue
        target = units.as_written(show.percent(row.target_ratio))
        told = f"{show.percent(met.share)} of its requests met the SLO, of which {target} is the target"
        yield f"Goodput of {row.stage} is judged by no check: {told}."
