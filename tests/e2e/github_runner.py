"""Runs steps of action.yml and jobs of the workflows as GitHub's runner would, with the files and flags it uses."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.e2e.github_expressions import Value, evaluate, holds
from tests.fakes.waiting import eventually

ROOT = Path(__file__).parents[2]
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]  # what `shell: bash` means
REPOSITORY = "octo/models"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step left behind: exit status, outputs (the last of a name wins), job summary, and what it printed."""

    status: int
    outputs: dict[str, str]
    summary: str
    printed: str

    @property
    def green(self) -> bool:
        """True when the runner would show the step as passed."""
        return self.status == 0


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: success, failure, cancelled or skipped, and its outputs."""

    result: str
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def satisfies_a_rule(self) -> bool:
        """Whether a branch rule that requires this job lets a change in: GitHub takes a skipped job for a good one."""
        return self.result in ("success", "skipped")


def read_yaml(path: Path) -> Any:
    """A YAML 1.2 file as plain values (`on` is a word there, not a truth value)."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def run_step(
    step: Mapping[str, Any],
    context: Mapping[str, Value],
    scratch: Path,
    extra: Mapping[str, str] | None = None,
    *,
    kill_at: Path | None = None,
) -> StepResult:
    """Run a `run:` step with `scratch` as the workspace; `extra` are variables the runner itself would set.

    When the file `kill_at` is there, everything of the step is killed, as by a time limit.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    assert step["shell"] == "bash", "without it GitHub runs bash without pipefail"
    script = scratch / "step.sh"
    script.write_text(step["run"], encoding="utf-8")
    files = {name: scratch / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")}
    for path in files.values():
        path.touch()
    environment = {name: evaluate(str(value), context) for name, value in step.get("env", {}).items()}
    with subprocess.Popen(
        [*SHELL, str(script)],
        cwd=scratch,
        env={**_runner_environment(scratch), **{n: str(p) for n, p in files.items()}, **(extra or {}), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        if kill_at is not None:
            assert eventually(kill_at.exists)
            os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
    outputs = dict(_outputs(files["GITHUB_OUTPUT"].read_text(encoding="utf-8")))
    summary = files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
    return StepResult(process.returncode, outputs, summary, printed)


def _runner_environment(scratch: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR", "LANG"}}
    told = {"GITHUB_EVENT_NAME": "push", "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_SERVER_URL": "https://github.invalid"}
    return {**kept, **told, "CI": "true", "GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(scratch)}


def _outputs(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of a GITHUB_OUTPUT file: `name=value`, or `name<<DELIMITER` with lines until the delimiter."""
    lines = iter(text.splitlines())
    for line in lines:
        name, delimited, delimiter = line.partition("<<")
        if delimited and "=" not in name:
            yield name, "\n".join(iter(lambda: next(lines), delimiter))
        else:
            name, _, value = line.partition("=")
            yield name, value


def step_named(job: Mapping[str, Any], name: str) -> Any:
    """The step of a job that has the id `name`."""
    return next(step for step in job["steps"] if step.get("id") == name)


def inputs_of(workflow: Mapping[str, Any], given: Mapping[str, Value]) -> dict[str, Value]:
    """The `inputs.` of a called workflow: what the caller gives, else what it says itself."""
    declared = workflow["on"]["workflow_call"]["inputs"]
    assert set(given) <= set(declared), "GitHub refuses an input that a workflow does not declare"
    return {f"inputs.{name}": given.get(name, spec.get("default")) for name, spec in declared.items()}


def walk(
    workflow: Mapping[str, Any],
    context: Mapping[str, Value],
    jobs: Mapping[str, Callable[[Mapping[str, Value]], JobResult]],
    *,
    cancelled_after: str | None = None,
) -> dict[str, JobResult]:
    """Every job in the file's order: skipped by its `if` and what it needs, or what `jobs` makes of it.

    The workflow is cancelled when the job `cancelled_after` has ended; an empty name means before the first.
    """
    cancelled = cancelled_after == ""
    done: dict[str, JobResult] = {}
    for name, job in workflow["jobs"].items():
        needs = [job["needs"]] if isinstance(job.get("needs"), str) else list(job.get("needs", []))
        seen = dict(context)
        for needed in needs:
            seen[f"needs.{needed}.result"] = done[needed].result
            seen |= {f"needs.{needed}.outputs.{key}": value for key, value in done[needed].outputs.items()}
        before = [done[needed].result for needed in _all_before(workflow, needs)]
        status = {
            "always": True,
            "success": all(result == "success" for result in before) and not cancelled,
            "failure": "failure" in before,
            "cancelled": cancelled,
        }
        done[name] = jobs[name](seen) if holds(job.get("if"), seen, status) else JobResult("skipped")
        cancelled = cancelled or name == cancelled_after
    return done


def _all_before(workflow: Mapping[str, Any], needs: list[str]) -> list[str]:
    """The jobs that are needed, and those that these need."""
    found: list[str] = []
    waiting = list(needs)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.append(name)
            more = workflow["jobs"][name].get("needs", [])
            waiting += [more] if isinstance(more, str) else more
    return found
