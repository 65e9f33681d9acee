"""A worker's share of a stage as a picklable value: classes of traffic, load level, requests and slots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from benchgate.load.clocks import START_WITHIN_NS
from benchgate.model.request import ENDPOINTS, MediaKind
from benchgate.plan.model import GeneratedRequests, PlannedClass, PlannedRequest, PlannedStage
from benchgate.plan.salt import Salter
from benchgate.plan.slot_share import SlotShare
from benchgate.plan.vocabulary import Vocabulary
from benchgate.suite.schema import Limits
from benchgate.targets.address import http_form
from benchgate.targets.dialect import Target

_GUESSED_ANSWER_S = 0.1


@dataclass(frozen=True, slots=True)
class Level:
    """A load level: a closed loop of `concurrency` slots, or an open loop at `rate_rps`.

    With `send_until_s` nothing measured is sent later than that after the start, in a closed loop after the first
    measured request; requests not sent by then were never part of the stage and leave no record.
    """

    concurrency: int | None
    rate_rps: float | None
    send_until_s: float | None = None
    slots: int | None = None  # of all workers together, where this is one worker's share
    worker: int = 0
    workers: int = 1
    think_s: float = 0.0  # pause of a slot from an answer to its next request

    @property
    def slot_numbers(self) -> range:
        """Numbers of this worker's slots among those of all workers; empty for an open loop."""
        return range(self.worker, self.all_slots, self.workers)

    @property
    def all_slots(self) -> int:
        """Slots of all workers together; 0 for an open loop."""
        return (self.concurrency or 0) if self.slots is None else self.slots

    @property
    def connections(self) -> int:
        """Return how many connections are opened before the start; an open loop adds more as needed.

        Idle connections cost the server: one with a thread per connection (llama.cpp) leaves requests beyond its
        threads unanswered until another connection is closed or used. So an open loop starts with about as many as are
        in flight when an answer takes a tenth of a second.
        """
        if self.concurrency is not None:
            return self.concurrency
        return max(1, min(64, math.ceil((self.rate_rps or 0) * _GUESSED_ANSWER_S)))

    def share(self, worker: int, workers: int) -> Level:
        """The part of one of `workers`: slot i goes to worker i modulo their number."""
        if self.concurrency is not None:
            slots = len(range(worker, self.concurrency, workers))
            return replace(self, concurrency=slots, slots=self.concurrency, worker=worker, workers=workers)
        return replace(self, rate_rps=(self.rate_rps or 0) / workers)


_NS = 1_000_000_000
_MOST_SLOWER = 2.0  # times its mean service time that a class of traffic may take while others are sent beside it

# Returns the request of a number; None for a plain one with a streamed answer of chat or completions.
FindRequest = Callable[[int], PlannedRequest | None]


class Requests(Protocol):
    """The requests of a class, or of a worker's share of one, in the order they are due. Can be pickled."""

    @property
    def endless(self) -> bool:
        """Return True if there are as many as there is time for."""

    def __iter__(self) -> Iterator[PlannedRequest]: ...

    def share(self, share: SlotShare) -> Requests:
        """Return a worker's share of all requests."""

    def find(self) -> FindRequest:
        """Return a function that finds the request of a number."""


@dataclass(frozen=True, slots=True)
class PlannedRequests:
    """Requests that a plan holds one by one."""

    requests: Sequence[PlannedRequest]

    @property
    def endless(self) -> bool:
        """A plan ends."""
        return False

    def __iter__(self) -> Iterator[PlannedRequest]:
        return iter(self.requests)

    def share(self, share: SlotShare) -> PlannedRequests:
        """Return a worker's share, a conversation always as a whole."""
        return PlannedRequests(_dealt(self.requests, share))

    def find(self) -> FindRequest:
        """By its index."""
        if isinstance(self.requests, GeneratedRequests):
            return self.requests.find()
        return {request.index: request for request in self.requests}.get


