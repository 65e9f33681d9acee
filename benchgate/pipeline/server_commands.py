"""A server that commands of the suite start and stop: `start: {run: […], stop: […]}` of a deployment.

The commands are children of a supervisor process, which ends the server with the run, however that ends: as a child of
`child_process` it sees the end of its parent, even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from benchgate import child_process
from benchgate.errors import TargetError

_POLL_S = 0.1
_KILL_AFTER_S = 10.0  # of the supervisor itself, beyond the limits of what it does
_NO_STOP = "the command `start.run` ended with status 0 and no `start.stop` is set; add it, or start in the foreground"


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands of one server, without a shell; `stop_s` limits the stop command, and then the end of the server."""

    run: tuple[str, ...]
    stop: tuple[str, ...]
    stop_s: float


@dataclass(slots=True)
class CommandedServer:
    """A server whose commands run in a supervisor process, with their output in `log`."""

    process: subprocess.Popen[bytes]
    log: Path

    def require_running(self) -> None:
        """Raise TargetError with the last lines of its log if the command that serves has ended."""
        status = self.process.poll()
        if status is None:
            return
        reason = _NO_STOP if status == 0 else f"its command `start.run` {_ended(status)}"
        lines = child_process.last_lines(self.log.read_bytes())
        raise TargetError(f"it did not start: {reason}; the end of {self.log}:\n{lines}")


@contextmanager
def commanded_server(commands: Commands, arm: str, log: Path) -> Iterator[CommandedServer]:
    """Run the commands of a server: `run` for the length of the block, then `stop`. Raises TargetError.

    `run` may serve in the foreground, or end with status 0 once the server is on its way. At the end, `stop` is run if
    there is one; then what `run` still has running gets SIGTERM, and SIGKILL after `stop_s`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        document = json.dumps(asdict(commands))
        environment = {**os.environ, "BENCHGATE_ARM": arm}
        process = child_process.spawn(__name__, [document, str(os.getpid())], output, env=environment)
    try:
        yield CommandedServer(process, log)
    finally:
        _stop_supervisor(process, 2 * commands.stop_s + _KILL_AFTER_S)


def _stop_supervisor(process: subprocess.Popen[bytes], within_s: float) -> None:
    """End the supervisor, and kill it only after its time. Interrupted, leave it to stop the server by itself.

    Only the supervisor knows the processes of the server: killed any earlier, it would leave them running.
    """
    assert process.stdin is not None
    with process.stdin:
        process.terminate()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ended(status: int) -> str:
    if status == _NOT_FOUND:
        return "could not be run"
    return f"was killed by signal {status - 128}" if status > 128 else f"ended with status {status}"


# --- The supervisor ---------------------------------------------------------------------------------------------------

_NOT_FOUND = 127


def _supervise(commands: Commands, parent_pid: int) -> int:
    """Run a server's commands until this process gets SIGTERM or its parent ends. Returns the exit status."""
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    try:
        server = subprocess.Popen(commands.run, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write(f"{commands.run[0]}: {error.strerror or error}\n")
        return _NOT_FOUND
    try:
        while not stopping and os.getppid() == parent_pid and not _has_ended(sys.stdin.buffer):
            status = server.poll()
            if status is not None and (status != 0 or not commands.stop):
                return 128 - status if status < 0 else status
        return 0
    finally:
        if commands.stop:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(commands.stop, stdin=subprocess.DEVNULL, timeout=commands.stop_s, check=False)
        _end_group(server, commands.stop_s)


def _has_ended(lifeline: IO[bytes]) -> bool:
    readable, _, _ = select.select([lifeline], [], [], _POLL_S)
    return bool(readable) and not os.read(lifeline.fileno(), 1)


def _end_group(server: subprocess.Popen[bytes], within_s: float) -> None:
    """End the session of a command: it and what it started."""
    deadline_s = time.monotonic() + within_s
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        while time.monotonic() < deadline_s:
            server.poll()
            os.killpg(server.pid, 0)  # raises once nothing of the group is left
            time.sleep(_POLL_S)
        os.killpg(server.pid, signal.SIGKILL)
    server.poll()


if __name__ == "__main__":
    _document = json.loads(sys.argv[1])
    _words: Callable[[Sequence[str]], tuple[str, ...]] = tuple
    _commands = Commands(_words(_document["run"]), _words(_document["stop"]), _document["stop_s"])
    sys.exit(_supervise(_commands, int(sys.argv[2])))
