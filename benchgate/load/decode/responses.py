"""Answers of the responses API: a stream of typed events, or the one document that its last event carries.

What is output, and what is reasoning, stands in the type of an event (`response.output_text.delta`); how the answer
ended stands in the `status` of the response as a whole. Followed here as OpenAI and vLLM send it.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchgate.load.decode.answer import AnswerContent, ParsedAnswer, is_text, place_of
from benchgate.load.decode.body import Read
from benchgate.load.decode.chat import whole_document
from benchgate.load.decode.events import read_events
from benchgate.targets.answers import text_in
from benchgate.targets.error_messages import WORDLESS_ERROR, Secret, error_message

# The events that end a response, and the status that each stands for where none is stated.
_LAST = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.done": None,  # some gateways end every response so: its status is in it
}

_ITEM_DONE = "response.output_item.done"
_ITEMS = ("response.output_item.added", _ITEM_DONE)
_OUT_OF_TOKENS = frozenset({"max_output_tokens", "max_tokens", "length"})


def read_responses_stream(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the events of a response. What follows the last one is ignored."""
    return read_events(body, _take_event, secret=secret)


def read_responses_document(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as a whole response. Without events when it is no JSON object."""
    at_ns, data = whole_document(body)
    stream = ParsedAnswer(secret=secret)
    if data is None:
        return stream
    stream.events = 1
    output = data.get("output")
    if not isinstance(output, list):
        stream.error = error_message(data)
        stream.malformed = "a document without output"
        return stream
    kinds = {_take_item(stream.words, place, item) for place, item in enumerate(output) if isinstance(item, dict)}
    if kinds - {None}:
        stream.take_chunk(at_ns, answers=True in kinds)
    _take_response(stream, at_ns, data)
    return stream


def _take_event(stream: ParsedAnswer, at_ns: int, kind: str, data: dict[str, object]) -> bool:
    if kind.endswith(".delta") and is_text(data.get("delta")):
        stream.take_chunk(at_ns, answers=_take_delta(stream.words, kind, data))
    elif kind in _ITEMS:
        item = data.get("item")
        if isinstance(item, dict) and item.get("type") == "function_call":
            came_whole = stream.words.take_whole_call((place_of(data.get("output_index"), 0), ""), item)
            if came_whole and (item.get("arguments") or kind == _ITEM_DONE):  # some servers send no deltas of a call
                stream.take_chunk(at_ns, answers=True)
    elif kind in _LAST:
        response = data.get("response")
        _take_response(stream, at_ns, response if isinstance(response, dict) else {}, _LAST[kind])
        stream.is_over = True
    elif isinstance(response := data.get("response"), dict):
        stream.take_id(response)
    return kind.startswith("response.")


def _take_response(stream: ParsedAnswer, at_ns: int, response: dict[str, object], otherwise: str | None = None) -> None:
    """Note how a response ended, in the words of chat: `stop`, `length`, or its own reason."""
    stream.take_usage(response)
    stream.take_id(response)
    status = response.get("status") or otherwise
    if status == "failed" or response.get("error") or response.get("errors"):
        stream.error = stream.error or error_message(response) or WORDLESS_ERROR
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


def _take_delta(words: AnswerContent, kind: str, data: dict[str, object]) -> bool:
    """Add a piece of output. Return True if it is not reasoning."""
    piece = str(data["delta"])
    if kind.startswith("response.reasoning"):
        words.thoughts.append(piece)
        return False
    if kind == "response.output_text.delta":
        words.texts.append(piece)
    elif kind == "response.function_call_arguments.delta":
        words.take_call((place_of(data.get("output_index"), 0), ""), data.get("name"), piece)
    else:
        words.refusals.append(piece)
    return True


def _take_item(words: AnswerContent, place: int, item: dict[str, object]) -> bool | None:
    """Add an item of the output. Return True for an answer, False for reasoning, None if it holds nothing."""
    if item.get("type") == "reasoning":
        words.thoughts.append(text_in(item.get("content")) or text_in(item.get("summary")) or "")
        return False if item.get("content") or item.get("summary") or item.get("encrypted_content") else None
    name, arguments = item.get("name"), item.get("arguments")
    if item.get("type") == "function_call":
        words.take_whole_call((place, ""), item)
    else:  # a tool of the server's own
        words.refusals += [text for text in (name, arguments) if isinstance(text, str)]
    parts = item.get("content")
    says = is_text(name) or is_text(arguments)
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            for key, pieces in (("text", words.texts), ("refusal", words.refusals)):
                if is_text(piece := part.get(key)):
                    pieces.append(str(piece))
                    says = True
    return True if says else None
