"""Whether an answer counts: every way in which a response is no success, told from what was read out of it."""

from __future__ import annotations

from collections.abc import Mapping

from benchgate.load.exchange import Fault, Response
from benchgate.load.http1 import Head
from benchgate.load.raw_body import RawBody
from benchgate.load.seen import Stream
from benchgate.model.records import ACCEPTED_FINISH, ErrorClass
from benchgate.model.request import ModelRequest
from benchgate.targets.dialect import Target, ask_body
from benchgate.targets.error_messages import error_text, json_object


def fault_of(response: Response, stream: Stream, ask: ModelRequest, target: Target | None = None) -> Fault | None:
    """Why this is no success; None when it is one. The first reason that holds, the most telling one first.

    What the client did not wait for, because it left on purpose, is no fault. Without a `target` only what stands in
    the ask counts as offered.
    """
    head, wire = response.head, response.fault
    if head is None:
        return wire or (None if response.left else Fault(ErrorClass.STREAM_BROKEN, "no response"))
    if head.status != 200:
        return _http_fault(head, b"".join(data for _, data in response.body))
    if response.whole and not stream.ended and isinstance(response.body, RawBody):
        flaw = response.body.flaw()  # while the stage ran, the end was taken at its word (`exchange`)
        if flaw is not None:
            return Fault(ErrorClass.PROTOCOL, flaw)
    if stream.error is not None:
        return Fault(ErrorClass.STREAM_BROKEN, f"error inside the stream: {stream.error}")
    uncertain = stream.reasoned > 1 and stream.done_ns is None
    if wire is not None and (not ask.stream or stream.end_ns is None or stream.goes_on or uncertain):
        return wire
    if stream.malformed is not None:
        return Fault(ErrorClass.PROTOCOL, stream.malformed)
    unasked = _unasked(stream, ask, target)
    if unasked is not None:
        return Fault(ErrorClass.PROTOCOL, unasked)
    if stream.goes_on:
        return Fault(ErrorClass.PROTOCOL, "output after the finish reason")
    if response.left:
        return None
    if stream.events == 0:
        body = b"".join(data for _, data in response.body)
        return _not_a_stream(body) if ask.stream else _not_a_document(body)
    return None if stream.tokenless else _unfinished(stream)


def _unasked(stream: Stream, ask: ModelRequest, target: Target | None) -> str | None:
    """Return what an answer holds that its request did not ask for, None if it holds nothing of the kind."""
    choice, calls = stream.other_choice, stream.words.calls or (stream.others is not None and stream.others.calls)
    if choice is None and not calls:
        return None
    body = {**ask.content, **ask.fields} if target is None else ask_body(target, ask)
    if choice is not None and not _asks_for_choices(body):
        return f"output in choice {choice}, although one choice was asked for"
    if calls and not (body.get("tools") or body.get("functions")):
        return "a tool call, although no tools were offered"
    return None


def _asks_for_choices(body: Mapping[str, object]) -> bool:
    """Return True if a request asks for several choices: in a number, or with several prompts at once."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not all(isinstance(token, int) for token in prompt):
        return True
    counts = (body.get("n"), body.get("best_of"))
    return any(isinstance(count, int) and count > 1 for count in counts)


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
    if stream.reasoned > 1 and stream.done_ns is None:
        detail = "a finish reason with every chunk, and no [DONE] after the last: the answer may be cut"
        return Fault(ErrorClass.STREAM_BROKEN, detail)
    return None


def _not_a_stream(body: bytes) -> Fault:
    if not body.strip():
        return Fault(ErrorClass.EMPTY, "HTTP 200 with an empty body")
    document = json_object(body)
    if document is not None and ("choices" in document or "output" in document):
        return Fault(ErrorClass.PROTOCOL, "one JSON document where a stream of events was asked for")
    return Fault(ErrorClass.PROTOCOL, f"HTTP 200 without a single event: {error_text(body)}")


def _not_a_document(body: bytes) -> Fault:
    if not body.strip():
        return Fault(ErrorClass.EMPTY, "HTTP 200 with an empty body")
    if body.lstrip().startswith((b"data:", b"event:")):
        return Fault(ErrorClass.PROTOCOL, "a stream of events where one JSON document was asked for")
    return Fault(ErrorClass.PROTOCOL, f"HTTP 200 with a body that is no JSON document: {error_text(body)}")


def _http_fault(head: Head, body: bytes) -> Fault:
    words = error_text(body)
    detail = f"HTTP {head.status}: {words}" if words else f"HTTP {head.status}"
    if head.status == 429:
        return Fault(ErrorClass.HTTP_429, detail)
    if 400 <= head.status < 500:
        return Fault(ErrorClass.HTTP_4XX, detail)
    if head.status >= 500:
        return Fault(ErrorClass.HTTP_5XX, detail)
    return Fault(ErrorClass.PROTOCOL, f"{detail} (only 200 carries an answer; redirects are not followed)")
