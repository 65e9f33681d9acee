"""The server's side of HTTP/1.1, pure: requests out of bytes, and the heads and frames of responses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

LARGEST_HEAD_BYTES = 64 * 2**10
LARGEST_BODY_BYTES = 64 * 2**20
LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON_TYPE = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class BadRequest(Exception):
    """Bytes that are no request; the connection cannot be used any further."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request. Header names are lower case; `path` is without the query."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    http10: bool

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants the connection to go on."""
        wish = self.headers.get("connection", "").lower()
        return wish == "keep-alive" if self.http10 else wish != "close"


class RequestReader:
    """Fed with reads split anywhere, gives whole requests."""

    def __init__(self) -> None:
        self._pending = b""
        self._head: tuple[list[str], dict[str, str]] | None = None
        self.wants_continue = False  # the client waits for `100 Continue` before it sends the body

    def feed(self, data: bytes) -> None:
        """Take in what was read."""
        self._pending = self._pending + data if self._pending else data

    def next(self) -> Request | None:
        """The next whole request; None while it is still coming. Raises BadRequest."""
        if self._head is None and not self._take_head():
            return None
        assert self._head is not None
        start, headers = self._head
        body = self._take_body(headers)
        if body is None:
            self.wants_continue = headers.get("expect", "").lower() == "100-continue" and not self._pending
            return None
        self._head, self.wants_continue = None, False
        path, _, query = start[1].partition("?")
        return Request(start[0], path, query, headers, body, http10=start[2] == "HTTP/1.0")

    def _take_head(self) -> bool:
        head, end, rest = self._pending.partition(b"\r\n\r\n")
        if not end or len(head) > LARGEST_HEAD_BYTES:
            if len(head) > LARGEST_HEAD_BYTES:
                raise BadRequest(431, f"the head of the request is longer than {LARGEST_HEAD_BYTES} bytes")
            return False
        lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")
        start = lines[0].split(" ")
        if len(start) != 3 or start[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise BadRequest(400, "the first line is no HTTP/1.1 request line")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._head, self._pending = (start, headers), rest
        return True

    def _take_body(self, headers: dict[str, str]) -> bytes | None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._take_chunks()
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise BadRequest(400, "the content-length is no number")
        size = int(length)
        if size > LARGEST_BODY_BYTES:
            raise BadRequest(413, f"the body is longer than {LARGEST_BODY_BYTES} bytes")
        if len(self._pending) < size:
            return None
        body, self._pending = self._pending[:size], self._pending[size:]
        return body

    def _take_chunks(self) -> bytes | None:
        """A chunked body, from its first byte each time: requests are small and mostly come in one read."""
        body, at = b"", 0
        while (end := self._pending.find(b"\r\n", at)) >= 0:
            digits = self._pending[at:end].partition(b";")[0].strip()
            try:
                size = int(digits, 16)
            except ValueError:
                raise BadRequest(400, "a chunk of the body has no size") from None
            if size < 0 or len(body) + size > LARGEST_BODY_BYTES:
                raise BadRequest(413, f"the body is longer than {LARGEST_BODY_BYTES} bytes")
            at = end + 2 + size + 2
            if len(self._pending) < at:
                return None
            body += self._pending[end + 2 : at - 2]
            if size == 0:
                self._pending = self._pending[at:]
                return body
        return None


def head(status: int, *headers: str, version: str = "HTTP/1.1") -> bytes:
    """A response head with these header lines."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    return "\r\n".join([f"{version} {status} {phrase}", *headers, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Data as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, *headers: str, content_type: str = JSON_TYPE) -> bytes:
    """A whole response with its length declared."""
    return head(status, f"content-type: {content_type}", f"content-length: {len(body)}", *headers) + body


def json_response(status: int, document: object, *headers: str) -> bytes:
    """A whole response with a JSON document."""
    return whole(status, json.dumps(document, separators=(",", ":")).encode(), *headers)
