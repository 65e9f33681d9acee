"""HTTP/1.1 responses, pure: the head, and the body out of its chunks. Bytes in, values out, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

LARGEST_RESPONSE_BYTES = 64 * 2**20
_LONGEST_LINE = 8192  # of a chunk's size or a trailer
_LONGEST_HEAD = 65536
_LONGEST_NUMBER = 18  # digits: what is longer than that is no length, and costs time to convert


class MalformedResponse(ValueError):
    """The response is not HTTP/1.1; the message says what was found."""


@dataclass(frozen=True)
class Head:
    """Status and headers of a response. Header names are lower case; repeated ones are joined by a comma.

    What follows from them is worked out once: most answers of a server share one head.
    """

    version: str
    status: int
    headers: Mapping[str, str]

    @cached_property
    def chunked(self) -> bool:
        """Return True if the body is chunked. Raises MalformedResponse for other transfer codings."""
        codings = self._listed("transfer-encoding") - {"identity"}
        if codings - {"chunked"}:
            raise MalformedResponse(f"transfer-encoding {self.headers['transfer-encoding'][:40]!r} was not requested")
        return bool(codings)

    @cached_property
    def content_length(self) -> int | None:
        """Declared length of the body in bytes; None when it is chunked or ends with the connection.

        Beside chunks a length means nothing (RFC 9112, 6.3). Declared twice, it must be the same both times.
        """
        if self.status in (204, 304):
            return 0
        if self.chunked or "content-length" not in self.headers:
            return None
        declared = self._listed("content-length")
        text = declared.pop()
        if declared:
            raise MalformedResponse(
                f"content-length is declared twice, differently: {self.headers['content-length'][:40]!r}"
            )
        if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
            raise MalformedResponse(f"content-length is {text[:40]!r}, not a number")
        if int(text) > LARGEST_RESPONSE_BYTES:  # it would be waited for until the time limit of the request
            raise MalformedResponse(f"content-length is {text}; a response has at most {LARGEST_RESPONSE_BYTES} bytes")
        return int(text)

    @cached_property
    def coded(self) -> str | None:
        """Return the content coding, although identity was requested; None for identity."""
        return ", ".join(sorted(self._listed("content-encoding") - {"identity", "none", ""})) or None

    @cached_property
    def keeps_alive(self) -> bool:
        """Return True if the connection can carry another request after this response.

        Not with both chunks and a length: a proxy that believes the other one sees another next response. Nor after a
        stream of llama.cpp's server, which closes unannounced a moment later: a request sent meanwhile would be lost.
        """
        framed_twice = "transfer-encoding" in self.headers and "content-length" in self.headers
        if framed_twice or self.version != "HTTP/1.1" or "close" in self._listed("connection"):
            return False
        return not (self.chunked and self.headers.get("server") == "llama.cpp")

    @cached_property
    def as_bytes(self) -> bytes:
        """The head as it came over the wire, so that what read it once reads it again."""
        lines = [f"{self.version} {self.status}", *(f"{name}:{value}" for name, value in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _listed(self, name: str) -> set[str]:
        """The entries of a header that is a list; empty when it is not there."""
        value = self.headers.get(name)
        return set() if value is None else {entry.strip().lower() for entry in value.split(",")}


def split_head(raw: bytes) -> tuple[Head, bytes] | None:
    """The head of a response and what follows it; None while the head is not complete.

    Interim responses (1xx) are skipped; they count towards the longest head there may be. Raises MalformedResponse
    when this is no HTTP/1.x response.
    """
    at = 0
    while True:
        if not b"HTTP/1.".startswith(raw[at : at + 7]):
            raise MalformedResponse(f"the answer does not start like HTTP/1.1: {raw[at : at + 40]!r}")
        end = raw.find(b"\r\n\r\n", at)
        if (len(raw) if end < 0 else end) > _LONGEST_HEAD:
            raise MalformedResponse(f"the response head is longer than {_LONGEST_HEAD} bytes")
        if end < 0:
            return None
        head = _parse_head(raw[at:end])
        at = end + 4
        if head.status >= 200:
            return head, raw[at:]
        if head.status == 101:
            raise MalformedResponse("the server switches to another protocol, which was not requested")


@lru_cache(maxsize=8)  # the heads of a server differ by the second of their dates, where nothing numbers them
def _parse_head(raw: bytes) -> Head:
    status_line, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    code = rest[:3]
    if not (len(code) == 3 and code.isascii() and code.isdigit() and code >= "100"):
        raise MalformedResponse(f"status line without a status: {status_line[:80]!r}")
    headers: dict[str, str] = {}
    name = ""
    for line in lines:
        if name and line.startswith((" ", "\t")):  # obsolete folding: the value goes on here
            headers[name] = f"{headers[name]} {line.strip()}".strip()
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not (colon and name):
            raise MalformedResponse(f"header line without a name and a colon: {line[:80]!r}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Head(version, int(code), headers)


class Dechunker:
    """Takes a chunked body apart, fed in reads split anywhere.

    `complete` turns true with the last chunk and its trailers; what is fed after that is ignored, and is a `surplus`.
    """

    def __init__(self) -> None:
        self.complete = False
        self.surplus = False
        self._left = 0  # bytes of the current chunk still to come
        self._state = _SIZE
        self._line = b""  # a size or trailer line whose end has not come yet

    def take(self, at_ns: int, data: bytes, found: list[tuple[int, bytes]] | None) -> None:
        """Add the payload inside these bytes, which arrived at `at_ns`, whole chunks each by itself.

        Without a list to add to it only follows the chunks to see where they end. Raises MalformedResponse when the
        bytes are not a chunked body.
        """
        at = 0
        if self._state == _SIZE and not self._line:
            while (edges := whole_chunk(data, at)) is not None:
                at = edges[1] + 2
                if found is not None:
                    found.append((at_ns, data[edges[0] : edges[1]]))
        if at < len(data):
            self._walk(at_ns, data, at, found)

    def _walk(self, at_ns: int, data: bytes, at: int, found: list[tuple[int, bytes]] | None) -> None:
        while at < len(data) and not self.complete:
            if self._state == _DATA:
                size = min(self._left, len(data) - at)
                if found is not None:
                    found.append((at_ns, data[at : at + size]))
                at += size
                self._left -= size
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
        self.surplus = self.surplus or (self.complete and at < len(data))

    def _take_line(self, line: bytes) -> None:
        if self._state == _AFTER:
            if line:
                raise MalformedResponse(f"{line[:40]!r} where a chunk should have ended")
            self._state = _SIZE
        elif self._state == _TRAILER:
            self.complete = not line
        else:
            digits = line.partition(b";")[0].strip()
            if not digits or len(digits) > 16 or not _HEX.issuperset(digits):
                raise MalformedResponse(f"{line[:40]!r} is not the size of a chunk")
            self._left = int(digits, 16)
            if self._left > LARGEST_RESPONSE_BYTES:
                raise MalformedResponse(
                    f"a chunk of {self._left} bytes; a response has at most {LARGEST_RESPONSE_BYTES} bytes"
                )
            self._state = _DATA if self._left else _TRAILER


_SIZE, _DATA, _AFTER, _TRAILER = range(4)
_HEX = frozenset(b"0123456789abcdefABCDEF")


_SIZES = {b"%x" % size: size for size in range(1, 4096)}  # as nearly every chunk has its size


def whole_chunk(data: bytes, at: int) -> tuple[int, int] | None:
    """Return the payload's edges of a complete chunk; None for an incomplete one and for the last one."""
    line_end = data.find(b"\r\n", at, at + 18)
    digits = data[at:line_end] if line_end > 0 else b""
    size = _SIZES.get(digits) or (int(digits, 16) if digits and _HEX.issuperset(digits) else 0)
    begin = line_end + 2
    end = begin + size
    return (begin, end) if size and data.startswith(b"\r\n", end) else None
