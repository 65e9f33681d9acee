"""Whole, not streamed, answers to generation requests, and the parts of answers that every reader needs. Pure.

Parts: the text, reasoning and tool calls of a message, token counts of a usage, finish reasons.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchgate.model.records import ACCEPTED_FINISH
from benchgate.model.request import Endpoint
from benchgate.targets.error_messages import RequestError, Secret, error_text, redact, success_document

MAX_BODY_BYTES = 16 * 1024 * 1024  # a longer body is not an answer; clients stop reading there
_SHORTEST_SECRET = 8  # characters; a shorter one ("EMPTY", "eu") is a word that answers use
EMPTY_ANSWER = "an empty answer"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, with its arguments as they were written: JSON, if all is well."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `text` is None for `null` (mostly hidden reasoning) or calls alone; `refusal` stands apart."""

    text: str | None
    finish_reason: str
    output_tokens: int | None
    calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    input_tokens: int | None = None


def read_answer(
    endpoint: Endpoint,
    status: int,
    body: bytes,
    *,
    secret: Secret = None,
    accepted: frozenset[str] = ACCEPTED_FINISH,
) -> Answer:
    """Read an answer of chat, completions or Messages. Raises RequestError with the server's message, less the secret.

    A response with status 200 that holds an `error`, no choices or a finish reason that is not `accepted` is no answer
    either. Answers are stored, shown and sent to judges, so secrets of 8 characters and more are redacted in them too:
    a gateway under debugging repeats what it was sent.
    """
    try:
        answer = _answer_in(endpoint, success_document(status, body), body, accepted)
    except RequestError as error:
        raise error.redacted(lambda text: redact(text, secret)) from None
    parts = (secret,) if isinstance(secret, str) else secret or ()
    hidden = tuple(part for part in parts if len(part) >= _SHORTEST_SECRET)
    if not hidden:
        return answer
    return replace(
        answer,
        text=None if answer.text is None else redact(answer.text, hidden),
        calls=tuple(ToolCall(redact(call.name, hidden), redact(call.arguments, hidden)) for call in answer.calls),
        refusal=None if answer.refusal is None else redact(answer.refusal, hidden),
    )


def _answer_in(endpoint: Endpoint, document: dict[str, object], body: bytes, accepted: frozenset[str]) -> Answer:
    if endpoint == "messages":
        return _message_in(document, body, accepted)
    choice = first_object(document.get("choices"))
    if choice is None:
        raise RequestError("HTTP 200 without choices", error_text(body))
    reason = _accepted_reason(choice.get("finish_reason"), accepted)
    message = choice.get("message")
    holder, key = (message, "content") if endpoint == "chat" else (choice, "text")
    if not isinstance(holder, dict):
        raise RequestError("HTTP 200 without a message in its first choice")
    content = holder.get(key)
    text = text_in(content)
    if text is None and content is not None and not thinking_in(content):
        raise RequestError(f"HTTP 200 with a {key} that is not a text in its first choice")
    beside = message if isinstance(message, dict) else {}
    refusal = beside.get("refusal")
    usage = document.get("usage")
    return Answer(
        None if text is None else _storable(text),
        reason,
        output_count(usage),
        _tool_calls(beside.get("tool_calls")),
        _storable(refusal) if isinstance(refusal, str) and refusal else None,
        input_count(usage),
    )


def _message_in(document: dict[str, object], body: bytes, accepted: frozenset[str]) -> Answer:
    """Read an answer of Anthropic's Messages: texts and calls stand as blocks in one list."""
    blocks = document.get("content")
    if not isinstance(blocks, list):
        raise RequestError("HTTP 200 without content", error_text(body))
    reason = _accepted_reason(document.get("stop_reason"), accepted)
    text, usage = text_in(blocks), document.get("usage")
    calls = [{"function": {**part, "arguments": part.get("input")}} for part in _parts(blocks) if "input" in part]
    return Answer(
        None if text is None else _storable(text),
        reason,
        output_count(usage),
        _tool_calls(calls),
        input_tokens=message_input_count(usage),
    )


def _accepted_reason(given: object, accepted: frozenset[str]) -> str:
    reason = finish_reason(given)
    if reason is None or reason not in accepted:
        raise RequestError("the answer ended with finish reason", f"{given!r}, none of {', '.join(sorted(accepted))}")
    return reason


