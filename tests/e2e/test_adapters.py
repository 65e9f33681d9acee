"""Adapters and speculation are ordinary candidates: one server under two names, or two that stream in other pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchgate.gate.comparison import by_adapter
from benchgate.model.deployment import Arm
from benchgate.report.comparability import sides
from benchgate.report.sections.stages import stage_rows
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite, traffic_classes
from tests.e2e.command import STORE, document, here, latest_evidence

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


MIXED = """
suite: mixed
deployments:
  a: {sim: {prefill: 0.01ms, decode: 1ms, adapters: [legal, support, sales], prefix_cache: 20000}}
  b: {sim: {prefill: 0.01ms, decode: 1ms, adapters: [legal, support, sales], prefix_cache: 20000, seed: 2}}
baseline: a
candidate: b
load:
  workload:
    input: 400 tokens
    output: 8 tokens
    adapter: {names: [legal, support, sales], weights: zipf}
    retrieval: {pool: 8, each: 2, tokens: 160, order: fixed}
  blocks: 2
  sweep:
    - {stage: c2, concurrency: 2, requests: 40}
gate:
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  checks:
    - {metric: error_rate, max: 30%}
    - {metric: prefix_hit_rate, min: 5%}
"""


def test_figures_of_each_adapter_are_of_the_requests_that_the_server_answered_with_it(tmp_path: Path) -> None:
    names = ("legal", "support", "sales")
    (tmp_path / "mixed.yaml").write_text(MIXED)
    planned = here(tmp_path, "plan", "mixed.yaml", "--format", "json")
    result = here(tmp_path, "run", "mixed.yaml", "--format", "json", "--report", "mixed.html")
    assert result.returncode == 0, result.stdout + result.stderr
    evidence = latest_evidence(tmp_path)
    suite = Suite.from_stored(evidence.run.suite)
    (traffic,) = traffic_classes(suite)
    sent: dict[Arm, list[list[str | None]]] = {arm: [] for arm in Arm}
    for execution in evidence.load:
        parts = by_adapter(execution, traffic, suite.seed)
        assert {name: set(part.requests.answer_model) for name, part in parts.items()} == {
            name: {name} for name in parts
        }
        assert sum(len(part.requests) for part in parts.values()) == 40
        sent[execution.arm].append([traffic.adapter_of(suite.seed, execution.block, n) for n in range(40)])
    assert sent[Arm.BASELINE] == sent[Arm.CANDIDATE]
    rows = stage_rows(sides(evidence, None), suite)
    scheduled = {row.stage: row.summary.scheduled for row in rows if row.summary and row.role is Arm.CANDIDATE}
    assert list(scheduled) == ["c2", "c2/legal", "c2/support", "c2/sales"]
    assert scheduled["c2"] == 80 == sum(scheduled[f"c2/{name}"] for name in names)
    assert scheduled["c2/legal"] > scheduled["c2/sales"] > 0
    assert "c2/support" in (tmp_path / "mixed.html").read_text()
    # What the plan forecasts for a prefix cache without a limit is about what this one found.
    (stage,) = json.loads(planned.stdout)["stages"]
    (found,) = [c["candidate"] for c in document(result)["checks"] if c["metric"] == "prefix_hit_rate"]
    assert found == pytest.approx(stage["shared_prefix_ratio"], abs=0.15)
