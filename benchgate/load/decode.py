"""From what came over the wire to a record: where output began and ended, how much it was, and whether it counts.

Every rule of docs/metrics.md about a single request is here. The status code proves nothing: servers report errors,
aborts and empty answers inside a stream that began with 200. Pure: no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchgate.load.exchange import Fault, Response
from benchgate.load.http1 import Head
from benchgate.load.raw_body import Read
from benchgate.load.sse import EventParser, OverlongEvent, plain_event
from benchgate.load.template import Template
from benchgate.model.records import ACCEPTED_FINISH, ErrorClass, RequestRecord, TokenSource
from benchgate.targets.answer import token_count
from benchgate.targets.refusals import (
    WORDLESS_ERROR,
    Secret,
    event_error,
    json_object,
    message,
    one_line,
    said,
    without,
)

MOST_EVENTS = 1_000_000
"""Of one stream; no answer has more tokens, and a hostile one would keep us busy."""

_EVENTS_PER_TEMPLATE = 4  # at least: where every event has an id of its own, looking for one would only cost
_LONGEST_REASON = 40
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")  # of a chat delta; `text` for completions


def decode(index: int, intended_ns: int, epoch_ns: int, response: Response, *, secret: Secret = None) -> RequestRecord:
    """The record of one request. `intended_ns` is relative to `epoch_ns`, the response's instants are absolute.

    A failed request keeps whatever was seen before it failed. `secret` is blotted out of what the server said.
    """
    is_stream = response.head is not None and response.head.status == 200
    stream = read_stream(response.body, secret=secret) if is_stream else Stream()
    fault = _fault(response, stream)
    tokens, source = _output_tokens(stream)
    return RequestRecord(
        index=index,
        intended_ns=intended_ns,
        sent_ns=_since(epoch_ns, response.sent_ns),
        chunk_ns=tuple([ns - epoch_ns for ns in stream.chunk_ns]),
        end_ns=_since(epoch_ns, stream.end_ns),
        input_tokens=stream.input_tokens,
        output_tokens=tokens,
        token_source=source,
        finish_reason=stream.finish_reason,
        http_status=None if response.head is None else response.head.status,
        error=None if fault is None else fault.error,
        error_detail=None if fault is None else one_line(fault.detail, secret=secret),
        reconnects=response.reconnects,
    )


def output_begun(body: Iterable[Read]) -> bool:
    """Whether a body so far holds a chunk with output."""
    return bool(read_stream(body).chunk_ns)


@dataclass(slots=True)
class Stream:
    """What the events of one stream say, in the order they came; instants in monotonic ns."""

    events: int = 0
    chunk_ns: list[int] = field(default_factory=list)  # of the chunks that carry output
    finish_reason: str | None = None
    finish_ns: int | None = None
    finish_at: int | None = None  # how many chunks with output there were when the finish reason had come
    done_ns: int | None = None  # of `[DONE]`
    input_tokens: int | None = None
    usage_tokens: int | None = None
    error: str | None = None  # what the server called an error
    malformed: str | None = None  # the first event that is not what it must be
    is_over: bool = False  # nothing after this counts
    secret: Secret = field(default=None, repr=False)  # never kept of what it says

    @property
    def end_ns(self) -> int | None:
        """The finish event, else `[DONE]`."""
        return self.finish_ns if self.finish_ns is not None else self.done_ns

    @property
    def goes_on(self) -> bool:
        """Whether output came after the finish reason, which then ended nothing."""
        return self.finish_at is not None and len(self.chunk_ns) > self.finish_at


def read_stream(body: Iterable[Read], *, secret: Secret = None) -> Stream:
    """Read a body as server-sent events of a chat or completions stream. What follows `[DONE]` is ignored."""
    stream, parser, template = Stream(secret=secret), EventParser(), None
    alone = False  # whether a read can be taken by itself
    templates = 0
    for at_ns, data in body:
        if template is not None and template.fits(data):
            stream.events += 1
            stream.chunk_ns.append(at_ns)
        elif alone and (text := plain_event(data)) is not None:
            event = _take_event(stream, at_ns, text)
            if event is not None and templates * _EVENTS_PER_TEMPLATE <= stream.events:
                template, templates = Template.of(data, event), templates + 1
        else:
            _feed(stream, parser, at_ns, data)
            alone, template = parser.between_events, None
        if stream.events > MOST_EVENTS:
            stream.malformed = stream.malformed or f"more than {MOST_EVENTS} events"
            stream.is_over = True
        if stream.is_over:
            break
    return stream


def _feed(stream: Stream, parser: EventParser, at_ns: int, data: bytes) -> None:
    try:
        events = parser.feed(at_ns, data)
    except OverlongEvent as exc:
        stream.malformed = stream.malformed or str(exc)
        stream.is_over = True
        return
    for event in events:
        _take_event(stream, at_ns, event.data, event.name)
        if stream.is_over:
            return


def _take_event(stream: Stream, at_ns: int, text: str, name: str = "") -> dict[str, object] | None:
    """Note what an event says; gives it back when it is one."""
    stream.events += 1
    if name == "error":  # whatever it carries
        stream.error = stream.error or message(json_object(text) or {}) or text or WORDLESS_ERROR
        return None
    if text == "[DONE]":
        stream.done_ns = at_ns
        stream.is_over = True
        return None
    data = json_object(text)
    if data is None:
        stream.malformed = (
            stream.malformed or f"an event that is not a JSON object: {without(text, stream.secret)[:120]!r}"
        )
        return None
    error = event_error(data)
    if error is not None:
        stream.error = stream.error or error
        return None
    choices = data.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict):
                _take_choice(stream, at_ns, choice)
    usage = data.get("usage")
    if isinstance(usage, dict):
        stream.input_tokens = token_count(usage.get("prompt_tokens"))
        stream.usage_tokens = token_count(usage.get("completion_tokens"))
    return data


def _take_choice(stream: Stream, at_ns: int, choice: dict[str, object]) -> None:
    if choice.get("error") is not None:
        stream.error = stream.error or message(choice) or WORDLESS_ERROR
    delta = choice.get("delta")
    carries = _delta_has_output(delta) if isinstance(delta, dict) else _is_text(choice.get("text"))
    if carries:
        stream.chunk_ns.append(at_ns)
    reason = choice.get("finish_reason")
    if reason is not None and stream.finish_reason is None:
        stream.finish_reason = one_line(str(reason), _LONGEST_REASON, secret=stream.secret)
        stream.finish_ns, stream.finish_at = at_ns, len(stream.chunk_ns)


def _delta_has_output(delta: dict[str, object]) -> bool:
    for name in _TEXT_FIELDS:  # a plain loop: this runs for every chunk
        value = delta.get(name)
        if value and isinstance(value, str):
            return True
    return _has_tool_text(delta.get("tool_calls"))


def _has_tool_text(calls: object) -> bool:
    if not isinstance(calls, list):
        return False
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    return any(
        isinstance(function, dict) and (_is_text(function.get("name")) or _is_text(function.get("arguments")))
        for function in functions
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _output_tokens(stream: Stream) -> tuple[int | None, TokenSource | None]:
    """The server's count when it gave one; else chunks as an estimate, which the record says."""
    if stream.usage_tokens is not None:
        return stream.usage_tokens, TokenSource.USAGE
    if stream.chunk_ns:
        return len(stream.chunk_ns), TokenSource.CHUNKS
    return None, None