def _storable(text: str) -> str:
    """Replace lone surrogates, which can be neither hashed nor stored."""
    return text.encode("utf-8", "replace").decode()


def _tool_calls(found: object) -> tuple[ToolCall, ...]:
    """Return the calls of a message. Raises RequestError for a damaged one: an answer must not lose a call."""
    if found is None:
        return ()
    listed = calls_in(found)
    if listed is None:
        raise RequestError("HTTP 200 with tool_calls that are no list in its first choice")
    calls = []
    for call in listed:
        function = call.get("function") if isinstance(call, dict) else None
        name, written = (function or {}).get("name"), (function or {}).get("arguments")
        arguments = arguments_text(written)
        if not isinstance(function, dict) or not isinstance(name, str) or (arguments is None and written is not None):
            raise RequestError("HTTP 200 with a tool call that has no name, or arguments that are no text")
        calls.append(ToolCall(_storable(name), _storable(arguments or "")))
    return tuple(calls)


def missing_choice(document: Mapping[str, object]) -> str | None:
    """Return the part that a chat or completions answer lacks. None if it holds output."""
    choice = first_object(document.get("choices"))
    if choice is None:
        return "HTTP 200 without a choice in it"
    message = choice.get("message")
    if not isinstance(message, dict):
        return None if text_in(choice.get("text")) else EMPTY_ANSWER
    reasoned = is_hidden_reasoning(choice.get("finish_reason"), document.get("usage"))
    return None if reasoned or holds_output(message) else EMPTY_ANSWER


