"""What the models of time have in common: requests go in, and tokens come out at instants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(slots=True, eq=False)
class Job:
    """One request as a model of time sees it. Instants are monotonic ns.

    `emit(tokens, due_ns)` is what to do with tokens that are due; the models themselves never call it.
    """

    order: int  # of arrival; breaks ties
    arrived_ns: int
    input_tokens: int
    output_tokens: int  # how many it will make
    reserved_tokens: int  # KV room it needs
    emit: Callable[[int, int], None]
    priority: int = 0  # lower goes first
    blocks: tuple[int, ...] = ()  # names of the blocks of the prompt and then of the answer, for a prefix cache
    with_adapter: bool = False
    speed: float = 1.0  # its times are divided by it; an engine whose steps are shared takes no notice
    produced: int = 0
    unread_tokens: int = 0  # what must be read before the next token: the prompt, and what it lost when preempted
    prefilled_tokens: int = 0  # of those
    cached_tokens: int | None = None  # of the prompt, found in the prefix cache; None until it was looked for
    kept_blocks: int = 0  # of its own, put into the prefix cache
    room_tokens: int = 0  # KV room it holds
    admitted_ns: int | None = None  # when it came out of the queue, the first time
    service_ns: int | None = None  # how long a server of the queue model works on it
    held_until_ns: int = 0
    over: bool = False  # everything produced, or dropped

    @property
    def left(self) -> int:
        """Tokens still to come."""
        return self.output_tokens - self.produced

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: the lower."""
        return self.priority, self.order


class Due(NamedTuple):
    """So many tokens of a job, at the instant they should leave."""

    at_ns: int
    job: Job
    tokens: int


@dataclass(slots=True)
class Tally:
    """What a model of time has counted since it began."""

    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0


class Model(Protocol):
    """Decides when tokens are due. Pure: time is an argument."""

    tally: Tally

    @property
    def running(self) -> int:
        """Jobs being worked on."""

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""

    @property
    def kv_ratio(self) -> float:
        """Share of the KV cache that is taken."""

    def sheds(self, job: Job) -> bool:
        """Whether the job must be turned away at once, because too many wait."""

    def admit(self, job: Job, now_ns: int) -> bool:
        """Take a job in; False when the queue is full."""

    def drop(self, job: Job) -> None:
        """Forget a job, whatever its state, and free its room at once."""

    def abandon(self, job: Job) -> None:
        """The same, because its client has left."""

    def hold(self, job: Job, until_ns: int) -> None:
        """Let the job get nothing before that instant."""

    def due_ns(self) -> int | None:
        """When there is something to `take`; None while nothing is under way."""

    def take(self, now_ns: int) -> Iterator[Due]:
        """Everything due by `now_ns`, in order of its instant."""
