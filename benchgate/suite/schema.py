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
    Level,
    SloSpec,
    Stage,
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
    Section,
    SharedField,
    Text,
    Whole,
    Written,
    is_stored,
    key,
    optional,
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


class Divergence(Section):
    """Fixed texts (JSONL: `id`, `text`) that both arms read: given, not generated. Paths are relative to the suite."""

    texts: Text = key(
        "JSON Lines with a unique `id` and a `text` in each row. The plan and the store keep only their digests; an "
        "error message of a server may quote a few words",
    )
    positions: Whole = key(
        "Number of positions compared, spread evenly over the pieces of all texts and drawn by the seed; each needs "
        "16 characters of text",
        default=200,
        ge=10,
        le=100_000,
    )
    top: Whole = key(
        "Number of most probable tokens requested per position; servers have limits (vLLM 20 unless `--max-logprobs` "
        "is higher, OpenAI 5)",
        default=20,
        ge=2,
        le=10_000,
    )
    way: Literal["auto", "n_probs", "echo", "cut"] = key(
        "How servers are asked for log-probabilities; `auto` takes the first that a probe shows to work on both arms",
        default="auto",
    )
    window: Whole = key(
        "Characters per piece of text. Only its second half counts; a piece must fit the servers' context",
        default=2048,
        ge=32,
        le=1_000_000,
    )
    repeat_baseline: Flag = key(
        "Ask the baseline a second time, at the same time; its divergence from itself is subtracted", default=False
    )
    concurrency: Whole = key("Pieces read at once", default=8, ge=1, le=1024)


_Bound = Annotated[  # above a second hardly any latency would still be the server's
    Duration, Field(gt=0, le=1), Expected('a duration of at most 1s, like "50ms"')
]


class ClientBounds(Section):
    """Beyond one of these, a stage execution measured its client. Why they are where they are: docs/decisions.md."""

    send_lag_p99_s: _Bound = key(
        "99th percentile of the send lag, without the time to open a connection", default=0.005, alias="send_lag_p99"
    )
    send_lag_max_s: _Bound = key("Largest send lag of a request", default=0.050, alias="send_lag_max")
    read_delay_p99_s: _Bound = key(
        "99th percentile of the time that received data waited for the client; in a stage shorter than 2 s the median",
        default=0.005,
        alias="read_delay_p99",
    )
    read_delay_max_s: _Bound = key(
        "Longest time that received data waited for the client", default=0.050, alias="read_delay_max"
    )
    cpu_share: PositivePercent = key("Share of one core used by the busiest worker over 5 s", default=0.70, alias="cpu")
    achieved_ratio: PositivePercent = key("Achieved share of the offered rate", default=0.99, alias="achieved")

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


class LoadLimit(Section):
    """What the load may take: no next look is begun that would pass it. The first one is always taken."""

    time_s: Duration | None = key("Time from the beginning of the warm-up", default=None, alias="time")
    cost_usd: Money | None = key(
        "Cost by `price` and `accelerators` of all measured deployments for the duration of the load; each needs a "
        "`price`",
        default=None,
        alias="cost",
    )

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
    Written(text(units.PATTERNS[units.parse_points_ratio]), show=units.show_points),
]  # fmt: skip
Percent = Annotated[
    float, BeforeValidator(_percent), Expected('a percentage like "10%"', quantity=True),
    Written(text(units.PATTERNS[units.parse_percent_ratio]), show=units.show_percent),
]  # fmt: skip


class Creep(Section):
    """What the candidate may have lost since the release so many promotions ago, this one counted.

    Looked at of every required check that compares the arms and whose harm adds up: latencies, rates and perplexity in
    percent, shares of requests and of eval items in points. Advisory, unless it is `required`.
    """

    releases: Whole = key("Largest number of promotions added up, this one included", default=10, ge=2, le=50)
    margin: Percent = key("Largest total loss of latencies, rates, costs and perplexity", default=0.10, gt=0, lt=1)
    points: Points = key("Largest total loss of shares of requests and of eval items", default=0.05, gt=0, lt=1)
    required: Flag = key(
        "`true`: an accumulated loss can block, a missing link warns, and if nothing can be added up although the "
        "baseline changed the run is INCONCLUSIVE; `false`: it can only warn",
        default=False,
    )


