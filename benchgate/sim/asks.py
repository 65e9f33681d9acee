"""What a request asks for, read strictly, and refused in vLLM's words where vLLM refuses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from benchgate.sim.limits import Endpoint, answer_length, check_context, count_of, limit_of, most_tokens, thought_tokens
from benchgate.sim.prompts import (
    Prompt,
    chat_prompt,
    completion_prompt,
    document_texts,
    embedding_prompts,
    response_prompt,
)
from benchgate.sim.refused import Refused
from benchgate.sim.said import told_to_say
from benchgate.sim.settings import SimSettings
from benchgate.sim.shapes import Unsupported, json_pieces, spoiled
from benchgate.sim.wanted import read_wanted
from benchgate.sim.words import Saying


@dataclass(frozen=True, slots=True)
class Item:
    """One input of a request for embeddings, or one document to be ranked. `key` decides its numbers."""

    text: str
    key: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, understood. `key` decides the words of the answer: equal prompts get equal answers."""

    endpoint: Endpoint
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    key: int
    prompt: Prompt
    input_tokens: int
    output_tokens: int  # 0 where there are none to be had
    room_tokens: int  # KV room that the engine must have for it
    finish_reason: str
    saying: Saying
    reasoning_tokens: int | None = None  # of the output; None: this model does not reason
    adapter: str | None = None
    priority: int = 0
    items: tuple[Item, ...] = ()
    width: int = 0  # numbers in an embedding, or how many documents are told of
    base64: bool = False  # how embeddings are written


@dataclass(frozen=True, slots=True)
class _Body:
    """A request as it came, and by whom it is to be answered."""

    endpoint: Endpoint
    data: dict[str, object]
    settings: SimSettings
    adapter: str | None

    def key(self, prompt: Prompt) -> int:
        """What decides the answer to this prompt: the prompt, the adapter and the server's seed."""
        seed = crc32((self.adapter or "").encode(), self.settings.seed & 0xFFFFFFFF)
        return crc32(prompt.text.encode("utf-8", "surrogatepass"), seed)


def read_ask(endpoint: Endpoint, body: bytes, settings: SimSettings) -> Ask:
    """Raises Refused."""
    data = read_object(body)
    return _READERS[endpoint](_Body(endpoint, data, settings, _adapter(data, settings)))


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


def count_tokens(data: dict[str, object], image_tokens: int | None) -> int:
    """Input tokens of a request to count them: whitespace-separated words. Raises Refused."""
    if "messages" in data:
        return len(chat_prompt(data["messages"], image_tokens))
    return len(completion_prompt(data.get("prompt")))


def _generation(body: _Body) -> Ask:
    endpoint, data, settings = body.endpoint, body.data, body.settings
    prompt, limit = _prompt(body), limit_of(data)
    key = body.key(prompt)
    check_context(len(prompt), limit, settings)
    stream, options = _streaming(data)
    reasoning = thought_tokens(endpoint, key, settings)
    length, reason = answer_length(endpoint, data, key, reasoning or 0, settings)
    length = min(length, most_tokens(settings) - len(prompt))
    saying, length, reason = _saying(body, prompt, min(reasoning or 0, length), length, reason)
    check_context(len(prompt), length, settings)  # what follows a schema may be longer than it was to be
    return Ask(
        endpoint=endpoint,
        model=body.adapter or settings.model,
        stream=stream,
        include_usage=bool(options.get("include_usage")) or endpoint == "responses",
        continuous_usage=bool(options.get("continuous_usage_stats")),
        key=key,
        prompt=prompt,
        input_tokens=len(prompt),
        output_tokens=length,
        room_tokens=len(prompt) + (limit or length),
        finish_reason=reason,
        saying=saying,
        reasoning_tokens=None if reasoning is None else min(reasoning, length),
        adapter=body.adapter,
        priority=_priority(data),
    )


def _embedding(body: _Body) -> Ask:
    prompts = embedding_prompts(body.data.get("input"))
    ask = _pooled(body, prompts, [prompt.text for prompt in prompts])
    width = count_of(body.data, "dimensions") or body.settings.embedding_size
    return replace(ask, width=width, base64=body.data.get("encoding_format") == "base64")


