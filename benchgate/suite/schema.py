"""The whole language of suites, as types. Text becomes these in `loader`; everything downstream reads only these.

Fields hold base units (`_s`, `_rps`, `_ratio`, `_usd`); in the YAML the same keys carry human units without the suffix,
like `ttft: 500ms`. Every default is written here and nowhere else, so the stored suite shows them. What one field or
one section must be is said here; what sections must be to each other is said in `rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationInfo, field_validator, model_validator

from benchgate import units
from benchgate.model.metrics import Slo
from benchgate.suite.body_fields import check_body_fields
from benchgate.suite.client_bounds import ClientBounds
from benchgate.suite.fields import (
    Duration,
    Expected,
    Flag,
    Name,
    Percent,
    PositivePercent,
    Price,
    Rate,
    StrictSection,
    Text,
    Tokens,
    Whole,
    is_stored,
    positive_share,
    share,
)
from benchgate.suite.reach import Headers, ProxyAddress, Tls
from benchgate.suite.references import check_address, check_reference, reference_name
from benchgate.suite.stage import Bursts, Stage, Step

__all__ = [
    "ENGINES", "FAILURE_METRICS", "LATENCY_METRICS", "LOAD_METRICS", "METRICS", "RATIO_METRICS", "SHARE_METRICS",
    "STATISTICS", "THROUGHPUT_METRICS", "Bursts", "Check", "DeploymentSpec", "Duration", "Embedded", "Engine",
    "Expected", "Gate", "Limits", "Load", "Metric", "Quality", "Rate", "Shadow", "SloSpec", "Stage", "Statistic",
    "Step", "Suite", "Workload",
]  # fmt: skip


def _margin(text: object, info: ValidationInfo) -> object:
    """`5%` of a latency or throughput, `2 points` of a share: each metric has one meaning of harm, so one unit."""
    if is_stored(info):
        return text
    metric = info.data.get("metric")
    if metric is None:  # it is wrong itself, and so is the check, whatever its margin
        return 0.5
    in_percent = metric in RATIO_METRICS
    try:
        margin = units.parse_percent_ratio(text) if in_percent else units.parse_points_ratio(text)
    except ValueError as error:
        meaning = "a part of the baseline's value" if in_percent else "a difference between two shares"
        raise ValueError(f"{error}: the margin of {metric} is {meaning}") from None
    if not 0 < margin < 1:
        raise ValueError(f"{units.show_found(text)} is not a usable margin; it must be above 0 and below 100")
    return margin


def _workers(found: object) -> object:
    """So many load generator processes, or as many as the offered load needs."""
    if found == "auto" or (isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= MOST_WORKERS):
        return found
    raise ValueError(
        f'{units.show_found(found)} is not a number of processes; write "auto", or a whole number up to {MOST_WORKERS}'
    )


Margin = Annotated[float, BeforeValidator(_margin), Expected('a margin like "5%" or "2 points"'), Field(gt=0, lt=1)]
Address = Annotated[
    str, AfterValidator(check_address), Expected('an address like "http://host:8000" or a reference like "${env:NAME}"')
]
Workers = Annotated[
    int | Literal["auto"], BeforeValidator(_workers), Expected('a number of processes like 2, or "auto"')
]
BodyFields = Annotated[
    dict[str, Any], AfterValidator(check_body_fields), Expected("a mapping of fields for the body of every request")
]
Reference = Annotated[str, AfterValidator(check_reference), Expected('a reference like "${env:NAME}"')]
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
OptionalField = Literal["ignore_eos", "stream_options", "temperature", "seed"]
ENGINES = ("openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama")
Engine = Literal["openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama"]

SharedField = Literal[
    "engine", "engine_version", "context", "slots", "threads", "vocabulary", "accelerators", "request_fields", "proxy"
]

LATENCY_METRICS = ("ttft", "tpot", "itl", "e2e")
THROUGHPUT_METRICS = ("output_throughput", "request_throughput")
METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS, "goodput", "error_rate", "accuracy", "shadow_excess")
FAILURE_METRICS = ("goodput", "error_rate")
LOAD_METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS, *FAILURE_METRICS)
Metric = Literal[
    "ttft", "tpot", "itl", "e2e", "output_throughput", "request_throughput",
    "goodput", "error_rate", "accuracy", "shadow_excess",
]  # fmt: skip
RATIO_METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS)
SHARE_METRICS = ("goodput", "error_rate", "accuracy", "shadow_excess")
MOST_WORKERS = 64
STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
Statistic = Literal["p50", "p90", "p95", "p99"]


class Embedded(StrictSection):
    """The embedded engine: llama.cpp on this machine, with the model that ships with benchgate."""

    weights: Literal["f16", "q8_0", "q6_k", "q5_0", "q4_0", "q3_k", "q2_k"] = "f16"
    extra_layers: Whole = Field(default=0, ge=0, le=64)  # layers that change the cost of a token and not its value
    slots: Whole = Field(default=8, ge=1, le=64)
    context_tokens: Whole = Field(default=256, ge=64, le=512)  # per slot
    threads: Whole = Field(default=1, ge=1, le=64)


class DeploymentSpec(StrictSection):
    """Where an arm is served. Exactly one of `url` and `embedded`."""

    url: Address | None = None  # without a trailing slash
    embedded: Embedded | None = None
    model: Text | None = None  # required with `url`
    engine: Engine = Field(default_factory=lambda known: "llamacpp" if known.get("embedded") else "openai")
    api_key: Reference | None = None
    headers: Headers = Field(default_factory=dict)  # of every request; a value may be a reference
    tls: Tls | None = None
    proxy: ProxyAddress | None = None  # none is ever taken from the environment
    price: Price | None = None  # of one accelerator
    accelerators: Whole = Field(default=1, ge=1)
    extra: BodyFields = Field(default_factory=dict)  # fields of every request's body, as the server knows them
    leave_out: tuple[OptionalField, ...] = ()  # fields that this server refuses
    max_tokens_field: MaxTokensField = "max_tokens"

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.embedded is None):
            raise ValueError("a deployment needs exactly one of `url` and `embedded`")
        if self.url is not None and not self.model:
            raise ValueError("a deployment with a `url` needs the `model` name it serves")
        return self

    @model_validator(mode="after")
    def _fits_the_address(self) -> Self:
        if self.api_key is not None and "authorization" in self.headers:
            raise ValueError(
                "`api_key` is sent as the header authorization, which `headers` sets too; keep one of them"
            )
        literal = self.url is not None and reference_name(self.url) is None
        if literal and self.tls is not None and not str(self.url).startswith("https:"):
            raise ValueError("`tls` is for https; write the `url` with https:// or remove `tls`")
        if literal and self.proxy is not None and str(self.url).startswith("unix:"):
            raise ValueError("`proxy` means nothing for a socket of this machine; remove it")
        return self


class Workload(StrictSection):
    """What every load request asks for: synthetic prompts of a fixed length, answers of a fixed length."""

    endpoint: Literal["chat", "completions"] = "chat"
    input_tokens: Tokens = Field(alias="input", ge=1, le=1_000_000)
    text: Literal["words", "letters"] = "words"  # one short common word a token; letters for byte-level models
    output_tokens: Tokens = Field(alias="output", ge=1, le=1_000_000)
    ignore_eos: Flag = True  # where the engine knows it; answers of equal length make tokens/s comparable


class Limits(StrictSection):
    """Time limits of every request, measured or not."""

    connect_s: Duration = Field(default=5.0, alias="connect")
    first_token_s: Duration = Field(default=60.0, alias="first_token")
    stall_s: Duration = Field(default=30.0, alias="stall")  # the longest gap inside a stream
    total_s: Duration = Field(default=300.0, alias="total")
    ready_s: Duration = Field(default=120.0, alias="ready")  # waiting for a first real completion


class SloSpec(StrictSection):
    """What one request must meet to be good, and the share of scheduled requests that must be."""

    ttft_s: Duration | None = Field(default=None, alias="ttft")
    tpot_s: Duration | None = Field(default=None, alias="tpot")
    e2e_s: Duration | None = Field(default=None, alias="e2e")
    target_ratio: PositivePercent = Field(default=0.95, alias="target")

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an slo needs at least one of `ttft`, `tpot` and `e2e`")
        return self

    @property
    def per_request(self) -> Slo:
        """The bounds one request must meet."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


