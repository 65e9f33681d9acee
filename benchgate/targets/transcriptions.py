"""Requests for transcriptions and their whole answers, as OpenAI, vLLM and SGLang spell them."""

from __future__ import annotations

from collections.abc import Mapping

from benchgate.model.request import ModelRequest
from benchgate.targets.answers import EMPTY_ANSWER
from benchgate.targets.dialect import Target

TEXT_FORMS = ("text",)  # forms of answers that are no JSON
_ENGINES_WITH_USAGE = ("vllm",)  # which stream their usage when they are asked for it


def body(target: Target, ask: ModelRequest, seed: int | None) -> dict[str, object]:
    """Return the fields of a request. There is no field for the length of an answer: it is as long as the speech."""
    fields: dict[str, object] = {"model": target.model, "response_format": "json", "temperature": 0}
    if ask.model is not None:
        fields[target.dialect.adapter_field] = ask.model
    if ask.stream:
        fields["stream"] = True
        if target.dialect.engine in _ENGINES_WITH_USAGE:
            fields["stream_include_usage"] = True
    return {**fields, **ask.fields, **ask.content}


def missing_transcript(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer lacks. None if it holds a text."""
    text = document.get("text")
    return "HTTP 200 without a text in it" if not isinstance(text, str) else None if text.strip() else EMPTY_ANSWER


def stated_duration_s(document: Mapping[str, object]) -> float | None:
    """Return the length of the recording that a `verbose_json` states, as a number or (vLLM) a text; None for none."""
    stated = document.get("duration")
    if isinstance(stated, bool) or not isinstance(stated, int | float | str):
        return None
    try:
        found = float(stated)
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None
