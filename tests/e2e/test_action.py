"""The action's own shell: refused and killed steps say `error`, and the real benchgate behind it says what it found."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.action_steps import (
    ACTION,
    GATE,
    REPOSITORY,
    ROOT,
    StepResult,
    gate_inputs,
    put_checkout,
    read_yaml,
    run_action_step,
    run_shell,
    step_named,
)
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time

INSTALLED = f'#!/usr/bin/env bash\nPYTHONPATH={ROOT} exec {sys.executable} -m benchgate "$@"\n'
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


@pytest.mark.parametrize(
    ("event", "head", "reason"),
    [
        ("pull_request", "stranger/models", "comes from another repository"),
        ("pull_request", "octo/models-fork", "comes from another repository"),  # the same owner's
        ("pull_request", "", "comes from another repository"),  # a fork that is gone
        ("workflow_run", "stranger/models", "another repository"),
        ("pull_request_target", REPOSITORY, "pull_request_target"),
        ("issue_comment", "", "workflow_dispatch"),
        ("issues", "", "event issues"),
        ("an_event_to_come", REPOSITORY, "event an_event_to_come"),
        ("pull_request", REPOSITORY, None),
        ("workflow_run", REPOSITORY, None),
        ("merge_group", "", None),
        ("release", "", None),
        ("schedule", "", None),
    ],
)
def test_only_a_change_of_the_repository_itself_is_measured(
    tmp_path: Path, event: str, head: str, reason: str | None
) -> None:
    env = {"GITHUB_EVENT_NAME": event, "BENCHGATE_HEAD_REPOSITORY": head}
    done = run_action_step(tmp_path, "admit", None, env)
    assert (done.status, (reason or "") in done.printed) == (0 if reason is None else 2, True)


def test_a_change_is_admitted_before_anything_is_installed_read_or_sent() -> None:
    admit, *later = ACTION["runs"]["steps"]
    assert "if" not in admit and admit["id"] == "admit"
    assert admit["env"]["BENCHGATE_HEAD_REPOSITORY"] == (
        "${{ github.event.pull_request.head.repo.full_name || github.event.workflow_run.head_repository.full_name }}"
    )
    conditions = [step.get("if", "") for step in later]
    assert not any(word in condition for condition in conditions for word in ("always()", "failure()", "cancelled()"))


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\nkill -KILL $$\n"])
def test_a_gate_whose_benchgate_is_missing_crashes_or_is_killed_is_red_and_an_error(
    tmp_path: Path, program: str | None
) -> None:
    result = run_action_step(tmp_path, "gate", program, gate_inputs())
    assert (result.green, result.outputs) == (False, {"verdict": "error"})


def test_a_gate_that_is_killed_with_its_shell_leaves_the_verdict_error(tmp_path: Path) -> None:
    started = tmp_path / "started"
    result = run_action_step(tmp_path, "gate", f"#!/bin/sh\ntouch {started}; sleep 600", gate_inputs(), kill_at=started)
    assert (result.green, result.outputs) == (False, {"verdict": "error"})


def test_the_job_does_not_steer_benchgates_python(tmp_path: Path) -> None:
    job = {"PYTHONPATH": "src", "PYTHONOPTIMIZE": "2", "OF_THE_JOB": "1"}
    result = run_action_step(tmp_path, "gate", "#!/bin/sh\necho $*; env\n", {**job, **gate_inputs()})
    assert "action gate\n" in result.printed and "OF_THE_JOB=1\n" in result.printed
    assert "PYTHON" not in result.printed


def measured(
    scratch: Path, *, baseline: object = healthy, candidate: object = healthy, check: str = ERRORS, **inputs: Any
) -> StepResult:
    """Run the gate step with the real benchgate over two scripted servers."""
    assert callable(baseline) and callable(candidate)
    (scratch / "workspace").mkdir()
    with ScriptedServer(baseline) as first, ScriptedServer(candidate) as second:
        suite = SUITE.format(baseline=first.url, candidate=second.url, check=check)
        (scratch / "workspace/suite.yaml").write_text(suite)
        return run_action_step(scratch, "gate", INSTALLED, gate_inputs(report_path="report.html", **inputs))


@pytest.mark.slow
def test_a_pass_is_green_with_its_report_and_its_summary(tmp_path: Path) -> None:
    files = {"bundle_folder": "kept", "statement_path": "kept/statement.json", "junit_path": "checks.xml"}
    result = measured(tmp_path, **files)
    assert result.green, result.printed
    assert (result.outputs["verdict"], result.outputs["exit-code"]) == ("pass", "0")
    workspace = tmp_path / "workspace"
    report = (workspace / result.outputs["report-path"]).read_bytes()
    assert result.outputs["report-sha256"] == hashlib.sha256(report).hexdigest()
    assert "PASS" in result.summary
    bundle = workspace / result.outputs["bundle-path"]
    assert json.loads(bundle.read_bytes())["run"]["id"] == result.outputs["run-id"]
    statement = json.loads((workspace / result.outputs["statement-path"]).read_bytes())
    assert statement["predicate"]["result"] == "PASSED"
    assert json.loads(result.outputs["summary-json"])["verdict"] == "pass"
    assert result.outputs["checks-failed"] == ""
    assert (workspace / "checks.xml").read_bytes().startswith(b"<?xml")
    require_promotable_and_kept(tmp_path, workspace, result.outputs["run-id"])


def require_promotable_and_kept(tmp_path: Path, workspace: Path, run_id: str) -> None:
    """Run the last steps of gate.yml and history.yml with the files of a gate that passed."""
    job, bundle = tmp_path / "later", f"{run_id}.json"
    put_checkout(job / "benchgate-action", INSTALLED)
    shutil.copytree(workspace / "kept", job / "evidence")
    shutil.copy(workspace / "report.html", job / "evidence")
    inputs = {"INPUT_RUN_ID": run_id, "INPUT_REPORT": "evidence/report.html", "INPUT_REQUIRE_PINNED": "false"}
    inputs |= {"INPUT_FAIL_ON": "inconclusive", "GITHUB_ACTOR": "octocat"}
    promoted = run_shell(job, step_named(GATE["jobs"]["promote"], "promote")["run"], inputs)
    assert promoted.green, promoted.printed
    assert (job / "promoted" / bundle).read_bytes() != (job / "evidence" / bundle).read_bytes()

    remote = tmp_path / "remote.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(remote)], check=True)
    (job / "promoted").rename(job / "kept")
    keep = read_yaml(ROOT / ".github/workflows/history.yml")["jobs"]["keep"]
    inputs = {"INPUT_HISTORY_BRANCH": "history", "INPUT_HISTORY_REMOTE": str(remote)}
    pushed = run_shell(job, step_named(keep, "push")["run"], inputs)
    assert pushed.green, pushed.printed
    show = ["git", "-C", str(remote), "show", f"history:runs/{bundle}"]
    kept = subprocess.run(show, capture_output=True, check=True).stdout
    assert kept == (job / "kept" / bundle).read_bytes()


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
    result = measured(tmp_path, baseline=baseline, candidate=candidate, check=check, args="--format json")
    assert (result.outputs["verdict"], result.status) == (verdict, status), result.printed
    assert verdict.upper() in result.summary
    assert not any(line.startswith("::warning") for line in result.printed.splitlines())


def test_a_mistake_in_the_suite_is_red_and_never_a_verdict(tmp_path: Path) -> None:
    result = measured(tmp_path, check="{metric: tftt, margin: 10%}", fail_on="never")
    assert (result.outputs["verdict"], result.status) == ("error", 2)
    assert "ttft" in result.printed


def test_the_job_that_signs_needs_no_installation(tmp_path: Path) -> None:
    put_checkout(tmp_path / "benchgate-action")
    (tmp_path / "evidence").mkdir()
    kind = "https://in-toto.io/attestation/test-result/v0.1"
    statement = {"subject": [], "predicateType": kind, "predicate": {"result": "FAILED"}}
    (tmp_path / "evidence/statement.intoto.json").write_text(json.dumps(statement), encoding="utf-8")
    attest = read_yaml(ROOT / ".github/workflows/attest.yml")["jobs"]["attest"]
    bare = {"PATH": f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin"}  # a Python without benchgate's libraries
    done = run_shell(tmp_path, step_named(attest, "parts")["run"], bare)
    assert done.green, done.printed
    assert json.loads((tmp_path / done.outputs["predicate"]).read_bytes()) == {"result": "FAILED"}
