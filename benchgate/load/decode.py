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
from benchgate.load.decode_stream import read_stream
from benchgate.load.exchange import Fault, Heard, Response
from benchgate.load.faults import fault_of
from benchgate.load.raw_body import Read
from benchgate.load.seen import Stream
from benchgate.load.validity import is_judged, is_valid
from benchgate.model.ask import GENERATING, Ask
from benchgate.model.records import RequestRecord, TokenSource
from benchgate.targets.refusals import Secret, one_line

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
