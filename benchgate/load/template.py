"""Events of one answer that differ from each other in nothing but a text."""

from __future__ import annotations

from typing import NamedTuple

from pydantic_core import from_json

_CONTROL = bytes(range(0x20))


class Template(NamedTuple):
    """What comes before and after the text in a read that is one event, the quotes around it among that.

    Of JSON, a string is one token, and so is any other string in its place: everything around it, and so the meaning of
    the event, stays what it was.
    """

    before: bytes
    after: bytes


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
