"""A real HTTP/1.1 server on the loopback whose every byte, pause and reset is scripted by the test.

    def respond(received: Received) -> Iterable[Step]:
        yield stream_head()
        yield role_event()
        yield token("Hello")
        yield 0.05  # seconds
        yield finish("stop")
        yield usage(prompt=3, completion=1)
        yield DONE + LAST_CHUNK

    with ScriptedServer(respond) as server:
        ...  # talk to server.url

It runs in a thread of its own, keeps connections alive and never parses what it sends: it can be as wrong as a test
needs it to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Ending(Enum):
    """How a connection ends in the middle of a script."""

    ABORT = auto()  # TCP reset: what was sent may be lost
    CLOSE = auto()  # orderly end of the connection


ABORT = Ending.ABORT
CLOSE = Ending.CLOSE
Step = bytes | float | Ending
"""Bytes are written raw, a float waits that many seconds, an Ending ends the connection."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived. Header names are lower case; `body` is None when it is not a JSON object."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None

    @property
    def prompt(self) -> str:
        """The text asked about: the last message of a chat, or the prompt of a completion; empty when neither."""
        body = self.body or {}
        if messages := body.get("messages"):
            return str(messages[-1]["content"])
        return str(body.get("prompt", ""))


Respond = Callable[[Received], Iterable[Step]]


class ScriptedServer:
    """Answers every request with the steps `respond` gives for it. Use as a context manager.

    With `tls` it speaks TLS; with `socket_path` it listens on a Unix socket. Without a `port` it takes a free one.
    """

    def __init__(
        self, respond: Respond, *, tls: ssl.SSLContext | None = None, socket_path: Path | None = None, port: int = 0
    ) -> None:
        self.requests: list[Received] = []
        self.connections = 0  # accepted so far
        self.url = ""
        self._respond = respond
        self._tls = tls
        self._port = port
        self._socket_path = socket_path
        self._loop = asyncio.new_event_loop()
        self._talks: list[tuple[asyncio.Task[None], asyncio.StreamWriter]] = []
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the scripted server did not start within 10 s")
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Die: drop every connection and stop listening. Leaving the context does it too; twice is once."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(10)

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self.url.rsplit(":", 1)[1])

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await self._listen()
        self._ready.set()
        await self._stop.wait()
        server.close()
        talks = list(self._talks)
        for talk, writer in talks:
            talk.cancel()
            writer.transport.abort()  # nobody waits for what is still unsent
        await asyncio.gather(*(talk for talk, _ in talks), return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the turn after

    async def _listen(self) -> asyncio.Server:
        if self._socket_path is not None:
            self.url = f"unix:{self._socket_path}"
            return await asyncio.start_unix_server(self._accept, self._socket_path, limit=2**24)
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=2**24, ssl=self._tls)
        scheme, host = ("http", "127.0.0.1") if self._tls is None else ("https", "localhost")
        self.url = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}"
        return server

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._stop.is_set():  # a talk would be cancelled before its first step, and nobody would close this
            writer.transport.abort()
            return
        self._talks.append((self._loop.create_task(self._talk(reader, writer)), writer))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (received := await _read_request(reader)) is not None:
                self.requests.append(received)
                if not await _play(self._respond(received), writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as it may
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    """The next request of a connection; None when the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    request_line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = request_line.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    return Received(method, path, headers, body if isinstance(body, dict) else None)


async def _play(steps: Iterable[Step], writer: asyncio.StreamWriter) -> bool:
    """Write a script; False when it ended the connection. One whose client goes away is closed, and may notice it."""
    try:
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, Ending):
                if step is ABORT:
                    _reset(writer)
                return False
            else:
                await asyncio.sleep(step)
    finally:
        if isinstance(steps, Generator):
            steps.close()
    return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of an orderly end."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# --- what scripts are made of ---------------------------------------------------------------------------------------

LAST_CHUNK = b"0\r\n\r\n"


def stream_head(*headers: str, status: str = "200 OK") -> bytes:
    """Response head of a chunked event stream, with extra header lines."""
    lines = [f"HTTP/1.1 {status}", "content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked"]
    return "\r\n".join([*lines, *headers, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    """Data as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: object) -> bytes:
    """One server-sent event as one HTTP chunk; a str goes as it is, anything else as JSON."""
    text = data if isinstance(data, str) else json.dumps(data)
    return chunk(f"data: {text}\n\n".encode())


DONE = event("[DONE]")


def role_event() -> bytes:
    """The chat event that opens a stream and carries no output."""
    return _chat_event({"role": "assistant", "content": ""})


def token(text: str) -> bytes:
    """One chat event with output."""
    return _chat_event({"content": text})


def finish(reason: str) -> bytes:
    """The chat event that carries the finish reason and no output."""
    return _chat_event({}, reason)


def usage(prompt: int, completion: int) -> bytes:
    """The usage event with empty choices that follows the finish event when it was asked for."""
    return event({"object": "chat.completion.chunk", "choices": [], "usage": _usage(prompt, completion)})


def json_response(body: object, status: int = 200) -> bytes:
    """A whole response with a JSON body."""
    raw = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def answering(text_for: Callable[[Received], str], after_s: float = 0.0) -> Respond:
    """A well-behaved server: answers chat and completions, streaming or not, plus `/health` and `/v1/models`.

    One token is one whitespace-separated word of the text, cut at the request's `max_tokens`; an empty text is an
    answer without a token. Usage is always told. `after_s` is how long it thinks before an answer: a closed loop over
    a server that does not think measures only its own client.
    """

    def respond(received: Received) -> Iterator[Step]:
        if received.path in ("/v1/chat/completions", "/v1/completions"):
            yield after_s
            yield from _answer(received, text_for(received))
        elif received.path == "/health":
            yield json_response({"status": "ok"})
        elif received.path == "/v1/models":
            yield json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        else:
            yield json_response({"error": {"message": "no such path"}}, status=404)

    return respond


def _answer(received: Received, text: str) -> Iterator[Step]:
    body = received.body or {}
    words = text.split()
    limit = body.get("max_tokens")
    reason = "length" if limit is not None and len(words) >= limit else "stop"
    tokens = [word if at == 0 else f" {word}" for at, word in enumerate(words)][:limit]
    counts = _usage(len(received.prompt.split()), len(tokens))
    chat = received.path.endswith("/chat/completions")
    if not body.get("stream"):
        yield json_response(_whole(chat, "".join(tokens), reason, counts))
        return
    yield stream_head()
    if chat:
        yield role_event()
    for text_piece in tokens:
        yield token(text_piece) if chat else _text_event(text_piece, None)
    yield finish(reason) if chat else _text_event("", reason)
    yield event({"choices": [], "usage": counts})
    yield DONE + LAST_CHUNK


def _whole(chat: bool, text: str, reason: str, counts: dict[str, int]) -> dict[str, object]:
    content: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    choice = {"index": 0, **content, "finish_reason": reason}
    return {"object": kind, "model": "scripted", "choices": [choice], "usage": counts}


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _chat_event(delta: dict[str, object], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return event({"object": "chat.completion.chunk", "choices": [choice]})


def _text_event(text: str, reason: str | None) -> bytes:
    return event({"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": reason}]})
