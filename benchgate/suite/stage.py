"""One stage of a load sweep: the forms it may take, what belongs to each, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from benchgate.model.arrivals import Arrival, RateProfile, bursts, level, parse_arrival, ramp, steps
from benchgate.suite.fields import Duration, Expected, Name, Rate, StrictSection, Text, Whole, is_stored
from benchgate.units import as_written, show_duration, show_number

_MOST_REQUESTS = 1_000_000
_MOST_BURSTS = 10_000
_MOST_STEPS_SHOWN = 4


def _checked_arrival(text: str) -> str:
    parse_arrival(text)
    return text


ArrivalText = Annotated[
    str, AfterValidator(_checked_arrival), Expected('"poisson", "constant" or "gamma:2", whose gaps vary twice as much')
]
Factor = Annotated[float, Strict(), Field(gt=0, le=1000)]


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
    arrival: ArrivalText = "poisson"
    duration_s: Duration | None = Field(default=None, alias="for")
    # Per block and arm. What follows from a rate over a time is filled in, so that everything downstream just reads it.
    requests: Whole = Field(default_factory=lambda known: _requests_of(known), ge=1, le=_MOST_REQUESTS)

    @model_validator(mode="after")
    def _one_form(self, info: ValidationInfo) -> Self:
        if not is_stored(info):  # which has every default filled in, and was one form when it was read
            complaint = _form_complaint(self) or _profile_complaint(self)
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
    def process(self) -> Arrival:
        """How the sends are spread around their rate."""
        return parse_arrival(self.arrival)

    @property
    def profile(self) -> RateProfile | None:
        """The rate over time of a stage whose length is a time; None for one of a number of requests."""
        return _profile_of(self.__dict__)

    @property
    def mean_rps(self) -> float | None:
        """The rate offered over the whole stage; None for a closed loop, and for a trace, whose rows say it."""
        profile = self.profile
        return self.rate_rps if profile is None else self.requests / profile.duration_s

    @property
    def offered(self) -> str:
        """What is offered, in a few words for a person: `8/s poisson`, `2/s to 20/s in 60 s poisson`."""
        return _offered(self)


_LATER_KEYS = frozenset({"ramp_to_rps", "bursts", "steps", "trace", "speed", "duration_s"})


def _profile_of(known: Mapping[str, Any]) -> RateProfile | None:
    """The profile that the fields of a stage, which need not fit together, describe; None where they describe none."""
    rate_rps, duration_s = known.get("rate_rps"), known.get("duration_s")
    if known.get("steps") is not None:
        return steps((step.rate_rps, step.duration_s) for step in known["steps"])
    if rate_rps is None or duration_s is None:
        return None
    if known.get("ramp_to_rps") is not None:
        return ramp(rate_rps, known["ramp_to_rps"], duration_s)
    spikes: Bursts | None = known.get("bursts")
    if spikes is None:
        return level(rate_rps, duration_s)
    if duration_s / spikes.every_s > _MOST_BURSTS:
        return None
    return bursts(rate_rps, spikes.factors, spikes.every_s, spikes.duration_s, duration_s)


def _requests_of(known: Mapping[str, Any]) -> int:
    """The requests of a stage that does not say how many; 0, which no stage may have, where nothing says it."""
    profile = _profile_of(known)
    return 0 if profile is None else profile.requests


# What each form of a stage needs and what else it may have, by the key that marks it.
_FORMS: dict[str, tuple[set[str], set[str]]] = {
    "concurrency": ({"requests"}, set()),
    "rate": (set(), {"arrival", "requests", "for", "ramp_to", "bursts"}),
    "steps": (set(), {"arrival"}),
    "trace": ({"requests"}, {"speed"}),
}
_MEANS_NOTHING = {
    "concurrency": "in a closed loop; give `rate` or leave it out",
    "rate": "without `trace`; leave it out",
    "steps": "beside `steps`, which bring their own rates and times; leave it out",
    "trace": "beside `trace`, which brings its own instants; leave it out",
}
_SPELT = {"rate_rps": "rate", "ramp_to_rps": "ramp_to", "duration_s": "for"}


def _form_complaint(stage: Stage) -> str | None:
    """Why the keys of a stage do not fit together, and what to write; None when they do."""
    given = {_SPELT.get(key, key) for key in stage.model_fields_set if getattr(stage, key) is not None} - {"name"}
    forms = given & _FORMS.keys()
    if len(forms) != 1:
        return "a stage needs exactly one of `concurrency` (closed loop) and `rate`, `steps` or `trace` (open loop)"
    (form,) = forms
    needed, allowed = _FORMS[form]
    if "for" in given and form in ("concurrency", "trace"):
        return "`for` would let each arm answer another number of requests here; write `requests` instead"
    stray = sorted(given - needed - allowed - {form})
    if stray:
        return f"`{stray[0]}` means nothing {_MEANS_NOTHING[form]}"
    missing = sorted(needed - given)
    if missing:
        return f"`{missing[0]}` is required and missing; say how many requests each block sends to each arm"
    return _length_complaint(given) if form == "rate" else None


def _length_complaint(given: set[str]) -> str | None:
    shape = given & {"ramp_to", "bursts"}
    if len(shape) > 1:
        return "`ramp_to` and `bursts` are two courses of the rate; write one stage for each"
    if not shape and ("requests" in given) == ("for" in given):
        return "a stage at a `rate` needs exactly one of `requests` and `for`, like `requests: 100` or `for: 60s`"
    if shape and "requests" in given:
        return f"`requests` follow from the rates and the time with `{shape.pop()}`; write `for: 60s` instead"
    if shape and "for" not in given:
        return f"`{shape.pop()}` needs the time it takes; write `for: 60s`"
    return None


def _profile_complaint(stage: Stage) -> str | None:
    """Why the course of the rate cannot be run, and what to write; None when it can."""
    if stage.bursts is not None and stage.duration_s is not None:
        complaint = _bursts_complaint(stage.bursts, stage.duration_s)
        if complaint is not None:
            return complaint
    if not 1 <= stage.requests <= _MOST_REQUESTS:
        return f"comes to {stage.requests:,} requests a block; a stage has 1 to {_MOST_REQUESTS:,}: change rate or time"
    return None


def _bursts_complaint(spikes: Bursts, duration_s: float) -> str | None:
    every, held = show_duration(spikes.every_s), show_duration(spikes.duration_s)
    if spikes.duration_s >= spikes.every_s:
        return f"bursts of {held} every {every} leave no time between them; make `bursts.for` shorter than `every`"
    if duration_s / spikes.every_s > _MOST_BURSTS:
        return f"has more than {_MOST_BURSTS:,} bursts; make `bursts.every` longer or `for` shorter"
    needed_s = len(spikes.factors) * spikes.every_s
    if duration_s < needed_s * (1 - 1e-9):
        told = as_written(show_duration(needed_s))
        return f"ends before the last of the {len(spikes.factors)} factors; write `for` of at least {told}"
    return None


def _offered(stage: Stage) -> str:
    if stage.trace is not None:
        return f"{stage.trace} replayed" + (f" {_number(stage.speed)} times as fast" if stage.speed else "")
    if stage.steps is not None:
        return f"{_steps_offered(stage.steps)}, {stage.arrival}"
    if stage.rate_rps is None:
        return f"{stage.concurrency} in flight"
    if stage.ramp_to_rps is not None:
        return f"{_rate(stage.rate_rps)} to {_rate(stage.ramp_to_rps)} in {_time(stage.duration_s)}, {stage.arrival}"
    if stage.bursts is not None:
        factors = ", ".join(_number(factor) for factor in stage.bursts.factors)
        return f"{_rate(stage.rate_rps)} with bursts of {factors} times that, {stage.arrival}"
    return f"{_rate(stage.rate_rps)} {stage.arrival}"


def _steps_offered(taken: tuple[Step, ...]) -> str:
    if len(taken) <= _MOST_STEPS_SHOWN:
        return ", ".join(f"{_rate(step.rate_rps)} for {_time(step.duration_s)}" for step in taken)
    rates_rps = [step.rate_rps for step in taken]
    return f"{len(taken)} steps from {_rate(min(rates_rps))} to {_rate(max(rates_rps))}"


def _rate(rate_rps: float) -> str:
    return f"{_number(rate_rps)}/s"


def _number(value: float) -> str:
    return as_written(show_number(value))


def _time(seconds: float | None) -> str:
    return as_written(show_duration(seconds or 0.0))
