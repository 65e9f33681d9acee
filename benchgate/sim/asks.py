"""What a generation request asks for, read strictly, and refused in vLLM's words where vLLM refuses it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from zlib import crc32

from benchgate.sim.settings import SimSettings

_UNLIMITED_TOKENS = 64  # length of a chat answer nobody bounded
_COMPLETION_TOKENS = 16  # what the completions API gives when it is not told


class Refused(Exception):
    """A request that is answered with an error document."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        self.status = status
        self.document = {"error": {"message": message, "type": kind, "param": param, "code": status}}
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, understood. `key` decides the words of the answer: equal prompts get equal answers."""

    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    key: int
    input_tokens: int
    output_tokens: int
    max_tokens: int  # as far as the engine must reserve room
    finish_reason: str


def read_ask(chat: bool, body: bytes, settings: SimSettings) -> Ask:
    """Raises Refused."""
    data = read_object(body)
    _check_model(data, settings.model)
    text, input_tokens = _prompt(data, chat)
    key = crc32(text.encode("utf-8", "surrogatepass"), settings.seed & 0xFFFFFFFF)
    limit = _limit(data)
    _check_context(input_tokens, limit, settings)
    stream, options = bool(data.get("stream")), data.get("stream_options")
    if options is not None and not stream:
        raise Refused(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if data.get("n") not in (None, 1) or data.get("echo") or data.get("best_of") not in (None, 1):
        raise Refused(400, "this server gives one answer, without echo: n, best_of and echo must be left out")
    options = options if isinstance(options, dict) else {}
    length, reason = _length(key, limit, chat, bool(data.get("ignore_eos")), settings)
    length = min(length, settings.context_tokens - input_tokens)
    return Ask(
        chat=chat,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        key=key,
        input_tokens=input_tokens,
        output_tokens=length,
        max_tokens=limit or length,
        finish_reason=reason,
    )


def read_object(body: bytes) -> dict[str, object]:
    """The JSON object of a request; raises Refused."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        where = f"body.{error.pos}" if isinstance(error, json.JSONDecodeError) else "body"
        raise Refused(400, f"1 validation error: JSON decode error at {where}", "Bad Request", where) from None
    if not isinstance(data, dict):
        raise Refused(400, "1 validation error: the body must be a JSON object", "Bad Request", "body")
    return data


def count_tokens(data: dict[str, object]) -> int:
    """Input tokens of a request to count them: whitespace-separated words. Raises Refused."""
    return _prompt(data, chat="messages" in data)[1]


def _check_model(data: dict[str, object], served: str) -> None:
    model = data.get("model")
    if model is not None and model != served:
        message = f"The model `{model}` does not exist. Valid aliases: {served}."
        raise Refused(404, message, "NotFoundError", "model")


def _prompt(data: dict[str, object], chat: bool) -> tuple[str, int]:
    """The text that decides the answer, and how many tokens it has."""
    if not chat:
        return _completion_prompt(data.get("prompt"))
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "1 validation error: Field required", "Bad Request", "body.messages")
    text = "\n".join(_content(message) for message in messages)
    return text, len(text.split())


def _content(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise Refused(400, "a message needs a content of text", "Bad Request", "body.messages")
    return "".join(str(text) for text in texts)


def _completion_prompt(prompt: object) -> tuple[str, int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, len(prompt.split())
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return repr(prompt), len(prompt)
    raise Refused(400, "the prompt must be one text or one list of token ids", "Bad Request", "body.prompt")


def _limit(data: dict[str, object]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = data.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refused(400, f"{name} must be at least 1, got {value}. (parameter={name}, value={value})", param=name)
        return value
    return None


def _check_context(input_tokens: int, limit: int | None, settings: SimSettings) -> None:
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


def _length(key: int, limit: int | None, chat: bool, ignore_eos: bool, settings: SimSettings) -> tuple[int, str]:
    """How many tokens the answer has, and why it ends there."""
    if ignore_eos and limit is not None:
        return limit, "length"
    if settings.output_tokens is not None:
        low, high = settings.output_tokens
        drawn = low + key % (high - low + 1)
        return (drawn, "stop") if limit is None or drawn < limit else (limit, "length")
    if limit is not None:
        return limit, "length"
    return (_UNLIMITED_TOKENS, "stop") if chat else (_COMPLETION_TOKENS, "length")
