"""What each engine calls things. One row per engine; adding an engine touches this file alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from benchgate.model.deployment import Arm
from benchgate.suite.schema import DeploymentSpec, MaxTokensField
from benchgate.targets.route import DIRECT, Route

Endpoint = Literal["chat", "completions"]

PATHS: Mapping[str, str] = MappingProxyType({"chat": "/v1/chat/completions", "completions": "/v1/completions"})


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


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        d.engine: d
        for d in (
            Dialect("openai", health_path=None),
            Dialect("vllm", ignore_eos={"ignore_eos": True}, version_at=("/version", "version")),
            Dialect("sglang", ignore_eos={"ignore_eos": True}),
            Dialect("tgi", version_at=("/info", "version")),
            Dialect("trtllm", ignore_eos={"ignore_eos": True}, version_at=("/version", "version")),
            Dialect("triton", ignore_eos={"ignore_eos": True}, health_path="/v2/health/ready"),
            # The prompt cache would answer the second of two equal prompts for free.
            Dialect(
                "llamacpp",
                ignore_eos={"ignore_eos": True},
                extra={"cache_prompt": False},
                version_at=("/props", "build_info"),
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


def secrets_in(credentials: Mapping[str, str]) -> tuple[str, ...]:
    """The values of headers, and what follows the scheme in one like `Bearer …`; the longest first."""
    found = {part for value in credentials.values() for part in (value, value.partition(" ")[2].strip()) if part}
    return tuple(sorted(found, key=lambda part: (-len(part), part)))


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
    """The JSON body of one generation request, greedy, in the target's dialect.

    `stream_options` goes only with `stream` (vLLM answers 400 to it otherwise). `ignore_eos` is silently not asked of
    an engine without it: the records show how long the answers were.
    """
    body: dict[str, object] = {"model": target.model, target.dialect.max_tokens_field: max_tokens, "temperature": 0}
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if seed is not None:
        body["seed"] = seed
    if stream:
        body["stream"] = True
        if target.dialect.stream_usage:
            body["stream_options"] = {"include_usage": True}
    if ignore_eos and target.dialect.ignore_eos is not None:
        body.update(target.dialect.ignore_eos)
    body.update(target.dialect.extra)
    return {name: value for name, value in body.items() if name not in target.dialect.leave_out}
