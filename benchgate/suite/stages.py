"""What a request must meet to be good: the `slo` of a suite, or of one class of its traffic.

Classes of traffic in one stage, and stages that differ in one value: how a suite says either.

The course of a stage's load: its rate over time, how many requests that comes to, and how a person would say it.

The forms a stage may take: which keys belong together, and what becomes of a stage that varies a value.

What is done to a deployment while a stage runs.

One stage of a load sweep: the forms it may take, what belongs to each, and what follows from it.

What is observed apart in a load: a stage, or each class of a stage that has several; with all that holds for it.

Where load is judged: a stage, or each class of traffic of one, under the name its observations are stored by.

Warm-up requests: the values of `load.warmup`, and how many requests the first round of a warm-up has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from benchgate import units
from benchgate.model.arrivals import (
    ArrivalProcess,
    RateProfile,
    constant_rate,
    linear_ramp,
    parse_arrival,
    rate_bursts,
    rate_steps,
)
from benchgate.model.request_metrics import Slo
from benchgate.suite.simulator import MOST_REPLICAS
from benchgate.suite.types import (
    WHOLE,
    ArrivalText,
    Duration,
    Expected,
    Flag,
    Name,
    PositivePercent,
    Rate,
    Section,
    Span,
    Text,
    Whole,
    Written,
    is_stored,
    key,
    optional,
    text,
    word,
)
from benchgate.suite.workload import Count, Length, Lengths, Prefix, Workload
from benchgate.units import PATTERNS, as_written, parse_duration_s, show_duration, show_number

NO_BOUND = "none"
"""How a class of traffic says that a bound of the suite's `slo` is not for it."""

_Bound = Annotated[Duration, Written(text(PATTERNS[parse_duration_s]), word(NO_BOUND))]


