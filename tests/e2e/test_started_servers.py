"""A deployment that the suite's own commands start: its cold starts are timed, and it is measured like any other."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from tests.e2e.command import benchgate, command_line, document, here

pytestmark = pytest.mark.beside  # no time of it is judged closely

SUITE = """
suite: started
deployments:
  one: {sim: {ttft: 4ms, itl: 1ms}}
  other:
    url: http://127.0.0.1:PORT
    model: sim
    engine: vllm
    start: {run: RUN}
baseline: one
candidate: other
start: {times: 3}
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 3
  warmup: 0
  sweep:
    - {stage: c2, concurrency: 2, requests: 12}
gate:
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  allow_underpowered: true
  checks:
    - {metric: error_rate, max: 40%}
    - {metric: cold_start, max: 60s}
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def suite(folder: Path, port: int, *run: str) -> None:
    words = run or command_line("sim", "--port", str(port), "--set", "ttft=4ms", "--set", "itl=1ms")
    text = SUITE.replace("PORT", str(port)).replace("RUN", json.dumps(words))
    (folder / "started.yaml").write_text(text)


def test_cold_starts_of_a_server_of_ones_own_are_timed_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    port = free_port()
    suite(tmp_path, port)
    result = benchgate(tmp_path, "run", "started.yaml", "--allow-actions", "--format", "json")
    assert result.returncode == 0, result.stdout + result.stderr
    found = {check["metric"]: check for check in document(result)["checks"]}
    assert found["cold_start"]["outcome"] == "PASS"
    assert found["cold_start"]["n"] == 3
    assert found["cold_start"]["candidate"] > 0.05  # a Python that imports benchgate
    with socket.socket() as one:
        assert one.connect_ex(("127.0.0.1", port)) != 0


def test_commands_need_consent_and_a_server_that_dies_ends_the_run_with_its_last_lines(tmp_path: Path) -> None:
    suite(tmp_path, free_port(), "sh", "-c", "echo out of memory; exit 7")
    refused = here(tmp_path, "run", "started.yaml")
    assert refused.returncode == 2
    assert "other of started is started by the command " in refused.stderr
    assert "add --allow-actions" in refused.stderr
    ended = here(tmp_path, "run", "started.yaml", "--allow-actions")
    assert ended.returncode == 12
    assert "`start.run` ended with status 7" in ended.stdout
    assert "out of memory" in ended.stdout


def test_a_server_that_already_answers_is_no_cold_start(tmp_path: Path) -> None:
    with serve_sim(sim_settings(ttft_s=0.004, itl_s=0.001)) as sim:
        suite(tmp_path, int(sim.url.rpartition(":")[2]), "sleep", "600")
        text = (tmp_path / "started.yaml").read_text()
        (tmp_path / "started.yaml").write_text(text.replace("start: {run:", "start: {within: 500ms, run:"))
        found = here(tmp_path, "run", "started.yaml", "--allow-actions")
    assert found.returncode == 12
    assert "answers before `start.run`" in found.stdout, found.stderr
