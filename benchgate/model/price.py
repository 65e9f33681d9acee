"""What an hour of an accelerator costs, by the terms it was bought on, and how it is used.

What a million tokens cost on a deployment that is paid by the hour.
"""

from __future__ import annotations

import math


def serving_usd_per_hour(
    list_usd_per_hour: float, *, interruption_ratio: float = 0.0, energy_usd_per_hour: float = 0.0
) -> float:
    """Dollars for an hour in which it serves: list / (1 - interruption) + energy, which is drawn only while it runs.

    `interruption_ratio`: of the paid time, what spot capacity loses to interruptions, at least 0 and below 1.
    """
    return list_usd_per_hour / (1 - interruption_ratio) + energy_usd_per_hour


def in_use_factor(overhead_ratio: float, utilisation_ratio: float) -> float:
    """So many times what tokens cost at full use is what they cost as it is used: (1 + overhead) / utilisation.

    `overhead_ratio`: what else is paid per dollar, at least 0. `utilisation_ratio`: of the paid time, that in which
    tokens flow at the measured pace, above 0.
    """
    return (1 + overhead_ratio) / utilisation_ratio


_SECONDS_PER_HOUR = 3600.0
_TOKENS_PER_MILLION = 1_000_000.0


def usd_per_million_tokens(
    price_usd_per_hour: float,
    accelerators: int,
    tokens_per_s: float,
    *,
    utilisation_ratio: float = 1.0,
    overhead_ratio: float = 0.0,
) -> float | None:
    """price · accelerators · (1 + overhead) · 10⁶ / (3600 · tokens/s · utilisation), in US dollars.

    `price_usd_per_hour` is of one accelerator, `tokens_per_s` of the whole deployment: output tokens for the plain
    cost, output tokens of *good* requests for the cost of a million good tokens. `utilisation_ratio` is the share of
    paid time in which tokens flow at that pace, in (0, 1]; `overhead_ratio` is what else is paid per dollar of
    accelerator (network, storage, spares), 0 or more.

    None when no token came or the rate is not finite: nothing was bought, and that has no unit price. ValueError when
    a price, count, utilisation or overhead cannot be.
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
