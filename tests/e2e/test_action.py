"""The action's gate step is green only after PASS or WARN with exit code 0; which inputs and outputs it passes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ci_scripts import ACTION, arguments_of, run_gate, says

pytestmark = pytest.mark.beside


@pytest.mark.parametrize(
    ("body", "green", "verdict", "exit_code"),
    [
        # what benchgate does                                  green  verdict          exit code
        (says("pass", "exit 0"), True, "pass", "0"),
        (says("warn", "exit 0"), True, "warn", "0"),
        (says("warn", "exit 10"), False, "block", "10"),  # --strict
        (says("block", "exit 10"), False, "block", "10"),
        (says("inconclusive", "exit 11"), False, "inconclusive", "11"),
        (says("invalid", "exit 12"), False, "invalid", "12"),
        (says("pass", "exit 13"), False, "error", "13"),  # decided, but the store or a publisher failed
        ("exit 10", False, "block", "10"),  # the summary could not be written: the status still speaks
        ("exit 2", False, "error", "2"),  # a wrong suite
        ("exit 1", False, "error", "1"),  # a crash before any verdict
        (says("pass", "exit 1"), False, "error", "1"),  # a crash after it
        (says("pass", "kill -KILL $$"), False, "error", "137"),  # out of memory
        (says("pass", "kill -TERM $$"), False, "error", "143"),  # cancelled
        ("exit 0", False, "error", "1"),  # ended well without a word: nothing was decided
        (says("block", "exit 0"), False, "error", "1"),  # status and verdict disagree
        (says("", "exit 0"), False, "error", "1"),
        (says("PASS!", "exit 0"), False, "error", "1"),
        (says("pass", says("invalid", "exit 0")), False, "error", "1"),  # the last word counts
    ],
)
def test_only_pass_and_warn_with_exit_code_0_are_green(
    tmp_path: Path, body: str, green: bool, verdict: str, exit_code: str
) -> None:
    result = run_gate(tmp_path, body)
    assert (result.green, result.outputs["verdict"], result.outputs["exit-code"]) == (green, verdict, exit_code)


def test_a_missing_benchgate_is_red_and_an_error(tmp_path: Path) -> None:
    result = run_gate(tmp_path, None)
    assert (result.green, result.outputs["verdict"]) == (False, "error")


def test_the_actions_outputs_are_those_of_its_gate_and_a_gate_that_was_not_reached_is_an_error() -> None:
    outputs = {name: spec["value"] for name, spec in ACTION["outputs"].items()}
    verdict = outputs.pop("verdict")
    assert verdict == "${{ steps.gate.outputs.verdict || 'error' }}"
    assert outputs == {name: f"${{{{ steps.gate.outputs.{name} }}}}" for name in outputs}


def test_a_death_without_verdict_is_said_in_the_job_summary(tmp_path: Path) -> None:
    result = run_gate(tmp_path, "exit 1")
    assert "status 1" in result.summary
    assert "Not promoted" in result.summary
    assert "::error" in result.printed


def test_inputs_reach_benchgate_as_single_arguments(tmp_path: Path) -> None:
    hostile = "a b; $(touch /nowhere) `id` \"quoted\" '*'"
    result = run_gate(
        tmp_path,
        says("pass", "exit 0"),
        suite="--help",
        baseline="f16",
        candidate=hostile,
        label="",
        strict="true",
        args="--format json   --work-dir *",
    )
    assert result.green
    assert arguments_of(tmp_path) == [
        "run",
        f"--work-dir={tmp_path / 'gate/benchgate'}",
        "--baseline=f16",
        f"--candidate={hostile}",
        "--report=benchgate-report.html",
        "--strict",
        "--format",
        "json",
        "--work-dir",
        "*",
        "--",
        "--help",
    ]


@pytest.mark.parametrize(
    ("given", "of_the_job", "seen"),
    [
        ("postgresql://u:secret@db/runs", {}, "postgresql://u:secret@db/runs"),
        ("", {}, "{RUNNER_TEMP}/benchgate/benchgate.db"),  # none that a checkout can bring along
        ("", {"BENCHGATE_STORE": ""}, "{RUNNER_TEMP}/benchgate/benchgate.db"),
        ("", {"BENCHGATE_STORE": "postgresql://u:secret@db/job"}, "postgresql://u:secret@db/job"),
        ("runs of mine.db", {"BENCHGATE_STORE": "job.db"}, "runs of mine.db"),
    ],
)
def test_the_store_reaches_benchgate_without_showing_in_the_process_list(
    tmp_path: Path, given: str, of_the_job: dict[str, str], seen: str
) -> None:
    run_gate(tmp_path, says("pass", "exit 0"), store=given, job=of_the_job)
    assert (tmp_path / "benchgate-action/.venv/bin/store").read_text(encoding="utf-8").strip() == seen.format(
        RUNNER_TEMP=tmp_path / "gate"
    )
    assert not any(part in argument for argument in arguments_of(tmp_path) for part in ("--store", "u:secret"))


@pytest.mark.parametrize(
    "inputs", [{"suite": ""}, {"strict": "yes"}, {"strict": "True"}, {"strict": ""}, {"fail_on_inconclusive": ""}]
)
def test_a_wrong_input_is_refused_before_benchgate_runs(tmp_path: Path, inputs: dict[str, Any]) -> None:
    result = run_gate(tmp_path, says("pass", "exit 0"), **inputs)
    assert (result.green, result.outputs["verdict"], arguments_of(tmp_path)) == (False, "error", [])


def test_what_benchgate_published_reaches_the_caller(tmp_path: Path) -> None:
    more = """printf 'report-path=r.html\\nreport-sha256=abc\\n' >>"$GITHUB_OUTPUT"
printf 'statement-path=s.json\\nsummary-json={"a": 1}\\nchecks-failed=ttft\\n' >>"$GITHUB_OUTPUT" """
    result = run_gate(tmp_path, says("pass", more), bundle_folder="kept")
    assert result.outputs == {
        "verdict": "pass",
        "exit-code": "0",
        "run-id": "0199",
        "report-path": "r.html",
        "report-sha256": "abc",
        "statement-path": "s.json",
        "bundle-path": "kept/0199.json",
        "summary-json": '{"a": 1}',
        "checks-failed": "ttft",
    }
    exported = (tmp_path / "benchgate-action/.venv/bin/exported").read_text(encoding="utf-8").splitlines()
    assert exported == ["store", "export", "--to=kept", "--", "0199"]


@pytest.mark.parametrize(
    ("body", "verdict", "exit_code"),
    [
        (says("pass", "exit 0"), "error", "13"),
        ('echo verdict=pass >>"$GITHUB_OUTPUT"', "error", "13"),  # of which run?
        (says("block", "exit 10"), "block", "10"),
    ],
)
def test_a_run_that_cannot_be_handed_on_lets_nothing_through(
    tmp_path: Path, body: str, verdict: str, exit_code: str
) -> None:
    result = run_gate(tmp_path, f'echo 13 >"$here/export-status"\n{body}', bundle_folder="kept")
    assert (result.green, result.outputs["verdict"], result.outputs["exit-code"]) == (False, verdict, exit_code)
    assert result.outputs["bundle-path"] == ""