class Load(StrictSection):
    """The sweep: ordered stages, run in every block on both arms with the same prompts and schedule."""

    workload: Workload
    sweep: tuple[Stage, ...] = Field(min_length=1)
    blocks: Whole = Field(default=10, ge=2, le=200)  # paired blocks; the order inside alternates A B B A
    warmup_requests: Whole = Field(default=8, ge=0, le=10_000)  # before the first block, per stage and arm, discarded
    workers: Workers = "auto"  # load generator processes that share the schedule; what is asked stays the same
    audit: Flag = False  # let the kernel stamp what arrives, and report how late the client read it


class Quality(StrictSection):
    """Evals by lm-eval on task files; paths are relative to the suite."""

    tasks: tuple[Text, ...] = Field(min_length=1)
    endpoint: Literal["chat", "completions"] = "chat"
    limit: Whole | None = Field(default=None, ge=1)  # items per task, the first ones by file order
    concurrency: Whole = Field(default=8, ge=2, le=1024)  # never 1: lm-eval then takes another code path
    max_tokens: Tokens = Field(default=256, ge=1)
    max_empty_ratio: Percent = 0.01  # empty answers above this make the evidence INVALID
    timeout_s: Duration = Field(default=900.0, alias="timeout")


class Shadow(StrictSection):
    """Recorded prompts (JSONL: `id`, `prompt`) sent to the baseline twice and to the candidate once."""

    prompts: Text
    limit: Whole | None = Field(default=None, ge=1)
    concurrency: Whole = Field(default=8, ge=1, le=1024)
    max_tokens: Tokens = Field(default=128, ge=1)
    store_text: Flag = False  # keep the answers themselves, not only their digests


