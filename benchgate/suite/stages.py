"""A stage of the load sweep: its arrivals, SLO, classes of traffic, and actions on the deployment while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, Strict, ValidationError, ValidationInfo, field_validator, model_validator

from benchgate.model.arrivals import ArrivalProcess, RateProfile, linear_ramp, parse_arrival, rate_bursts, rate_steps
from benchgate.model.metric import Slo
from benchgate.suite.simulator import MOST_REPLICAS
from benchgate.suite.types import (
    ArrivalText,
    Duration,
    Expected,
    Flag,
    Name,
    Percent,
    PositivePercent,
    Rate,
    Section,
    Span,
    Text,
    Whole,
    Written,
    checked,
    is_stored,
    key,
    optional,
    text,
    word,
)
from benchgate.suite.workload import Count, Length, Prefix
from benchgate.units import PATTERNS, as_written, parse_duration_s, show_duration, show_found, show_number, show_rate

NO_BOUND = "none"  # written in a class's `slo` for a bound of the suite's that does not apply to the class

_Bound = Annotated[Duration, Written(text(PATTERNS[parse_duration_s]), word(NO_BOUND))]


class SloSpec(Section):
    """Latency bounds that a good request meets, and the share of scheduled requests that must be good.

    At least one of `ttft`, `tpot` and `e2e`. A good request succeeds and meets every bound.
    """

    ttft_s: _Bound | None = key("Time to the first output, from the intended send", default=None, alias="ttft")
    tpot_s: _Bound | None = key("Time per output token after the first", default=None, alias="tpot")
    e2e_s: _Bound | None = key("Time to the end of the answer, from the intended send", default=None, alias="e2e")
    target_ratio: PositivePercent = key("Share of scheduled requests that must be good", default=0.95, alias="target")

    @field_validator("ttft_s", "tpot_s", "e2e_s", mode="before")
    @classmethod
    def _no_bound(cls, found: object) -> object:
        return None if found == NO_BOUND else found

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an slo needs at least one of `ttft`, `tpot` and `e2e`")
        return self

    @property
    def per_request(self) -> Slo:
        """The latency bounds, without the target."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


def with_inherited_slos(data: Mapping[str, Any]) -> dict[str, Any]:
    """Fill keys missing in the `slo` of a class of traffic from the suite's `slo`, in a suite's plain data.

    Without this a class that only tightens its `ttft` would lose the other bounds and the target. Return the data
    unchanged if the suite's `slo` is not valid.
    """
    shared, load = data.get("slo"), data.get("load")
    sweep = load.get("sweep") if isinstance(load, Mapping) else None
    if not isinstance(shared, Mapping) or not isinstance(load, Mapping) or not isinstance(sweep, list):
        return dict(data)
    try:
        SloSpec.model_validate(shared)
    except ValidationError:
        return dict(data)
    stages = []
    for stage in sweep:
        classes = stage.get("classes") if isinstance(stage, Mapping) else None
        if not isinstance(stage, Mapping) or not isinstance(classes, Mapping):
            stages.append(stage)
            continue
        filled = dict(classes)
        for name, spec in classes.items():
            if isinstance(spec, Mapping) and isinstance(spec.get("slo"), Mapping):
                filled[name] = {**spec, "slo": {**shared, **spec["slo"]}}
        stages.append({**stage, "classes": filled})
    return {**data, "load": {**load, "sweep": stages}}


MOST_IN_FLIGHT = 1_000_000
MOST_REQUESTS = 1_000_000_000
LISTED_IN_FLIGHT, LISTED_REQUESTS = 10_000, 1_000_000
"""Most requests of a class that a plan lists one by one. Beyond either, each follows from the seed and its number."""
MOST_BURSTS = 10_000
RAMP_SERVICE_TIMES = 5.0  # default length of the ramp of an open loop at a constant rate, in mean service times
_LEAST_BACKGROUND = 64  # distinct requests of a background class, unless the suite sets them
_MOST_STEPS_SHOWN = 4
_LONGEST_NAME = 64

