"""What one stage came to on one side, each number with its 95 % interval: the points of the report's curves.

They show and decide nothing. The intervals are those that the history keeps (`metric_limits`), each of one number by
itself: two that overlap can still differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchgate.gate.block_values import LATENCIES
from benchgate.gate.metric_limits import block_limits, block_mean, kept_limits, quantiles_with_limits
from benchgate.gate.shares import Counts, tally_of
from benchgate.gate.unit_costs import output_tokens, unit_cost
from benchgate.model import metrics
from benchgate.model.deployment import Deployment
from benchgate.model.metrics import Slo
from benchgate.model.run import LoadObservation
from benchgate.stats.limits import Limits

SHOWN_LATENCIES = ("ttft", "tpot")
SHOWN_STATISTICS: Mapping[str, float] = {"p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % limits, None where the evidence carries none; +inf where too many requests failed."""

    value: float
    limits: Limits | None


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Over all blocks of a stage. None means that it was not measured, does not apply, or has no price or SLO.

    `quantiles` are seconds by latency and statistic, as `ttft_p95`; costs are dollars per million output tokens.
    """

    quantiles: Mapping[str, Estimate]
    output_tokens_per_s: Estimate | None
    goodput_ratio: Estimate | None
    usd_per_million_output: Estimate | None
    usd_per_million_good: Estimate | None


def stage_figures(blocks: Sequence[LoadObservation], slo: Slo | None, deployment: Deployment) -> StageFigures | None:
    """Of the executions of one stage, or of one class of it, on one side; None where there are none."""
    if not blocks:
        return None
    tokens = [metrics.output_tokens_per_s(o.requests, o.window_s) for o in blocks]
    goodput, of_good = None, None
    if slo is not None:
        counts = Counts.of(blocks, tally_of("goodput", slo))
        goodput = _estimate(sum(counts.kept) / counts.scheduled if counts.scheduled else None, kept_limits(counts))
        of_good = _estimate(*unit_cost(deployment, blocks, output_tokens(slo)))
    return StageFigures(
        quantiles=_quantiles(blocks),
        output_tokens_per_s=_estimate(block_mean(tokens), block_limits(tokens)),
        goodput_ratio=goodput,
        usd_per_million_output=_estimate(*unit_cost(deployment, blocks, output_tokens())),
        usd_per_million_good=of_good,
    )


def _quantiles(blocks: Sequence[LoadObservation]) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for latency in SHOWN_LATENCIES:
        each = [LATENCIES[latency](o.requests) for o in blocks]
        estimates = quantiles_with_limits(each, tuple(SHOWN_STATISTICS.values()), single=True)
        for statistic, (value, limits) in zip(SHOWN_STATISTICS, estimates, strict=True):
            if value is not None:
                found[f"{latency}_{statistic}"] = Estimate(value, limits)
    return found


def _estimate(value: float | None, limits: Limits | None) -> Estimate | None:
    return None if value is None else Estimate(value, limits)
