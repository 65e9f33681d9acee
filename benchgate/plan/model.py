"""Planned load: requests with their times, in classes, stages and blocks, and the file contents they are made from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchgate.model.arrivals import TracedRequest
from benchgate.model.deployment import Arm
from benchgate.model.records import IntArray
from benchgate.model.request import MediaKind, ModelRequest
from benchgate.plan.arrivals import peak_rps
from benchgate.plan.slot_share import SlotShare
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary
from benchgate.suite.stages import traffic_name


@dataclass(frozen=True, slots=True)
class ClientCancellation:
    """Deliberate cancellation by the client: after a number of output chunks, or a time after the intended send."""

    after_tokens: int | None
    after_s: float | None

    def __post_init__(self) -> None:
        if (self.after_tokens is None) == (self.after_s is None):
            raise ValueError("a client cancels after a number of tokens or after a time; expected exactly one of them")


@dataclass(frozen=True, slots=True)
class Turn:
    """Position of a request in a conversation."""

    session: int  # number of the conversation in its class, from 0
    turn: int  # number of the request in it, from 0
    last: bool
    think_s: float  # from the end of the previous answer to the time it is due
    carries: bool  # the model's earlier answers are filled in at run time (`model.request.fill_conversation`)

    @property
    def parents(self) -> tuple[int, ...]:
        """Return the requests of the session that must be over before this one is due, by number."""
        return (self.turn - 1,) if self.turn else ()

    @property
    def answers(self) -> tuple[int, ...]:
        """Return the requests whose answers are filled in, in the order of their slots."""
        return tuple(range(self.turn)) if self.carries else ()


@dataclass(frozen=True, slots=True)
class SessionCall(Turn):
    """Position of a request in a recorded agent session, whose calls form a graph. `think_s` is the wait for tools."""

    after: tuple[int, ...]  # calls that must be over before this one is due
    filled_with: tuple[int, ...]  # calls whose answers are filled in

    @property
    def parents(self) -> tuple[int, ...]:
        """Return `after`."""
        return self.after

    @property
    def answers(self) -> tuple[int, ...]:
        """Return `filled_with`."""
        return self.filled_with


@dataclass(frozen=True, slots=True)
class VerifiedItem:
    """Eval item that a request sends; its prompt is made before the load (`plan.verification.with_prompts`)."""

    task: str
    item_id: str


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """Planned request."""

    index: int
    offset_ns: int | None  # intended send since the stage's start; None: waits for a slot or an answer
    ask: ModelRequest
    seed: int
    turn: Turn | None = None
    leave: ClientCancellation | None = None  # the client cancels on purpose
    item: VerifiedItem | None = None


class GeneratedRequests(Sequence[PlannedRequest]):
    """Requests that are not listed: each follows from the seed and its number. Can be pickled; slices are the same."""

    @abstractmethod
    def offset_blocks_ns(self) -> Iterator[IntArray]:
        """Yield the intended sends of all requests, many at a time; nothing for a closed loop."""

    @abstractmethod
    def find(self) -> Callable[[int], PlannedRequest | None]:
        """Return a function that finds the request of a number, without its send time; None for any other number."""

    @abstractmethod
    def share(self, share: SlotShare) -> GeneratedRequests:
        """Return a worker's share of all requests of a class."""

    @abstractmethod
    def salted(self, salt: int) -> GeneratedRequests:
        """Return the same requests with salted prompts (`plan.salt`)."""


_SAMPLED = 1_000  # generated requests that stand for all where a plan adds up tokens


class RampSource(Protocol):
    """Source of the extra requests that bring a class into steady state (`plan.requests`), reproducible."""

    @property
    def service_times(self) -> float:
        """Length of the lead in mean service times, about that of a closed loop."""

    @property
    def size(self) -> int:
        """Approximate number of distinct requests of a closed loop's ramp; 0 for an open loop, whose ramp is a time."""

    @property
    def lead_size(self) -> int:
        """About the least number of requests before a closed loop is measured, one a slot that no client leaves.

        0 for an open loop.
        """

    def pool(self) -> Sequence[PlannedRequest]:
        """Draw the requests that the slots of a closed loop repeat; numbers begin at 0."""

    def arrivals(self, lead_s: float, service_s: float, last_ns: int, least_s: float) -> tuple[PlannedRequest, ...]:
        """Draw the arrivals of an open loop before and after the measured ones; numbers begin at 0."""


