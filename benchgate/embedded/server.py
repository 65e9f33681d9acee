"""One llama.cpp server per deployment, in a process of its own, from start to a certain end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchgate.embedded import child
from benchgate.embedded.engine import require_engine
from benchgate.embedded.weights import weights_file
from benchgate.errors import EmbeddedError
from benchgate.suite.deployment import Embedded

MODEL_ALIAS = "benchgate-tiny"
START_TIMEOUT_S = 60.0  # a start takes 0.1 s on an idle machine
STOP_TIMEOUT_S = 5.0
RETRY_INTERVAL_S = 0.02
LOG_LINES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server that has completed a real request."""

    name: str
    url: str  # "http://127.0.0.1:PORT"
    model: str
    pid: int
    log_path: Path  # what the engine wrote; gone with the server unless a log folder was given
    _process: subprocess.Popen[bytes] = field(repr=False)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None


@contextlib.contextmanager
def serve(
    spec: Embedded, *, name: str, cache_dir: Path, log_dir: Path | None = None, timeout_s: float = START_TIMEOUT_S
) -> Iterator[EmbeddedServer]:
    """Serve `spec` on a free loopback port for the length of the `with` block.

    `name` is the deployment's, for messages and the log file. Made weights are kept in `cache_dir`. The process is
    gone when the block is left, whatever happened in it, and goes by itself when this process dies.
    Raises EmbeddedError with the engine's own last words when it does not complete a request in `timeout_s`.
    """
    require_engine()
    model = weights_file(spec.weights, spec.extra_layers, cache_dir)
    deadline_s = time.monotonic() + timeout_s
    with _log_file(name, log_dir) as log_path, _started(_command(spec, model), log_path) as started:
        start = _Start(name, model, log_path, started.process, deadline_s)
        url = start.address(started.report_fd)
        start.await_completion(url)
        yield EmbeddedServer(name, url, MODEL_ALIAS, started.process.pid, log_path, started.process)


@contextlib.contextmanager
def _log_file(name: str, log_dir: Path | None) -> Iterator[Path]:
    """A fresh, empty log file: kept when there is a folder for it, else gone with the server."""
    path = _new_file(name, log_dir)
    try:
        yield path
    finally:
        if log_dir is None:
            path.unlink(missing_ok=True)


def _new_file(name: str, folder: Path | None) -> Path:
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".log", dir=folder)
    except OSError as error:
        raise EmbeddedError(f"no log file can be made for the embedded deployment {name!r}: {error}") from error
    os.close(handle)
    return Path(path)


@dataclass(frozen=True, slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    report_fd: int


@contextlib.contextmanager
def _started(command: list[str], log_path: Path) -> Iterator[_Started]:
    """The child process, and the descriptor its address will come from; both are gone afterwards."""
    report_fd, child_fd = os.pipe()
    try:
        try:
            process = _spawn([*command, f"--report-fd={child_fd}"], log_path, child_fd)
        finally:
            os.close(child_fd)
        try:
            yield _Started(process, report_fd)
        finally:
            _stop(process)
    finally:
        os.close(report_fd)


def _spawn(command: list[str], log_path: Path, child_fd: int) -> subprocess.Popen[bytes]:
    try:
        with log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end of file tells the child that we are gone
                stdout=log,
                stderr=log,
                pass_fds=(child_fd,),
                start_new_session=True,  # Ctrl-C is ours to handle: the child ends when we are done with it
            )
    except OSError as error:
        raise EmbeddedError(f"the process of the embedded engine could not be started: {error}") from error


def _command(spec: Embedded, model: Path) -> list[str]:
    options = {
        "model": model,
        "alias": MODEL_ALIAS,
        "slots": spec.slots,
        "context-tokens": spec.context_tokens,
        "threads": spec.threads,
        "parent-pid": os.getpid(),
    }
    # -P: the child must not find modules in the folder the user happens to stand in.
    return [sys.executable, "-P", child.__file__, *(f"--{key}={value}" for key, value in options.items())]


def _stop(process: subprocess.Popen[bytes]) -> None:
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


@dataclass(frozen=True, slots=True)
class _Start:
    """The time between the process and its first completion, in which all kinds of things may fail."""

    name: str
    model: Path
    log_path: Path
    process: subprocess.Popen[bytes]
    deadline_s: float  # of time.monotonic()

    def address(self, report_fd: int) -> str:
        """The base URL the child reports; it closes the descriptor unread when it dies instead."""
        report = b""
        while True:
            readable, _, _ = select.select([report_fd], [], [], self._left_s())
            if not readable:
                raise self._failure("loaded no model in time")
            chunk = os.read(report_fd, 4096)
            if not chunk:
                break
            report += chunk
        try:
            return str(json.loads(report)["url"])
        except (ValueError, KeyError) as error:
            raise self._failure(self._exit_sentence()) from error

    def await_completion(self, url: str) -> None:
        """Return once the server has really generated text."""
        while True:
            complaint = _complaint(url, max(self._left_s(), RETRY_INTERVAL_S))
            if complaint is None:
                return
            if self.process.poll() is not None:
                raise self._failure(self._exit_sentence())
            if self._left_s() == 0:
                raise self._failure(f"completed no request in time; the last try: {complaint}")
            time.sleep(RETRY_INTERVAL_S)

    def _left_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def _exit_sentence(self) -> str:
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "closed its report without an address"
        return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"

    def _failure(self, what: str) -> EmbeddedError:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        words = "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
        return EmbeddedError(
            f"the embedded deployment {self.name!r} did not start: its engine {what}. Model file: {self.model} "
            f"(a made file that is damaged can be deleted; it is made again). Its last words:\n{words}"
        )


def _complaint(url: str, timeout_s: float) -> str | None:
    """None when a one-token completion succeeded, else why it did not."""
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
