"""The reusable workflow and the demo's: what their required jobs accept, which jobs run, and what each may write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.action_steps import ACTION, GATE, ROOT, read_yaml, run_shell, step_named

pytestmark = pytest.mark.beside

ATTEST = read_yaml(ROOT / ".github/workflows/attest.yml")["jobs"]["attest"]
KEEP = read_yaml(ROOT / ".github/workflows/history.yml")["jobs"]["keep"]
DEMO = read_yaml(ROOT / ".github/workflows/gate-demo.yml")
SETUP = read_yaml(ROOT / ".github/actions/setup/action.yml")
GATE_JOBS = GATE["jobs"]
ASKED, NOT_ASKED = ("true", "success"), ("false", "skipped")


def guard_env(
    gate: str = "success",
    verdict: str = "pass",
    *,
    begin: tuple[str, str] = ASKED,
    publish: tuple[str, str] = ASKED,
    promote: tuple[str, str] = NOT_ASKED,
) -> dict[str, str]:
    """Return the variables of the required job; of other jobs, whether they were asked for and how they ended."""
    found = {"GATE": gate, "VERDICT": verdict}
    for name, (asked, result) in {"BEGIN": begin, "PUBLISH": publish, "PROMOTE": promote}.items():
        found |= {f"{name}_ASKED": asked, name: result}
    return found


@pytest.mark.parametrize(
    ("gate", "verdict", "publish", "promote", "good"),
    [
        ("success", "pass", ASKED, NOT_ASKED, True),
        ("success", "warn", NOT_ASKED, ASKED, True),
        ("failure", "block", ASKED, NOT_ASKED, False),
        ("failure", "pass", ASKED, NOT_ASKED, False),  # passed, and then its report was not kept
        ("skipped", "", ASKED, NOT_ASKED, False),
        ("cancelled", "error", ASKED, NOT_ASKED, False),  # a newer call of its group took its place, or its time was up
        ("success", "", ASKED, NOT_ASKED, False),
        ("success", "pass\nblock", ASKED, NOT_ASKED, False),
        ("success", "inconclusive", ASKED, NOT_ASKED, False),  # by fail-on
        ("success", "pass", ("true", "failure"), NOT_ASKED, False),
        ("success", "pass", ("true", "skipped"), NOT_ASKED, False),  # as after a change from a fork
        ("success", "pass", ASKED, ("true", "failure"), False),  # nobody approved, or the second judgement said no
        ("success", "pass", ASKED, ("true", "cancelled"), False),
        ("success", "pass", ASKED, ("true", "skipped"), False),
        ("success", "pass", ASKED, ("false", "success"), False),
    ],
)
def test_the_required_job_is_good_only_after_a_gate_that_passed_and_all_that_was_asked_for(
    tmp_path: Path, gate: str, verdict: str, publish: tuple[str, str], promote: tuple[str, str], good: bool
) -> None:
    env = guard_env(gate, verdict, publish=publish, promote=promote)
    step = step_named(GATE_JOBS["verdict"], "guard")
    assert set(env) == set(step["env"])
    assert run_shell(tmp_path, step["run"], env).green is good


@pytest.mark.parametrize(
    ("begin", "good"),
    [
        (ASKED, True),
        (NOT_ASKED, True),
        (("true", "failure"), False),  # the check run of an earlier attempt may still be green
        (("true", "cancelled"), False),
        (("true", "skipped"), False),
        (("true", ""), False),
    ],
)
def test_the_required_job_is_good_only_if_the_check_run_was_set_in_progress(
    tmp_path: Path, begin: tuple[str, str], good: bool
) -> None:
    guard = step_named(GATE_JOBS["verdict"], "guard")["run"]
    assert run_shell(tmp_path, guard, guard_env(begin=begin)).green is good


def test_the_required_job_always_runs_and_looks_at_every_job_that_decides() -> None:
    """GitHub takes a required job that was skipped for a good one."""
    job = GATE_JOBS["verdict"]
    assert (job["if"], set(job["needs"])) == ("${{ always() }}", {"begin", "gate", "publish", "promote"})
    assert step_named(job, "guard")["env"] == {
        "BEGIN": "${{ needs.begin.result }}",
        "BEGIN_ASKED": "${{ inputs.check-run }}",
        "GATE": "${{ needs.gate.result }}",
        "VERDICT": "${{ needs.gate.outputs.verdict }}",
        "PUBLISH": "${{ needs.publish.result }}",
        "PUBLISH_ASKED": "${{ inputs.check-run || (inputs.comment && github.event_name == 'pull_request') }}",
        "PROMOTE": "${{ needs.promote.result }}",
        "PROMOTE_ASKED": "${{ inputs.environment != '' }}",
    }


def test_jobs_run_only_when_they_may() -> None:
    """Nothing is published for a fork, whose token may not write; only a gate that passed is promoted."""
    no_fork = (
        "github.event_name != 'pull_request' || github.event.pull_request.head.repo.full_name == github.repository"
    )
    publishes = "inputs.check-run || (inputs.comment && github.event_name == 'pull_request')"
    assert {name: " ".join(GATE_JOBS[name]["if"].split()) for name in ("begin", "publish", "promote")} == {
        "begin": f"${{{{ inputs.check-run && ({no_fork}) }}}}",
        "publish": f"${{{{ always() && ({publishes}) && ({no_fork}) }}}}",
        "promote": "${{ !cancelled() && inputs.environment != '' && needs.gate.result == 'success'"
        " && (needs.begin.result == 'success' || needs.begin.result == 'skipped')"
        " && (needs.gate.outputs.verdict == 'pass' || needs.gate.outputs.verdict == 'warn')"
        " && (needs.publish.result == 'success' || needs.publish.result == 'skipped') }}",
    }
    assert set(GATE_JOBS["promote"]["needs"]) == {"begin", "gate", "publish"}
    assert "begin" in GATE_JOBS["publish"]["needs"]
    assert "needs" not in GATE_JOBS["begin"]  # the check of an earlier attempt is withdrawn before anything else


def test_two_loads_of_one_suite_never_run_at_once() -> None:
    group = "benchgate-${{ inputs.concurrency-group || inputs.suite }}"
    assert GATE_JOBS["gate"]["concurrency"] == {"group": group, "cancel-in-progress": False}


def test_only_the_jobs_that_publish_may_write_and_they_run_nothing_of_the_callers() -> None:
    writing = {
        name: {scope for scope, access in job["permissions"].items() if access == "write"}
        for name, job in GATE_JOBS.items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing == {"begin": {"checks"}, "publish": {"pull-requests", "checks"}}
    for name in writing:
        steps = GATE_JOBS[name]["steps"]
        programs = {step["uses"].split("@")[0] if "uses" in step else step["run"].split()[0] for step in steps}
        ours = {f"./benchgate-action/{path}" for path in (".github/actions/setup", "scripts/action")}
        assert programs == {"actions/checkout", *ours}


def test_later_jobs_take_the_very_evidence_that_the_gate_left_and_nothing_else_of_its_name() -> None:
    assert GATE_JOBS["gate"]["outputs"]["evidence-id"] == "${{ steps.evidence.outputs.artifact-id }}"
    assert step_named(GATE_JOBS["gate"], "evidence")["with"]["path"] == "${{ runner.temp }}/benchgate-evidence"
    for job in ("publish", "promote"):
        handed = step_named(GATE_JOBS[job], "setup")["with"]
        assert set(handed) == set(SETUP["inputs"])
        assert handed["evidence-id"] == "${{ needs.gate.outputs.evidence-id }}"
    step = step_named(SETUP["runs"], "evidence")
    assert step["with"] == {"artifact-ids": "${{ inputs.evidence-id }}", "path": "evidence"}
    assert step["if"] == "${{ inputs.evidence-id != '' }}"  # without an id everything would be downloaded


def test_later_workflows_take_the_artifacts_of_the_gates_own_jobs_by_their_ids() -> None:
    assert GATE_JOBS["promote"]["outputs"] == {"promoted-id": "${{ steps.promoted.outputs.artifact-id }}"}
    assert step_named(GATE_JOBS["promote"], "promoted")["with"]["path"] == "promoted"
    handed = {"evidence-id": "gate", "promoted-id": "promote"}
    outputs = GATE["on"]["workflow_call"]["outputs"]
    assert {name: outputs[name]["value"] for name in handed} == {
        name: f"${{{{ jobs.{job}.outputs.{name} }}}}" for name, job in handed.items()
    }
    evidence, kept = step_named(ATTEST, "evidence")["with"], step_named(KEEP, "kept")["with"]
    assert evidence == {"artifact-ids": "${{ inputs.evidence-id }}", "path": "evidence"}
    assert kept == {"artifact-ids": "${{ inputs.evidence-id }},${{ inputs.promoted-id }}", "path": "kept"}
    for name in handed:
        assert DEMO["jobs"]["history"]["with"][name] == f"${{{{ needs.gate.outputs.{name} }}}}"
    assert DEMO["jobs"]["attest"]["with"]["evidence-id"] == "${{ needs.gate.outputs.evidence-id }}"


@pytest.mark.parametrize("job", [ATTEST, KEEP], ids=["attest", "history"])
@pytest.mark.parametrize(("evidence_id", "green"), [("5712033541", True), ("", False), ("benchgate-evidence", False)])
def test_later_workflows_refuse_whatever_is_no_id(
    tmp_path: Path, job: dict[str, Any], evidence_id: str, green: bool
) -> None:
    first, *_ = job["steps"]
    assert first["env"] == {"EVIDENCE_ID": "${{ inputs.evidence-id }}"}
    assert run_shell(tmp_path, first["run"], {"EVIDENCE_ID": evidence_id}).green is green


def test_the_reusable_workflow_hands_the_action_inputs_that_it_has() -> None:
    assert set(step_named(GATE_JOBS["gate"], "gate")["with"]) <= set(ACTION["inputs"])


@pytest.mark.parametrize("name", ["gate", "history", "attest"])
def test_the_demo_calls_the_reusable_workflows_as_they_can_be_called(name: str) -> None:
    job = DEMO["jobs"][name]
    called = read_yaml(ROOT / job["uses"])
    takes = called["on"]["workflow_call"]["inputs"]
    assert {name for name, value in takes.items() if value.get("required")} <= set(job["with"]) <= set(takes)
    for inner in called["jobs"].values():  # GitHub refuses to start a call that permits less than its jobs ask for
        assert dict(inner.get("permissions") or {}).items() <= job["permissions"].items()


@pytest.mark.parametrize(
    ("gate", "harmful", "verdict", "green"),
    [
        ("success", "success", "pass", True),
        ("success", "success", "warn", True),
        ("success", "success", "", False),
        ("success", "success", "block", False),
        ("success", "success", "pass\nblock", False),
        ("skipped", "skipped", "pass", False),
        ("failure", "success", "pass", False),
        ("success", "failure", "pass", False),
        ("", "", "", False),
    ],
)
def test_the_demos_required_job_is_green_only_after_a_gate_that_ran_and_passed(
    tmp_path: Path, gate: str, harmful: str, verdict: str, green: bool
) -> None:
    job = DEMO["jobs"]["promote"]
    assert (job["if"], set(job["needs"])) == ("${{ always() }}", {"gate", "harmful"})
    step = step_named(job, "guard")
    assert step["env"] == {
        "GATE": "${{ needs.gate.result }}",
        "HARMFUL": "${{ needs.harmful.result }}",
        "VERDICT": "${{ needs.gate.outputs.verdict }}",
    }
    assert run_shell(tmp_path, step["run"], {"GATE": gate, "HARMFUL": harmful, "VERDICT": verdict}).green is green


@pytest.mark.parametrize(
    ("outcome", "verdict", "green"),
    [("failure", "block", True), ("success", "block", False), ("failure", "error", False), ("skipped", "", False)],
)
def test_the_harmful_candidate_must_be_blocked(tmp_path: Path, outcome: str, verdict: str, green: bool) -> None:
    step = step_named(DEMO["jobs"]["harmful"], "stopped")
    assert step["env"] == {"OUTCOME": "${{ steps.gate.outcome }}", "VERDICT": "${{ steps.gate.outputs.verdict }}"}
    assert run_shell(tmp_path, step["run"], {"OUTCOME": outcome, "VERDICT": verdict}).green is green


def test_the_demo_names_deployments_that_exist() -> None:
    suite = read_yaml(ROOT / "suites/demo.yaml")
    harmful = step_named(DEMO["jobs"]["harmful"], "gate")["with"]
    assert set(harmful) <= set(ACTION["inputs"])
    for inputs in (DEMO["jobs"]["gate"]["with"], harmful):
        assert inputs["candidate"] in suite["deployments"]
        assert (ROOT / inputs["suite"]).is_file()
