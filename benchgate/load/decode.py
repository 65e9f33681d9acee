"""From what came over the wire to a record: where output began and ended, how much it was, and whether it counts.

Every rule of docs/metrics.md about a single request is here. The status code proves nothing: servers report errors,
aborts and empty answers inside a stream that began with 200. Pure: no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from benchgate.load.answer_text import Words
from benchgate.load.decode_document import read_document
from benchgate.load.decode_numbers import read_embeddings, read_ranking
from benchgate.load.decode_responses import read_responses_document, read_responses_stream
from benchgate.load.decode_stream import read_stream
from benchgate.load.exchange import Fault, Heard, Response
from benchgate.load.faults import fault_of
from benchgate.load.raw_body import Read
from benchgate.load.seen import Stream
from benchgate.model.records import RequestRecord, TokenSource
from benchgate.model.request import GENERATING_ENDPOINTS, ModelRequest
from benchgate.model.request_metrics import MIN_VISIBLE_CHARACTERS, redundancy_percent, visible_characters
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import Secret, one_line
from benchgate.targets.validity import form_of_request

_CHAT = ModelRequest("chat", {}, None)
_LONGEST_NAME = 200  # characters of a model's name
_MOST_CALLS, _MOST_CHARACTERS = 2**15 - 1, 2**31 - 1  # that their columns hold


def decode(
    index: int,
    intended_ns: int,
    epoch_ns: int,
    response: Response,
    *,
    ask: ModelRequest = _CHAT,
    leaves: bool = False,
    secret: Secret = None,
    target: Target | None = None,
) -> RequestRecord:
    """The record of one request. `intended_ns` is relative to `epoch_ns`, the response's instants are absolute.

    A failed request keeps whatever was seen before it failed. With `leaves` the client was to break it off: it is told
    apart from all others, also when the answer was over before. `secret` is blotted out of what the server said.
    `target` is what was asked: its further fields of a body may offer tools or ask for several choices.
    """
    named = decode_named(index, intended_ns, epoch_ns, response, ask=ask, leaves=leaves, secret=secret, target=target)
    return named[0]


def decode_named(
    index: int,
    intended_ns: int,
    epoch_ns: int,
    response: Response,
    *,
    ask: ModelRequest,
    leaves: bool,
    secret: Secret,
    target: Target | None = None,
) -> tuple[RequestRecord, str | None]:
    """The same, and what the server calls this one answer, when it says that."""
    stream = _read(response, ask, secret)
    fault = fault_of(response, stream, ask, target)
    form, words = form_of_request(ask), Words() if fault else stream.words
    tokens, source = _output_tokens(stream)
    content = _content_of(stream) if _is_read(response) and ask.endpoint in GENERATING_ENDPOINTS else _NO_CONTENT
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
        valid=None if form is None or leaves else form.is_met(words.text, words.called),
        left=leaves,
        tokenless=ask.endpoint not in GENERATING_ENDPOINTS,
        answer_chars=content.answer_chars,
        reasoning_chars=content.reasoning_chars,
        redundancy_percent=content.redundancy_percent,
        tool_calls=content.tool_calls,
        answer_model=_model_name(stream.model, secret),
    )
    return record, stream.answer_id


class _Content(NamedTuple):
    """How much an answer says, as `RequestRecord` has it."""

    answer_chars: int | None
    reasoning_chars: int | None
    redundancy_percent: int | None
    tool_calls: int | None


_NO_CONTENT = _Content(None, None, None, None)


def _content_of(stream: Stream) -> _Content:
    choices = [stream.words] if stream.others is None else [stream.words, stream.others]
    output, reasoning = "".join([words.output for words in choices]), "".join([words.reasoning for words in choices])
    answer_chars, reasoning_chars = visible_characters(output), visible_characters(reasoning)
    text, visible = (output, answer_chars) if answer_chars else (reasoning, reasoning_chars)
    return _Content(
        answer_chars=min(answer_chars, _MOST_CHARACTERS),
        reasoning_chars=min(reasoning_chars, _MOST_CHARACTERS),
        redundancy_percent=redundancy_percent(text) if visible >= MIN_VISIBLE_CHARACTERS else None,
        tool_calls=min(sum(words.calls for words in choices), _MOST_CALLS),
    )


@lru_cache(maxsize=64)
def _model_name(told: str | None, secret: Secret) -> str | None:
    return None if told is None else one_line(told, _LONGEST_NAME, secret=secret) or None


def fault_and_words(response: Response, ask: ModelRequest, target: Target | None = None) -> tuple[Fault | None, Words]:
    """Return why a response is no success, None when it is one, and what it says."""
    stream = _read(response, ask, None)
    return fault_of(response, stream, ask, target), stream.words


def words_of(body: Iterable[Read], ask: ModelRequest) -> Words:
    """Return what the first choice of an answer says, as far as it can be read."""
    return _read_body(body, ask, None).words


def _is_read(response: Response) -> bool:
    """Return True if there is an answer to read: any other status carries none."""
    return response.head is not None and response.head.status == 200


def _read(response: Response, ask: ModelRequest, secret: Secret) -> Stream:
    return _read_body(response.body, ask, secret) if _is_read(response) else Stream()


def _read_body(body: Iterable[Read], ask: ModelRequest, secret: Secret) -> Stream:
    """What a body says, read as what was asked for."""
    if ask.endpoint == "embeddings":
        return read_embeddings(body, ask, secret=secret)
    if ask.endpoint == "rerank":
        return read_ranking(body, ask, secret=secret)
    if ask.endpoint == "responses":
        read = read_responses_stream if ask.stream else read_responses_document
    else:
        read = read_stream if ask.stream else read_document
    return read(body, secret=secret)


def chunks_so_far(body: Iterable[Read], ask: ModelRequest) -> int:
    """How many chunks with output a body so far holds, of what is streamed."""
    return len(_streamed(body, ask).chunk_ns)


def heard(body: Iterable[Read], ask: ModelRequest = _CHAT) -> Heard:
    """How far a body so far has come, of what is streamed."""
    stream = _streamed(body, ask)
    finished = stream.finish_ns is not None and not stream.reasons_throughout
    return Heard(stream.chunk_ns[-1] if stream.chunk_ns else None, finished)


def _streamed(body: Iterable[Read], ask: ModelRequest) -> Stream:
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
