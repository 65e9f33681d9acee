"""Cost per million tokens with 95 % limits, for deployments paid by the hour or by the token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from benchgate.gate.evidence.intervals import block_limits, block_mean, price_limits
from benchgate.model import request_metrics
from benchgate.model.deployment import Deployment
from benchgate.model.price import usd_per_million_tokens
from benchgate.model.request_metrics import Slo
from benchgate.model.run import LoadObservation
from benchgate.stats.distributions import Limits

Cost = tuple[float | None, Limits | None]
"""Dollars per million tokens, with 95 % limits."""

_ROUNDING = 1e-9

Counted = Callable[[LoadObservation], "float | None"]
"""Function that counts the tokens of a block over which its cost is spread; None if unknown."""


def unit_cost(deployment: Deployment, blocks: Sequence[LoadObservation], counted: Counted) -> Cost:
    """Return dollars per million counted tokens with 95 % limits.

    Hourly prices use the mean throughput of the blocks, token prices the mean of the blocks' costs. None without a
    price, without a count in every block, or without tokens. The price itself is taken as exact.
    """
    if deployment.token_prices:
        costs = [block_cost(deployment, block, counted) for block in blocks]
        known = [None if cost is None or math.isinf(cost) else cost for cost in costs]
        return block_mean(known), block_limits(known) or _constant_limits(known)
    return hourly_cost(deployment, [_pace(block, counted) for block in blocks])


def _constant_limits(costs: Sequence[float | None]) -> Limits | None:
    """Return the limits of a cost that is equal in all blocks: tokens are counted exactly, so it has no spread."""
    first = costs[0] if len(costs) > 1 else None
    return None if first is None or any(cost != first for cost in costs) else Limits(first, first)


def hourly_cost(deployment: Deployment, tokens_per_s: Sequence[float | None]) -> Cost:
    """Return the unit cost of a deployment paid by the hour at the mean throughput of its blocks."""
    price = partial(_hourly, deployment)
    return price(block_mean(tokens_per_s)), price_limits(price, block_limits(tokens_per_s))


def block_cost(deployment: Deployment, block: LoadObservation, counted: Counted) -> float | None:
    """Return the unit cost of one block; infinite if no token counts, None if unknown."""
    tokens = counted(block)
    if tokens is None or not deployment.has_price:
        return None
    if tokens == 0:
        return math.inf
    if not deployment.token_prices:
        return _hourly(deployment, _pace(block, counted))
    usd = billed_usd(deployment, block)
    return None if usd is None else usd * 1e6 / tokens


def billed_usd(deployment: Deployment, block: LoadObservation) -> float | None:
    """Return the token price of a block's successful requests; None if any count is missing."""
    prices, requests = deployment.token_prices, block.requests
    read = request_metrics.input_tokens(requests)
    if read is None:
        return None
    cached = request_metrics.cached_tokens(requests)
    paid = (read - cached) * prices["input"] + cached * prices["cached_input"]
    return (paid + request_metrics.output_tokens(requests) * prices["output"]) / 1e6


def output_tokens(slo: Slo | None = None) -> Counted:
    """Count output tokens of successful requests, or of those that meet an SLO."""
    return lambda block: request_metrics.output_tokens(block.requests, slo=slo)


def input_tokens(block: LoadObservation) -> float | None:
    """Count input tokens of successful requests."""
    return request_metrics.input_tokens(block.requests)


def total_tokens(block: LoadObservation) -> float | None:
    """Count input and output tokens of successful requests."""
    read = request_metrics.input_tokens(block.requests)
    return None if read is None else read + request_metrics.output_tokens(block.requests)


def cost_in_use(deployment: Deployment, cost: Cost) -> Cost:
    """Return the cost including the deployment's declared overhead and idle time; None if undeclared."""
    factor, (value, limits) = deployment.in_use_factor, cost
    if factor is None or value is None:
        return None, None
    return value * factor, None if limits is None else Limits(limits.lower * factor, limits.upper * factor)


def idle_cost_warning(baseline: Deployment, candidate: Deployment) -> str | None:
    """Return a warning if overhead and idle time are a larger share of the candidate's cost; None if not.

    A deployment that declares no use counts as fully used.
    """
    baseline_factor, factor = (1.0 if one.in_use_factor is None else one.in_use_factor for one in (baseline, candidate))
    if factor <= baseline_factor * (1 + _ROUNDING):
        return None
    factors = (
        f"{factor:.3g} times the cost at full use for the candidate and {baseline_factor:.3g} times for the baseline"
    )
    return f"idle time and overhead raise the cost to {factors}; the check compares at full use"


def _pace(block: LoadObservation, counted: Counted) -> float | None:
    tokens = counted(block)
    return None if tokens is None or block.window_s <= 0 else tokens / block.window_s


def _hourly(deployment: Deployment, tokens_per_s: float | None) -> float | None:
    if deployment.price_usd_per_hour is None or tokens_per_s is None:
        return None
    return usd_per_million_tokens(deployment.price_usd_per_hour, deployment.accelerators, tokens_per_s)
