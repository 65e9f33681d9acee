"""One recorded request as a log shows it: what was asked, without its id, the answer and how it was sampled."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Endpoint = Literal["chat", "completions"]
"""Where a recorded request can be asked again."""

_BOUNDS = (128, 512, 2_048, 8_192, 32_768, 131_072)  # characters; a fourfold step
_WHITE = re.compile(r"\s+")


@dataclass(frozen=True)
class Asked:
    """What one request asked: `messages` of a chat, or the one text `prompt`.

    `endpoint` is where it can be asked again: a rendered prompt goes to completions as it is. `label` says where it
    was asked, as far as the log tells. `fields` are OpenAI's own beside the messages (tools, response_format, …).
    """

    endpoint: Endpoint
    label: str
    messages: tuple[Mapping[str, object], ...] = ()
    prompt: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """All that was said, in order, without who said it."""
        return self.prompt if self.prompt is not None else "\n".join(_said(self.messages))

    @cached_property
    def normal(self) -> str:
        """The text in the form in which texts are compared and measured."""
        return normal_text(self.text)

    @property
    def first(self) -> str:
        """What was said first, which is the system prompt where there is one."""
        return normal_text(next(_said(self.messages), "") if self.prompt is None else self.prompt)

    @cached_property
    def digest(self) -> bytes:
        """One for requests that ask the same, wherever, but for white space and the form of characters."""
        who = [str(message.get("role")) for message in self.messages]
        rest = json.dumps([self.endpoint, who, self.fields], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(f"{rest}\n{self.normal}".encode()).digest()[:16]

    @property
    def length_class(self) -> str:
        """The class of its length in characters, like `128-511`."""
        return _length_class(len(self.normal))

    def row(self, label: str) -> dict[str, object]:
        """The row of a sample, whose id is made of what is asked. `label` names where, for the stratum."""
        asked: dict[str, object] = {"id": f"p-{self.digest.hex()[:16]}"}
        if self.prompt is not None:
            asked["prompt"] = self.prompt
        else:
            asked["messages"] = [dict(message) for message in self.messages]
        asked |= self.fields
        if self.endpoint != "chat":
            asked["endpoint"] = self.endpoint
        return asked | {"stratum": f"{label}/{self.length_class}", "length": len(self.normal)}


def normal_text(text: str) -> str:
    """Unicode NFKC, every run of white space one space, none at the ends."""
    return _WHITE.sub(" ", unicodedata.normalize("NFKC", text)).strip()


def _said(messages: tuple[Mapping[str, object], ...]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            said = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(said, str):
                yield said
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"], sort_keys=True, ensure_ascii=False)


def _length_class(characters: int) -> str:
    low = 0
    for bound in _BOUNDS:
        if characters < bound:
            return f"{low}-{bound - 1}"
        low = bound
    return f"{low}-"
