"""Redaction of a transcript: credentials in every usual spelling, host names, addresses and folders.

A redacted text is as long as it was, so that the bytes of every read still fit.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

from benchgate.credentials import SHORTEST, known, spellings
from benchgate.errors import UsageError
from benchgate.shadow.redaction import keys
from benchgate.targets.address import ServerAddress
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.error_messages import json_object

_SHORTEST_NAME = 4
_FILLER = b"redacted-"
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")
_BEARER = re.compile(rb"((?<![A-Za-z])bearer(?:\s|%20)+)([^\s\"'\\,;]{4,})", re.IGNORECASE)
# Whatever a server shows of others, besides keys: addresses of mail, hosts of URLs, folders, IP addresses.
_OTHERS = re.compile(
    rb"""[\w.+-]+@[\w-]+(?:\.[\w-]+)+
    | (?<=://)[^\s"'\\<>/]+
    | \b(?:[\w-]+\.)+(?:com|net|org|co|io|ai|dev|cloud|edu|gov|local|localdomain|internal|intranet|lan|corp|home|svc
        |example|test|invalid|de|uk|fr|eu|jp|cn)\b(?::\d+)?
    | (?<![\w.:/<-])/(?!v1/)(?:[\w.@+~-]+/)+
    | [A-Za-z]:(?:\\\\?[\w.@+~\ -]+)+\\
    | (?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?(?![\d.])
    | (?<![\w:])(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}(?![\w:])
    | (?<![\w:])(?:[0-9A-Fa-f]{1,4}:)*[0-9A-Fa-f]{0,4}::(?:[0-9A-Fa-f]{1,4}:?)+(?![\w:])""",
    re.VERBOSE,
)


class Redaction:
    """The secrets of one target and the names of its machine and of this one.

    Raises UsageError for a secret that is too short to be found in other text.
    """

    def __init__(self, target: Target) -> None:
        self._secrets = tuple({secret for found in target.secrets for secret in _parts(found)})
        if any(len(secret) < SHORTEST for secret in self._secrets):
            needed = f"a key or secret header has fewer than {SHORTEST} characters"
            raise UsageError(f"{needed} and may also be ordinary text; use a longer one for the capture")
        self._names = tuple(name for name in _names(target) if len(name) >= _SHORTEST_NAME)
        forms = {form.encode() for secret in (*self._secrets, *known()) for form in spellings(secret)}
        forms |= {name.encode() for name in self._names}
        self._own = re.compile(
            b"|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)) or b"(?!)", re.IGNORECASE
        )

    def apply(self, text: bytes) -> bytes:
        """Return the text redacted, as long as it was."""
        filled = self._own.sub(lambda found: (_FILLER * len(found[0]))[: len(found[0])], text)
        unkeyed = _BEARER.sub(lambda found: found[1] + _masked(found[2]), _mask_keys(filled))
        return _OTHERS.sub(lambda found: _masked(found[0]), unkeyed)

    def is_clean(self, body: bytes) -> bool:
        """Return True if no reading of the body shows a secret or a name: unescaped, or joined over the events."""
        text = body.decode("utf-8", "replace")
        readings = [text, unquote(text), html.unescape(text), *_joined_strings(text)]
        secrets = [bare for secret in self._secrets if (bare := _bare(secret))]
        names = [name.casefold() for name in self._names]
        return not any(
            any(name in reading.casefold() for name in names) or any(secret in _bare(reading) for secret in secrets)
            for reading in readings
        )


def _parts(secret: str) -> Iterator[str]:
    """Yield a secret, and the user and the password inside Basic authorization."""
    yield secret
    try:
        decoded = base64.b64decode(secret, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return
    if decoded.isprintable() and ":" in decoded:
        yield decoded
        yield from (part for part in decoded.split(":", 1) if len(part) >= SHORTEST)


# Names of hosts that name nobody, and that a transcript cannot do without.
_ORDINARY = frozenset(
    {*DIALECTS, "localhost", "server", "model", "models", "user", "data", "chat", "host", "default", "metrics",
     "router", "proxy", "gateway", "inference", "content", "object", "/api", "/openai"}
)  # fmt: skip


def _names(target: Target) -> Iterable[str]:
    server = ServerAddress.of(target.url)
    return {server.host, server.socket or "", server.prefix, socket.gethostname(), str(Path.home())} - _ORDINARY


def _bare(text: str) -> str:
    """Return the letters and digits of a text: whatever stands between them, they are the same credential."""
    return re.sub(r"[\W_]", "", text).casefold()


def _mask_keys(text: bytes) -> bytes:
    """Return a text with every credential of a usual form masked."""
    pieces, done = list[bytes](), 0
    for start, end in keys(_BEYOND_ASCII.sub(b"\x7f", text).decode("ascii")):  # a character for each byte
        pieces += [text[done:start], _masked(text[start:end])]
        done = end
    return b"".join([*pieces, text[done:]])


def _masked(found: bytes) -> bytes:
    """Return a text with its letters as `x` and its digits as 0."""
    return re.sub(rb"[^\W\d]|[^\x00-\x7f]", b"x", re.sub(rb"\d", b"0", found))


def _joined_strings(text: str) -> Iterator[str]:
    """Yield the texts of all JSON in a body by their key, joined over the events of a stream."""
    joined: dict[str, list[str]] = {}
    for line in [text, *text.splitlines()]:
        document = json_object(line.removeprefix("data:").strip())
        if document is not None:
            for key, value in _strings(document, ""):
                joined.setdefault(key, []).append(value)
    for values in joined.values():
        yield "".join(values)


def _strings(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield f"{key}/", str(name)
            yield from _strings(inner, f"{key}/{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, key)
