"""A raw client of the practice server: what was sent, byte by byte, and when it came."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 10.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Raw:
    """Everything that came back on one connection. `reads` are (monotonic ns, bytes); `ended` is how it ended."""

    reads: Sequence[tuple[int, bytes]]
    ended: str  # "closed", "reset" or "open", when nothing more came in time

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data in self.reads)

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode("latin-1").lower()

    @property
    def body(self) -> bytes:
        """With its chunk framing removed, as far as it came."""
        body = self.data.partition(b"\r\n\r\n")[2]
        return unchunked(body) if "transfer-encoding: chunked" in self.head else body

    @property
    def events(self) -> list[Any]:
        """The events, read naively: one data line each. What is no JSON stays text."""
        lines = self.body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n")
        texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json_or_text(text) for text in texts]

    @property
    def text(self) -> str:
        """Of all events together."""
        choices = [choice for event in self.events if isinstance(event, dict) for choice in event.get("choices", [])]
        return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)

    @property
    def finish(self) -> str | None:
        """The finish reason, whichever event has it."""
        events = [event for event in self.events if isinstance(event, dict)]
        reasons = [choice["finish_reason"] for event in events for choice in event.get("choices", [])]
        return next((reason for reason in reasons if reason), None)


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return whole


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def request_bytes(
    path: str = CHAT, body: object = None, headers: dict[str, str] | None = None, *, keep: bool = False
) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    content = b"" if body is None else raw
    lines = [f"{method} {path} HTTP/1.1", "host: sim", f"content-length: {len(content)}"]
    lines += [] if keep else ["connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def asking(tokens: int = 8, *, prompt: str = "one two three", stream: bool = True, **more: object) -> dict[str, Any]:
    """The body of a chat request."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, **options, **more}


def talk(port: int, *requests: bytes, until_silent_s: float = PATIENCE_S) -> Raw:
    """Send, and read until the server ends the connection, or nothing comes for so long."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        for request in requests:
            sock.sendall(request)
        return read_all(sock, until_silent_s)


def read_all(sock: socket.socket, until_silent_s: float = PATIENCE_S) -> Raw:
    reads: list[tuple[int, bytes]] = []
    sock.settimeout(until_silent_s)
    while True:
        try:
            data = sock.recv(2**18)
        except TimeoutError:
            return Raw(reads, "open")
        except ConnectionResetError:
            return Raw(reads, "reset")
        if not data:
            return Raw(reads, "closed")
        reads.append((time.monotonic_ns(), data))
