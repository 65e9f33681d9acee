"""What a server reports of itself under load, judged: from the page of `sim` to the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import document, here

pytestmark = pytest.mark.beside  # no time of it is judged closely

SUITE = """
suite: own-metrics
deployments:
  one: {sim: {prefill: 0.05ms, decode: 2ms, batch: 2, kv_tokens: 2048}}
  other: {sim: {prefill: 0.05ms, decode: 2ms, batch: 2, kv_tokens: 2048, seed: 2}}
baseline: one
candidate: other
load:
  workload: {input: 64 tokens, output: 16 tokens}
  blocks: 3  # with two, a tenth more or less between blocks leaves a mean of 0.1 s undecided
  warmup: 0
  sweep:
    - {stage: c8, concurrency: 8, requests: 12}
gate:
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  checks:
    - {metric: error_rate, max: 30%}
    - {metric: input_throughput, min: 1/s, required: false}
    - {metric: total_throughput, min: 1/s, required: false}
    - {metric: queue_wait, max: 1ms}
    - {metric: kv_usage, max: 99%}
    - {metric: speculation_acceptance, min: 50%}
    - {metric: joules_per_token, max: 1 J}
"""


@pytest.mark.slow
def test_a_server_that_queues_is_judged_by_its_own_numbers_and_never_by_those_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SUITE)
    result = here(tmp_path, "run", "own.yaml", "--format", "json")
    assert result.returncode == 0, result.stdout + result.stderr
    found = {check["metric"]: check for check in document(result)["checks"]}
    # Every prompt has 64 tokens and every answer 16.
    read, whole = found["input_throughput"]["candidate"], found["total_throughput"]["candidate"]
    assert whole / read == pytest.approx(1.25)
    # Eight clients and two places: six requests always wait, about three times as long as one is served.
    assert found["queue_wait"]["outcome"] == "BLOCK"
    assert found["queue_wait"]["candidate"] > 0.04
    # Two requests of up to 80 tokens, of 2048.
    assert 0.02 < found["kv_usage"]["candidate"] < 0.2
    for name in ("speculation_acceptance", "joules_per_token"):
        assert (found[name]["outcome"], found[name]["required"]) == ("INVALID", False)
        assert "candidate" not in found[name] or found[name]["candidate"] is None
    assert document(result)["outcome"] == "WARN"
