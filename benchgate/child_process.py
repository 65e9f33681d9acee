"""A child process that reports once that it serves, and never outlives its parent.

The parent runs `python -m MODULE ARGUMENT REPORT_FD PARENT_PID` by `start`; the module's main block calls `run`.
A child exits with its parent, however that ends: the parent holds the other end of the child's stdin, so a dead parent
is an end of file there; and a process that the parent forked may hold that end too, so the parent's pid is watched as
well. (Linux's PR_SET_PDEATHSIG would strike already when the *thread* that started the child ends.)
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

STOP_TIMEOUT_S = 5.0
_WATCH_INTERVAL_S = 1.0
_LOG_LINES_SHOWN = 8


class NoReportError(Exception):
    """A child ended, or its time was over, before it reported. The message completes "the process …"."""


def spawn(
    module: str,
    arguments: Sequence[str],
    log: IO[bytes],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Run `python -m module` with both outputs in `log`. Raises OSError when there can be no process."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],  # -P: no modules from the folder the user stands in
        bufsize=0,
        stdin=subprocess.PIPE,  # its end of file tells the child that the parent is gone
        stdout=log,
        stderr=log,
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,  # Ctrl-C is the parent's to handle: the child ends when it is stopped
    )


def start(module: str, argument: str, log: IO[bytes], timeout_s: float) -> tuple[subprocess.Popen[bytes], str]:
    """Spawn a child and return it with its report; stop it where none comes.

    Raises NoReportError, and OSError when there can be no process.
    """
    report_fd, child_fd = os.pipe()
    with os.fdopen(report_fd, "rb"):
        try:
            process = spawn(module, [argument, str(child_fd), str(os.getpid())], log, pass_fds=[child_fd])
        finally:
            os.close(child_fd)
        try:
            return process, _report(process, report_fd, timeout_s)
        except BaseException:
            stop(process)
            raise


def _report(process: subprocess.Popen[bytes], report_fd: int, timeout_s: float) -> str:
    """Read the line that the child reports; a child that dies closes the descriptor without one."""
    deadline_s, report = time.monotonic() + timeout_s, b""
    with selectors.DefaultSelector() as selector:  # `select` refuses descriptors from 1,024 on
        selector.register(report_fd, selectors.EVENT_READ)
        while not report.endswith(b"\n"):
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                raise NoReportError(f"reported nothing for {timeout_s:g} s")
            piece = os.read(report_fd, 4096)
            if not piece:
                raise NoReportError(exit_reason(process))
            report += piece
    return report.decode().strip()


def exit_reason(process: subprocess.Popen[bytes]) -> str:
    """Return how a process that is ending ended, in words that complete "the process …"."""
    try:
        status = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "closed its report without an address"
    return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"


def last_lines(log: bytes) -> str:
    """Return the end of a child's log, indented, for an error message."""
    lines = log.decode(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
    return "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process: by SIGTERM, and by SIGKILL when that does not end it in time."""
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    finally:
        process.kill()  # does nothing once the process has been waited for
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def kill_session(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session of its own, and whatever it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(serve: Callable[[str, Callable[[str], None]], None]) -> None:
    """Be the child: `serve` gets the argument, and the function that reports to the parent, to be called once.

    The report has a descriptor of its own: lines of a log come from several threads and can land inside any other.
    """
    argument, report_fd, parent_pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    threading.Thread(target=exit_with_parent, args=(parent_pid,), daemon=True).start()

    def report(text: str) -> None:
        with os.fdopen(report_fd, "w") as pipe:
            pipe.write(text + "\n")

    serve(argument, report)


def exit_with_parent(parent_pid: int, lifeline_fd: int = 0) -> None:
    """Block until the parent is gone, then exit the process. `lifeline_fd` reads as ended once the parent is gone."""
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([lifeline_fd], [], [], _WATCH_INTERVAL_S)
        if readable and not os.read(lifeline_fd, 1):
            break
    os._exit(0)
