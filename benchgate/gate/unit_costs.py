"""What a million tokens cost at the pace that blocks show, with the limits that follow from that pace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchgate.cost.prices import usd_per_million_tokens
from benchgate.gate.metric_limits import block_limits, block_mean, price_limits
from benchgate.model.deployment import Deployment
from benchgate.stats.limits import Limits


def unit_cost(deployment: Deployment, tokens_per_s: Sequence[float | None]) -> tuple[float | None, Limits | None]:
    """Dollars per million tokens at the mean of the blocks' `tokens_per_s`, and their 95 % limits.

    None without a price, without a rate in every block, and where no token came. The price itself is taken as certain.
    """
    price = partial(_price, deployment)
    return price(block_mean(tokens_per_s)), price_limits(price, block_limits(tokens_per_s))


def _price(deployment: Deployment, tokens_per_s: float | None) -> float | None:
    if deployment.price_usd_per_hour is None or tokens_per_s is None:
        return None
    return usd_per_million_tokens(deployment.price_usd_per_hour, deployment.accelerators, tokens_per_s)