MOST_COUNTED = 10_000


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"is no command: {error}; quote it as for a shell") from None
    if not words or "\0" in text:
        raise ValueError("is no command; write a program and its arguments")
    return text


class Ready(Section):
    """The number of replicas, counted by at most one of `metrics` and `command`; by neither, the server is asked."""

    replicas: Whole = key(
        "Number of replicas, no fewer and no more. For a `sim` it equals its own `replicas`", ge=1, le=MOST_COUNTED
    )
    metrics: tuple[
        Annotated[
            str,
            AfterValidator(check_page),
            Expected('the address of a replica\'s page like "http://host-1:8000/health"'),
        ],
        ...,
    ] = optional(
        "One page of each replica (metrics or health); a replica is ready if it answers with status 200 within 5 s. "
        "Not with `command` or `sim`",
        default=(),
        min_length=1,
    )
    command: (
        Annotated[Text, AfterValidator(_command), Expected("a command that prints how many replicas are ready")] | None
    ) = optional("A command that prints the number of ready replicas, a whole number. Not with `metrics`")

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

    @property
    def command_words(self) -> tuple[str, ...]:
        """Return the command as a program and its arguments; empty without one."""
        return tuple(shlex.split(self.command)) if self.command is not None else ()


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
    Written(word("auto"), {**WHOLE, "minimum": 1, "maximum": MOST_WORKERS}),
]  # fmt: skip
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
OptionalField = Literal["ignore_eos", "stream_options", "temperature", "seed"]
ENGINES = ("openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama")
Engine = Literal["openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama"]

NOISE_MAX_AGE_S = 30 * 86_400.0


class Embedded(Section):
    """The embedded engine: llama.cpp on this machine, with the model that ships with benchgate."""

    weights: Literal["f16", "q8_0", "q6_k", "q5_0", "q4_0", "q3_k", "q2_k_mix", "q2_k"] = key(
        "How the model that comes with benchgate is quantised", default="f16"
    )
    extra_layers: Whole = key(
        "Layers that change the cost of a token and not its value: the same answers, slower", default=0, ge=0, le=64
    )
    slots: Whole = key("Requests served at once", default=8, ge=1, le=64)
    context_tokens: Whole = key("Prompt and answer together, per slot", default=256, ge=64, le=512)
    threads: Whole = key("CPU threads of the engine", default=1, ge=1, le=64)


def _usual_engine(known: dict[str, Any]) -> Engine:
    """The dialect of what benchgate starts itself; of an address the plainest."""
    if known.get("embedded"):
        return "llamacpp"
    return "vllm" if known.get("sim") else "openai"


