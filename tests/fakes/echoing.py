"""Completions servers that score what they are given, rightly or wrongly: a model whose every value is stated.

    with ScriptedServer(Echoing(values={" four": -0.25})) as server: ...

A token is a word with the space before it, or a sign. Its log-probability is stated, or UNSTATED.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.scripted_server import Received, Step, json_response

UNSTATED = -2.0
GENERATED = "!"  # what it writes next


def words(text: str) -> list[str]:
    return re.findall(r" ?\w+|\s|[^\w\s]", text)


@dataclass(frozen=True)
class Echoing:
    """`shown` is how a token is told; `lead` what stands before every text; `spoil` changes the finished document."""

    values: Mapping[str, float] = field(default_factory=dict)
    tokenise: Callable[[str], list[str]] = words
    shown: Callable[[str], str] = str
    lead: tuple[str, ...] = ()
    tells_generated: bool = True
    spoil: Callable[[dict[str, Any]], object] = lambda document: None

    def __call__(self, received: Received) -> Iterable[Step]:
        return [json_response(self.document(received.prompt))]

    def document(self, prompt: str) -> dict[str, Any]:
        tokens = [*self.lead, *self.tokenise(prompt)]
        scored = [*tokens, GENERATED] if self.tells_generated else tokens
        values = [None, *(self.values.get(token, UNSTATED) for token in scored[1:])]
        shown = [self.shown(token) for token in scored]
        tops = [None, *({token: value, "likely": -1.0} for token, value in zip(shown[1:], values[1:], strict=True))]
        told = {"tokens": shown, "token_logprobs": values, "top_logprobs": tops, "text_offset": [0] * len(shown)}
        document = {
            "object": "text_completion",
            "choices": [{"index": 0, "text": prompt + GENERATED, "logprobs": told, "finish_reason": "length"}],
            "usage": {"prompt_tokens": len(tokens), "completion_tokens": 1, "total_tokens": len(tokens) + 1},
        }
        self.spoil(document)
        return document


def told(document: dict[str, Any]) -> dict[str, Any]:
    """The log-probabilities in a document."""
    found: dict[str, Any] = document["choices"][0]["logprobs"]
    return found