class SloSpec(Section):
    """What one request must meet to be good, and the share of scheduled requests that must be."""

    ttft_s: _Bound | None = key("Time to the first output, from the intended send", default=None, alias="ttft")
    tpot_s: _Bound | None = key("Time per output token after the first", default=None, alias="tpot")
    e2e_s: _Bound | None = key("Time to the end of the answer, from the intended send", default=None, alias="e2e")
    target_ratio: PositivePercent = key(
        "The share of scheduled requests that must be good", default=0.95, alias="target"
    )

    @field_validator("ttft_s", "tpot_s", "e2e_s", mode="before")
    @classmethod
    def _may_be_none(cls, found: object) -> object:
        return None if found == NO_BOUND else found

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an slo needs at least one of `ttft`, `tpot` and `e2e`")
        return self

    @property
    def per_request(self) -> Slo:
        """The bounds one request must meet."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


def with_inherited_slos(data: Mapping[str, Any]) -> dict[str, Any]:
    """A suite's plain data in which every class of traffic with an `slo` of its own has all that the suite's says.

    What the class says goes before it; without this a class that only tightens its `ttft` would lose the other bounds
    and the target. The data as they are where the suite's `slo`, or anything on the way to a class, is not sound.
    """
    shared, load = data.get("slo"), data.get("load")
    sweep = load.get("sweep") if isinstance(load, Mapping) else None
    if not isinstance(shared, Mapping) or not isinstance(load, Mapping) or not isinstance(sweep, list):
        return dict(data)
    try:
        SloSpec.model_validate(shared)
    except ValidationError:
        return dict(data)
    return {**data, "load": {**load, "sweep": [_stage(stage, shared) for stage in sweep]}}


def _stage(stage: object, shared: Mapping[str, Any]) -> object:
    classes = stage.get("classes") if isinstance(stage, Mapping) else None
    if not isinstance(stage, Mapping) or not isinstance(classes, Mapping):
        return stage
    return {**stage, "classes": {name: _class(one, shared) for name, one in classes.items()}}


def _class(spec: object, shared: Mapping[str, Any]) -> object:
    own = spec.get("slo") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(own, Mapping):
        return spec
    return {**spec, "slo": {**shared, **own}}


ServiceTimes = Annotated[float, Strict(), Field(ge=0, le=10_000)]


class Each(Section):
    """One stage for every value of one key, named after the stage and the value: `in-128`, `in-512`."""

    concurrency: tuple[Annotated[Whole, Field(ge=1, le=10_000)], ...] = key(
        "Numbers of requests in flight, closed loop", default=()
    )
    rate_rps: tuple[Rate, ...] = key("Rates, open loop", default=(), alias="rate")
    input_tokens: tuple[Count, ...] = key("Lengths of prompts", default=(), alias="input")
    output_tokens: tuple[Count, ...] = key("Lengths of answers", default=(), alias="output")
    prefix_share: tuple[PositivePercent, ...] = key("Shares of each prompt that all prompts have in common", default=())

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name)]
        if len(given) != 1:
            raise ValueError("`each` varies exactly one of `concurrency`, `rate`, `input`, `output` and `prefix_share`")
        values = getattr(self, given[0])
        if len(set(values)) != len(values):
            raise ValueError("`each` names a value twice; every value is a stage of its own")
        return self

    @property
    def field(self) -> str:
        """Which field of a stage it varies: `prefix_share` is of its prefix."""
        return next(name for name in type(self).model_fields if getattr(self, name))

    @property
    def values(self) -> tuple[float, ...]:
        """What that field is set to, one after the other."""
        found: tuple[float, ...] = getattr(self, self.field)
        return found


class ClassSpec(Section):
    """One class of traffic beside others in a stage: its own workload, arrivals, SLO and priority.

    It takes a stage's plainest forms: a closed loop, an open one at a level rate, and a trace.
    """

    workload: Name | None = optional("Name of one of `load.workloads`")
    concurrency: Whole | None = optional("Closed loop: this many requests in flight", ge=1, le=10_000)
    rate_rps: Rate | None = optional("Open loop at this rate", alias="rate")
    trace: Text | None = optional("Open loop at the send times of a recorded file: traces")
    speed: Annotated[float, Strict(), Field(gt=0, le=1000)] | None = optional("Replay a `trace` this many times faster")
    arrival: ArrivalText = key("Arrival process of the `rate`", default="poisson")
    ramp: ServiceTimes | None = optional("Length of the ramp of the `rate`, in mean service times; `0` for none")
    duration_s: Duration | None = optional("Duration of the `rate`, instead of `requests`", alias="for")
    requests: Whole | None = optional("Requests per block and arm", ge=1, le=1_000_000)
    background: Flag = key(
        "A closed loop that runs until the other classes are done; requests in flight are then cancelled and not "
        "counted, unless the server had forgotten them. `requests` is the number of different ones before it starts "
        "over (64, or 4 for each in flight)",
        default=False,
    )
    slo: SloSpec | None = optional(
        "SLO of this class. Keys that are left out are those of the suite's `slo`, `target` included; a bound that "
        "does not apply to this class is written `none` (`{e2e: 60s, ttft: none}`)",
    )
    priority: Annotated[int, Strict()] | None = optional("Priority of every request of the class", ge=-1000, le=1000)


MOST_REQUESTS = 1_000_000
MOST_BURSTS = 10_000
_MOST_STEPS_SHOWN = 4
_LEAST_BACKGROUND = 64  # requests that a background class has before it begins again with the first


def profile_of(known: Mapping[str, Any]) -> RateProfile | None:
    """The profile that the fields of a stage, which need not fit together, describe; None where they describe none."""
    rate_rps, duration_s = known.get("rate_rps"), known.get("duration_s")
    if known.get("steps") is not None:
        return rate_steps((step.rate_rps, step.duration_s) for step in known["steps"])
    if rate_rps is None or duration_s is None:
        return None
    if known.get("ramp_to_rps") is not None:
        return linear_ramp(rate_rps, known["ramp_to_rps"], duration_s)
    spikes: Bursts | None = known.get("bursts")
    if spikes is None:
        return constant_rate(rate_rps, duration_s)
    if duration_s / spikes.every_s > MOST_BURSTS:
        return None
    return rate_bursts(rate_rps, spikes.factors, spikes.every_s, spikes.duration_s, duration_s)


def requests_of(known: Mapping[str, Any]) -> int:
    """The requests of a stage that does not say how many; 0, which no stage may have, where nothing says it."""
    if known.get("classes") is not None:
        return sum(class_requests(spec) for spec in known["classes"].values() if not spec.background)
    profile = profile_of(known)
    return 0 if profile is None else profile.requests


def class_requests(spec: ClassSpec) -> int:
    """The requests of a class, in the background as many as differ from each other; 0 where nothing says it."""
    if spec.requests is not None:
        return spec.requests
    if spec.background:
        return max(_LEAST_BACKGROUND, 4 * (spec.concurrency or 0))
    return requests_of({"rate_rps": spec.rate_rps, "duration_s": spec.duration_s})


def _class_offered(spec: ClassSpec) -> str:
    if spec.trace is not None:
        return f"{spec.trace} replayed" + (f" {_number(spec.speed)} times as fast" if spec.speed else "")
    if spec.rate_rps is not None:
        return f"{_rate(spec.rate_rps)} {spec.arrival}"
    return f"{spec.concurrency} in flight" + (" in the background" if spec.background else "")


def offered_by(stage: Stage) -> str:
    """What a stage offers, in a few words."""
    if stage.classes is not None:
        return "; ".join(f"{name}: {_class_offered(spec)}" for name, spec in stage.classes.items())
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


_LONGEST_NAME = 64

# What each form of a stage needs and what else it may have, by the key that marks it.
_FORMS: dict[str, tuple[set[str], set[str]]] = {
    "concurrency": ({"requests"}, set()),
    "rate": (set(), {"arrival", "requests", "for", "ramp_to", "bursts", "ramp"}),
    "steps": (set(), {"arrival"}),
    "trace": ({"requests"}, {"speed", "block"}),
}
_MEANS_NOTHING = {
    "concurrency": "in a closed loop; give `rate` or leave it out",
    "rate": "without `trace`; leave it out",
    "steps": "beside `steps`, which bring their own rates and times; leave it out",
    "trace": "beside `trace`, which brings its own instants; leave it out",
}
_SPELT = {
    "rate_rps": "rate", "ramp_to_rps": "ramp_to", "duration_s": "for",
    "block_tokens": "block", "input_tokens": "input", "output_tokens": "output",
}  # fmt: skip
_ASKED = {"workload", "input", "output", "prefix"}  # what is asked, beside the form, which says when


def expanded(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages with each that varies a value as one stage for every value."""
    return tuple(one for stage in stages for one in (_varied(stage) if stage.each is not None else [stage]))


