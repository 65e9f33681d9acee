"""What one worker is to send: a stage, or its share of one, as a value that can be sent anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from benchgate.load.level import Level
from benchgate.plan.salt import Salter
from benchgate.plan.schedule import PlannedClass, PlannedRequest, PlannedStage
from benchgate.plan.workloads import Vocabulary
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target

Find = Callable[[int], PlannedRequest | None]
"""The request of a number; None for one streamed answer of chat or completions, of which nothing more is asked."""


class Requests(Protocol):
    """The requests of a class, or of a worker's share of one, in the order they are due. Can be pickled."""

    @property
    def endless(self) -> bool:
        """Whether there are as many as there is time for."""

    def __iter__(self) -> Iterator[PlannedRequest]: ...

    def share(self, worker: int, workers: int) -> Requests:
        """Those of one of `workers`: request k, or conversation k, goes to worker k modulo their number."""

    def find(self) -> Find:
        """What finds the request of a number again."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Requests that a plan holds one by one."""

    requests: tuple[PlannedRequest, ...]

    @property
    def endless(self) -> bool:
        """A plan ends."""
        return False

    def __iter__(self) -> Iterator[PlannedRequest]:
        return iter(self.requests)

    def share(self, worker: int, workers: int) -> Planned:
        """Every `workers`-th one, a conversation always as a whole."""
        return Planned(_dealt(self.requests, worker, workers))

    def find(self) -> Find:
        """By its index."""
        return {request.index: request for request in self.requests}.get


@dataclass(frozen=True, slots=True)
class Cycled:
    """Planned requests again and again: request k of round r has the number r * `period` + k.

    Where there are fewer than workers, each worker asks all of them, and every `rounds`-th round is its own.
    """

    requests: tuple[PlannedRequest, ...]
    period: int  # how many the whole plan has, also where this is one worker's share of it
    round: int = 0  # the first one
    rounds: int = 1

    @property
    def endless(self) -> bool:
        """They begin again."""
        return True

    def __iter__(self) -> Iterator[PlannedRequest]:
        for number in itertools.count(self.round, self.rounds) if self.requests else ():
            for request in self.requests:
                yield replace(request, index=number * self.period + request.index)

    def share(self, worker: int, workers: int) -> Cycled:
        """As of `Planned`, round by round; all of them, each worker beginning at another one, where some get none."""
        dealt = [_dealt(self.requests, one, workers) for one in range(workers)]
        if all(dealt):
            return Cycled(dealt[worker], self.period)
        parts = [part for part in dealt if part]
        begin = worker % len(parts) if parts else 0
        turned = tuple(itertools.chain.from_iterable(parts[begin:] + parts[:begin]))
        return Cycled(turned, self.period, worker, workers)

    def find(self) -> Find:
        """By its index within a round."""
        known = {request.index: request for request in self.requests}
        return lambda number: known.get(number % self.period)


@dataclass(frozen=True, slots=True)
class Salted:
    """Planned requests with salted prompts (`plan.salt`), each salted when its ticket is made: a plan is held once.

    `vocabulary` and `noise` are those of their class.
    """

    requests: Planned
    salt: int
    vocabulary: Vocabulary
    noise: bool = False

    @property
    def endless(self) -> bool:
        """As of the requests themselves."""
        return self.requests.endless

    def __iter__(self) -> Iterator[PlannedRequest]:
        return map(Salter(self.salt, self.vocabulary, noise=self.noise).request, self.requests)

    def share(self, worker: int, workers: int) -> Salted:
        """The same requests as without salt."""
        return replace(self, requests=self.requests.share(worker, workers))

    def find(self) -> Find:
        """Find requests as planned, without salt: how an answer is read does not depend on the words of its prompt."""
        return self.requests.find()


def _dealt(requests: tuple[PlannedRequest, ...], worker: int, workers: int) -> tuple[PlannedRequest, ...]:
    if not any(request.turn for request in requests):
        return requests[worker::workers]
    return tuple(r for r in requests if (r.turn.session if r.turn else r.index) % workers == worker)


@dataclass(frozen=True, slots=True)
class Part:
    """One class of traffic. One in the background goes on until all others are done, and is then cut off.

    `service_s` is about how long the target serves one of its requests, learned in the warm-up; None where not known.
    """

    name: str  # "" when the stage has no other
    requests: Requests
    level: Level
    background: bool = False
    service_s: float | None = None

    def share(self, worker: int, workers: int) -> Part:
        """That of one of `workers`."""
        return replace(self, requests=self.requests.share(worker, workers), level=self.level.share(worker, workers))


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker is to do: a whole stage, or the share of worker `worker` (from 0) of `workers`. Can be pickled.

    `spool` is the file that keeps what was answered until it is read; None for a temporary one. With `audit` the
    kernel stamps what arrives.
    """

    target: Target
    parts: tuple[Part, ...]
    limits: Limits
    worker: int = 0
    workers: int = 1
    spool: Path | None = None
    audit: bool = False

    @classmethod
    def of(
        cls,
        target: Target,
        requests: Requests,
        level: Level,
        limits: Limits,
        *,
        audit: bool = False,
        service_s: float | None = None,
    ) -> Self:
        """A whole stage of one class of traffic."""
        return cls(target, (Part("", requests, level, service_s=service_s),), limits, audit=audit)

    @property
    def name(self) -> str:
        """As people count."""
        return f"worker {self.worker + 1} of {self.workers}"

    def spools(self, first: Path) -> tuple[Path, ...]:
        """The files of its classes, where the first one's is known."""
        return (first, *(first.with_name(f"{first.name}-{place}") for place in range(1, len(self.parts))))

    def split(self, workers: int) -> list[Shard]:
        """A whole stage dealt out. Together the shares ask the same at the same instants, however many there are.

        A closed loop has no more workers than slots. Traffic in the background has no worker of its own: it ends when
        the rest of its worker's share does.
        """
        foreground = [part.level.concurrency or workers for part in self.parts if not part.background]
        workers = min(workers, max(foreground, default=1))
        return [
            replace(
                self, parts=tuple(part.share(worker, workers) for part in self.parts), worker=worker, workers=workers
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
) -> Shard:
    """Return a planned stage as one shard.

    `salt` changes the words of its prompts; 0 sends them as planned. `service_s` has the mean service time of its
    classes, as far as known.
    """
    parts = tuple(
        Part(
            group.name,
            _requests(group, salt),
            Level(group.concurrency, group.peak_rps),
            group.background,
            (service_s or {}).get(group.name),
        )
        for group in stage.classes
    )
    return Shard(target, parts, limits, audit=audit)


def _requests(group: PlannedClass, salt: int) -> Requests:
    """Requests that begin again are salted here, once: their tickets are made while the stage runs."""
    if not group.background:
        planned = Planned(group.requests)
        return planned if salt == 0 else Salted(planned, salt, group.vocabulary, group.noise)
    salter = Salter(salt, group.vocabulary, noise=group.noise)
    requests = group.requests if salt == 0 else tuple(map(salter.request, group.requests))
    return Cycled(requests, len(requests))
