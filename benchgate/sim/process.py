"""A simulated server in a process of its own, and the client of its control API.

with serve_sim(sim_settings(ttft_s=0.05, itl_s=0.02)) as sim:
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
from benchgate.sim.settings import LOOPBACK, ListenAddress, to_json
from benchgate.suite.simulator import SimSettings

START_TIMEOUT_S = 30.0  # a start takes 0.3 s on an idle machine
_CONTROL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class SimControl:
    """Control API at a base `url`. Methods raise TargetError; a server with client certificates refuses it."""

    url: str

    def truth(self, *, with_requests: bool = False) -> dict[str, Any]:
        """Return the ground truth since the last reset; see docs/guides/servers.md."""
        return self._request("GET", "/sim/truth?requests=1" if with_requests else "/sim/truth")

    def reset(self) -> None:
        """Let the ground truth begin anew."""
        self._request("POST", "/sim/reset")

    def replicas(self) -> list[dict[str, Any]]:
        """Return `replica`, `pid`, `state`, `requests`, `in_flight` and `broken` of every replica."""
        replicas: list[dict[str, Any]] = self._request("GET", "/sim/replicas")["replicas"]
        return replicas

    def kill(self, replica: int) -> None:
        """Kill the process of one replica with SIGKILL; it is gone when this returns."""
        self._request("POST", f"/sim/replicas/{replica}/kill")

    def drain(self, replica: int) -> None:
        """Send one replica no new requests; its process ends after its last answer."""
        self._request("POST", f"/sim/replicas/{replica}/drain")

    def start(self, replica: int) -> None:
        """Start a killed replica again; it takes requests after `ready_after`."""
        self._request("POST", f"/sim/replicas/{replica}/start")

    def _request(self, method: str, path: str) -> dict[str, Any]:
        address = urlsplit(self.url)
        host, timeout_s = address.hostname or "", _CONTROL_TIMEOUT_S
        connection: http.client.HTTPConnection
        if address.scheme == "unix":
            connection = _UnixConnection(address.path)
        elif address.scheme == "http":
            connection = http.client.HTTPConnection(host, address.port, timeout=timeout_s)
        else:
            tls = ssl.create_default_context()
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # our own child, on our own loopback
            connection = http.client.HTTPSConnection(host, address.port, timeout=timeout_s, context=tls)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
            document: dict[str, Any] = json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TargetError(f"the practice server did not answer {path}: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise TargetError(f"the practice server refused {path}: {document.get('detail', body[:200])}")
        return document


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_CONTROL_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONTROL_TIMEOUT_S)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class Sim(SimControl):
    """A running simulated server."""

    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self.process.pid

    @property
    def port(self) -> int:
        """Return the TCP port. Raises ValueError for a Unix socket."""
        port = urlsplit(self.url).port
        if port is None:
            raise ValueError(f"{self.url} has no port")
        return port

    @property
    def grpc(self) -> str | None:
        """Return the address of gRPC, which is that of HTTP; None behind TLS and at a Unix socket.

        Several replicas do not serve it.
        """
        return f"grpc://{urlsplit(self.url).netloc}" if self.url.startswith("http:") else None

    def alive(self) -> bool:
        """Return True while the process runs."""
        return self.process.poll() is None


@contextlib.contextmanager
def serve_sim(settings: SimSettings, address: ListenAddress = LOOPBACK) -> Iterator[Sim]:
    """Serve for the length of the `with` block; when it begins the server accepts connections (after `ready_after`).

    The process is gone when the block is left, whatever happened in it, and exits when this process dies.
    Raises UsageError with the server's own words when it does not start.
    """
    sim = start_sim(settings, address)
    try:
        yield sim
    finally:
        child_process.stop(sim.process)


def start_sim(settings: SimSettings, address: ListenAddress = LOOPBACK, *, replica: int = 0) -> Sim:
    """Start a serving process and await its URL; it goes with this process. Raises UsageError in its own words."""
    with TemporaryFile() as log:
        try:
            argument = to_json(settings, address, replica)
            process, url = child_process.start("benchgate.sim", argument, log, START_TIMEOUT_S)
        except child_process.NoReportError as error:
            log.seek(0)
            words = child_process.last_lines(log.read())
            raise UsageError(f"the practice server did not start: it {error}. Its last words:\n{words}") from None
    return Sim(url, process)
