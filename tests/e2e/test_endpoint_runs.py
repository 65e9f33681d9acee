"""A run over each endpoint beyond OpenAI's: sound servers pass, and one whose answers break does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import benchgate

pytestmark = pytest.mark.beside  # errors are counted, no time

SUITE = """\
suite: endpoint
deployments:
  base: {{sim: {{ttft: 8ms, itl: 2ms}}}}
  cand: {{sim: {{ttft: 8ms, itl: 2ms, faults: {faults}}}}}
baseline: base
candidate: cand
load:
  blocks: 4
  workload: {{endpoint: {endpoint}, input: 20 tokens{output}}}
  sweep:
    - {{stage: c2, concurrency: 2, requests: 30}}
gate:
  checks:
    - {{metric: error_rate, stage: c2, max: 5%}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["messages", "generate", "triton-generate", "predictions", "infer"])
@pytest.mark.parametrize(("faults", "code"), [([], 0), (["error-after:3@40%"], 10)])
def test_broken_answers_block_and_sound_ones_pass(tmp_path: Path, endpoint: str, faults: list[str], code: int) -> None:
    output = "" if endpoint == "infer" else ", output: 8 tokens"
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE.format(endpoint=endpoint, output=output, faults=faults))
    run = benchgate(tmp_path, "run", str(suite))
    assert run.returncode == code, run.stdout + run.stderr
    assert ("● error_rate@c2" in run.stdout) == (code == 0), run.stdout
