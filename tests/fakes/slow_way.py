"""A TCP proxy that passes everything on late, as a long way does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class SlowWay:
    """Passes bytes on `delay_s` after they came, each way. Use as a context manager."""

    def __init__(self, host: str, port: int, delay_s: float, *, at: str = "127.0.0.1", at_port: int = 0) -> None:
        self.port = at_port
        self._to = host, port
        self._at = at
        self._delay_s = delay_s
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="slow way", daemon=True)

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
        server = await asyncio.start_server(self._accept, self._at, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.close()
            return
        for one, other in ((reader, their_writer), (their_reader, writer)):
            task = asyncio.create_task(self._pass_on(one, other))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def write(data: bytes) -> None:
            if data:
                writer.write(data)
            else:
                writer.close()

        with suppress(OSError):
            while True:
                data = await reader.read(65536)
                self._loop.call_later(self._delay_s, write, data)
                if not data:
                    return
