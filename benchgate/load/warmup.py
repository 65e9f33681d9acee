"""Warm-up: when is a server warm, and how long does it serve a request? (docs/reference/metrics.md, "Warm-up")

A warm-up is sent in rounds. After each one the TTFT of the last third of all its requests is compared with that of the
third before. The last round also gives the mean service time, by which a closed loop's slots are staggered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchgate.load.results import StageResult
from benchgate.model import request_metrics
from benchgate.model.records import RequestColumns
from benchgate.plan.model import PlannedClass, PlannedStage

MOST_ROUNDS = 5
_FALLING = 0.95  # of the third before: a TTFT below it still falls
_QUARTILE = 0.75
_SERVICE_TIMES = 2  # of arrivals, in a round of an open loop after the first
_MOST_REQUESTS = 10_000  # of such a round: a service time of minutes must not make hours of warm-up
_NS = 1e-9

# Sends the round of a number (from 0) with so many requests of each class, given the service times in seconds.
Send = Callable[[int, Mapping[str, int], Mapping[str, float]], StageResult]


@dataclass(frozen=True, slots=True)
class WarmupClass:
    """A class of traffic in a warm-up: how many requests its first round has; the rate only of an open loop."""

    name: str
    requests: int
    rate_rps: float | None

    @classmethod
    def of(cls, planned: PlannedClass) -> WarmupClass:
        """Return a planned class of the first round. A rate counts requests, also where conversations begin at it."""
        begun = sum(request.turn is None or request.turn.turn == 0 for request in planned.sample)
        per_begin = len(planned.sample) / begun if begun else 1.0
        rate_rps = None if planned.rate_rps is None else planned.rate_rps * per_begin
        return cls(planned.name, len(planned.requests), rate_rps)


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """A warm-up as it went.

    `settled`: TTFT no longer fell. `answered`: a request of the last round succeeded. `service_s` is the mean time that
    each class's requests took in the last round in which any of them succeeded.
    """

    requests: int = 0
    rounds: int = 0
    settled: bool = True
    answered: bool = True
    service_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def note(self) -> str | None:
        """Return a warning about the warm-up, or None."""
        if not self.answered:
            return f"no request of the last round succeeded ({self.requests:,} sent)"
        if not self.settled:
            return f"TTFT still fell after {self.rounds} rounds ({self.requests:,} requests); the measurement begins"
        return None


def classes_of(stage: PlannedStage) -> tuple[WarmupClass, ...]:
    """Return the classes of a planned first round whose warmth counts: those that are not in the background."""
    return tuple(WarmupClass.of(group) for group in stage.classes if not group.background)


def warm_up(classes: Sequence[WarmupClass], send: Send, most_rounds: int = MOST_ROUNDS) -> WarmedUp:
    """Send rounds until no class's TTFT falls any more, but at most `most_rounds`.

    With one round nothing is compared: the number of requests was configured. A round in which nothing succeeded is
    the last one: the server is down.
    """
    sizes = {one.name: one.requests for one in classes}
    rounds: dict[str, list[RequestColumns]] = {one.name: [] for one in classes}
    service: dict[str, float] = {}
    sent = 0
    for number in range(most_rounds):
        result = send(number, sizes, service)
        sent += sum(group.recorded for group in result.classes)
        for group in result.classes:
            rounds.setdefault(group.name, []).append(group.requests)
            mean_s = mean_service_s(group.requests)
            if mean_s is not None:
                service[group.name] = mean_s
        if not any(request_metrics.succeeded(rounds[one.name][-1]).any() for one in classes):
            return WarmedUp(sent, number + 1, settled=False, answered=False, service_s=service)
        for one in classes:  # of an open loop as many as arrive in two service times, if more
            if one.rate_rps is not None and (mean_s := service.get(one.name)) is not None:
                arriving = math.ceil(_SERVICE_TIMES * one.rate_rps * mean_s)
                sizes[one.name] = min(_MOST_REQUESTS, max(one.requests, arriving))
        filled = all(sum(map(len, rounds[one.name])) >= sizes[one.name] for one in classes)
        if most_rounds == 1 or (filled and not any(ttft_falls(rounds[one.name]) for one in classes)):
            return WarmedUp(sent, number + 1, service_s=service)
    return WarmedUp(sent, most_rounds, settled=False, service_s=service)


def ttft_falls(rounds: Iterable[RequestColumns]) -> bool:
    """Return True unless the TTFT of the last third of all requests is as high as that of the third before.

    In order of their sends, the upper quartile of the last third is below 95 % of the middle one's. A median would not
    do: of two waves through the slots, a slow one and a quick one, the middle third has half of each. A failed request
    has an infinite TTFT. Fewer than three requests tell nothing, so TTFT may still fall.
    """
    ttft_s = np.concatenate(
        [[], *(request_metrics.ttft_s(one)[np.argsort(one.sent_ns, kind="stable")] for one in rounds)]
    )
    third = math.ceil(len(ttft_s) / 3)
    if len(ttft_s) < 3:
        return True
    middle, last = (
        request_metrics.quantile(part, _QUARTILE) for part in (ttft_s[-2 * third : -third], ttft_s[-third:])
    )
    return middle is None or last is None or last < _FALLING * middle


_MOST_GROWTH = 2.0


def ramp_service_s(mean_s: float, least_s: float) -> float:
    """Return the service time that the next ramp is made of: the latest mean, at most twice the least one so far.

    An overloaded open loop has a queue that grows as long as requests are sent. By its latest mean alone each ramp, and
    the queue after it, would be longer than the one before.
    """
    return min(mean_s, _MOST_GROWTH * least_s)


def mean_service_s(columns: RequestColumns) -> float | None:
    """Return the mean of actual send to end over successful requests, in seconds; None when none succeeded."""
    ok = request_metrics.succeeded(columns)
    return float((columns.end_ns[ok] - columns.sent_ns[ok]).mean()) * _NS if ok.any() else None
