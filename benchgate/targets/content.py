"""What a message holds: its content is mostly one text, of some servers a list of parts; and the tools it calls."""

from __future__ import annotations

import json
from collections.abc import Iterator


def text_in(content: object) -> str | None:
    """All the text of a content; None where there is none. What a model thinks is no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [text for part in _parts(content) if isinstance(text := part.get("text"), str)]
    return "".join(texts) if texts else None


def holds_thinking(content: object) -> bool:
    """Whether one of its parts is what the model thinks, as Mistral sends it."""
    if not isinstance(content, list):
        return False
    return any(text_in(part.get("thinking")) for part in _parts(content))


def calls_in(told: object) -> list[object] | None:
    """The calls of a message, or of a piece of one, also where one stands by itself. None of anything else."""
    return [told] if isinstance(told, dict) else told if isinstance(told, list) else None


def arguments_text(told: object) -> str | None:
    """The arguments of a call as they were written; as JSON where they are an object. None of anything else."""
    return json.dumps(told) if isinstance(told, dict) else told if isinstance(told, str) else None


def _parts(content: list[object]) -> Iterator[dict[str, object]]:
    return (part for part in content if isinstance(part, dict))
