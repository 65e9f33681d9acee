"""Cost of accelerators per hour and of tokens per million."""

from __future__ import annotations

import math

_SECONDS_PER_HOUR = 3600.0
_TOKENS_PER_MILLION = 1_000_000.0


def serving_usd_per_hour(
    list_usd_per_hour: float, *, interruption_ratio: float = 0.0, energy_usd_per_hour: float = 0.0
) -> float:
    """Return dollars per hour of service: list / (1 - interruption) + energy, which is used only while it runs.

    `interruption_ratio` is the share of paid time that spot capacity loses to interruptions, at least 0 and below 1.
    """
    return list_usd_per_hour / (1 - interruption_ratio) + energy_usd_per_hour


def utilisation_cost_factor(overhead_ratio: float, utilisation_ratio: float) -> float:
    """Return the ratio of actual to full-utilisation token cost: (1 + overhead) / utilisation.

    `overhead_ratio` is further cost per dollar, at least 0. `utilisation_ratio` is the share of paid time in which
    tokens flow at the measured rate, above 0.
    """
    return (1 + overhead_ratio) / utilisation_ratio


def usd_per_million_tokens(
    price_usd_per_hour: float,
    accelerators: int,
    tokens_per_s: float,
    *,
    utilisation_ratio: float = 1.0,
    overhead_ratio: float = 0.0,
) -> float | None:
    """Return price · accelerators · (1 + overhead) · 10⁶ / (3600 · tokens/s · utilisation), in US dollars.

    `price_usd_per_hour` is per accelerator, `tokens_per_s` of the whole deployment: output tokens for the plain cost,
    output tokens of *good* requests for the cost of good tokens. `utilisation_ratio` is the share of paid time in which
    tokens flow at that rate, in (0, 1]; `overhead_ratio` is further cost per dollar (network, storage, spares), 0 or
    more.

    Return None when no token came or the rate is not finite. Raises ValueError for an invalid price, count, utilisation
    or overhead.
    """
    if not (math.isfinite(price_usd_per_hour) and price_usd_per_hour >= 0):
        raise ValueError(f"price_usd_per_hour is {price_usd_per_hour!r}; expected dollars, 0 or more")
    if accelerators < 1:
        raise ValueError(f"accelerators is {accelerators!r}; expected at least 1")
    if not 0 < utilisation_ratio <= 1:
        raise ValueError(f"utilisation_ratio is {utilisation_ratio!r}; expected above 0 and at most 1")
    if not (math.isfinite(overhead_ratio) and overhead_ratio >= 0):
        raise ValueError(f"overhead_ratio is {overhead_ratio!r}; expected 0 or more")
    if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
        return None
    usd_per_hour = price_usd_per_hour * accelerators * (1 + overhead_ratio)
    tokens_per_hour = tokens_per_s * utilisation_ratio * _SECONDS_PER_HOUR
    return usd_per_hour * _TOKENS_PER_MILLION / tokens_per_hour
