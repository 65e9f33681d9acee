"""The `load` of a suite: the sweep, its blocks and interim analyses, warm-up, and the capacity search."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from benchgate import units
from benchgate.model.metric import Slo
from benchgate.suite.address import SchedulerAddress
from benchgate.suite.stages import (
    LISTED_IN_FLIGHT,
    LISTED_REQUESTS,
    MOST_IN_FLIGHT,
    SloSpec,
    Stage,
    expanded,
    traffic_name,
)
from benchgate.suite.types import (
    WHOLE,
    ArrivalText,
    Duration,
    Expected,
    Flag,
    Money,
    Name,
    PositivePercent,
    Section,
    Whole,
    Written,
    is_stored,
    key,
    optional,
    text,
    word,
)
from benchgate.suite.workload import AdapterMix, Workload
from benchgate.units import show_found

if TYPE_CHECKING:
    from benchgate.model.records import BoolArray, IntArray


CAPACITY_STAGE = "capacity"  # the stage of a search: a level's looks are stored as `capacity/2.5`

_REQUESTS = re.compile(r"([0-9]{1,9}) requests?")
LEAST_REQUESTS = 20  # fewest requests of the longest look of a capacity search, and of the whole search


def _level(value: object, info: ValidationInfo) -> object:
    if is_stored(info):
        return value
    if info.data.get("over") != "concurrency":
        return units.parse_rate_rps(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_IN_FLIGHT:
        return float(value)
    raise ValueError(f"{units.show_found(value)} is not a number of requests in flight; write a whole number, like 8")


def _requests(value: object, info: ValidationInfo) -> object:
    match = _REQUESTS.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) if match is not None else value


Level = Annotated[
    float, BeforeValidator(_level), Expected('a rate like "8/s", or a number in flight like 8'),
    Written(text(units.PATTERNS[units.parse_rate_rps]), {**WHOLE, "minimum": 1, "maximum": MOST_IN_FLIGHT}),
]  # fmt: skip
Requests = Annotated[
    Whole, BeforeValidator(_requests), Expected('a number of requests like "400 requests"'),
    Written(WHOLE, text(rf"^\s*{_REQUESTS.pattern}\s*$")),
]  # fmt: skip


class Capacity(Section):
    """A search for the highest load at which the share of good requests meets the target, once per arm."""

    over: Literal["rate", "concurrency"] = key(
        "Search over the rate (open loop) or over the number in flight (closed loop)"
    )
    lowest: Level = key("Lowest level; it should meet the target", alias="from")
    highest: Level = key("Highest level", alias="to")
    target_ratio: PositivePercent | None = key(
        "Share of scheduled requests that must be good. Default: that of the `slo`", default=None, alias="target"
    )
    resolution_ratio: PositivePercent = key(
        "Largest relative width of the bracket; it must be finer than the `margin` of a check",
        default=0.1,
        alias="resolution",
    )
    probe_requests: Requests = key(
        "Most measured requests at one level. A rate passes only after a look ten times as long as its requests "
        "stay, and half of `probe` is the longest look: at 32/s, with answers of 2 s, about 1,900",
        default=1000,
        ge=LEAST_REQUESTS,
        le=LISTED_REQUESTS,
        alias="probe",
    )
    budget_requests: Requests | None = key(
        "Most requests of the whole search, per arm, with repeated looks and those sent before and after the measured "
        "ones of a level, without the warm-up. Their number is estimated from earlier levels: those of the first, and "
        "any beyond the estimate, are extra",
        default=None,
        ge=LEAST_REQUESTS,
        alias="budget",
    )
    arrival: ArrivalText = key("Arrival process of a rate", default="poisson")
    workload: Name | None = key("Name of one of `load.workloads`. Default: `load.workload`", default=None)

    @model_validator(mode="after")
    def _can_be_searched(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("`from` is not below `to`; there is nothing to search between them")
        if self.target_ratio == 1:
            raise ValueError("a `target` of 100% is missed by one bad request in a million; write less, like 99%")
        if self.over == "concurrency" and "arrival" in self.model_fields_set and self.arrival != "poisson":
            raise ValueError("`arrival` means nothing in a closed loop; leave it out, or search over the rate")
        return self

    def stage_at(self, level: float, requests: int) -> Stage:
        """Return the stage of a look at a level."""
        keys: dict[str, object] = {"stage": CAPACITY_STAGE, "requests": requests, "workload": self.workload}
        if self.over == "rate":
            return Stage.model_validate({**keys, "rate": f"{level:.12g}/s", "arrival": self.arrival})
        return Stage.model_validate({**keys, "concurrency": int(level)})


def level_of_stage(name: str) -> float | None:
    """Return the load level in the name of a search's stage; None for any other stage."""
    stage, _, level = name.partition("/")
    try:
        return float(level) if stage == CAPACITY_STAGE and level else None
    except ValueError:
        return None


