"""An answer that came as one JSON document: a chat or completions request that was not to be streamed.

Its whole output arrives at once, with the last read of the body: time to first token is the time to the end, and there
is no pace.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_core import from_json

from benchgate.load.raw_body import Read
from benchgate.load.seen import Stream
from benchgate.targets.error_messages import WORDLESS_ERROR, Secret, error_message, event_error, json_object


def read_document(body: Iterable[Read], *, secret: Secret = None) -> Stream:
    """Read a body as the document of a chat or completions answer. Without events when it is no JSON object."""
    at_ns, data = whole_document(body)
    stream = Stream(secret=secret)
    if data is None:
        return stream
    stream.events = 1
    stream.error = event_error(data)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        stream.malformed = "a document without choices"
        return stream
    for place, choice in enumerate(choices):
        if isinstance(choice, dict):
            _take_choice(stream, at_ns, choice, place)
    for choice in choices:  # once all output is there: a finish reason of the first choice does not end the others
        if isinstance(choice, dict):
            stream.take_finish(at_ns, choice.get("finish_reason"))
    stream.take_usage(data)
    stream.take_id(data)
    return stream


def whole_document(body: Iterable[Read]) -> tuple[int, dict[str, object] | None]:
    """When the last of a body came, and the JSON object that it is; None when it is none."""
    at_ns, raw = joined_reads(body)
    return at_ns, json_object(raw)


def any_document(body: Iterable[Read]) -> tuple[int, object]:
    """The same of a document that may be a list too; None when it is no JSON."""
    at_ns, raw = joined_reads(body)
    try:
        return at_ns, from_json(raw)
    except ValueError:
        return at_ns, None


def joined_reads(body: Iterable[Read]) -> tuple[int, bytes]:
    """When the last of a body came (0 when nothing did), and all of it."""
    reads = list(body)
    return reads[-1][0] if reads else 0, b"".join([data for _, data in reads])


def _take_choice(stream: Stream, at_ns: int, choice: dict[str, object], place: int) -> None:
    told = choice.get("message")
    for part in (choice, told):
        if isinstance(part, dict) and part.get("error"):
            stream.error = stream.error or error_message(part) or WORDLESS_ERROR
    holder = told if isinstance(told, dict) else choice
    stream.take_output(at_ns, choice, holder, place)
