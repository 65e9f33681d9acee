"""A shorter way for the events of a stream that differ from each other in nothing but a piece of plain text.

Nearly all events of an answer do. Reading each of them as JSON costs more than all else that is done with it.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from pydantic_core import from_json

from benchgate.targets.finish import finish_reason
from benchgate.targets.refusals import event_error, json_object

_CONTROL = bytes(range(0x20))
_NEVER_PLAIN = b'"\\' + _CONTROL  # what would end the text, begin an escape, or be no JSON
_PROBE = "a text no server sends"


class Template(NamedTuple):
    """What comes before and after the text in a read that is one event.

    Of JSON, a string without quotes, backslashes and control characters is one token, and so is any other such string
    in its place: everything around it, and so the meaning of the event, stays what it was.
    """

    before: bytes
    after: bytes

    @classmethod
    def of(cls, read: bytes, event: dict[str, object]) -> Self | None:
        """Of a read that is one event: `data: `, this JSON object and two line ends. None when it has no such text.

        Only for events that do nothing but carry output: one choice, no finish reason, no usage, no error. That the
        right text was found is tried out, by reading the event once more with another one in its place. The event must
        not hold that one yet: else it could be read from elsewhere than the place tried.
        """
        text = _text(event)
        if text is None:
            return None
        before, found, after = read.partition(b'"' + text.encode("utf-8", "surrogatepass") + b'"')
        if not found or not text.isprintable() or b"\r" in read or _PROBE.encode() in read:
            return None
        template = cls(before + b'"', b'"' + after)
        other = json_object((template.before + _PROBE.encode() + template.after)[len(b"data: ") :])
        if other is None or _text(other) != _PROBE:
            return None
        return template if template.fits(read) else None

    def fits(self, read: bytes) -> bool:
        """Whether a read is the same event with another text, which is not empty."""
        if not (read.startswith(self.before) and read.endswith(self.after)):
            return False
        text = read[len(self.before) : -len(self.after)]
        return len(text) > 0 and len(text.translate(None, _NEVER_PLAIN)) == len(text)


def are_texts(pieces: list[bytes]) -> bool:
    """Whether each of these, between quotes, is one JSON string. Says no of some that are, yes of none that is not."""
    joined = b"\0".join(pieces)
    if len(joined.translate(None, _CONTROL)) != len(joined) - (len(pieces) - 1):
        return False
    if b"\\" not in joined:
        return b'"' not in joined
    unescaped = joined.replace(b"\\\\", b"").replace(b'\\"', b"")
    if b'"' in unescaped or b"\\\0" in unescaped or unescaped.endswith(b"\\"):
        return False  # the quotes around one of them would not be those that end it
    try:
        strings = from_json(b'["' + joined.replace(b"\0", b'","') + b'"]')
    except ValueError:
        return False
    return isinstance(strings, list) and len(strings) == len(pieces)


def _text(event: dict[str, object]) -> str | None:
    """The text of an event that carries output and nothing else; None of any other."""
    choices = event.get("choices")
    if event_error(event) is not None or isinstance(event.get("usage"), dict):
        return None
    if not isinstance(choices, list) or len(choices) != 1:
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or choice.get("error"):
        return None
    delta = choice.get("delta")
    if isinstance(delta, dict) and any(value for name, value in delta.items() if name not in ("content", "role")):
        return None  # without its text it might still carry output
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) and text and finish_reason(choice.get("finish_reason")) is None else None
