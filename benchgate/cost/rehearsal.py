"""A week of traffic against a fleet, by the hour: the question as one value, what came of it as another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.cost.replay import Floats, Replayed, Scaling, hourly_arrivals, replay

_SECONDS_PER_HOUR = 3600.0
MOST_REQUESTS = 20_000_000  # a second of processor time each million, and 16 bytes of memory a request


@dataclass(frozen=True, slots=True)
class Service:
    """How long a request keeps its place: a gamma distribution of this mean and coefficient of variation.

    0 is a constant, 1 the exponential distribution.
    """

    mean_s: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean_s) and self.mean_s > 0 and math.isfinite(self.cv) and self.cv >= 0):
            raise ValueError(f"a service cannot be: {self}; expected a mean above 0 and a variation of 0 or more")

    def draw(self, count: int, generator: np.random.Generator) -> Floats:
        """So many of them, in seconds."""
        if self.cv == 0:
            return np.full(count, self.mean_s)
        shape = 1 / self.cv**2
        return generator.gamma(shape, self.mean_s / shape, count)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What the traffic met. `within_ratio` is the share of requests that waited no longer than `wait_s` for a place.

    Waits are None where no request came, dollars where the price of a replica is not known.
    """

    scaling: Scaling
    service: Service
    requests: int
    wait_s: float
    within_ratio: float | None
    wait_mean_s: float | None
    wait_p99_s: float | None
    worst_hour: int | None  # the hour whose share within is lowest, from 1
    worst_per_s: float | None  # its demand
    worst_within_ratio: float | None
    replica_hours: float
    highest: int
    scaled_up: int
    scaled_down: int
    usd: float | None


def rehearse(
    requests_per_s: Sequence[float],
    service: Service,
    scaling: Scaling,
    *,
    wait_s: float,
    usd_per_hour: float | None,
    generator: np.random.Generator,
) -> Rehearsed:
    """Poisson arrivals at each hour's rate against the fleet.

    Raises ValueError for rates that cannot be, and for more requests than are worth waiting for (MOST_REQUESTS).
    """
    rates = np.asarray(requests_per_s, dtype=np.float64)
    expected = float(rates.sum()) * _SECONDS_PER_HOUR
    if expected > MOST_REQUESTS:
        raise ValueError(f"about {expected:,.0f} requests; at most {MOST_REQUESTS:,} are replayed: give fewer hours")
    arrivals = hourly_arrivals(rates, generator)
    found = replay(arrivals, service.draw(arrivals.size, generator), scaling, rates.size * _SECONDS_PER_HOUR)
    hour, worst = _worst_hour(arrivals, found, wait_s)
    waits = found.waits_s
    return Rehearsed(
        scaling=scaling,
        service=service,
        requests=int(arrivals.size),
        wait_s=wait_s,
        within_ratio=found.share_within(wait_s),
        wait_mean_s=float(waits.mean()) if waits.size else None,
        wait_p99_s=float(np.quantile(waits, 0.99, method="inverted_cdf")) if waits.size else None,
        worst_hour=None if hour is None else hour + 1,
        worst_per_s=None if hour is None else float(rates[hour]),
        worst_within_ratio=worst,
        replica_hours=found.replica_hours,
        highest=found.highest,
        scaled_up=found.scaled_up,
        scaled_down=found.scaled_down,
        usd=None if usd_per_hour is None else found.replica_hours * usd_per_hour,
    )


def _worst_hour(arrivals: Floats, found: Replayed, wait_s: float) -> tuple[int | None, float | None]:
    if not arrivals.size:
        return None, None
    hours = (arrivals // _SECONDS_PER_HOUR).astype(np.int64)
    came = np.bincount(hours)
    served = np.bincount(hours, weights=found.waits_s <= wait_s)
    shares = np.where(came > 0, served / np.maximum(came, 1), np.inf)
    worst = int(np.argmin(shares))
    return worst, float(shares[worst])
