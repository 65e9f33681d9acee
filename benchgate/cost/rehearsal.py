"""A week of traffic against a fleet, by the hour: the question as one value, what came of it as another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.cost.fleet import HOURS_PER_MONTH
from benchgate.cost.replay import Floats, Replayed, Scaling, hourly_arrivals, replay

_SECONDS_PER_HOUR = 3600.0
MOST_REQUESTS = 20_000_000  # a second of processor time each million, and 16 bytes of memory a request
MOST_LOOKS = 20_000_000  # of the autoscaler, for the same reason
_MOST_CV = 10.0  # beyond it a few requests are nearly all of the work, and what comes of them is chance
_LEAST_CV = 1e-3  # below it a service is a constant for all that can be seen
_MOST_SERVICE_S = 1e6


@dataclass(frozen=True, slots=True)
class Service:
    """How long a request keeps its place: a gamma distribution of this mean and coefficient of variation.

    0 is a constant, 1 the exponential distribution.
    """

    mean_s: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.mean_s <= _MOST_SERVICE_S:
            raise ValueError(
                f"a request time cannot be {self.mean_s:g} s; expected above 0, at most {_MOST_SERVICE_S:g}"
            )
        if not 0 <= self.cv <= _MOST_CV:
            raise ValueError(f"a variation (cv) cannot be {self.cv:g}; expected 0 to {_MOST_CV:g}")

    def draw(self, count: int, generator: np.random.Generator) -> Floats:
        """So many of them, in seconds, whose own mean is the stated one.

        What they vary by must not change how much work there is, or the fleet would be paid for another demand. Shares
        of a sum of gamma variables do not depend on that sum, so this is the distribution where the mean came out so.
        """
        drawn = np.zeros(count) if self.cv < _LEAST_CV else generator.gamma(1 / self.cv**2, size=count)
        total = float(drawn.sum())
        return drawn / total * (self.mean_s * count) if total > 0 else np.full(count, self.mean_s)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What the traffic met. `within_ratio` is the share of requests that waited no longer than `wait_s` for a place.

    Waits are None where no request came, dollars where the price of a replica is not known. `left_inside` were not
    answered when the hours ended, `left_waiting` of them in line; replica hours are paid until the last of them was,
    `over_s` later. `places_per_s` is what a replica carries at most here, its places over the request time.
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
    usd_per_month: float | None  # of the same hours, again and again
    left_inside: int
    left_waiting: int
    over_s: float
    places_per_s: float


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

    Raises ValueError for rates that cannot be, and for more requests or looks than are worth waiting for.
    """
    if not (math.isfinite(wait_s) and wait_s >= 0):
        raise ValueError(f"wait_s cannot be {wait_s!r}; expected seconds, 0 or more")
    rates = np.asarray(requests_per_s, dtype=np.float64)
    _require_few_requests(rates)
    arrivals = hourly_arrivals(rates, generator)
    services = service.draw(arrivals.size, generator)
    until_s = rates.size * _SECONDS_PER_HOUR
    _require_few_looks(services, scaling, until_s)
    found = replay(arrivals, services, scaling, until_s)
    usd = None if usd_per_hour is None else found.replica_hours * usd_per_hour
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
        usd=usd,
        usd_per_month=None if usd is None else usd * HOURS_PER_MONTH / rates.size,
        left_inside=found.left_inside,
        left_waiting=found.left_waiting,
        over_s=found.over_s,
        places_per_s=scaling.places / service.mean_s,
    )


def _require_few_requests(rates: Floats) -> None:
    requests = float(rates.sum()) * _SECONDS_PER_HOUR
    if requests > MOST_REQUESTS:
        raise ValueError(f"about {requests:,.0f} requests; at most {MOST_REQUESTS:,} are replayed: give fewer hours")


def _require_few_looks(services_s: Floats, scaling: Scaling, until_s: float) -> None:
    """A fleet that cannot keep up goes on for as long as all the work takes the fewest of its replicas."""
    if scaling.most == scaling.least:
        return
    longest_s = until_s + float(services_s.sum()) / (scaling.places * scaling.least)
    longest_s += float(services_s.max(initial=0.0))
    if longest_s / scaling.look_s > MOST_LOOKS:
        raise ValueError(
            f"up to {longest_s / scaling.look_s:,.0f} looks of the autoscaler; at most {MOST_LOOKS:,} are replayed:"
            " give fewer hours, or let it look less often"
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
