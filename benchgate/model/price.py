"""What an hour of an accelerator costs, by the terms it was bought on, and how it is used."""

from __future__ import annotations


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
