"""The `deployments` of a suite: prices, certificates, telemetry, how they are served, and where."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from benchgate.errors import UsageError
from benchgate.suite.address import (
    Address,
    GrpcAddress,
    Headers,
    ProxyAddress,
    Reference,
    check_address,
    is_http_base,
    reference_name,
    refuse_two_authorizations,
    resolve_secret,
)
from benchgate.suite.simulator import SimSettings
from benchgate.suite.types import (
    EnergyPrice,
    Expected,
    Factor,
    Kind,
    Memory,
    Percent,
    PositivePercent,
    Price,
    Section,
    Span,
    Text,
    TokenPrice,
    Watts,
    Whole,
    Written,
    checked,
    is_stored,
    key,
    optional,
    text,
)
from benchgate.suite.workload import BodyFields, Count
from benchgate.units import show_found


class Energy(Section):
    """Power of one accelerator, with its share of the machine, and its price."""

    draw_w: Watts = key("Power of one accelerator, with its share of the machine around it", alias="draw")
    usd_per_kwh: EnergyPrice = key("Price of energy", alias="price")
    pue: Factor = key(
        "Power usage effectiveness: power drawn by the building for each watt of the machine", default=1.0
    )

    @property
    def usd_per_hour(self) -> float:
        """Cost of energy for one accelerator and hour."""
        return self.draw_w / 1000 * self.pue * self.usd_per_kwh


class TokenPrices(Section):
    """Prices of a hosted model, per million tokens."""

    input_usd: TokenPrice = key("Price of prompt tokens", alias="input")
    cached_input_usd: TokenPrice | None = key(
        "Price of prompt tokens that the server reports as cached. Default: the price of `input`",
        default=None,
        alias="cached_input",
    )
    output_usd: TokenPrice = key("Price of answer tokens, reasoning included", alias="output")

    @model_validator(mode="after")
    def _costs_something(self) -> Self:
        if self.input_usd == 0 == self.output_usd:
            raise ValueError("tokens that cost nothing have no price; leave `token_prices` out")
        return self

    def to_stored(self) -> dict[str, float]:
        """Return the dollars per million tokens of each kind, as stored with a run."""
        cached = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        return {"input": self.input_usd, "cached_input": cached, "output": self.output_usd}


class PriceTerms(Section):
    """Terms of a deployment's `price`; by default they cost nothing."""

    commitment: Literal["on_demand", "reserved", "spot", "owned"] = key(
        "How the accelerators were bought; shown beside the price", default="on_demand"
    )
    interruption_ratio: Percent = key(
        "Share of the paid time that interruptions take. Only with `spot`, and required there (`0%` if nothing is "
        "lost). An hour of serving costs `price` / (1 - interruption)",
        default=0.0,
        alias="interruption",
    )
    energy: Energy | None = key(
        "Energy that an accelerator draws while it runs, added to `price`, which then covers wear. Only with `owned`",
        default=None,
    )
    overhead_ratio: Percent = key(
        "Paid in addition to each dollar: gateway, observability, idle replicas, on-call. Counts only in the costs in "
        "use",
        default=0.0,
        alias="overhead",
    )
    utilisation_ratio: PositivePercent = key(
        "Share of the paid time in which tokens flow at the measured pace. Counts only in the costs in use",
        default=1.0,
        alias="utilisation",
    )

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Self:
        if self.interruption_ratio >= 1:
            raise ValueError("an `interruption` of 100% leaves no time in service; write less")
        if self.interruption_ratio and self.commitment != "spot":
            raise ValueError(f"`interruption` is only for `commitment: spot`, and this is {self.commitment}; keep one")
        if is_stored(info):
            return self
        if self.commitment == "spot" and "interruption_ratio" not in self.model_fields_set:
            needed = "`commitment: spot` needs the share of paid time that interruptions take"
            raise ValueError(f"{needed}; add it, like interruption: 5%, or 0%")
        if self.energy is not None and self.commitment != "owned":
            included = f"and the {self.commitment} price includes it"
            raise ValueError(f"`energy` is only for `commitment: owned`, {included}; remove it")
        return self

    def usd_per_hour(self, list_usd_per_hour: float) -> float:
        """Return the cost of an hour in service of an accelerator with this list price."""
        energy_usd = 0.0 if self.energy is None else self.energy.usd_per_hour  # used only while it runs
        return list_usd_per_hour / (1 - self.interruption_ratio) + energy_usd

    def to_stored(self, list_usd_per_hour: float) -> dict[str, Any]:
        """Return list price and terms, as stored with a run."""
        return {"list_usd_per_hour": list_usd_per_hour, **self.model_dump(mode="json", exclude_none=True)}


