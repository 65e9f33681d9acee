"""Discrete-event simulation of an autoscaled fleet with hourly traffic: waits, replica hours and cost.

Each request takes one slot of a replica until it is answered. Without a free slot it waits, first come first served, in
one queue for the fleet or in that of the replica chosen by a balancer. The caller draws service times, from
measurements at that many slots. A new replica takes requests after its cold start and is paid from its request. A
removed one takes no further requests and is paid until its last answer. Requests in the system at the end are still
answered, by a fleet that is paid for it. With a fixed fleet and one queue this is the G/G/c queue.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from benchgate.sizing.fleet import HOURS_PER_MONTH
from benchgate.suite.demand_file import MAX_REQUEST_S, MAX_REQUEST_TIME_CV, MAX_SIMULATED_REPLICAS, MAX_SLOTS

Floats = npt.NDArray[np.float64]
MIN_TARGET_RATIO = 0.01
MAX_REQUESTS = 20_000_000  # a second of CPU per million, and 16 bytes per request
MAX_DECISIONS = 20_000_000  # of the autoscaler, likewise
_SECONDS_PER_HOUR = 3600.0
_LEAST_CV = 1e-3  # below it service times are taken as constant


class Balancer(StrEnum):
    """Assignment of requests to replicas: one shared queue, round robin, or least loaded."""

    SHARED_QUEUE = "shared-queue"
    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Size of the fleet, its balancer, and its autoscaling rule.

    Every `interval_s` seconds the requests in the system are counted, and the target is the number of replicas with
    `target_ratio` of their slots taken. More are requested at once; some are removed only if fewer were needed for
    `cooldown_s` seconds. With `min_replicas == max_replicas` nothing scales.
    """

    slots: int  # requests that one replica answers at once
    min_replicas: int
    max_replicas: int
    target_ratio: float = 0.8
    interval_s: float = 15.0
    cooldown_s: float = 300.0
    cold_start_s: float = 0.0
    balancer: Balancer = Balancer.SHARED_QUEUE

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= MAX_SLOTS:
            raise ValueError(f"slots is {self.slots}; it cannot be but 1 to {MAX_SLOTS:,}")
        if not 1 <= self.min_replicas <= self.max_replicas <= MAX_SIMULATED_REPLICAS:
            raise ValueError(
                f"the fleet cannot be of {self.min_replicas} to {self.max_replicas} replicas; expected 1 or more, the"
                f" first not above the second, at most {MAX_SIMULATED_REPLICAS:,}"
            )
        if not MIN_TARGET_RATIO <= self.target_ratio <= 1:
            raise ValueError(
                f"target_ratio cannot be {self.target_ratio:g}; expected {MIN_TARGET_RATIO:g} to 1 of slots"
            )
        if not self.interval_s > 0:
            raise ValueError("interval_s cannot be 0; expected some time between two decisions")
        if not (self.cooldown_s >= 0 and self.cold_start_s >= 0):
            raise ValueError(f"cooldown_s {self.cooldown_s:g} and cold_start_s {self.cold_start_s:g} cannot be below 0")


@dataclass(frozen=True, slots=True)
class SimulatedTraffic:
    """Result of a simulation: wait of each request for a slot, and replicas paid.

    `left_inside` were not answered at the end of the traffic, `left_waiting` of them still waiting; `over_s` is the
    additional time until the last answer.
    """

    waits_s: Floats  # by arrival
    replica_hours: float
    highest: int  # replicas paid at once; above `max_replicas` if new ones start while others drain
    scaled_up: int  # number of scale-ups
    scaled_down: int
    left_inside: int
    left_waiting: int
    over_s: float

    def share_within(self, wait_s: float) -> float | None:
        """Return the share of requests that waited at most this long; None without requests."""
        return float(np.mean(self.waits_s <= wait_s)) if self.waits_s.size else None


