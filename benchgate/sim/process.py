"""A practice server in a process of its own, from start to a certain end.

with serve_sim(SimSettings(ttft_s=0.05, itl_s=0.02)) as sim:
    ...  # send requests to sim.url
    p99_s = sim.truth()["ttft_s"]["p99"]
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import urlsplit

from benchgate import child_process
from benchgate.errors import TargetError, UsageError
from benchgate.sim.settings import SimSettings

START_TIMEOUT_S = 30.0  # a start takes 0.3 s on an idle machine
_CONTROL_TIMEOUT_S = 30.0


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
        child_process.stop(process)


def start_sim(settings: SimSettings) -> tuple[subprocess.Popen[bytes], str]:
    """Start a process that serves, and wait for its URL. It goes when this process does, or by `child_process.stop`.

    Raises UsageError with the server's own words when it does not start.
    """
    with TemporaryFile() as log:
        try:
            return child_process.start("benchgate.sim", settings.to_json(), log, START_TIMEOUT_S)
        except child_process.NoReportError as error:
            log.seek(0)
            words = child_process.last_lines(log.read())
            raise UsageError(f"the practice server did not start: it {error}. Its last words:\n{words}") from None


_TIMEOUT_S = 30.0


def replicas_of(url: str) -> list[dict[str, Any]]:
    """Every replica: `replica`, `pid`, `state`, `requests`, `in_flight`, `broken`. TargetError when it cannot tell."""
    told: list[dict[str, Any]] = _asked(url, "GET", "/sim/replicas")["replicas"]
    return told


def kill_replica(url: str, replica: int) -> None:
    """Kill the process of one with SIGKILL; it is gone when this returns. Raises TargetError."""
    _asked(url, "POST", f"/sim/replicas/{replica}/kill")


def start_replica(url: str, replica: int) -> None:
    """Start a killed one again; it may take a while until it takes requests. Raises TargetError."""
    _asked(url, "POST", f"/sim/replicas/{replica}/start")


def _asked(url: str, method: str, path: str) -> dict[str, Any]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        told: dict[str, Any] = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TargetError(f"the practice server did not answer {path}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise TargetError(f"the practice server refused {path}: {told.get('detail', body[:200])}")
    return told
