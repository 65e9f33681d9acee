"""What is asked of a fleet: by its mean, by what it is at busy hours, and at its highest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.cost.fleet import MOST_PER_S

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Rates per second. `p95_per_s` is not exceeded in 95 of 100 hours, `growth_per_s2` is the steepest rise from one
    hour to the next, per second and second; None where only a mean is known.
    """

    mean_per_s: float
    p95_per_s: float | None = None
    peak_per_s: float | None = None
    growth_per_s2: float | None = None

    def __post_init__(self) -> None:
        for name in ("mean_per_s", "p95_per_s", "peak_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MOST_PER_S:
                raise ValueError(f"{name} of a demand is {value!r}; expected a rate, 0 to {MOST_PER_S:g}")
        for lower, upper in (("p95_per_s", "peak_per_s"), ("mean_per_s", "peak_per_s")):
            low, high = getattr(self, lower), getattr(self, upper)
            if low is not None and high is not None and low > high:
                raise ValueError(f"{lower} {low:g} is above {upper} {high:g}")

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """The levels that are known, by their names."""
        named = (("mean", self.mean_per_s), ("p95", self.p95_per_s), ("peak", self.peak_per_s))
        return tuple((name, value) for name, value in named if value is not None)

    def times(self, factor: float) -> Demand:
        """So much of each: requests into tokens, by the tokens of a request."""

        def scaled(value: float | None) -> float | None:
            return None if value is None else value * factor

        mean_per_s = self.mean_per_s * factor
        return Demand(mean_per_s, scaled(self.p95_per_s), scaled(self.peak_per_s), scaled(self.growth_per_s2))


def demand_of_hours(per_s: Sequence[float]) -> Demand:
    """The demand of consecutive hours, each with its mean rate per second. Raises ValueError without any hour."""
    rates = np.asarray(per_s, dtype=np.float64)
    if not rates.size:
        raise ValueError("there is no hour of traffic")
    p95 = float(np.quantile(rates, 0.95, method="inverted_cdf"))
    rises = np.diff(rates)
    growth = float(rises.max()) / _SECONDS_PER_HOUR if rises.size else None
    return Demand(float(rates.mean()), p95, float(rates.max()), None if growth is None else max(0.0, growth))
