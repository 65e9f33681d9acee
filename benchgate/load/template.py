"""A shorter way for the events of a stream that differ from each other in nothing but a piece of plain text.

Nearly all events of an answer do. Reading each of them as JSON costs more than all else that is done with it.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from benchgate.targets.refusals import event_error, json_object

_NEVER_PLAIN = b'"\\' + bytes(range(0x20))  # what would end the text, begin an escape, or be no JSON
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


def _text(event: dict[str, object]) -> str | None:
    """The text of an event that carries output and nothing else; None of any other."""
    choices = event.get("choices")
    if event_error(event) is not None or isinstance(event.get("usage"), dict):
        return None
    if not isinstance(choices, list) or len(choices) != 1:
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or choice.get("error") is not None:
        return None
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) and text and choice.get("finish_reason") is None else None