AUTO = "auto"
DEFAULT_LOOKS = (5, 10, 20)
"""Numbers of blocks after which the load is judged by default. The first settles much; each next one doubles it."""
MOST_WORKERS = 4096
LEAST_WARMUP_REQUESTS = 8  # least requests in the first round of an `auto` warm-up
_MOST_LOOKS = 6
_BLOCKS_WITHOUT_SWEEP = 10  # stored in the suite although a capacity search alone has no blocks
_PER_SLOT = 2  # warm-up requests per slot of a closed loop: one fills the batch, one meets it full
_MOST_WARMUP = 10_000


Blocks = Annotated[Whole, Field(ge=2, le=200)]
_BLOCKS = TypeAdapter(Blocks, config=ConfigDict(defer_build=True))


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """A stage, or one class of traffic in it: what it sends, when, and the SLO it is held to."""

    stage: str
    class_name: str | None  # None for a stage without classes
    schedule: Stage  # arrivals and number of requests, as of a stage of its own
    workload: Workload
    slo_spec: SloSpec | None  # the class's own, else the suite's
    has_own_slo: bool
    is_background: bool
    has_actions: bool  # on the deployment, during its stage

    @property
    def name(self) -> str:
        """Name by which its observations are stored."""
        return traffic_name(self.stage, self.class_name)

    @property
    def requests(self) -> int | None:
        """Requests of one execution; None in the background, where their number is not planned."""
        return None if self.is_background else self.schedule.requests

    @property
    def is_listed(self) -> bool:
        """True if a plan lists the requests one by one: they are few, or more than their numbers decide them.

        A trace, recorded prompts and sessions, conversations, a changing rate, `leave` and `verify` belong to a class
        as a whole.
        """
        stage, workload = self.schedule, self.workload
        if stage.requests <= LISTED_REQUESTS and (stage.concurrency or 0) <= LISTED_IN_FLIGHT:
            return True
        of_workload = (workload.prompt_set, workload.session, workload.sessions, workload.leave)
        as_whole = (stage.trace, stage.verify_ratio, *of_workload)
        is_level = stage.concurrency is not None or stage.is_level_rate
        return any(one is not None for one in as_whole) or self.is_background or not is_level

    @property
    def is_open(self) -> bool:
        """True for an open loop."""
        return self.schedule.is_open

    @property
    def mean_rps(self) -> float | None:
        """Mean offered rate; None for a closed loop and for a trace."""
        return self.schedule.mean_rps

    @property
    def output_tokens(self) -> int | None:
        """Requested length of every answer; None if lengths vary or answers have none."""
        tokens = self.workload.output_tokens
        return tokens if isinstance(tokens, int) and self.schedule.trace is None else None

    @property
    def slo(self) -> Slo | None:
        """Latency bounds of a good request."""
        return None if self.slo_spec is None else self.slo_spec.per_request

    @property
    def target_ratio(self) -> float | None:
        """Share of requests that must be good."""
        return None if self.slo_spec is None else self.slo_spec.target_ratio

    @property
    def turns(self) -> int | None:
        """Requests per conversation: 1 without conversations, None if their number varies."""
        session = self.workload.session
        if self.workload.sessions is not None:
            return None
        if session is None or session.turns == 1:
            return 1
        # A recorded conversation may be shorter.
        return session.turns if isinstance(session.turns, int) and self.workload.prompts is None else None

    def adapter_of(self, seed: int, block: int, index: int) -> str | None:
        """Return the adapter of a measured request by its number in a block; None for the model itself."""
        mix = self.workload.adapter
        if not isinstance(mix, AdapterMix):
            return mix
        unit = index % self.schedule.requests // (self.turns or 1)
        return mix.drawn(f"{seed}/{self.name}/{block}/{unit}")

    def is_first_turn(self, index: IntArray) -> BoolArray:
        """Return for each request number whether the request is known to be the first of a conversation.

        Of conversations with varying lengths only the very first is known. Background requests repeat from the start.
        """
        position: IntArray = index % self.schedule.requests if self.is_background else index
        first: BoolArray = position == 0 if self.turns is None else position % self.turns == 0
        return first


