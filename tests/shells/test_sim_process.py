"""The practice server as a process: how it starts and is refused, and that it never outlives its owner."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.sim.options import parse_settings
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import BatchingCosts, SimSettings
from tests.fakes.waiting import PATIENCE_S, eventually
from tests.shells.sim_client import asking, request_bytes, talk

QUICK = SimSettings(ttft_s=0.004, itl_s=0.002, context_tokens=200)


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with serve_sim(QUICK) as served:
        yield served


def test_server_that_cannot_listen_says_why(sim: Sim) -> None:
    with (
        pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {sim.port}"),
        serve_sim(SimSettings(port=sim.port)),
    ):
        pytest.fail("two servers on one port")


def test_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    with pytest.raises(UsageError, match=r"none\.pem"), serve_sim(SimSettings(cert=missing, key=missing)):
        pytest.fail("served without a certificate")


def test_process_is_gone_when_the_block_is_left_and_when_it_raises() -> None:
    with serve_sim(QUICK) as served:
        pass
    assert not served.alive()
    with pytest.raises(ZeroDivisionError), serve_sim(QUICK) as served:
        raise ZeroDivisionError
    assert not served.alive()


PARENT = """
import os, sys, time
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import SimSettings

replicas = 2 if sys.argv[1] == "replicas" else 1
with serve_sim(SimSettings(replicas=replicas)) as sim:
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


# Every option that names no file and no port, so that each is known to reach the server.
OPTIONS = shlex.split(
    "--host 127.0.0.1 --model sim --adapter a --adapter b --context 900 --seed 3 --jitter 1% --chunk-tokens 1 "
    "--prefill 0.1ms --decode 1ms --decode-per-sequence 0 --batch 4 --kv-tokens 900 --prefill-chunk 99 --queue 9 "
    "--queue-status 429 --shed-above 9 --shed-exempt -2 --prefix-cache 9 --prefix-block 8 --adapter-cost 0 --preempt "
    "--leak-kv --output-tokens 1:9 --reasoning-tokens 0:1 --invalid-json 1% --image-tokens 9 --embedding-size 9 "
    "--fault no-done@1% --metrics-as sglang --keep-alive 9s --ready-after 0s --load-time 0s"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_says_where_it_listens_and_ends_well_on_a_signal(number: int) -> None:
    command = [sys.executable, "-m", "benchgate", "sim", *OPTIONS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("listening on http://127.0.0.1:")
        port = int(said.rsplit(":", 1)[1])
        assert talk(port, request_bytes(body=asking(2))).finish == "length"
        with socket.create_connection(("127.0.0.1", port)) as open_stream:
            open_stream.sendall(request_bytes(body=asking(4), headers={"x-sim-fault": "hang-after:0"}))
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ttft": "5"}, '--ttft: "5" is not a duration'),
        ({"jitter": "0.3"}, "--jitter: "),
        ({"output_tokens": "many"}, "--output-tokens: .*16:128"),
        ({"itl": "1ms", "batch": 4}, "the one or the other"),
        ({"faults": ["split-bytes"]}, "no fault 'split-bytes'"),
        ({"keep_alive": "0s"}, "--keep-alive: "),
        ({"batch": 0}, "batch is 0"),
    ],
    ids=str,
)
def test_option_that_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_settings(**options)


def test_options_become_settings() -> None:
    paced = parse_settings(ttft="50ms", itl="0", jitter="30%", output_tokens="1:9", ready_after="2s")
    assert (paced.ttft_s, paced.itl_s, paced.jitter_ratio, paced.output_tokens) == (0.05, 0.0, 0.3, (1, 9))
    assert paced.batching is None
    more = parse_settings(
        adapters=["a", "b"],
        reasoning_tokens="0:9",
        invalid_json="5%",
        load_time="3s",
        replicas=2,
        affinity="session",
        says="90%",
    )
    assert (more.adapters, more.reasoning_tokens, more.invalid_json_ratio) == (("a", "b"), (0, 9), 0.05)
    assert (more.load_time_s, more.replicas, more.affinity, more.batching) == (3.0, 2, "session", None)
    assert (more.says_ratio, parse_settings().says_ratio) == (0.9, None)
    engine = parse_settings(prefill="1ms", kv_tokens=100)
    assert engine.batching == BatchingCosts(prefill_s=0.001, kv_tokens=100)
    engine = parse_settings(leak_kv=True, preempt=False, shed_above=0, prefix_cache=9, adapter_cost="0")
    assert engine.batching == BatchingCosts(leak_kv=True, shed_above=0, prefix_blocks=9)


BROKEN = """
from benchgate.sim import engine, server
from benchgate.sim.settings import SimSettings

def broken(self, now_ns):
    raise ZeroDivisionError("a defect")

engine.Paced.take = broken
server.run_sim(SimSettings(ttft_s=0), lambda url: print(url, flush=True))
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
