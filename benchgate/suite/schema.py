"""The whole language of suites, as types. Text becomes these in `loader`; everything downstream reads only these.

Fields hold base units (`_s`, `_rps`, `_ratio`, `_usd`); in the YAML the same keys carry human units without the suffix,
like `ttft: 500ms`. Every default is written here and nowhere else, so the stored suite shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from benchgate import units
from benchgate.model.metrics import Slo


def _margin(text: object) -> float:
    """`5%` (a ratio) or `2 points` (a difference of shares): both become a number, 0.05 and 0.02."""
    if isinstance(text, str) and text.strip().endswith("%"):
        return units.parse_percent_ratio(text)
    try:
        return units.parse_points_ratio(text)
    except ValueError:
        raise ValueError(f'{text!r} is not a margin; write a ratio like "5%" or a difference like "2 points"') from None


def _unit(parse: Callable[[object], float]) -> BeforeValidator:
    """Parse human units from a suite; a suite read back from the store already has base units."""

    def read(value: object, info: ValidationInfo) -> object:
        return value if (info.context or {}).get("stored") else parse(value)

    return BeforeValidator(read)


Duration = Annotated[float, _unit(units.parse_duration_s)]
Rate = Annotated[float, _unit(units.parse_rate_rps)]
Percent = Annotated[float, _unit(units.parse_percent_ratio), Field(le=1)]
Tokens = Annotated[int, _unit(units.parse_tokens)]
Price = Annotated[float, _unit(units.parse_price_usd_per_hour)]
Margin = Annotated[float, _unit(_margin), Field(gt=0, lt=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

ENGINES = ("openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama")
Engine = Literal["openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama"]

LATENCY_METRICS = ("ttft", "tpot", "itl", "e2e")
THROUGHPUT_METRICS = ("output_throughput", "request_throughput")
METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS, "goodput", "error_rate", "accuracy", "shadow_excess")
LOAD_METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS, "goodput", "error_rate")
Metric = Literal[
    "ttft", "tpot", "itl", "e2e", "output_throughput", "request_throughput",
    "goodput", "error_rate", "accuracy", "shadow_excess",
]  # fmt: skip
STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
Statistic = Literal["p50", "p90", "p95", "p99"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Embedded(_Strict):
    """The embedded engine: llama.cpp on this machine, with the model that ships with benchgate."""

    weights: Literal["f16", "q8_0", "q6_k", "q5_0", "q4_0", "q3_k", "q2_k"] = "f16"
    extra_layers: int = Field(default=0, ge=0, le=64)  # layers that change the cost of a token and not its value
    slots: int = Field(default=8, ge=1, le=64)
    context_tokens: int = Field(default=256, ge=64, le=512)  # per slot
    threads: int = Field(default=1, ge=1, le=64)


class DeploymentSpec(_Strict):
    """Where an arm is served. Exactly one of `url` and `embedded`."""

    url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    embedded: Embedded | None = None
    model: str | None = None  # required with `url`
    engine: Engine = "openai"
    api_key: str | None = None  # only as ${env:NAME}; the loader refuses a literal
    price: Price | None = None  # of one accelerator
    accelerators: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.embedded is None):
            raise ValueError("a deployment needs exactly one of `url` and `embedded`")
        if self.url is not None and not self.model:
            raise ValueError("a deployment with a `url` needs the `model` name it serves")
        return self


class Workload(_Strict):
    """What every load request asks for: synthetic prompts of a fixed length, answers of a fixed length."""

    endpoint: Literal["chat", "completions"] = "chat"
    input_tokens: Tokens = Field(alias="input", ge=1, le=1_000_000)
    text: Literal["words", "letters"] = "words"  # one short common word a token; letters for byte-level models
    output_tokens: Tokens = Field(alias="output", ge=1, le=1_000_000)
    ignore_eos: bool = True  # where the engine knows it; answers of equal length make tokens/s comparable


class Stage(_Strict):
    """One load level held: a closed loop (`concurrency` in flight) or an open one (`rate`, Poisson by default)."""

    name: Name = Field(alias="stage")
    concurrency: int | None = Field(default=None, ge=1, le=10_000)
    rate_rps: Rate | None = Field(default=None, alias="rate")
    arrival: Literal["poisson", "constant"] = "poisson"
    requests: int = Field(ge=1, le=1_000_000)  # per block and arm

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        if (self.concurrency is None) == (self.rate_rps is None):
            raise ValueError("a stage needs exactly one of `concurrency` (closed loop) and `rate` (open loop)")
        if self.concurrency is not None and "arrival" in self.model_fields_set:
            raise ValueError("`arrival` means nothing in a closed loop; give `rate` or leave it out")
        return self


class Limits(_Strict):
    """Time limits of every request, measured or not."""

    connect_s: Duration = Field(default=5.0, alias="connect")
    first_token_s: Duration = Field(default=60.0, alias="first_token")
    stall_s: Duration = Field(default=30.0, alias="stall")  # the longest gap inside a stream
    total_s: Duration = Field(default=300.0, alias="total")
    ready_s: Duration = Field(default=120.0, alias="ready")  # waiting for a first real completion


class SloSpec(_Strict):
    """What one request must meet to be good, and the share of scheduled requests that must be."""

    ttft_s: Duration | None = Field(default=None, alias="ttft")
    tpot_s: Duration | None = Field(default=None, alias="tpot")
    e2e_s: Duration | None = Field(default=None, alias="e2e")
    target_ratio: Percent = Field(default=0.95, alias="target")

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an slo needs at least one of `ttft`, `tpot` and `e2e`")
        return self

    @property
    def per_request(self) -> Slo:
        """The bounds one request must meet."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


