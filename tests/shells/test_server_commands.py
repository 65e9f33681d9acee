"""Commands that start and stop a server: however they or benchgate end, nothing of them is left running."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchgate.errors import TargetError
from benchgate.pipeline.server_commands import CommandedServer, Commands, commanded_server
from tests.fakes.waiting import eventually

# A server as a tree of processes, of which the outer one ignores SIGTERM if it is stubborn.
TREE = (
    "import os, signal, subprocess, sys, time\n"
    "if sys.argv[2] == 'stubborn': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "inner = subprocess.Popen(['sleep', '600'])\n"
    "print('loading', flush=True)\n"
    "open(sys.argv[1], 'w').write(f'{os.getpid()} {inner.pid}\\n')\n"
    "time.sleep(600)\n"
)


def tree(pids: Path, kind: str = "willing") -> tuple[str, ...]:
    return (sys.executable, "-c", TREE, str(pids), kind)


def pids_of(file: Path) -> list[int]:
    while not (file.is_file() and file.read_text().endswith("\n")):
        time.sleep(0.01)
    return [int(word) for word in file.read_text().split()]


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def ended(server: CommandedServer) -> str:
    """Return why a server that ends by itself did not start."""
    server.process.wait(30)
    with pytest.raises(TargetError) as error:
        server.require_running()
    return str(error.value)


@pytest.mark.parametrize("kind", ["willing", "stubborn"])
def test_nothing_of_a_server_in_the_foreground_is_left(tmp_path: Path, kind: str) -> None:
    commands = Commands(tree(tmp_path / "pids", kind), (), stop_s=0.3)
    with commanded_server(commands, "candidate", tmp_path / "logs" / "server.log") as server:
        pids = pids_of(tmp_path / "pids")
        server.require_running()
        assert all(map(runs, pids))
    assert not any(map(runs, pids))
    assert (tmp_path / "logs" / "server.log").read_text() == "loading\n"


def test_a_server_in_the_background_is_ended_by_its_own_command(tmp_path: Path) -> None:
    start = f"setsid sleep 600 & echo $! > {tmp_path}/pid; printf %s $BENCHGATE_ARM > {tmp_path}/arm"
    commands = Commands(("sh", "-c", start), ("sh", "-c", f"kill $(cat {tmp_path}/pid)"), stop_s=5)
    with commanded_server(commands, "baseline", tmp_path / "log") as server:
        (pid,) = pids_of(tmp_path / "pid")
        time.sleep(0.3)  # its command has ended by then
        server.require_running()
    assert not runs(pid)
    assert (tmp_path / "arm").read_text() == "baseline"


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (("sh", "-c", "echo no accelerator; exit 3"), "its command `start.run` ended with status 3"),
        (("sh", "-c", "echo no accelerator; kill -9 $$"), "its command `start.run` was killed by signal 9"),
        (("sh", "-c", "echo no accelerator"), "ended with status 0 and no `start.stop` is set"),
        (("no-such-engine",), "could not be run"),
    ],
)
def test_a_server_that_ends_is_named_with_its_last_lines(tmp_path: Path, run: tuple[str, ...], reason: str) -> None:
    with commanded_server(Commands(run, (), stop_s=1), "candidate", tmp_path / "log") as server:
        found = ended(server)
    assert reason in found
    assert ("  no accelerator" if run[0] == "sh" else "no-such-engine: No such file or directory") in found


def test_a_stop_command_that_hangs_or_fails_does_not_keep_the_server(tmp_path: Path) -> None:
    for number, stop in enumerate((("sleep", "600"), ("false",), ("no-such-command",))):
        file = tmp_path / str(number)
        with commanded_server(Commands(tree(file), stop, stop_s=0.3), "candidate", tmp_path / "log"):
            pids = pids_of(file)
        assert not any(map(runs, pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_benchgate_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    parent = (
        "import sys, time; from pathlib import Path\n"
        "from benchgate.pipeline.server_commands import Commands, commanded_server\n"
        "stop = ('sh', '-c', f'echo stopped > {sys.argv[1]}/stopped')\n"
        "with commanded_server(Commands(tuple(sys.argv[2:]), stop, 1.0), 'candidate', Path(sys.argv[1]) / 'log'):\n"
        "    time.sleep(600)\n"
    )
    words = [sys.executable, "-c", parent, str(tmp_path), *tree(tmp_path / "pids")]
    with subprocess.Popen(words, cwd=Path(__file__).parents[2], env={**os.environ}) as process:
        pids = pids_of(tmp_path / "pids")
        process.send_signal(number)
    deadline_s = time.monotonic() + 30
    while any(map(runs, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(runs, pids))
    assert (tmp_path / "stopped").is_file()


def test_a_second_signal_does_not_keep_the_server_from_being_stopped(tmp_path: Path) -> None:
    folder = shlex.quote(str(tmp_path))
    stop = f"cd {folder}; echo > stopping; until [ -e go-on ]; do sleep 0.05; done; echo > stopped"
    parent = (
        "import sys, time; from pathlib import Path\n"
        "from benchgate.cli.interruption import unwind_on_termination\n"
        "from benchgate.pipeline.server_commands import Commands, commanded_server\n"
        "unwind_on_termination()\n"
        "commands = Commands(tuple(sys.argv[3:]), ('sh', '-c', sys.argv[2]), 30.0)\n"
        "with commanded_server(commands, 'candidate', Path(sys.argv[1]) / 'log'):\n"
        "    time.sleep(600)\n"
    )
    words = [sys.executable, "-c", parent, str(tmp_path), stop, *tree(tmp_path / "pids")]
    with subprocess.Popen(words, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL) as process:
        pids = pids_of(tmp_path / "pids")
        process.send_signal(signal.SIGTERM)
        assert eventually((tmp_path / "stopping").is_file)
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert all(map(runs, pids))
    (tmp_path / "go-on").touch()
    assert eventually((tmp_path / "stopped").is_file)
    assert eventually(lambda: not any(map(runs, pids)))
