"""Planned shadow prompts: requests, the sample that the baseline answers twice, and their identity in a plan."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from benchgate.model.deployment import canonical_json
from benchgate.model.request import ModelRequest, text_request

_STREAM = 2  # random stream of the prompts sent twice; those of the load are 0 and 1


@dataclass(frozen=True, slots=True)
class ShadowPrompt:
    """Recorded prompt.

    Without `messages`, `prompt` is sent as the only user message, or as it is if `endpoint` is completions. With
    `messages`, it is their canonical serialisation, for the digest. `fields` are added to the request; `max_tokens` is
    this prompt's own limit; `stratum` names the slice of the traffic it was sampled from. `once`: the baseline gets it
    once, not twice.
    """

    id: str
    prompt: str
    messages: tuple[Mapping[str, object], ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    endpoint: Literal["chat", "completions"] = "chat"
    max_tokens: int | None = None
    stratum: str | None = None
    once: bool = False

    def ask(self, max_tokens: int) -> ModelRequest:
        """Build the request, not streamed; `max_tokens` applies if the prompt has no limit of its own."""
        limit = self.max_tokens or max_tokens
        if not self.messages:
            ask = text_request(self.endpoint, self.prompt, limit, ignore_eos=False)
            return replace(ask, stream=False, fields=self.fields, recorded=True)
        content = {"messages": [dict(message) for message in self.messages]}
        return ModelRequest("chat", content, limit, stream=False, ignore_eos=False, fields=self.fields, recorded=True)


def sample_repeated_prompts(prompts: Sequence[ShadowPrompt], ratio: float, seed: int) -> tuple[ShadowPrompt, ...]:
    """Select at random the share of prompts that the baseline answers twice, reproducible by the seed."""
    if ratio >= 1:
        return tuple(prompts)
    generator = np.random.default_rng([seed, _STREAM])
    drawn = generator.permutation(len(prompts))
    twice = set(drawn[: math.ceil(ratio * len(prompts))].tolist())
    return tuple(prompt if at in twice else replace(prompt, once=True) for at, prompt in enumerate(prompts))


def prompt_to_json(row: ShadowPrompt) -> dict[str, object]:
    """Serialise the identity of a recorded prompt and its request, by digests of user text."""
    spelled: dict[str, object] = {"id": row.id, "prompt_sha256": text_sha256(row.prompt)}
    if row.fields:
        spelled["fields_sha256"] = hashlib.sha256(canonical_json(dict(row.fields))).hexdigest()
    if row.endpoint != "chat":
        spelled["endpoint"] = row.endpoint
    if row.max_tokens is not None:
        spelled["max_tokens"] = row.max_tokens
    return {**spelled, "once": True} if row.once else spelled


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