class Service(Section):
    """A server beside the deployments: its address and authorization."""

    url: Address = key("Base address, with or without `/v1`")
    api_key: Reference | None = key("Sent as a bearer token", default=None)
    headers: Headers = key("Further headers", default_factory=dict)

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        refuse_two_authorizations(self.api_key, self.headers)
        return self


class Tls(Section):
    """Trusted certificates, and the client certificate, as PEM files; paths are relative to the suite.

    At least one of `ca` and `cert`. Certificate and host name of the server are always verified.
    """

    ca: Text | None = key("Trusted certificates, instead of the system's. Default: the system's trust", default=None)
    cert: Text | None = key("Client certificate, with its chain", default=None)
    key: Text | None = key("The key of `cert`, without a passphrase. Default: in the file of `cert`", default=None)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.key is not None and self.cert is None:
            raise ValueError("`key` belongs to a `cert`, which is missing")
        if self.ca is None and self.cert is None:
            raise ValueError("needs at least one of `ca` and `cert`; without `tls` the system's trust decides")
        return self


AUTO = "auto"
OFF = "off"
SMI_NAMES = ("nvidia-smi", "amd-smi", "xpu-smi")
MOST_COUNTED = 10_000


def check_page(text: str) -> str:
    """Return the address of a page of metrics, or a reference to one. Raises ValueError for anything else."""
    if reference_name(text) is not None:
        return text
    if "@" in text:
        raise ValueError("holds credentials; put the whole address in a variable and write ${env:NAME}")
    return _check_http(text)


def _check_http(text: str) -> str:
    if not is_http_base(text) or urlsplit(text).fragment:
        raise ValueError(f'"{text[:60]}" is not the address of a page; write it like http://host:9400/metrics')
    return text


def resolve_page(key: str, text: str, environment: Mapping[str, str]) -> str:
    """Return the value of `key` with its reference resolved. Raises UsageError if that is unset or no address."""
    if text in (AUTO, OFF, *SMI_NAMES):
        return text
    try:
        return check_page(text) if reference_name(text) is None else _check_http(resolve_secret(text, environment))
    except ValueError:
        # Without its message, which may repeat a part of what the variable holds.
        raise UsageError(f"`{key}` refers to what is not the address of a page of metrics; correct it") from None


Gpu = Annotated[
    str,
    AfterValidator(lambda text: text if text in SMI_NAMES else check_page(text)),
    Expected('"nvidia-smi", "amd-smi", "xpu-smi" or an exporter\'s page like "http://host:9400/metrics"'),
]
ReplicaPage = Annotated[
    str, AfterValidator(check_page), Expected('the address of a replica\'s page like "http://host-1:8000/health"')
]


class ReplicaMetrics(Section):
    """A replica's page of metrics. In short, its address."""

    url: ReplicaPage = key("Address of the replica's page of metrics")
    role: Literal["prefill", "decode"] | None = optional(
        "Part of a request that it serves, where prefill and decode are split"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, found: Any) -> Any:
        return {"url": found} if isinstance(found, str) else found

    @model_serializer(mode="wrap")
    def _short(self, serialise: SerializerFunctionWrapHandler) -> Any:
        return serialise(self) if self.role is not None else self.url


_PROMETHEUS_API = ("/api/v1/query", "/api/v1", "/api")
_SELECTOR = re.compile(r"\{.*\}", re.DOTALL)
_METRICS = (
    '"auto", "off", the address of a page like "http://host:9090/metrics", a list of one page of each replica, or a '
    "mapping with `prometheus` and `selector`"
)


def _check_prometheus(address: str) -> str:
    base = address.rstrip("/")
    for ending in _PROMETHEUS_API:
        if reference_name(address) is None and base.endswith(ending):
            raise ValueError(f"ends in {ending}, which benchgate adds itself; write the part before it")
    return check_address(address)


PrometheusAddress = Annotated[
    str,
    AfterValidator(_check_prometheus),
    Expected('an address like "http://prometheus:9090" or a reference like "${env:PROM_URL}"'),
]


def _check_selector(text: str) -> None:
    if _SELECTOR.fullmatch(text) is None:
        raise ValueError("""is no selector of series; write it in braces, like '{job="vllm"}'""")


