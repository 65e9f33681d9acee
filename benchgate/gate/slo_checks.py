"""SLOs on latency quantiles, rates and costs: the candidate's own values, whatever the baseline's are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchgate.gate.block_pairs import Measure, no_price, priced
from benchgate.gate.block_values import (
    LATENCIES,
    LOOK_AT_ERRORS,
    too_few,
    unpaced,
)
from benchgate.gate.comparison import Comparison, load_of
from benchgate.gate.load_checks import unit_of
from benchgate.gate.load_steps import PooledQuantile, cost_steps, quantile_steps, rate_steps
from benchgate.gate.rule import Finding, Problem
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import LoadObservation
from benchgate.model.verdict import Outcome, Scale
from benchgate.stats.distributions import binom_sf
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t
from benchgate.stats.quantiles import min_n_for_upper_limit, order_statistic_limits


def absolute(comparison: Comparison, measure: Measure, stage: str, *, slo: float, alpha: float) -> Finding:
    """The candidate's own value against an SLO: t-limits over blocks on the log scale.

    For a latency quantile they are widened to the distribution-free order-statistic limits over the pooled requests,
    which also say when there are too few requests for the quantile to have an upper limit at all.
    """
    metric, q = measure.metric, measure.q
    blocks = list(load_of(comparison.judged, stage, Arm.CANDIDATE).values())
    finding = Finding(
        unit=unit_of(measure),
        scale=Scale.ABSOLUTE,
        margin=slo,
        method="t-limits over blocks of ln(value)",
        n=len(blocks),
        n_unit="blocks",
        breach=True,
        lower_is_worse=measure.rises,
    )
    unusable = unpaced(metric, q, stage, blocks)
    if unusable is not None:
        return replace(finding, problem=unusable)
    unpriced = no_price(comparison.judged, measure, (Arm.CANDIDATE,))
    if unpriced is not None:
        return replace(finding, problem=unpriced)
    values = [priced([block], measure, comparison.judged.run.arms.get(Arm.CANDIDATE)) for block in blocks]
    known = np.array([measure.restated(v, [b]) for v, b in zip(values, blocks, strict=True) if v is not None])
    if len(known) < len(values) or len(known) == 0:
        return replace(finding, problem=_missing(metric, stage))
    if metric in LATENCIES:
        return _latency_slo(finding, measure, blocks, known, alpha)
    return _rate_slo(finding, known, alpha)


def _latency_slo(
    finding: Finding, measure: Measure, blocks: list[LoadObservation], per_block: FloatArray, alpha: float
) -> Finding:
    """The quantile of a request's latency. Of the gaps of one request (ITL), which go together, one counts.

    A block whose quantile is infinite has no logarithm and leaves only one thing to say of the upper limit.
    """
    q = measure.q
    pooled = np.concatenate(
        [_one_per_request(measure.metric, block, q) * measure.restated(1.0, [block]) for block in blocks]
    )
    pooled = pooled[~np.isnan(pooled)]
    estimate = metrics.quantile(pooled, q)
    order = order_statistic_limits(pooled, q, alpha)
    if order is None or estimate is None:
        reason = f"p{q * 100:g} has no upper limit from {len(pooled)} requests"
        advice = f"measure at least {min_n_for_upper_limit(q, alpha)} requests in this stage over all blocks"
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, advice))
    above = int(np.count_nonzero(pooled > finding.margin))
    p_value = binom_sf(above - 1, len(pooled), 1 - q)  # as many above the SLO, were its quantile there
    limits, test = Limits(lower=order.lower, upper=math.inf), None
    if np.isfinite(per_block).all() and (per_block > 0).all():
        test = paired_t(np.log(per_block), alpha, margin=math.log(finding.margin))
        if test is None:
            return replace(finding, problem=too_few(len(per_block)))
        limits = Limits(
            lower=min(order.lower, math.exp(test.limits.lower)), upper=max(order.upper, math.exp(test.limits.upper))
        )
        p_value = max(test.p_harm, p_value)
    return replace(
        finding,
        candidate=estimate,
        harm=estimate,
        limits=limits,
        p_value=p_value,
        n=len(pooled),
        n_unit="requests",
        method="order-statistic limits over requests, widened to t-limits over blocks of ln(quantile)",
        steps=quantile_steps(
            PooledQuantile(q, estimate, order, len(pooled), above), finding.margin, alpha, per_block, test
        ),
    )


def _one_per_request(metric: str, block: LoadObservation, q: float) -> FloatArray:
    """A request's latency; for ITL the same quantile of its own gaps, +inf for a failed request."""
    if metric != "itl":
        return LATENCIES[metric](block.requests)
    columns = block.requests
    succeeded = metrics.succeeded(columns)
    values = np.full(len(columns), np.inf)
    for row in np.flatnonzero(succeeded):
        chunks = columns.chunk_ns[columns.chunk_start[row] : columns.chunk_start[row + 1]]
        gap = metrics.quantile(np.diff(chunks) * 1e-9, q)
        values[row] = np.nan if gap is None else gap
    return values


def _rate_slo(finding: Finding, per_block: FloatArray, alpha: float) -> Finding:
    """A rate, of which less is worse, or a cost, of which more is."""
    sign = -1 if finding.lower_is_worse else 1
    if not (np.isfinite(per_block).all() and (per_block > 0).all()):
        what = "no request was answered" if finding.lower_is_worse else "no token that counts came"
        reason = f"in at least one block {what}, so there is nothing to hold against the SLO"
        return replace(
            finding, problem=Problem(Outcome.INVALID, reason, "see the errors by class and the server's log")
        )
    test = paired_t(sign * np.log(per_block), alpha, margin=sign * math.log(finding.margin))
    if test is None:
        return replace(finding, problem=too_few(len(per_block)))
    value = math.exp(sign * test.mean)
    lower, upper = sorted(math.exp(sign * end) for end in (test.limits.lower, test.limits.upper))
    limits = Limits(lower, upper)
    steps = (rate_steps if finding.lower_is_worse else cost_steps)(per_block, finding.margin, value, limits, alpha)
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=test.p_harm, steps=steps)


def _missing(metric: str, stage: str) -> Problem:
    return Problem(Outcome.INVALID, f"{metric} was not measured in every block of stage {stage}", LOOK_AT_ERRORS)
