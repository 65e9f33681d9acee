"""Rows of the load tables and curves: every stage on both sides, summarised over its blocks.

Quantiles are over the requests of all blocks, rates are means over blocks. Nothing here decides anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import by_adapter
from benchgate.gate.summary.figures import StageFigures, stage_figures
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import Slo
from benchgate.model.records import BoolArray, FloatArray, RequestColumns
from benchgate.model.run import LoadObservation
from benchgate.report import display
from benchgate.report.comparability import Side, Sides
from benchgate.report.table import Column, Table, group_starts, text_columns
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, traffic_classes

Requests = tuple[object, ...]
"""Workload and arrivals of a stage: all but how many requests there are, or how often they come."""


def requests_of(traffic: TrafficClass) -> Requests:
    """Return what two stages must share to be levels of one sweep."""
    at = traffic.schedule
    return traffic.workload, at.arrival, at.bursts, at.ramp_to_rps is None, at.steps is None, at.trace


Executions = Mapping[tuple[str, Arm], tuple[LoadObservation, ...]]
"""The executions of each stage on each side, in order."""


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage of one arm over all its blocks. None was not measured or does not apply; +inf failed.

    `good_*` and `goodput_ratio` are None without an SLO. `failed` counts requests by error class, those of the ramp
    included; tokens are those of successful requests. Neither `ramp` (requests sent to reach the steady state)
    nor `left` (cancelled on purpose) are among those scheduled. `client_cpu_share` and `read_delay_p99_s` are those of
    the worst block.
    """

    blocks: int
    scheduled: int
    succeeded: int
    failed: Mapping[str, int]
    output_tokens_per_s: float | None
    requests_per_s: float | None
    goodput_ratio: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    e2e_p50_s: float | None
    input_tokens: int | None
    output_tokens: int
    token_sources: Mapping[str, int]
    decoding_at_once: float | None
    client_cpu_share: float
    send_lag_p99_s: float | None
    read_delay_p99_s: float | None
    left: int
    ramp: int
    reasoning_ratio: float | None
    validity_ratio: float | None


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage on one side; `summary` and `figures` are None when it was planned and never measured.

    `offered` is its load as one number: requests in flight in a closed loop, per second in an open one. It is None for
    a `part_of_stage` (a traffic class, the background) and where there is no such number. Stages of equal `requests`
    differ in their load alone. `slo` and `target_ratio` are those of its class, else of the suite.
    """

    stage: str
    level: str
    role: Arm
    deployment: Deployment
    summary: StageSummary | None
    figures: StageFigures | None
    closed_loop: bool
    part_of_stage: bool
    offered: float | None
    requests: Requests | None
    slo: Slo | None
    target_ratio: float | None


def executions_of(sides: Sides) -> Executions:
    """Group the load observations by stage and side."""
    found: dict[tuple[str, Arm], tuple[LoadObservation, ...]] = {}
    for side in sides:
        for observation in side.load:
            place = observation.stage, side.role
            found[place] = (*found.get(place, ()), observation)
    return found


def stage_rows(sides: Sides, suite: Suite) -> tuple[StageRow, ...]:
    """Return a row for each stage and side in the order of the sweep; none when no load was measured.

    A stage that was planned and never measured has rows too. Each adapter of several has rows like a class of traffic.
    """
    classes = {traffic.name: traffic for traffic in traffic_classes(suite)}
    observed = [o.stage for side in sides for o in side.load]
    stages = dict.fromkeys([*classes, *observed]) if observed else ()
    rows: list[StageRow] = []
    for stage in stages:
        traffic = classes.get(stage)
        rows += [stage_row(stage, traffic, side, suite) for side in sides]
        if traffic is not None and len(traffic.workload.adapters) > 1:
            rows += _adapter_rows(traffic, sides, suite)
    return tuple(rows)


def _adapter_rows(traffic: TrafficClass, sides: Sides, suite: Suite) -> Iterator[StageRow]:
    """Yield the rows of each adapter that was drawn; a stored run draws by its own seed."""
    parts = [
        (
            side,
            [
                by_adapter(o, traffic, Suite.from_stored(side.run.suite).seed)
                for o in side.load
                if o.stage == traffic.name
            ],
        )
        for side in sides
    ]
    for adapter in traffic.workload.adapters:
        name = f"{traffic.name}/{adapter}"
        one = replace(traffic, stage=traffic.name, class_name=adapter)
        for side, executions in parts:
            load = tuple(replace(each[adapter], stage=name) for each in executions if adapter in each)
            yield stage_row(name, one, replace(side, load=load), suite)


def stage_row(stage: str, traffic: TrafficClass | None, side: Side, suite: Suite) -> StageRow:
    """Return one row; `traffic` is None for an observed stage that the suite does not name."""
    observations = tuple(o for o in side.load if o.stage == stage)
    slo_spec = traffic.slo_spec if traffic is not None else suite.slo
    slo = slo_spec.per_request if slo_spec is not None else None
    part = traffic is not None and (traffic.class_name is not None or traffic.is_background)
    offered: float | None = None
    if traffic is not None and not part:
        concurrency = traffic.schedule.concurrency
        offered = traffic.mean_rps if concurrency is None else float(concurrency)
    background = " in the background" if traffic is not None and traffic.is_background else ""
    return StageRow(
        stage=stage,
        level="" if traffic is None else traffic.schedule.offered + background,
        role=side.role,
        deployment=side.deployment,
        summary=summarise_stage(observations, slo),
        figures=stage_figures(observations, slo, side.deployment),
        closed_loop=traffic is not None and not traffic.is_open,
        part_of_stage=part,
        offered=offered,
        requests=None if traffic is None else requests_of(traffic),
        slo=slo,
        target_ratio=slo_spec.target_ratio if slo_spec is not None else None,
    )


def stage_table(
    caption: str, columns: Sequence[Column], rows: Sequence[StageRow], cells: Sequence[tuple[str, ...]]
) -> Table:
    """Return a table with a row for each stage and arm, stages set off from each other."""
    named = tuple((row.stage, row.role.value, *values) for row, values in zip(rows, cells, strict=True))
    return Table(caption, (*text_columns("stage", "arm"), *columns), named, group_starts([row.stage for row in rows]))


def unmeasured(columns: int) -> tuple[str, ...]:
    """Return the cells of a stage that was planned and never measured."""
    return (display.NOT_MEASURED, *[display.NOT_APPLICABLE] * (columns - 1))


def summarise_stage(observations: Sequence[LoadObservation], slo: Slo | None) -> StageSummary | None:
    """Summarise the blocks of one stage on one arm; None without any."""
    if not observations:
        return None
    columns = [o.requests for o in observations]
    succeeded = [request_metrics.succeeded(c) for c in columns]
    good = None if slo is None else [request_metrics.meets_slo(c, slo) for c in columns]
    scheduled = sum(len(c) for c in columns)
    ttft = _pooled(request_metrics.ttft_s, columns)
    input_tokens = [known for c in columns if (known := request_metrics.input_tokens(c)) is not None]
    read_delays_s = [o.client.read_delay_p99_s for o in observations]
    known_delays_s = [delay_s for delay_s in read_delays_s if delay_s is not None]
    return StageSummary(
        blocks=len(observations),
        scheduled=scheduled,
        succeeded=_total(succeeded),
        failed=_failures([rows for o in observations for rows in o.with_ramp]),
        output_tokens_per_s=_mean([request_metrics.output_tokens_per_s(o.requests, o.window_s) for o in observations]),
        requests_per_s=_mean([request_metrics.requests_per_s(o.requests, o.window_s) for o in observations]),
        goodput_ratio=None if good is None or scheduled == 0 else _total(good) / scheduled,
        ttft_p50_s=request_metrics.quantile(ttft, 0.5),
        ttft_p95_s=request_metrics.quantile(ttft, 0.95),
        tpot_p50_s=request_metrics.quantile(_pooled(request_metrics.tpot_s, columns), 0.5),
        e2e_p50_s=request_metrics.quantile(_pooled(request_metrics.e2e_s, columns), 0.5),
        input_tokens=int(sum(input_tokens)) if len(input_tokens) == len(columns) else None,
        output_tokens=sum(int(c.output_tokens[s].sum()) for c, s in zip(columns, succeeded, strict=True)),
        token_sources=_most_frequent_first(
            Counter(
                source or "unknown"
                for c, s in zip(columns, succeeded, strict=True)
                for source in c.token_source.take(np.flatnonzero(s & (c.tokenless != 1)))
            )
        ),
        decoding_at_once=_mean([request_metrics.mean_decoding_requests(o.requests, o.window_s) for o in observations]),
        client_cpu_share=max(o.client.cpu_share for o in observations),
        send_lag_p99_s=request_metrics.quantile(_pooled(request_metrics.client_lag_s, columns), 0.99),
        read_delay_p99_s=max(known_delays_s) if len(known_delays_s) == len(read_delays_s) else None,
        left=sum(len(o.left) for o in observations),
        ramp=sum(len(o.ramp) for o in observations),
        reasoning_ratio=request_metrics.reasoning_ratio(*columns),
        validity_ratio=request_metrics.validity_ratio(*columns),
    )


def _pooled(metric: Callable[[RequestColumns], FloatArray], columns: Sequence[RequestColumns]) -> FloatArray:
    return np.concatenate([metric(c) for c in columns])


def _total(masks: Iterable[BoolArray]) -> int:
    return sum(int(mask.sum()) for mask in masks)


def _mean(rates: Sequence[float | None]) -> float | None:
    """Return the mean over blocks; None when one of them has no rate."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known and len(known) == len(rates) else None


def _failures(columns: Sequence[RequestColumns]) -> dict[str, int]:
    """Count failed requests by error class (else by finish reason), most frequent first."""
    counts: Counter[str] = Counter()
    for c in columns:
        failed = np.flatnonzero(~request_metrics.succeeded(c))
        for error, finish in zip(c.error.take(failed), c.finish_reason.take(failed), strict=True):
            counts[error or f"finish {finish or 'missing'}"] += 1
    return _most_frequent_first(counts)


def _most_frequent_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