Selector = Annotated[Text, checked(_check_selector), Expected("""a selector of series like '{job="vllm"}'""")]


class Metrics(Section):
    """Source of the server's own metrics: one `page`, a page of each of its `replicas`, or `prometheus`.

    In short, the page or the list of pages itself. Counters and waiting requests are added up over the replicas; the
    KV cache usage is that of the fullest. While one replica does not answer, there is no sum.
    """

    page: Text | None = optional("`auto` (`/metrics` of the server itself), `off` or the address of a page")
    replicas: tuple[ReplicaMetrics, ...] = optional("One page of each replica", default=(), min_length=1)
    prometheus: PrometheusAddress | None = optional(
        "Base address of a Prometheus that scrapes the replicas, without `/api/v1`"
    )
    selector: Selector | None = optional("Series of the replicas in Prometheus")
    replica_label: Text | None = optional("Label that tells replicas apart. Default: `pod`, else `instance`")
    role_label: Text | None = optional("Label with the role of a replica, `prefill` or `decode`")
    api_key: Reference | None = optional("Sent to Prometheus as a bearer token")

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, found: Any) -> Any:
        if isinstance(found, str):
            return {"page": found}
        if isinstance(found, list | tuple):
            return {"replicas": found}
        if isinstance(found, dict | Metrics):
            return found
        raise ValueError(f"found {show_found(found)}; expected {_METRICS}")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum((self.page is not None, bool(self.replicas), self.prometheus is not None)) != 1:
            raise ValueError("needs exactly one of `page`, `replicas` and `prometheus`")
        if self.page not in (None, AUTO, OFF):
            check_page(str(self.page))
        if (self.prometheus is None) != (self.selector is None):
            raise ValueError("`prometheus` and the `selector` of its series belong together; add the missing one")
        if self.prometheus is None and (self.replica_label or self.role_label or self.api_key):
            raise ValueError("`replica_label`, `role_label` and `api_key` belong to `prometheus`, which is missing")
        urls = [replica.url for replica in self.replicas]
        if len(set(urls)) < len(urls):
            raise ValueError("names a page twice; each replica has a page of its own")
        return self

    @model_serializer(mode="wrap")
    def _short(self, serialise: SerializerFunctionWrapHandler) -> Any:
        written: dict[str, Any] = serialise(self)
        return next(iter(written.values())) if self.prometheus is None else written

    @property
    def addresses(self) -> dict[str, str]:
        """Return every address by its key; it may be a reference, `auto` or `off`."""
        found = {"metrics": self.page or self.prometheus}
        found |= {f"metrics[{n}]": replica.url for n, replica in enumerate(self.replicas)}
        return {name: address for name, address in found.items() if address is not None}


MetricsSource = Annotated[
    Metrics, Expected(_METRICS), Written(text(), {"type": "array", "items": {"type": ["string", "object"]}})
]


def _check_command(text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"is no command: {error}; quote it as for a shell") from None
    if not words or "\0" in text:
        raise ValueError("is no command; write a program and its arguments")


CountCommand = Annotated[Text, checked(_check_command), Expected("a command that prints how many replicas are ready")]


