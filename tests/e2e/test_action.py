"""The composite action and the demo's workflow never go green unless benchgate said PASS or WARN and exited with 0."""

from __future__ import annotations

import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.github_runner import ROOT, StepResult, evaluate, read_yaml, run_step

pytestmark = pytest.mark.beside


ACTION = read_yaml(ROOT / "action.yml")
WORKFLOW = read_yaml(ROOT / ".github/workflows/gate-demo.yml")

# A stand-in for the installed program: keeps its arguments and its store, then does what the test wrote into it.
FAKE_BENCHGATE = """#!/usr/bin/env bash
printf '%s\\n' "$@" >"$(dirname -- "$0")/arguments"
printf '%s\\n' "${{BENCHGATE_STORE-none}}" >"$(dirname -- "$0")/store"
{body}
"""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What the job that uses the action sees."""

    green: bool
    outputs: dict[str, str]
    gate: StepResult | None
    arguments: list[str]


def run_action(
    scratch: Path, body: str, *, install: str = "exit 0", job: dict[str, str] | None = None, **inputs: str
) -> ActionResult:
    """Run the action's own steps in order, in a job with the variables `job`, with `body` in benchgate's place."""
    checkout = scratch / "action"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    write_program(checkout / "scripts/install", f"#!/usr/bin/env bash\n{install}\n")
    write_program(checkout / ".venv/bin/benchgate", FAKE_BENCHGATE.format(body=body))
    context = {f"inputs.{name}": str(spec.get("default", "")) for name, spec in ACTION["inputs"].items()}
    context |= {f"inputs.{name.replace('_', '-')}": value for name, value in {"suite": "suite.yaml", **inputs}.items()}
    results: dict[str, StepResult] = {}
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            continue  # setting up Python is GitHub's own
        extra = {**(job or {}), "GITHUB_ACTION_PATH": str(checkout)}
        result = results[step["id"]] = run_step(step, context, scratch / step["id"], extra)
        context |= {f"steps.{step['id']}.outputs.{name}": value for name, value in result.outputs.items()}
        if not result.green:
            break
    outputs = {name: evaluate(spec["value"], context) for name, spec in ACTION["outputs"].items()}
    arguments = checkout / ".venv/bin/arguments"
    return ActionResult(
        green=all(result.green for result in results.values()) and "gate" in results,
        outputs=outputs,
        gate=results.get("gate"),
        arguments=arguments.read_text(encoding="utf-8").splitlines() if arguments.exists() else [],
    )


def write_program(path: Path, text: str) -> None:
    """Write an executable file, replacing what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def says(verdict: str, then: str) -> str:
    """A benchgate that publishes a verdict the way the real one does, then ends as told."""
    return (
        f'echo "verdict={verdict}" >>"$GITHUB_OUTPUT"\n'
        f'echo "run-id=0199" >>"$GITHUB_OUTPUT"\n'
        f'echo "# {verdict}" >>"$GITHUB_STEP_SUMMARY"\n{then}'
    )


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
    result = run_action(tmp_path, body)
    assert (result.green, result.outputs["verdict"], result.outputs["exit-code"]) == (green, verdict, exit_code)


def test_a_missing_benchgate_is_red_and_an_error(tmp_path: Path) -> None:
    result = run_action(tmp_path, "exit 0", install='rm "$GITHUB_ACTION_PATH/.venv/bin/benchgate"')
    assert (result.green, result.outputs["verdict"]) == (False, "error")


def test_a_failed_installation_is_red_and_an_error(tmp_path: Path) -> None:
    result = run_action(tmp_path, says("pass", "exit 0"), install="exit 1")
    assert (result.green, result.outputs["verdict"], result.gate) == (False, "error", None)


def test_a_gate_killed_with_its_shell_leaves_the_verdict_error(tmp_path: Path) -> None:
    result = run_action(tmp_path, "kill -KILL $PPID")
    assert (result.green, result.outputs["verdict"]) == (False, "error")


def test_a_death_without_verdict_is_said_in_the_job_summary(tmp_path: Path) -> None:
    result = run_action(tmp_path, "exit 1")
    assert result.gate is not None
    assert "status 1" in result.gate.summary
    assert "Not promoted" in result.gate.summary
    assert "::error" in result.gate.printed


