"""Chat and completions answers: streams of events, and single JSON documents.

Nearly all events of an answer differ only in a plain text and in the answer's id. Parsing each of them as JSON costs
more than everything else done with it, so a kind of event is parsed once (`known_event`). The output of a document
arrives at once, with the last read of the body: TTFT is the time to its end, and there is no pace.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from benchgate.load.decode.answer import AnswerContent, ParsedAnswer, place_of
from benchgate.load.decode.body import RawBody, Read, Template
from benchgate.load.decode.sse import HEARTBEATS, MOST_EVENTS, EventParser, OverlongEvent, is_plain_event, plain_data
from benchgate.targets.answers import finish_reason
from benchgate.targets.error_messages import WORDLESS_ERROR, Secret, error_message, event_error, json_object, redact


def take_event(stream: ParsedAnswer, at_ns: int, text: str, name: str = "") -> None:
    """Note what an event says; `name` is its own, where it has one."""
    if name != "error" and not text.strip():  # a heartbeat
        return
    stream.events += 1
    if name == "error":  # whatever it carries
        stream.error = stream.error or error_message(json_object(text) or {}) or text or WORDLESS_ERROR
        return
    if text.strip() == "[DONE]":
        stream.done_ns = at_ns
        stream.is_over = True
        return
    data = json_object(text)
    if data is None and name in HEARTBEATS:
        return
    if data is None:
        stream.malformed = (
            stream.malformed or f"an event that is not a JSON object: {redact(text, stream.secret)[:120]!r}"
        )
        return
    error = event_error(data)
    if error is not None:
        stream.error = stream.error or error
        return
    choices = data.get("choices")
    if isinstance(choices, list):
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                take_choice(stream, at_ns, choice, place)
    stream.take_usage(data)
    stream.take_id(data)


def take_choice(stream: ParsedAnswer, at_ns: int, choice: dict[str, object], place: int = 0) -> None:
    """Note what a choice of an event says; `place` is where it stands among the choices of the event."""
    delta = choice.get("delta")
    for holder in (choice, delta):
        if isinstance(holder, dict) and holder.get("error"):
            stream.error = stream.error or error_message(holder) or WORDLESS_ERROR
    is_chat = isinstance(delta, dict)
    with_output = stream.take_output(
        at_ns, choice, delta if isinstance(delta, dict) else choice, place, reasons=is_chat
    )
    reason = choice.get("finish_reason")
    if reason is not None:
        stream.take_finish(at_ns, reason, with_output=with_output)


_LONGEST = 4096  # bytes: kinds of longer events are not worth keeping
_KEPT = 256  # kinds
_DATA = b"data: "
_ENDED = b"\n\n"
_ID = re.compile(rb'data: (\{"id": ?")([ !#-\[\]-~]+)(?=")')
_TEXTS = ("content", "text", "reasoning_content", "reasoning")  # what a piece of plain text is called
_BEFORE_TEXT = tuple((name, f'"{name}":{space}"'.encode()) for space in ("", " ") for name in _TEXTS)
_NEVER_PLAIN = b'"\\' + bytes(range(0x20))  # what would end the text, begin an escape, or be no JSON
_TEXT, _OTHER_ID = secrets.token_hex(16), secrets.token_hex(16)  # that no event can hold in any spelling


class EventKind(NamedTuple):
    """The meaning of all events that differ only in their text and in the answer's id."""

    output: bool | None  # whether that is more than reasoning; None where there is none
    finish: object  # the reason, as stated
    counts: dict[str, object] | None  # token counts, as stated
    answer_id: str | None
    model: str | None
    holder: dict[str, object] | None  # what carries its output, but for its text; None where nothing is said
    is_delta: bool  # the holder is the `delta` of a choice, which may hold reasoning
    text: str  # the name under which the text stands in the holder; empty where there is no text
    repeats: bool  # it does nothing but carry its text: those that follow may be of this kind too


class KnownEvent(NamedTuple):
    """An event of a known kind, and the template of the events that may follow it."""

    kind: EventKind
    answer_id: str | None
    text: str
    template: Template | None

    def take(self, stream: ParsedAnswer, at_ns: int) -> None:
        """Note it, as `take_event` does."""
        kind = self.kind
        stream.events += 1
        if kind.holder is not None:
            holder = {**kind.holder, kind.text: self.text} if kind.text else kind.holder
            stream.words.take(holder, reasons=kind.is_delta)
        if kind.output is not None:
            stream.take_chunk(at_ns, answers=kind.output)
        if kind.finish is not None:
            stream.take_finish(at_ns, kind.finish, with_output=kind.output is not None)
        if kind.counts is not None:
            stream.take_usage(kind.counts)
        if stream.answer_id is None:
            stream.answer_id = self.answer_id
        if stream.model is None:
            stream.model = kind.model


def known_event(read: bytes) -> KnownEvent | None:
    """Return a plain event (`is_plain_event`) of a known kind; None where it must be parsed by itself.

    A JSON string without quotes, backslashes and control characters is one token. Any other such string in its place
    leaves the rest of the event as it was.
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
        return None if kind is None else KnownEvent(kind, answer_id or kind.answer_id, "", None)
    if read[begin:end].translate(None, _NEVER_PLAIN) != read[begin:end]:
        return None
    kind = _kind(opening, read[at:begin], text, read[end:])
    if kind is None:
        return None
    template = Template(read[:begin], read[end:]) if kind.repeats else None
    return KnownEvent(kind, answer_id or kind.answer_id, read[begin:end].decode("utf-8", "replace"), template)


def _text_in(read: bytes, at: int) -> tuple[str, int, int]:
    """Return the name of the event's text, and where the text begins and seems to end."""
    for name, before in _BEFORE_TEXT:
        found = read.find(before, at)
        if found >= 0:
            begin = found + len(before)
            end = read.find(b'"', begin)
            if end != begin:
                return name, begin, end
    return "", 0, 0