class Ready(Section):
    """The number of replicas: counted by `metrics` or by `command`; without both, by the deployment's own `metrics`
    where that lists its replicas, else by the server itself.

    The run waits until all replicas are ready, for at most `limits.ready`. They are counted again before every block,
    after every stage with actions, and at the end. Another number makes the load checks INVALID (`replicas-changed`). A
    `command` needs `--allow-actions` and runs without a shell, for at most 30 s.
    """

    replicas: Whole = key(
        "Number of replicas, no fewer and no more. For a `sim` it equals its own `replicas`", ge=1, le=MOST_COUNTED
    )
    metrics: tuple[ReplicaPage, ...] = optional(
        "One page of each replica (metrics or health); a replica is ready if it answers with status 200 within 5 s. "
        "Not with `command` or `sim`",
        default=(),
        min_length=1,
    )
    command: CountCommand | None = optional(
        "A command that prints the number of ready replicas, a whole number. Not with `metrics`"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.metrics and self.command is not None:
            raise ValueError("`metrics` and `command` both count the replicas; keep one of them")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError("`metrics` names an address twice; each replica has an address of its own")
        if self.metrics and len(self.metrics) < self.replicas:
            found = f"`metrics` names {len(self.metrics)} addresses, and there are {self.replicas} replicas"
            raise ValueError(f"{found}; name the address of every replica, or correct `replicas`")
        return self

    @property
    def command_words(self) -> tuple[str, ...]:
        """Split the command into a program and its arguments; empty without one."""
        return tuple(shlex.split(self.command)) if self.command is not None else ()


MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
OptionalField = Literal["ignore_eos", "stream_options", "temperature", "seed"]
Engine = Literal[
    "openai", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "ollama", "anthropic",
    "mlx", "mlc", "lorax", "kserve", "rayserve", "litellm", "dynamo", "torchserve",
]  # fmt: skip


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


class ServerCommands(Section):
    """Commands that start and stop the server at `url`, so that its start can be timed. They need `--allow-actions`.

    They run without a shell, get `BENCHGATE_ARM`, and write to a log in the run's folder. Nothing may answer at `url`
    before. At the end of a measurement, and if benchgate itself ends, `stop` runs and what `run` left running is ended.
    """

    run: tuple[Text, ...] = key(
        'The command that starts the server, in the foreground or not: `["vllm", "serve", "org/model"]`', min_length=1
    )
    stop: tuple[Text, ...] = optional(
        'The command that stops it: `["kubectl", "scale", "deploy/vllm", "--replicas=0"]`. Default: SIGTERM to `run`',
        default=(),
        min_length=1,
    )
    stop_s: Span = optional("Limit for `stop`, and then for the server's end", default=30.0, alias="within")


class DeploymentSpec(Section):
    """A deployment of one model: exactly one of `url`, `embedded` and `sim`."""

    url: Address | None = key(
        "Base address of an OpenAI-compatible server, with or without `/v1`: `http://host:8000`, `https://host/base`, "
        "`unix:/run/server.sock`. No credentials, no query",
        default=None,
    )
    embedded: Embedded | None = key(
        "The embedded engine, which benchgate starts on this machine; `{}` for all defaults", default=None
    )
    sim: SimSettings | None = optional(
        "A practice server, which benchgate starts on this machine; `{}` for all defaults"
    )
    model: Text | None = key("The model name sent in every request. Not with `embedded` or `sim`", default=None)
    answers_as: tuple[Text, ...] = optional(
        "Other model names that answers may carry, exactly as the server writes them, where a gateway renames the "
        "model. An answer with a name that is neither here nor the one requested turns a PASS into a WARN "
        "(`model-names`)",
        default=(),
    )
    start: ServerCommands | None = optional("Commands that start and stop the server. Only with `url`")
    revision: Text | None = optional(
        "Revision of the weights: a commit of a model hub (40 hex digits), or the `sha256:…` of their file. A name "
        "that may move, like `main`, can be measured but not promoted. Not with `embedded` or `sim`"
    )
    engine: Engine = key(
        "Dialect of the server. If the arms use two engines, that is the declared change, with their versions "
        "and flags. Default: `openai`; `llamacpp` with `embedded`, `vllm` with `sim`",
        default_factory=lambda known: "llamacpp" if known.get("embedded") else "vllm" if known.get("sim") else "openai",
    )
    engine_version: Annotated[Text, Expected('a version in quotes, like "0.10.1"')] | None = optional(
        "Version of the engine as the server reports it. Two declared versions are the declared change; a server that "
        "reports another one makes the run INVALID"
    )
    api_key: Reference | None = key("Sent as a bearer token; never stored. Not with `embedded` or `sim`", default=None)
    headers: Headers = key("Headers of every request. Not with `embedded` or `sim`", default_factory=dict)
    tls: Tls | None = key(
        "Certificates, for `https` alone. Not with `embedded` or `sim`. Default: the system's trust", default=None
    )
    proxy: ProxyAddress | None = key(
        "HTTP proxy to go through, like `http://proxy:3128`. Not with `embedded`, `sim` or a socket", default=None
    )
    grpc: GrpcAddress | None = optional(
        "Address of the server's inference protocol over gRPC, for the endpoint `grpc-infer`: `host:8001`, or "
        "`grpcs://host:8001` with the certificates of `tls`. Not with `embedded` and `proxy`; a `sim` serves it itself"
    )
    price: Price | None = key("Price of one accelerator per hour. Without it there is no cost per token", default=None)
    price_terms: PriceTerms | None = optional("How the accelerators were bought, and what is paid beside the price")
    token_prices: TokenPrices | None = optional("Prices per token of a hosted model, instead of `price`")
    accelerator: Kind | None = optional(
        "Kind of accelerator, used to look up its price in a file of prices and its memory bandwidth. Two kinds are "
        "the declared change if `gpu` reports the same"
    )
    accelerators: Whole = key(
        "Number of accelerators of the deployment. Two numbers are the declared change if the servers report the same",
        default=1,
        ge=1,
    )
    active_weights_bytes: Memory | None = optional(
        "Bytes of the weights that generating a token reads, like `141GB`: of a dense model all, of a mixture of "
        "experts its shared and active part, as quantised. With `accelerator` or `gpu`, answers that come faster than "
        "memory bandwidth allows make the load INVALID (`pace-possible`)",
        alias="active_weights",
    )
    draft_tokens: Whole | None = optional(
        "Most tokens that speculative decoding drafts in a step, 0 without it. Only with `active_weights`. Default: as "
        "the server reports, else 15",
        ge=0,
        le=1_000,
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
        "Context length of the server: prompt and answer together. A longer request is an error before "
        "anything is sent. Not with `embedded` and `sim`, which have their own. Default: what the server "
        "reports",
        alias="context",
    )
    metrics: MetricsSource = optional(
        "The server's own metrics, read around every stage. `auto` requests `/metrics` of the server itself. "
        "Default: `auto`",
        default=Metrics(page=AUTO),
    )
    gpu: Gpu | None = optional("Source of accelerator metrics, like `http://host:9400/metrics`")
    gpu_devices: tuple[Annotated[Whole, Field(ge=0)], ...] = optional(
        "Accelerators that serve this deployment. Only with `gpu`. Default: all", default=()
    )
    ready: Ready | None = optional("Number of replicas, counted throughout a run. Not with `embedded`")

    _price_entry: dict[str, object] = PrivateAttr(default_factory=dict)  # beside the suite, no part of it

    def priced(self, price: Mapping[str, object], entry: dict[str, object]) -> Self:
        """Return a copy with the price from a file of prices: `price` as keys of a deployment, `entry` its source."""
        filled = self.model_copy(update=dict(price))
        filled._price_entry = entry
        return filled

    @property
    def is_started(self) -> bool:
        """True if benchgate starts the server, itself or by commands of the suite."""
        return self.url is None or self.start is not None

    @property
    def price_entry(self) -> dict[str, object]:
        """Entry of a file of prices that its price was taken from; empty for a price of the suite."""
        return self._price_entry

    @property
    def is_priced(self) -> bool:
        """True with a price per hour or per token."""
        return self.price is not None or self.token_prices is not None

    @property
    def usd_per_hour(self) -> float | None:
        """Cost of one accelerator for an hour, by its terms; None without a price."""
        if self.price is None or self.price_terms is None:
            return self.price
        return self.price_terms.usd_per_hour(self.price)

    @property
    def context_length(self) -> int | None:
        """Context length in tokens, prompt and answer together; None if only the server knows."""
        own = self.embedded or self.sim
        return own.context_tokens if own is not None else self.context_tokens

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        ways = [name for name in ("url", "embedded", "sim") if getattr(self, name) is not None]
        if len(ways) != 1:
            found = "leave out " + " or ".join(f"`{name}`" for name in ways)
            remedy = found if ways else 'add its address, like `url: "http://host:8000"`'
            raise ValueError(f"a deployment needs exactly one of `url`, `embedded` and `sim`; {remedy}")
        if self.url is not None and not self.model:
            raise ValueError("a deployment with a `url` needs the `model` name it serves; add `model: NAME`")
        if self.start is not None and self.url is None:
            raise ValueError("`start` belongs to a `url`; benchgate starts `embedded` and `sim` itself")
        if self.draft_tokens is not None and self.active_weights_bytes is None:
            raise ValueError("`draft_tokens` belongs to `active_weights`, which is missing")
        if self.gpu_devices and self.gpu is None:
            raise ValueError("`gpu_devices` belongs to `gpu`, which is missing")
        refuse_two_authorizations(self.api_key, self.headers)
        literal = self.url is not None and reference_name(self.url) is None
        if self.grpc is not None and self.proxy is not None:
            raise ValueError("`grpc` goes through no `proxy`; remove one of them")
        encrypted = str(self.url).startswith("https:") or str(self.grpc).startswith("grpcs:")
        if literal and self.tls is not None and not encrypted:
            raise ValueError("`tls` is for https; write the `url` with https:// or remove `tls`")
        if literal and self.proxy is not None and str(self.url).startswith("unix:"):
            raise ValueError("`proxy` means nothing for a socket of this machine; remove it")
        return self
