"""A server that has imported benchgate, and forks a process for each run: hundreds of runs import it once.

`Forks` starts one as `python -m benchmarks.campaign.forking` and asks it over pipes. Load generator processes come from
the fork server of `multiprocessing` that it starts before the first run. A run is otherwise that of the command: its
`main` in a session of its own, with its streams, its environment and its exit code. The practice servers that it
starts are forked too, and stay in that session.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any

from benchgate import child_process
from tests.fakes.quick_workers import Multiprocessing

_PRELOADED = (
    "benchgate.pipeline.run", "benchgate.pipeline.suite_file", "benchgate.load.workers", "benchgate.cli.run",
    "benchgate.cli.output", "benchgate.report.document", "benchgate.quality.runner", "benchgate.store.repository",
    "benchgate.shadow.mirror", "benchgate.sim.__main__", "scipy.special", "uvloop",
)  # fmt: skip
_CHECKOUT = Path(__file__).parents[2]


class ForkedRun:
    """A forked run, used like a `subprocess.Popen`."""

    def __init__(self, server: subprocess.Popen[str], order: dict[str, Any]) -> None:
        self._server = server
        self._code: int | None = None
        assert server.stdin is not None
        server.stdin.write(f"{json.dumps(order)}\n")
        server.stdin.flush()
        self.pid = int(self._answer()["pid"])

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self._code is None and not _exists(self.pid):
            self._code = int(self._answer()["code"])
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises TimeoutExpired."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired("the forked run", timeout or 0.0)
            time.sleep(0.02)
        return code

    def _answer(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise RuntimeError("the server that forks runs has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Forks:
    """One such server, for one run at a time. Use as a context manager."""

    def __enter__(self) -> Forks:
        command = [sys.executable, "-m", "benchmarks.campaign.forking"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            command, cwd=_CHECKOUT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._is_ready = False
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)

    def run(self, order: dict[str, Any]) -> ForkedRun:
        """Start a run: `code` to execute, `arguments`, `folder`, `environment`, and files for its two outputs."""
        if not self._is_ready:
            assert self._server.stdout is not None
            self._server.stdout.readline()  # it has imported everything
            self._is_ready = True
        return ForkedRun(self._server, order)


def main() -> None:
    """Fork a run for every line of standard input: answer with its pid, and with its exit code once it has ended."""
    for name in _PRELOADED:
        __import__(name)
    forked = Multiprocessing()
    vars(sys.modules["benchgate.load.workers"])["multiprocessing"] = forked
    forked.get_context("spawn")  # starts its fork server
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            _become(order)
        print(json.dumps({"pid": pid}), file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), file=answers, flush=True)


def _become(order: dict[str, Any]) -> None:
    """Be the run: never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        with open(os.devnull) as nothing, open(order["out"], "wb") as out, open(order["log"], "wb") as log:  # noqa: PTH123
            for descriptor, file in enumerate((nothing, out, log)):
                os.dup2(file.fileno(), descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        forkserver._forkserver.ensure_running = forkserver.ensure_running = lambda: None  # type: ignore[method-assign]  # it is its parent's child
        child_process.spawn = _spawn_or_fork
        sys.argv = ["benchgate", *order["arguments"]]
        try:
            exec(order["code"], {"__name__": "__main__"})  # as `python -c` does
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except BaseException:  # noqa: BLE001  # a forked child must not go on as its parent
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(code)


class _ForkedServer:
    """A practice server in a forked process, used like the `subprocess.Popen` of `child_process.spawn`."""

    def __init__(self, arguments: Sequence[str], log: IO[bytes]) -> None:
        theirs, ours = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _serve(arguments, theirs, log)
        os.close(theirs)
        self.stdin = os.fdopen(ours, "wb")

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises TimeoutExpired."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired("the practice server", timeout or 0.0)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _serve(arguments: Sequence[str], stdin: int, log: IO[bytes]) -> None:
    """Be a practice server: never returns."""
    code = 1
    try:
        os.dup2(stdin, 0)
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        report = int(arguments[1])
        os.closerange(3, report)
        os.closerange(report + 1, 1 << 16)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        child_process.spawn = _spawn  # for its replicas
        sys.argv = ["benchgate.sim", *arguments]
        child_process.run(sys.modules["benchgate.sim.__main__"].main)
        code = 0
    finally:
        os._exit(code)


_spawn = child_process.spawn


def _spawn_or_fork(module: str, arguments: Sequence[str], log: IO[bytes], **more: Any) -> Any:
    return _ForkedServer(arguments, log) if module == "benchgate.sim" else _spawn(module, arguments, log, **more)


def _exists(pid: int) -> bool:
    """Return True while the process is there, not counting one that has ended and waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if __name__ == "__main__":
    main()
