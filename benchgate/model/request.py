"""Request to a model, independent of any engine's API (see `targets.dialect`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Endpoint = Literal["chat", "completions", "responses", "embeddings", "rerank"]
GENERATING_ENDPOINTS: frozenset[Endpoint] = frozenset({"chat", "completions", "responses"})
"""Endpoints that generate text; the others return numbers, in one piece."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Request content and options.

    `content` is the endpoint's input: `{"messages": […]}` for chat, `{"prompt": …}` for completions, `{"input": …}` for
    responses and embeddings, `{"query": …, "documents": […]}` for rerank. In a conversation that continues with the
    model's own answers, an assistant message whose `content` is None is a slot for one of them.
    """

    endpoint: Endpoint
    content: Mapping[str, object]
    output_tokens: int | None  # upper limit; None if the endpoint generates none
    stream: bool = True  # always False for embeddings and rerank
    ignore_eos: bool = True  # generate up to the full length, if the engine supports it
    fields: Mapping[str, object] = field(default_factory=dict)  # of the body, as OpenAI spells them
    model: str | None = None  # adapter name instead of the target's model
    schema: Mapping[str, object] | None = None  # JSON schema of a valid answer
    recorded: bool = False  # written by people: stored by its digest, never by its text

    @property
    def prompt(self) -> str | None:
        """Return the text of a request that is a single text; None for any other."""
        if self.endpoint == "completions":
            return _text(self.content.get("prompt"))
        if self.endpoint in ("responses", "embeddings"):
            return _text(self.content.get("input"))
        messages = self.content.get("messages")
        if not isinstance(messages, list) or len(messages) != 1 or messages[0].get("role") != "user":
            return None
        return _text(messages[0].get("content"))


def text_request(endpoint: Endpoint, text: str, output_tokens: int | None, *, ignore_eos: bool = True) -> ModelRequest:
    """Build a request of one text. Raises ValueError for rerank, which takes several."""
    if endpoint == "rerank":
        raise ValueError("a rerank request is a query and documents, not one text")
    content = text_content(endpoint, text)
    generates = endpoint in GENERATING_ENDPOINTS
    return ModelRequest(
        endpoint, content, output_tokens if generates else None, stream=generates, ignore_eos=ignore_eos
    )


def text_content(endpoint: Endpoint, text: str) -> dict[str, object]:
    """Return the `content` of a request of one text."""
    if endpoint == "chat":
        return {"messages": [{"role": "user", "content": text}]}
    return {"prompt" if endpoint == "completions" else "input": text}


def fill_conversation(ask: ModelRequest, earlier: Sequence[str]) -> ModelRequest:
    """Fill the model's earlier answers into a later turn. Raises ValueError unless there is one for each slot."""
    key = "input" if ask.endpoint == "responses" else "messages"
    messages = ask.content.get(key)
    if not isinstance(messages, list):
        raise ValueError(f"a {ask.endpoint} request carries no conversation on")
    answers = iter(earlier)
    filled = [
        {**message, "content": next(answers, None)} if message.get("content") is None else message
        for message in messages
    ]
    if any(message["content"] is None for message in filled) or next(answers, None) is not None:
        places = sum(message.get("content") is None for message in messages)
        raise ValueError(f"the conversation has {places} places for answers and {len(earlier)} answers were given")
    return replace(ask, content={**ask.content, key: filled})


def _text(found: object) -> str | None:
    return found if isinstance(found, str) else None