def _varied(stage: Stage) -> Iterator[Stage]:
    assert stage.each is not None
    field = stage.each.field
    for value in stage.each.values:
        share = field == "prefix_share"
        now: dict[str, Any] = {"prefix": Prefix.model_construct(share_ratio=value)} if share else {field: value}
        name = f"{stage.name}-{value * 100 if share else value:g}"
        counted = "requests" in stage.model_fields_set
        requests = stage.requests if counted else requests_of({**stage.__dict__, **now})
        one = stage.model_copy(update={"name": name, "each": None, "requests": requests, **now})
        if not counted:
            one.model_fields_set.discard("requests")  # nobody said it: it follows from the rate
        yield one


def complaint_of(stage: Stage) -> str | None:
    """Why a stage cannot be run as it is written, and what to write; None when it can."""
    if stage.classes is not None:
        return _classes_complaint(stage)
    if stage.each is not None:
        varied = "prefix" if stage.each.field == "prefix_share" else _SPELT.get(stage.each.field, stage.each.field)
        if varied in {_SPELT.get(key, key) for key in stage.model_fields_set}:
            return f"`{varied}` is what `each` varies; leave it out"
    if stage.actions is not None and stage.ramp is not None:
        return _NO_RAMP
    for one in expanded((stage,)):
        complaint = _form_complaint(one) or _profile_complaint(one)
        if complaint is not None:
            return complaint
        if len(one.name) > _LONGEST_NAME:
            return f"the name {one.name} is too long; shorten the name of the stage"
    return None


def _classes_complaint(stage: Stage) -> str | None:
    stray = sorted({_SPELT.get(key, key) for key in stage.model_fields_set} - {"name", "classes", "actions"})
    if stray:
        return f"`{stray[0]}` means nothing beside `classes`, each of which says its own; move it there"
    classes = stage.classes or {}
    if stage.actions is not None and any(spec.ramp is not None for spec in classes.values()):
        return _NO_RAMP
    if all(spec.background for spec in classes.values()):
        return "every class is `background`, which goes on for as long as another class lasts; let one of them end"
    return None


