"""From what came over the wire to a record: where output began and ended, how much it was, and whether it counts.

Every rule of docs/metrics.md about a single request is here. The status code proves nothing: servers report errors,
aborts and empty answers inside a stream that began with 200. Pure: no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchgate.load.answer_text import Words, words_of
from benchgate.load.decode_document import read_document
from benchgate.load.decode_numbers import read_embeddings, read_ranking
from benchgate.load.decode_responses import read_responses_document, read_responses_stream
from benchgate.load.exchange import Fault, Heard, Response
from benchgate.load.faults import fault_of
from benchgate.load.raw_body import RawBody, Read
from benchgate.load.seen import Stream, has_answer, has_reasoning
from benchgate.load.sse import HEARTBEATS, EventParser, OverlongEvent, plain_event
from benchgate.load.template import Template
from benchgate.load.validity import is_judged, is_valid
from benchgate.model.ask import GENERATING, Ask
from benchgate.model.records import RequestRecord, TokenSource
from benchgate.targets.refusals import WORDLESS_ERROR, Secret, event_error, json_object, message, one_line, without

MOST_EVENTS = 1_000_000
"""Of one stream; no answer has more tokens, and a hostile one would keep us busy."""

_EVENTS_PER_TEMPLATE = 4  # at least: where every event has an id of its own, looking for one would only cost


_CHAT = Ask("chat", {}, None)


def decode(
    index: int,
    intended_ns: int,
    epoch_ns: int,
    response: Response,
    *,
    ask: Ask = _CHAT,
    leaves: bool = False,
    secret: Secret = None,
) -> RequestRecord:
    """The record of one request. `intended_ns` is relative to `epoch_ns`, the response's instants are absolute.

    A failed request keeps whatever was seen before it failed. With `leaves` the client was to break it off: it is told
    apart from all others, also when the answer was over before. `secret` is blotted out of what the server said.
    """
    return decode_named(index, intended_ns, epoch_ns, response, ask=ask, leaves=leaves, secret=secret)[0]


def decode_named(
    index: int, intended_ns: int, epoch_ns: int, response: Response, *, ask: Ask, leaves: bool, secret: Secret
) -> tuple[RequestRecord, str | None]:
    """The same, and what the server calls this one answer, when it says that."""
    stream = _read(response, ask, secret)
    fault = fault_of(response, stream, ask)
    tokens, source = _output_tokens(stream)
    record = RequestRecord(
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
        connecting_ns=response.connecting_ns,
        first_answer_ns=_since(epoch_ns, stream.answer_ns),
        reasoning_tokens=stream.reasoning_tokens,
        cached_tokens=stream.cached_tokens,
        valid=_validity(response, ask, fault) if is_judged(ask) and not leaves else None,
        left=leaves,
        tokenless=ask.endpoint not in GENERATING,
    )
    return record, stream.answer_id


def fault_in(response: Response, ask: Ask = _CHAT) -> Fault | None:
    """Why a response is no success; None when it is one."""
    return fault_of(response, _read(response, ask, None), ask)


def _read(response: Response, ask: Ask, secret: Secret) -> Stream:
    """What a response says, read as what was asked for."""
    if response.head is None or response.head.status != 200:
        return Stream()
    if ask.endpoint == "embeddings":
        return read_embeddings(response.body, ask, secret=secret)
    if ask.endpoint == "rerank":
        return read_ranking(response.body, ask, secret=secret)
    if ask.endpoint == "responses":
        read = read_responses_stream if ask.stream else read_responses_document
    else:
        read = read_stream if ask.stream else read_document
    return read(response.body, secret=secret)


def _validity(response: Response, ask: Ask, fault: Fault | None) -> bool | None:
    """A request that failed brought no valid answer."""
    return is_valid(ask, words_of(response.body, ask) if fault is None else Words())


def chunks_so_far(body: Iterable[Read], ask: Ask) -> int:
    """How many chunks with output a body so far holds, of what is streamed."""
    return len(_streamed(body, ask).chunk_ns)


def heard(body: Iterable[Read], ask: Ask = _CHAT) -> Heard:
    """How far a body so far has come, of what is streamed."""
    stream = _streamed(body, ask)
    finished = stream.finish_ns is not None and not stream.reasons_throughout
    return Heard(stream.chunk_ns[-1] if stream.chunk_ns else None, finished)


def _streamed(body: Iterable[Read], ask: Ask) -> Stream:
    return (read_responses_stream if ask.endpoint == "responses" else read_stream)(body)


def read_stream(body: Iterable[Read], *, secret: Secret = None) -> Stream:
    """Read a body as server-sent events of a chat or completions stream. What follows `[DONE]` is ignored."""
    stream, parser, template = Stream(secret=secret), EventParser(), None
    alone = False  # whether a read can be taken by itself
    templates = 0
    reads = iter(body if isinstance(body, RawBody) else RawBody.of(body))
    for at_ns, data in reads:
        if template is not None and template.fits(data):
            stream.events += 1
            stream.chunk_ns.append(at_ns)
        elif alone and (text := plain_event(data)) is not None:
            event = _take_event(stream, at_ns, text)
            if event is not None and templates * _EVENTS_PER_TEMPLATE <= stream.events:
                template, templates = Template.of(data, event), templates + 1
                if template is not None:
                    run = reads.run(template)
                    stream.events += run.events
                    stream.chunk_ns += run.output_ns
        else:
            _feed(stream, parser, at_ns, data)
            alone, template = parser.between_events, None
        if stream.events > MOST_EVENTS:
            stream.malformed = stream.malformed or f"more than {MOST_EVENTS} events"
            stream.is_over = True
        if stream.is_over:
            break
    stream.ended = reads.ended
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
    if name != "error" and not text.strip():  # a heartbeat
        return None
    stream.events += 1
    if name == "error":  # whatever it carries
        stream.error = stream.error or message(json_object(text) or {}) or text or WORDLESS_ERROR
        return None
    if text.strip() == "[DONE]":
        stream.done_ns = at_ns
        stream.is_over = True
        return None
    data = json_object(text)
    if data is None and name in HEARTBEATS:
        return None
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
    stream.take_usage(data)
    stream.take_id(data)
    return data


def _take_choice(stream: Stream, at_ns: int, choice: dict[str, object]) -> None:
    if choice.get("error"):
        stream.error = stream.error or message(choice) or WORDLESS_ERROR
    delta = choice.get("delta")
    before = len(stream.chunk_ns)
    if has_answer(delta if isinstance(delta, dict) else choice):
        stream.take_chunk(at_ns, answers=True)
    elif isinstance(delta, dict) and has_reasoning(delta):
        stream.take_chunk(at_ns, answers=False)
    reason = choice.get("finish_reason")
    if reason is not None:
        stream.take_finish(at_ns, reason, with_output=len(stream.chunk_ns) > before)


def _output_tokens(stream: Stream) -> tuple[int | None, TokenSource | None]:
    """The server's count when it gave one; else chunks as an estimate, which the record says. Numbers are no tokens."""
    if stream.tokenless:
        return 0, None
    if stream.usage_tokens is not None:
        return stream.usage_tokens, TokenSource.USAGE
    if stream.chunk_ns:
        return len(stream.chunk_ns), TokenSource.CHUNKS
    return None, None


def _since(epoch_ns: int, at_ns: int | None) -> int | None:
    return None if at_ns is None else at_ns - epoch_ns