@dataclass(frozen=True, slots=True)
class RepeatedRequests:
    """Planned requests again and again: k of round r is r * `period` + k. With few, a worker has every n-th round."""

    requests: Sequence[PlannedRequest]
    period: int  # how many the whole plan has, also where this is one worker's share of it
    round: int = 0  # the first one
    rounds: int = 1
    first: int = 0  # added to every number

    @property
    def endless(self) -> bool:
        """They begin again."""
        return True

    def __iter__(self) -> Iterator[PlannedRequest]:
        for number in itertools.count(self.round, self.rounds) if self.requests else ():
            for request in self.requests:
                yield replace(request, index=self.first + number * self.period + request.index)

    def share(self, share: SlotShare) -> RepeatedRequests:
        """Deal each round as `PlannedRequests` does. Where some would get none, each gets all, from another one on."""
        if isinstance(self.requests, GeneratedRequests):
            served = set(range(min(share.workers, len(self.requests))))
        else:
            served = {share.owner(r.turn.session if r.turn else place) for place, r in enumerate(self.requests)}
        if len(served) == share.workers:
            return replace(self, requests=_dealt(self.requests, share))
        parts = [_dealt(self.requests, replace(share, worker=worker)) for worker in sorted(served)]
        begin = share.worker % len(parts) if parts else 0
        turned = tuple(itertools.chain.from_iterable(parts[begin:] + parts[:begin]))
        return replace(self, requests=turned, round=share.worker, rounds=share.workers)

    def find(self) -> FindRequest:
        """By its index within a round."""
        known = PlannedRequests(self.requests).find()
        return lambda number: known((number - self.first) % self.period)


@dataclass(frozen=True, slots=True)
class SaltedRequests:
    """Planned requests with prompts salted (`plan.salt`) by vocabulary and media of their class when prepared."""

    requests: PlannedRequests
    salt: int
    vocabulary: Vocabulary
    generated: frozenset[MediaKind] = frozenset()

    @property
    def endless(self) -> bool:
        """Return True if there are as many as there is time for."""
        return self.requests.endless

    def __iter__(self) -> Iterator[PlannedRequest]:
        return map(Salter(self.salt, self.vocabulary, self.generated).request, self.requests)

    def share(self, share: SlotShare) -> SaltedRequests:
        """The same requests as without salt."""
        return replace(self, requests=self.requests.share(share))

    def find(self) -> FindRequest:
        """Find requests as planned, without salt: how an answer is read does not depend on the words of its prompt."""
        return self.requests.find()


