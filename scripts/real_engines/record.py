"""Transcripts of real servers in the form of tests/captures: plain requests on a raw socket, redacted."""

from __future__ import annotations

import json
import platform
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from scripts.real_engines.claims import Session

_TIMEOUT_S = 120.0
_READ_BYTES = 65536
_TOKENS = 8
_SHOWN_CHARACTERS = 300  # of a request
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def record(session: Session, captures: Path) -> Path:
    """Write the transcript of a running engine and return its folder."""
    engine = session.server.engine
    folder = captures / f"{engine.name}-{engine.version}"
    folder.mkdir(parents=True, exist_ok=True)
    chat = {
        "model": engine.model,
        "messages": [{"role": "user", "content": "add 01 02"}],
        "max_tokens": _TOKENS,
        "temperature": 0,
    }
    completion = {"model": engine.model, "prompt": "add 01 02", "max_tokens": _TOKENS, "temperature": 0}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    long_prompt = [{"role": "user", "content": "word " * (engine.context_tokens + 50)}]
    posts: Mapping[str, tuple[str, object]] = {
        "chat_nonstream": (_CHAT, chat),
        "chat_stream": (_CHAT, {**chat, "stream": True}),
        "chat_stream_usage": (_CHAT, {**chat, **streamed}),
        "completions_stream_usage": (_COMPLETIONS, {**completion, **streamed}),
        "completions_echo_logprobs": (_COMPLETIONS, {**completion, "max_tokens": 1, "echo": True, "logprobs": 2}),
        "err_bad_model": (_CHAT, {**chat, "model": "no-such-model"}),
        "err_no_messages": (_CHAT, {"model": engine.model}),
        "err_invalid_json": (_CHAT, '{"model": "tiny-llama", "messages": '),
        "err_long_prompt": (_CHAT, {**chat, "messages": long_prompt}),
        "err_long_prompt_stream": (_CHAT, {**chat, **streamed, "messages": long_prompt}),
        "err_unknown_field": (_CHAT, {**chat, "frobnicate": 1}),
    }
    for name, (path, body) in posts.items():
        text = body if isinstance(body, str) else json.dumps(body)
        _write_exchange(session, folder / name, "POST", path, text)
    _write_exchange(session, folder / "models", "GET", "/v1/models", "")
    if engine.metrics is not None:
        address = urlsplit(session.server.metrics_url)
        page = _Exchange(address.geturl(), "GET", address.path, "").body.decode()
        kept = [line for line in page.splitlines() if "_bucket{" not in line and "_created" not in line]
        (folder / "metrics_after_load.txt").write_text(_redacted(session, "\n".join(kept) + "\n"))
    return folder


class _Exchange:
    """One request on a connection of its own: the bytes that came, and when each read brought how many."""

    def __init__(self, url: str, method: str, path: str, text: str) -> None:
        address = urlsplit(url)
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(text.encode())}\r\nconnection: close\r\n\r\n"
        )
        self.wire, self.reads = b"", list[tuple[float, int]]()
        with socket.create_connection((address.hostname or "", address.port or 80), timeout=_TIMEOUT_S) as connection:
            began = time.monotonic()
            connection.sendall((head + text).encode())
            while not _is_whole(self.wire) and (part := connection.recv(_READ_BYTES)):
                self.wire += part
                self.reads.append(((time.monotonic() - began) * 1e3, len(part)))
        raw_head, _, self.framed = self.wire.partition(b"\r\n\r\n")
        self.head = raw_head.decode().replace("\r\n", "\n")
        self.is_chunked = "transfer-encoding: chunked" in self.head.lower()
        chunks = list(_chunks(self.framed)) if self.is_chunked else []
        self.body = b"".join(chunks) if self.is_chunked else self.framed
        # Only such bytes can be rebuilt from the body alone.
        self.is_event_per_chunk = all(chunk.endswith(b"\n\n") and chunk.count(b"\n\n") == 1 for chunk in chunks)


def _is_whole(wire: bytes) -> bool:
    """Return True once an answer states its end and has reached it: TorchServe leaves the connection open."""
    head, end, body = wire.partition(b"\r\n\r\n")
    if not end:
        return False
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return len(body) >= int(length[1]) if length else b"hunked" in head and body.endswith(b"0\r\n\r\n")


def _chunks(framed: bytes) -> Iterator[bytes]:
    while framed:
        size_line, _, rest = framed.partition(b"\r\n")
        size = int(size_line.partition(b";")[0] or b"0", 16)
        if size == 0:
            return
        yield rest[:size]
        framed = rest[size + 2 :]


def _write_exchange(session: Session, path: Path, method: str, url_path: str, text: str) -> None:
    url_path = urlsplit(session.server.url).path + url_path
    exchange = _Exchange(session.server.url, method, url_path, text)
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"[{len(text)} characters: {text[:_SHOWN_CHARACTERS]}...]"
    request = f"{method} {url_path} HTTP/1.1\n" + (f"{shown}\n" if text else "")
    content = f"{request}\n{exchange.head}\n\n{exchange.body.decode()}"
    redacted = _redacted(session, content)
    path.with_suffix(".http").write_text(redacted, encoding="utf-8", newline="")
    arrivals = path.with_suffix(".arrivals.txt")
    if (
        "_stream" in path.name
        and " 200 " in exchange.head[:20]
        and not path.name.startswith("err_")
        and exchange.is_event_per_chunk
        and redacted == content
    ):
        arrivals.write_text("".join(f"{at_ms:.3f} {size}\n" for at_ms, size in exchange.reads))
    else:
        arrivals.unlink(missing_ok=True)


def _redacted(session: Session, text: str) -> str:
    """Return the text without folders, user and host of this machine."""
    places = session.places
    for found, shown in (
        (str(places.model), "MODEL_DIR"),
        (str(places.root), "ENGINES"),
        (str(Path.cwd()), "FOLDER"),
        (str(Path.home()), "HOME"),
        (socket.gethostname(), "HOST"),
        (platform.platform(), "PLATFORM"),
    ):
        text = text.replace(found, shown)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