Factor = Annotated[float, Strict(), Field(gt=0, le=1000)]
ServiceTimes = Annotated[float, Strict(), Field(ge=0, le=10_000)]
_Replica = Annotated[Whole, Field(ge=0, lt=MOST_REPLICAS)]


def traffic_name(stage: str, class_name: str | None) -> str:
    """Return the name of a class of traffic, by which its observations are stored: `stage` or `stage/class`."""
    return f"{stage}/{class_name}" if class_name else stage


def _check_traffic_name(name: str) -> None:
    if name.count("/") > 1 or not all(name.split("/")):
        raise ValueError(f'{show_found(name)} is no stage; write a stage, or a class of one as "stage/class"')


TrafficName = Annotated[str, checked(_check_traffic_name), Expected('the name of a stage, or "stage/class"')]


def region_name(place: str, region: str | None) -> str:
    """Return the name of a place of the load seen from a region: `stage@region` or `stage/class@region`."""
    return place if region is None else f"{place}@{region}"


def split_region(name: str) -> tuple[str, str | None]:
    """Return the place in `region_name`, and the region if it has one."""
    place, _, region = name.partition("@")
    return place, region or None


def stage_part(name: str) -> str:
    """Return the stage in `stage`, `stage/class` or either with a region."""
    return split_region(name)[0].partition("/")[0]


class Action(Section):
    """An action at an instant of a stage, on each arm in every block: one of `kill`, `drain`, `start` and `run`.

    Commands need `--allow-actions`; they get `BENCHGATE_ARM` and `BENCHGATE_STAGE`, and write to `actions.log`. An
    action that fails, starts more than 0.25 s late or outlasts the stage makes the stage INVALID.
    """

    at_s: Span = key("Time after the start of the stage", alias="at")
    kill: _Replica | None = optional("Number of the replica of a `sim` whose process gets SIGKILL")
    drain: _Replica | None = optional("Number of the replica that gets no new requests, and goes after its last answer")
    start: _Replica | None = optional("Number of the replica that is started again")
    run: tuple[Text, ...] | None = optional(
        'A command and its arguments, run without a shell: `["kubectl", "delete", "pod", "vllm-1"]`', min_length=1
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.kill, self.drain, self.start, self.run)) != 1:
            raise ValueError("an action is exactly one of `kill`, `drain`, `start` and `run`")
        return self

    @property
    def on_replica(self) -> tuple[str, int] | None:
        """Return the kind and the number of the replica; None for a command."""
        kinds = (("kill", self.kill), ("drain", self.drain), ("start", self.start))
        return next(((kind, number) for kind, number in kinds if number is not None), None)

    @property
    def shown(self) -> str:
        """The action in words: `kill replica 1 at 2 s`."""
        if self.run is not None:
            action = f"run {' '.join(self.run)}"
        else:
            kind, number = self.on_replica or ("", 0)
            action = f"{kind} replica {number}"
        return f"{action} at {as_written(show_duration, self.at_s) if self.at_s else '0 s'}"


class Step(Section):
    """A rate held for a while."""

    rate_rps: Rate = key("Rate of this step", alias="rate")
    duration_s: Duration = key("Duration of this step", alias="for")


class Bursts(Section):
    """Bursts at the end of every period: `rate` times the next factor, over and over."""

    factors: tuple[Factor, ...] = key("Multiples of `rate`, one per burst, repeated in order", min_length=1)
    every_s: Duration = key("Time from the end of one burst to the end of the next", alias="every")
    duration_s: Duration = key("Length of a burst; shorter than `every`", alias="for")


