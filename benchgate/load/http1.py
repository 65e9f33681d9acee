"""HTTP/1.1 responses, pure: the head, and the body out of its chunks. Bytes in, values out, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LONGEST_LINE = 8192  # of a chunk's size or a trailer
_LONGEST_HEAD = 65536


class MalformedResponse(ValueError):
    """What came is not HTTP/1.1; the message says what was found."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response. Header names are lower case; repeated ones are joined by a comma."""

    version: str
    status: int
    headers: Mapping[str, str]

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return self.headers.get("transfer-encoding", "").lower().endswith("chunked")

    @property
    def content_length(self) -> int | None:
        """Declared length of the body in bytes; None when it is chunked or ends with the connection."""
        if self.status in (204, 304):
            return 0
        if self.chunked or "content-length" not in self.headers:
            return None
        text = self.headers["content-length"]
        if not (text.isascii() and text.isdigit()):
            raise MalformedResponse(f"content-length is {text[:40]!r}, not a number")
        return int(text)

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request after this response."""
        return "close" not in self.headers.get("connection", "").lower() and self.version == "HTTP/1.1"


def split_head(raw: bytes) -> tuple[Head, bytes] | None:
    """The head of a response and what follows it; None while the head is not complete.

    Interim responses (1xx) are skipped. Raises MalformedResponse when this is no HTTP/1.x response.
    """
    while True:
        if not b"HTTP/1.".startswith(raw[:7]):
            raise MalformedResponse(f"the answer does not start like HTTP/1.1: {raw[:40]!r}")
        end = raw.find(b"\r\n\r\n")
        if end < 0 and len(raw) > _LONGEST_HEAD:
            raise MalformedResponse(f"the response head is longer than {_LONGEST_HEAD} bytes")
        if end < 0:
            return None
        head, raw = _parse_head(raw[:end].decode("latin-1")), raw[end + 4 :]
        if head.status >= 200:
            return head, raw


def _parse_head(text: str) -> Head:
    status_line, *lines = text.split("\r\n")
    version, _, rest = status_line.partition(" ")
    code = rest[:3]
    if not (len(code) == 3 and code.isascii() and code.isdigit()):
        raise MalformedResponse(f"status line without a status: {status_line[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise MalformedResponse(f"header line without a colon: {line[:80]!r}")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Head(version, int(code), headers)


class Dechunker:
    """Takes a chunked body apart, fed in reads split anywhere.

    `complete` turns true with the last chunk and its trailers; what is fed after that is ignored.
    """

    def __init__(self) -> None:
        self.complete = False
        self._left = 0  # bytes of the current chunk still to come
        self._state = _SIZE
        self._line = b""  # a size or trailer line whose end has not come yet

    def feed(self, data: bytes) -> bytes:
        """The payload inside these bytes. Raises MalformedResponse when they are not a chunked body."""
        if self._state == _SIZE and not self._line:
            payload = _single_chunk(data)
            if payload is not None:
                return payload
        return self._walk(data)

    def _walk(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.complete:
            if self._state == _DATA:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._state = _AFTER
                continue
            end = data.find(b"\n", at)
            self._line += data[at : len(data) if end < 0 else end + 1]
            if len(self._line) > _LONGEST_LINE:
                raise MalformedResponse(f"a chunk size or trailer longer than {_LONGEST_LINE} bytes")
            if end < 0:
                break
            at = end + 1
            line, self._line = self._line.rstrip(b"\r\n"), b""
            self._take_line(line)
        return b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        if self._state == _AFTER:
            if line:
                raise MalformedResponse(f"{line[:40]!r} where a chunk should have ended")
            self._state = _SIZE
        elif self._state == _TRAILER:
            self.complete = not line
        else:
            self._left = _chunk_size(line)
            self._state = _DATA if self._left else _TRAILER


_SIZE, _DATA, _AFTER, _TRAILER = range(4)
_HEX = frozenset(b"0123456789abcdefABCDEF")


def _single_chunk(data: bytes) -> bytes | None:
    """The payload when the read is exactly one whole chunk with data, as nearly all are; None when it is not."""
    end = data.find(b"\r\n", 0, 18)
    if end <= 0 or not _HEX.issuperset(data[:end]):
        return None
    size = int(data[:end], 16)
    if size == 0 or len(data) != end + 4 + size or not data.endswith(b"\r\n"):
        return None
    return data[end + 2 : -2]


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 16 or not _HEX.issuperset(digits):
        raise MalformedResponse(f"{line[:40]!r} is not the size of a chunk")
    return int(digits, 16)
