"""Adapters and speculation are ordinary candidates: one server under two names, or two that stream in other pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time


SUITE = """
suite: variants
deployments:
  base: {{url: "{url}", model: sim, engine: vllm}}
  adapted: {{url: "{url}", model: support, engine: vllm}}
  again: {{url: "{url}", model: sim, engine: vllm}}
  draft: {{sim: {{ttft: 5ms, itl: 1ms, chunk_tokens: 4}}}}
baseline: base
candidates: [adapted, draft]
load:
  workload: {{input: 16 tokens, output: 16 tokens}}
  blocks: 2
  warmup: 1
  sweep:
    - {{stage: c2, concurrency: 2, requests: 10}}
gate:
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}}
  checks:
    - {{metric: error_rate, max: 30%}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Sim]:
    with serve_sim(sim_settings(ttft_s=0.005, itl_s=0.001, adapters=("support",))) as sim:
        yield sim


def test_an_adapter_and_a_speculating_server_are_each_judged_against_the_plain_model(
    tmp_path: Path, server: Sim
) -> None:
    (tmp_path / "variants.yaml").write_text(SUITE.format(url=server.url))
    result = here(tmp_path, "run", "variants.yaml", "--format", "json")
    assert result.returncode == 0, result.stdout + result.stderr
    adapted, drafted = json.loads(result.stdout)
    assert (adapted["outcome"], drafted["outcome"]) == ("PASS", "PASS")
    with Store.open(str(tmp_path / STORE), create=False) as store:
        arms = store.run(adapted["run"]["id"]).arms
    assert arms[Arm.BASELINE].url == arms[Arm.CANDIDATE].url
    assert (arms[Arm.BASELINE].model, arms[Arm.CANDIDATE].model) == ("sim", "support")
    assert {"sim", "support"} <= {request["model"] for request in server.truth(with_requests=True)["rows"]}


def test_one_model_of_one_server_under_two_names_is_still_refused(tmp_path: Path, server: Sim) -> None:
    text = SUITE.format(url=server.url).replace("candidates: [adapted, draft]", "candidates: [adapted, again]")
    (tmp_path / "variants.yaml").write_text(text)
    result = here(tmp_path, "plan", "variants.yaml")
    assert result.returncode == 2
    assert 'candidates[1]: "base" and "again" are the same endpoint in both arms' in result.stderr
