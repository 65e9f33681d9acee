"""One of several practice servers behind a router: a process that can really be killed, and started again."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Literal
from urllib.parse import urlsplit

from benchgate import child_process
from benchgate.sim.process import start_sim
from benchgate.sim.settings import SimSettings

State = Literal["up", "starting", "down"]


@dataclass(slots=True)
class Replica:
    """A child process and what the router has sent to it."""

    number: int
    settings: SimSettings
    requests: int = 0
    in_flight: int = 0
    broken: int = 0  # answers that ended before they were whole
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _ready_s: float = 0.0
    _starting: bool = False

    @property
    def pid(self) -> int | None:
        """Of the process that is there; None when it is down."""
        return self._process.pid if self._process is not None and self.state != "down" else None

    @property
    def state(self) -> State:
        """Whether it takes requests, will take some, or is gone."""
        if self._starting:
            return "starting"
        if self._process is None or self._process.poll() is not None:
            return "down"
        return "up" if monotonic() >= self._ready_s else "starting"

    async def start(self, ready_after_s: float) -> None:
        """Start it unless it is there; it refuses connections for so long. Raises UsageError when it does not start."""
        if self.state != "down":
            return
        self._starting = True
        try:
            settings = replace(self.settings, ready_after_s=ready_after_s)
            self._process, url = await asyncio.to_thread(start_sim, settings)
            self.port, self._ready_s = int(urlsplit(url).port or 0), monotonic() + ready_after_s
        finally:
            self._starting = False

    def kill(self) -> None:
        """SIGKILL: nothing is said to anybody any more."""
        if self._process is not None:
            self._process.kill()
            child_process.stop(self._process)

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            child_process.stop(self._process)

    async def ask(self, method: str, path: str) -> bytes:
        """The body of a small answer. Raises OSError when there is none."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nhost: replica\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read()
        finally:
            writer.close()
        head_bytes, end, body = answer.partition(b"\r\n\r\n")
        if not end or not head_bytes.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(f"replica {self.number} did not answer {path}")
        return body

    def document(self) -> dict[str, object]:
        """What is told of it."""
        return {
            "replica": self.number,
            "pid": self.pid,
            "state": self.state,
            "requests": self.requests,
            "in_flight": self.in_flight,
            "broken": self.broken,
        }
