"""What each engine calls things. One row per engine; adding an engine touches this file alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from benchgate.model.deployment import Arm

Endpoint = Literal["chat", "completions"]

PATHS: Mapping[str, str] = MappingProxyType({"chat": "/v1/chat/completions", "completions": "/v1/completions"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one engine spells what benchgate asks for.

    `ignore_eos` are the body fields that make an answer run to its full length, None where the engine has no way to
    say it (and refuses unknown fields, as transformers serve does with 422). `extra` goes into every request.
    """

    engine: str
    ignore_eos: Mapping[str, object] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
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


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment's address plus its dialect: all that is needed to ask it something.

    `url` is the base without a trailing slash; `api_key` is resolved, never stored and never shown.
    """

    arm: Arm
    url: str
    model: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        """Headers every request carries."""
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers


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
    body: dict[str, object] = {"model": target.model, "max_tokens": max_tokens, "temperature": 0}
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
    return body
