"""What tokens would have cost at other prices: made of the pace that runs keep, or of what they cost and paid."""

from __future__ import annotations

from typing import NamedTuple

from benchgate.cost.prices import usd_per_million_tokens
from benchgate.model.run import TrendPoint


class PriceTaken(NamedTuple):
    """What a point was re-priced by, beside the point itself: the file, the day of its entry, and the price.

    `price_usd_per_hour` is of one accelerator, with what its terms add.
    """

    prices: str
    prices_day: str
    price_usd_per_hour: float
    accelerators: int


def repriced(pace: TrendPoint, usd_per_hour: float, accelerators: int, factor: float = 1.0) -> TrendPoint | None:
    """A point in tokens per second as dollars per million tokens, with its limits; None where no token came.

    `usd_per_hour` is of one accelerator; `factor` what the cost at full use is multiplied by.
    """
    value = _cost(pace.value, usd_per_hour, accelerators, factor)
    if value is None:
        return None
    lower, upper = (_cost(end, usd_per_hour, accelerators, factor) for end in (pace.upper, pace.lower))
    whole = lower is not None and upper is not None
    return pace._replace(value=value, lower=lower if whole else None, upper=upper if whole else None)


def scaled(cost: TrendPoint, factor: float) -> TrendPoint:
    """A point in dollars as so many times as much, with its limits: a cost by the hour goes with its price."""
    lower, upper = (None if end is None else end * factor for end in (cost.lower, cost.upper))
    return cost._replace(value=cost.value * factor, lower=lower, upper=upper)


def _cost(tokens_per_s: float | None, usd_per_hour: float, accelerators: int, factor: float) -> float | None:
    if tokens_per_s is None:
        return None
    cost = usd_per_million_tokens(usd_per_hour, accelerators, tokens_per_s)
    return None if cost is None else cost * factor
