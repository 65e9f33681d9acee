"""Two sections: the distribution of TTFT, TPOT and gaps of every stage, and the share of requests that met the SLO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate import units
from benchgate.gate.summary.figures import FAILED, Attainment, attainment
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import LATENCIES
from benchgate.model.verdict import CheckResult, Verdict
from benchgate.report import charts, display
from benchgate.report.charts import Figure, Spec
from benchgate.report.section import Charts, Section, notes
from benchgate.report.sections.stages import Executions, StageRow
from benchgate.report.table import Column, ShareBar, Table, group_starts, number_columns, text_columns
from benchgate.stats.quantiles import Ecdf, ecdf

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""Quantiles in the table below a curve; the last one is the slowest."""
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}
_REASONS = {FAILED: "failed", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_TOP = 104.0  # per cent, and a little room above
_TICKS = (0, 25, 50, 75, 95)
_MAX_SPAN = 1e4  # from the left edge to the right one; quicker values stand at the left edge
_FAR = 3.0  # an SLO so many times the slowest value lies right of the plot
_SMALL = 22  # size of a mark at a quantile
_ROOM = 1.06
_ECDF_NOTE = "Requests of all blocks together. Failed requests count as never answered, so a curve may end below 100 %."
_SLO_NOTE = (
    "Bar: share that met every bound; mark: target. A failed request meets no bound; a request may miss several "
    "bounds, so the columns can add up to more than the misses."
)


@dataclass(frozen=True, slots=True)
class ArmCurve:
    """A side's requests (of `itl`, gaps) of one stage: the curve, and its quantiles at SHARES in seconds."""

    role: Arm
    curve: Ecdf
    quantiles: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A latency of one stage on both sides; `slo_s` is the bound of each request, if any."""

    stage: str
    metric: str
    name: str
    sides: tuple[ArmCurve, ...]
    slo_s: float | None


def latency_section(rows: Sequence[StageRow], executions: Executions, verdict: Verdict) -> Section | None:
    """Return the curves of the stage with the worst required check, and the quantiles of all stages."""
    stages = _by_weight(list(dict.fromkeys(stage for stage, _ in executions)), verdict)
    found = [distributions([row for row in rows if row.stage == stage], executions) for stage in stages]
    every = [one for group in found for one in group]
    if not every:
        return None
    checked = {check.metric for check in verdict.checks if check.stage == every[0].stage}
    drawn = [one for one in every if one.stage == every[0].stage and (one.metric != "itl" or "itl" in checked)]
    parts = (Charts(distribution_figures(drawn or every[:1])), notes(_ECDF_NOTE), _quantiles(every))
    return Section("distributions", "Latency distributions", parts, link="Distributions")


def _quantiles(found: Sequence[Distribution]) -> Table:
    """Return the quantiles of every latency, stage by stage."""
    titles = ("n", "failed", *(f"p{share * 100:g}" if share < 1 else "max" for share in SHARES))
    rows = [(one.stage, one.name, side) for one in found for side in one.sides]
    cells = tuple((stage, side.role.value, name, *_quantile_cells(side)) for stage, name, side in rows)
    columns = (*text_columns("stage", "arm", "latency"), *number_columns(*titles))
    starts = group_starts([(stage, name) for stage, name, _ in rows])
    return Table("Quantiles over the requests of all blocks", columns, cells, starts)


def _quantile_cells(side: ArmCurve) -> tuple[str, ...]:
    counts = display.count(side.curve.n), display.count(side.curve.never)
    return (*counts, *(display.duration(value) for value in side.quantiles))


def _by_weight(stages: Sequence[str], verdict: Verdict) -> list[str]:
    """Order stages: a failing required check first, worst first; then other required ones; then as in the sweep."""

    def weight(check: CheckResult) -> int:
        return 1 + check.counted.severity * 2 + (10 if check.required else 0)

    weights: dict[str, int] = {}
    for check in verdict.checks:
        if check.stage is not None:
            weights[check.stage] = max(weights.get(check.stage, 0), weight(check))
    return sorted(stages, key=lambda stage: -weights.get(stage, 0))


def distributions(rows: Sequence[StageRow], executions: Executions) -> list[Distribution]:
    """Return the latencies of one stage that something was measured of."""
    found = []
    for metric, name in _NAMES.items():
        sides = tuple(side for row in rows if (side := _arm_curve(row, executions, metric)) is not None)
        if any(side.curve.values for side in sides):
            slo = rows[0].slo
            slo_s = None if slo is None else {"ttft": slo.ttft_s, "tpot": slo.tpot_s}.get(metric)
            found.append(Distribution(rows[0].stage, metric, name, sides, slo_s))
    return found


def _arm_curve(row: StageRow, executions: Executions, metric: str) -> ArmCurve | None:
    own = executions.get((row.stage, row.role), ())
    if not own:
        return None
    pooled: FloatArray = np.concatenate([LATENCIES[metric](o.requests) for o in own])
    curve = ecdf(pooled)
    return None if curve is None else ArmCurve(row.role, curve, request_metrics.quantiles(pooled, SHARES))


def distribution_figures(found: Sequence[Distribution]) -> tuple[Figure, ...]:
    """Return one chart each."""
    anchors = charts.anchors_of(f"figure-ecdf-{one.metric}-{one.stage}" for one in found)
    return tuple(_figure(one, anchor) for one, anchor in zip(found, anchors, strict=True))


def _figure(one: Distribution, anchor: str) -> Figure:
    smallest, largest, slo_s = _span(one)
    unit, scale = ("s", 1.0) if largest >= 10 else ("ms", 1e3)
    x = charts.log_x(f"{one.name}, {unit}", smallest * scale, largest * scale)
    caption = f"Share of {'gaps' if one.metric == 'itl' else 'requests'} that took at most this long."
    never = [f"{side.role.value} {side.curve.never:,}" for side in one.sides if side.curve.never]
    if never:  # a curve that ends low could be taken for one that was cut off
        caption += f" Failed, so that the curve ends below 100 %: {', '.join(never)}."
    layers: list[Spec] = []
    if one.slo_s is not None:
        shown = units.as_written(units.show_duration, one.slo_s)
        caption += f" SLO {shown}, right of the plot." if slo_s is None else f" Vertical line: SLO {shown}."
    if slo_s is not None:
        layers += charts.rule_up("SLO", round(slo_s * scale, 6), x)
    for side in one.sides:
        layers += [_curve(side, x, smallest, largest, scale), _quantile_marks(side, x, smallest, scale)]
    ends = [charts.arm_name(side.role, charts.pixels(side.curve.arrived * 100, _TOP)) for side in one.sides]
    spec = charts.plot([*layers, *charts.names_beside(ends)], "share, %", _TOP, ticks=_TICKS)
    most = SHARES.index(0.95)
    p95 = ", ".join(f"{side.role.value} {display.duration(side.quantiles[most])}" for side in one.sides)
    return Figure(anchor, f"{one.name} p95 at {one.stage}: {p95}", caption, spec, "", Table("", (), ()))


def _span(one: Distribution) -> tuple[float, float, float | None]:
    """Return the plot's ends in seconds, and the SLO unless it lies far beyond."""
    values = [value for side in one.sides for value in side.curve.values]
    largest = max(max(values), 1e-9)
    slo_s = one.slo_s if one.slo_s is not None and one.slo_s <= _FAR * largest else None
    largest = max(largest, slo_s or 0.0)
    positive = [value for value in (*values, *([slo_s] if slo_s is not None else [])) if value > 0]
    smallest = max(min(positive, default=largest), largest / _MAX_SPAN)
    return smallest / _ROOM, largest * _ROOM, slo_s


def _curve(side: ArmCurve, x: Spec, smallest: float, largest: float, scale: float) -> Spec:
    """Return a step at every value, from 0 at the left edge to the share that arrived at the right one."""
    curve = side.curve
    if not curve.values:
        return {}
    steps = [(max(value, smallest), share) for value, share in zip(curve.values, curve.shares, strict=True)]
    steps = [(smallest, 0.0), *steps, (largest, curve.arrived)]
    values = [
        {"x": charts.rounded(at * scale), "y": round(share * 100, 3), "order": i} for i, (at, share) in enumerate(steps)
    ]
    line = charts.arm_line(side.role) | {"interpolate": "step-after"}
    return charts.layer(line, values, x=x, y=charts.y_field(_TOP), order=charts.ORDER)


def _quantile_marks(side: ArmCurve, x: Spec, smallest: float, scale: float) -> Spec:
    values = [
        {
            "x": charts.rounded(max(value, smallest) * scale),
            "y": share * 100,
            "title": f"{side.role.value}: {f'{share * 100:g} % within' if share < 1 else 'max'} "
            f"{display.duration(value)}",
        }
        for share, value in zip(SHARES, side.quantiles, strict=True)
        if value is not None and math.isfinite(value)
    ]
    return charts.layer(charts.arm_mark(side.role, _SMALL) | charts.TITLED, values, x=x, y=charts.y_field(_TOP))


def attainment_section(rows: Sequence[StageRow], executions: Executions, slo: str) -> Section | None:
    """Return how many requests met their SLO; None without an SLO, and where nothing was measured."""
    held = [(row, row.slo, row.target_ratio) for row in rows if row.slo is not None and row.target_ratio is not None]
    found = [
        (row, target, bounds, attainment(executions.get((row.stage, row.role), ()), bounds))
        for row, bounds, target in held
    ]
    if not any(met is not None for *_, met in found):
        return None
    bounded = {
        name
        for _, _, slo_of, _ in found
        for name in ("ttft", "tpot", "e2e")
        if getattr(slo_of, f"{name}_s") is not None
    }
    names = [name for name in _REASONS if name == FAILED or name in bounded]
    columns = (
        *(*text_columns("stage", "arm"), Column("met"), Column("of all scheduled", numeric=False, bar=True)),
        *number_columns(
            "95 % interval", "good", *(_REASONS[n] if n == FAILED else f"past {_REASONS[n]}" for n in names)
        ),
    )
    table = Table(
        "Requests that met every bound, and bounds missed",
        columns,
        tuple(_attained(row, met, target, names) for row, target, _, met in found),
        group_starts([row.stage for row, *_ in found]),
        tuple(
            ShareBar(None if met is None or met.share is None else round(met.share * 100, 2), round(target * 100, 2))
            for _, target, _, met in found
        ),
    )
    return Section("attainment", "SLO attainment", (table, notes(f"{slo}. {_SLO_NOTE}")), link="SLO")


def _attained(row: StageRow, met: Attainment | None, target: float, names: Sequence[str]) -> tuple[str, ...]:
    def shown(ratio: float) -> str:
        return display.percent_beside(ratio, target)

    missed = []
    for name in names:
        count = None if met is None else met.missed.get(name)
        if met is None or count is None or not met.scheduled:
            missed.append(display.NOT_APPLICABLE)  # also where the SLO has no such bound
        else:
            missed.append("0" if count == 0 else f"{count:,} ({display.percent(count / met.scheduled)})")
    return (
        row.stage,
        row.role.value,
        display.percent_beside(None if met is None else met.share, target),
        "",
        display.limits(None if met is None else met.limits, shown),
        display.NOT_APPLICABLE if met is None else f"{met.good:,} of {met.scheduled:,}",
        *missed,
    )