class DeploymentSpec(Section):
    """Where an arm is served. Exactly one of `url`, `embedded` and `sim`."""

    url: Address | None = key(
        "Base address of an OpenAI-compatible server, without `/v1`, credentials or query: `http://host:8000`, "
        "`https://host/base`, `unix:/run/server.sock`",
        default=None,
    )
    embedded: Embedded | None = key(
        "The embedded engine, which benchgate starts on this machine; `{}` for all defaults", default=None
    )
    sim: Practice | None = optional("A practice server, which benchgate starts on this machine; `{}` for all defaults")
    model: Text | None = key("The model name sent in every request. Not with `embedded` or `sim`", default=None)
    answers_as: tuple[Text, ...] = optional(
        "Other model names that answers may carry, exactly as the server writes them, where a gateway renames the "
        "model. An answer with a name that is neither here nor the one requested turns a PASS into a WARN "
        "(`model-names`)",
        default=(),
    )
    revision: Text | None = optional(
        "Revision of the weights: a commit of a model hub (40 hex digits), or the `sha256:…` of their file. A name "
        "that may move, like `main`, can be measured but not promoted. Not with `embedded` or `sim`",
    )
    engine: Engine = key(
        "Dialect of the server. If the arms use two engines, that is the declared change, with their versions and "
        "flags",
        default_factory=lambda known: _usual_engine(known),
    )
    engine_version: Annotated[Text, Expected('a version in quotes, like "0.10.1"')] | None = optional(
        "Version of the engine as the server reports it. Two declared versions are the declared change; a server that "
        "reports another one makes the run INVALID",
    )
    api_key: Reference | None = key("Sent as a bearer token; never stored. Not with `embedded` or `sim`", default=None)
    headers: Headers = key("Headers of every request. Not with `embedded` or `sim`", default_factory=dict)
    tls: Tls | None = key("Certificates, for `https` alone. Not with `embedded` or `sim`", default=None)
    proxy: ProxyAddress | None = key(
        "HTTP proxy to go through, like `http://proxy:3128`. Not with `embedded`, `sim` or a socket", default=None
    )
    price: Price | None = key("Price of one accelerator per hour. Without it there is no cost per token", default=None)
    price_terms: PriceTerms | None = optional("How the accelerators were bought, and what is paid beside the price")
    token_prices: TokenPrices | None = optional("Prices per token of a hosted model, instead of `price`")
    accelerator: Kind | None = optional(
        "Kind of accelerator, used to look up its price in a file of prices. Two kinds are the declared change if "
        "`gpu` reports the same",
    )
    accelerators: Whole = key(
        "Number of accelerators of the deployment. Two numbers are the declared change if the servers report the same",
        default=1,
        ge=1,
    )
    extra: BodyFields = key(
        "Fields added to the body of every request, such as `{min_tokens: 16}`. They are stored as they stand, so no "
        "secrets",
        default_factory=dict,
    )
    leave_out: tuple[OptionalField, ...] = key("Request fields that this server refuses; they are not sent", default=())
    max_tokens_field: MaxTokensField = key(
        "Name of the field that limits the length of an answer", default="max_tokens"
    )
    context_tokens: Count | None = optional(
        "Context length of the server: prompt and answer together. A longer request is an error before anything is "
        "sent. Not with `embedded` and `sim`, which have their own",
        alias="context",
    )
    metrics: Metrics = optional("Page of the server's own metrics, read around every stage: telemetry", default=AUTO)
    gpu: Gpu | None = optional("Source of accelerator metrics, like `http://host:9400/metrics`")
    gpu_devices: tuple[Annotated[Whole, Field(ge=0)], ...] = optional(
        "Accelerators that serve this deployment. Only with `gpu`", default=()
    )
    ready: Ready | None = optional("Number of replicas, counted throughout a run. Not with `embedded`")

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


class Limits(Section):
    """Time limits of every request, measured or not."""

    connect_s: Duration = key("Time to open the connection", default=5.0, alias="connect")
    first_token_s: Duration = key("Time from sending to the first output", default=60.0, alias="first_token")
    stall_s: Duration = key("Longest time without output after the first", default=30.0, alias="stall")
    total_s: Duration = key("Time of the whole request", default=300.0, alias="total")
    ready_s: Duration = key(
        "Wait for a deployment's first real completion, before anything is measured", default=120.0, alias="ready"
    )


