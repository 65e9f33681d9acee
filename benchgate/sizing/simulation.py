"""A stretch of traffic against a fleet that grows and shrinks: how many wait, how long, and what it costs.

Requests come one by one, each takes one place of a replica until it is answered, and where all places are taken it
waits, first come first served: in one line for the whole fleet, or in the line of the replica that a balancer gave it
to. A replica has so many places; how long a request keeps one is drawn by the caller, from what was measured at that
many at once. A new replica takes its cold start until it takes requests, and is paid from the moment it is asked for;
one that is let go takes no further requests and is paid until its last is answered. Who is inside or in line at the end
is answered still: the fleet goes on, and is paid, until the last one is. With a fixed fleet and one line this is the
G/G/c queue.

A week of traffic against a fleet, by the hour: the question as one value, what came of it as another.
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

Floats = npt.NDArray[np.float64]

MOST_REPLAYED = 10_000  # replicas: each request looks at all of them where it is given to the emptiest
MOST_PLACES = 1_000_000
LEAST_TARGET = 0.01


class Balance(StrEnum):
    """Which replica a request is given to: none before it has a place, each in turn, or the one with fewest inside."""

    ONE_LINE = "one-line"
    IN_TURN = "in-turn"
    LEAST = "least"


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many replicas there are, who gets a request, and when their number changes.

    Every `look_s` seconds the requests inside and in line are counted: so many replicas are wanted that each has
    `target_ratio` of its places taken. More are asked for at once; fewer only where fewer were wanted at every look of
    the last `cooldown_s` seconds. With `least == most` nothing scales.
    """

    places: int  # requests that one replica answers at once
    least: int
    most: int
    target_ratio: float = 0.8
    look_s: float = 15.0
    cooldown_s: float = 300.0
    cold_start_s: float = 0.0
    balance: Balance = Balance.ONE_LINE

    def __post_init__(self) -> None:
        if not 1 <= self.places <= MOST_PLACES:
            raise ValueError(f"places is {self.places}; it cannot be but 1 to {MOST_PLACES:,}")
        if not 1 <= self.least <= self.most <= MOST_REPLAYED:
            raise ValueError(
                f"the fleet cannot be of {self.least} to {self.most} replicas; expected 1 or more, the first not above"
                f" the second, at most {MOST_REPLAYED:,}"
            )
        if not LEAST_TARGET <= self.target_ratio <= 1:
            raise ValueError(f"target_ratio cannot be {self.target_ratio:g}; expected {LEAST_TARGET:g} to 1 of places")
        if not self.look_s > 0:
            raise ValueError("look_s cannot be 0; expected some time between two looks")
        if not (self.cooldown_s >= 0 and self.cold_start_s >= 0):
            raise ValueError(f"cooldown_s {self.cooldown_s:g} and cold_start_s {self.cold_start_s:g} cannot be below 0")

    def wanted(self, inside: int) -> int:
        """Replicas for so many requests."""
        return min(self.most, max(self.least, math.ceil(inside / (self.places * self.target_ratio))))


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of the traffic: how long each request waited for a place, and the replicas that were paid for.

    `left_inside` were not answered when it ended, `left_waiting` of them in line, and `over_s` is how long the fleet
    went on until the last of them was.
    """

    waits_s: Floats  # by arrival
    replica_hours: float
    highest: int  # replicas paid for at once: above `most` where more were asked for while others were leaving
    scaled_up: int  # times that more were asked for
    scaled_down: int
    left_inside: int
    left_waiting: int
    over_s: float

    def share_within(self, wait_s: float) -> float | None:
        """The share of requests that waited no longer; None where there were none."""
        return float(np.mean(self.waits_s <= wait_s)) if self.waits_s.size else None


def replay(arrivals_s: Floats, services_s: Floats, scaling: Scaling, until_s: float) -> Replayed:
    """Requests at `arrivals_s` (ascending, from 0), each of which keeps its place for its `services_s`.

    Those who are there at `until_s` are answered still, by a fleet that is paid for it. Raises ValueError where the two
    differ in length or time runs backwards.
    """
    if arrivals_s.shape != services_s.shape or arrivals_s.ndim != 1:
        raise ValueError(f"{arrivals_s.shape} arrivals with {services_s.shape} services; expected as many")
    if arrivals_s.size and (arrivals_s[0] < 0 or arrivals_s[-1] > until_s or np.any(np.diff(arrivals_s) < 0)):
        raise ValueError("arrivals must ascend from 0 to the end")
    return _Fleet(scaling, until_s).serve(arrivals_s.tolist(), services_s.tolist())


def hourly_arrivals(requests_per_s: Floats, generator: np.random.Generator) -> Floats:
    """Arrivals of a Poisson process whose rate is constant within each hour, in seconds, ascending."""
    if np.any(~np.isfinite(requests_per_s)) or np.any(requests_per_s < 0):
        raise ValueError("a rate of an hour must be a number, 0 or more")
    counts = generator.poisson(requests_per_s * 3600.0)
    within = [np.sort(generator.random(int(n))) * 3600.0 + hour * 3600.0 for hour, n in enumerate(counts)]
    return np.concatenate(within) if within else np.empty(0)


@dataclass(slots=True, eq=False)  # two desks are never the same one
class _Desk:
    """Places and the line before them: of one replica, or of all of them where there is one line."""

    places: int
    busy: int = 0
    line: deque[tuple[float, int]] = field(default_factory=deque)  # arrival and number of those who wait
    is_open: bool = True

    @property
    def inside(self) -> int:
        return self.busy + len(self.line)


class _Fleet:
    """The fleet while time goes on."""

    def __init__(self, scaling: Scaling, until_s: float) -> None:
        self._scaling = scaling
        self._until_s = until_s
        self._one_line = scaling.balance is Balance.ONE_LINE
        at_first = 1 if self._one_line else scaling.least
        self._desks = [_Desk(scaling.places * scaling.least // at_first) for _ in range(at_first)]
        self._leaving: list[_Desk] = []  # let go, and not empty yet
        self._ready = scaling.least
        self._turn = 0
        self._starting: deque[float] = deque()  # when each that was asked for takes requests
        self._ends: list[tuple[float, int, _Desk]] = []  # when each request with a place is answered: a heap
        self._next_look_s = scaling.look_s if scaling.most > scaling.least else math.inf
        self._fewer_since_s: float | None = None  # fewer were wanted at every look since then
        self._services: list[float] = []
        self._waits_s = np.empty(0)
        self._paid_until_s = 0.0
        self._paid_replica_s = 0.0
        self._highest = scaling.least
        self._scaled_up = self._scaled_down = 0

    def serve(self, arrivals_s: list[float], services_s: list[float]) -> Replayed:
        self._services, self._waits_s = services_s, np.zeros(len(arrivals_s))
        for number, at_s in enumerate(arrivals_s):
            while self._next_s() <= at_s:
                self._step()
            desk = self._desk()
            if desk.busy < desk.places:
                self._begin(desk, at_s, number)
            else:
                desk.line.append((at_s, number))
        while self._next_s() <= self._until_s:
            self._step()
        there, end_s = (*self._desks, *self._leaving), self._until_s
        inside, waiting = sum(desk.inside for desk in there), sum(len(desk.line) for desk in there)
        while self._ends:  # nobody waits but for one that has a place
            end_s = self._next_s()
            self._step()
        self._pay(end_s)
        return Replayed(
            waits_s=self._waits_s,
            replica_hours=self._paid_replica_s / 3600.0,
            highest=self._highest,
            scaled_up=self._scaled_up,
            scaled_down=self._scaled_down,
            left_inside=inside,
            left_waiting=waiting,
            over_s=end_s - self._until_s,
        )

    def _desk(self) -> _Desk:
        if self._one_line:
            return self._desks[0]
        if self._scaling.balance is Balance.LEAST:
            return min(self._desks, key=lambda desk: desk.inside)
        self._turn = (self._turn + 1) % len(self._desks)
        return self._desks[self._turn]

    def _begin(self, desk: _Desk, now_s: float, number: int) -> None:
        desk.busy += 1
        heappush(self._ends, (now_s + self._services[number], number, desk))

    def _next_s(self) -> float:
        found = self._next_look_s
        if self._ends and self._ends[0][0] < found:
            found = self._ends[0][0]
        return self._starting[0] if self._starting and self._starting[0] < found else found

    def _step(self) -> None:
        """Takes the next event: an answer, a replica that is ready, or a look."""
        now_s = self._next_s()
        if self._ends and self._ends[0][0] == now_s:
            desk = heappop(self._ends)[2]
            desk.busy -= 1
            self._call(desk, now_s)
            if not desk.is_open and not desk.inside:
                self._pay(now_s)
                self._leaving.remove(desk)
        elif self._starting and self._starting[0] == now_s:
            self._starting.popleft()
            self._add(now_s)
        else:
            self._pay(now_s)
            self._look(now_s)

    def _call(self, desk: _Desk, now_s: float) -> None:
        """Gives free places to those who wait for them."""
        while desk.line and desk.busy < desk.places:
            at_s, number = desk.line.popleft()
            self._waits_s[number] = now_s - at_s
            self._begin(desk, now_s, number)

    def _add(self, now_s: float) -> None:
        """One more replica takes requests."""
        self._ready += 1
        if self._one_line:
            self._desks[0].places += self._scaling.places
            self._call(self._desks[0], now_s)
        else:
            self._desks.append(_Desk(self._scaling.places))

    def _look(self, now_s: float) -> None:
        scaling = self._scaling
        there = self._ready + len(self._starting)
        wanted = scaling.wanted(sum(desk.inside for desk in (*self._desks, *self._leaving)))
        self._next_look_s = now_s + scaling.look_s
        if wanted >= there:
            self._fewer_since_s = None
        elif self._fewer_since_s is None:
            self._fewer_since_s = now_s
        if wanted > there:
            self._starting.extend([now_s + scaling.cold_start_s] * (wanted - there))
            self._scaled_up += 1
            self._highest = max(self._highest, self._paid())
        elif self._fewer_since_s is not None and now_s - self._fewer_since_s >= scaling.cooldown_s:
            self._let_go(there - wanted)
            self._fewer_since_s = None
            self._scaled_down += 1

    def _let_go(self, count: int) -> None:
        """First those that are not ready yet, then those with fewest inside."""
        while count and self._starting:
            self._starting.pop()
            count -= 1
        self._ready -= count
        if self._one_line:  # what is inside has a place among those that are kept, or more would be wanted
            self._desks[0].places -= count * self._scaling.places
            return
        for desk in sorted(self._desks, key=lambda desk: desk.inside)[:count]:
            self._desks.remove(desk)
            desk.is_open = False
            if desk.inside:
                self._leaving.append(desk)

    def _pay(self, now_s: float) -> None:
        """All that are there, starting or leaving, since they were last paid: called before their number changes."""
        self._paid_replica_s += self._paid() * max(0.0, now_s - self._paid_until_s)
        self._paid_until_s = max(self._paid_until_s, now_s)

    def _paid(self) -> int:
        """Replicas that are paid for: those that were let go too, while they have not answered the last they had."""
        return self._ready + len(self._starting) + len(self._leaving)


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