@dataclass(frozen=True, slots=True)
class PlannedClass:
    """A class of traffic in a stage. From `vocabulary` on nothing is part of the plan's identity."""

    name: str  # "" for the only class of a stage
    concurrency: int | None  # requests, or conversations with pauses, in flight; None for an open loop
    rate_rps: float | None  # stated, or the mean over the stage; of conversations, that of their starts
    requests: Sequence[PlannedRequest]  # in order, those of one conversation by its turns
    background: bool = False  # repeated until the others are done; unfinished ones are not counted
    vocabulary: Vocabulary = VOCABULARIES["words"]
    generated: frozenset[MediaKind] = frozenset()  # media that are not from files: salting changes them (`plan.salt`)
    ramp: RampSource | None = field(default=None, compare=False, repr=False)
    stated_peak_rps: float | None = None  # highest rate that arrivals are drawn at; None for recorded ones

    @property
    def peak_rps(self) -> float | None:
        """Return the highest stated rate of an open loop, or of recorded arrivals the most within any one second.

        None for a closed loop.
        """
        if self.concurrency is not None or self.stated_peak_rps is not None:
            return self.stated_peak_rps
        if isinstance(self.requests, GeneratedRequests):  # windows across blocks of a million requests do not count
            return max(map(peak_rps, self.requests.offset_blocks_ns()), default=0.0)
        return peak_rps([request.offset_ns for request in self.requests if request.offset_ns is not None])

    @property
    def sample(self) -> Sequence[PlannedRequest]:
        """Return the listed requests, or generated ones at equal distances that stand for all."""
        if not isinstance(self.requests, GeneratedRequests):
            return self.requests
        return self.requests[:: max(1, len(self.requests) // _SAMPLED)]

    @property
    def per_sampled(self) -> float:
        """Return how many requests each one of the sample stands for."""
        return len(self.requests) / max(1, len(self.sample))

    @property
    def last_send_ns(self) -> int:
        """Return the latest intended send; 0 for a closed loop."""
        if isinstance(self.requests, GeneratedRequests):
            return max((int(block[-1]) for block in self.requests.offset_blocks_ns()), default=0)
        return max((request.offset_ns or 0 for request in self.requests), default=0)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage: the classes sent at the same time, usually a single one without a name."""

    name: str
    classes: tuple[PlannedClass, ...]

    @classmethod
    def of(
        cls, name: str, concurrency: int | None, rate_rps: float | None, requests: tuple[PlannedRequest, ...]
    ) -> PlannedStage:
        """Build a stage of one class."""
        return cls(name, (PlannedClass("", concurrency, rate_rps, requests),))

    @property
    def only(self) -> PlannedClass:
        """Return the single class of a stage. Raises ValueError for a stage of several."""
        if len(self.classes) != 1:
            raise ValueError(f"stage {self.name} has {len(self.classes)} classes, not one")
        return self.classes[0]

    @property
    def requests(self) -> tuple[PlannedRequest, ...]:
        """Return the requests of all classes, one class after the other."""
        return tuple(request for group in self.classes for request in group.requests)

    @property
    def verified_items(self) -> tuple[VerifiedItem, ...]:
        """Return the eval items among the requests; generated requests have none."""
        listed = (group.requests for group in self.classes if not isinstance(group.requests, GeneratedRequests))
        return tuple(request.item for requests in listed for request in requests if request.item is not None)

    @property
    def foreground(self) -> int:
        """Return the number of requests of all classes that send each once, without background."""
        return sum(len(group.requests) for group in self.classes if not group.background)

    @property
    def ramp_requests(self) -> int:
        """Return the approximate ramp requests of closed loops; those of open loops depend on the servers."""
        return sum(group.ramp.size for group in self.classes if group.ramp is not None)

    def observed_as(self, group: PlannedClass) -> str:
        """Return the stored name of a class: `stage`, or `stage/class` if the class has a name."""
        return traffic_name(self.name, group.name)


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """Pass over both sides: every stage is run on `order[0]`, then at once on `order[1]` if there is a second."""

    number: int
    order: tuple[Arm, ...]
    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True)
class ObservedLengths:
    """Row of a length file; None for a missing column."""

    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """Recorded request: its messages up to the one to be answered, and its other fields."""

    messages: tuple[Mapping[str, object], ...]
    output_tokens: int | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    line: int = 1  # in the file, from 1
    to_first_question: int | None = None  # messages of a conversation that are sent outside of a session; None: all

    @property
    def single_messages(self) -> tuple[Mapping[str, object], ...]:
        """Return the messages of a single request outside of a session."""
        return self.messages[: self.to_first_question]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Model call of a recorded agent session. Calls are known by their number in the session."""

    request: RecordedRequest | TracedRequest  # a message without `content` is a slot; of a trace, only lengths
    after: tuple[int, ...]  # calls that must be over before this one is due
    wait_s: float  # from the end of the last of them, or the start of the session, to its send
    filled_with: tuple[int, ...] = ()  # calls whose answers fill the slots


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """Recorded agent session: a graph of calls, each after all that it depends on."""

    calls: tuple[RecordedCall, ...]
    line: int = 1  # in the file, from 1
    block_tokens: int | None = None  # that a hash of a trace stands for


@dataclass(frozen=True, slots=True)
class Material:
    """Contents of the load's files, by their names in the suite."""

    lengths: Mapping[str, Sequence[ObservedLengths]] = field(default_factory=dict)
    prompts: Mapping[str, Sequence[RecordedRequest]] = field(default_factory=dict)
    sessions: Mapping[str, Sequence[RecordedSession]] = field(default_factory=dict)
    schemas: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    tools: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    media: Mapping[tuple[MediaKind, str], Sequence[str]] = field(default_factory=dict)  # addresses, most are `data:`
    vocabularies: Mapping[tuple[str, str], Vocabulary] = field(default_factory=dict)  # by tokenizer and kind of text

    def vocabulary(self, tokenizer: str | None, text: str) -> Vocabulary | None:
        """Return the vocabulary of synthetic texts of this kind for a tokenizer; None for the usual one."""
        return None if tokenizer is None else self.vocabularies[tokenizer, text]


NO_MATERIAL = Material()
