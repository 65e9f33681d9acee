"""What each engine calls things. One row per engine; adding an engine touches this file alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from benchgate.model.deployment import Arm
from benchgate.model.request import GENERATING_ENDPOINTS, Endpoint, ModelRequest, text_request
from benchgate.suite.deployment import OFF, DeploymentSpec, MaxTokensField
from benchgate.targets.address import ServerAddress
from benchgate.targets.error_messages import one_line
from benchgate.targets.route import DIRECT, Route
from benchgate.targets.spelling import spelled_fields

PATHS: Mapping[Endpoint, str] = MappingProxyType(
    {
        "chat": "/v1/chat/completions",
        "completions": "/v1/completions",
        "responses": "/v1/responses",
        "embeddings": "/v1/embeddings",
        "rerank": "/v1/rerank",
    }
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one engine spells what benchgate asks for.

    `ignore_eos` are the body fields that make an answer run to its full length, None where the engine has no way to
    say it (and refuses unknown fields, as transformers serve does with 422). `extra` goes into every request,
    `leave_out` into none, and `max_tokens_field` is what the limit of an answer's length is called.
    """

    engine: str
    ignore_eos: Mapping[str, object] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    max_tokens_field: MaxTokensField = "max_tokens"
    stream_usage: bool = True  # understands stream_options.include_usage
    health_path: str | None = "/health"
    version_at: tuple[str, str] | None = None  # path and key of a JSON document that tells the engine's version
    about_at: tuple[str, ...] = ()  # paths of documents in which it tells more of itself; the first that is there
    flags_page: str | None = None  # a page of metrics with a sample whose labels are flags


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        d.engine: d
        for d in (
            Dialect("openai", health_path=None),
            Dialect("vllm", ignore_eos={"ignore_eos": True}, version_at=("/version", "version"), flags_page="/metrics"),
            Dialect("sglang", ignore_eos={"ignore_eos": True}, about_at=("/server_info", "/get_server_info")),
            Dialect("tgi", version_at=("/info", "version"), about_at=("/info",)),
            Dialect("trtllm", ignore_eos={"ignore_eos": True}, version_at=("/version", "version")),
            Dialect("triton", ignore_eos={"ignore_eos": True}, health_path="/v2/health/ready"),
            # The prompt cache would answer the second of two equal prompts for free.
            Dialect(
                "llamacpp",
                ignore_eos={"ignore_eos": True},
                extra={"cache_prompt": False},
                version_at=("/props", "build_info"),
                about_at=("/props",),
            ),
            Dialect("ollama", health_path=None, version_at=("/api/version", "version")),
        )
    }
)


def dialect_of(spec: DeploymentSpec) -> Dialect:
    """The dialect of a deployment: its engine's, and what the suite says of this one server."""
    engine = DIALECTS[spec.engine]
    return replace(
        engine,
        extra={**engine.extra, **spec.extra},
        leave_out=spec.leave_out,
        max_tokens_field=spec.max_tokens_field,
        flags_page=None if spec.metrics == OFF else engine.flags_page,
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment's address plus its dialect: all that is needed to ask it something.

    `url` is the base without a trailing slash; `api_key` is resolved, never stored and never shown, and so are
    `secret_headers`. `open_headers` stand in the suite as they are. Names of headers are in lower case.
    """

    arm: Arm
    url: str
    model: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)
    open_headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    route: Route = DIRECT

    def headers(self) -> dict[str, str]:
        """Headers every request carries."""
        return {**self.plain_headers(), **self.credentials()}

    def plain_headers(self) -> dict[str, str]:
        """Those of them that anybody may see."""
        return {**self.open_headers, "content-type": "application/json", "accept-encoding": "identity"}

    def credentials(self) -> dict[str, str]:
        """Those of them that nobody may see."""
        key = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        return {**key, **self.secret_headers}

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be blotted out of whatever a server says: some repeat what they were sent."""
        return secrets_in(self.credentials())

    def redact(self, text: str) -> str:
        """Return a text on one line, without the credentials and the path of the address, which servers repeat."""
        prefix = ServerAddress.of(self.url).prefix
        return one_line(text.replace(prefix, "[path]") if prefix else text, secret=self.secrets)


def secrets_in(credentials: Mapping[str, str]) -> tuple[str, ...]:
    """The values of headers, and what follows the scheme in one like `Bearer …`; the longest first."""
    found = {part for value in credentials.values() for part in (value, value.partition(" ")[2].strip()) if part}
    return tuple(sorted(found, key=lambda part: (-len(part), part)))


def ask_body(target: Target, ask: ModelRequest, *, seed: int | None = None) -> dict[str, object]:
    """The JSON body of one request in the target's dialect; where text is generated, greedily.

    `stream_options` goes only with `stream` (vLLM answers 400 to it otherwise), and the responses endpoint, which
    always tells its usage, knows neither it nor a seed. `ignore_eos` is silently not asked of an engine without it: the
    records show how long the answers were. What the suite says of this one server (`extra`) stands above all else.
    """
    dialect = target.dialect
    body: dict[str, object] = {"model": ask.model or target.model}
    if ask.endpoint in GENERATING_ENDPOINTS:
        body[_limit_field(dialect, ask.endpoint)] = ask.output_tokens
        body["temperature"] = 0
    body.update(ask.content)
    if seed is not None and ask.endpoint in ("chat", "completions"):
        body["seed"] = seed
    if ask.stream:
        body["stream"] = True
        if dialect.stream_usage and ask.endpoint != "responses":
            body["stream_options"] = {"include_usage": True}
    if ask.ignore_eos and dialect.ignore_eos is not None and _runs_on(dialect, ask.endpoint):
        body.update(dialect.ignore_eos)
    body.update(spelled_fields(dialect.engine, ask.endpoint, ask.fields))
    body.update(dialect.extra)
    return {name: value for name, value in body.items() if name not in dialect.leave_out}


def request_body(
    target: Target,
    endpoint: Endpoint,
    prompt: str,
    max_tokens: int,
    *,
    stream: bool,
    seed: int | None = None,
    ignore_eos: bool = False,
) -> dict[str, object]:
    """`ask_body` of one text."""
    ask = text_request(endpoint, prompt, max_tokens, ignore_eos=ignore_eos)
    return ask_body(target, replace(ask, stream=stream and ask.stream), seed=seed)


def _runs_on(dialect: Dialect, endpoint: Endpoint) -> bool:
    """Whether an engine takes its word for a full length at this endpoint; TensorRT-LLM refuses it in responses."""
    return endpoint in ("chat", "completions") or (endpoint == "responses" and dialect.engine in _TAKES_ANY_FIELD)


_TAKES_ANY_FIELD = ("vllm", "sglang", "llamacpp")


def _limit_field(dialect: Dialect, endpoint: Endpoint) -> str:
    return "max_output_tokens" if endpoint == "responses" else dialect.max_tokens_field
