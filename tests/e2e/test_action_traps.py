"""The ways in which a gate of a CI goes green when it should not, one by one, against the action's own shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ci_scripts import (
    ACTION,
    REPOSITORY,
    ROOT,
    arguments_of,
    put_scripts,
    read_yaml,
    run_gate,
    run_script,
    says,
)

pytestmark = pytest.mark.beside

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PASSES = says("pass", "exit 0")


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.name)
def test_no_step_leaves_its_shell_to_the_default(path: Path) -> None:
    """The default has no pipefail: `benchgate run | tee log` would be green whatever benchgate says."""
    document = read_yaml(path)
    holders = [document["runs"]] if "runs" in document else document["jobs"].values()
    steps = [step for holder in holders for step in holder.get("steps", ())]
    assert {step["shell"] for step in steps if "run" in step} <= {"bash"}


def test_a_block_stays_one_though_what_is_printed_reads_like_a_pass(tmp_path: Path) -> None:
    body = says("block", """echo '{"verdict": "PASS", "exit_code": 0}'; exit 10""")
    result = run_gate(tmp_path, body, args="--format json")
    assert (result.green, result.outputs["verdict"], result.outputs["exit-code"]) == (False, "block", "10")


@pytest.mark.parametrize("said", ["", says("pass", "")], ids=["nothing said", "pass said"])
def test_a_gate_that_is_killed_with_its_shell_leaves_the_verdict_error(tmp_path: Path, said: str) -> None:
    result = run_gate(tmp_path, f"{said}\nkill -KILL $PPID")
    assert (result.green, result.outputs) == (False, {"verdict": "error"})


def test_a_gate_that_meets_its_time_limit_after_its_verdict_leaves_the_verdict_error(tmp_path: Path) -> None:
    said = tmp_path / "said"
    result = run_gate(tmp_path, says("pass", f"touch {said}; sleep 600"), kill_at=said)
    assert (result.green, result.outputs) == (False, {"verdict": "error"})


@pytest.mark.parametrize(
    ("body", "inputs", "green", "verdict"),
    [
        ("exit 11", {}, False, "inconclusive"),  # a comparison that could not be made is no pass
        ("exit 11", {"fail_on_inconclusive": "false"}, True, "inconclusive"),
        ("exit 10", {"fail_on_inconclusive": "false"}, False, "block"),
        ("exit 12", {"fail_on_inconclusive": "false"}, False, "invalid"),
        (says("pass", "exit 1"), {"fail_on_inconclusive": "false"}, False, "error"),
        ("exit 10", {"mode": "advisory"}, True, "block"),
        ("exit 12", {"mode": "advisory"}, True, "invalid"),
        (says("pass", "exit 13"), {"mode": "advisory"}, False, "error"),
        ("exit 0", {"mode": "advisory"}, False, "error"),
    ],
)
def test_a_step_that_was_told_to_go_on_still_never_says_pass(
    tmp_path: Path, body: str, inputs: dict[str, Any], green: bool, verdict: str
) -> None:
    result = run_gate(tmp_path, body, **inputs)
    assert (result.green, result.outputs["verdict"]) == (green, verdict)
    assert result.outputs["exit-code"] != "0"


@pytest.mark.parametrize(
    "inputs", [{"mode": "Advisory"}, {"mode": "off"}, {"fail_on_inconclusive": "no"}, {"fail_on_inconclusive": "0"}]
)
def test_a_word_that_might_mean_do_not_stop_is_refused(tmp_path: Path, inputs: dict[str, Any]) -> None:
    result = run_gate(tmp_path, PASSES, **inputs)
    assert (result.green, result.outputs["verdict"], arguments_of(tmp_path)) == (False, "error", [])


@pytest.mark.parametrize(
    ("event", "head", "why"),
    [
        ("pull_request", "stranger/models", "comes from another repository"),
        ("pull_request", "octo/models-fork", "comes from another repository"),  # the same owner's
        ("pull_request", "", "comes from another repository"),  # a fork that is gone
        ("workflow_run", "stranger/models", "another repository"),
        ("pull_request_target", REPOSITORY, "pull_request_target"),
        ("issue_comment", "", "workflow_dispatch"),
        ("issues", "", "event issues"),
        ("an_event_to_come", REPOSITORY, "event an_event_to_come"),
    ],
)
def test_a_change_from_outside_is_refused_with_the_reason(tmp_path: Path, event: str, head: str, why: str) -> None:
    put_scripts(tmp_path / "benchgate-action")
    done = run_script(tmp_path, "ci-admit", GITHUB_EVENT_NAME=event, BENCHGATE_HEAD_REPOSITORY=head)
    assert (done.status, why in done.printed) == (2, True)


@pytest.mark.parametrize(
    ("event", "head"),
    [
        ("pull_request", REPOSITORY),
        ("workflow_run", REPOSITORY),
        ("merge_group", ""),
        ("release", ""),
        ("schedule", ""),
    ],
)
def test_a_change_of_the_repository_itself_is_measured(tmp_path: Path, event: str, head: str) -> None:
    put_scripts(tmp_path / "benchgate-action")
    assert run_script(tmp_path, "ci-admit", GITHUB_EVENT_NAME=event, BENCHGATE_HEAD_REPOSITORY=head).green


def test_a_change_is_admitted_before_anything_is_installed_read_or_sent() -> None:
    admit, *later = ACTION["runs"]["steps"]
    assert "if" not in admit and admit["run"].endswith('/scripts/ci-admit"')
    assert admit["env"]["BENCHGATE_HEAD_REPOSITORY"] == (
        "${{ github.event.pull_request.head.repo.full_name || github.event.workflow_run.head_repository.full_name }}"
    )
    conditions = [step.get("if", "") for step in later]
    assert not any(word in condition for condition in conditions for word in ("always()", "failure()", "cancelled()"))


def test_variables_reach_benchgate_and_are_masked(tmp_path: Path) -> None:
    lines = "MODEL_API_KEY=se%cret=1 $(id)\r\n\nSHORT=abc\n"
    body = f'printf "%s|%s|%s" "$MODEL_API_KEY" "$SHORT" "${{BENCHGATE_VARIABLES-gone}}" >{tmp_path}/seen\n{PASSES}'
    result = run_gate(tmp_path, body, variables=lines)
    assert result.green
    assert (tmp_path / "seen").read_text(encoding="utf-8") == "se%cret=1 $(id)|abc|gone"
    assert [line for line in result.printed.splitlines() if "secret" in line.replace("%25", "")] == [
        "::add-mask::se%25cret=1 $(id)"
    ]


@pytest.mark.parametrize(
    "line",
    ["PATH=.", "LD_PRELOAD=x.so", "BENCHGATE_STORE=x", "GITHUB_OUTPUT=x", "A B=1", "KEY", "benchgate=true", "name=x"],
)
def test_variables_may_not_choose_what_runs(tmp_path: Path, line: str) -> None:
    result = run_gate(tmp_path, PASSES, variables=f"OK=1\n{line}")
    assert (result.green, result.outputs["verdict"], arguments_of(tmp_path)) == (False, "error", [])


def test_what_steers_the_jobs_own_python_does_not_steer_benchgate(tmp_path: Path) -> None:
    body = f"env >{tmp_path}/seen\n{PASSES}"
    assert run_gate(tmp_path, body, job={"PYTHONPATH": "src", "PYTHONOPTIMIZE": "2", "OF_THE_JOB": "1"}).green
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert "OF_THE_JOB=1\n" in seen
    assert "PYTHON" not in seen


def test_what_another_program_writes_among_the_outputs_does_not_reach_the_caller(tmp_path: Path) -> None:
    """A command of the suite knows the file too: it says pass, and begins a text that swallows all that follows."""
    lines = "verdict=pass\nmine=1\nmine<<exit-code=10"
    result = run_gate(tmp_path, f'printf "%s\\n" "{lines}" >>"$GITHUB_OUTPUT"\nexit 10', mode="advisory")
    assert (result.green, result.outputs["verdict"], "mine" in result.outputs) == (True, "block", False)


def test_files_that_are_asked_for_are_asked_of_benchgate(tmp_path: Path) -> None:
    run_gate(tmp_path, PASSES, waivers="w.yaml", junit_path="j.xml", statement_path="s.json")
    assert {"--waivers=w.yaml", "--write=junit=j.xml", "--write=intoto=s.json"} <= set(arguments_of(tmp_path))


def test_every_input_of_the_action_is_handed_on_by_the_environment() -> None:
    steps = [step for step in ACTION["runs"]["steps"] if step.get("id") != "python"]
    handed = {value for step in steps for value in step.get("env", {}).values()}
    assert {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]} - handed == {"${{ inputs.python-version }}"}
