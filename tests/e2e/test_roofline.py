"""A practice server faster than any memory of the declared accelerator makes a whole run INVALID."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import benchgate, document

pytestmark = [pytest.mark.beside, pytest.mark.slow]  # ten times slower it would still be too fast, or slow enough

SUITE = """\
suite: roofline
deployments:
  server: {{sim: {{ttft: 5ms, itl: 1ms}}, accelerator: H100, active_weights: {size}, draft_tokens: 0}}
baseline: server
candidate: server
load:
  workload: {{input: 16 tokens, output: 64 tokens}}
  blocks: 2
  sweep: [{{stage: c1, concurrency: 1, requests: 20}}]
gate:
  allow_underpowered: true
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}}
  checks: [{{metric: error_rate, max: 50%}}]
"""


@pytest.mark.parametrize(("size", "outcome"), [("141GB", "INVALID"), ("100MB", "PASS")])
def test_a_rate_that_the_declared_weights_cannot_have_is_invalid(tmp_path: Path, size: str, outcome: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.format(size=size))
    result = benchgate(tmp_path, "run", "suite.yaml", "--format", "json")
    verdict = document(result)
    (guard,) = [one for one in verdict["guards"] if one["id"] == "pace-possible"]
    assert verdict["outcome"] == outcome, result.stdout + result.stderr
    assert guard["tripped"] is (outcome == "INVALID")
    if outcome == "INVALID":
        assert "H100 (3.94 TB/s) read 141 GB no faster" in guard["reason"]
