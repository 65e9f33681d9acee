"""An answer that came as a stream of events: of chat or completions."""

from __future__ import annotations

from collections.abc import Iterable

from benchgate.load.alike import known
from benchgate.load.raw_body import RawBody, Read
from benchgate.load.seen import Stream
from benchgate.load.sse import EventParser, OverlongEvent, is_plain_event, plain_data
from benchgate.load.stream_event import take_event
from benchgate.targets.error_messages import Secret

MOST_EVENTS = 1_000_000
"""Of one stream; no answer has more, comments and heartbeats among them, and a hostile one would keep us busy."""

_IN_VAIN = 8  # events may be asked after that begin no run of like ones, as the first ones and the last ones do; of all
_IN_VAIN_ONE_IN = 32  # others at most: where each event has something of its own, asking only costs


def read_stream(body: Iterable[Read], *, secret: Secret = None) -> Stream:
    """Read a body as server-sent events of a chat or completions stream. What follows `[DONE]` is ignored."""
    stream, parser = Stream(secret=secret), EventParser()
    alone = True  # whether a read can be taken by itself
    in_vain = 0
    reads = iter(body if isinstance(body, RawBody) else RawBody.of(body))
    for at_ns, data in reads:
        if alone and is_plain_event(data):
            parser.begun()
            told = None
            if (in_vain - _IN_VAIN) * _IN_VAIN_ONE_IN <= stream.events:
                in_vain += 1
                told = known(data)
            if told is None:
                take_event(stream, at_ns, plain_data(data))
            else:
                told.take(stream, at_ns)
                if told.template is not None:
                    run = reads.run(told.template)
                    stream.events += run.events
                    stream.chunk_ns += run.output_ns
                    if run.events:
                        stream.words.take_same(told.kind.text, run.texts)
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


def _feed(stream: Stream, parser: EventParser, at_ns: int, data: bytes) -> None:
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
