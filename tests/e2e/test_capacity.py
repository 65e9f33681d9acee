"""A capacity search alone on the whole road: both arms searched, every look stored, judged again from the store."""

from __future__ import annotations

from pathlib import Path

from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.simulator import SimSettings
from tests.e2e.command import document, here

SUITE = """
suite: capacity
deployments:
  baseline: {{url: "{baseline}", model: sim, engine: vllm}}
  candidate: {{url: "{candidate}", model: sim, engine: vllm}}
slo: {{ttft: 25ms, target: 50%}}
load:
  workload: {{input: 4 tokens, output: 4 tokens}}
  capacity: {{over: concurrency, from: 1, to: 2, probe: 160 requests}}
gate:
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%}}
  checks:
    - {{metric: capacity, min: 2}}
"""


def slots(count: int) -> SimSettings:
    return sim_settings(prefill_s=0.0001, decode_s=0.01, decode_per_sequence_s=0.0001, batch=count)


def test_candidate_with_one_slot_less_blocks_and_does_so_again_from_the_store(tmp_path: Path) -> None:
    with serve_sim(slots(2)) as baseline, serve_sim(slots(1)) as candidate:
        (tmp_path / "s.yaml").write_text(SUITE.format(baseline=baseline.url, candidate=candidate.url))
        ran = here(tmp_path, "run", "s.yaml", "--format", "json", "--report", "r.html")
    again = here(tmp_path, "gate", "@latest", "--format", "json")
    checks = {check["metric"]: check for check in document(ran)["checks"]}
    assert (ran.returncode, checks["capacity"]["outcome"]) == (10, "BLOCK")
    assert (checks["capacity"]["candidate"], checks["capacity"]["upper"]) == (1.0, 1.0)
    assert again.stdout == ran.stdout
    report = (tmp_path / "r.html").read_text()
    assert "2 to ? in flight, never breached" in report
    assert 'id="figure-capacity"' in report
