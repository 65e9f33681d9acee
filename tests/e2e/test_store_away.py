"""A store that goes away under the command: the verdict all the same, code 13, and the command that recovers."""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from benchgate.model.run import RunStatus
from benchgate.store.repository import Store
from tests.e2e.command import STORE, command_line, document, here, latest_evidence
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering

pytestmark = pytest.mark.beside  # what is asked of the servers is nothing; no verdict is expected of their speed

SUITE = """
suite: away
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: 4
  warmup: 0
  sweep: [{{stage: c2, concurrency: 2, requests: 30}}]
gate:
  allow_underpowered: true
  checks:
    - {{metric: error_rate, max: 20%}}
    - {{metric: ttft, margin: 95%}}
"""
healthy = answering(lambda received: "one two three four five six seven eight", after_s=0.002)


def write_suite(folder: Path, baseline: str, candidate: str) -> None:
    (folder / "suite.yaml").write_text(SUITE.format(baseline=baseline, candidate=candidate))


def acting_at(number: int, act: Callable[[], None]) -> Callable[[Received], Iterable[Step]]:
    """A server that does something at its so many-th request."""
    seen = 0

    def respond(received: Received) -> Iterable[Step]:
        nonlocal seen
        seen += 1
        if seen == number:
            act()
        return healthy(received)

    return respond


RUN = ("run", "suite.yaml", "--format", "json")


def recovering_command(said: str) -> list[str]:
    """The arguments of the command that stderr tells, as a shell would read them."""
    (command,) = set(re.findall(r"`benchgate (store import [^`]*)`", said))
    return shlex.split(command)


def judged(found: dict[str, Any]) -> str:
    """A verdict document without what says how the process that printed it ended."""
    return json.dumps({name: value for name, value in found.items() if name not in ("exit_code", "promotes")})


def require_recovered(folder: Path, result: subprocess.CompletedProcess[str]) -> None:
    """The verdict was printed; the command that was told brings the run into the store, which judges it alike."""
    assert result.returncode == 13, result.stderr
    said = document(result)
    assert (said["exit_code"], said["promotes"]) == (13, False)
    for _ in range(2):
        recovered = here(folder, *recovering_command(result.stderr))
        assert recovered.returncode == 0, recovered.stderr
        assert "is complete" in recovered.stdout
    again = document(here(folder, "gate", "--format", "json"))
    assert judged(again) == judged(said)
    assert len(latest_evidence(folder).load) == 8


def test_store_removed_in_the_middle_costs_neither_verdict_nor_evidence(tmp_path: Path) -> None:
    def remove() -> None:
        for path in (tmp_path / STORE).parent.glob("benchgate.db*"):
            path.unlink()

    with ScriptedServer(healthy) as baseline, ScriptedServer(acting_at(50, remove)) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        result = here(tmp_path, *RUN)
    assert "removed or replaced" in result.stderr
    require_recovered(tmp_path, result)


def test_store_on_a_full_disk_costs_neither_verdict_nor_evidence(tmp_path: Path) -> None:
    """No file may grow beyond a size that the store reaches, and the spool does not."""
    Store.open(str(tmp_path / STORE)).close()
    with ScriptedServer(healthy) as baseline, ScriptedServer(healthy) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        line = ["bash", "-c", 'ulimit -f 150; exec "$@"', "full", *command_line(*RUN)]
        result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert "disk" in result.stderr
    require_recovered(tmp_path, result)


def test_disk_that_takes_nothing_more_ends_the_run_with_a_verdict_over_what_was_kept(tmp_path: Path) -> None:
    """From the candidate's 50th request on no file takes another byte: no stage, no spool and no database."""
    measuring: list[int] = []

    def fill_up() -> None:
        children = Path(f"/proc/{measuring[0]}/task/{measuring[0]}/children").read_text().split()
        for pid in (measuring[0], *map(int, children)):  # the load is sent by a worker process
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))

    with ScriptedServer(healthy) as baseline, ScriptedServer(acting_at(50, fill_up)) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        process = subprocess.Popen(
            command_line(*RUN), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        measuring.append(process.pid)
        result = subprocess.CompletedProcess([], 0, *process.communicate(timeout=240))
    assert process.returncode == 13, result.stderr
    said = document(result)
    assert (said["outcome"], said["exit_code"], said["promotes"]) == ("INVALID", 13, False)
    assert "could not write" in result.stderr
    recovered = here(tmp_path, *recovering_command(result.stderr))
    assert recovered.returncode == 0, recovered.stderr
    assert "it was interrupted" in recovered.stdout
    (again,) = re.findall(r"`benchgate (run [^`]*)` resumes it", recovered.stdout)
    assert again.split()[:2] == ["run", "suite.yaml"] and again.endswith(" --resume")
    evidence = latest_evidence(tmp_path)
    assert (evidence.run.status, len(evidence.load)) == (RunStatus.PARTIAL, 2)
    assert judged(document(here(tmp_path, "gate", evidence.run.id, "--format", "json"))) == judged(said)


def test_store_that_is_gone_at_the_start_is_an_error_before_anything_is_asked(tmp_path: Path) -> None:
    with ScriptedServer(healthy) as baseline, ScriptedServer(healthy) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        result = here(tmp_path, "run", "suite.yaml", "--store", "postgresql://user@127.0.0.1:1/store")
        assert not baseline.requests
    assert (result.returncode, result.stdout) == (13, "")
    assert not list((tmp_path / ".benchgate").glob("*/spool.jsonl"))


def test_run_that_ends_well_leaves_no_spool(tmp_path: Path) -> None:
    with ScriptedServer(healthy) as baseline, ScriptedServer(healthy) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        here(tmp_path, *RUN)
    assert latest_evidence(tmp_path).run.finished_at is not None
    assert not list((tmp_path / ".benchgate").glob("*/spool.jsonl"))


def test_file_that_is_no_spool_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no spool\n")
    (tmp_path / "spool.jsonl").write_text("no spool\n")
    for name, message, code in (
        ("spool.jsonl", "spool.jsonl:1: ", 13),
        ("none.jsonl", "no file or folder none.jsonl", 2),
    ):
        result = here(tmp_path, "store", "import", name)
        assert (result.returncode, message in result.stderr) == (code, True), result.stderr
