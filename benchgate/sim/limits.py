"""How long answers may be and how long they are: what requests say of it, and what fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from benchgate.sim.refused import Refused
from benchgate.sim.settings import SimSettings

Endpoint = Literal["chat", "completions", "responses", "embeddings", "rerank"]

_UNLIMITED_TOKENS = 64  # length of a chat answer nobody bounded
_COMPLETION_TOKENS = 16  # what the completions API gives when it is not told
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def limit_of(data: Mapping[str, object]) -> int | None:
    """Most tokens of the answer; None when nothing is said of it. Raises Refused."""
    return next((value for value in (count_of(data, name) for name in _LIMITS) if value is not None), None)


def count_of(data: Mapping[str, object], name: str) -> int | None:
    """A field that is a number of things, of which there must be one. Raises Refused."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refused(400, f"{name} must be at least 1, got {value}. (parameter={name}, value={value})", param=name)
    return value


def check_context(input_tokens: int, limit: int | None, settings: SimSettings) -> None:
    """Raises Refused when prompt and answer are more than the model or the KV cache can hold."""
    most = settings.context_tokens
    if input_tokens >= most:
        message = f"This model's maximum context length is {most} tokens. However, your prompt contains at least "
        raise Refused(400, f"{message}{most + 1} input tokens. Please reduce its length.", param="input_tokens")
    if limit is not None and input_tokens + limit > most:
        message = f"max_tokens={limit} is too large: the prompt has {input_tokens} tokens, and max_model_len={most}."
        raise Refused(400, message, param="max_tokens")
    room = settings.batching.kv_tokens if settings.batching is not None else None
    if room is not None and input_tokens + (limit or 1) > room:
        message = f"The request needs {input_tokens + (limit or 1)} tokens of KV cache, and there is room for {room}."
        raise Refused(400, message, param="max_tokens")


def most_tokens(settings: SimSettings) -> int:
    """Of prompt and answer together."""
    most = settings.context_tokens
    return most if settings.batching is None else min(most, settings.batching.kv_tokens)


def thought_tokens(endpoint: Endpoint, key: int, settings: SimSettings) -> int | None:
    """How many tokens would be thought before the answer; None when this model does not think here."""
    if settings.reasoning_tokens is None or endpoint == "completions":
        return None
    low, high = settings.reasoning_tokens
    return low + (key >> 5) % (high - low + 1)


def answer_length(
    endpoint: Endpoint, data: Mapping[str, object], key: int, thought: int, settings: SimSettings
) -> tuple[int, str]:
    """How many tokens the answer has, those it thinks included, and why it ends there."""
    limit = limit_of(data)
    if data.get("ignore_eos") and limit is not None:
        return limit, "length"
    if settings.output_tokens is not None:
        low, high = settings.output_tokens
        drawn = thought + low + key % (high - low + 1)
        return (drawn, "stop") if limit is None or drawn < limit else (limit, "length")
    if limit is not None:
        return limit, "length"
    return (_COMPLETION_TOKENS, "length") if endpoint == "completions" else (thought + _UNLIMITED_TOKENS, "stop")
