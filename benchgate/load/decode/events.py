"""Streams of JSON events, read alike for every API that sends them: heartbeats, errors, the end, and limits.

Most events of an answer differ in their text alone. Where an API says which do, one is parsed and those after it are
skipped in one go, as for chat (`decode.chat`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import RawBody, Read, Reads, Template
from benchgate.load.decode.sse import HEARTBEATS, MOST_EVENTS, Event, EventParser, OverlongEvent
from benchgate.targets.error_messages import WORDLESS_ERROR, Secret, error_message, event_error, json_object, redact

_LONGEST = 4096  # bytes of an event whose like are skipped
_OTHER_TEXT = secrets.token_hex(16)  # that no event can hold in any spelling

TakeEvent = Callable[[ParsedAnswer, int, str, dict[str, object]], bool]
"""Notes an event by its instant, type and data. Returns False for a type that the API does not have."""

PlainText = Callable[[dict[str, object]], object]
"""Returns the text of an event that does nothing but carry an answer's text; None for any other."""


def read_events(
    body: Iterable[Read], take: TakeEvent, plain_text: PlainText | None = None, *, secret: Secret = None
) -> ParsedAnswer:
    """Read a body as server-sent events of JSON objects. What follows the last one is ignored."""
    stream, parser = ParsedAnswer(secret=secret), EventParser()
    reads = iter(body if isinstance(body, RawBody) else RawBody.of(body))
    for at_ns, data in reads:
        begins, blocks = parser.between_events, parser.blocks
        try:
            events = parser.feed(at_ns, data)
        except OverlongEvent as exc:
            stream.malformed = stream.malformed or str(exc)
            break
        for event in events:
            _take_event(stream, at_ns, event.data, event.name, take)
            if stream.is_over:
                return stream
        is_one = begins and parser.between_events and parser.blocks == blocks + 1 and len(events) == 1
        if plain_text is not None and is_one and (template := _template(data, events[0], plain_text)) is not None:
            parser.blocks += _skip_like(stream, reads, template)
        if parser.blocks > MOST_EVENTS:
            stream.malformed = stream.malformed or f"more than {MOST_EVENTS} events"
            break
    return stream


def _take_event(stream: ParsedAnswer, at_ns: int, text: str, name: str, take: TakeEvent) -> None:
    if name != "error" and not text.strip():  # a heartbeat
        return
    stream.events += 1
    if text.strip() == "[DONE]":
        stream.done_ns, stream.is_over = at_ns, True
        return
    data = json_object(text)
    if name == "error":  # whatever it carries
        stream.error = stream.error or error_message(data or {}) or redact(text, stream.secret) or WORDLESS_ERROR
    elif data is None and name in HEARTBEATS:
        return
    elif data is None:
        shown = redact(text, stream.secret)[:120]
        stream.malformed = stream.malformed or f"an event that is not a JSON object: {shown!r}"
    elif data.get("type") == "error" or data.get("error") or data.get("errors"):
        stream.error = stream.error or error_message(data) or WORDLESS_ERROR
    else:
        stated = data.get("type")
        if not take(stream, at_ns, stated if isinstance(stated, str) else name, data):
            stream.error = stream.error or event_error(data)


def _template(read: bytes, event: Event, plain_text: PlainText) -> Template | None:
    """Return the template of the events that differ from this one, a whole read, in their text alone."""
    if len(read) > _LONGEST or b"\r" in read:
        return None
    data = json_object(event.data)
    text = None if data is None else plain_text(data)
    if not isinstance(text, str) or not text:
        return None
    before, quoted, after = read.rpartition(f'"{text}"'.encode("utf-8", "replace"))
    if not quoted:  # it is escaped
        return None
    template = Template(before + b'"', b'"' + after)
    return template if _carries_text(template, event.name, plain_text) else None


@lru_cache(maxsize=256)
def _carries_text(template: Template, name: str, plain_text: PlainText) -> bool:
    """Return True if any text in the place makes an event that carries it and is otherwise the same."""
    events = EventParser().feed(0, template.before + _OTHER_TEXT.encode() + template.after)
    data = json_object(events[0].data) if len(events) == 1 and events[0].name == name else None
    return data is not None and plain_text(data) == _OTHER_TEXT


def _skip_like(stream: ParsedAnswer, reads: Reads, template: Template) -> int:
    """Skip the events that come next and match the template. Return how many they were."""
    run = reads.skip_run(template)
    if run.events:
        stream.events += run.events
        stream.chunk_ns += run.output_ns
        stream.words.take_same("text", run.texts)
        if stream.unstated_end_ns is not None:
            stream.unstated_end_ns = reads.read_ns
    return run.events
