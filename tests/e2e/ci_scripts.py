"""Runs the scripts of action.yml and of the workflows by themselves, with the files and variables of a step.

Nothing here reads GitHub's expressions: a test gives each script the variables that its step would set.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.fakes.waiting import eventually

ROOT = Path(__file__).parents[2]
REPOSITORY = "octo/models"
_SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # what `shell: bash` means
_INPUT = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")

# A stand-in for the installed program: keeps its arguments and its store, then does what the test wrote into it. It can
# export a run as well, which is what the action asks of it after a verdict.
_STAND_IN = """#!/usr/bin/env bash
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
class StepResult:
    """What a step left behind: exit status, outputs (the last of a name wins), job summary, and what it printed."""

    status: int
    outputs: dict[str, str]
    summary: str
    printed: str

    @property
    def green(self) -> bool:
        """True when GitHub would show the step as passed."""
        return self.status == 0


def read_yaml(path: Path) -> Any:
    """Return a YAML 1.2 file as plain values (`on` is a word there, not a truth value)."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


ACTION = read_yaml(ROOT / "action.yml")


def step_named(job: Mapping[str, Any], name: str) -> Any:
    """Return the step of a job that has the id `name`."""
    return next(step for step in job["steps"] if step.get("id") == name)


def run_lines(workspace: Path, lines: str, env: Mapping[str, str], *, kill_at: Path | None = None) -> StepResult:
    """Run the `run:` lines of a step in `workspace`. Kill all of it when the file `kill_at` appears."""
    return _run(workspace, [*_SHELL, lines], env, kill_at=kill_at)


def run_script(scratch: Path, name: str, *arguments: str, **env: str) -> StepResult:
    """Run a script of the checkout in `scratch`/benchgate-action, with `scratch` as the workspace."""
    script = scratch / "benchgate-action/scripts" / name
    return _run(scratch, [str(script), *arguments], env)


def _run(workspace: Path, command: Sequence[str], env: Mapping[str, str], *, kill_at: Path | None = None) -> StepResult:
    workspace.mkdir(parents=True, exist_ok=True)
    files = {name: workspace / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.touch()
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR", "LANG"}}
    told = {"GITHUB_EVENT_NAME": "push", "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_SERVER_URL": "https://github.invalid"}
    told |= {"CI": "true", "GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(workspace)}
    with subprocess.Popen(
        command,
        cwd=workspace,
        env={**kept, **told, **{name: str(path) for name, path in files.items()}, **env},
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
    lines = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
    outputs = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return StepResult(process.returncode, outputs, files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"), printed)


def run_gate(
    scratch: Path,
    body: str | None,
    *,
    job: Mapping[str, str] | None = None,
    kill_at: Path | None = None,
    **inputs: str,
) -> StepResult:
    """Run the step of action.yml that measures, in a job with the variables `job`.

    `body` is what the stand-in for benchgate does; None leaves the program that is there. An input that is not given
    has the default of action.yml.
    """
    checkout = scratch / "benchgate-action"
    if not (checkout / "scripts").exists():
        put_scripts(checkout)
    if body is not None:
        write_program(checkout / ".venv/bin/benchgate", _STAND_IN.format(body=body))
    given = {"suite": "suite.yaml"} | {name.replace("_", "-"): value for name, value in inputs.items()}
    assert set(given) <= set(ACTION["inputs"])
    step = step_named(ACTION["runs"], "gate")
    env = {"GITHUB_ACTION_PATH": str(checkout), **(job or {})}
    for variable, text in step["env"].items():
        taken = _INPUT.fullmatch(text)
        assert taken is not None, f"{variable} is not one input as it is"
        env[variable] = given.get(taken[1], str(ACTION["inputs"][taken[1]].get("default", "")))
    return run_lines(scratch / "gate", step["run"], env, kill_at=kill_at)


def arguments_of(scratch: Path) -> list[str]:
    """Return the arguments that the stand-in for benchgate was started with; none where it was not."""
    kept = scratch / "benchgate-action/.venv/bin/arguments"
    return kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []


def put_scripts(checkout: Path) -> None:
    """Link the scripts that steps run into the place of a checkout of benchgate."""
    (checkout / "scripts").mkdir(parents=True)
    for script in (ROOT / "scripts").glob("ci-*"):
        (checkout / "scripts" / script.name).symlink_to(script)


def write_program(path: Path, text: str) -> None:
    """Write an executable file, replacing what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def says(verdict: str, then: str) -> str:
    """Return a benchgate that publishes a verdict the way the real one does, then ends as told."""
    return (
        f'echo "verdict={verdict}" >>"$GITHUB_OUTPUT"\n'
        f'echo "run-id=0199" >>"$GITHUB_OUTPUT"\n'
        f'echo "# {verdict}" >>"$GITHUB_STEP_SUMMARY"\n{then}'
    )