class Check(StrictSection):
    """One policy line: a `margin` against the baseline, or `max` / `min`, an SLO of the candidate itself.

    `goodput` with none of them is held to the target of the suite's `slo`.
    """

    metric: Metric
    statistic: Statistic | None = None  # latency metrics only; p50 unless said
    stage: str | None = None  # load metrics only; every stage, each judged apart, unless said
    task: str | None = None  # accuracy only; all tasks pooled unless said, "each" for one check per task
    margin: Margin | None = None
    max: str | None = None  # "500ms" for latencies, "1%" for error_rate
    min: str | None = None  # "95%" for goodput and accuracy, "100/s" for throughputs
    required: Flag = True
    block_when: Literal["harm", "breach"] = "harm"

    @field_validator("statistic", "stage", "task")
    @classmethod
    def _belongs_to_its_metric(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric, owners = info.data.get("metric"), _OWNERS[str(info.field_name)]
        if value is not None and metric is not None and metric not in owners:
            raise ValueError(f"means nothing for {metric}; it belongs to {', '.join(owners)}; remove it")
        return value

    @field_validator("max", "min", mode="before")
    @classmethod
    def _bounds_its_metric(cls, value: object, info: ValidationInfo) -> object:
        metric = info.data.get("metric")
        if value is not None and metric is not None:
            _ = _slo_bound(metric, str(info.field_name), value)
        return value

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        bounds = [name for name in ("margin", "max", "min") if getattr(self, name) is not None]
        if len(bounds) > 1 or (not bounds and self.metric != "goodput"):
            found = " and ".join(f"`{name}`" for name in bounds) or "none of them"
            raise ValueError(
                f"a check needs exactly one of `margin` (against the baseline), `max` and `min` (an SLO); found {found}"
            )
        return self

    @property
    def slo_value(self) -> float | None:
        """The bound of an absolute check in base units, None for a relative one."""
        if self.max is not None:
            return _slo_bound(self.metric, "max", self.max)
        if self.min is not None:
            return _slo_bound(self.metric, "min", self.min)
        return None


_OWNERS = {"statistic": LATENCY_METRICS, "stage": LOAD_METRICS, "task": ("accuracy",)}


def _slo_bound(metric: str, side: str, text: object) -> float:
    """A `max` or `min` in the metric's own unit, as a base unit; ValueError when it bounds nothing or does not fit."""
    if side == "max" and metric in LATENCY_METRICS:
        return units.parse_duration_s(text)
    if side == "min" and metric in THROUGHPUT_METRICS:
        return units.parse_rate_rps(text)
    if side == "max" and metric == "error_rate":
        bound = share(text)
        if bound == 1:
            raise ValueError(f"{units.show_found(text)} is met by every deployment; write less than 100%")
        return bound
    if side == "min" and metric in ("goodput", "accuracy"):
        return positive_share(text)
    lower, remedy = ("upper", "`min` or `margin`") if side == "max" else ("lower", "`max` or `margin`")
    raise ValueError(f"{metric} has no {lower} bound; use {'`margin`' if metric == 'shadow_excess' else remedy}")


class Gate(StrictSection):
    """How evidence becomes a verdict."""

    alpha: Annotated[float, Strict()] = Field(default=0.05, gt=0, lt=0.5)  # one-sided
    warn_fraction: PositivePercent = 0.8  # past this share of an SLO the check is WARN
    allow_different: tuple[SharedField, ...] = ()  # what of the arms is part of the change that is judged
    client: ClientBounds = ClientBounds()
    checks: tuple[Check, ...] = Field(min_length=1)


class Suite(StrictSection):
    """One declaration of what to measure and what is allowed."""

    suite: Name
    seed: Whole = Field(default=0, ge=0, lt=2**63)
    deployments: dict[Name, DeploymentSpec] = Field(min_length=1)
    baseline: Name = "baseline"
    candidate: Name = "candidate"
    limits: Limits = Limits()
    slo: SloSpec | None = None
    load: Load | None = None
    quality: Quality | None = None
    shadow: Shadow | None = None
    gate: Gate

    def to_stored(self) -> dict[str, Any]:
        """Plain JSON with every default filled in and all quantities in base units. Holds no resolved secret."""
        return self.model_dump(mode="json", by_alias=False)

    @classmethod
    def from_stored(cls, data: object) -> Suite:
        """The inverse of `to_stored`."""
        return cls.model_validate(data, by_name=True, by_alias=False, context={"stored": True})