_NO_RAMP = "`ramp` means nothing beside `actions`, whose instants count from the start of the stage; leave it out"


def class_complaint(name: str, spec: ClassSpec, alone: Stage) -> str | None:
    """Why a class cannot be run as it is written; `alone` is the stage it would be without the others."""
    if spec.background and spec.concurrency is None:
        return f"class {name} is `background`, a closed loop that others end; give it a `concurrency` and no other form"
    if spec.background and spec.ramp is not None:
        return f"class {name} is `background`, which runs through the ramp of the others; leave `ramp` out"
    form = None if spec.background and not (spec.rate_rps or spec.trace) else _form_complaint(alone)
    complaint = form or _profile_complaint(alone)
    return None if complaint is None else f"class {name}: {complaint.replace('a stage', 'a class')}"


def _form_complaint(stage: Stage) -> str | None:
    """Why the keys of a stage do not fit together, and what to write; None when they do."""
    given = {_SPELT.get(key, key) for key in stage.model_fields_set if getattr(stage, key) is not None} - {"name"}
    given -= {*_ASKED, "actions"}
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
    if shape and "ramp" in given:
        return f"`ramp` is for a level rate, and `{shape.pop()}` keeps its edges; leave `ramp` out"
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
    if not 1 <= stage.requests <= MOST_REQUESTS:
        return f"comes to {stage.requests:,} requests a block; a stage has 1 to {MOST_REQUESTS:,}: change rate or time"
    return None


def _bursts_complaint(spikes: Bursts, duration_s: float) -> str | None:
    every, held = show_duration(spikes.every_s), show_duration(spikes.duration_s)
    if spikes.duration_s >= spikes.every_s:
        return f"bursts of {held} every {every} leave no time between them; make `bursts.for` shorter than `every`"
    if duration_s / spikes.every_s > MOST_BURSTS:
        return f"has more than {MOST_BURSTS:,} bursts; make `bursts.every` longer or `for` shorter"
    needed_s = len(spikes.factors) * spikes.every_s
    if duration_s < needed_s * (1 - 1e-9):
        told = as_written(show_duration(needed_s))
        return f"ends before the last of the {len(spikes.factors)} factors; write `for` of at least {told}"
    return None


_Replica = Annotated[Whole, Field(ge=0, lt=MOST_REPLICAS)]


class Action(Section):
    """One thing at one instant: a replica killed, a replica started, or a command run."""

    at_s: Span = key("Time after the start of the stage", alias="at")
    kill: _Replica | None = optional("Number of the replica of a `sim` whose process gets SIGKILL")
    start: _Replica | None = optional("Number of the replica that is started again")
    run: tuple[Text, ...] | None = optional(
        'A command and its arguments, run without a shell: `["kubectl", "delete", "pod", "vllm-1"]`', min_length=1
    )

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if sum(what is not None for what in (self.kill, self.start, self.run)) != 1:
            raise ValueError("an action is exactly one of `kill`, `start` and `run`")
        return self

    @property
    def shown(self) -> str:
        """For a person: `kill replica 1 at 2 s`."""
        if self.run is not None:
            what = f"run {' '.join(self.run)}"
        else:
            what = f"kill replica {self.kill}" if self.kill is not None else f"start replica {self.start}"
        return f"{what} at {as_written(show_duration(self.at_s)) if self.at_s else '0 s'}"


Factor = Annotated[float, Strict(), Field(gt=0, le=1000)]
RAMP_SERVICE_TIMES = 5.0
"""Length of the ramp of an open loop at a level rate, in mean service times, unless the suite says another one."""


class Step(Section):
    """One rate held for a while."""

    rate_rps: Rate = key("Rate of this step", alias="rate")
    duration_s: Duration = key("Duration of this step", alias="for")


class Bursts(Section):
    """The last `for` of every `every` carry the stage's rate times the next factor, over and over."""

    factors: tuple[Factor, ...] = key("Multiples of `rate`, one per burst, repeated in order", min_length=1)
    every_s: Duration = key("Time from the end of one burst to the end of the next", alias="every")
    duration_s: Duration = key("Length of a burst; shorter than `every`", alias="for")


