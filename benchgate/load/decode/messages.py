"""Answers of Anthropic's Messages API: a stream of typed events, or one message made of blocks.

A message is made of blocks of text, thought and calls. In a stream each begins with `content_block_start`, goes on in
deltas and ends with `content_block_stop`; `message_delta` states how the message ended and what it used. Followed here
as Anthropic, vLLM (`vllm/entrypoints/anthropic/serving.py`) and llama.cpp send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchgate.load.decode.answer import ParsedAnswer, is_text, place_of
from benchgate.load.decode.body import Read
from benchgate.load.decode.chat import whole_document
from benchgate.load.decode.events import read_events
from benchgate.targets.answers import arguments_text, message_input_count, part_count
from benchgate.targets.error_messages import Secret, event_error
from benchgate.targets.messages import blocks_of

_NO_OUTPUT = frozenset({"content_block_stop", "ping", "signature_delta"})


def read_messages_stream(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the events of a message. What follows `message_stop` is ignored."""
    return read_events(body, _take_event, _plain_text, secret=secret)


def read_messages_document(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as a whole message. Without events when it is no JSON object."""
    at_ns, data = whole_document(body)
    stream = ParsedAnswer(secret=secret)
    if data is None:
        return stream
    stream.events = 1
    if not isinstance(data.get("content"), list):
        stream.error = event_error(data)
        stream.malformed = "a document without content"
        return stream
    kinds = {_take_block(stream, place, block) for place, block in enumerate(blocks_of(data))} - {None}
    if kinds:
        stream.take_chunk(at_ns, answers=True in kinds)
    stream.take_finish(at_ns, data.get("stop_reason"))
    _take_usage(stream, data.get("usage"))
    stream.take_id(data)
    return stream


def _take_event(stream: ParsedAnswer, at_ns: int, kind: str, data: dict[str, object]) -> bool:
    place = place_of(data.get("index"), 0)
    if kind == "content_block_delta":
        delta = data.get("delta")
        answers = _take_delta(stream, place, delta) if isinstance(delta, dict) else None
        if answers is not None:
            stream.take_chunk(at_ns, answers=answers)
    elif kind == "content_block_start":
        block = data.get("content_block")
        answers = _take_block(stream, place, block) if isinstance(block, dict) else None
        if answers is not None:
            stream.take_chunk(at_ns, answers=answers)
    elif kind == "message_start":
        message = data.get("message")
        if isinstance(message, dict):
            stream.take_id(message)
            _take_usage(stream, message.get("usage"))
            stream.usage_tokens = None  # it counts what there is before any output, and not always
    elif kind == "message_delta":
        delta = data.get("delta")
        stream.take_finish(at_ns, delta.get("stop_reason") if isinstance(delta, dict) else None)
        _take_usage(stream, data.get("usage"))
    elif kind == "message_stop":
        stream.done_ns, stream.is_over = at_ns, True
    else:
        return kind in _NO_OUTPUT
    return True


def _plain_text(data: dict[str, object]) -> object:
    delta = data.get("delta")
    is_plain = isinstance(delta, dict) and delta.get("type") == "text_delta" and len(delta) == 2 and len(data) == 3
    return delta.get("text") if is_plain and isinstance(delta, dict) and "index" in data else None


def _take_delta(stream: ParsedAnswer, place: int, delta: Mapping[str, object]) -> bool | None:
    """Add a piece of a block. Return True for an answer, False for a thought, None if it holds nothing."""
    words = stream.words
    if is_text(text := delta.get("text")):
        words.texts.append(str(text))
        return True
    if is_text(piece := delta.get("partial_json")):
        words.take_call((place, ""), None, piece)
        return True
    if is_text(thought := delta.get("thinking")):
        words.thoughts.append(str(thought))
        return False
    return None


def _take_block(stream: ParsedAnswer, place: int, block: Mapping[str, object]) -> bool | None:
    """Add a block, or the beginning of one. Return True for an answer, False for a thought, None if it holds nothing.

    The input of a call is empty where a stream begins it: the deltas bring it.
    """
    if block.get("type") == "tool_use":
        given = block.get("input")
        stream.words.take_call((place, ""), block.get("name"), arguments_text(given) if given else None)
        return True
    if block.get("type") == "redacted_thinking":
        return False
    return _take_delta(stream, place, block)


def _take_usage(stream: ParsedAnswer, usage: object) -> None:
    """Note token counts. Usage that only repeats the part of the prompt outside of the cache leaves the total alone."""
    if not isinstance(usage, dict):
        return
    before = stream.input_tokens
    stream.take_usage({"usage": usage})
    cached, kept = (part_count(usage.get(f"cache_{name}_input_tokens")) for name in ("read", "creation"))
    total = message_input_count(usage)
    states_cache = cached is not None or kept is not None
    replaces = total is not None and (before is None or states_cache or total > before)
    stream.input_tokens = total if replaces else before
    stream.cached_tokens = stream.cached_tokens if cached is None else cached
    details = usage.get("output_tokens_details")
    if isinstance(details, dict) and (thought := part_count(details.get("thinking_tokens"))) is not None:
        stream.reasoning_tokens = thought
