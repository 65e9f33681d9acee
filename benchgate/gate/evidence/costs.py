"""What a million tokens cost in what blocks show, with the limits that follow: by the hour, or by the token."""

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
"""Dollars per million tokens, and their 95 % limits."""

_ROUNDING = 1e-9

Counted = Callable[[LoadObservation], "float | None"]
"""The tokens of a block that its dollars are divided by; None where they are not known."""


def unit_cost(deployment: Deployment, blocks: Sequence[LoadObservation], counted: Counted) -> Cost:
    """Dollars per million of the tokens that count, and their 95 % limits.

    By the hour at the mean pace of the blocks; by the token the mean of what each block's cost. None without a price,
    without a number in every block, and where no token came. The price itself is taken as certain.
    """
    if deployment.token_prices:
        costs = [block_cost(deployment, block, counted) for block in blocks]
        known = [None if cost is None or math.isinf(cost) else cost for cost in costs]
        return block_mean(known), block_limits(known) or _same_bill(known)
    return hourly_cost(deployment, [_pace(block, counted) for block in blocks])


def _same_bill(costs: Sequence[float | None]) -> Limits | None:
    """Of what costs the same in every block: tokens are counted, not timed, so that the same again is no accident."""
    first = costs[0] if len(costs) > 1 else None
    return None if first is None or any(cost != first for cost in costs) else Limits(first, first)


def hourly_cost(deployment: Deployment, tokens_per_s: Sequence[float | None]) -> Cost:
    """The same of a deployment that is paid by the hour, at the mean of its blocks' paces."""
    price = partial(_hourly, deployment)
    return price(block_mean(tokens_per_s)), price_limits(price, block_limits(tokens_per_s))


def block_cost(deployment: Deployment, block: LoadObservation, counted: Counted) -> float | None:
    """The same of one block. Infinite where no token counts: what was paid bought none. None where it is not known."""
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
    """What a hosted model asks for the tokens of a block's successful requests; None where they are not all known."""
    prices, requests = deployment.token_prices, block.requests
    read = request_metrics.input_tokens(requests)
    if read is None:
        return None
    cached = request_metrics.cached_tokens(requests)
    paid = (read - cached) * prices["input"] + cached * prices["cached_input"]
    return (paid + request_metrics.output_tokens(requests) * prices["output"]) / 1e6


def output_tokens(slo: Slo | None = None) -> Counted:
    """Output tokens of successful requests, or of those that meet an SLO."""
    return lambda block: request_metrics.output_tokens(block.requests, slo=slo)


def input_tokens(block: LoadObservation) -> float | None:
    """Input tokens of successful requests."""
    return request_metrics.input_tokens(block.requests)


def total_tokens(block: LoadObservation) -> float | None:
    """Input and output together."""
    read = request_metrics.input_tokens(block.requests)
    return None if read is None else read + request_metrics.output_tokens(block.requests)


def cost_in_use(deployment: Deployment, cost: Cost) -> Cost:
    """The same as the deployment is used: with its overhead, and paid while it idles. None where nobody said how."""
    factor, (value, limits) = deployment.in_use_factor, cost
    if factor is None or value is None:
        return None, None
    return value * factor, None if limits is None else Limits(limits.lower * factor, limits.upper * factor)


def idle_cost_warning(baseline: Deployment, candidate: Deployment) -> str | None:
    """That what is paid beside full use is more of the candidate's dollar than of the baseline's; None where it is not.

    Who says nothing of its use is taken at full use.
    """
    theirs, ours = (1.0 if one.in_use_factor is None else one.in_use_factor for one in (baseline, candidate))
    if ours <= theirs * (1 + _ROUNDING):
        return None
    told = f"{ours:.3g} times the cost at full use is paid for the candidate as it is used, {theirs:.3g} times"
    return f"{told} for the baseline, and the cost is compared at full use"


def _pace(block: LoadObservation, counted: Counted) -> float | None:
    tokens = counted(block)
    return None if tokens is None or block.window_s <= 0 else tokens / block.window_s


def _hourly(deployment: Deployment, tokens_per_s: float | None) -> float | None:
    if deployment.price_usd_per_hour is None or tokens_per_s is None:
        return None
    return usd_per_million_tokens(deployment.price_usd_per_hour, deployment.accelerators, tokens_per_s)
