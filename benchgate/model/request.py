"""What one request asks a model for, in no engine's spelling. How an engine says it is `targets.dialect`'s to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Endpoint = Literal["chat", "completions", "responses", "embeddings", "rerank"]
GENERATING: frozenset[Endpoint] = frozenset({"chat", "completions", "responses"})
"""The endpoints that answer with text; the others answer with numbers, in one piece."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for.

    `content` is what the endpoint is given: `{"messages": […]}` for chat, `{"prompt": …}` for completions,
    `{"input": …}` for responses and embeddings, `{"query": …, "documents": […]}` for rerank. In a conversation that
    carries the model's own answers on, a message of the assistant whose `content` is None is a place for one of them.
    `fields` are further fields of the body, as OpenAI spells them: `tools`, `response_format`, `priority`.
    """

    endpoint: Endpoint
    content: Mapping[str, object]
    output_tokens: int | None  # at most so many; None where the endpoint generates none
    stream: bool = True  # always False for embeddings and rerank
    ignore_eos: bool = True  # the answer runs to its full length, where the engine has a way to say that
    fields: Mapping[str, object] = field(default_factory=dict)
    model: str | None = None  # an adapter's name instead of the target's model
    schema: Mapping[str, object] | None = None  # JSON schema that the answer must satisfy to be valid
    recorded: bool = False  # what people wrote: kept by its digest, never by its text

    @property
    def prompt(self) -> str | None:
        """The text of a request that is one text and nothing else; None of any other."""
        if self.endpoint == "completions":
            return _text(self.content.get("prompt"))
        if self.endpoint in ("responses", "embeddings"):
            return _text(self.content.get("input"))
        messages = self.content.get("messages")
        if not isinstance(messages, list) or len(messages) != 1 or messages[0].get("role") != "user":
            return None
        return _text(messages[0].get("content"))


def text_ask(endpoint: Endpoint, text: str, output_tokens: int | None, *, ignore_eos: bool = True) -> Ask:
    """A request of one text: one message of a user, a prompt, an input. ValueError for rerank, which takes several."""
    if endpoint == "rerank":
        raise ValueError("a rerank request is a query and documents, not one text")
    content = text_content(endpoint, text)
    generates = endpoint in GENERATING
    return Ask(endpoint, content, output_tokens if generates else None, stream=generates, ignore_eos=ignore_eos)


def text_content(endpoint: Endpoint, text: str) -> dict[str, object]:
    """The `content` of a request of one text."""
    if endpoint == "chat":
        return {"messages": [{"role": "user", "content": text}]}
    return {"prompt" if endpoint == "completions" else "input": text}


def carried_on(ask: Ask, earlier: Sequence[str]) -> Ask:
    """The ask of a later turn with the model's own earlier answers in their places, in order.

    ValueError unless there are as many answers as places: a conversation with a hole in it is none.
    """
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
