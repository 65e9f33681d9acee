"""A real HTTP proxy on the loopback: CONNECT, and requests in absolute form for one server per connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Notes the first line of everything it is asked. Use as a context manager.

    `refuses` is a status line with which it answers every CONNECT instead.
    """

    def __init__(self, refuses: str | None = None) -> None:
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.url = ""
        self._refuses = refuses
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._talks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the proxy did not start within 10 s")
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        talks = list(self._talks)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the turn after

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        writers = [writer]
        try:
            await self._talk(reader, writer, writers)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # either end went away, as it may
        finally:
            for each in writers:
                each.transport.abort()
            self._talks.discard(talk)

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, writers: list[asyncio.StreamWriter]
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, _, fields = head.partition("\r\n")
        self.asked.append(line)
        self.heads.append(head)
        method, where, _ = line.split(" ", 2)
        if method == "CONNECT":
            if self._refuses is not None:
                writer.write(f"{self._refuses}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
                return
            host, _, port = where.rpartition(":")
            theirs, upstream = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\nvia: 1.1 proxy\r\n\r\n")
        else:
            parts = urlsplit(where)
            assert parts.hostname is not None, f"not in absolute form: {line}"
            theirs, upstream = await asyncio.open_connection(parts.hostname, parts.port or 80)
            upstream.write(f"{method} {parts.path} HTTP/1.1\r\n{fields}".encode("latin-1"))
        writers.append(upstream)
        back = asyncio.create_task(_pass_on(theirs, writer))
        try:
            await self._forward(reader, upstream, absolute=method != "CONNECT")
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, *, absolute: bool) -> None:
        """Everything a client sends on, its request lines in the form that a server takes."""
        while data := await reader.read(2**16):
            line, crlf, rest = data.partition(b"\r\n")
            if absolute and line.startswith((b"POST http://", b"GET http://")):
                self.asked.append(line.decode("latin-1"))
                method, where, _ = line.decode("latin-1").split(" ", 2)
                data = f"{method} {urlsplit(where).path} HTTP/1.1".encode() + crlf + rest
            upstream.write(data)
            await upstream.drain()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()
