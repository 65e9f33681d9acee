"""Why an answer ended, in the three words that everything else is told in: `stop`, `length` and `tool_calls`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchgate.model.records import ACCEPTED_FINISH

_MEANT: Mapping[str, str] = MappingProxyType(
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
        "tool_use": "tool_calls",  # Anthropic
        "function_call": "tool_calls",  # OpenAI, before there were tools
    }
)
_NO_REASON = frozenset({"", "null"})  # TGI's completions, LocalAI, KoboldCpp, before the end


def finish_reason(told: object) -> str | None:
    """Why an answer ended, of what a server gives as its reason; None when it gives none yet.

    Servers and gateways have words of their own for the three that mean success, or write them in capitals. What is
    none of these stays as it is told: `abort`, `error`, `content_filter` and whatever nobody knows are no success.
    """
    if told is None:
        return None
    word = str(told).strip().lower()
    if word in _NO_REASON:
        return None
    if word in ACCEPTED_FINISH:
        return word
    return _MEANT.get(word, str(told))