def _ranking(body: _Body) -> Ask:
    texts, query = document_texts(body.data.get("documents")), body.data.get("query")
    if not isinstance(query, str):
        raise Refused(400, "1 validation error: Field required", "Bad Request", "body.query")
    ask = _pooled(body, [completion_prompt(f"{query} {text}") for text in texts], texts)
    return replace(ask, width=count_of(body.data, "top_n") or len(texts))


def _pooled(body: _Body, prompts: Sequence[Prompt], shown: Sequence[str]) -> Ask:
    """A request that is read and not written on: its answer is numbers."""
    for prompt in prompts:
        check_context(len(prompt), None, body.settings)
    keys = [body.key(prompt) for prompt in prompts]
    return Ask(
        endpoint=body.endpoint,
        model=body.adapter or body.settings.model,
        stream=False,
        include_usage=True,
        continuous_usage=False,
        key=keys[0],
        prompt=Prompt("", ()),
        input_tokens=sum(map(len, prompts)),
        output_tokens=0,
        room_tokens=max(map(len, prompts)),  # one after the other
        finish_reason="stop",
        saying=Saying(keys[0]),
        adapter=body.adapter,
        priority=_priority(body.data),
        items=tuple(Item(text, key) for text, key in zip(shown, keys, strict=True)),
    )


_READERS: Mapping[Endpoint, Callable[[_Body], Ask]] = {
    "chat": _generation,
    "completions": _generation,
    "responses": _generation,
    "embeddings": _embedding,
    "rerank": _ranking,
}


def _adapter(data: dict[str, object], settings: SimSettings) -> str | None:
    """The adapter that is asked for by its name; None for the model itself. Raises Refused."""
    model = data.get("model")
    if model is None or model == settings.model:
        return None
    if isinstance(model, str) and model in settings.adapters:
        return model
    names = ", ".join([settings.model, *settings.adapters])
    raise Refused(404, f"The model `{model}` does not exist. Valid aliases: {names}.", "NotFoundError", "model")


def _prompt(body: _Body) -> Prompt:
    if body.endpoint == "chat":
        return chat_prompt(body.data.get("messages"), body.settings.image_tokens)
    if body.endpoint == "responses":
        return response_prompt(body.data, body.settings.image_tokens)
    return completion_prompt(body.data.get("prompt"))


def _streaming(data: Mapping[str, object]) -> tuple[bool, Mapping[str, object]]:
    """Whether the answer is a stream, and the options of it. Raises Refused."""
    stream, options = bool(data.get("stream")), data.get("stream_options")
    if options is not None and not stream:
        raise Refused(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if data.get("n") not in (None, 1) or data.get("echo") or data.get("best_of") not in (None, 1):
        raise Refused(400, "this server gives one answer, without echo: n, best_of and echo must be left out")
    return stream, options if isinstance(options, dict) else {}


def _saying(body: _Body, prompt: Prompt, thought: int, length: int, reason: str) -> tuple[Saying, int, str]:
    """What the answer says, its length, and why it ends there; of a length as drawn where it is free to have it."""
    key, limit = body.key(prompt), limit_of(body.data)
    wanted = read_wanted(body.endpoint, body.data, key)
    pieces = told_to_say(prompt.text, key, body.settings.says_ratio)
    if wanted.schema is not None:
        try:
            pieces = json_pieces(wanted.schema, key, length - thought, cut=False)
        except Unsupported as error:
            raise Refused(400, f"the JSON schema cannot be followed: {error}", param=wanted.param) from None
    if pieces is None:
        return Saying(key, thought), length, reason
    room = len(pieces) if limit is None else limit - thought
    if len(pieces) > room:
        return Saying(key, thought, pieces[:room], wanted.tool), thought + room, "length"
    if wanted.schema is not None and _share(key) < body.settings.invalid_json_ratio:
        pieces = spoiled(pieces, key)
    return Saying(key, thought, pieces, wanted.tool), thought + len(pieces), "tool_calls" if wanted.tool else "stop"


def _share(key: int) -> float:
    """Evenly from 0 to 1, and another for every key."""
    return crc32(key.to_bytes(4, "big")) / 2**32


def _priority(data: dict[str, object]) -> int:
    value = data.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(400, "1 validation error: Input should be a valid integer", "Bad Request", "body.priority")
    return value
