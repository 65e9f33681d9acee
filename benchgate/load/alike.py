"""A shorter way for events that differ from each other only in a piece of plain text, and in the answer's id.

Nearly all events of an answer do, and so do the first ones of all answers, and the last ones. Reading each of them as
JSON, and looking for all that it may say, costs more than all else that is done with it: what they say is worked out
once for all that are alike.
"""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from typing import NamedTuple

from benchgate.load.answer_text import Words
from benchgate.load.seen import Stream
from benchgate.load.stream_event import take_choice
from benchgate.load.template import Template
from benchgate.targets.answers import finish_reason
from benchgate.targets.error_messages import event_error, json_object

_LONGEST = 4096  # bytes: kinds of longer events are not worth keeping
_KEPT = 256  # kinds
_DATA = b"data: "
_ENDED = b"\n\n"
_ID = re.compile(rb'data: (\{"id": ?")([ !#-\[\]-~]+)(?=")')
_TEXTS = ("content", "text", "reasoning_content", "reasoning")  # what a piece of plain text is called
_BEFORE_TEXT = tuple((name, f'"{name}":{space}"'.encode()) for space in ("", " ") for name in _TEXTS)
_NEVER_PLAIN = b'"\\' + bytes(range(0x20))  # what would end the text, begin an escape, or be no JSON
_TEXT, _OTHER_ID = secrets.token_hex(16), secrets.token_hex(16)  # that no event can hold in any spelling


class Kind(NamedTuple):
    """What all events say that are alike."""

    output: bool | None  # whether that is more than reasoning; None where there is none
    finish: object  # the reason, as it is told
    counts: dict[str, object] | None  # what the event says of token counts, as it is told
    answer_id: str | None
    model: str | None
    holder: dict[str, object] | None  # what carries its output, but for its text; None where nothing is said
    is_delta: bool  # the holder is the `delta` of a choice, which may hold reasoning
    text: str  # the name under which the text stands in the holder; empty where there is no text
    repeats: bool  # it does nothing but carry its text: those that follow may be of this kind too


class Known(NamedTuple):
    """What one event says; and what those that follow may be, with texts of their own."""

    kind: Kind
    answer_id: str | None
    text: str
    template: Template | None

    def take(self, stream: Stream, at_ns: int) -> None:
        """Note it, as `take_event` does."""
        kind = self.kind
        stream.events += 1
        if kind.output is not None:
            stream.take_chunk(at_ns, answers=kind.output)
        if kind.holder is not None:
            holder = {**kind.holder, kind.text: self.text} if kind.text else kind.holder
            stream.words.take(holder, reasons=kind.is_delta)
        if kind.finish is not None:
            stream.take_finish(at_ns, kind.finish, with_output=kind.output is not None)
        if kind.counts is not None:
            stream.take_usage(kind.counts)
        if stream.answer_id is None:
            stream.answer_id = self.answer_id
        if stream.model is None:
            stream.model = kind.model


def known(read: bytes) -> Known | None:
    """What a read that is one plain event says, as `is_plain_event` has it. None where it must be read by itself.

    Of JSON, a string without quotes, backslashes and control characters is one token, and so is any other such string
    in its place: everything around it, and so the meaning of the event, stays what it was.
    """
    if len(read) > _LONGEST:
        return None
    identified = _ID.match(read)
    opening, answer_id, at = b"", None, len(_DATA)
    if identified:
        opening, answer_id, at = identified[1], identified[2].decode("ascii"), identified.end()
    text, begin, end = _text_in(read, at)
    if begin == end:
        kind = _kind(opening, read[at:])
        return None if kind is None else Known(kind, answer_id or kind.answer_id, "", None)
    if not _is_plain(read[begin:end]):
        return None
    kind = _kind(opening, read[at:begin], text, read[end:])
    if kind is None:
        return None
    template = Template(read[:begin], read[end:]) if kind.repeats else None
    return Known(kind, answer_id or kind.answer_id, read[begin:end].decode("utf-8", "replace"), template)


def _is_plain(text: bytes) -> bool:
    """Whether this is what a JSON string may hold as it is."""
    return len(text.translate(None, _NEVER_PLAIN)) == len(text)


def _text_in(read: bytes, at: int) -> tuple[str, int, int]:
    """What its text is called, and from where to where it seems to go; nowhere when there is none."""
    for name, before in _BEFORE_TEXT:
        found = read.find(before, at)
        if found >= 0:
            begin = found + len(before)
            end = read.find(b'"', begin)
            if end != begin:
                return name, begin, end
    return "", 0, 0


@lru_cache(maxsize=_KEPT)
def _kind(opening: bytes, before: bytes, text: str = "", after: bytes = b"") -> Kind | None:
    """What any event says with any id between `opening` and `before`, and any `text` between that and `after`.

    Both are tried out, with an id and a text that stand nowhere else in it, and must be found where they are meant to
    be. None where that is not so, for what is not at most one choice without an error, and for output in another choice
    than the first.
    """
    other_id, told = (_OTHER_ID if opening else ""), (_TEXT if text else "")
    read = opening + other_id.encode() + before + told.encode() + after
    event = json_object(read.removesuffix(_ENDED).decode("utf-8", "replace"))
    if event is None or event_error(event) is not None or (other_id and event.get("id") != other_id):
        return None
    choice = _only_one(event.get("choices"))
    if choice is None or (text and _holder_of(choice).get(text) != told):
        return None
    return _kind_of(event, choice, text, identified=bool(other_id))


def _only_one(choices: object) -> dict[str, object] | None:
    """The choice of an event, empty where it has none; None where it has several, or what is no choice."""
    if not choices:
        return {}
    if not isinstance(choices, list) or len(choices) > 1 or not isinstance(choices[0], dict):
        return None
    return choices[0]


def _kind_of(event: dict[str, object], choice: dict[str, object], text: str, *, identified: bool) -> Kind | None:
    seen = Stream()
    take_choice(seen, 0, choice)
    seen.take_id(event)
    if seen.error is not None or seen.others is not None:
        return None
    output = seen.answer_ns is not None if seen.chunk_ns else None
    finish, counts = choice.get("finish_reason"), _counts_of(event)
    repeats = bool(text) and finish_reason(finish) is None and counts is None and _is_silent_without(text, choice)
    return Kind(
        output=output,
        finish=finish,
        counts=counts,
        answer_id=None if identified else seen.answer_id,
        model=seen.model,
        holder=None if seen.words == Words() else _holder_of(choice),
        is_delta=isinstance(choice.get("delta"), dict),
        text=text,
        repeats=repeats and output is not None,
    )


def _counts_of(event: dict[str, object]) -> dict[str, object] | None:
    told = {name: event[name] for name in ("usage", "timings") if isinstance(event.get(name), dict)}
    return told or None


def _holder_of(choice: dict[str, object]) -> dict[str, object]:
    """What in a choice carries its output."""
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else choice


def _is_silent_without(text: str, choice: dict[str, object]) -> bool:
    """Whether there is no output in it where its text is empty."""
    empty, seen = {**_holder_of(choice), text: ""}, Stream()
    take_choice(seen, 0, {**choice, "delta": empty} if isinstance(choice.get("delta"), dict) else empty)
    return not seen.chunk_ns
