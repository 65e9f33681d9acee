"""A run over each endpoint and medium beyond OpenAI's chat: sound servers pass, those whose answers break do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from tests.e2e.command import benchgate
from tests.fakes.grpc_server import GrpcSim, serving_grpc

pytestmark = pytest.mark.beside  # errors are counted, no time

SUITE = """\
suite: endpoint
deployments:
  base: {{sim: {{ttft: 8ms, itl: 2ms, audio_tokens: 10, video_tokens: 20}}}}
  cand: {{sim: {{ttft: 8ms, itl: 2ms, audio_tokens: 10, video_tokens: 20, faults: {faults}}}}}
baseline: base
candidate: cand
load:
  blocks: 4
  workload: {workload}
  sweep:
    - {{stage: c2, concurrency: 2, requests: 30}}
gate:
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 95%, achieved: 10%}}
  checks:
    - {{metric: error_rate, stage: c2, max: 5%}}
"""
TEXT = "input: 20 tokens, output: 8 tokens"
WORKLOADS = {
    **{name: f"{{endpoint: {name}, {TEXT}}}" for name in ("messages", "generate", "triton-generate", "predictions")},
    "infer": "{endpoint: infer, input: 20 tokens}",
    "grpc-infer": f"{{endpoint: grpc-infer, {TEXT}}}",
    "transcriptions": "{endpoint: transcriptions, audio: {duration: 3s}}",
    "whole transcriptions": "{endpoint: transcriptions, stream: false, body: {response_format: verbose_json}}",
    "audio and videos": f"{{{TEXT}, audio: {{duration: {{uniform: [1s, 2s]}}}}, videos: {{frames: 2}}}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("faults", "code"), [([], 0), (["error-after:3@40%"], 10)])
def test_broken_answers_block_and_sound_ones_pass(tmp_path: Path, name: str, faults: list[str], code: int) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE.format(workload=WORKLOADS[name], faults=faults))
    run = benchgate(tmp_path, "run", str(suite))
    assert run.returncode == code, run.stdout + run.stderr
    assert ("● error_rate@c2" in run.stdout) == (code == 0), run.stdout


OVER_GRPC = """\
suite: over-grpc
deployments:
  base: {{url: "{http}", grpc: "{base}", model: m, engine: triton, metrics: off}}
  cand: {{url: "{http}", grpc: "{cand}", model: m, engine: triton, metrics: off}}
baseline: base
candidate: cand
load:
  blocks: 4
  workload: {{endpoint: grpc-infer, input: 20 tokens, output: 8 tokens}}
  sweep:
    - {{stage: c2, concurrency: 2, requests: 30}}
gate:
  checks:
    - {{metric: error_rate, stage: c2, max: 5%}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code"), [(None, 0), ("status-after:3", 10)])
def test_answers_over_grpc_are_judged_like_all_others(tmp_path: Path, fault: str | None, code: int) -> None:
    suite = tmp_path / "suite.yaml"
    with (
        serve_sim(sim_settings(model="m")) as pages,
        serving_grpc() as base,
        serving_grpc(GrpcSim(fault=fault, every=3)) as cand,
    ):
        suite.write_text(OVER_GRPC.format(http=pages.url, base=base.url, cand=cand.url))
        run = benchgate(tmp_path, "run", str(suite))
    assert run.returncode == code, run.stdout + run.stderr
    assert ("● error_rate@c2" in run.stdout) == (code == 0), run.stdout
