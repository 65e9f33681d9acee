"""A suite that writes no checks: the command says what it is held to, and nothing where it writes its own."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.command import here

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


def test_validate_and_plan_print_the_checks_that_a_suite_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    told = here(tmp_path, "validate", "s.yaml").stdout
    assert "held to the usual checks:\n    - {metric: error_rate, margin: 1 point}\n" in told
    assert "    - {metric: ttft, margin: 5%}\n" in told
    assert "ttft-p95@c4" in here(tmp_path, "plan", "s.yaml").stdout


def test_validate_says_nothing_of_them_where_a_suite_writes_its_own(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE + "gate: {checks: [{metric: error_rate, max: 1%}]}\n")
    told = here(tmp_path, "validate", "s.yaml")
    assert told.returncode == 0
    assert "usual" not in told.stdout
