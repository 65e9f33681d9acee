"""One stage of a load sweep: the forms it may take, what belongs to each, and what follows from it."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from benchgate.model.arrivals import Arrival, RateProfile, parse_arrival
from benchgate.suite.action import Action
from benchgate.suite.classes import ClassSpec, Each, ServiceTimes
from benchgate.suite.course import MOST_REQUESTS, class_requests, offered_by, profile_of, requests_of
from benchgate.suite.fields import ArrivalText, Duration, Name, Rate, StrictSection, Text, Whole, is_stored
from benchgate.suite.lengths import Count, Length
from benchgate.suite.stage_forms import class_complaint, complaint_of
from benchgate.suite.workload import Prefix

Factor = Annotated[float, Strict(), Field(gt=0, le=1000)]
RAMP_SERVICE_TIMES = 5.0
"""Length of the ramp of an open loop at a level rate, in mean service times, unless the suite says another one."""


class Step(StrictSection):
    """One rate held for a while."""

    rate_rps: Rate = Field(alias="rate")
    duration_s: Duration = Field(alias="for")


class Bursts(StrictSection):
    """The last `for` of every `every` carry the stage's rate times the next factor, over and over."""

    factors: tuple[Factor, ...] = Field(min_length=1)
    every_s: Duration = Field(alias="every")
    duration_s: Duration = Field(alias="for")


class Stage(StrictSection):
    """One load level held, or one course of the load run through.

    A closed loop (`concurrency` in flight) or an open one, whose requests come whether or not earlier ones are done: at
    a `rate` (level, on a ramp, or with bursts), in `steps`, or at the instants of a `trace`.
    """

    name: Name = Field(alias="stage")
    concurrency: Whole | None = Field(default=None, ge=1, le=10_000)
    rate_rps: Rate | None = Field(default=None, alias="rate")
    ramp_to_rps: Rate | None = Field(default=None, alias="ramp_to")
    bursts: Bursts | None = None
    steps: tuple[Step, ...] | None = Field(default=None, min_length=1)
    trace: Text | None = None  # a path relative to the suite
    speed: Factor | None = None  # of the replay; as recorded unless said
    block_tokens: Count | None = Field(default=None, alias="block")  # that one hash of the trace stands for
    arrival: ArrivalText = "poisson"
    ramp: ServiceTimes | None = None  # of a level rate; `RAMP_SERVICE_TIMES` unless said, 0 for none
    duration_s: Duration | None = Field(default=None, alias="for")
    workload: Name | None = None  # of `load.workloads`; the default one unless said
    input_tokens: Length | None = Field(default=None, alias="input")  # that of the workload unless said
    output_tokens: Length | None = Field(default=None, alias="output")
    prefix: Prefix | None = None
    each: Each | None = None  # never of a stage that was read: it becomes several
    classes: dict[Name, ClassSpec] | None = Field(default=None, min_length=1)
    actions: tuple[Action, ...] | None = Field(default=None, min_length=1)  # done to the deployment meanwhile
    # Per block and arm. What follows from a rate over a time is filled in, so that everything downstream just reads it.
    requests: Whole = Field(default_factory=lambda known: requests_of(known), ge=1, le=MOST_REQUESTS)

    @model_validator(mode="after")
    def _one_form(self, info: ValidationInfo) -> Self:
        if not is_stored(info):  # which has every default filled in, and was one form when it was read
            complaint = complaint_of(self)
            for name, spec in (self.classes or {}).items():
                complaint = complaint or class_complaint(name, spec, stage_of_class(spec, name))
            if complaint is not None:
                raise ValueError(complaint)
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keys that came after 0.1.0 are written only where they are used: what was asked keeps its identity."""
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value is not None or key not in _LATER_KEYS}

    @property
    def is_open(self) -> bool:
        """Whether requests have instants of their own, and do not wait for each other."""
        return self.concurrency is None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its classes; one empty name when it has none."""
        return tuple(self.classes) if self.classes else ("",)

    @property
    def is_level_rate(self) -> bool:
        """Whether requests come at one rate throughout."""
        return self.rate_rps is not None and self.ramp_to_rps is None and self.bursts is None

    @property
    def ramp_service_times(self) -> float:
        """Length of the ramp of an open loop at a level rate, in mean service times; 0 for none."""
        return RAMP_SERVICE_TIMES if self.ramp is None else self.ramp

    @property
    def process(self) -> Arrival:
        """How the sends are spread around their rate."""
        return parse_arrival(self.arrival)

    @property
    def profile(self) -> RateProfile | None:
        """The rate over time of a stage whose length is a time; None for one of a number of requests."""
        return profile_of(self.__dict__)

    @property
    def mean_rps(self) -> float | None:
        """The rate offered over the whole stage; None for a closed loop, and for a trace, whose rows say it."""
        profile = self.profile
        return self.rate_rps if profile is None else self.requests / profile.duration_s

    @property
    def offered(self) -> str:
        """What is offered, in a few words for a person: `8/s poisson`, `2/s to 20/s in 60 s poisson`."""
        return offered_by(self)


_LATER_KEYS = frozenset(
    {
        "ramp_to_rps", "bursts", "steps", "trace", "speed", "duration_s",
        "block_tokens", "workload", "input_tokens", "output_tokens", "prefix", "each", "classes", "actions", "ramp",
    }
)  # fmt: skip


def stage_of_class(spec: ClassSpec, name: str) -> Stage:
    """A class of traffic as the stage it would be alone."""
    said = {key: getattr(spec, key) for key in _OF_BOTH if getattr(spec, key) is not None}
    requests = spec.requests or class_requests(spec)
    return Stage.model_construct(
        _fields_set={*said} & spec.model_fields_set, **{**said, "name": name, "requests": requests}
    )


_OF_BOTH = ("concurrency", "rate_rps", "trace", "speed", "arrival", "duration_s", "requests", "workload", "ramp")