def _dealt(requests: Sequence[PlannedRequest], share: SlotShare) -> Sequence[PlannedRequest]:
    if isinstance(requests, GeneratedRequests):
        return requests.share(share)
    if not any(request.turn for request in requests):
        return tuple(map(requests.__getitem__, share.numbers(len(requests))))
    return tuple(r for r in requests if share.owner(r.turn.session if r.turn else r.index) == share.worker)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Extra requests before and after the measured ones, which bring a class into steady state and hold it there.

    In a closed loop they are endless and have no instants. In an open loop they have instants since the start of the
    stage: those up to the part's `lead_ns` come before the measured requests. Their numbers begin at `first`.
    """

    requests: Requests
    first: int


@dataclass(frozen=True, slots=True)
class ClassShare:
    """A worker's share of one class of traffic. Background traffic is cancelled when the others are done.

    `ramp` is None for a class that keeps its edges. `service_s` is the mean time for which a request or a conversation
    holds its slot; None when it is not known. The instants of an open loop's measured requests count from `lead_ns`.
    """

    name: str  # "" when the stage has no other
    requests: Requests
    level: Level
    background: bool = False
    ramp: Ramp | None = None
    service_s: float | None = None
    lead_ns: int = 0

    @property
    def holds_slots(self) -> bool:
        """Return True for a closed loop that is kept full around its measured requests."""
        return self.ramp is not None and self.level.concurrency is not None

    @property
    def start_tolerance_ns(self) -> int:
        """Return how uncertain the common start of its workers may be: its ramp, 5 ms where the edges are measured.

        The lead of a closed loop lasts at least one service time.
        """
        if self.ramp is None or self.service_s is None:
            return START_WITHIN_NS
        ramp_ns = self.lead_ns if self.level.concurrency is None else round(self.service_s * _NS)
        return max(START_WITHIN_NS, ramp_ns)

    def share(self, worker: int, workers: int) -> ClassShare:
        """Return the share of one of `workers`. Of a closed loop with fewer slots than workers, some get nothing."""
        slots, level = self.level.concurrency or workers, self.level.share(worker, workers)
        if worker >= slots:
            return replace(self, requests=PlannedRequests(()), ramp=None, level=level)
        share, ramp = SlotShare(worker, min(workers, slots), slots), self.ramp
        if ramp is not None:
            ramp = replace(ramp, requests=ramp.requests.share(share))
        return replace(self, requests=self.requests.share(share), ramp=ramp, level=level)

    def find(self) -> FindRequest:
        """Return a function that finds the request of a number."""
        measured = self.requests.find()
        if self.ramp is None:
            return measured
        first, extra = self.ramp.first, self.ramp.requests.find()
        return lambda number: extra(number) if number >= first else measured(number)


@dataclass(frozen=True, slots=True)
class Shard:
    """A whole stage, or the share of worker `worker` (from 0) of `workers`. Can be pickled.

    `spool` is the file that keeps responses until they are decoded; None for a temporary one. With `audit`, the
    kernel's receive timestamps are compared with ours. `start_at_ns` is the shared start in ns since 1970, where it was
    fixed beforehand; None where the workers get it once all are ready. `region` is where its worker stands, if known.
    """

    target: Target
    parts: tuple[ClassShare, ...]
    limits: Limits
    worker: int = 0
    workers: int = 1
    spool: Path | None = None
    audit: bool = False
    start_at_ns: int | None = None
    region: str | None = None
    by_grpc: bool = False

    @classmethod
    def of(
        cls,
        target: Target,
        requests: Requests,
        level: Level,
        limits: Limits,
        *,
        audit: bool = False,
        ramp: Ramp | None = None,
        service_s: float | None = None,
        lead_ns: int = 0,
        by_grpc: bool = False,
    ) -> Self:
        """A whole stage of one class of traffic."""
        part = ClassShare("", requests, level, ramp=ramp, service_s=service_s, lead_ns=lead_ns)
        return cls(target, (part,), limits, audit=audit, by_grpc=by_grpc)

    @property
    def loaded_url(self) -> str:
        """Return the address that gets the requests; that of gRPC with `http` for `grpc`."""
        if self.by_grpc and self.target.grpc is not None:
            return http_form(self.target.grpc)
        return self.target.url

    @property
    def start_tolerance_ns(self) -> int:
        """Return how uncertain the common start of the workers of a whole stage may be: that of its strictest class."""
        return min((part.start_tolerance_ns for part in self.parts if not part.background), default=START_WITHIN_NS)

    @property
    def name(self) -> str:
        """Return its name for people, counted from 1."""
        return f"worker {self.worker + 1} of {self.workers}"

    def spools(self, first: Path) -> tuple[Path, ...]:
        """The files of its classes, where the first one's is known."""
        return (first, *(first.with_name(f"{first.name}-{place}") for place in range(1, len(self.parts))))

    def split(self, workers: int, regions: Sequence[str] = ()) -> list[Shard]:
        """A whole stage dealt out. Together the shares ask the same at the same instants, however many there are.

        A closed loop has no more workers than slots. Traffic in the background has no worker of its own: it ends when
        the rest of its worker's share does. Workers take turns over the `regions`; where each region has as many, its
        requests do not depend on how many.
        """
        foreground = [part.level.concurrency or workers for part in self.parts if not part.background]
        workers = min(workers, max(foreground, default=1))
        return [
            replace(
                self,
                parts=tuple(part.share(worker, workers) for part in self.parts),
                worker=worker,
                workers=workers,
                region=regions[worker % len(regions)] if regions else self.region,
            )
            for worker in range(workers)
        ]


