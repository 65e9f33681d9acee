"""Response to record: where output began and ended, how much it was, and why a response is a failure.

Every rule of docs/reference/metrics.md about a single request is here. The status code proves nothing: servers report
errors, aborts and empty answers inside a stream that began with 200. Pure: no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from benchgate.load.decode.answer import AnswerContent, ParsedAnswer
from benchgate.load.decode.body import RawBody, Read
from benchgate.load.decode.endpoints import read_body
from benchgate.load.http.exchange import Failure, Progress, Response
from benchgate.load.http.parser import Head
from benchgate.model.records import ACCEPTED_FINISH, ErrorClass, RequestRecord, TokenSource
from benchgate.model.request import ENDPOINTS, ModelRequest
from benchgate.model.request_metrics import MIN_VISIBLE_CHARACTERS, redundancy_percent, visible_characters
from benchgate.targets.dialect import Target
from benchgate.targets.endpoints import ask_body
from benchgate.targets.error_messages import Secret, error_text, event_error, json_object, one_line
from benchgate.targets.validity import form_of_request


def classify_failure(
    response: Response, stream: ParsedAnswer, ask: ModelRequest, target: Target | None = None
) -> Failure | None:
    """Return the reason why a response is no success, or None: the first that holds, the most specific one first.

    A client that left on purpose waited for nothing more, which is no failure. Without a `target`, only what the
    request itself contains counts as offered.
    """
    head, wire = response.head, response.fault
    if head is None:
        return wire or (None if response.left else Failure(ErrorClass.STREAM_BROKEN, "no response"))
    if head.status != 200:
        return _http_fault(head, b"".join(data for _, data in response.body))
    if response.whole and not stream.ended and isinstance(response.body, RawBody):
        flaw = response.body.flaw()  # while the stage ran, the end was taken at its word (`exchange`)
        if flaw is not None:
            return Failure(ErrorClass.PROTOCOL, flaw)
    if stream.error is not None:
        return Failure(ErrorClass.STREAM_BROKEN, f"error inside the stream: {stream.error}")
    uncertain = stream.reasoned > 1 and stream.done_ns is None
    if wire is not None and (not ask.stream or stream.end_ns is None or stream.goes_on or uncertain):
        return wire
    if stream.malformed is not None:
        return Failure(ErrorClass.PROTOCOL, stream.malformed)
    unasked = _unasked(stream, ask, target)
    if unasked is not None:
        return Failure(ErrorClass.PROTOCOL, unasked)
    if stream.goes_on:
        return Failure(ErrorClass.PROTOCOL, "output after the finish reason")
    if response.left:
        return None
    if stream.events == 0:
        return _unreadable(b"".join(data for _, data in response.body), ask)
    return None if stream.tokenless else _unfinished(stream)


def _unasked(stream: ParsedAnswer, ask: ModelRequest, target: Target | None) -> str | None:
    if stream.other_choice is not None:
        return f"output in choice {stream.other_choice}, although one choice was requested"
    if not stream.words.calls:
        return None
    body = {**ask.content, **ask.fields} if target is None else ask_body(target, ask)
    return None if body.get("tools") or body.get("functions") else "a tool call, although no tools were offered"


def _unfinished(stream: ParsedAnswer) -> Failure | None:
    """Return what a stream of well-formed events lacks to be a whole answer, or None."""
    if not stream.chunk_ns and stream.end_ns is not None:
        return Failure(ErrorClass.EMPTY, "the stream ended without any output")
    if stream.finish_reason is None:
        return Failure(ErrorClass.STREAM_BROKEN, "the stream ended without a finish reason: the answer is cut")
    if stream.finish_reason not in ACCEPTED_FINISH:
        accepted = ", ".join(sorted(ACCEPTED_FINISH))
        detail = f"finish reason {stream.finish_reason!r}; a whole answer has one of {accepted}"
        return Failure(ErrorClass.STREAM_BROKEN, detail)
    if stream.reasoned > 1 and stream.done_ns is None:
        detail = "a finish reason with every chunk, and no [DONE] after the last: the answer may be cut"
        return Failure(ErrorClass.STREAM_BROKEN, detail)
    return None


def _unreadable(body: bytes, ask: ModelRequest) -> Failure:
    if not body.strip():
        return Failure(ErrorClass.EMPTY, "HTTP 200 with an empty body")
    if not ask.stream and body.lstrip().startswith((b"data:", b"event:")):
        return Failure(ErrorClass.PROTOCOL, "a stream of events where one JSON document was requested")
    if not ask.stream:
        return Failure(ErrorClass.PROTOCOL, f"HTTP 200 with a body that is no JSON document: {error_text(body)}")
    whole = read_body([(0, body)], replace(ask, stream=False))
    if whole.events and whole.malformed is None:
        return Failure(ErrorClass.PROTOCOL, "one JSON document where a stream of events was requested")
    unended = json_object(body.strip().removeprefix(b"data:"))  # LitServe ends its error events without a blank line
    if json_object(body) is None and unended is not None and (error := event_error(unended)) is not None:
        return Failure(ErrorClass.STREAM_BROKEN, f"error inside the stream: {error}")
    return Failure(ErrorClass.PROTOCOL, f"HTTP 200 without a single event: {error_text(body)}")


def _http_fault(head: Head, body: bytes) -> Failure:
    words = error_text(body)
    detail = f"HTTP {head.status}: {words}" if words else f"HTTP {head.status}"
    if head.status == 429:
        return Failure(ErrorClass.HTTP_429, detail)
    if 400 <= head.status < 500:
        return Failure(ErrorClass.HTTP_4XX, detail)
    if head.status >= 500:
        return Failure(ErrorClass.HTTP_5XX, detail)
    return Failure(ErrorClass.PROTOCOL, f"{detail} (only 200 carries an answer; redirects are not followed)")


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
) -> tuple[RequestRecord, str | None]:
    """Return the record of one request, and the id of the answer where it has one.

    `intended_ns` is relative to `epoch_ns`, the response's instants are absolute. A failed request keeps whatever came
    before it failed. With `leaves` the client was to cancel it: it is kept apart from all others, also when the answer
    was over before. `secret` is blotted out of what the server said. Further fields that `target` adds to a body may
    offer tools.
    """
    stream = _read(response, ask, secret)
    fault = classify_failure(response, stream, ask, target)
    tokens: int | None = None
    source = None
    generates = ENDPOINTS[ask.endpoint].generates
    if not generates:
        tokens = 0
    elif stream.usage_tokens is not None:
        tokens, source = stream.usage_tokens, TokenSource.USAGE
    elif stream.chunk_ns:  # an estimate
        tokens, source = len(stream.chunk_ns), TokenSource.CHUNKS
    says = generates or stream.words.texts
    content = _content_of(stream) if _is_read(response) and says else _NO_CONTENT
    form, words = form_of_request(ask), AnswerContent() if fault else stream.words
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
        tokenless=not generates,
        answer_chars=content.answer_chars,
        reasoning_chars=content.reasoning_chars,
        redundancy_percent=content.redundancy_percent,
        tool_calls=content.tool_calls,
        answer_model=_model_name(stream.model, secret),
        first_visible=stream.first_visible,
    )
    return record, stream.answer_id


class _Content(NamedTuple):
    answer_chars: int | None
    reasoning_chars: int | None
    redundancy_percent: int | None
    tool_calls: int | None


_NO_CONTENT = _Content(None, None, None, None)


def _content_of(stream: ParsedAnswer) -> _Content:
    words = stream.words
    output, reasoning = words.output, words.reasoning
    answer_chars, reasoning_chars = visible_characters(output), visible_characters(reasoning)
    text, visible = (output, answer_chars) if answer_chars else (reasoning, reasoning_chars)
    return _Content(
        answer_chars=min(answer_chars, _MOST_CHARACTERS),
        reasoning_chars=min(reasoning_chars, _MOST_CHARACTERS),
        redundancy_percent=redundancy_percent(text) if visible >= MIN_VISIBLE_CHARACTERS else None,
        tool_calls=min(words.calls, _MOST_CALLS),
    )


@lru_cache(maxsize=64)
def _model_name(stated: str | None, secret: Secret) -> str | None:
    return None if stated is None else one_line(stated, _LONGEST_NAME, secret=secret) or None


def failure_and_content(
    response: Response, ask: ModelRequest, target: Target | None = None
) -> tuple[Failure | None, AnswerContent]:
    """Return why a response is no success, None when it is one, and what it says."""
    stream = _read(response, ask, None)
    return classify_failure(response, stream, ask, target), stream.words


def _is_read(response: Response) -> bool:
    return response.head is not None and response.head.status == 200  # any other status carries no answer


def _read(response: Response, ask: ModelRequest, secret: Secret) -> ParsedAnswer:
    if not _is_read(response):
        return ParsedAnswer()
    stream = read_body(response.body, ask, secret)
    head = response.head
    framed = head is not None and (head.chunked or head.content_length is not None)  # else any cut looks like an end
    if framed and response.whole and stream.finish_reason is None and stream.unstated_end_ns is not None:
        stream.take_finish(stream.unstated_end_ns, "stop")
    return stream


def progress_of(body: Iterable[Read], ask: ModelRequest = _CHAT) -> Progress:
    """Return how far a streamed body has come."""
    stream = read_body(body, ask)
    finished = stream.finish_ns is not None and not stream.reasons_throughout
    return Progress(stream.chunk_ns[-1] if stream.chunk_ns else None, finished)


def _since(epoch_ns: int, at_ns: int | None) -> int | None:
    return None if at_ns is None else at_ns - epoch_ns
