"""What one event of a chat or completions stream says."""

from __future__ import annotations

from benchgate.load.seen import Stream
from benchgate.load.sse import HEARTBEATS
from benchgate.targets.error_messages import WORDLESS_ERROR, error_message, event_error, json_object, redact


def take_event(stream: Stream, at_ns: int, text: str, name: str = "") -> None:
    """Note what an event says; `name` is its own, where it has one."""
    if name != "error" and not text.strip():  # a heartbeat
        return
    stream.events += 1
    if name == "error":  # whatever it carries
        stream.error = stream.error or error_message(json_object(text) or {}) or text or WORDLESS_ERROR
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
            stream.malformed or f"an event that is not a JSON object: {redact(text, stream.secret)[:120]!r}"
        )
        return
    error = event_error(data)
    if error is not None:
        stream.error = stream.error or error
        return
    choices = data.get("choices")
    if isinstance(choices, list):
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                take_choice(stream, at_ns, choice, place)
    stream.take_usage(data)
    stream.take_id(data)


def take_choice(stream: Stream, at_ns: int, choice: dict[str, object], place: int = 0) -> None:
    """Note what a choice of an event says; `place` is where it stands among the choices of the event."""
    delta = choice.get("delta")
    for holder in (choice, delta):
        if isinstance(holder, dict) and holder.get("error"):
            stream.error = stream.error or error_message(holder) or WORDLESS_ERROR
    is_chat = isinstance(delta, dict)
    with_output = stream.take_output(
        at_ns, choice, delta if isinstance(delta, dict) else choice, place, reasons=is_chat
    )
    reason = choice.get("finish_reason")
    if reason is not None:
        stream.take_finish(at_ns, reason, with_output=with_output)