class Each(Section):
    """A stage for every value of one key, named after the stage and the value: `in-128`, `in-512`."""

    concurrency: tuple[Annotated[Whole, Field(ge=1, le=MOST_IN_FLIGHT)], ...] = key(
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
        if len(set(self.values)) != len(self.values):
            raise ValueError("`each` names a value twice; every value is a stage of its own")
        if 1 in self.prefix_share:
            raise ValueError("a `prefix_share` of 100% leaves no prompt a text of its own; write less")
        return self

    @property
    def field(self) -> str:
        """Name of the varied field; `prefix_share` varies the stage's prefix."""
        return next(name for name in type(self).model_fields if getattr(self, name))

    @property
    def values(self) -> tuple[float, ...]:
        """Values of the varied field, one per stage."""
        values: tuple[float, ...] = getattr(self, self.field)
        return values


class ClassSpec(Section):
    """A class of traffic in a stage: its own workload, arrivals, SLO and priority.

    Its load is a closed loop, an open loop at a constant rate, or a trace.
    """

    workload: Name | None = optional("Name of one of `load.workloads`. Default: `load.workload`")
    concurrency: Whole | None = optional("Closed loop: this many requests in flight", ge=1, le=MOST_IN_FLIGHT)
    rate_rps: Rate | None = optional("Open loop at this rate", alias="rate")
    trace: Text | None = optional("Open loop at the send times of a recorded file")
    speed: Factor | None = optional("Replay a `trace` this many times faster. Default: as recorded")
    arrival: ArrivalText = key("Arrival process of the `rate`", default="poisson")
    ramp: ServiceTimes | None = optional(
        "Length of the ramp of the `rate`, in mean service times; `0` for none. Default: `5`"
    )
    duration_s: Duration | None = optional("Duration of the `rate`, instead of `requests`", alias="for")
    requests: Whole | None = optional(
        "Requests per block and arm. Default: rate times duration", ge=1, le=MOST_REQUESTS
    )
    background: Flag = key(
        "A closed loop that runs until the other classes are done; requests in flight are then cancelled and not "
        "counted, unless the server had forgotten them. `requests` is the number of different ones before it starts "
        "over (64, or 4 for each in flight)",
        default=False,
    )
    slo: SloSpec | None = optional(
        "SLO of this class. Keys that are left out are those of the suite's `slo`, `target` included; a bound "
        "that does not apply to this class is written `none` (`{e2e: 60s, ttft: none}`). Default: that of the "
        "suite"
    )
    priority: Annotated[int, Strict()] | None = optional(
        "Priority of every request of the class. Default: that of the workload", ge=-1000, le=1000
    )

    def as_stage(self, name: str) -> Stage:
        """Return the stage that this class would be without the others."""
        fields = {field: value for field in _SHARED_FIELDS if (value := getattr(self, field)) is not None}
        requests = self.requests
        if requests is None and self.background:
            requests = max(_LEAST_BACKGROUND, 4 * (self.concurrency or 0))
        elif requests is None:
            requests = _planned_requests({"rate_rps": self.rate_rps, "duration_s": self.duration_s})
        return Stage.model_construct(
            _fields_set={*fields} & self.model_fields_set, **{**fields, "name": name, "requests": requests}
        )


_SHARED_FIELDS = ("concurrency", "rate_rps", "trace", "speed", "arrival", "duration_s", "requests", "workload", "ramp")


_VerifiedShare = Annotated[Percent, Field(gt=0, le=0.5), Expected('a percentage of at most 50%, like "5%"')]


class Stage(Section):
    """A load level that is held, or a profile of the load over time.

    A closed loop (`concurrency` in flight), or an open one, whose requests do not wait for earlier ones: at a `rate`
    (constant, on a ramp, or with bursts), in `steps`, or at the instants of a `trace`.
    """

    name: Name = key("Name of the stage in checks and reports; each differs", alias="stage")
    concurrency: Whole | None = key("Closed loop: this many requests in flight", default=None, ge=1, le=MOST_IN_FLIGHT)
    rate_rps: Rate | None = key("Open loop at this rate", default=None, alias="rate")
    ramp_to_rps: Rate | None = optional(
        "The rate changes linearly from `rate` to this one; needs `for`", alias="ramp_to"
    )
    bursts: Bursts | None = optional("Bursts on top of `rate`; needs `for`")
    steps: tuple[Step, ...] | None = optional("Open loop at one rate after another", min_length=1)
    trace: Text | None = optional("Open loop at the send times of a recorded file")
    speed: Factor | None = optional(
        "Replay a `trace` this many times faster; `2` halves every gap. Default: as recorded"
    )
    block_tokens: Count | None = optional(
        "Tokens that one of the `hash_ids` of a `trace` stands for. Default: `512`", alias="block"
    )
    arrival: ArrivalText = key("Arrival process of an open loop; not with `trace`", default="poisson")
    ramp: ServiceTimes | None = optional(
        "Length of the ramp of a level `rate`, in mean service times; `0` for none. Default: `5`"
    )
    duration_s: Duration | None = optional("Duration of a stage at a `rate`, instead of `requests`", alias="for")
    workload: Name | None = optional("Name of one of `load.workloads`. Default: `load.workload`")
    input_tokens: Length | None = optional(
        "Length of each prompt in this stage. Default: that of the workload", alias="input"
    )
    output_tokens: Length | None = optional(
        "Length of each answer in this stage. Default: that of the workload", alias="output"
    )
    prefix: Prefix | None = optional("Shared beginning of the prompts in this stage. Default: that of the workload")
    each: Each | None = optional("One stage for every value of one key")
    classes: dict[Name, ClassSpec] | None = optional(
        "Several classes of traffic at once, judged separately", min_length=1
    )
    actions: tuple[Action, ...] | None = optional("Actions on the deployment during the stage", min_length=1)
    verify_ratio: _VerifiedShare | None = optional(
        "Send items of `quality.tasks` among the requests, so many per request of the stage, for a check of "
        "`accuracy` with this `stage`. Each generated task that is right or wrong takes part, and each item is sent "
        "once to each arm, in the same place. Failures of these requests are in `error_rate`; latency, throughput "
        "and `goodput` leave them out",
        alias="verify",
    )
    # Computed from rate and duration where they are given, so that nobody downstream has to.
    requests: Whole = key(
        "Requests per block and arm. Default: mean rate times duration",
        default_factory=lambda known: _planned_requests(known),
        ge=1,
        le=MOST_REQUESTS,
    )

    @model_validator(mode="after")
    def _keys_fit_together(self, info: ValidationInfo) -> Self:
        if not is_stored(info):  # which was checked when it was written, and has every default filled in
            complaint = _complaint(self)
            if complaint is not None:
                raise ValueError(complaint)
        return self

    @property
    def class_names(self) -> tuple[str | None, ...]:
        """Names of its classes; a single None without classes."""
        return tuple(self.classes) if self.classes else (None,)

    def with_class_slos(self, slos: Mapping[str, SloSpec | None]) -> Self:
        """Return the stage with these SLOs of classes, by `stage/class`, instead of its own."""
        if self.classes is None:
            return self
        changed = {
            name: spec.model_copy(update={"slo": slos.get(traffic_name(self.name, name))})
            for name, spec in self.classes.items()
        }
        return self.model_copy(update={"classes": changed})

    @property
    def is_open(self) -> bool:
        """True for an open loop, whose requests are sent at planned times."""
        return self.concurrency is None

    @property
    def is_level_rate(self) -> bool:
        """True for an open loop at one constant rate."""
        return self.rate_rps is not None and self.ramp_to_rps is None and self.bursts is None

    @property
    def ramp_service_times(self) -> float:
        """Length of the ramp of an open loop at a constant rate, in mean service times; 0 for none."""
        return RAMP_SERVICE_TIMES if self.ramp is None else self.ramp

    @property
    def process(self) -> ArrivalProcess:
        """Arrival process of an open loop."""
        return parse_arrival(self.arrival)

    @property
    def profile(self) -> RateProfile | None:
        """Rate over time; None for a stage with a number of requests."""
        return _rate_profile(self.__dict__)

    @property
    def mean_rps(self) -> float | None:
        """Mean offered rate; None for a closed loop and for a trace, whose rows have the times."""
        profile = self.profile
        return self.rate_rps if profile is None else self.requests / profile.duration_s

    @property
    def offered(self) -> str:
        """The offered load in a few words: `8/s poisson`, `2/s to 20/s in 60 s, poisson`."""
        if self.classes is not None:
            return "; ".join(
                f"{name}: {spec.as_stage(name).offered}{' in the background' if spec.background else ''}"
                for name, spec in self.classes.items()
            )
        if self.trace is not None:
            return f"{self.trace} replayed" + (f" {_number(self.speed)} times as fast" if self.speed else "")
        if self.steps is not None:
            rates = [step.rate_rps for step in self.steps]
            steps = f"{len(self.steps)} steps from {_rate(min(rates))} to {_rate(max(rates))}"
            if len(rates) <= _MOST_STEPS_SHOWN:
                steps = ", ".join(f"{_rate(step.rate_rps)} for {_time(step.duration_s)}" for step in self.steps)
            return f"{steps}, {self.arrival}"
        if self.rate_rps is None:
            return f"{self.concurrency} in flight"
        rate = _rate(self.rate_rps)
        if self.ramp_to_rps is not None:
            return f"{rate} to {_rate(self.ramp_to_rps)} in {_time(self.duration_s)}, {self.arrival}"
        if self.bursts is not None:
            factors = ", ".join(_number(factor) for factor in self.bursts.factors)
            return f"{rate} with bursts of {factors} times that, {self.arrival}"
        return f"{rate} {self.arrival}"


def expanded(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Return the stages with each stage that has `each` replaced by one stage for every value."""
    found: list[Stage] = []
    for stage in stages:
        if stage.each is None:
            found.append(stage)
            continue
        field, counted = stage.each.field, "requests" in stage.model_fields_set
        for value in stage.each.values:
            varied: dict[str, Any] = {field: value}
            if field == "prefix_share":
                varied = {"prefix": Prefix.model_construct(share_ratio=value)}
            name = f"{stage.name}-{_in_a_name(value * 100 if field == 'prefix_share' else value)}"
            requests = stage.requests if counted else _planned_requests({**stage.__dict__, **varied})
            one = stage.model_copy(update={"name": name, "each": None, "requests": requests, **varied})
            if not counted:
                one.model_fields_set.discard("requests")  # not written in the suite: it follows from the rate
            found.append(one)
    return tuple(found)


def _in_a_name(value: float) -> str:
    """Format a number for the name of a stage, which has no `+`: 0.5, 1000000."""
    short = f"{value:g}"
    return short if "+" not in short else f"{value:.15g}".replace("+", "")


def _rate_profile(fields: Mapping[str, Any]) -> RateProfile | None:
    """Return the rate over time of a stage with these fields, which need not fit together; None without one."""
    rate_rps, duration_s = fields.get("rate_rps"), fields.get("duration_s")
    if fields.get("steps") is not None:
        return rate_steps((step.rate_rps, step.duration_s) for step in fields["steps"])
    if rate_rps is None or duration_s is None:
        return None
    if fields.get("ramp_to_rps") is not None:
        return linear_ramp(rate_rps, fields["ramp_to_rps"], duration_s)
    bursts: Bursts | None = fields.get("bursts")
    if bursts is None:
        return linear_ramp(rate_rps, rate_rps, duration_s)
    if duration_s / bursts.every_s > MOST_BURSTS:
        return None
    return rate_bursts(rate_rps, bursts.factors, bursts.every_s, bursts.duration_s, duration_s)


def _planned_requests(fields: Mapping[str, Any]) -> int:
    """Return the requests of a stage without `requests`; 0, which no stage may have, where nothing determines them."""
    if fields.get("classes") is not None:
        return sum(spec.as_stage(name).requests for name, spec in fields["classes"].items() if not spec.background)
    profile = _rate_profile(fields)
    return 0 if profile is None else profile.requests


def _rate(rate_rps: float) -> str:
    return as_written(show_rate, rate_rps)


def _number(value: float) -> str:
    return as_written(show_number, value)


def _time(seconds: float | None) -> str:
    return as_written(show_duration, seconds or 0.0)


# Required and optional keys of each kind of load, by the key that selects it.
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
_NO_RAMP = "`ramp` means nothing beside `actions`, whose instants count from the start of the stage; leave it out"
# Keys that say nothing of when it sends.
_OTHER_KEYS = {"stage", "actions", "workload", "input", "output", "prefix", "verify"}
_BACKGROUND_KEYS = {"concurrency", "requests", "workload"}


def _written_keys(stage: Stage) -> dict[str, Any]:
    return {Stage.model_fields[name].alias or name: getattr(stage, name) for name in stage.model_fields_set}


def _complaint(stage: Stage) -> str | None:
    """Return why a stage cannot be run as written, and what to write; None if it can."""
    if stage.classes is not None:
        return _classes_complaint(stage, stage.classes)
    if stage.each is not None:
        field = "prefix" if stage.each.field == "prefix_share" else stage.each.field
        varied = Stage.model_fields[field].alias or field
        if varied in _written_keys(stage):
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


def _classes_complaint(stage: Stage, classes: Mapping[str, ClassSpec]) -> str | None:
    if stage.verify_ratio is not None:
        return "`verify` sends items among the requests of a stage without `classes`; leave one of them out"
    stray = sorted(_written_keys(stage).keys() - {"stage", "classes", "actions"})
    if stray:
        return f"`{stray[0]}` means nothing beside `classes`, each of which has its own; move it there"
    if stage.actions is not None and any(spec.ramp is not None for spec in classes.values()):
        return _NO_RAMP
    if all(spec.background for spec in classes.values()):
        return "every class is `background`, which runs until the other classes are done; let one of them end"
    for name, spec in classes.items():
        alone = spec.as_stage(name)
        if spec.background:
            found = f"class {name} is `background`, a closed loop that others end"
            if spec.concurrency is None:
                return f"{found}; give it a `concurrency` and no other form"
            if stray := sorted(_written_keys(alone).keys() - _BACKGROUND_KEYS):
                return f"{found}; leave `{stray[0]}` out"
        complaint = (None if spec.background else _form_complaint(alone)) or _profile_complaint(alone)
        if complaint is not None:
            return f"class {name}: {complaint.replace('a stage', 'a class')}"
    return None


def _form_complaint(stage: Stage) -> str | None:
    """Return why the keys of a stage do not fit together, and what to write; None if they do."""
    given = {key for key, value in _written_keys(stage).items() if value is not None} - _OTHER_KEYS
    forms = given & _FORMS.keys()
    if len(forms) != 1:
        found = "leave out " + " or ".join(f"`{form}`" for form in sorted(forms))
        remedy = found if forms else "add for example `concurrency: 8` or `rate: 4/s`"
        needs = "a stage needs exactly one of `concurrency` (closed loop) and `rate`, `steps` or `trace` (open loop)"
        return f"{needs}; {remedy}"
    (form,) = forms
    required, allowed = _FORMS[form]
    if "for" in given and form in ("concurrency", "trace"):
        return "`for` would let each arm answer another number of requests here; write `requests` instead"
    stray = sorted(given - required - allowed - {form})
    if stray:
        return f"`{stray[0]}` means nothing {_MEANS_NOTHING[form]}"
    missing = sorted(required - given)
    if missing:
        return f"`{missing[0]}` is required and missing; say how many requests each block sends to each arm"
    if form != "rate":
        return None
    # A rate has a length, and at most one shape.
    shape = given & {"ramp_to", "bursts"}
    if len(shape) > 1:
        return "`ramp_to` and `bursts` are two profiles of the rate; write one stage for each"
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
    """Return why the rate over time cannot be run, and what to write; None if it can."""
    bursts, duration_s = stage.bursts, stage.duration_s
    if bursts is not None and duration_s is not None:
        if bursts.duration_s >= bursts.every_s:
            held, every = show_duration(bursts.duration_s), show_duration(bursts.every_s)
            return f"bursts of {held} every {every} leave no time between them; make `bursts.for` shorter than `every`"
        if duration_s / bursts.every_s > MOST_BURSTS:
            return f"has more than {MOST_BURSTS:,} bursts; make `bursts.every` longer or `for` shorter"
        least_s = len(bursts.factors) * bursts.every_s
        if duration_s < least_s * (1 - 1e-9):
            last = f"the last of the {len(bursts.factors)} factors"
            return f"ends before {last}; write `for` of at least {_time(least_s)}"
    most = MOST_REQUESTS if stage.is_level_rate or stage.concurrency is not None else LISTED_REQUESTS
    if not 1 <= stage.requests <= most:
        return f"comes to {stage.requests:,} requests a block; such a stage has 1 to {most:,}: change rate or time"
    return None