def parse_warmup(found: object) -> int | Literal["auto"]:
    """Return `found` if it is "auto" or a whole number from 0 to 10,000; else raise ValueError."""
    if found == AUTO:
        return "auto"
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _MOST_WARMUP:
        return found
    raise ValueError(
        f'{show_found(found)} is not a number of requests; write "auto", or a whole number from 0 to {_MOST_WARMUP:,}'
    )


def _parse_workers(found: object) -> object:
    if found == AUTO or (isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= MOST_WORKERS):
        return found
    raise ValueError(
        f'{show_found(found)} is not a number of processes; write "auto", or a whole number up to {MOST_WORKERS}'
    )


Warmup = Annotated[
    int | Literal["auto"], BeforeValidator(parse_warmup), Expected('"auto", or a number of requests like 8'),
    Written(word(AUTO), {**WHOLE, "minimum": 0, "maximum": _MOST_WARMUP}),
]  # fmt: skip
Workers = Annotated[
    int | Literal["auto"], BeforeValidator(_parse_workers), Expected('a number of processes like 2, or "auto"'),
    Written(word(AUTO), {**WHOLE, "minimum": 1, "maximum": MOST_WORKERS}),
]  # fmt: skip


class LoadLimit(Section):
    """Time and money for the load: no further blocks begin that would exceed it. The first ones always run.

    Only with `looks`. What is undecided by then is INCONCLUSIVE.
    """

    time_s: Duration | None = key("Time from the beginning of the warm-up", default=None, alias="time")
    cost_usd: Money | None = key(
        "Cost by `price` and `accelerators` of all measured deployments for the duration of the load; each needs a "
        "`price`",
        default=None,
        alias="cost",
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.time_s is None and self.cost_usd is None:
            raise ValueError("a limit needs at least one of `time` and `cost`")
        return self


class Load(Section):
    """The sweep: ordered stages, run in every block on both arms with the same prompts and schedule."""

    workload: Workload = key("Requests of every stage and class that names no other workload")
    workloads: dict[Name, Workload] = optional("Further workloads, by name, for stages and classes", default={})
    sweep: Annotated[tuple[Stage, ...], AfterValidator(expanded)] = key(
        "Stages, in order; at least one unless there is a `capacity`", default=()
    )
    blocks: Blocks = key(
        "Largest number of paired repetitions. Written without `looks` it is fixed, and the load is judged "
        "once, at its end. Default: `20`",
        default=DEFAULT_LOOKS[-1],
    )
    looks: tuple[Blocks, ...] = optional(
        "Interim analyses: after these numbers of blocks the load ends if its checks are decided, at most 6 "
        "numbers. Default: `[5, 10, 20]` if `blocks` is not written",
        default=(),
    )
    limit: LoadLimit | None = optional("Time and money that the load may take")
    warmup: Warmup = key(
        "Requests sent before the first block, per stage and arm, and discarded. `auto` fills the batch and "
        "continues until TTFT no longer falls; `0` sends none",
        default="auto",
    )
    workers: Workers = key(
        "Load generator processes that share one schedule; requests and send times do not depend on it. `auto` takes "
        "as many as the offered load needs, on at most half the cores",
        default="auto",
    )
    audit: Flag = key(
        "Let the Linux kernel timestamp incoming data and report how late the client read it. Linux only; refused "
        "for `https` and Unix sockets",
        default=False,
    )
    salt: Flag = optional(
        "Send different words in every run so that no cache knows them; `false` sends the words that follow from "
        "the seed alone",
        default=True,
    )
    capacity: Capacity | None = optional("Search for the capacity of each arm, after the blocks")
    regions: dict[Name, SchedulerAddress] = optional(
        "Regions that send the load, each the address of a dask scheduler: `{eu: tcp://load-eu:8786}`. Each sends an "
        "equal part of every stage, from `workers` workers of its own or as many as the smallest region has. Latency, "
        "`goodput` and `error_rate` are judged in each region",
        default={},
    )

    @model_serializer(mode="wrap")
    def _stored_warmup(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Store a number of warm-up requests under the key of the oldest stored runs."""
        written: dict[str, Any] = serialise(self)
        if self.warmup != "auto":
            written["warmup_requests"] = written.pop("warmup")
        return written

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, data: Any, info: ValidationInfo) -> Any:
        """Fill in `blocks` from the last look, and both by default."""
        if not isinstance(data, dict):
            return data
        if is_stored(info) and "warmup_requests" in data:
            data = dict(data)
            data["warmup"] = data.pop("warmup_requests")
        looks = data.get("looks")
        if "looks" not in data and "blocks" not in data:
            if not data.get("sweep"):
                return {**data, "blocks": _BLOCKS_WITHOUT_SWEEP}
            return {**data, "looks": list(DEFAULT_LOOKS), "blocks": DEFAULT_LOOKS[-1]}
        if "blocks" in data or not isinstance(looks, list | tuple) or not looks:
            return data
        try:
            for blocks in looks:
                _BLOCKS.validate_python(blocks)
        except ValidationError:
            return data
        return {**data, "blocks": looks[-1]}

    @field_validator("looks")
    @classmethod
    def _rise(cls, looks: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        """Drop a single look, which is a fixed number of blocks."""
        if not looks:
            raise ValueError("an empty list has no interim analysis; write rising numbers of blocks like [5, 10, 20]")
        if len(looks) > _MOST_LOOKS:
            raise ValueError(f"{len(looks)} looks; each one costs statistical power, so write {_MOST_LOOKS} at most")
        if any(before >= after for before, after in pairwise(looks)):
            raise ValueError("looks are numbers of blocks in all, each more than the one before, like [5, 10, 20]")
        blocks = info.data.get("blocks")
        if blocks is not None and blocks != looks[-1]:
            raise ValueError(
                f"the last look is after {looks[-1]} blocks, and `blocks` says {blocks}; keep one of the two"
            )
        return looks if len(looks) > 1 else ()

    @field_validator("limit")
    @classmethod
    def _ends_at_a_look(cls, limit: LoadLimit | None, info: ValidationInfo) -> LoadLimit | None:
        if limit is not None and info.data.get("looks") == ():
            raise ValueError("a limit ends the load at a look, and a fixed number of blocks has none; write `looks`")
        return limit

    @model_validator(mode="after")
    def _sends_something(self) -> Self:
        if not self.sweep and self.capacity is None:
            raise ValueError("a load without a `sweep` sends nothing; add stages to it, or a `capacity` to search for")
        return self

    @field_validator("regions")
    @classmethod
    def _have_clusters_of_their_own(cls, regions: dict[str, str]) -> dict[str, str]:
        first: dict[str, str] = {}
        for region, address in regions.items():
            if (other := first.setdefault(address, region)) != region:
                raise ValueError(f"{region} and {other} have one scheduler, {address}; each needs a cluster of its own")
        return regions

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        for traffic in self.classes():
            if traffic.is_listed and traffic.schedule.requests > LISTED_REQUESTS:
                raise ValueError(
                    f"{traffic.name} has {traffic.schedule.requests:,} requests a block; more than {LISTED_REQUESTS:,} "
                    "are single requests with synthetic prompts, at one rate or in a closed loop, without `leave` or "
                    "`verify`; write fewer, or more `blocks`"
                )
        return self

    def classes(self, slo: SloSpec | None = None) -> tuple[TrafficClass, ...]:
        """Return every class of traffic of the sweep, in order. `slo` is that of classes without their own."""
        return tuple(self.class_of(stage, name, slo) for stage in self.sweep for name in stage.class_names)

    def with_class_slos(self, slos: Mapping[str, SloSpec | None]) -> Self:
        """Return the load with these SLOs of classes, by `stage/class`, instead of its own."""
        return self.model_copy(update={"sweep": tuple(stage.with_class_slos(slos) for stage in self.sweep)})

    def search_traffic(self, slo: SloSpec | None = None) -> TrafficClass | None:
        """Return the traffic of the capacity search, at its lowest level; None without a search."""
        if self.capacity is None:
            return None
        requests = max(self.capacity.probe_requests, math.ceil(self.capacity.lowest))
        return self.class_of(self.capacity.stage_at(self.capacity.lowest, requests), slo=slo)

    def class_of(self, stage: Stage, class_name: str | None = None, slo: SloSpec | None = None) -> TrafficClass:
        """Return one class of traffic of a stage, or the whole of a stage without classes."""
        spec = stage.classes[class_name] if stage.classes is not None and class_name is not None else None
        workload = self.workloads.get((spec or stage).workload or "", self.workload)
        if spec is None:
            own = {"input_tokens": stage.input_tokens, "output_tokens": stage.output_tokens, "prefix": stage.prefix}
        else:
            own = {"priority": spec.priority}
        changes = {field: value for field, value in own.items() if value is not None}
        own_slo = None if spec is None else spec.slo
        return TrafficClass(
            stage=stage.name,
            class_name=class_name,
            schedule=stage if spec is None else spec.as_stage(traffic_name(stage.name, class_name)),
            workload=workload.model_copy(update=changes) if changes else workload,
            slo_spec=own_slo or slo,
            has_own_slo=own_slo is not None,
            is_background=spec is not None and spec.background,
            has_actions=bool(stage.actions),
        )


def first_round(concurrency: int | None, turns: float = 1.0) -> int:
    """Return how many requests the first round of an `auto` warm-up sends.

    `concurrency` is None for an open loop. `turns` is the mean number of requests in a conversation: every slot gets a
    conversation of its own.
    """
    return max(LEAST_WARMUP_REQUESTS, math.ceil((concurrency or 0) * max(_PER_SLOT, turns)))


def first_round_of(warmup: int | Literal["auto"], traffic: TrafficClass, mean_calls: float = 1.0) -> int:
    """Return how many requests the first warm-up round of a class of traffic sends.

    `mean_calls` is the mean number of requests of its recorded agent sessions.
    """
    if warmup != "auto":
        return warmup
    if traffic.workload.sessions is not None:
        return first_round(traffic.schedule.concurrency, mean_calls)
    turns = 1 if traffic.workload.session is None else traffic.workload.session.turns
    if isinstance(turns, int):
        mean: float = turns
    elif turns.uniform is not None:
        mean = sum(turns.uniform) / 2
    elif turns.normal is not None:
        mean = turns.normal.mean_tokens
    else:
        law = turns.lognormal
        assert law is not None, "turns come from no file"
        mean = min(law.median_tokens * math.exp(law.sigma**2 / 2), law.most_tokens)
    return first_round(traffic.schedule.concurrency, mean)
