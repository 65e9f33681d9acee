"""How long every request took: the whole distribution of TTFT, TPOT and gaps, stage by stage, failures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import LATENCIES
from benchgate.model.verdict import CheckResult, Verdict
from benchgate.report.stage_rows import Executions, StageRow
from benchgate.stats.quantiles import Ecdf, ecdf

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""Of the table beside a curve; the last one is the slowest."""
_SHOWN = {"ttft": "TTFT", "tpot": "TPOT", "itl": "Gap between chunks"}
_MOST_STAGES = 8
_OPEN_STAGES = 1


@dataclass(frozen=True, slots=True)
class SideOfOne:
    """One side's requests (of `itl`, gaps) of one stage: the curve, and its quantiles at SHARES in seconds."""

    role: Arm
    curve: Ecdf
    quantiles: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """One latency of one stage on both sides; `slo_s` is what each request is held to, None without such a bound."""

    stage: str
    metric: str
    name: str
    sides: tuple[SideOfOne, ...]
    slo_s: float | None


@dataclass(frozen=True, slots=True)
class Distributions:
    """The stages of which most depends first: `first` stands open, `rest` folded, `left` are named alone."""

    first: tuple[Distribution, ...]
    rest: tuple[Distribution, ...]
    left: tuple[str, ...]


def distributions(rows: Sequence[StageRow], seen: Executions, verdict: Verdict) -> Distributions | None:
    """None where nothing of load was measured. `rows` are all stages on all sides."""
    stages = _by_weight(list(dict.fromkeys(stage for stage, _ in seen)), verdict)
    drawn = {stage: _of_stage([row for row in rows if row.stage == stage], seen) for stage in stages[:_MOST_STAGES]}
    found = [(stage, of_stage) for stage, of_stage in drawn.items() if of_stage]
    if not found:
        return None
    opened, folded = found[:_OPEN_STAGES], found[_OPEN_STAGES:]
    return Distributions(
        first=tuple(one for _, of_stage in opened for one in of_stage),
        rest=tuple(one for _, of_stage in folded for one in of_stage),
        left=tuple(stages[_MOST_STAGES:]),
    )


def _by_weight(stages: Sequence[str], verdict: Verdict) -> list[str]:
    """Where a required check fails, worst first; then where any is required; then the others, as the sweep has them."""
    weights: dict[str, int] = {}
    for check in verdict.checks:
        if check.stage is not None:
            weights[check.stage] = max(weights.get(check.stage, 0), _weight(check))
    return sorted(stages, key=lambda stage: -weights.get(stage, 0))


def _weight(check: CheckResult) -> int:
    return 1 + check.counted.severity * 2 + (10 if check.required else 0)


def _of_stage(rows: Sequence[StageRow], seen: Executions) -> list[Distribution]:
    found = []
    for metric, name in _SHOWN.items():
        sides = tuple(side for row in rows if (side := _side(row, seen, metric)) is not None)
        if any(side.curve.values for side in sides):
            found.append(Distribution(rows[0].stage, metric, name, sides, _bound(rows[0], metric)))
    return found


def _side(row: StageRow, seen: Executions, metric: str) -> SideOfOne | None:
    """None where nothing was measured, or the metric applies to none of it."""
    executions = seen.get((row.stage, row.role), ())
    if not executions:
        return None
    pooled: FloatArray = np.concatenate([LATENCIES[metric](o.requests) for o in executions])
    curve = ecdf(pooled)
    return None if curve is None else SideOfOne(row.role, curve, request_metrics.quantiles(pooled, SHARES))


def _bound(row: StageRow, metric: str) -> float | None:
    bounds: Mapping[str, float | None] = {} if row.slo is None else {"ttft": row.slo.ttft_s, "tpot": row.slo.tpot_s}
    return bounds.get(metric)
