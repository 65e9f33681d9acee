"""What one event of a chat or completions stream says."""

from __future__ import annotations

from benchgate.load.seen import Stream, has_answer, has_reasoning
from benchgate.load.sse import HEARTBEATS
from benchgate.targets.refusals import WORDLESS_ERROR, event_error, json_object, message, without


def take_event(stream: Stream, at_ns: int, text: str, name: str = "") -> None:
    """Note what an event says; `name` is its own, where it has one."""
    if name != "error" and not text.strip():  # a heartbeat
        return
    stream.events += 1
    if name == "error":  # whatever it carries
        stream.error = stream.error or message(json_object(text) or {}) or text or WORDLESS_ERROR
        return
    if text.strip() == "[DONE]":
        stream.done_ns = at_ns
        stream.is_over = True
        return
    data = json_object(text)
    if data is None and name in HEARTBEATS:
        return
    if data is None:
        stream.malformed = (
            stream.malformed or f"an event that is not a JSON object: {without(text, stream.secret)[:120]!r}"
        )
        return
    error = event_error(data)
    if error is not None:
        stream.error = stream.error or error
        return
    choices = data.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict):
                take_choice(stream, at_ns, choice)
    stream.take_usage(data)
    stream.take_id(data)


def take_choice(stream: Stream, at_ns: int, choice: dict[str, object]) -> None:
    """Note what a choice of an event says."""
    delta = choice.get("delta")
    for holder in (choice, delta):
        if isinstance(holder, dict) and holder.get("error"):
            stream.error = stream.error or message(holder) or WORDLESS_ERROR
    before = len(stream.chunk_ns)
    if has_answer(delta if isinstance(delta, dict) else choice):
        stream.take_chunk(at_ns, answers=True)
    elif isinstance(delta, dict) and has_reasoning(delta):
        stream.take_chunk(at_ns, answers=False)
    reason = choice.get("finish_reason")
    if reason is not None:
        stream.take_finish(at_ns, reason, with_output=len(stream.chunk_ns) > before)
