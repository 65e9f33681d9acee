"""How the bytes of a faulty answer reach the wire: framed, cut and delayed as its behaviour says."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Sequence

from benchgate.sim.connection import Connection
from benchgate.sim.faults import Behaviour
from benchgate.sim.http import LAST_CHUNK, chunk, head

_COMMENT = b": keep-alive\n\n"
_FAR_MORE_BYTES, _FAR_LESS_BYTES = 1_000_000_000, 20
_GZIP = 16 + zlib.MAX_WBITS


class Pipe:
    """One response body. `open` before anything is sent; `close` or `reset` at the end, and nothing after."""

    def __init__(self, line: Connection, behaviour: Behaviour, *, content_type: str, keeps_alive: bool) -> None:
        self.opened = False
        self.ends_connection = not keeps_alive or behaviour.http10 or behaviour.length is not None
        self._line = line
        self._behaviour = behaviour
        self._content_type = content_type
        self._chunked = False
        self._compress = zlib.compressobj(wbits=_GZIP) if behaviour.gzip else None
        self._dripping = bytearray()
        self._dripped = 0  # bytes
        self._told_at: deque[tuple[int, Callable[[], None]]] = deque()  # of those that drip, and who waits for them
        self._timer: asyncio.TimerHandle | None = None
        self._when_dry: Callable[[], None] | None = None

    def open(self, length: int | None = None, status: int = 200) -> None:
        """Write the head. With `length` (bytes, before compression) the body is declared, else it is chunked."""
        behaviour = self._behaviour
        headers = [f"content-type: {self._content_type}"]
        if behaviour.length is not None:
            headers.append(f"content-length: {_FAR_MORE_BYTES if behaviour.length == 'more' else _FAR_LESS_BYTES}")
        elif length is not None and self._compress is None:
            headers.append(f"content-length: {length}")
        elif not behaviour.http10:
            self._chunked = True
            headers.append("transfer-encoding: chunked")
        if self._compress is not None:
            headers.append("content-encoding: gzip")
        if behaviour.header_bytes:
            headers.append("x-padding: " + "x" * behaviour.header_bytes)
        if self.ends_connection and behaviour.length is None:
            headers.append("connection: close")
        self.opened = True
        self._deliver(head(status, *headers, version="HTTP/1.0" if behaviour.http10 else "HTTP/1.1"))

    def send(self, pieces: Sequence[bytes], written: Callable[[], None] | None = None, of: int | None = None) -> None:
        """Send events, or pieces of a document, in one write; each is a chunk, or so many of them together.

        `written` is called when the kernel has the first `of` of them (all, unless said), with what they are merged in.
        """
        merged = self._behaviour.events_per_write
        dressed = [self._dressed(piece) for piece in pieces]
        groups = [b"".join(dressed[at : at + merged]) for at in range(0, len(dressed), merged)]
        framed = [self._framed(self._squeezed(group)) for group in groups]
        if written is not None and self._behaviour.drip_s is not None:
            waited_for = len(framed) if of is None else -(-of // merged)
            self._told_at.append((self._dripped + len(self._dripping) + sum(map(len, framed[:waited_for])), written))
            written = None
        self._deliver(b"".join(framed))
        if written is not None:
            written()

    def close(self, then: Callable[[], None]) -> None:
        """End the body, and call `then` when its last byte is written."""
        if self._compress is not None:
            self._deliver(self._framed(self._compress.flush()))
        if self._chunked:
            self._deliver(LAST_CHUNK)
        self._when_dry = then
        if not self._dripping:
            then()

    def reset(self, unfinished: bytes) -> None:
        """Write half of this piece and drop the connection."""
        framed = self._framed(unfinished)
        self._line.write(bytes(self._dripping) + framed[: len(framed) // 2])
        self._line.reset()

    def forget(self) -> None:
        """Stop what is still dripping, and tell nobody of it."""
        self._told_at.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _dressed(self, piece: bytes) -> bytes:
        return (_COMMENT + piece).replace(b"\n", b"\r\n") if self._behaviour.crlf else piece

    def _squeezed(self, data: bytes) -> bytes:
        if self._compress is None:
            return data
        return self._compress.compress(data) + self._compress.flush(zlib.Z_SYNC_FLUSH)

    def _framed(self, data: bytes) -> bytes:
        return chunk(data) if self._chunked and data else data

    def _deliver(self, data: bytes) -> None:
        if self._behaviour.drip_s is not None:
            self._dripping += data
            if self._timer is None:
                self._drip()
        elif self._behaviour.bytewise:
            for at in range(len(data)):
                self._line.write(data[at : at + 1])
        else:
            self._line.write(data)

    def _drip(self) -> None:
        """Write the next byte, and come back for the one after."""
        self._timer = None
        if self._dripping:
            self._line.write(bytes(self._dripping[:1]))
            del self._dripping[0]
            self._dripped += 1
            while self._told_at and self._told_at[0][0] <= self._dripped:
                self._told_at.popleft()[1]()
            wait_s = self._behaviour.drip_s or 0.0
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._drip)
            if not self._dripping and self._when_dry is not None:
                self._when_dry()
