"""The reusable workflow and the demo's: what their required jobs accept, which jobs run, and what each may write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.action_steps import ACTION, GATE, ROOT, read_yaml, run_shell, step_named

pytestmark = pytest.mark.beside

SETUP = read_yaml(ROOT / ".github/actions/setup/action.yml")
DEMO = read_yaml(ROOT / ".github/workflows/gate-demo.yml")
ASKED, NOT_ASKED = ("true", "success"), ("false", "skipped")
NOT_A_FORK = (
    "(github.event_name != 'pull_request' || github.event.pull_request.head.repo.full_name == github.repository)"
)


def condition(job: str) -> str:
    """The `if` of a job of the reusable workflow, on one line."""
    return " ".join(GATE["jobs"][job]["if"].split())


@pytest.mark.parametrize(
    ("gate", "verdict", "publish", "promote", "good"),
    [
        ("success", "pass", ASKED, NOT_ASKED, True),
        ("success", "warn", ASKED, NOT_ASKED, True),
        ("success", "pass", NOT_ASKED, NOT_ASKED, True),
        ("success", "pass", ASKED, ASKED, True),
        ("failure", "block", ASKED, NOT_ASKED, False),
        ("failure", "inconclusive", ASKED, NOT_ASKED, False),
        ("failure", "invalid", ASKED, NOT_ASKED, False),
        ("failure", "error", ASKED, NOT_ASKED, False),
        ("failure", "pass", ASKED, NOT_ASKED, False),  # passed, and then its report was not kept
        ("skipped", "", ASKED, NOT_ASKED, False),
        ("cancelled", "error", ASKED, NOT_ASKED, False),  # a newer call of its group took its place, or its time was up
        ("success", "", ASKED, NOT_ASKED, False),
        ("success", "pass\nblock", ASKED, NOT_ASKED, False),
        ("success", "inconclusive", ASKED, NOT_ASKED, False),  # told not to fail
        ("success", "pass", ("true", "failure"), NOT_ASKED, False),
        ("success", "pass", ("true", "cancelled"), NOT_ASKED, False),
        ("success", "pass", ("true", "skipped"), NOT_ASKED, False),  # as after a change from a fork
        ("success", "pass", ASKED, ("true", "failure"), False),  # nobody approved, or the run failed a second look
        ("success", "pass", ASKED, ("true", "cancelled"), False),
        ("success", "pass", ASKED, ("true", "skipped"), False),
        ("success", "pass", ASKED, ("false", "success"), False),
    ],
)
def test_the_required_job_is_good_only_after_a_gate_that_passed_and_all_that_was_asked_for(
    tmp_path: Path, gate: str, verdict: str, publish: tuple[str, str], promote: tuple[str, str], good: bool
) -> None:
    step = step_named(GATE["jobs"]["verdict"], "guard")
    env = {
        "GATE": gate,
        "VERDICT": verdict,
        "PUBLISH_ASKED": publish[0],
        "PUBLISH": publish[1],
        "PROMOTE_ASKED": promote[0],
        "PROMOTE": promote[1],
    }
    assert set(env) == set(step["env"])
    assert run_shell(tmp_path, step["run"], env).green is good


def test_the_required_job_always_runs_and_looks_at_every_job_that_decides() -> None:
    """GitHub takes a required job that was skipped for a good one."""
    job = GATE["jobs"]["verdict"]
    assert (job["if"], set(job["needs"])) == ("${{ always() }}", {"gate", "publish", "promote"})
    assert step_named(job, "guard")["env"] == {
        "GATE": "${{ needs.gate.result }}",
        "VERDICT": "${{ needs.gate.outputs.verdict }}",
        "PUBLISH": "${{ needs.publish.result }}",
        "PUBLISH_ASKED": "${{ inputs.check-run || (inputs.comment && github.event_name == 'pull_request') }}",
        "PROMOTE": "${{ needs.promote.result }}",
        "PROMOTE_ASKED": "${{ inputs.environment != '' }}",
    }


def test_only_a_gate_that_passed_and_was_told_comes_before_the_environment() -> None:
    assert set(GATE["jobs"]["promote"]["needs"]) == {"gate", "publish"}
    assert condition("promote") == (
        "${{ !cancelled() && inputs.environment != '' && needs.gate.result == 'success'"
        " && (needs.gate.outputs.verdict == 'pass' || needs.gate.outputs.verdict == 'warn')"
        " && (needs.publish.result == 'success' || needs.publish.result == 'skipped') }}"
    )


def test_a_verdict_of_any_kind_is_told_where_that_was_asked_for_and_never_of_a_fork() -> None:
    """The token of a change from a fork may not write."""
    told = "inputs.check-run || (inputs.comment && github.event_name == 'pull_request')"
    assert condition("publish") == f"${{{{ always() && ({told}) && {NOT_A_FORK} }}}}"


def test_the_check_of_an_earlier_attempt_is_taken_back_before_anything_else() -> None:
    assert "needs" not in GATE["jobs"]["begin"]
    assert "begin" in GATE["jobs"]["publish"]["needs"]
    assert condition("begin") == f"${{{{ inputs.check-run && {NOT_A_FORK} }}}}"


def test_two_loads_of_one_suite_never_run_at_once() -> None:
    group = GATE["jobs"]["gate"]["concurrency"]
    assert group["cancel-in-progress"] is False
    assert group["group"] == "benchgate-${{ inputs.concurrency-group || inputs.suite }}"


def test_only_the_jobs_that_tell_may_write_and_they_run_nothing_of_the_callers() -> None:
    writing = {
        name: {scope for scope, access in job["permissions"].items() if access == "write"}
        for name, job in GATE["jobs"].items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing == {"begin": {"checks"}, "publish": {"pull-requests", "checks"}}
    for name in writing:
        steps = GATE["jobs"][name]["steps"]
        programs = {step["uses"].split("@")[0] if "uses" in step else step["run"].split()[0] for step in steps}
        assert programs == {
            "actions/checkout",
            "./benchgate-action/.github/actions/setup",
            "./benchgate-action/scripts/action",
        }


def test_the_reusable_workflow_hands_its_actions_inputs_that_they_have() -> None:
    assert set(step_named(GATE["jobs"]["gate"], "gate")["with"]) <= set(ACTION["inputs"])
    for job in ("publish", "promote"):
        assert set(step_named(GATE["jobs"][job], "setup")["with"]) == set(SETUP["inputs"])


@pytest.mark.parametrize("job", ["publish", "promote"])
def test_later_jobs_take_the_very_evidence_that_the_gate_left_and_nothing_else_of_its_name(job: str) -> None:
    assert GATE["jobs"]["gate"]["outputs"]["evidence-id"] == "${{ steps.evidence.outputs.artifact-id }}"
    assert step_named(GATE["jobs"]["gate"], "evidence")["with"]["path"] == "${{ runner.temp }}/benchgate-evidence"
    handed = step_named(GATE["jobs"][job], "setup")["with"]
    assert handed["evidence-id"] == "${{ needs.gate.outputs.evidence-id }}"
    step = step_named(SETUP["runs"], "evidence")
    assert step["with"] == {"artifact-ids": "${{ inputs.evidence-id }}", "path": "evidence"}
    assert step["if"] == "${{ inputs.evidence-id != '' }}"  # without an id everything would be downloaded


def test_the_history_is_read_only_where_a_branch_keeps_it() -> None:
    assert step_named(SETUP["runs"], "history")["if"] == "${{ inputs.history-branch != '' }}"
    handed = {job: step_named(GATE["jobs"][job], "setup")["with"]["history-branch"] for job in ("publish", "promote")}
    assert handed == {
        "publish": "${{ needs.gate.outputs.run-id != '' && inputs.history-branch || '' }}",
        "promote": "${{ inputs.history-branch }}",
    }


@pytest.mark.parametrize("name", ["gate", "history", "attest"])
def test_the_demo_calls_the_reusable_workflows_as_they_can_be_called(name: str) -> None:
    job = DEMO["jobs"][name]
    called = read_yaml(ROOT / job["uses"])
    assert set(job["with"]) <= set(called["on"]["workflow_call"]["inputs"])
    for inner in called["jobs"].values():  # GitHub refuses to start a call that permits less than its jobs ask for
        assert dict(inner.get("permissions") or {}).items() <= job["permissions"].items()


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
def test_the_demos_required_job_is_green_only_after_a_gate_that_ran_and_passed(
    tmp_path: Path, gate: str, harmful: str, verdict: str, green: bool
) -> None:
    step = step_named(DEMO["jobs"]["promote"], "guard")
    assert step["env"] == {
        "GATE": "${{ needs.gate.result }}",
        "HARMFUL": "${{ needs.harmful.result }}",
        "VERDICT": "${{ needs.gate.outputs.verdict }}",
    }
    assert run_shell(tmp_path, step["run"], {"GATE": gate, "HARMFUL": harmful, "VERDICT": verdict}).green is green


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
    step = step_named(DEMO["jobs"]["harmful"], "stopped")
    assert step["env"] == {"OUTCOME": "${{ steps.gate.outcome }}", "VERDICT": "${{ steps.gate.outputs.verdict }}"}
    assert run_shell(tmp_path, step["run"], {"OUTCOME": outcome, "VERDICT": verdict}).green is green


def test_the_demos_required_job_runs_whatever_happened_before_it() -> None:
    promote = DEMO["jobs"]["promote"]
    assert promote["if"] == "${{ always() }}"
    assert set(promote["needs"]) == {"gate", "harmful"}  # history and signature are kept of any verdict


def test_the_demo_names_deployments_that_exist() -> None:
    suite = read_yaml(ROOT / "suites/demo.yaml")
    for inputs in (DEMO["jobs"]["gate"]["with"], step_named(DEMO["jobs"]["harmful"], "gate")["with"]):
        assert inputs["candidate"] in suite["deployments"]
        assert (ROOT / inputs["suite"]).is_file()
    assert set(step_named(DEMO["jobs"]["harmful"], "gate")["with"]) <= set(ACTION["inputs"])
