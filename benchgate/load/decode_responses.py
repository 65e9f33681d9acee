"""Answers of the responses API: a stream of typed events, or the one document that its last event carries.

What is output, and what is reasoning, stands in the type of an event (`response.output_text.delta`); how the answer
ended stands in the `status` of the response as a whole. Followed here as OpenAI and vLLM send it.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchgate.load.decode_document import whole_document
from benchgate.load.raw_body import Read
from benchgate.load.seen import Stream, is_text
from benchgate.load.sse import HEARTBEATS, EventParser, OverlongEvent
from benchgate.targets.refusals import WORDLESS_ERROR, Secret, event_error, json_object, message, without

_LAST = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.done": None,  # some gateways end every response so: its status is in it
}
"""The events that end a response, and the status that each stands for where none is told."""

_OUT_OF_TOKENS = frozenset({"max_output_tokens", "max_tokens", "length"})
_MOST_EVENTS = 1_000_000


def read_responses_stream(body: Iterable[Read], *, secret: Secret = None) -> Stream:
    """Read a body as the events of a response. What follows the last one is ignored."""
    stream, parser = Stream(secret=secret), EventParser()
    for at_ns, data in body:
        try:
            events = parser.feed(at_ns, data)
        except OverlongEvent as exc:
            stream.malformed = stream.malformed or str(exc)
            break
        if parser.blocks > _MOST_EVENTS:
            stream.malformed = stream.malformed or f"more than {_MOST_EVENTS} events"
            break
        for event in events:
            _take_event(stream, at_ns, event.data, event.name)
            if stream.is_over:
                return stream
    return stream


def read_responses_document(body: Iterable[Read], *, secret: Secret = None) -> Stream:
    """Read a body as a whole response. Without events when it is no JSON object."""
    at_ns, data = whole_document(body)
    stream = Stream(secret=secret)
    if data is None:
        return stream
    stream.events = 1
    if not isinstance(data.get("output"), list):
        stream.error = message(data)
        stream.malformed = "a document without output"
        return stream
    kinds = [kind for kind in map(_kind, _items(data)) if kind is not None]
    if kinds:
        stream.take_chunk(at_ns, answers="answer" in kinds)
    _take_response(stream, at_ns, data)
    return stream


def _take_event(stream: Stream, at_ns: int, text: str, name: str) -> None:
    if name != "error" and not text.strip():  # a heartbeat
        return
    stream.events += 1
    if text.strip() == "[DONE]" or stream.events > _MOST_EVENTS:
        if stream.events > _MOST_EVENTS:
            stream.malformed = stream.malformed or f"more than {_MOST_EVENTS} events"
        stream.done_ns, stream.is_over = at_ns, True
        return
    data = json_object(text)
    if data is None and name in HEARTBEATS:
        return
    if data is None:
        shown = without(text, stream.secret)[:120]
        stream.malformed = stream.malformed or f"an event that is not a JSON object: {shown!r}"
        return
    told = data.get("type")
    kind = told if isinstance(told, str) else name
    if "error" in (kind, name) or data.get("error") or data.get("errors"):
        stream.error = stream.error or message(data) or WORDLESS_ERROR
    elif not kind.startswith("response.") and (error := event_error(data)) is not None:
        stream.error = stream.error or error
    elif kind.endswith(".delta") and is_text(data.get("delta")):
        stream.take_chunk(at_ns, answers=not kind.startswith("response.reasoning"))
    elif kind in _LAST:
        response = data.get("response")
        _take_response(stream, at_ns, response if isinstance(response, dict) else {}, _LAST[kind])
        stream.is_over = True


def _take_response(stream: Stream, at_ns: int, response: dict[str, object], otherwise: str | None = None) -> None:
    """How a response ended, in the words of chat: `stop`, `length`, or what it says itself."""
    stream.take_usage(response)
    stream.take_id(response)
    status = response.get("status") or otherwise
    if status == "failed" or response.get("error") or response.get("errors"):
        stream.error = stream.error or message(response) or WORDLESS_ERROR
    elif status == "completed":
        stream.take_finish(at_ns, "stop")
    elif status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        stream.take_finish(
            at_ns, "length" if isinstance(reason, str) and reason in _OUT_OF_TOKENS else str(reason or status)
        )
    elif status is not None:
        stream.take_finish(at_ns, str(status))


def _items(response: dict[str, object]) -> list[dict[str, object]]:
    output = response.get("output")
    return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []


def _kind(item: dict[str, object]) -> str | None:
    """Whether an item of the output is an answer or reasoning; None when it holds nothing."""
    if item.get("type") == "reasoning":
        held = item.get("content") or item.get("summary") or item.get("encrypted_content")
        return "reasoning" if held else None
    if is_text(item.get("arguments")) or is_text(item.get("name")):
        return "answer"
    parts = item.get("content")
    texts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "answer" if any(is_text(part.get("text")) or is_text(part.get("refusal")) for part in texts) else None
