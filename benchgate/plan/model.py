"""What a plan holds of the load: requests with their instants, in classes, stages and blocks. Frozen values.

What the files of a load hold, once they are read: all that a plan is made of beside the suite and its seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchgate.model.deployment import Arm
from benchgate.model.request import Ask
from benchgate.plan.arrivals import peak_rps
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary


@dataclass(frozen=True, slots=True)
class Leave:
    """A client that disconnects on purpose: after so many output chunks, or so long after the intended send."""

    after_tokens: int | None
    after_s: float | None

    def __post_init__(self) -> None:
        if (self.after_tokens is None) == (self.after_s is None):
            raise ValueError("a client leaves after so many tokens or after a time: exactly one of them")


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a request in a conversation.

    `session` numbers the conversations of a class, `turn` the requests of one, both from 0. A later turn is due
    `think_s` after the answer to the one before has ended. With `carries` the model's own earlier answers stand in its
    messages: they are put there at run time (`model.ask.carried_on`).
    """

    session: int
    turn: int
    last: bool
    think_s: float
    carries: bool


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to be sent.

    `offset_ns` is its intended send since the start of the stage; None in a closed loop, and for the later turns of a
    conversation, which wait for the answer before them. `leave` is set where the client goes away on purpose.
    """

    index: int
    offset_ns: int | None
    ask: Ask
    seed: int
    turn: Turn | None = None
    leave: Leave | None = None


class RampSource(Protocol):
    """Draws the extra requests that bring a class into steady state (`plan.ramp`): the same ones every time."""

    @property
    def service_times(self) -> float:
        """Length of an open loop's lead in mean service times."""

    @property
    def size(self) -> int:
        """Number of different requests of a closed loop's ramp, about; 0 for an open loop, whose ramp is a time."""

    def pool(self) -> tuple[PlannedRequest, ...]:
        """Draw the requests that the slots of a closed loop go through, again and again; numbers begin at 0."""

    def arrivals(self, lead_s: float, service_s: float, last_ns: int) -> tuple[PlannedRequest, ...]:
        """Draw the arrivals of an open loop before and after the measured ones; numbers begin at 0."""


@dataclass(frozen=True, slots=True)
class PlannedClass:
    """One class of traffic in a stage: its requests in order, those of one conversation in the order of its turns.

    A closed loop has `concurrency` in flight (of conversations where there are any: one that thinks counts), an open
    one offers `rate_rps`: the rate asked for, or where it changes or is a trace's, the mean over the stage; of
    conversations it is how many begin. `background` is a closed loop that goes on, from its first request again when
    it has sent the last, until the other classes are done; what is under way then is cut off and not counted.

    `vocabulary` is what its made-up texts consist of, and `noise` whether its pictures are made up too: both are for
    salting them (`plan.salt`). `ramp` draws the extra requests before and after `requests`, which are the measured
    ones; None for a class that keeps its edges. None of the three is part of the plan's identity.
    """

    name: str  # "" when the stage has no other
    concurrency: int | None
    rate_rps: float | None
    requests: tuple[PlannedRequest, ...]
    background: bool = False
    vocabulary: Vocabulary = VOCABULARIES["words"]
    noise: bool = False
    ramp: RampSource | None = field(default=None, compare=False, repr=False)

    @property
    def peak_rps(self) -> float | None:
        """The most requests with an instant that are due within one second, wherever it begins; None if closed."""
        if self.concurrency is not None:
            return None
        return peak_rps([request.offset_ns for request in self.requests if request.offset_ns is not None])


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage: the classes that are sent at the same time, most often a single one without a name."""

    name: str
    classes: tuple[PlannedClass, ...]

    @classmethod
    def of(
        cls, name: str, concurrency: int | None, rate_rps: float | None, requests: tuple[PlannedRequest, ...]
    ) -> PlannedStage:
        """A stage of one class."""
        return cls(name, (PlannedClass("", concurrency, rate_rps, requests),))

    @property
    def only(self) -> PlannedClass:
        """The one class of a stage that has no other; ValueError for a stage of several."""
        if len(self.classes) != 1:
            raise ValueError(f"stage {self.name} has {len(self.classes)} classes, not one")
        return self.classes[0]

    @property
    def requests(self) -> tuple[PlannedRequest, ...]:
        """The requests of all its classes, one class after the other."""
        return tuple(request for group in self.classes for request in group.requests)

    @property
    def foreground(self) -> tuple[PlannedRequest, ...]:
        """Those of the classes that send each once; how many others send follows from how long that takes."""
        return tuple(request for group in self.classes if not group.background for request in group.requests)

    @property
    def ramp_requests(self) -> int:
        """About how many requests the ramps of its closed loops send; those of open loops depend on the servers."""
        return sum(group.ramp.size for group in self.classes if group.ramp is not None)

    def observed_as(self, group: PlannedClass) -> str:
        """What the observations of a class are stored as: `stage`, or `stage/class` where the class has a name."""
        return f"{self.name}/{group.name}" if group.name else self.name


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """One pass over the arms: every stage is run on `order[0]`, then at once on `order[1]` where there is a second."""

    number: int
    order: tuple[Arm, ...]
    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True)
class SeenLengths:
    """One row of a file of lengths; None where the file has no such column."""

    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded request: its messages up to the one that is to be answered, and what else it said.

    `line` is where it stands in its file, from 1.
    """

    messages: tuple[Mapping[str, object], ...]
    output_tokens: int | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    line: int = 1


@dataclass(frozen=True, slots=True)
class Material:
    """By the name under which the suite has the file."""

    lengths: Mapping[str, Sequence[SeenLengths]] = field(default_factory=dict)
    prompts: Mapping[str, Sequence[Recorded]] = field(default_factory=dict)
    schemas: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    tools: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)  # as `data:` addresses
    vocabularies: Mapping[tuple[str, str], Vocabulary] = field(default_factory=dict)  # by tokenizer and kind of text

    def vocabulary(self, tokenizer: str | None, text: str) -> Vocabulary | None:
        """What made-up texts of this kind are made of for a tokenizer; None for the usual one."""
        return None if tokenizer is None else self.vocabularies[tokenizer, text]


NOTHING = Material()