def simulate_traffic(arrivals_s: Floats, services_s: Floats, scaling: Scaling, until_s: float) -> SimulatedTraffic:
    """Simulate requests at `arrivals_s` (ascending, from 0), each of which occupies a slot for its `services_s`.

    Requests in the system at `until_s` are still answered, and the fleet is paid for it. Raises ValueError if the two
    differ in length or arrivals do not ascend.
    """
    if arrivals_s.shape != services_s.shape or arrivals_s.ndim != 1:
        raise ValueError(f"{arrivals_s.shape} arrivals and {services_s.shape} services; expected equal numbers")
    if arrivals_s.size and (arrivals_s[0] < 0 or arrivals_s[-1] > until_s or np.any(np.diff(arrivals_s) < 0)):
        raise ValueError("arrivals must ascend from 0 to the end")
    return _Fleet(scaling, until_s).serve(arrivals_s.tolist(), services_s.tolist())


def hourly_arrivals(requests_per_s: Floats, generator: np.random.Generator) -> Floats:
    """Draw Poisson arrivals with a constant rate within each hour, in seconds, ascending."""
    if np.any(~np.isfinite(requests_per_s)) or np.any(requests_per_s < 0):
        raise ValueError("a rate of an hour must be a number, 0 or more")
    counts = generator.poisson(requests_per_s * _SECONDS_PER_HOUR)
    within = [
        np.sort(generator.random(int(n))) * _SECONDS_PER_HOUR + hour * _SECONDS_PER_HOUR
        for hour, n in enumerate(counts)
    ]
    return np.concatenate(within) if within else np.empty(0)


@dataclass(frozen=True, slots=True)
class Service:
    """Gamma distribution of service times with this mean and coefficient of variation.

    0 is a constant, 1 the exponential distribution.
    """

    mean_s: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.mean_s <= MAX_REQUEST_S:
            raise ValueError(f"a request time cannot be {self.mean_s:g} s; expected above 0, at most {MAX_REQUEST_S:g}")
        if not 0 <= self.cv <= MAX_REQUEST_TIME_CV:
            raise ValueError(f"a variation (cv) cannot be {self.cv:g}; expected 0 to {MAX_REQUEST_TIME_CV:g}")

    def draw(self, count: int, generator: np.random.Generator) -> Floats:
        """Draw service times in seconds whose own mean is exactly the stated one.

        Otherwise random variation would change the total work, and the fleet would be paid for another demand. Shares
        of a sum of gamma variables are independent of that sum, so this is the distribution conditional on that mean.
        """
        drawn = np.zeros(count) if self.cv < _LEAST_CV else generator.gamma(1 / self.cv**2, size=count)
        total = float(drawn.sum())
        return drawn / total * (self.mean_s * count) if total > 0 else np.full(count, self.mean_s)