def _fault(response: Response, stream: Stream) -> Fault | None:
    """Why this is no success; None when it is one. The first reason that holds, the most telling one first."""
    head, wire = response.head, response.fault
    if head is None:
        return wire or Fault(ErrorClass.STREAM_BROKEN, "no response")
    if head.status != 200:
        return _http_fault(head, b"".join(data for _, data in response.body))
    if stream.error is not None:
        return Fault(ErrorClass.STREAM_BROKEN, f"error inside the stream: {stream.error}")
    if wire is not None and (stream.end_ns is None or stream.goes_on):
        return wire
    if stream.malformed is not None:
        return Fault(ErrorClass.PROTOCOL, stream.malformed)
    if stream.goes_on:
        return Fault(ErrorClass.PROTOCOL, "output after the finish reason")
    if stream.events == 0:
        return _not_a_stream(b"".join(data for _, data in response.body))
    return _unfinished(stream)


def _unfinished(stream: Stream) -> Fault | None:
    """What is missing from a stream of well-formed events to make it a whole answer."""
    if not stream.chunk_ns and stream.end_ns is not None:
        return Fault(ErrorClass.EMPTY, "the stream ended without any output")
    if stream.finish_reason is None:
        return Fault(ErrorClass.STREAM_BROKEN, "the stream ended without a finish reason: the answer is cut")
    if stream.finish_reason not in ACCEPTED_FINISH:
        accepted = ", ".join(sorted(ACCEPTED_FINISH))
        detail = f"finish reason {stream.finish_reason!r}; a whole answer has one of {accepted}"
        return Fault(ErrorClass.STREAM_BROKEN, detail)
    return None


def _not_a_stream(body: bytes) -> Fault:
    if not body.strip():
        return Fault(ErrorClass.EMPTY, "HTTP 200 with an empty body")
    document = json_object(body)
    if document is not None and "choices" in document:
        return Fault(ErrorClass.PROTOCOL, "one JSON document where a stream of events was asked for")
    return Fault(ErrorClass.PROTOCOL, f"HTTP 200 without a single event: {said(body)}")


def _http_fault(head: Head, body: bytes) -> Fault:
    words = said(body)
    detail = f"HTTP {head.status}: {words}" if words else f"HTTP {head.status}"
    if head.status == 429:
        return Fault(ErrorClass.HTTP_429, detail)
    if 400 <= head.status < 500:
        return Fault(ErrorClass.HTTP_4XX, detail)
    if head.status >= 500:
        return Fault(ErrorClass.HTTP_5XX, detail)
    return Fault(ErrorClass.PROTOCOL, f"{detail} (only 200 carries an answer; redirects are not followed)")


def _since(epoch_ns: int, at_ns: int | None) -> int | None:
    return None if at_ns is None else at_ns - epoch_ns
