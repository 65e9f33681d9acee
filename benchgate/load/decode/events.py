"""Streams of typed events, read alike for every API that sends them: heartbeats, errors, the end, and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import Read
from benchgate.load.decode.sse import HEARTBEATS, EventParser, OverlongEvent
from benchgate.targets.error_messages import WORDLESS_ERROR, Secret, error_message, event_error, json_object, redact

# Limit of events in one stream, comments and heartbeats included: a hostile server must not keep us busy.
MOST_EVENTS = 1_000_000

TakeEvent = Callable[[ParsedAnswer, int, str, dict[str, object]], bool]
"""Notes an event by its instant, type and data. Returns False for a type that the API does not have."""


def read_events(body: Iterable[Read], take: TakeEvent, *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as server-sent events of JSON objects. What follows the last one is ignored."""
    stream, parser = ParsedAnswer(secret=secret), EventParser()
    for at_ns, data in body:
        try:
            events = parser.feed(at_ns, data)
        except OverlongEvent as exc:
            stream.malformed = stream.malformed or str(exc)
            break
        if parser.blocks > MOST_EVENTS:
            stream.malformed = stream.malformed or f"more than {MOST_EVENTS} events"
            break
        for event in events:
            _take_event(stream, at_ns, event.data, event.name, take)
            if stream.is_over:
                return stream
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