def missing_response(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer of the responses API lacks. None if it holds output."""
    output = document.get("output")
    if not isinstance(output, list):
        return "HTTP 200 without an output in it"
    held = [item.get(key) for item in output if isinstance(item, dict) for key in ("content", "summary")]
    parts = [part for found in held if isinstance(found, list) for part in found]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    details = document.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    has_text = any(isinstance(text, str) and text for text in texts)
    return None if has_text or is_hidden_reasoning(reason, document.get("usage")) else EMPTY_ANSWER


def missing_embedding(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer of embeddings lacks. None if it holds one."""
    first = first_object(document.get("data"))
    return None if first is not None and first.get("embedding") else "HTTP 200 without an embedding in it"


def missing_rank(document: Mapping[str, object]) -> str | None:
    """Return the part that a ranking lacks. None if it holds a score."""
    first = first_object(document.get("results")) or {}
    scores = (first.get("relevance_score"), first.get("score"))
    has_score = any(isinstance(score, int | float) and not isinstance(score, bool) for score in scores)
    return None if has_score else "HTTP 200 without ranks in it"


def is_hidden_reasoning(reason: object, usage: object) -> bool:
    """Return True if an answer without a text was cut at its limit in reasoning that nobody is shown."""
    return finish_reason(reason) == "length" and output_count(usage) is not None


def first_object(found: object) -> dict[str, object] | None:
    """Return the first member of a list if it is an object."""
    first = found[0] if isinstance(found, list) and found else None
    return first if isinstance(first, dict) else None


# --- the content of a message ---------------------------------------------------------------------------------------

_REASONING_PARTS = ("thinking", "reasoning")
_OUTPUT_FIELDS = ("content", "refusal", "reasoning_content", "reasoning", "reasoning_details")


def holds_output(message: Mapping[str, object]) -> bool:
    """Return True if a message of a chat, or a piece of one, holds a text, reasoning, or a call."""
    if thinking_in(message.get("content")) or any(text_in(message.get(name)) for name in _OUTPUT_FIELDS):
        return True
    called = (call.get("function") for call in calls_in(message.get("tool_calls")) or () if isinstance(call, dict))
    return any(map(calls_something, called)) or calls_something(message.get("function_call"))


def text_in(content: object) -> str | None:
    """Return all text of a content: mostly one text, of some servers a list of parts. Reasoning is no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part.get("text") for part in _parts(content) if part.get("type") not in _REASONING_PARTS]
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts else None


def thinking_in(content: object) -> str | None:
    """Return the text of the `thinking` (Mistral) and `reasoning` parts of a content. None if it has no parts."""
    if not isinstance(content, list):
        return None
    thoughts = (part for part in _parts(content) if part.get("type") in _REASONING_PARTS)
    return "".join(text_in(part.get(name)) or "" for part in thoughts for name in ("thinking", "text", "summary"))


def calls_in(found: object) -> list[object] | None:
    """Return the calls of a message, or of a piece of one, also where one stands by itself."""
    return [found] if isinstance(found, dict) else found if isinstance(found, list) else None


def calls_something(function: object) -> bool:
    """Return True for a piece of a call, of a tool or of a function: it has a name, or some arguments."""
    if not isinstance(function, dict):
        return False
    return any(isinstance(part := function.get(key), str | dict) and bool(part) for key in ("name", "arguments"))


def arguments_text(found: object) -> str | None:
    """Return the arguments of a call as they were written; an object as JSON."""
    return json.dumps(found) if isinstance(found, dict) else found if isinstance(found, str) else None


def _parts(content: list[object]) -> Iterator[dict[str, object]]:
    return (part for part in content if isinstance(part, dict))


# --- usage: null, zero and nonsense are unknown, because servers send zeros for nothing ------------------------------

_MOST_TOKENS = 2**31  # of one answer; more is nonsense that would not fit a column


def token_count(value: object) -> int | None:
    """Return a count of tokens. 0 means unknown."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < _MOST_TOKENS else None


def part_count(value: object) -> int | None:
    """Return a count that may be 0: nothing of the prompt was cached, no token went into reasoning."""
    return 0 if value == 0 and not isinstance(value, bool) else token_count(value)


def input_count(usage: object) -> int | None:
    """Return the tokens of the prompt; `responses` has other names for them than the other endpoints."""
    return _count(usage, "prompt_tokens", "input_tokens")


def message_input_count(usage: object) -> int | None:
    """Return the tokens of the prompt of Anthropic's Messages, whose `input_tokens` are those outside of the cache."""
    if not isinstance(usage, dict) or (uncached := part_count(usage.get("input_tokens"))) is None:
        return None
    cached = (part_count(usage.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    return token_count(uncached + sum(count or 0 for count in cached))


def output_count(usage: object) -> int | None:
    """Return the generated tokens with those of reasoning, which xAI counts beside the answer (see its total)."""
    reported, reasoning = _count(usage, "completion_tokens", "output_tokens"), reasoning_count(usage)
    if not reasoning:
        return reported
    prompt, total, generated = input_count(usage), _count(usage, "total_tokens"), (reported or 0) + reasoning
    return generated if prompt is not None and total == prompt + generated else reported


def reasoning_count(usage: object) -> int | None:
    """Return how many of the generated tokens went into reasoning."""
    found = _detail(usage, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
    if found is None and isinstance(usage, dict):
        return token_count(usage.get("reasoning_tokens"))  # SGLang's place, where 0 may mean not counted
    return found


def cached_count(usage: object) -> int | None:
    """Return how many tokens of the prompt were found in a cache."""
    return _detail(usage, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")


def _count(usage: object, name: str, otherwise: str = "") -> int | None:
    return token_count(usage.get(name, usage.get(otherwise))) if isinstance(usage, dict) else None


def _detail(usage: object, holders: tuple[str, ...], name: str) -> int | None:
    if isinstance(usage, dict):
        for holder in holders:
            details = usage.get(holder)
            if isinstance(details, dict):
                return part_count(details.get(name))
    return None


# --- finish reasons -------------------------------------------------------------------------------------------------

_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "eos": "stop",  # Together
        "eos_token": "stop",  # TGI's completions
        "stop_sequence": "stop",  # TGI, Anthropic
        "end_turn": "stop",  # Anthropic, Bedrock
        "end": "stop",
        "complete": "stop",  # Cohere
        "max_tokens": "length",  # Anthropic, Gemini
        "max_output_tokens": "length",  # responses
        "model_length": "length",  # Mistral
        "model_context_window_exceeded": "length",  # Anthropic
        "tool_use": "tool_calls",  # Anthropic
        "function_call": "tool_calls",  # OpenAI, before there were tools
        "refusal": "content_filter",  # Anthropic
    }
)
_NO_REASON = frozenset({"", "null"})  # TGI's completions, LocalAI, KoboldCpp, before the end


def finish_reason(given: object) -> str | None:
    """Return `stop`, `length` or `tool_calls` for a synonym, None before the end, any other word as it is."""
    if given is None:
        return None
    word = str(given).strip().lower()
    if word in _NO_REASON:
        return None
    return word if word in ACCEPTED_FINISH else _SYNONYMS.get(word, str(given))