class Load(_Strict):
    """The sweep: ordered stages, run in every block on both arms with the same prompts and schedule."""

    workload: Workload
    sweep: tuple[Stage, ...] = Field(min_length=1)
    blocks: int = Field(default=10, ge=2, le=200)  # paired blocks; the order inside alternates A B B A
    warmup_requests: int = Field(default=8, ge=0, le=10_000)  # before the first block, per stage and arm, discarded

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [stage.name for stage in self.sweep]
        if len(set(names)) != len(names):
            raise ValueError("two stages of the sweep have the same name")
        return self


class Quality(_Strict):
    """Evals by lm-eval on task files; paths are relative to the suite."""

    tasks: tuple[str, ...] = Field(min_length=1)
    endpoint: Literal["chat", "completions"] = "chat"
    limit: int | None = Field(default=None, ge=1)  # items per task, the first ones by file order
    concurrency: int = Field(default=8, ge=2, le=1024)  # never 1: lm-eval then takes another code path
    max_tokens: Tokens = Field(default=256, ge=1)
    max_empty_ratio: Percent = 0.01  # empty answers above this make the evidence INVALID
    timeout_s: Duration = Field(default=900.0, alias="timeout")


class Shadow(_Strict):
    """Recorded prompts (JSONL: `id`, `prompt`) sent to the baseline twice and to the candidate once."""

    prompts: str
    limit: int | None = Field(default=None, ge=1)
    concurrency: int = Field(default=8, ge=1, le=1024)
    max_tokens: Tokens = Field(default=128, ge=1)
    store_text: bool = False  # keep the answers themselves, not only their digests


class Check(_Strict):
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
    required: bool = True
    block_when: Literal["harm", "breach"] = "harm"

    @model_validator(mode="after")
    def _fits_its_metric(self) -> Self:
        if self.statistic is not None and self.metric not in LATENCY_METRICS:
            raise ValueError(f"`statistic` means nothing for {self.metric}; it belongs to {', '.join(LATENCY_METRICS)}")
        if self.stage is not None and self.metric not in LOAD_METRICS:
            raise ValueError(f"`stage` means nothing for {self.metric}; it belongs to {', '.join(LOAD_METRICS)}")
        if self.task is not None and self.metric != "accuracy":
            raise ValueError(f"`task` means nothing for {self.metric}; it belongs to accuracy")
        bounds = [name for name in ("margin", "max", "min") if getattr(self, name) is not None]
        if len(bounds) > 1 or (not bounds and self.metric != "goodput"):
            raise ValueError("a check needs exactly one of `margin` (against the baseline), `max` and `min` (an SLO)")
        if self.max is not None or self.min is not None:
            _ = self.slo_value
        return self

    @property
    def slo_value(self) -> float | None:
        """The bound of an absolute check in base units, None for a relative one; ValueError when it does not fit."""
        if self.max is not None:
            if self.metric in LATENCY_METRICS:
                return units.parse_duration_s(self.max)
            if self.metric == "error_rate":
                return units.parse_percent_ratio(self.max)
            raise ValueError(f"{self.metric} has no upper bound; use `min` or `margin`")
        if self.min is not None:
            if self.metric in ("goodput", "accuracy"):
                return units.parse_percent_ratio(self.min)
            if self.metric in THROUGHPUT_METRICS:
                return units.parse_rate_rps(self.min)
            raise ValueError(f"{self.metric} has no lower bound; use `max` or `margin`")
        return None


class Gate(_Strict):
    """How evidence becomes a verdict."""

    alpha: float = Field(default=0.05, gt=0, lt=0.5)  # one-sided
    warn_fraction: Percent = 0.8  # past this share of an SLO the check is WARN
    checks: tuple[Check, ...] = Field(min_length=1)


class Suite(_Strict):
    """One declaration of what to measure and what is allowed."""

    suite: Name
    seed: int = Field(default=0, ge=0, lt=2**63)
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
