"""llama.cpp servers, a process for each deployment, from start to a certain end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchgate import child_process
from benchgate.embedded.weights import require_engine, weights_file
from benchgate.errors import EmbeddedError
from benchgate.suite.deployment import Embedded

MODEL_ALIAS = "benchgate-tiny"
START_TIMEOUT_S = 60.0  # a start takes 0.1 s on an idle machine
RETRY_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server that has completed a real request."""

    name: str
    url: str  # "http://127.0.0.1:PORT"
    model: str
    pid: int
    _process: subprocess.Popen[bytes] = field(repr=False)

    def alive(self) -> bool:
        """Return True while the process runs."""
        return self._process.poll() is None


@contextlib.contextmanager
def serve(
    spec: Embedded, *, name: str, cache_dir: Path, log_dir: Path | None = None, timeout_s: float = START_TIMEOUT_S
) -> Iterator[EmbeddedServer]:
    """Serve `spec` on a free loopback port for the length of the `with` block.

    `name` is the deployment's, for messages and the log file. Made weights are kept in `cache_dir`. The process is
    gone when the block is left, whatever happened in it, and exits when this process dies.
    Raises EmbeddedError with the end of the engine's log when it does not complete a request in `timeout_s`.
    """
    require_engine()
    model = weights_file(spec.weights, spec.extra_layers, cache_dir)
    deadline_s = time.monotonic() + timeout_s
    with _log_file(name, log_dir) as log_path:
        try:
            process, url = _start(spec, model, log_path, timeout_s)
            try:
                _await_completion(process, url, deadline_s)
                yield EmbeddedServer(name, url, MODEL_ALIAS, process.pid, process)
            finally:
                child_process.stop(process)
        except child_process.NoReportError as error:
            raise EmbeddedError(
                f"the embedded deployment {name!r} did not start: its engine {error}. Model file: {model} (a made file "
                f"that is damaged can be deleted; it is made again). The end of its log:\n"
                f"{child_process.last_lines(log_path.read_bytes())}"
            ) from error


def _start(spec: Embedded, model: Path, log_path: Path, timeout_s: float) -> tuple[subprocess.Popen[bytes], str]:
    options = {
        "model": str(model),
        "alias": MODEL_ALIAS,
        "slots": spec.slots,
        "context_tokens": spec.context_tokens,
        "threads": spec.threads,
        "port": 0,
    }
    try:
        with log_path.open("ab") as log:
            return child_process.start("benchgate.embedded.server_process", json.dumps(options), log, timeout_s)
    except OSError as error:
        raise EmbeddedError(f"the process of the embedded engine could not be started: {error}") from error


@contextlib.contextmanager
def _log_file(name: str, folder: Path | None) -> Iterator[Path]:
    """Create an empty log file: kept when there is a folder for it, else gone with the server."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".log", dir=folder)
    except OSError as error:
        raise EmbeddedError(f"no log file can be made for the embedded deployment {name!r}: {error}") from error
    os.close(handle)
    try:
        yield Path(path)
    finally:
        if folder is None:
            Path(path).unlink(missing_ok=True)


def _await_completion(process: subprocess.Popen[bytes], url: str, deadline_s: float) -> None:
    """Return once the server has really generated text. Raises NoReportError."""
    while True:
        left_s = deadline_s - time.monotonic()
        complaint = _complaint(url, max(left_s, RETRY_INTERVAL_S))
        if complaint is None:
            return
        if process.poll() is not None:
            raise child_process.NoReportError(child_process.exit_reason(process))
        if left_s <= 0:
            raise child_process.NoReportError(f"completed no request in time; the last try: {complaint}")
        time.sleep(RETRY_INTERVAL_S)


def _complaint(url: str, timeout_s: float) -> str | None:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout_s)
    body = json.dumps({"model": MODEL_ALIAS, "prompt": "add 01 02", "max_tokens": 1, "temperature": 0})
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status != http.client.OK:
            return f"HTTP {response.status}: {text[:200]!r}"
        return None if json.loads(text)["usage"]["completion_tokens"] >= 1 else "an answer without a token"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
