"""The reusable workflow and the demo's: what a required check says after every way in which their jobs can end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.github_action import ACTION, run_action, says
from tests.e2e.github_expressions import Value, evaluate
from tests.e2e.github_runner import REPOSITORY, ROOT, JobResult, inputs_of, read_yaml, run_step, step_named, walk

pytestmark = pytest.mark.beside

GATE = read_yaml(ROOT / ".github/workflows/gate.yml")
DEMO = read_yaml(ROOT / ".github/workflows/gate-demo.yml")
PASSED = JobResult("success", {"verdict": "pass", "run-id": "0199"})


def played(
    scratch: Path,
    gate: JobResult = PASSED,
    *,
    publish: str = "success",
    promote: str = "success",
    workflow: Any = GATE,
    event: str = "push",
    head: str = REPOSITORY,
    cancelled_after: str | None = None,
    **inputs: Value,
) -> dict[str, JobResult]:
    """The reusable workflow, its last job for real and the others as they are said to end."""

    def guard(seen: Mapping[str, Value]) -> JobResult:
        step = step_named(workflow["jobs"]["verdict"], "guard")
        return JobResult("success" if run_step(step, seen, scratch / "guard").green else "failure")

    given = inputs_of(workflow, {"suite": "suite.yaml", **{k.replace("_", "-"): v for k, v in inputs.items()}})
    github: dict[str, Value] = {"github.event_name": event, "github.repository": REPOSITORY}
    if event == "pull_request":
        github["github.event.pull_request.head.repo.full_name"] = head
    jobs: dict[str, Callable[[Mapping[str, Value]], JobResult]] = {
        "gate": lambda seen: gate,
        "begin": lambda seen: JobResult("success"),
        "publish": lambda seen: JobResult(publish),
        "promote": lambda seen: JobResult(promote),
        "verdict": guard,
    }
    return walk(workflow, {**given, **github}, jobs, cancelled_after=cancelled_after)


@pytest.mark.parametrize(
    ("body", "good"),
    [
        (says("pass", "exit 0"), True),
        (says("warn", "exit 0"), True),
        (says("block", "exit 10"), False),
        (says("inconclusive", "exit 11"), False),
        (says("invalid", "exit 12"), False),
        (says("pass", "exit 13"), False),  # decided, and not kept
        (says("pass", "exit 1"), False),  # a crash
        (says("pass", "kill -KILL $$"), False),  # out of memory
        (says("pass", "kill -KILL $PPID"), False),  # the runner went away
    ],
)
def test_the_required_job_is_good_only_after_a_benchgate_that_passed(tmp_path: Path, body: str, good: bool) -> None:
    gate = run_action(tmp_path, body).job
    jobs = played(tmp_path, gate)
    assert jobs["verdict"].satisfies_a_rule is good
    assert (jobs["verdict"].result, gate.result) == (("success", "success") if good else ("failure", "failure"))


@pytest.mark.parametrize(
    "gate",
    [
        JobResult("skipped"),
        JobResult("cancelled", {"verdict": "error"}),  # a newer call of its group took its place, or it ran out of time
        JobResult("failure", {"verdict": "pass", "run-id": "0199"}),  # passed, and then its report was not kept
        JobResult("success"),
        JobResult("success", {"verdict": "pass\nblock"}),
        JobResult("success", {"verdict": "inconclusive", "run-id": "0199"}),  # told not to fail
    ],
)
def test_a_gate_that_did_not_say_pass_is_one_that_said_no(tmp_path: Path, gate: JobResult) -> None:
    assert played(tmp_path, gate)["verdict"].result == "failure"


def test_a_cancelled_workflow_is_no_good_one(tmp_path: Path) -> None:
    assert played(tmp_path, cancelled_after="")["verdict"].result == "failure"


def test_a_last_job_that_could_be_skipped_would_be_taken_for_a_good_one(tmp_path: Path) -> None:
    """The trap itself: without its `if`, the required job is skipped after a BLOCK, and the rule is content."""
    naive = copy.deepcopy(GATE)
    del naive["jobs"]["verdict"]["if"]
    blocked = JobResult("failure", {"verdict": "block", "run-id": "0199"})
    assert played(tmp_path, blocked, workflow=naive)["verdict"].satisfies_a_rule
    assert not played(tmp_path, blocked)["verdict"].satisfies_a_rule


@pytest.mark.parametrize("ended", ["failure", "cancelled"])
@pytest.mark.parametrize("environment", ["", "production"])
def test_a_verdict_that_could_not_be_told_promotes_nothing(tmp_path: Path, ended: str, environment: str) -> None:
    jobs = played(tmp_path, publish=ended, environment=environment)
    assert (jobs["promote"].result, jobs["verdict"].result) == ("skipped", "failure")


def test_a_promotion_that_was_cancelled_before_it_began_is_none(tmp_path: Path) -> None:
    jobs = played(tmp_path, environment="production", cancelled_after="publish")
    assert (jobs["promote"].result, jobs["verdict"].result) == ("skipped", "failure")


@pytest.mark.parametrize(
    ("promote", "verdict"),
    [("success", "success"), ("failure", "failure")],  # nobody approved, or the run did not stand a second look
)
def test_a_promotion_that_was_asked_for_must_have_been_made(tmp_path: Path, promote: str, verdict: str) -> None:
    jobs = played(tmp_path, promote=promote, environment="production")
    assert (jobs["promote"].result, jobs["verdict"].result) == (promote, verdict)


@pytest.mark.parametrize(
    "gate",
    [
        JobResult("failure", {"verdict": "block", "run-id": "0199"}),
        JobResult("success", {"verdict": "block", "run-id": "0199"}),
        JobResult("success", {"verdict": "", "run-id": "0199"}),
        JobResult("failure", {"verdict": "pass", "run-id": "0199"}),
        JobResult("cancelled", {"verdict": "pass", "run-id": "0199"}),
    ],
)
def test_only_a_gate_that_passed_comes_before_the_environment(tmp_path: Path, gate: JobResult) -> None:
    jobs = played(tmp_path, gate, environment="production")  # the job would come out well, if it ran
    assert (jobs["promote"].result, jobs["verdict"].result) == ("skipped", "failure")


def test_nothing_is_promoted_that_nobody_asked_for(tmp_path: Path) -> None:
    jobs = played(tmp_path)
    assert (jobs["promote"].result, jobs["verdict"].result) == ("skipped", "success")


@pytest.mark.parametrize(
    ("event", "inputs", "publish"),
    [
        ("push", {"check_run": False}, "skipped"),  # a push has no pull request to comment on
        ("pull_request", {"check_run": False}, "success"),
        ("pull_request", {"check_run": False, "comment": False}, "skipped"),
        ("push", {}, "success"),
    ],
)
def test_what_is_told_is_what_was_asked_for(tmp_path: Path, event: str, inputs: dict[str, Any], publish: str) -> None:
    jobs = played(tmp_path, event=event, **inputs)
    assert (jobs["publish"].result, jobs["verdict"].result) == (publish, "success")


def test_the_check_of_an_earlier_attempt_is_taken_back_before_anything_else(tmp_path: Path) -> None:
    assert "needs" not in GATE["jobs"]["begin"]
    assert "begin" in GATE["jobs"]["publish"]["needs"]
    assert played(tmp_path)["begin"].result == "success"
    assert played(tmp_path, check_run=False)["begin"].result == "skipped"


def test_a_change_from_a_fork_is_told_nowhere_for_its_token_may_not_write_and_the_rule_is_not_content(
    tmp_path: Path,
) -> None:
    jobs = played(tmp_path, JobResult("failure", {"verdict": "error"}), event="pull_request", head="stranger/models")
    assert (jobs["begin"].result, jobs["publish"].result) == ("skipped", "skipped")
    assert not jobs["verdict"].satisfies_a_rule


def test_two_loads_of_one_suite_never_run_at_once() -> None:
    group = GATE["jobs"]["gate"]["concurrency"]
    assert group["cancel-in-progress"] is False
    inputs = inputs_of(GATE, {"suite": "suites/a.yaml"})
    assert evaluate(group["group"], inputs) == "benchgate-suites/a.yaml"
    assert evaluate(group["group"], {**inputs, "inputs.concurrency-group": "gpu"}) == "benchgate-gpu"


def test_only_the_jobs_that_tell_may_write_and_they_run_nothing_of_the_callers() -> None:
    writing = {
        name: {scope for scope, access in job["permissions"].items() if access == "write"}
        for name, job in GATE["jobs"].items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing == {"begin": {"checks"}, "publish": {"pull-requests", "checks"}}
    for name in writing:
        programs = [line for step in GATE["jobs"][name]["steps"] for line in step.get("run", "").splitlines()]
        assert {line.split()[0] for line in programs if line.startswith("./")} <= {
            "./benchgate-action/scripts/install",
            "./benchgate-action/scripts/ci-history",
            "./benchgate-action/scripts/ci-publish",
        }


def test_the_reusable_workflow_hands_the_action_inputs_that_it_has() -> None:
    assert set(step_named(GATE["jobs"]["gate"], "gate")["with"]) <= set(ACTION["inputs"])


@pytest.mark.parametrize("name", ["gate", "history", "attest"])
def test_the_demo_calls_the_reusable_workflows_as_they_can_be_called(name: str) -> None:
    job = DEMO["jobs"][name]
    called = read_yaml(ROOT / job["uses"])
    inputs_of(called, job["with"])
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
    context = {
        "needs.gate.result": gate,
        "needs.harmful.result": harmful,
        "needs.gate.outputs.verdict": verdict,
    }
    assert run_step(step_named(DEMO["jobs"]["promote"], "guard"), context, tmp_path).green is green


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
    assert run_step(step_named(DEMO["jobs"]["harmful"], "stopped"), context, tmp_path).green is green


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
