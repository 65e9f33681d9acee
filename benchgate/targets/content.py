"""What a message holds: its content is mostly one text, of some servers a list of parts; and the tools it calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

_THOUGHTS = ("thinking", "reasoning")


def text_in(content: object) -> str | None:
    """All the text of a content; None where there is none. What a model thinks is no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [part.get("text") for part in _parts(content) if part.get("type") not in _THOUGHTS]
    told = [text for text in texts if isinstance(text, str)]
    return "".join(told) if told else None


def holds_thinking(content: object) -> bool:
    """Whether one of its parts is what the model thinks: `thinking` (Mistral) or `reasoning`, with a text in it."""
    return bool(thinking_in(content))


def thinking_in(content: object) -> str | None:
    """Return the text of the `thinking` (Mistral) and `reasoning` parts of a content. None if it has no parts."""
    if not isinstance(content, list):
        return None
    thoughts = (part for part in _parts(content) if part.get("type") in _THOUGHTS)
    return "".join(text_in(part.get(name)) or "" for part in thoughts for name in ("thinking", "text", "summary"))


def calls_in(told: object) -> list[object] | None:
    """The calls of a message, or of a piece of one, also where one stands by itself. None of anything else."""
    return [told] if isinstance(told, dict) else told if isinstance(told, list) else None


def calls_something(function: object) -> bool:
    """Whether this is a piece of a call, of a tool or of a function: it has a name, or some arguments."""
    if not isinstance(function, dict):
        return False
    name, arguments = function.get("name"), function.get("arguments")
    return any(isinstance(told, str | dict) and bool(told) for told in (name, arguments))


def holds_call(message: Mapping[str, object]) -> bool:
    """Whether a message, or a piece of one, calls a tool, or a function as OpenAI had them before."""
    called = (call.get("function") for call in calls_in(message.get("tool_calls")) or () if isinstance(call, dict))
    return any(map(calls_something, called)) or calls_something(message.get("function_call"))


def arguments_text(told: object) -> str | None:
    """The arguments of a call as they were written; as JSON where they are an object. None of anything else."""
    return json.dumps(told) if isinstance(told, dict) else told if isinstance(told, str) else None


def _parts(content: list[object]) -> Iterator[dict[str, object]]:
    return (part for part in content if isinstance(part, dict))
