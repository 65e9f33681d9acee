"""A suite that writes no checks: the command says what it is held to, and nothing where it writes its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import here

pytestmark = pytest.mark.beside  # nothing is measured

SUITE = """\
suite: usual
deployments:
  old: {url: "http://one:8000", model: m}
  new: {url: "http://two:8000", model: m}
baseline: old
candidate: new
load:
  workload: {input: 64 tokens, output: 32 tokens}
  sweep: [{stage: c4, concurrency: 4, requests: 40}]
"""


def test_plan_prints_the_checks_that_a_suite_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    result = here(tmp_path, "plan", "s.yaml")
    assert "these are the default checks:\n         - {metric: error_rate, margin: 1 point}\n" in result.stdout
    assert "         - {metric: ttft, margin: 5%}\n" in result.stdout
    assert "error_rate@c4" in result.stderr
    plan = " ".join(result.stdout.split())
    assert "ttft-p95@c4" in plan
    assert "not counted" not in plan


def test_plan_refuses_where_a_suite_writes_its_own(tmp_path: Path) -> None:
    tail = "{metric: ttft, statistic: p99, max: 1s}"
    few = SUITE.replace("requests: 40", "requests: 15")
    bounds = f"{few}gate: {{checks: [{tail}, {{metric: error_rate, max: 5%}}]}}\n"
    (tmp_path / "s.yaml").write_text(bounds)
    told = here(tmp_path, "plan", "s.yaml")
    # 300 requests have an upper limit of p99 at 5 %, and none at what the last of three looks may spend
    refused = "ttft-p99@c4:slo cannot pass: the p99 of 300 requests has no upper limit; send at least 306"
    assert told.returncode == 2
    assert f"s.yaml: {refused}" in told.stderr
    (tmp_path / "s.yaml").write_text(bounds.replace("requests: 15", "requests: 16"))
    told = here(tmp_path, "plan", "s.yaml")
    assert told.returncode == 0 and "defaults" not in told.stdout
    (tmp_path / "s.yaml").write_text(bounds.replace("requests: 15", "requests: 14"))
    assert "(and some more with interim analyses" in here(tmp_path, "plan", "s.yaml").stderr