@lru_cache(maxsize=_KEPT)
def _kind(opening: bytes, before: bytes, text: str = "", after: bytes = b"") -> EventKind | None:
    """Return the meaning of events with any id between `opening` and `before` and any `text` between that and `after`.

    It is tried with an id and a text that occur nowhere else, which must be found in their places. None otherwise, for
    an event with an error or more than one choice, and for another choice than the first.
    """
    other_id, other_text = (_OTHER_ID if opening else ""), (_TEXT if text else "")
    read = opening + other_id.encode() + before + other_text.encode() + after
    event = json_object(read.removesuffix(_ENDED).decode("utf-8", "replace"))
    if event is None or event_error(event) is not None or (other_id and event.get("id") != other_id):
        return None
    choices = event.get("choices") or [{}]
    if not isinstance(choices, list) or len(choices) > 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    is_delta = isinstance(delta, dict)
    holder = delta if isinstance(delta, dict) else choice
    if text and holder.get(text) != other_text:
        return None
    answer = ParsedAnswer()
    take_choice(answer, 0, choice)
    answer.take_id(event)
    if answer.error is not None or place_of(choice.get("index"), 0):
        return None
    finish = choice.get("finish_reason")
    counts = {name: event[name] for name in ("usage", "timings") if isinstance(event.get(name), dict)} or None
    repeats = bool(text) and bool(answer.chunk_ns) and finish_reason(finish) is None and counts is None
    if repeats:  # unless it has output also when its text is empty
        empty, silent = {**holder, text: ""}, ParsedAnswer()
        take_choice(silent, 0, {**choice, "delta": empty} if is_delta else empty)
        repeats = not silent.chunk_ns
    return EventKind(
        output=answer.answer_ns is not None if answer.chunk_ns else None,
        finish=finish,
        counts=counts,
        answer_id=None if other_id else answer.answer_id,
        model=answer.model,
        holder=None if answer.words == AnswerContent() else holder,
        is_delta=is_delta,
        text=text,
        repeats=repeats,
    )


_IN_VAIN = 8  # events may be looked up that begin no run of like ones, as the first ones and the last ones do; of all
_IN_VAIN_ONE_IN = 32  # others at most: where each event has something of its own, looking it up only costs


def read_stream(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as server-sent events of a chat or completions stream. What follows `[DONE]` is ignored."""
    stream, parser = ParsedAnswer(secret=secret), EventParser()
    alone = True  # whether a read can be taken by itself
    in_vain = 0
    reads = iter(body if isinstance(body, RawBody) else RawBody.of(body))
    for at_ns, data in reads:
        if alone and is_plain_event(data):
            parser.begun()
            known = None
            if (in_vain - _IN_VAIN) * _IN_VAIN_ONE_IN <= stream.events:
                in_vain += 1
                known = known_event(data)
            if known is None:
                take_event(stream, at_ns, plain_data(data))
            else:
                known.take(stream, at_ns)
                if known.template is not None:
                    run = reads.skip_run(known.template)
                    stream.events += run.events
                    stream.chunk_ns += run.output_ns
                    if run.events:
                        stream.words.take_same(known.kind.text, run.texts)
                    in_vain -= run.events > 0
        else:
            _feed(stream, parser, at_ns, data)
            alone = parser.between_events
        if stream.events > MOST_EVENTS or parser.blocks > MOST_EVENTS:
            stream.malformed = stream.malformed or f"more than {MOST_EVENTS} events"
            stream.is_over = True
        if stream.is_over:
            break
    stream.ended = reads.ended
    return stream


def _feed(stream: ParsedAnswer, parser: EventParser, at_ns: int, data: bytes) -> None:
    try:
        events = parser.feed(at_ns, data)
    except OverlongEvent as exc:
        stream.malformed = stream.malformed or str(exc)
        stream.is_over = True
        return
    for event in events:
        take_event(stream, at_ns, event.data, event.name)
        if stream.is_over:
            return


def read_document(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the document of a chat or completions answer. Without events when it is no JSON object."""
    at_ns, data = whole_document(body)
    stream = ParsedAnswer(secret=secret)
    if data is None:
        return stream
    stream.events = 1
    stream.error = event_error(data)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        stream.malformed = "a document without choices"
        return stream
    for place, choice in enumerate(choices):
        if isinstance(choice, dict):
            message = choice.get("message")
            for part in (choice, message):
                if isinstance(part, dict) and part.get("error"):
                    stream.error = stream.error or error_message(part) or WORDLESS_ERROR
            stream.take_output(at_ns, choice, message if isinstance(message, dict) else choice, place)
    for choice in choices:  # once all output is there: a finish reason of the first choice does not end the others
        if isinstance(choice, dict):
            stream.take_finish(at_ns, choice.get("finish_reason"))
    stream.take_usage(data)
    stream.take_id(data)
    return stream


def whole_document(body: Iterable[Read]) -> tuple[int, dict[str, object] | None]:
    """Return the instant of the last read and the JSON object of the body, None if it is none."""
    at_ns, raw = joined_reads(body)
    return at_ns, json_object(raw)


def joined_reads(body: Iterable[Read]) -> tuple[int, bytes]:
    """Return the instant of the last read (0 without any) and the whole body."""
    reads = list(body)
    return reads[-1][0] if reads else 0, b"".join([data for _, data in reads])
