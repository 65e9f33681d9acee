from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.server_lock import locked_servers
from tests.e2e.command import here

HOLDER = """
import sys, time
from benchgate.model.deployment import Arm
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.server_lock import locked_servers
with locked_servers([Target(Arm.BASELINE, sys.argv[1], "m", DIALECTS["openai"])]) as name_holder:
    name_holder("run 0197-first")
    print("held", flush=True)
    sys.stdin.read()
"""


def target(url: str, model: str = "m") -> Target:
    return Target(Arm.CANDIDATE, url, model, DIALECTS["openai"])


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that measures the model m at http://127.0.0.1:8123."""
    words = [sys.executable, "-c", HOLDER, "http://127.0.0.1:8123"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8123", "http://localhost:8123/"])
def test_server_that_another_run_measures_is_refused_with_its_id(url: str, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(UsageError) as refused, locked_servers([target(url)]):
        pass
    found = rf"the server at {url.rstrip('/')} is being measured by run 0197-first \(process {holder.pid} on .*\)"
    assert re.match(found, str(refused.value))


@pytest.mark.parametrize(("url", "model"), [("http://127.0.0.1:8124", "m"), ("http://127.0.0.1:8123", "other")])
@pytest.mark.usefixtures("holder")
def test_other_server_and_other_model_are_free(url: str, model: str) -> None:
    with locked_servers([target(url, model)]):
        pass


@pytest.mark.parametrize(
    ("held", "other"), [("http://gw", "http://gw:80"), ("https://gw:443", "https://gw/"), ("http://GW.", "http://gw")]
)
def test_an_address_without_a_port_has_that_of_its_scheme(held: str, other: str) -> None:
    with (
        locked_servers([target(held)]),
        pytest.raises(UsageError, match="is being measured by"),
        locked_servers([target(other)]),
    ):
        pass


def test_a_server_of_http_and_one_of_https_are_two() -> None:
    with locked_servers([target("http://gw")]), locked_servers([target("https://gw")]):
        pass


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_waits_gets_the_server_when_the_process_is_dead(
    end: signal.Signals, holder: subprocess.Popen[bytes]
) -> None:
    lines: list[str] = []

    def waiting(line: str) -> None:
        lines.append(line)
        holder.send_signal(end)
        holder.wait()

    with locked_servers([target("http://127.0.0.1:8123")], waiting):
        assert len(lines) == 1 and "run 0197-first" in lines[0]


def test_server_is_free_after_the_block_and_both_arms_may_be_one() -> None:
    for _ in range(2):
        with locked_servers([target("http://127.0.0.1:8123"), target("http://127.0.0.1:8123")]):
            pass


def test_user_without_a_home_locks_in_a_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with locked_servers([target("http://127.0.0.1:8123")]):
        assert list(tmp_path.glob("benchgate-*/*.lock"))


SUITE = """
suite: locked
deployments:
  old: {url: "http://127.0.0.1:8123", model: m}
  new: {url: "http://127.0.0.1:8124", model: m}
baseline: old
candidate: new
load: {blocks: 2, workload: {input: 8 tokens, output: 8 tokens}, sweep: [{stage: c1, concurrency: 1, requests: 8}]}
gate: {allow_underpowered: true, checks: [{metric: error_rate, max: 5%}]}
"""


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("command", ["run", "calibrate"])
def test_command_on_a_server_that_is_measured_is_refused_before_there_is_a_run(tmp_path: Path, command: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    refused = here(tmp_path, command, "suite.yaml")
    assert refused.returncode == 2, refused.stderr
    assert "the server at http://127.0.0.1:8123 is being measured by run 0197-first" in refused.stderr
    listed = here(tmp_path, "gate", "@latest")
    assert "0197" not in listed.stdout


@pytest.mark.usefixtures("holder")
def test_load_test_of_a_server_that_is_measured_is_refused(tmp_path: Path) -> None:
    words = ["load", "http://127.0.0.1:8123", "--model", "m", "--concurrency", "1", "--requests", "2"]
    refused = here(tmp_path, *words)
    assert refused.returncode == 2
    assert "is being measured by run 0197-first" in refused.stderr
