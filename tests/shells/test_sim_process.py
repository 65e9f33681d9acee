"""The practice server as a process: how it starts and is refused, and that it never outlives its owner."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchgate.errors import SuiteError, UsageError
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import ListenAddress, parse_settings, sim_settings
from tests.fakes.waiting import PATIENCE_S, eventually
from tests.shells.sim_client import asking, request_bytes, talk

QUICK = sim_settings(ttft_s=0.004, itl_s=0.002, context_tokens=200)


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with serve_sim(QUICK) as served:
        yield served


def test_server_that_cannot_listen_says_why(sim: Sim) -> None:
    with (
        pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {sim.port}"),
        serve_sim(sim_settings(), ListenAddress(port=sim.port)),
    ):
        pytest.fail("two servers on one port")


def test_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    with (
        pytest.raises(UsageError, match=r"none\.pem"),
        serve_sim(sim_settings(), ListenAddress(cert=missing, key=missing)),
    ):
        pytest.fail("served without a certificate")


def test_process_is_gone_when_the_block_is_left_and_when_it_raises() -> None:
    with serve_sim(QUICK) as served:
        pass
    assert not served.alive()
    with pytest.raises(ZeroDivisionError), serve_sim(QUICK) as served:
        raise ZeroDivisionError
    assert not served.alive()


def test_server_starts_from_a_process_with_thousands_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held = list[int]()
    try:
        while not held or held[-1] < 1024:  # from which `select` takes none
            held.append(os.open(os.devnull, os.O_RDONLY))
        with serve_sim(QUICK) as served:
            assert served.truth()["requests"] == 0
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PARENT = """
import os, sys, time
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings

replicas = 2 if sys.argv[1] == "replicas" else 1
with serve_sim(sim_settings(replicas=replicas)) as sim:
    forked = os.fork() if sys.argv[1] == "fork" else None
    if forked == 0:
        time.sleep(60)  # holds every descriptor of its parent, and outlives it
        os._exit(0)
    behind = [one["pid"] for one in sim.truth()["replicas"]] if replicas > 1 else []
    print(forked or 0, sim.pid, *behind, flush=True)
    time.sleep(60)
"""


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody collected has ended too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("how", ["alone", "fork", "replicas"])
def test_killed_parent_leaves_no_orphan(how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        forked, *served = map(int, parent.stdout.readline().split())
        parent.kill()
        parent.wait()
        assert len(served) == (3 if how == "replicas" else 1)
        assert eventually(lambda: all(map(is_gone, served)))
        if forked:
            os.kill(forked, signal.SIGKILL)


SETTINGS = """
ttft: 4ms
itl: 2ms
output_tokens: [1, 9]
adapters: [a, b]
faults: [no-done@1%]
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_command_says_where_it_listens_and_ends_well_on_a_signal(number: int, tmp_path: Path) -> None:
    (tmp_path / "sim.yaml").write_text(SETTINGS)
    command = [sys.executable, "-m", "benchgate", "sim", str(tmp_path / "sim.yaml"), "--set", "output_tokens=[2, 2]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("listening on http://127.0.0.1:")
        port = int(said.rsplit(":", 1)[1])
        assert len(talk(port, request_bytes(body=asking(9))).text.split()) == 2
        with socket.create_connection(("127.0.0.1", port)) as open_stream:
            open_stream.sendall(request_bytes(body=asking(4), headers={"x-sim-fault": "hang-after:0"}))
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0


def problems(text: str | None, *assignments: str) -> list[str]:
    with pytest.raises(SuiteError) as raised:
        parse_settings(text, "sim.yaml", assignments)
    return [str(problem) for problem in raised.value.problems]


def test_every_mistake_of_a_file_is_reported_with_its_place() -> None:
    assert problems("itl: 20\nreplcas: 3\nfaults: [no-done, crlf]\n") == [
        'sim.yaml:1:6: itl: 20 is not a duration; write it with its unit, like "500ms", "30s" or "2m"',
        "sim.yaml:2:1: replcas: unknown key; did you mean `replicas`?",
        "sim.yaml:3:19: faults[1]: there is no fault 'crlf'; benchgate sim --list-faults shows them all",
    ]


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("ttft=5", "--set ttft=5:1:7: ttft: 5 is not a duration"),
        ("jitter=0.3", "jitter: 0.3 is not a percentage"),
        ("output_tokens=many", "output_tokens: "),
        ("faults=[split-bytes]", "no fault 'split-bytes'"),
        ("keep_alive=0s", "keep_alive: "),
        ("batch=0", "batch: "),
        ("itl=", "--set itl=:1:"),
        ("ilt=5ms", "did you mean `itl`?"),
    ],
)
def test_assignments_are_read_and_refused_like_the_file(assignment: str, says: str) -> None:
    (found,) = problems(None, assignment)
    assert says in found


def test_assignment_overrides_the_file_and_may_contradict_it() -> None:
    settings = parse_settings("ttft: 5ms\nitl: 9ms\n", "sim.yaml", ["itl=20ms", "faults=[no-done@5%]"])
    assert (settings.ttft_s, settings.itl_s, settings.faults) == (0.005, 0.02, ("no-done@5%",))
    assert "keep one of them" in problems("ttft: 5ms\n", "batch=4")[0]
    with pytest.raises(UsageError, match="write a key and a value"):
        parse_settings(None, "", ["itl"])


def test_defaults_hold_where_nothing_is_set() -> None:
    assert parse_settings(None, "", ()) == sim_settings()
    assert parse_settings("prefill: 1ms", "sim.yaml", ()).is_engine


BROKEN = """
from benchgate.sim import engine, server
from benchgate.sim.settings import LOOPBACK, sim_settings

def broken(self, now_ns):
    raise ZeroDivisionError("a defect")

engine.ConstantPace.take = broken
server.run_sim(sim_settings(ttft_s=0), LOOPBACK, lambda url: print(url, flush=True))
"""


def test_defect_ends_the_server_instead_of_leaving_it_without_its_timer() -> None:
    command = [sys.executable, "-c", BROKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        assert talk(port, request_bytes(body=asking(2))).ended == "reset"
        assert "a defect" in process.stderr.read()
        assert process.wait(PATIENCE_S) == 1


def test_server_without_a_standard_input_serves_and_ends_well() -> None:
    command = ["sh", "-c", 'exec "$0" -m benchgate sim <&-', sys.executable]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        for _ in range(2):
            assert talk(port, request_bytes(body=asking(2))).status == 200
        process.terminate()
        _, found = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, found) == (0, "")
