"""Whether a whole, not streamed, answer of status 200 holds what was asked for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchgate.model.request import Endpoint, ModelRequest, text_request
from benchgate.targets.content import holds_call, holds_thinking, text_in
from benchgate.targets.error_messages import json_object
from benchgate.targets.finish import finish_reason
from benchgate.targets.usage import output_count

_PROMPT = "Say hello."
_TOKENS = 8  # one token of a reasoning model is a mark without any text
_TEXT_FIELDS = ("content", "refusal", "reasoning_content", "reasoning", "reasoning_details")


def probe_ask(endpoint: Endpoint) -> ModelRequest:
    """The shortest request that shows that a server does what this endpoint is for."""
    if endpoint == "rerank":
        return ModelRequest("rerank", {"query": _PROMPT, "documents": ["Hello.", "Goodbye."]}, None, stream=False)
    ask = text_request(endpoint, _PROMPT, _TOKENS)
    return ModelRequest(endpoint, ask.content, ask.output_tokens, stream=False)


def answered(endpoint: Endpoint, content: bytes) -> dict[str, object] | None:
    """The JSON object of an answer; a bare list of ranks (SGLang) as if it were one. None of anything else."""
    if endpoint == "rerank" and content.lstrip().startswith(b"["):
        return json_object(b'{"results": %b}' % content)
    return json_object(content)


def missing(endpoint: Endpoint, document: Mapping[str, object]) -> str | None:
    """What an answer lacks; None when it is one."""
    return _MISSING[endpoint](document)


def _choice(document: Mapping[str, object]) -> str | None:
    choice = _first(document.get("choices"))
    if choice is None:
        return "HTTP 200 without a choice in it"
    answer = choice.get("message")
    if not isinstance(answer, dict):
        return None if text_in(choice.get("text")) else "an empty answer"
    hidden = thought_unseen(choice.get("finish_reason"), document.get("usage"))
    return None if hidden or holds_output(answer) else "an empty answer"


def holds_output(message: Mapping[str, object]) -> bool:
    """Whether a message of a chat, or a piece of one, holds a text, what the model thinks, or a call of a tool."""
    thinks = holds_thinking(message.get("content"))
    return thinks or holds_call(message) or any(text_in(message.get(n)) for n in _TEXT_FIELDS)


def thought_unseen(reason: object, usage: object) -> bool:
    """Whether an answer without a text was cut at its limit in thoughts that nobody is shown: tokens were made."""
    return finish_reason(reason) == "length" and output_count(usage) is not None


def _response(document: Mapping[str, object]) -> str | None:
    output = document.get("output")
    if not isinstance(output, list):
        return "HTTP 200 without an output in it"
    held = [item.get(key) for item in output if isinstance(item, dict) for key in ("content", "summary")]
    parts = [part for found in held if isinstance(found, list) for part in found]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    details = document.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    hidden = thought_unseen(reason, document.get("usage"))
    return None if hidden or any(isinstance(text, str) and text for text in texts) else "an empty answer"


def _embedding(document: Mapping[str, object]) -> str | None:
    first = _first(document.get("data"))
    return None if first is not None and first.get("embedding") else "HTTP 200 without an embedding in it"


def _ranks(document: Mapping[str, object]) -> str | None:
    first = _first(document.get("results"))
    scores = [] if first is None else [first.get("relevance_score"), first.get("score")]
    told = any(isinstance(score, int | float) and not isinstance(score, bool) for score in scores)
    return None if told else "HTTP 200 without ranks in it"


_MISSING: Mapping[Endpoint, Callable[[Mapping[str, object]], str | None]] = MappingProxyType(
    {"chat": _choice, "completions": _choice, "responses": _response, "embeddings": _embedding, "rerank": _ranks}
)


def _first(found: object) -> dict[str, object] | None:
    first = found[0] if isinstance(found, list) and found else None
    return first if isinstance(first, dict) else None
