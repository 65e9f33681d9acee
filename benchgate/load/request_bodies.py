"""Bodies of requests as JSON. Most of a stage differ in nothing but a text and a few numbers.

Putting each of them together and encoding it whole costs more than all else that is done to make a request, and in a
closed loop it is done while answers come in.
"""

from __future__ import annotations

import json
from dataclasses import replace

from benchgate.model.request import Endpoint, ModelRequest, text_content
from benchgate.targets.dialect import Target, ask_body

_Shape = tuple[Endpoint, bool, bool, bool, str | None]
_Values = tuple[str, int, int]
_SLOTS = (b"%(text)b", b"%(tokens)d", b"%(seed)d")
_FIRST: _Values = ("the text of no request", 7_130_519_204, 8_240_613_957)  # as unlikely to stand in a body by
_OTHER: _Values = ('another "one"', 5, 3)  # chance as they are easy to find; the other ones prove that they were found


def whole_body(target: Target, ask: ModelRequest, seed: int) -> bytes:
    """What `ask_body` says, as it is sent."""
    return json.dumps(ask_body(target, ask, seed=seed)).encode()


class RequestBodies:
    """Writes the bodies of many requests to one target, each as `whole_body` would."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._formats: dict[_Shape, bytes | None] = {}

    def write(self, ask: ModelRequest, seed: int) -> bytes:
        """The body of one request."""
        text = ask.prompt
        if text is None or ask.fields or not _is_plain(ask, text):
            return whole_body(self._target, ask, seed)
        shape = (ask.endpoint, ask.output_tokens is None, ask.stream, ask.ignore_eos, ask.model)
        if shape not in self._formats:
            self._formats[shape] = self._format(ask)
        form = self._formats[shape]
        if form is None:
            return whole_body(self._target, ask, seed)
        return _filled(form, (text, ask.output_tokens or 0, seed))

    def _format(self, ask: ModelRequest) -> bytes | None:
        """What all requests of a shape are made from; None when that cannot be told for certain."""
        form = self._with(ask, _FIRST).replace(b"%", b"%%")
        for value, slot in zip(_FIRST, _SLOTS, strict=True):
            found = json.dumps(value).encode()
            if form.count(found) > 1:
                return None
            form = form.replace(found, slot)
        return form if _filled(form, _OTHER) == self._with(ask, _OTHER) else None

    def _with(self, ask: ModelRequest, values: _Values) -> bytes:
        """The body of a request of the same shape with other values."""
        text, tokens, seed = values
        limit = None if ask.output_tokens is None else tokens
        other = replace(ask, content=text_content(ask.endpoint, text), output_tokens=limit)
        return whole_body(self._target, other, seed)


def _is_plain(ask: ModelRequest, text: str) -> bool:
    """Whether it says no more than the text, and in the order in which it is written here."""
    plain = text_content(ask.endpoint, text)
    if ask.content != plain:
        return False
    messages = ask.content.get("messages")
    return not isinstance(messages, list) or list(messages[0]) == ["role", "content"]


def _filled(form: bytes, values: _Values) -> bytes:
    text, tokens, seed = values
    return form % {b"text": json.dumps(text).encode(), b"tokens": tokens, b"seed": seed}