class Stage(Section):
    """One load level held, or one course of the load run through.

    A closed loop (`concurrency` in flight) or an open one, whose requests come whether or not earlier ones are done: at
    a `rate` (level, on a ramp, or with bursts), in `steps`, or at the instants of a `trace`.
    """

    name: Name = key("Name of the stage in checks and reports; each differs", alias="stage")
    concurrency: Whole | None = key("Closed loop: this many requests in flight", default=None, ge=1, le=10_000)
    rate_rps: Rate | None = key("Open loop at this rate", default=None, alias="rate")
    ramp_to_rps: Rate | None = optional(
        "The rate changes linearly from `rate` to this one; needs `for`", alias="ramp_to"
    )
    bursts: Bursts | None = optional("Bursts on top of `rate`; needs `for`")
    steps: tuple[Step, ...] | None = optional("Open loop at one rate after another", min_length=1)
    trace: Text | None = optional("Open loop at the send times of a recorded file: traces")
    speed: Factor | None = optional("Replay a `trace` this many times faster; `2` halves every gap")
    block_tokens: Count | None = optional("Tokens that one of the `hash_ids` of a `trace` stands for", alias="block")
    arrival: ArrivalText = key("Arrival process of an open loop; not with `trace`", default="poisson")
    ramp: ServiceTimes | None = optional("Length of the ramp of a level `rate`, in mean service times; `0` for none")
    duration_s: Duration | None = optional("Duration of a stage at a `rate`, instead of `requests`", alias="for")
    workload: Name | None = optional("Name of one of `load.workloads`")
    input_tokens: Length | None = optional("Length of each prompt in this stage", alias="input")
    output_tokens: Length | None = optional("Length of each answer in this stage", alias="output")
    prefix: Prefix | None = optional("Shared beginning of the prompts in this stage")
    each: Each | None = optional("One stage for every value of one key")
    classes: dict[Name, ClassSpec] | None = optional(
        "Several classes of traffic at once, judged separately", min_length=1
    )
    actions: tuple[Action, ...] | None = optional("Actions on the deployment during the stage", min_length=1)
    # Per block and arm. What follows from a rate over a time is filled in, so that everything downstream just reads it.
    requests: Whole = key(
        "Requests per block and arm", default_factory=lambda known: requests_of(known), ge=1, le=MOST_REQUESTS
    )

    @model_validator(mode="after")
    def _one_form(self, info: ValidationInfo) -> Self:
        if not is_stored(info):  # which has every default filled in, and was one form when it was read
            complaint = complaint_of(self)
            for name, spec in (self.classes or {}).items():
                complaint = complaint or class_complaint(name, spec, stage_of_class(spec, name))
            if complaint is not None:
                raise ValueError(complaint)
        return self

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
    def process(self) -> ArrivalProcess:
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


def stage_of_class(spec: ClassSpec, name: str) -> Stage:
    """A class of traffic as the stage it would be alone."""
    said = {key: getattr(spec, key) for key in _OF_BOTH if getattr(spec, key) is not None}
    requests = spec.requests or class_requests(spec)
    return Stage.model_construct(
        _fields_set={*said} & spec.model_fields_set, **{**said, "name": name, "requests": requests}
    )


_OF_BOTH = ("concurrency", "rate_rps", "trace", "speed", "arrival", "duration_s", "requests", "workload", "ramp")


@dataclass(frozen=True, slots=True)
class Level:
    """One of them. `name` is what its observations are stored as: `stage`, or `stage/class`."""

    name: str
    stage: str
    group: str  # the name of the class; "" where the stage has none
    course: Stage  # when requests come, as of a stage of its own
    workload: Workload  # what they ask for: what the stage and the class say of it is in it
    slo: SloSpec | None  # of the class alone; None where the suite's holds
    background: bool
    has_actions: bool = False  # something is done to the deployment while its stage runs


def workload_name(stage: Stage, group: str) -> str | None:
    """Which of the named workloads a stage, or a class of it, asks by; None for the default one."""
    return stage.classes[group].workload if stage.classes is not None else stage.workload