class Load(Section):
    """The sweep: ordered stages, run in every block on both arms with the same prompts and schedule."""

    workload: Workload = key("Requests of every stage and class that names no other workload")
    workloads: dict[Name, Workload] = optional("Further workloads, by name, for stages and classes", default={})
    sweep: Annotated[tuple[Stage, ...], AfterValidator(expanded)] = key(
        "Stages, in order; at least one unless there is a `capacity`", default=()
    )
    blocks: Blocks = key(
        "Largest number of paired repetitions. Written without `looks` it is fixed, and the load is judged once, at "
        "its end",
        default=USUAL_LOOKS[-1],
    )
    looks: tuple[Blocks, ...] = optional(
        "Interim analyses: after these numbers of blocks the load ends if its checks are decided (below)", default=()
    )
    limit: LoadLimit | None = optional("Time and money that the load may take")
    warmup: Warmup = key(
        "Requests sent before the first block, per stage and arm, and discarded. `auto` fills the batch and continues "
        "until TTFT no longer falls (how); `0` sends none",
        default="auto",
    )
    workers: Workers = key(
        "Load generator processes that share one schedule; requests and send times do not depend on it. `auto` takes "
        "as many as the offered load needs, on at most half the cores",
        default="auto",
    )
    audit: Flag = key(
        "Let the Linux kernel timestamp incoming data and report how late the client read it; refused for `https` and "
        "Unix sockets",
        default=False,
    )
    salt: Flag = optional(
        "Send different words in every run (below); `false` sends the words that follow from the seed alone",
        default=True,
    )
    capacity: Capacity | None = optional("Search for the capacity of each arm, after the blocks")

    @model_serializer(mode="wrap")
    def _stored_warmup(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Store a number of warm-up requests under the key of the oldest stored runs."""
        written: dict[str, Any] = serialise(self)
        if self.warmup != "auto":
            written["warmup_requests"] = written.pop("warmup")
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


class Start(Section):
    """Starting each deployment's server over and over, before anything else is measured."""

    times: Whole = key("Number of starts of each deployment", default=5, ge=2, le=100)


class Gate(Section):
    """How evidence becomes a verdict."""

    alpha: Annotated[float, Strict()] = key("Error rate of each one-sided test", default=0.05, gt=0, lt=0.5)
    warn_fraction: PositivePercent = key("A value beyond this share of an SLO is WARN", default=0.8)
    allow_different: tuple[SharedField, ...] = key(
        "Differences between the arms that are part of the change; any other of these differences makes every "
        "comparison of speed INVALID (why). Differences that the deployments declare (`engine`, `engine_version`, "
        "`accelerator`, `accelerators`) need no entry",
        default=(),
    )
    client: ClientBounds = key("Bounds on the load generator's own delays", default=ClientBounds())
    allow_underpowered: Flag = optional(
        "`true`: measure even if required checks are known not to carry their margins, with a warning", default=False
    )
    creep: Creep | None = optional(
        "Largest loss over several promotions together; nothing is added up without this section"
    )
    noise_max_age_s: Duration = optional(
        "A noise profile older than this when a run ends is stale: it is mentioned beside a live baseline, and "
        "without one it cannot support a decision",
        default=NOISE_MAX_AGE_S,
        alias="noise_max_age",
    )
    operating: PlaceName | None = optional(
        "Stage at which the usual checks are required. Only if `checks` is not written"
    )
    checks: tuple[Check, ...] = key("The checks, at least one", default=(), min_length=1)

    @model_validator(mode="after")
    def _of_the_usual_checks(self, info: ValidationInfo) -> Self:
        if self.operating is not None and self.checks and not is_stored(info):
            raise ValueError("`operating` is for the usual checks; a check that is written names its own `stage`")
        return self


def _first_candidate(known: dict[str, Any]) -> str:
    """The candidate of a suite that does not name one: the first of several, or the deployment called so."""
    several: tuple[str, ...] = known.get("candidates", ())
    return several[0] if several else "candidate"


class Suite(Section):
    """One declaration of what to measure and what is allowed."""

    suite: Name = key("Name of the suite; runs of one name form a trend")
    seed: Whole = key(
        "Seed of all prompts (before salting), arrival times and request seeds", default=0, ge=0, lt=2**63
    )
    deployments: dict[Name, DeploymentSpec] = key("The deployments that can be compared, by name", min_length=1)
    prices: Text | None = optional(
        "A file of prices by deployment and day, for deployments that have neither `price` nor `token_prices`"
    )
    baseline: Name = key("Name of the accepted reference. `--baseline` chooses another", default="baseline")
    candidates: tuple[Name, ...] = optional(
        "Several candidates, instead of `candidate`: each is judged by itself", default=(), min_length=1
    )
    candidate: Name = key(
        "Name of the deployment to be judged. `--candidate` chooses another",
        default_factory=lambda known: _first_candidate(known),
    )
    change: Text | None = optional(
        "What the candidate changes, in words; the report shows it beside the differences it found"
    )
    limits: Limits = key("Time limits of every request", default=Limits())
    start: Start | None = optional("Start the deployments repeatedly to measure their cold start")
    slo: SloSpec | None = key("Latency bounds that a good request meets", default=None)
    error_budget: ErrorBudget | None = optional("Error budget of production, and how much of it is spent")
    load: Load | None = key("The load sweep", default=None)
    quality: Quality | None = key("The evals: tasks with known answers", default=None)
    divergence: Divergence | None = optional("Compare next-token probabilities on fixed texts")
    shadow: Shadow | None = key("Compare answers to recorded prompts", default=None)
    gate: Gate = key("The policy: which checks decide, and what they allow", default=Gate())

    @model_validator(mode="before")
    @classmethod
    def _classes_inherit_the_slo(cls, data: Any, info: ValidationInfo) -> Any:
        return data if is_stored(info) or not isinstance(data, dict) else with_inherited_slos(data)

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