@dataclass(frozen=True, slots=True)
class SimulatedHours:
    """Result of hourly traffic. `within_ratio` is the share of requests that waited at most `wait_s` for a slot.

    Waits are None without requests, dollars without a price. `left_inside` were not answered when the hours ended,
    `left_waiting` of them still waiting; replica hours are paid until the last answer, `over_s` later. `slots_per_s`
    is the maximum rate of a replica here, its slots over the request time.
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
    slots_per_s: float


def simulate_hours(
    requests_per_s: Sequence[float],
    service: Service,
    scaling: Scaling,
    *,
    wait_s: float,
    usd_per_hour: float | None,
    generator: np.random.Generator,
) -> SimulatedHours:
    """Simulate Poisson arrivals at each hour's rate.

    Raises ValueError for invalid rates, and for too many requests or decisions.
    """
    if not (math.isfinite(wait_s) and wait_s >= 0):
        raise ValueError(f"wait_s cannot be {wait_s!r}; expected seconds, 0 or more")
    rates = np.asarray(requests_per_s, dtype=np.float64)
    expected = float(rates.sum()) * _SECONDS_PER_HOUR
    if expected > MAX_REQUESTS:
        raise ValueError(f"about {expected:,.0f} requests; at most {MAX_REQUESTS:,} are simulated: give fewer hours")
    arrivals = hourly_arrivals(rates, generator)
    services = service.draw(arrivals.size, generator)
    until_s = rates.size * _SECONDS_PER_HOUR
    _require_few_decisions(services, scaling, until_s)
    found = simulate_traffic(arrivals, services, scaling, until_s)
    usd = None if usd_per_hour is None else found.replica_hours * usd_per_hour
    hour, worst = _worst_hour(arrivals, found, wait_s)
    waits = found.waits_s
    return SimulatedHours(
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
        slots_per_s=scaling.slots / service.mean_s,
    )


def _require_few_decisions(services_s: Floats, scaling: Scaling, until_s: float) -> None:
    """Raise ValueError for too many decisions; an overloaded fleet runs for the whole work at its fewest replicas."""
    if scaling.max_replicas == scaling.min_replicas:
        return
    longest_s = until_s + float(services_s.sum()) / (scaling.slots * scaling.min_replicas)
    longest_s += float(services_s.max(initial=0.0))
    if longest_s / scaling.interval_s > MAX_DECISIONS:
        raise ValueError(
            f"up to {longest_s / scaling.interval_s:,.0f} decisions of the autoscaler; at most {MAX_DECISIONS:,} are"
            " simulated: give fewer hours, or a longer interval"
        )


def _worst_hour(arrivals: Floats, found: SimulatedTraffic, wait_s: float) -> tuple[int | None, float | None]:
    if not arrivals.size:
        return None, None
    hours = (arrivals // _SECONDS_PER_HOUR).astype(np.int64)
    came = np.bincount(hours)
    served = np.bincount(hours, weights=found.waits_s <= wait_s)
    shares = np.where(came > 0, served / np.maximum(came, 1), np.inf)
    worst = int(np.argmin(shares))
    return worst, float(shares[worst])


@dataclass(slots=True, eq=False)
class _Station:
    """Slots with their queue: of one replica, or of the whole fleet with a shared queue."""

    slots: int
    busy: int = 0
    queue: deque[tuple[float, int]] = field(default_factory=deque)  # arrival and number of waiting requests
    is_open: bool = True

    @property
    def inside(self) -> int:
        return self.busy + len(self.queue)


class _Fleet:
    """State of the simulated fleet."""

    def __init__(self, scaling: Scaling, until_s: float) -> None:
        self._scaling = scaling
        self._until_s = until_s
        self._shared_queue = scaling.balancer is Balancer.SHARED_QUEUE
        at_first = 1 if self._shared_queue else scaling.min_replicas
        self._stations = [_Station(scaling.slots * scaling.min_replicas // at_first) for _ in range(at_first)]
        self._leaving: list[_Station] = []  # removed but not empty yet
        self._ready = scaling.min_replicas
        self._turn = 0
        self._starting: deque[float] = deque()  # ready times of requested replicas
        self._ends: list[tuple[float, int, _Station]] = []  # heap of the end times of running requests
        self._next_decision_s = scaling.interval_s if scaling.max_replicas > scaling.min_replicas else math.inf
        self._fewer_since_s: float | None = None  # fewer replicas were needed at every decision since then
        self._services: list[float] = []
        self._waits_s = np.empty(0)
        self._paid_until_s = 0.0
        self._paid_replica_s = 0.0
        self._highest = scaling.min_replicas
        self._scaled_up = self._scaled_down = 0

    def serve(self, arrivals_s: list[float], services_s: list[float]) -> SimulatedTraffic:
        self._services, self._waits_s = services_s, np.zeros(len(arrivals_s))
        for number, at_s in enumerate(arrivals_s):
            while self._next_s() <= at_s:
                self._step()
            station = self._stations[0]
            if self._scaling.balancer is Balancer.LEAST_LOADED:
                station = min(self._stations, key=lambda station: station.inside)
            elif not self._shared_queue:
                self._turn = (self._turn + 1) % len(self._stations)
                station = self._stations[self._turn]
            if station.busy < station.slots:
                self._start(station, at_s, number)
            else:
                station.queue.append((at_s, number))
        while self._next_s() <= self._until_s:
            self._step()
        stations, end_s = (*self._stations, *self._leaving), self._until_s
        inside, waiting = sum(station.inside for station in stations), sum(len(station.queue) for station in stations)
        while self._ends:  # a request only waits for running ones
            end_s = self._next_s()
            self._step()
        self._pay(end_s)
        return SimulatedTraffic(
            waits_s=self._waits_s,
            replica_hours=self._paid_replica_s / _SECONDS_PER_HOUR,
            highest=self._highest,
            scaled_up=self._scaled_up,
            scaled_down=self._scaled_down,
            left_inside=inside,
            left_waiting=waiting,
            over_s=end_s - self._until_s,
        )

    def _start(self, station: _Station, now_s: float, number: int) -> None:
        station.busy += 1
        heappush(self._ends, (now_s + self._services[number], number, station))

    def _next_s(self) -> float:
        found = self._next_decision_s
        if self._ends and self._ends[0][0] < found:
            found = self._ends[0][0]
        return self._starting[0] if self._starting and self._starting[0] < found else found

    def _step(self) -> None:
        """Process the next event: an answer, a ready replica, or a decision of the autoscaler."""
        now_s = self._next_s()
        if self._ends and self._ends[0][0] == now_s:
            station = heappop(self._ends)[2]
            station.busy -= 1
            self._start_waiting(station, now_s)
            if not station.is_open and not station.inside:
                self._pay(now_s)
                self._leaving.remove(station)
        elif self._starting and self._starting[0] == now_s:
            self._starting.popleft()
            self._ready += 1
            if self._shared_queue:
                self._stations[0].slots += self._scaling.slots
                self._start_waiting(self._stations[0], now_s)
            else:
                self._stations.append(_Station(self._scaling.slots))
        else:
            self._pay(now_s)
            self._scale(now_s)

    def _start_waiting(self, station: _Station, now_s: float) -> None:
        while station.queue and station.busy < station.slots:
            at_s, number = station.queue.popleft()
            self._waits_s[number] = now_s - at_s
            self._start(station, now_s, number)

    def _scale(self, now_s: float) -> None:
        scaling = self._scaling
        current = self._ready + len(self._starting)
        inside = sum(station.inside for station in (*self._stations, *self._leaving))
        needed = math.ceil(inside / (scaling.slots * scaling.target_ratio))
        needed = min(scaling.max_replicas, max(scaling.min_replicas, needed))
        self._next_decision_s = now_s + scaling.interval_s
        if needed >= current:
            self._fewer_since_s = None
        elif self._fewer_since_s is None:
            self._fewer_since_s = now_s
        if needed > current:
            self._starting.extend([now_s + scaling.cold_start_s] * (needed - current))
            self._scaled_up += 1
            self._highest = max(self._highest, self._paid())
        elif self._fewer_since_s is not None and now_s - self._fewer_since_s >= scaling.cooldown_s:
            self._remove(current - needed)
            self._fewer_since_s = None
            self._scaled_down += 1

    def _remove(self, count: int) -> None:
        """Remove replicas that are not ready yet first, then the least loaded ones."""
        while count and self._starting:
            self._starting.pop()
            count -= 1
        self._ready -= count
        if self._shared_queue:  # running requests fit in the remaining slots, or more would be needed
            self._stations[0].slots -= count * self._scaling.slots
            return
        for station in sorted(self._stations, key=lambda station: station.inside)[:count]:
            self._stations.remove(station)
            station.is_open = False
            if station.inside:
                self._leaving.append(station)

    def _pay(self, now_s: float) -> None:
        """Add the cost of all current replicas since the last payment; called before their number changes."""
        self._paid_replica_s += self._paid() * max(0.0, now_s - self._paid_until_s)
        self._paid_until_s = max(self._paid_until_s, now_s)

    def _paid(self) -> int:
        """Return the replicas paid for, including removed ones that still answer requests."""
        return self._ready + len(self._starting) + len(self._leaving)