def test_inputs_reach_benchgate_as_single_arguments(tmp_path: Path) -> None:
    hostile = "a b; $(touch /nowhere) `id` \"quoted\" '*'"
    result = run_action(
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
    assert result.arguments == [
        "run",
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
        ("", {}, "none"),
        ("", {"BENCHGATE_STORE": ""}, "none"),
        ("", {"BENCHGATE_STORE": "postgresql://u:secret@db/job"}, "postgresql://u:secret@db/job"),
        ("runs of mine.db", {"BENCHGATE_STORE": "job.db"}, "runs of mine.db"),
    ],
)
def test_the_store_reaches_benchgate_without_showing_in_the_process_list(
    tmp_path: Path, given: str, of_the_job: dict[str, str], seen: str
) -> None:
    result = run_action(tmp_path, says("pass", "exit 0"), store=given, job=of_the_job)
    assert (tmp_path / "action/.venv/bin/store").read_text(encoding="utf-8").strip() == seen
    assert not any("store" in argument or "secret" in argument for argument in result.arguments)


@pytest.mark.parametrize("inputs", [{"suite": ""}, {"strict": "yes"}, {"strict": "True"}])
def test_a_wrong_input_is_refused_before_benchgate_runs(tmp_path: Path, inputs: dict[str, Any]) -> None:
    result = run_action(tmp_path, says("pass", "exit 0"), **inputs)
    assert (result.green, result.outputs["verdict"], result.arguments) == (False, "error", [])


def test_what_benchgate_published_reaches_the_caller(tmp_path: Path) -> None:
    more = 'printf "report-path=r.html\\nreport-sha256<<EOT\\nabc\\nEOT\\n" >>"$GITHUB_OUTPUT"'
    result = run_action(tmp_path, says("pass", more))
    assert result.outputs == {
        "verdict": "pass",
        "exit-code": "0",
        "run-id": "0199",
        "report-path": "r.html",
        "report-sha256": "abc",
    }


def step_named(job: str, name: str) -> Any:
    """The step of a job of the demo's workflow that has the id `name`."""
    return next(step for step in WORKFLOW["jobs"][job]["steps"] if step.get("id") == name)


@pytest.mark.parametrize(
    ("gate", "harmful", "verdict", "green"),
    [
        ("success", "success", "pass", True),
        ("success", "success", "warn", True),
        ("success", "success", "", False),
        ("success", "success", "error", False),
        ("success", "success", "block", False),
        ("success", "success", "inconclusive", False),
        ("success", "success", "invalid", False),
        ("success", "success", "pass\nblock", False),
        ("skipped", "success", "", False),
        ("skipped", "skipped", "pass", False),
        ("failure", "success", "pass", False),
        ("cancelled", "success", "pass", False),
        ("success", "failure", "pass", False),
        ("", "", "", False),
    ],
)
def test_the_required_job_is_green_only_after_a_gate_that_ran_and_passed(
    tmp_path: Path, gate: str, harmful: str, verdict: str, green: bool
) -> None:
    context = {
        "needs.gate.result": gate,
        "needs.harmful.result": harmful,
        "needs.gate.outputs.verdict": verdict,
    }
    assert run_step(step_named("promote", "guard"), context, tmp_path).green is green


@pytest.mark.parametrize(
    ("outcome", "verdict", "green"),
    [
        ("failure", "block", True),
        ("success", "block", False),
        ("success", "pass", False),
        ("failure", "error", False),
        ("failure", "inconclusive", False),
        ("skipped", "", False),
    ],
)
def test_the_harmful_candidate_must_be_blocked(tmp_path: Path, outcome: str, verdict: str, green: bool) -> None:
    context = {"steps.gate.outcome": outcome, "steps.gate.outputs.verdict": verdict}
    assert run_step(step_named("harmful", "stopped"), context, tmp_path).green is green


def test_the_required_job_runs_whatever_happened_before_it() -> None:
    promote = WORKFLOW["jobs"]["promote"]
    assert promote["if"] == "${{ always() }}"
    assert set(promote["needs"]) == set(WORKFLOW["jobs"]) - {"promote"}


def test_the_workflow_names_inputs_and_deployments_that_exist() -> None:
    suite = read_yaml(ROOT / "suites/demo.yaml")
    for job in ("gate", "harmful"):
        inputs = step_named(job, "gate")["with"]
        assert set(inputs) <= set(ACTION["inputs"])
        assert inputs["candidate"] in suite["deployments"]
        assert (ROOT / inputs["suite"]).is_file()
