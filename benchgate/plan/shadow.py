"""Recorded prompts made concrete: what is sent of each, which of them the baseline is asked twice, their identity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from benchgate.model.deployment import canonical_json
from benchgate.model.request import Ask, text_ask

_DRAW = 2
"""What the draw of the prompts that are asked twice adds to the suite's seed; the load's draws have 0 and 1."""


@dataclass(frozen=True, slots=True)
class ShadowPrompt:
    """One recorded prompt.

    Without `messages`, `prompt` is what is sent: as the one message of a user, or as it is where `endpoint` is
    completions. With `messages` it is the one spelling of them, from which the digest is made. `fields` go into the
    request as they are; `max_tokens` is this prompt's own limit; `stratum` names the slice of the traffic that it was
    drawn from. `once`: the baseline is asked once, not twice.
    """

    id: str
    prompt: str
    messages: tuple[Mapping[str, object], ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    endpoint: Literal["chat", "completions"] = "chat"
    max_tokens: int | None = None
    stratum: str | None = None
    once: bool = False

    def ask(self, max_tokens: int) -> Ask:
        """What is sent, whole and not streamed; `max_tokens` where the prompt has no limit of its own."""
        limit = self.max_tokens or max_tokens
        if not self.messages:
            ask = text_ask(self.endpoint, self.prompt, limit, ignore_eos=False)
            return replace(ask, stream=False, fields=self.fields, recorded=True)
        content = {"messages": [dict(message) for message in self.messages]}
        return Ask("chat", content, limit, stream=False, ignore_eos=False, fields=self.fields, recorded=True)


def some_asked_twice(prompts: Sequence[ShadowPrompt], ratio: float, seed: int) -> tuple[ShadowPrompt, ...]:
    """The prompts, of which the baseline is asked this share twice: drawn by chance, the same for the same seed."""
    if ratio >= 1:
        return tuple(prompts)
    generator = np.random.default_rng([seed, _DRAW])
    drawn = generator.permutation(len(prompts))
    twice = set(drawn[: math.ceil(ratio * len(prompts))].tolist())
    return tuple(prompt if at in twice else replace(prompt, once=True) for at, prompt in enumerate(prompts))


def spelled_prompt(row: ShadowPrompt) -> dict[str, object]:
    """What identifies a recorded prompt and all that is sent with it; never the text that somebody wrote."""
    spelled: dict[str, object] = {"id": row.id, "prompt_sha256": text_sha256(row.prompt)}
    if row.fields:
        spelled["fields_sha256"] = hashlib.sha256(canonical_json(dict(row.fields))).hexdigest()
    if row.endpoint != "chat":
        spelled["endpoint"] = row.endpoint
    if row.max_tokens is not None:
        spelled["max_tokens"] = row.max_tokens
    return {**spelled, "once": True} if row.once else spelled


def text_sha256(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
