"""A practice server in a process of its own, from start to a certain end.

with serve_sim(SimSettings(ttft_s=0.05, itl_s=0.02)) as sim:
    ...  # send requests to sim.url
    p99_s = sim.truth()["ttft_s"]["p99"]
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urlsplit

from benchgate.errors import UsageError
from benchgate.sim.settings import SimSettings

START_TIMEOUT_S = 30.0  # a start takes 0.3 s on an idle machine
STOP_TIMEOUT_S = 5.0
_CONTROL_TIMEOUT_S = 30.0
_LOG_LINES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Sim:
    """A running practice server. `url` is the base of its addresses."""

    url: str
    pid: int
    settings: SimSettings
    _process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def port(self) -> int:
        """The TCP port; raises ValueError for a Unix socket."""
        port = urlsplit(self.url).port
        if port is None:
            raise ValueError(f"{self.url} has no port")
        return port

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def truth(self, *, with_requests: bool = False) -> dict[str, Any]:
        """What really happened since the last reset; see docs/sim.md. Raises OSError when the server does not answer.

        Not for a server that demands client certificates: ask it as one of its clients.
        """
        told: dict[str, Any] = self._ask("GET", "/sim/truth?requests=1" if with_requests else "/sim/truth")
        return told

    def reset(self) -> None:
        """Let the truth begin anew."""
        self._ask("POST", "/sim/reset")

    def replicas(self) -> list[dict[str, Any]]:
        """Every replica of a server that has several: `replica`, `pid`, `state`, `requests`, `in_flight`, `broken`."""
        told: list[dict[str, Any]] = self._ask("GET", "/sim/replicas")["replicas"]
        return told

    def kill(self, replica: int) -> None:
        """Kill the process of one replica with SIGKILL; it is gone when this returns."""
        self._ask("POST", f"/sim/replicas/{replica}/kill")

    def start(self, replica: int) -> None:
        """Start a killed replica again; it takes requests after `ready_after_s`."""
        self._ask("POST", f"/sim/replicas/{replica}/start")

    def _ask(self, method: str, path: str) -> Any:
        connection = self._connection()
        try:
            connection.request(method, path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.settings.uds is not None:
            return _UnixConnection(self.settings.uds)
        address = urlsplit(self.url)
        host, port = str(address.hostname), self.port
        if self.settings.cert is None:
            return http.client.HTTPConnection(host, port, timeout=_CONTROL_TIMEOUT_S)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # our own child, on our own loopback
        return http.client.HTTPSConnection(host, port, timeout=_CONTROL_TIMEOUT_S, context=context)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_CONTROL_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONTROL_TIMEOUT_S)
        self.sock.connect(self._path)


@contextlib.contextmanager
def serve_sim(settings: SimSettings) -> Iterator[Sim]:
    """Serve for the length of the `with` block; when it begins the server accepts connections (after `ready_after_s`).

    The process is gone when the block is left, whatever happened in it, and goes by itself when this process dies.
    Raises UsageError with the server's own words when it does not start.
    """
    process, url = start_sim(settings)
    try:
        yield Sim(url, process.pid, settings, process)
    finally:
        stop_sim(process)


def start_sim(settings: SimSettings) -> tuple[subprocess.Popen[bytes], str]:
    """Start a process that serves, and wait for its URL. It goes when this process does, or by `stop_sim`.

    Raises UsageError with the server's own words when it does not start.
    """
    report_fd, child_fd = os.pipe()
    with TemporaryFile() as log, os.fdopen(report_fd, "rb") as report:
        try:
            process = _spawn(settings, child_fd, log)
        finally:
            os.close(child_fd)
        try:
            return process, _address(process, report.fileno(), log)
        except BaseException:
            stop_sim(process)
            raise


def stop_sim(process: subprocess.Popen[bytes]) -> None:
    """End the process: asked first, killed when it does not listen."""
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    finally:
        process.kill()  # does nothing once the process has been waited for
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _spawn(settings: SimSettings, child_fd: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # -P: the child must not find modules in the folder the user happens to stand in.
    command = [sys.executable, "-P", "-m", "benchgate.sim.child", settings.to_json(), str(child_fd), str(os.getpid())]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # its end of file tells the child that we are gone
        stdout=log,
        stderr=log,
        pass_fds=(child_fd,),
        start_new_session=True,  # Ctrl-C is ours to handle: the child ends when we are done with it
    )


def _address(process: subprocess.Popen[bytes], report_fd: int, log: IO[bytes]) -> str:
    """The base URL the child reports; it closes the descriptor unread when it dies instead."""
    deadline_s, report = time.monotonic() + START_TIMEOUT_S, b""
    while not report.endswith(b"\n"):
        readable, _, _ = select.select([report_fd], [], [], max(0.0, deadline_s - time.monotonic()))
        piece = os.read(report_fd, 4096) if readable else b""
        if not piece:
            why = "ended" if readable else f"said nothing for {START_TIMEOUT_S:g} s"
            log.seek(0)
            words = log.read().decode(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            raise UsageError("\n  ".join([f"the practice server did not start: it {why}. Its last words:", *words]))
        report += piece
    return report.decode().strip()