def level_of(stage: Stage, group: str, default: Workload, others: Mapping[str, Workload]) -> Level:
    """The level of a class, or of a stage without classes. KeyError for a workload that the load has not."""
    named = workload_name(stage, group)
    workload = default if named is None else others[named]
    if stage.classes is None:
        said = {"input_tokens": stage.input_tokens, "output_tokens": stage.output_tokens, "prefix": stage.prefix}
        changes = {key: value for key, value in said.items() if value is not None}
        workload = workload.model_copy(update=changes) if changes else workload
        return Level(
            stage.name, stage.name, "", stage, workload, None, background=False, has_actions=bool(stage.actions)
        )
    spec = stage.classes[group]
    if spec.priority is not None:
        workload = workload.model_copy(update={"priority": spec.priority})
    name = f"{stage.name}/{group}"
    course, acts = stage_of_class(spec, name), bool(stage.actions)
    return Level(name, stage.name, group, course, workload, spec.slo, spec.background, acts)


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """`stage`, or `stage/class` where a stage has classes. `course` is when its requests come, as of a stage alone.

    `requests` are those of one execution; None in the background, where as many are sent as the others leave time for.
    """

    name: str
    stage: Stage
    class_name: str | None
    course: Stage
    requests: int | None


def places_of(stage: Stage) -> Iterator[NamedPlace]:
    """The stage itself, its classes in order, or the stages that it becomes where it varies a value."""
    for one in expanded((stage,)):
        if one.classes is None:
            yield NamedPlace(one.name, one, None, one, one.requests)
        for name, spec in (one.classes or {}).items():
            course = stage_of_class(spec, f"{one.name}/{name}")
            yield NamedPlace(course.name, one, name, course, None if spec.background else course.requests)


AUTO = "auto"
LEAST_REQUESTS = 8
"""Of the first round of an `auto` warm-up."""

_PER_SLOT = 2  # requests that each slot of a closed loop sends in a round: one fills the batch, one meets it full
_MOST_REQUESTS = 10_000


def parse_warmup(found: object) -> int | Literal["auto"]:
    """Return `found` if it is "auto" or a whole number from 0 to 10,000; else raise ValueError."""
    if found == AUTO:
        return "auto"
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _MOST_REQUESTS:
        return found
    raise ValueError(
        f'{units.show_found(found)} is not a number of requests; write "auto", '
        f"or a whole number from 0 to {_MOST_REQUESTS:,}"
    )


Warmup = Annotated[
    int | Literal["auto"], BeforeValidator(parse_warmup), Expected('"auto", or a number of requests like 8'),
    Written(word(AUTO), {**WHOLE, "minimum": 0, "maximum": _MOST_REQUESTS}),
]  # fmt: skip


def with_renamed_warmup(stored: dict[str, Any]) -> dict[str, Any]:
    """Rename `warmup_requests`, the key of a whole number in stored loads, to `warmup`."""
    if "warmup_requests" not in stored:
        return stored
    renamed = dict(stored)
    renamed["warmup"] = renamed.pop("warmup_requests")
    return renamed


def first_round(concurrency: int | None, turns: float = 1.0) -> int:
    """Return how many requests the first round of an `auto` warm-up sends.

    `concurrency` is None for an open loop. `turns` is the mean number of requests in a conversation: every slot gets a
    conversation of its own.
    """
    return max(LEAST_REQUESTS, math.ceil((concurrency or 0) * max(_PER_SLOT, turns)))


def first_round_of(warmup: int | Literal["auto"], level: Level) -> int:
    """Return the same for a stage, or a class of it, by what its load says of warm-up."""
    if warmup != "auto":
        return warmup
    session = level.workload.session
    return first_round(level.course.concurrency, 1.0 if session is None else _mean(session.turns))


def _mean(length: int | Lengths) -> float:
    """Return about the mean of a distribution of turns."""
    if isinstance(length, int):
        return length
    if length.uniform is not None:
        return sum(length.uniform) / 2
    if length.normal is not None:
        return length.normal.mean_tokens
    assert length.lognormal is not None, "turns come from no file"
    return min(length.lognormal.median_tokens * math.exp(length.lognormal.sigma**2 / 2), length.lognormal.most_tokens)
