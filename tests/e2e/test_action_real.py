"""The action's own gate step with the real benchgate: what is red, what is green, what is said."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ci_scripts import ROOT, StepResult, run_gate, write_program
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time

SUITE = """
suite: action
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
limits: {{connect: 1s, first_token: 5s, stall: 2s, total: 10s, ready: 2s}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: 2
  warmup: 0
  sweep: [{{stage: c2, concurrency: 2, requests: 16}}]
gate:
  alpha: 0.001
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}}
  checks: [{check}]
"""
ERRORS = "{metric: error_rate, max: 60%}"
# No two servers can be shown to agree so closely in two blocks.
HAIRLINE = f"{{metric: ttft, margin: 0.1%}}, {ERRORS}"
THINKS_S = 0.005
healthy = answering(lambda received: "one two three four five six seven eight", after_s=THINKS_S)


def failing(received: Received) -> Iterable[Step]:
    """Ready, and then an error for every load request."""
    if received.body is not None and received.body.get("stream"):
        return [THINKS_S, json_response({"error": {"message": "out of memory\n::warning::fake"}}, status=500)]
    return healthy(received)


def measured(
    scratch: Path,
    *,
    baseline: object = healthy,
    candidate: object = healthy,
    check: str = ERRORS,
    **inputs: Any,
) -> StepResult:
    """One gate step over two scripted servers."""
    assert callable(baseline) and callable(candidate)
    program = f'#!/usr/bin/env bash\nPYTHONPATH={ROOT} exec {sys.executable} -m benchgate "$@"\n'
    write_program(scratch / "benchgate-action/.venv/bin/benchgate", program)
    (scratch / "gate").mkdir()
    with ScriptedServer(baseline) as first, ScriptedServer(candidate) as second:
        suite = SUITE.format(baseline=first.url, candidate=second.url, check=check)
        (scratch / "gate/suite.yaml").write_text(suite)
        return run_gate(scratch, None, report_path="report.html", **inputs)


def test_a_pass_is_green_with_its_report_and_its_summary(tmp_path: Path) -> None:
    files = {"bundle_folder": "kept", "statement_path": "kept/statement.json", "junit_path": "checks.xml"}
    result = measured(tmp_path, **files)
    assert result.green, result.printed
    assert (result.outputs["verdict"], result.outputs["exit-code"]) == ("pass", "0")
    report = (tmp_path / "gate" / result.outputs["report-path"]).read_bytes()
    assert result.outputs["report-sha256"] == hashlib.sha256(report).hexdigest()
    assert "PASS" in result.summary
    bundle = tmp_path / "gate" / result.outputs["bundle-path"]
    assert json.loads(bundle.read_bytes())["run"]["id"] == result.outputs["run-id"]
    statement = json.loads((tmp_path / "gate" / result.outputs["statement-path"]).read_bytes())
    assert statement["predicate"]["result"] == "PASSED"
    assert json.loads(result.outputs["summary-json"])["verdict"] == "pass"
    assert result.outputs["checks-failed"] == ""
    assert (tmp_path / "gate/checks.xml").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("candidate", "baseline", "check", "verdict", "status"),
    [
        pytest.param(failing, healthy, ERRORS, "block", 10, id="block"),
        pytest.param(healthy, healthy, HAIRLINE, "inconclusive", 11, id="inconclusive", marks=pytest.mark.slow),
        pytest.param(healthy, failing, HAIRLINE, "invalid", 12, id="invalid", marks=pytest.mark.slow),
    ],
)
def test_every_other_verdict_is_red_under_its_own_name(
    tmp_path: Path, candidate: object, baseline: object, check: str, verdict: str, status: int
) -> None:
    result = measured(tmp_path, baseline=baseline, candidate=candidate, check=check)
    assert (result.outputs["verdict"], result.status) == (verdict, status), result.printed
    assert verdict.upper() in result.summary
    assert not any(line.startswith("::warning") for line in result.printed.splitlines())


def test_a_mistake_in_the_suite_is_red_and_never_a_verdict(tmp_path: Path) -> None:
    result = measured(tmp_path, check="{metric: tftt, margin: 10%}")
    assert (result.outputs["verdict"], result.status) == ("error", 2)
    assert "ttft" in result.printed
