"""The whole language of suites, as types. Text becomes these in `loader`; everything downstream reads only these.

Fields hold base units (`_s`, `_rps`, `_ratio`, `_usd`); in the YAML the same keys carry human units without the suffix,
like `ttft: 500ms`. Every default is written here and nowhere else, so the stored suite shows them. What one field or
one section must be is said here; what sections must be to each other is said in `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from benchgate import units
from benchgate.errors import EvidenceError
from benchgate.suite.capacity import Capacity
from benchgate.suite.check import Check
from benchgate.suite.check_values import PlaceName
from benchgate.suite.client_bounds import ClientBounds
from benchgate.suite.creep import Creep
from benchgate.suite.divergence import Divergence
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.fields import (
    Duration,
    Expected,
    Flag,
    Kind,
    Name,
    PositivePercent,
    Price,
    Rate,
    SharedField,
    StrictSection,
    Text,
    Whole,
    is_stored,
)
from benchgate.suite.lengths import Count
from benchgate.suite.levels import Level, level_of
from benchgate.suite.looks import USUAL_LOOKS, Blocks, LoadLimit, checked_looks, with_blocks
from benchgate.suite.metric_kinds import (
    FAILURE_METRICS,
    LATENCY_METRICS,
    LOAD_METRICS,
    METRICS,
    RATIO_METRICS,
    SHARE_METRICS,
    STATISTICS,
    THROUGHPUT_METRICS,
    Metric,
    Statistic,
)
from benchgate.suite.practice import Practice
from benchgate.suite.price_terms import PriceTerms, TokenPrices
from benchgate.suite.quality import Quality
from benchgate.suite.reach import Address, Headers, ProxyAddress, Reference, Tls, refuse_two_authorizations
from benchgate.suite.ready import Ready
from benchgate.suite.references import reference_name
from benchgate.suite.shadow import Shadow
from benchgate.suite.slo import SloSpec, with_inherited_slos
from benchgate.suite.stage import Bursts, Stage, Step
from benchgate.suite.stage_forms import expanded
from benchgate.suite.warmup import Warmup, with_renamed_warmup
from benchgate.suite.watching import AUTO, Gpu, Metrics
from benchgate.suite.workload import BodyFields, Workload
from benchgate.suite.written import WHOLE, Written, word

__all__ = [
    "ENGINES", "FAILURE_METRICS", "LATENCY_METRICS", "LOAD_METRICS", "METRICS", "RATIO_METRICS", "SHARE_METRICS",
    "STATISTICS", "THROUGHPUT_METRICS", "Bursts", "Check", "DeploymentSpec", "Duration", "Embedded", "Engine",
    "Expected", "Gate", "Limits", "Load", "Metric", "Quality", "Rate", "Shadow", "SloSpec", "Stage", "Statistic",
    "Step", "Suite", "Workload",
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