def stage_shard(
    target: Target,
    stage: PlannedStage,
    *,
    limits: Limits,
    audit: bool = False,
    salt: int = 0,
    service_s: Mapping[str, float] | None = None,
    longest_s: Mapping[str, float] | None = None,
) -> Shard:
    """Return a planned stage as one shard.

    `salt` changes the words of its prompts; 0 sends them as planned. `service_s` is the mean time in seconds that a
    request of a class takes, by the name of the class ("" for the only one). Without it the slots of a closed loop
    begin 1 ms apart, and an open loop has no ramp. `longest_s` is that of the slower arm, by which the schedule of open
    loops is made, so that it is the same on both arms.
    """
    own_s = service_s or {}
    longest_s = own_s if longest_s is None else longest_s
    # The longest lead of a class is that of all open loops, so that they keep their instants.
    leads_s = [
        group.ramp.service_times * unit_s
        for group in stage.classes
        if group.ramp is not None and (unit_s := _unit_s(group, longest_s)) is not None
    ]
    lead_s = max(leads_s, default=0.0)
    lasts_s = {group.name: _longest_s(group, longest_s) for group in stage.classes if not group.background}
    parts = tuple(
        _part(
            group,
            _unit_s(group, longest_s if group.concurrency is None else own_s),
            lead_s,
            max((last_s for name, last_s in lasts_s.items() if name != group.name), default=0.0),
            salt,
        )
        for group in stage.classes
    )
    first = [request for group in stage.classes for request in group.requests[:1]]
    by_grpc = any(ENDPOINTS[request.ask.endpoint].by_grpc for request in first)
    return Shard(target, parts, limits, audit=audit, by_grpc=by_grpc)


def _unit_s(group: PlannedClass, service_s: Mapping[str, float]) -> float | None:
    """Return the mean time for which a request, or a conversation with its pauses, holds its slot; None if unknown."""
    if group.name not in service_s:
        return None
    turns = [request.turn for request in group.sample if request.turn is not None]
    conversations = sum(turn.turn == 0 for turn in turns)
    if not conversations:
        return service_s[group.name]
    return (service_s[group.name] * len(turns) + sum(turn.think_s for turn in turns)) / conversations


def _longest_s(group: PlannedClass, service_s: Mapping[str, float]) -> float:
    """Return how long the measured requests of a class may take; 0 if unknown."""
    if (unit_s := _unit_s(group, service_s)) is None:
        return 0.0
    if group.concurrency is None:
        return group.last_send_ns / _NS + _MOST_SLOWER * unit_s
    per_unit = len(group.sample) / max(1, sum(one.turn is None or one.turn.turn == 0 for one in group.sample))
    return _MOST_SLOWER * math.ceil(len(group.requests) / per_unit / group.concurrency) * unit_s


def _part(group: PlannedClass, unit_s: float | None, lead_s: float, beside_s: float, salt: int) -> ClassShare:
    level = Level(group.concurrency, group.peak_rps)
    if group.background:
        again = _salted(group, group.requests, salt)
        return ClassShare(group.name, RepeatedRequests(again, len(again)), level, background=True, service_s=unit_s)
    generated = isinstance(group.requests, GeneratedRequests)
    listed = () if generated else group.requests
    first = len(group.requests) if generated else max((request.index for request in listed), default=-1) + 1
    ramp, lead_ns = None, 0
    if group.concurrency is None:
        lead_ns = round(lead_s * _NS)
        if group.ramp is not None and unit_s is not None:
            drawn = _salted(group, group.ramp.arrivals(lead_s, unit_s, group.last_send_ns, beside_s), salt)
            ramp = Ramp(PlannedRequests(tuple(replace(one, index=first + one.index) for one in drawn)), first)
    elif group.ramp is not None:
        pool = _salted(group, group.ramp.pool(), salt)
        ramp = Ramp(RepeatedRequests(pool, len(pool), first=first), first)
    planned = PlannedRequests(group.requests)
    requests = planned if salt == 0 else SaltedRequests(planned, salt, group.vocabulary, group.generated)
    if isinstance(group.requests, GeneratedRequests):
        requests = PlannedRequests(group.requests.salted(salt))
    return ClassShare(group.name, requests, level, ramp=ramp, service_s=unit_s, lead_ns=lead_ns)


def _salted(group: PlannedClass, requests: Sequence[PlannedRequest], salt: int) -> Sequence[PlannedRequest]:
    """Return requests with salted prompts. Those that repeat are salted here, once, before the stage runs."""
    if isinstance(requests, GeneratedRequests):
        return requests.salted(salt)
    salter = Salter(salt, group.vocabulary, group.generated)
    return requests if salt == 0 else tuple(map(salter.request, requests))
