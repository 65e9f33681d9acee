"""`benchgate action gate`: only PASS or WARN with exit code 0 is green, and nothing but its status decides."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchgate.cli.action import run_benchgate
from tests.fakes.action_steps import ACTION, FakeBenchgate, ends, run_gate

PASSES = ends(0, "verdict=pass", "run-id=0199")
SUMMARY = '{"exit_code": 0, "promotes": true, "verdict": "pass"}'


@pytest.mark.parametrize(
    ("status", "lines", "green", "verdict", "exit_code"),
    [
        (0, ["verdict=pass"], True, "pass", "0"),
        (0, ["verdict=warn"], True, "warn", "0"),
        (10, ["verdict=warn"], False, "block", "10"),  # --strict
        (10, ["verdict=block"], False, "block", "10"),
        (10, ["verdict=pass"], False, "block", "10"),  # written by another program, say
        (11, ["verdict=inconclusive"], False, "inconclusive", "11"),
        (12, ["verdict=invalid"], False, "invalid", "12"),
        (13, ["verdict=pass"], False, "error", "13"),  # decided, but the store or a publisher failed
        (10, [], False, "block", "10"),  # the summary could not be written: the status still speaks
        (2, [], False, "error", "2"),  # a wrong suite
        (1, [], False, "error", "1"),  # a crash before any verdict
        (1, ["verdict=pass"], False, "error", "1"),  # a crash after it
        (137, ["verdict=pass"], False, "error", "137"),  # out of memory
        (143, ["verdict=pass"], False, "error", "143"),  # cancelled
        (0, [], False, "error", "1"),  # ended well without a verdict: nothing was decided
        (0, ["verdict=block"], False, "error", "1"),  # status and verdict disagree
        (0, ["verdict="], False, "error", "1"),
        (0, ["verdict=PASS!"], False, "error", "1"),
        (0, ["verdict=pass", "verdict=invalid"], False, "error", "1"),  # the last one counts
    ],
)
def test_only_pass_and_warn_with_exit_code_0_are_green(
    tmp_path: Path, status: int, lines: list[str], green: bool, verdict: str, exit_code: str
) -> None:
    result = run_gate(tmp_path, FakeBenchgate(ends(status, *lines)))
    assert (result.green, result.outputs["verdict"], result.outputs["exit-code"]) == (green, verdict, exit_code)


@pytest.mark.parametrize(
    ("status", "fail_on", "green", "verdict"),
    [
        (11, "inconclusive", False, "inconclusive"),  # a comparison that could not be made is no pass
        (11, "warn", False, "inconclusive"),
        (11, "block", True, "inconclusive"),
        (10, "block", False, "block"),
        (12, "block", False, "invalid"),
        (10, "never", True, "block"),
        (11, "never", True, "inconclusive"),
        (12, "never", True, "invalid"),
        (0, "never", False, "error"),  # no verdict was written
        (1, "never", False, "error"),
        (13, "never", False, "error"),
        (13, "block", False, "error"),
    ],
)
def test_fail_on_changes_the_colour_of_the_step_and_never_the_verdict(
    tmp_path: Path, status: int, fail_on: str, green: bool, verdict: str
) -> None:
    result = run_gate(tmp_path, FakeBenchgate(ends(status)), fail_on=fail_on)
    assert (result.green, result.outputs["verdict"]) == (green, verdict)
    assert result.outputs["exit-code"] != "0"


def test_by_default_inconclusive_fails_and_warn_does_not() -> None:
    assert ACTION["inputs"]["fail-on"]["default"] == "inconclusive"


@pytest.mark.parametrize("fail_on", ["block", "inconclusive", "warn", "never"])
def test_warn_is_a_block_only_where_it_fails_the_step(tmp_path: Path, fail_on: str) -> None:
    benchgate = FakeBenchgate(PASSES)
    run_gate(tmp_path, benchgate, fail_on=fail_on)
    assert ("--strict" in benchgate.calls[0]) is (fail_on == "warn")


@pytest.mark.parametrize(
    "inputs", [{"suite": ""}, *({"fail_on": word} for word in ("", "Never", "off", "false", "pass"))]
)
def test_a_wrong_input_is_refused_before_benchgate_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inputs: dict[str, Any]
) -> None:
    benchgate = FakeBenchgate(PASSES)
    result = run_gate(tmp_path, benchgate, **inputs)
    assert (result.status, result.outputs, benchgate.calls) == (2, {}, [])
    assert capsys.readouterr().out.startswith("::error title=benchgate::input ")


def test_a_gate_without_verdict_says_so_in_the_job_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_gate(tmp_path, FakeBenchgate(ends(1)))
    assert "status 1" in result.summary and "Not promoted" in result.summary
    assert capsys.readouterr().out.startswith("::error title=benchgate::")


def test_inputs_reach_benchgate_as_single_arguments(tmp_path: Path) -> None:
    hostile = "a b; $(touch /nowhere) `id` \"quoted\" '*'"
    benchgate = FakeBenchgate(PASSES)
    assert run_gate(
        tmp_path,
        benchgate,
        suite="--help",
        baseline="f16",
        candidate=hostile,
        label="",
        fail_on="warn",
        waivers="w.yaml",
        junit_path="j.xml",
        statement_path="s.json",
        args="--format json   --work-dir *",
    ).green
    assert benchgate.calls == [
        [
            "run",
            f"--work-dir={tmp_path / 'benchgate'}",
            "--baseline=f16",
            f"--candidate={hostile}",
            "--waivers=w.yaml",
            *("--report=benchgate-report.html", "--write=intoto=s.json", "--write=junit=j.xml"),
            *("--strict", "--format", "json", "--work-dir", "*", "--", "--help"),
        ]
    ]
    assert not any(name.startswith("INPUT_") for name in benchgate.environment)


@pytest.mark.parametrize("args", ["--strict", "--quiet --waivers w.yaml", "--waivers=w.yaml"])
def test_options_that_later_jobs_would_not_know_are_refused_before_anything_runs(tmp_path: Path, args: str) -> None:
    """They judge again: a candidate that a strict gate blocked would get a green check run."""
    benchgate = FakeBenchgate(PASSES)
    found = run_gate(tmp_path, benchgate, args=args)
    assert not found.green and benchgate.calls == []


@pytest.mark.parametrize(
    ("store", "of_the_job", "expected"),
    [
        ("postgresql://u:secret@db/runs", {}, "postgresql://u:secret@db/runs"),
        ("", {}, "{temp}/benchgate/benchgate.db"),  # none that a checkout can bring along
        ("", {"BENCHGATE_STORE": ""}, "{temp}/benchgate/benchgate.db"),
        ("", {"BENCHGATE_STORE": "postgresql://u:secret@db/job"}, "postgresql://u:secret@db/job"),
        ("runs of mine.db", {"BENCHGATE_STORE": "job.db"}, "runs of mine.db"),
    ],
)
def test_the_store_reaches_benchgate_without_showing_in_the_process_list(
    tmp_path: Path, store: str, of_the_job: dict[str, str], expected: str
) -> None:
    benchgate = FakeBenchgate(PASSES)
    run_gate(tmp_path, benchgate, of_the_job, store=store)
    assert benchgate.environment["BENCHGATE_STORE"] == expected.format(temp=tmp_path)
    assert not any(part in argument for argument in benchgate.calls[0] for part in ("--store", "u:secret"))


def test_outputs_of_benchgate_reach_the_caller(tmp_path: Path) -> None:
    lines = ["report-path=r.html", "report-sha256=abc", "statement-path=s.json", f"summary-json={SUMMARY}"]
    benchgate = FakeBenchgate(ends(0, "verdict=pass", "run-id=0199", *lines, "checks-failed=ttft"))
    assert run_gate(tmp_path, benchgate, bundle_folder="kept").outputs == {
        "verdict": "pass",
        "exit-code": "0",
        "run-id": "0199",
        "report-path": "r.html",
        "report-sha256": "abc",
        "statement-path": "s.json",
        "bundle-path": "kept/0199.json",
        "summary-json": SUMMARY,
        "checks-failed": "ttft",
    }
    assert benchgate.calls[1:] == [["store", "export", "--to=kept", "--", "0199"]]


def test_the_outputs_of_the_action_are_those_of_its_gate_and_a_gate_that_was_not_reached_is_an_error() -> None:
    outputs = {name: spec["value"] for name, spec in ACTION["outputs"].items()}
    assert outputs.pop("verdict") == "${{ steps.gate.outputs.verdict || 'error' }}"
    assert outputs == {name: f"${{{{ steps.gate.outputs.{name} }}}}" for name in outputs}


@pytest.mark.parametrize(
    ("run", "fails", "verdict", "exit_code"),
    [
        (PASSES, "store", "error", "13"),
        (ends(0, "verdict=pass"), "", "error", "13"),  # of which run?
        (ends(0, "verdict=pass", "run-id=../0199"), "", "error", "13"),
        (ends(10, "run-id=0199"), "store", "block", "10"),
    ],
)
def test_a_run_that_cannot_be_handed_on_lets_nothing_through(
    tmp_path: Path, run: object, fails: str, verdict: str, exit_code: str
) -> None:
    assert callable(run)
    result = run_gate(tmp_path, FakeBenchgate(run, fails), bundle_folder="kept")
    assert (result.green, result.outputs["verdict"], result.outputs["exit-code"]) == (False, verdict, exit_code)
    assert result.outputs["bundle-path"] == ""


@pytest.mark.parametrize(
    ("status", "fails", "summary", "kept"),
    [
        (0, "", SUMMARY, True),
        (0, "store", SUMMARY, False),  # decided, but the bundle could not be written
        (1, "", SUMMARY, False),  # a crash after the verdict
        (137, "", SUMMARY, False),
        (10, "", SUMMARY, False),
        (10, "", '{"exit_code": 10, "promotes": false, "verdict": "block"}', True),
        (13, "", '{"exit_code": 13, "promotes": false, "verdict": "error"}', True),
        (0, "", "[]", False),
    ],
)
def test_a_summary_that_contradicts_the_verdict_is_not_handed_on(
    tmp_path: Path, status: int, fails: str, summary: str, kept: bool
) -> None:
    benchgate = FakeBenchgate(ends(status, "verdict=pass", "run-id=0199", f"summary-json={summary}"), fails)
    assert run_gate(tmp_path, benchgate, bundle_folder="kept").outputs["summary-json"] == (summary if kept else "")


def test_nothing_is_told_to_github_before_benchgate_has_ended(tmp_path: Path) -> None:
    """A step that is killed after its verdict keeps `error`, which the shell wrote first."""

    def run(environment: Mapping[str, str]) -> int:
        PASSES(environment)
        assert (tmp_path / "github_output").read_text(encoding="utf-8") == ""
        return 0

    assert run_gate(tmp_path, FakeBenchgate(run)).green


def test_outputs_of_other_programs_do_not_reach_the_caller(tmp_path: Path) -> None:
    """A command of the suite knows the file too: it says pass, and begins a text that swallows all that follows."""
    lines = ["verdict=pass", "mine=1", "mine<<exit-code=10", "report-path=a\rverdict=pass"]
    result = run_gate(tmp_path, FakeBenchgate(ends(10, *lines)), fail_on="never")
    assert (result.green, result.outputs["verdict"], "mine" in result.outputs) == (True, "block", False)
    assert result.outputs["report-path"] == ""


def test_variables_reach_benchgate_and_are_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchgate = FakeBenchgate(PASSES)
    assert run_gate(tmp_path, benchgate, variables="MODEL_API_KEY=se%cret=1 $(id)\r\n\nSHORT=abc\n").green
    assert (benchgate.environment["MODEL_API_KEY"], benchgate.environment["SHORT"]) == ("se%cret=1 $(id)", "abc")
    assert capsys.readouterr().out == "::add-mask::se%25cret=1 $(id)\n"


@pytest.mark.parametrize(
    "line",
    (
        *("PATH=.", "LD_PRELOAD=x.so", "BENCHGATE_STORE=x", "GITHUB_OUTPUT=x", "PYTHONPATH=x", "INPUT_SUITE=x"),
        *("A B=1", "KEY", "benchgate=true", "name=x", "=x"),
    ),
)
def test_variables_may_not_choose_what_runs(tmp_path: Path, line: str) -> None:
    benchgate = FakeBenchgate(PASSES)
    result = run_gate(tmp_path, benchgate, variables=f"OK=1\n{line}")
    assert (result.status, benchgate.calls) == (2, [])


def test_every_input_of_the_action_is_handed_on_by_the_environment() -> None:
    steps = [step for step in ACTION["runs"]["steps"] if step.get("id") != "python"]
    handed = {value for step in steps for value in step.get("env", {}).values()}
    assert {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]} - handed == {"${{ inputs.python-version }}"}


def test_benchgate_runs_as_a_process_of_its_own_and_a_signal_is_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the working folder is imported in its place."""
    (tmp_path / "benchgate.py").write_text("raise SystemExit(0)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run_benchgate(["no-such-command"], {}) == 2
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n", encoding="utf-8")
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    assert run_benchgate([], {}) == 137
