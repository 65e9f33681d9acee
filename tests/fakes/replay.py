"""Recorded exchanges with real servers (tests/captures), given back over a socket as they were sent.

    with ScriptedServer(replay("litgpt-0.5.13/chat_stream")) as server:
        ...

The bytes on the wire are rebuilt exactly: each server framed one event as one chunk, so that head, framing and body
have the length that was counted when they were recorded (a test holds it).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.scripted_server import CLOSE, LAST_CHUNK, Received, Respond, Step, chunk

CAPTURES = Path(__file__).parents[1] / "captures"

_CUT = b"...[cut]..."
_END_OF_CHUNK = b"\n\n\r\n"


@dataclass(frozen=True, slots=True)
class Capture:
    """One exchange. `path` is that of the request, and `asked` its JSON body, None where there was none or not one.

    `reads` are (seconds since the request was written, bytes on the wire) of every read; empty where not recorded.
    """

    path: str
    asked: dict[str, Any] | None
    status_line: str
    headers: tuple[str, ...]
    body: bytes
    reads: tuple[tuple[float, int], ...]

    @property
    def events(self) -> tuple[bytes, ...]:
        """The body cut after every blank line; what follows the last one is an event too."""
        *events, rest = self.body.split(b"\n\n")
        return (*(event + b"\n\n" for event in events), *([rest] if rest else []))

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self.status_line.split()[1])

    @property
    def chunked(self) -> bool:
        """Whether the body was sent in chunks; else its length was declared."""
        return "transfer-encoding: chunked" in (line.lower() for line in self.headers)

    def head(self, *, keep_alive: bool = False) -> bytes:
        """The response head; without the `connection: close` that the recording client had asked for."""
        fresh = {"content-length": f"content-length: {len(self.body)}"}
        lines = [fresh.get(line.partition(":")[0].lower(), line) for line in self.headers]
        if keep_alive:
            lines.remove("connection: close")
        return "\r\n".join([self.status_line, *lines, "", ""]).encode()

    def wire(self, *, keep_alive: bool = False, events: Sequence[bytes] | None = None) -> bytes:
        """Every byte of the response; with `events` in place of its own, and its end, or up to there with none."""
        if not self.chunked:
            return self.head(keep_alive=keep_alive) + self.body
        chunks = [chunk(event) for event in (self.events if events is None else events)]
        return b"".join([self.head(keep_alive=keep_alive), *chunks, LAST_CHUNK])

    def as_recorded(self, scale: float = 1.0) -> Iterator[Step]:
        """The response in the reads of the recording, each after as long a pause as then, times `scale`."""
        wire, at, before_s = self.wire(), 0, 0.0
        for at_s, size in self.reads:
            yield (at_s - before_s) * scale
            yield wire[at : at + size]
            at, before_s = at + size, at_s
        yield wire[at:]
        yield CLOSE


def capture(name: str) -> Capture:
    """The exchange recorded as tests/captures/NAME.http."""
    return read_exchange(CAPTURES / f"{name}.http")


def read_exchange(path: Path) -> Capture:
    """The exchange in a file of a transcript."""
    raw = path.read_bytes()
    at = raw.index(b"\nHTTP/1.") + 1
    request_line, _, asked = raw[:at].partition(b"\n")
    head, _, body = raw[at:].partition(b"\n\n")
    status_line, *headers = head.decode().split("\n")
    path_asked = request_line.decode().split()[1]
    return Capture(
        path_asked, _json(asked), status_line, tuple(headers), body, _reads(path.with_suffix(".arrivals.txt"))
    )


def replay(name: str, *, keep_alive: bool = False) -> Respond:
    """A server that answers every request with this recording, in one piece."""
    recorded = capture(name)

    def respond(received: Received) -> Iterable[Step]:
        return [recorded.wire(keep_alive=keep_alive)] if keep_alive else [recorded.wire(), CLOSE]

    return respond


def engine_killed() -> bytes:
    """The wire of a vLLM stream whose engine was killed, joined again where its middle was cut out."""
    raw = (CAPTURES / "vllm-0.32.0-cpu/midstream_engine_killed.raw").read_bytes()
    before, _, after = raw.partition(_CUT)
    begins = before.rindex(_END_OF_CHUNK) + len(_END_OF_CHUNK)
    return before[:begins] + after[after.index(_END_OF_CHUNK) + len(_END_OF_CHUNK) :]


def aborted_event() -> bytes:
    """The last event of a vLLM stream that SIGTERM ended; its beginning, which was not kept, is that of another."""
    tail = (CAPTURES / "vllm-0.32.0-cpu/midstream_sigterm_abort_tail.raw").read_bytes()
    rest = tail[: tail.index(b"\n\n") + 2]
    whole = capture("vllm-0.32.0-cpu/chat_stream").events[1]
    return whole[: whole.index(rest[:16])] + rest


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data cut at these places, without empty pieces."""
    edges = sorted({0, len(data), *(cut for cut in cuts if 0 < cut < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def _json(text: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _reads(path: Path) -> tuple[tuple[float, int], ...]:
    if not path.exists():
        return ()
    rows = (line.split() for line in path.read_text().splitlines() if not line.startswith("#"))
    return tuple((float(at_ms) / 1e3, int(size)) for at_ms, size in rows)


def renamed(wire: bytes, number: int) -> bytes:
    """The same bytes as another answer: the end of every id is this number. No server gives two answers one id."""
    return re.sub(rb'("id": ?"[^"]+)[^"]{4}"', lambda found: found[1] + b'%04d"' % number, wire)


def texts_of(body: bytes) -> list[str]:
    """The texts with output in a stream, by the plainest reading there is."""
    texts = []
    for line in body.decode().split("\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            texts.append(choice.get("delta", choice).get("content" if "delta" in choice else "text"))
    return [text for text in texts if text]
