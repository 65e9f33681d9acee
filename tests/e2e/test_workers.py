"""A suite whose load comes from several processes: the same is asked, and an interrupt loses no answer."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchgate.model.run import RunStatus
from benchgate.plan.schedule import make_plan
from benchgate.suite.schema import Suite
from tests.e2e.command import command_line, document, here, latest_evidence
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering

pytestmark = pytest.mark.beside  # requests are counted, and no time decides

SUITE = """
suite: workers
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: 2
  workers: {workers}
  warmup: 2
  salt: false
  sweep: [{{stage: c4, concurrency: 4, requests: {requests}}}]
gate: {{checks: [{{metric: error_rate, max: 20%}}]}}
"""
healthy = answering(lambda received: "one two three four five six seven eight", after_s=0.005)


def write_suite(folder: Path, baseline: str, candidate: str, *, workers: int, requests: int) -> None:
    text = SUITE.format(baseline=baseline, candidate=candidate, workers=workers, requests=requests)
    (folder / "suite.yaml").write_text(text)


def test_two_processes_ask_what_one_asks(tmp_path: Path) -> None:
    asked = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        with ScriptedServer(healthy) as baseline, ScriptedServer(healthy) as candidate:
            write_suite(folder, baseline.url, candidate.url, workers=workers, requests=40)
            verdict = document(here(folder, "run", "suite.yaml", "--format", "json"))
            prompts = Counter(received.prompt for received in candidate.requests if (received.body or {}).get("stream"))
        stored = latest_evidence(folder)
        plan = make_plan(Suite.from_stored(stored.run.suite))
        stages = [*plan.warmup, *(stage for block in plan.blocks for stage in block.stages)]
        planned = {request.ask.prompt for stage in stages for request in stage.requests}
        assert [observation.client.workers for observation in stored.load] == [workers] * 4, verdict
        assert {len(observation.requests) for observation in stored.load} == {40}
        asked.append(({prompt: prompts[prompt or ""] for prompt in planned}, stored.run.measurement_sha256))
    assert asked[0] == asked[1]
    assert set(asked[0][0].values()) == {1}


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_stage_is_stored_as_far_as_it_went(tmp_path: Path, workers: int) -> None:
    """Of the second stage in time, the first 30 are answered and the others never are."""
    stuck = threading.Event()
    answered = 0

    def sticking(received: Received) -> Iterable[Step]:
        nonlocal answered
        if (received.body or {}).get("stream"):
            answered += 1
            if answered > 32:  # two of them warmed up
                if answered == 36:
                    stuck.set()
                return [60.0]
        return healthy(received)

    with ScriptedServer(healthy) as baseline, ScriptedServer(sticking) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url, workers=workers, requests=100)
        process = subprocess.Popen(
            command_line("run", "suite.yaml"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert stuck.wait(60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    stored = latest_evidence(tmp_path)
    assert stored.run.status is RunStatus.PARTIAL
    whole, cut = stored.load
    assert (len(whole.requests), len(cut.requests) + len(cut.ramp)) == (100, 30)
    assert min(len(cut.requests), len(cut.ramp)) >= 4
    assert stored.load[1].client.faults == ("the stage was cut short",)
    assert set(cut.requests.error) == set(cut.ramp.error) == {None}
    assert here(tmp_path, "gate", stored.run.id).returncode == 12
