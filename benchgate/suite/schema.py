"""Where telemetry of a deployment comes from, as a suite says it: its page of metrics, what reads its accelerators.

How far the candidate's next-token probabilities lie from the baseline's, on fixed texts: the section's language.

How good the load generator must have been for its times to count as the servers'.

How often the load is looked at before it ends, and what it may cost to go on.

How much may add up over promotions, each of which stays inside its own margin.

How many replicas a deployment has, and what counts those that are there.

The whole language of suites, as types. Text becomes these in `loader`; everything downstream reads only these.

Fields hold base units (`_s`, `_rps`, `_ratio`, `_usd`); in the YAML the same keys carry human units without the suffix,
like `ttft: 500ms`. Every default is written here and nowhere else, so the stored suite shows them. What one field or
one section must be is said here; what sections must be to each other is said in `rules`.

Which arms a suite measures: both, or the candidate alone where nothing is compared.

How many tokens a request may come to, prompt and answer together, as far as the suite says.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from benchgate import units
from benchgate.errors import EvidenceError, UsageError
from benchgate.model.deployment import Arm
from benchgate.suite.capacity import Capacity
from benchgate.suite.checks import Check, PlaceName
from benchgate.suite.connection import (
    Address,
    Headers,
    ProxyAddress,
    Reference,
    Tls,
    is_http_base,
    reference_name,
    refuse_two_authorizations,
    resolve_secret,
)
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.pricing import PriceTerms, TokenPrices
from benchgate.suite.quality import Quality
from benchgate.suite.shadow import Shadow
from benchgate.suite.simulator import Practice
from benchgate.suite.stages import (
    Bursts,
    Level,
    SloSpec,
    Stage,
    Step,
    Warmup,
    expanded,
    level_of,
    with_inherited_slos,
    with_renamed_warmup,
)
from benchgate.suite.types import (
    WHOLE,
    Duration,
    Expected,
    Flag,
    Kind,
    Money,
    Name,
    PositivePercent,
    Price,
    Rate,
    SharedField,
    StrictSection,
    Text,
    Whole,
    Written,
    is_stored,
    text,
    word,
)
from benchgate.suite.workload import BodyFields, Count, Workload
from benchgate.units import as_written, show_duration, show_percent

if TYPE_CHECKING:
    pass

AUTO = "auto"
OFF = "off"
NVIDIA_SMI = "nvidia-smi"


def check_page(text: str) -> str:
    """Let the address of a page of metrics pass, or a reference to one; ValueError, without credentials, otherwise."""
    if reference_name(text) is not None:
        return text
    if "@" in text:
        raise ValueError("holds credentials; put the whole address in a variable and write ${env:NAME}")
    return _page(text)


def _page(text: str) -> str:
    if not is_http_base(text) or urlsplit(text).fragment:
        raise ValueError(f'"{text[:60]}" is not the address of a page; write it like http://host:9400/metrics')
    return text


def resolve_page(key: str, text: str, environment: Mapping[str, str]) -> str:
    """What a suite says of `key`, its reference followed. UsageError for one that is not set or holds no address."""
    if text in (AUTO, OFF, NVIDIA_SMI):
        return text
    try:
        return _page(resolve_secret(text, environment)) if reference_name(text) is not None else check_page(text)
    except ValueError:
        # Its message may repeat a part of what the variable holds.
        raise UsageError(f"`{key}` refers to what is not the address of a page of metrics; correct it") from None


def _metrics(text: str) -> str:
    return text if text in (AUTO, OFF) else check_page(text)


def _gpu(text: str) -> str:
    return text if text == NVIDIA_SMI else check_page(text)


Metrics = Annotated[
    str, AfterValidator(_metrics), Expected('"auto", "off" or the address of a page like "http://host:9090/metrics"')
]
Gpu = Annotated[
    str, AfterValidator(_gpu), Expected('"nvidia-smi" or the page of a DCGM exporter like "http://host:9400/metrics"')
]


class Divergence(StrictSection):
    """Fixed texts (JSONL: `id`, `text`) that both arms read: given, not generated. Paths are relative to the suite."""

    texts: Text
    positions: Whole = Field(default=200, ge=10, le=100_000)  # in all; drawn by the suite's seed
    top: Whole = Field(default=20, ge=2, le=10_000)  # the most probable tokens that are asked for at a position
    way: Literal["auto", "n_probs", "echo", "cut"] = "auto"
    window: Whole = Field(default=2048, ge=32, le=1_000_000)  # characters of a piece of a text; its second half counts
    repeat_baseline: Flag = False  # ask the baseline once more: how far it lies from itself
    concurrency: Whole = Field(default=8, ge=1, le=1024)


_Bound = Annotated[  # above a second hardly any latency would still be the server's
    Duration, Field(gt=0, le=1), Expected('a duration of at most 1s, like "50ms"')
]


class ClientBounds(StrictSection):
    """Beyond one of these, a stage execution measured its client. Why they are where they are: docs/decisions.md."""

    send_lag_p99_s: _Bound = Field(default=0.005, alias="send_lag_p99")  # what any scheduler may cost
    send_lag_max_s: _Bound = Field(default=0.050, alias="send_lag_max")  # of one single send
    read_delay_p99_s: _Bound = Field(default=0.005, alias="read_delay_p99")  # of stages under 2 s the median
    read_delay_max_s: _Bound = Field(default=0.050, alias="read_delay_max")
    cpu_share: PositivePercent = Field(default=0.70, alias="cpu")  # of one core, by the busiest worker over 5 s
    achieved_ratio: PositivePercent = Field(default=0.99, alias="achieved")  # of the offered rate

    def unusual(self) -> str:
        """Those that are not the usual ones, as a suite spells them: `send_lag_p99 30 ms`; empty when none."""
        shown = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                shown.append(f"{field.alias} {_shown(name, value)}")
        return ", ".join(shown)

    def widened(self) -> str:
        """Those that allow more than the usual ones: `send lag p99 100 ms (usual 5 ms)`; empty when none."""
        told = []
        for name, field in type(self).model_fields.items():
            value, usual = getattr(self, name), field.default
            if value < usual if name in _AT_LEAST else value > usual:
                words = str(field.alias).replace("_", " ")
                told.append(f"{words} {as_written(_shown(name, value))} (usual {as_written(_shown(name, usual))})")
        return ", ".join(told)


_AT_LEAST = ("achieved_ratio",)


def _shown(name: str, value: float) -> str:
    return show_duration(value) if name.endswith("_s") else show_percent(value)


USUAL_LOOKS = (5, 10, 20)
"""After how many blocks, where a suite says nothing: the first settles much, each next one doubles what there is."""
Blocks = Annotated[Whole, Field(ge=2, le=200)]
_BLOCKS = TypeAdapter(Blocks)
_MOST_LOOKS = 6
_WITHOUT_SWEEP = 10  # a search alone has no blocks, and a number all the same: it stands in stored suites


class LoadLimit(StrictSection):
    """What the load may take: no next look is begun that would pass it. The first one is always taken."""

    time_s: Duration | None = Field(default=None, alias="time")
    cost_usd: Money | None = Field(default=None, alias="cost")  # by the prices of all deployments that are measured

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.time_s is None and self.cost_usd is None:
            raise ValueError("a limit needs at least one of `time` and `cost`")
        return self


def with_blocks(load: Mapping[str, Any]) -> dict[str, Any]:
    """A load's plain data in which the most blocks stand: the last look's, and the usual looks where none are said."""
    if "looks" not in load and "blocks" not in load:
        if not load.get("sweep"):
            return {**load, "blocks": _WITHOUT_SWEEP}
        return {**load, "looks": list(USUAL_LOOKS), "blocks": USUAL_LOOKS[-1]}
    looks = load.get("looks")
    if "blocks" in load or not isinstance(looks, list | tuple) or not all(_is_number_of_blocks(one) for one in looks):
        return dict(load)
    return {**load, "blocks": looks[-1]} if looks else dict(load)


def checked_looks(looks: tuple[int, ...], blocks: int | None) -> tuple[int, ...]:
    """The looks, none where there is but one: that is a fixed number of blocks. ValueError for what cannot be.

    `blocks` is the most there may be; None where that is wrong itself.
    """
    if not looks:
        raise ValueError("an empty list looks at nothing; write rising numbers of blocks like [5, 10, 20]")
    if len(looks) > _MOST_LOOKS:
        raise ValueError(
            f"{len(looks)} looks; each one costs a little of what can be shown, so write {_MOST_LOOKS} at most"
        )
    if any(before >= after for before, after in pairwise(looks)):
        raise ValueError("looks are numbers of blocks in all, each more than the one before, like [5, 10, 20]")
    if blocks is not None and blocks != looks[-1]:
        raise ValueError(f"the last look is after {looks[-1]} blocks, and `blocks` says {blocks}; keep one of the two")
    return looks if len(looks) > 1 else ()


def _is_number_of_blocks(found: object) -> bool:
    try:
        _BLOCKS.validate_python(found)
    except ValidationError:
        return False
    return True


def _points(found: object, info: ValidationInfo) -> object:
    return found if is_stored(info) else units.parse_points_ratio(found)


def _percent(found: object, info: ValidationInfo) -> object:
    return found if is_stored(info) else units.parse_percent_ratio(found)


Points = Annotated[
    float, BeforeValidator(_points), Expected('points like "5 points"', quantity=True),
    Written.of(text(units.PATTERNS[units.parse_points_ratio])),
]  # fmt: skip
Percent = Annotated[
    float, BeforeValidator(_percent), Expected('a percentage like "10%"', quantity=True),
    Written.of(text(units.PATTERNS[units.parse_percent_ratio])),
]  # fmt: skip


class Creep(StrictSection):
    """What the candidate may have lost since the release so many promotions ago, this one counted.

    Looked at of every required check that compares the arms and whose harm adds up: latencies, rates and perplexity in
    percent, shares of requests and of eval items in points. Advisory, unless it is `required`.
    """

    releases: Whole = Field(default=10, ge=2, le=50)
    margin: Percent = Field(default=0.10, gt=0, lt=1)
    points: Points = Field(default=0.05, gt=0, lt=1)
    required: Flag = False


MOST_COUNTED = 10_000


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"is no command: {error}; quote it as for a shell") from None
    if not words or "\0" in text:
        raise ValueError("is no command; write a program and its arguments")
    return text


class Ready(StrictSection):
    """The number of replicas, counted by at most one of `metrics` and `command`; by neither, the server is asked."""

    replicas: Whole = Field(ge=1, le=MOST_COUNTED)
    metrics: tuple[
        Annotated[
            str,
            AfterValidator(check_page),
            Expected('the address of a replica\'s page like "http://host-1:8000/health"'),
        ],
        ...,
    ] = Field(default=(), min_length=1)  # one of each replica
    command: (
        Annotated[Text, AfterValidator(_command), Expected("a command that prints how many replicas are ready")] | None
    ) = None  # prints a whole number; run without a shell

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.metrics and self.command is not None:
            raise ValueError("`metrics` and `command` both count the replicas; keep one of them")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError("`metrics` names an address twice; each replica has an address of its own")
        if self.metrics and len(self.metrics) < self.replicas:
            what = f"`metrics` names {len(self.metrics)} addresses, and there are {self.replicas} replicas"
            raise ValueError(f"{what}; name the address of every replica, or correct `replicas`")
        return self

    @model_serializer(mode="wrap")
    def _what_is_said(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value}

    @property
    def command_words(self) -> tuple[str, ...]:
        """Return the command as a program and its arguments; empty without one."""
        return tuple(shlex.split(self.command)) if self.command is not None else ()


__all__ = [
    "ENGINES", "Bursts", "Check", "DeploymentSpec", "Duration", "Embedded", "Engine", "Expected", "Gate", "Limits",
    "Load", "Quality", "Rate", "Shadow", "SloSpec", "Stage", "Step", "Suite", "Workload",
]  # fmt: skip


def _workers(found: object) -> object:
    """So many load generator processes, or as many as the offered load needs."""
    if found == "auto" or (isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= MOST_WORKERS):
        return found
    raise ValueError(
        f'{units.show_found(found)} is not a number of processes; write "auto", or a whole number up to {MOST_WORKERS}'
    )


MOST_WORKERS = 64
Workers = Annotated[
    int | Literal["auto"], BeforeValidator(_workers), Expected('a number of processes like 2, or "auto"'),
    Written.of(word("auto"), {**WHOLE, "minimum": 1, "maximum": MOST_WORKERS}),
]  # fmt: skip
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
OptionalField = Literal["ignore_eos", "stream_options", "temperature", "seed"]
ENGINES = ("openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama")
Engine = Literal["openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama"]

NOISE_MAX_AGE_S = 30 * 86_400.0


class Embedded(StrictSection):
    """The embedded engine: llama.cpp on this machine, with the model that ships with benchgate."""

    weights: Literal["f16", "q8_0", "q6_k", "q5_0", "q4_0", "q3_k", "q2_k_mix", "q2_k"] = "f16"
    extra_layers: Whole = Field(default=0, ge=0, le=64)  # layers that change the cost of a token and not its value
    slots: Whole = Field(default=8, ge=1, le=64)
    context_tokens: Whole = Field(default=256, ge=64, le=512)  # per slot
    threads: Whole = Field(default=1, ge=1, le=64)


def _usual_engine(known: dict[str, Any]) -> Engine:
    """The dialect of what benchgate starts itself; of an address the plainest."""
    if known.get("embedded"):
        return "llamacpp"
    return "vllm" if known.get("sim") else "openai"


class DeploymentSpec(StrictSection):
    """Where an arm is served. Exactly one of `url`, `embedded` and `sim`."""

    url: Address | None = None  # without a trailing slash
    embedded: Embedded | None = None
    sim: Practice | None = None
    model: Text | None = None  # required with `url`
    answers_as: tuple[Text, ...] = ()  # other names of the model that its answers may give
    revision: Text | None = None  # of the model's weights; only a commit or a digest can be promoted
    engine: Engine = Field(default_factory=lambda known: _usual_engine(known))
    engine_version: Annotated[Text, Expected('a version in quotes, like "0.10.1"')] | None = None  # as the server says
    api_key: Reference | None = None
    headers: Headers = Field(default_factory=dict)  # of every request; a value may be a reference
    tls: Tls | None = None
    proxy: ProxyAddress | None = None  # none is ever taken from the environment
    price: Price | None = None  # of one accelerator
    price_terms: PriceTerms | None = None
    token_prices: TokenPrices | None = None  # of a hosted model, instead of `price`
    accelerator: Kind | None = None  # of which kind they are, as a file of prices calls it
    accelerators: Whole = Field(default=1, ge=1)
    extra: BodyFields = Field(default_factory=dict)  # fields of every request's body, as the server knows them
    leave_out: tuple[OptionalField, ...] = ()  # fields that this server refuses
    max_tokens_field: MaxTokensField = "max_tokens"
    context_tokens: Count | None = Field(default=None, alias="context")  # that one request may hold
    metrics: Metrics = AUTO  # the page of the server's own metrics; "auto": where its engine has one
    gpu: Gpu | None = None  # who reads its accelerators
    gpu_devices: tuple[Annotated[Whole, Field(ge=0)], ...] = ()  # which of them serve it; all unless said
    ready: Ready | None = None  # how many replicas it has, counted throughout a run

    @model_serializer(mode="wrap")
    def _as_before_telemetry(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is not said about telemetry is not written: suites without it keep their bytes."""
        written: dict[str, Any] = handler(self)
        usual = {"sim": None, "context_tokens": None, "metrics": AUTO, "gpu": None, "gpu_devices": ()}
        usual |= {"answers_as": (), "revision": None, "price_terms": None, "token_prices": None, "accelerator": None}
        usual |= {"engine_version": None, "ready": None}
        return {key: value for key, value in written.items() if key not in usual or getattr(self, key) != usual[key]}

    _price_entry: dict[str, object] = PrivateAttr(default_factory=dict)  # beside the suite: no part of what it says

    def priced(self, said: Mapping[str, object], entry: dict[str, object]) -> Self:
        """With the price that an entry of a file says, as the keys of a deployment, and what that entry is."""
        filled = self.model_copy(update=dict(said))
        filled._price_entry = entry
        return filled

    @property
    def price_entry(self) -> dict[str, object]:
        """What of which file its price was taken from; empty where it says its price itself."""
        return self._price_entry

    @property
    def is_priced(self) -> bool:
        """Whether it has a price of either kind."""
        return self.price is not None or self.token_prices is not None

    @property
    def usd_per_hour(self) -> float | None:
        """What an hour of one accelerator costs by its terms; None without a price."""
        if self.price is None or self.price_terms is None:
            return self.price
        return self.price_terms.usd_per_hour(self.price)

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if sum(way is not None for way in (self.url, self.embedded, self.sim)) != 1:
            raise ValueError("a deployment needs exactly one of `url`, `embedded` and `sim`")
        if self.url is not None and not self.model:
            raise ValueError("a deployment with a `url` needs the `model` name it serves")
        return self

    @model_validator(mode="after")
    def _devices_are_read(self) -> Self:
        if self.gpu_devices and self.gpu is None:
            raise ValueError("`gpu_devices` belongs to `gpu`, which is missing")
        return self

    @model_validator(mode="after")
    def _fits_the_address(self) -> Self:
        refuse_two_authorizations(self.api_key, self.headers)
        literal = self.url is not None and reference_name(self.url) is None
        if literal and self.tls is not None and not str(self.url).startswith("https:"):
            raise ValueError("`tls` is for https; write the `url` with https:// or remove `tls`")
        if literal and self.proxy is not None and str(self.url).startswith("unix:"):
            raise ValueError("`proxy` means nothing for a socket of this machine; remove it")
        return self


