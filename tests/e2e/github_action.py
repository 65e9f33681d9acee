"""The composite action in a job, with a script in benchgate's place: its own steps, as GitHub's runner runs them."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.github_expressions import Value, evaluate, holds
from tests.e2e.github_runner import REPOSITORY, ROOT, JobResult, StepResult, read_yaml, run_step

ACTION = read_yaml(ROOT / "action.yml")

# A stand-in for the installed program: keeps its arguments and its store, then does what the test wrote into it. It can
# export a run as well, which is what the action asks of it after a verdict.
FAKE_BENCHGATE = """#!/usr/bin/env bash
here=$(dirname -- "$0")
if [[ $1 == store ]]; then
  printf '%s\\n' "$@" >"$here/exported"
  exit "$(cat -- "$here/export-status" 2>/dev/null || echo 0)"
fi
printf '%s\\n' "$@" >"$here/arguments"
printf '%s\\n' "${{BENCHGATE_STORE-none}}" >"$here/store"
{body}
"""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What the job that uses the action sees. `ran` are the action's steps that ran, in order."""

    green: bool
    outputs: dict[str, str]
    ran: dict[str, StepResult]
    arguments: list[str]

    @property
    def gate(self) -> StepResult | None:
        """The step in which benchgate runs; None where it was not reached."""
        return self.ran.get("gate")

    @property
    def job(self) -> JobResult:
        """The job of gate.yml that holds this action: red where it is, and with its outputs."""
        return JobResult("success" if self.green else "failure", self.outputs)


def run_action(
    scratch: Path,
    body: str,
    *,
    install: str = "exit 0",
    job: Mapping[str, str] | None = None,
    github: Mapping[str, Value] | None = None,
    kill_at: Path | None = None,
    **inputs: str,
) -> ActionResult:
    """Run the action's own steps in order, in a job with the variables `job` and the event `github`.

    `body` is what benchgate does. When the file `kill_at` is there, the step that runs then is killed.
    """
    checkout = scratch / "action"
    put_scripts(checkout)
    write_program(checkout / "scripts/install", f"#!/usr/bin/env bash\n{install}\n")
    write_program(checkout / ".venv/bin/benchgate", FAKE_BENCHGATE.format(body=body))
    given = {name.replace("_", "-"): value for name, value in {"suite": "suite.yaml", **inputs}.items()}
    assert set(given) <= set(ACTION["inputs"])
    context: dict[str, Value] = {
        f"inputs.{name}": given.get(name, str(spec.get("default", ""))) for name, spec in ACTION["inputs"].items()
    }
    context |= {"github.repository": REPOSITORY, **(github or {})}
    ran: dict[str, StepResult] = {}
    for step in ACTION["runs"]["steps"]:
        red = any(not result.green for result in ran.values())
        status = {"always": True, "success": not red, "failure": red, "cancelled": False}
        if "run" not in step or not holds(step.get("if"), context, status):
            continue  # setting up Python is GitHub's own
        extra = {**(job or {}), "GITHUB_ACTION_PATH": str(checkout)}
        killed_at = kill_at if step["id"] == "gate" else None
        result = ran[step["id"]] = run_step(step, context, scratch / step["id"], extra, kill_at=killed_at)
        context |= {f"steps.{step['id']}.outputs.{name}": value for name, value in result.outputs.items()}
    outputs = {name: evaluate(spec["value"], context) for name, spec in ACTION["outputs"].items()}
    arguments = checkout / ".venv/bin/arguments"
    return ActionResult(
        green=all(result.green for result in ran.values()) and "gate" in ran,
        outputs=outputs,
        ran=ran,
        arguments=arguments.read_text(encoding="utf-8").splitlines() if arguments.exists() else [],
    )


def put_scripts(checkout: Path) -> None:
    """The scripts that steps run, in the place of a checkout of benchgate."""
    (checkout / "scripts").mkdir(parents=True)
    for script in (ROOT / "scripts").glob("ci-*"):
        (checkout / "scripts" / script.name).symlink_to(script)


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