class Limits(StrictSection):
    """Time limits of every request, measured or not."""

    connect_s: Duration = Field(default=5.0, alias="connect")
    first_token_s: Duration = Field(default=60.0, alias="first_token")
    stall_s: Duration = Field(default=30.0, alias="stall")  # the longest gap inside a stream
    total_s: Duration = Field(default=300.0, alias="total")
    ready_s: Duration = Field(default=120.0, alias="ready")  # waiting for a first real completion


class Load(StrictSection):
    """The sweep: ordered stages, run in every block on both arms with the same prompts and schedule."""

    workload: Workload  # of every stage and class that names no other
    workloads: dict[Name, Workload] = Field(default_factory=dict)  # others, by name
    sweep: Annotated[tuple[Stage, ...], AfterValidator(expanded)] = ()  # at least one stage, unless it has a capacity
    blocks: Blocks = USUAL_LOOKS[-1]  # paired, at most; the order inside alternates A B B A
    looks: tuple[Blocks, ...] = ()  # after how many the load may end; none: it has them all
    limit: LoadLimit | None = None  # what all of it may take
    warmup: Warmup = "auto"  # before the first block, per stage and arm, discarded
    workers: Workers = "auto"  # load generator processes that share the schedule; what is asked stays the same
    audit: Flag = False  # let the kernel stamp what arrives, and report how late the client read it
    salt: Flag = True  # every run sends other words, so that none is answered from what an earlier one left in a cache
    capacity: Capacity | None = None  # a search after the sweep

    @model_serializer(mode="wrap")
    def _as_before(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What came after 0.1.0 is written only where it is used: suites without it keep their bytes."""
        written: dict[str, Any] = serialise(self)
        usual: dict[str, object] = {"workloads": {}, "capacity": None, "looks": (), "limit": None, "salt": True}
        written = {key: value for key, value in written.items() if key not in usual or getattr(self, key) != usual[key]}
        if self.warmup != "auto":
            written["warmup_requests"] = written.pop("warmup")  # as stored runs have it
        return written

    @model_validator(mode="before")
    @classmethod
    def _most_blocks(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        return with_blocks(with_renamed_warmup(data) if is_stored(info) else data)

    @field_validator("looks")
    @classmethod
    def _rise(cls, looks: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        return checked_looks(looks, info.data.get("blocks"))

    @field_validator("limit")
    @classmethod
    def _ends_at_a_look(cls, limit: LoadLimit | None, info: ValidationInfo) -> LoadLimit | None:
        if limit is not None and info.data.get("looks") == ():
            raise ValueError("a limit ends the load at a look, and a fixed number of blocks has none; write `looks`")
        return limit

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not self.sweep and self.capacity is None:
            raise ValueError("a load without a `sweep` sends nothing; add stages to it, or a `capacity` to search for")
        return self

    def levels(self) -> tuple[Level, ...]:
        """What is observed apart, in order: every stage, or every class of a stage that has several."""
        return tuple(
            level_of(stage, name, self.workload, self.workloads) for stage in self.sweep for name in stage.parts
        )


class Start(StrictSection):
    """Starting each deployment's server over and over, before anything else is measured."""

    times: Whole = Field(default=5, ge=2, le=100)


class Gate(StrictSection):
    """How evidence becomes a verdict."""

    alpha: Annotated[float, Strict()] = Field(default=0.05, gt=0, lt=0.5)  # one-sided
    warn_fraction: PositivePercent = 0.8  # past this share of an SLO the check is WARN
    allow_different: tuple[SharedField, ...] = ()  # what of the arms is part of the change that is judged
    client: ClientBounds = ClientBounds()
    allow_underpowered: Flag = False  # measure although a required check cannot carry its margin
    creep: Creep | None = None  # what may add up over promotions; nothing is added up unless said
    noise_max_age_s: Duration = Field(default=NOISE_MAX_AGE_S, alias="noise_max_age")  # an older noise profile is stale
    operating: PlaceName | None = None  # the stage at which the usual checks are required; every one unless said
    checks: tuple[Check, ...] = Field(default=(), min_length=1)  # the usual ones unless said

    @model_serializer(mode="wrap")
    def _as_before(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What came after 0.1.0 is written only where it is used: a policy keeps its identity."""
        written: dict[str, Any] = serialise(self)
        usual = {"operating": None, "allow_underpowered": False, "noise_max_age_s": NOISE_MAX_AGE_S, "creep": None}
        return {key: value for key, value in written.items() if key not in usual or getattr(self, key) != usual[key]}

    @model_validator(mode="after")
    def _of_the_usual_checks(self, info: ValidationInfo) -> Self:
        if self.operating is not None and self.checks and not is_stored(info):
            raise ValueError("`operating` is for the usual checks; a check that is written names its own `stage`")
        return self


def _first_candidate(known: dict[str, Any]) -> str:
    """The candidate of a suite that does not name one: the first of several, or the deployment called so."""
    several: tuple[str, ...] = known.get("candidates", ())
    return several[0] if several else "candidate"


class Suite(StrictSection):
    """One declaration of what to measure and what is allowed."""

    suite: Name
    seed: Whole = Field(default=0, ge=0, lt=2**63)
    deployments: dict[Name, DeploymentSpec] = Field(min_length=1)
    prices: Text | None = None  # a file beside the suite: of deployments that say no price, filled in before a run
    baseline: Name = "baseline"
    candidates: tuple[Name, ...] = Field(default=(), min_length=1)  # several, each judged in a run of its own
    candidate: Name = Field(default_factory=lambda known: _first_candidate(known))
    change: Text | None = None  # in words: what the candidate is, for whoever reads the report
    limits: Limits = Limits()
    start: Start | None = None
    slo: SloSpec | None = None
    error_budget: ErrorBudget | None = None
    load: Load | None = None
    quality: Quality | None = None
    divergence: Divergence | None = None
    shadow: Shadow | None = None
    gate: Gate = Gate()

    @model_validator(mode="before")
    @classmethod
    def _classes_inherit_the_slo(cls, data: Any, info: ValidationInfo) -> Any:
        return data if is_stored(info) or not isinstance(data, dict) else with_inherited_slos(data)

    @model_serializer(mode="wrap")
    def _as_before(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What came after 0.1.0 is written only where it is used: suites without it keep their bytes."""
        written: dict[str, Any] = serialise(self)
        later = ("prices", "change", "start", "candidates", "divergence", "error_budget")
        return {key: value for key, value in written.items() if value or key not in later}

    @field_validator("candidates")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f'"{twice}" stands here twice; each candidate is judged once')
        return names

    @field_validator("candidate")
    @classmethod
    def _one_way(cls, name: str, info: ValidationInfo) -> str:
        if info.data.get("candidates"):
            raise ValueError("`candidates` names them all already; keep one of the two")
        return name

    def to_stored(self) -> dict[str, Any]:
        """Plain JSON with every default filled in and all quantities in base units. Holds no resolved secret."""
        return self.model_dump(mode="json", by_alias=False)

    @classmethod
    def from_stored(cls, data: object) -> Suite:
        """The inverse of `to_stored`, also of what a calibration keeps, which says of itself that it is one.

        Raises EvidenceError for what a newer benchgate stored, or none.
        """
        if isinstance(data, Mapping):
            data = {key: value for key, value in data.items() if key != "calibration"}
        try:
            return cls.model_validate(data, by_name=True, by_alias=False, context={"stored": True})
        except ValidationError as error:
            raise EvidenceError(f"{_UNREADABLE} ({_first_of(error)}); read the run by that which made it") from None


_UNREADABLE = "the suite that the run keeps is none that this benchgate knows"


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


_COMPARING = ("quality", "divergence", "shadow")  # sections that are about both arms


def measured_arms(suite: Suite) -> tuple[Arm, ...]:
    """Both; the candidate alone where one deployment is both of them and every check bounds its own values.

    To measure it twice would cost twice as much and show nothing that any check looks at.
    """
    return arms_of_stored(suite.to_stored())


def arms_of_stored(stored: Mapping[str, Any]) -> tuple[Arm, ...]:
    """The same of a suite as a run keeps it."""
    checks = (stored.get("gate") or {}).get("checks") or ()
    compares = any(check.get("margin") is not None for check in checks)
    compares = compares or not checks or any(stored.get(name) is not None for name in _COMPARING)
    same = stored.get("baseline") is not None and stored.get("baseline") == stored.get("candidate")
    return (Arm.CANDIDATE,) if same and not compares else (Arm.BASELINE, Arm.CANDIDATE)


def context_tokens_of(spec: DeploymentSpec) -> int | None:
    """What one request may hold at a deployment; None where only the server knows."""
    ours = spec.embedded or spec.sim
    return ours.context_tokens if ours is not None else spec.context_tokens


def declared_context_tokens(suite: Suite) -> int | None:
    """What both arms can hold; None where the suite says it of neither."""
    said = [context_tokens_of(suite.deployments[name]) for name in (suite.baseline, suite.candidate)]
    return min((tokens for tokens in said if tokens is not None), default=None)
