"""Steps of action.yml and of the workflows: run by the shell that GitHub would use, or in this process.

Nothing here evaluates GitHub's expressions: a test gives each step the variables that its `env` would set.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchgate.cli.action import main
from tests.fakes.waiting import eventually

ROOT = Path(__file__).parents[2]
REPOSITORY = "octo/models"
_SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # what `shell: bash` means
_INPUT = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")


@dataclass(frozen=True, slots=True)
class StepResult:
    """Exit status of a step, its outputs (the last of a name wins), its job summary, and what a shell printed."""

    status: int
    outputs: dict[str, str]
    summary: str
    printed: str = ""

    @property
    def green(self) -> bool:
        """True when GitHub would show the step as passed."""
        return self.status == 0


@dataclass
class FakeBenchgate:
    """benchgate as a child process that records its calls; the command named by `fails` ends with 13."""

    run: Callable[[Mapping[str, str]], int] = lambda environment: 0
    fails: str = ""
    calls: list[list[str]] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        self.calls.append(list(arguments))
        self.environment = environment
        if arguments[0] == "run":
            return self.run(environment)
        return 13 if arguments[0] == self.fails else 0


def ends(status: int, *lines: str) -> Callable[[Mapping[str, str]], int]:
    """Return a `benchgate run` that writes these outputs and ends with this status."""

    def run(environment: Mapping[str, str]) -> int:
        with Path(environment["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        return status

    return run


def read_yaml(path: Path) -> Any:
    """Return a YAML 1.2 file as plain values (`on` is a word there, not a truth value)."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


ACTION = read_yaml(ROOT / "action.yml")
GATE = read_yaml(ROOT / ".github/workflows/gate.yml")


def step_named(job: Mapping[str, Any], name: str) -> Any:
    """Return the step of a job that has the id `name`."""
    return next(step for step in job["steps"] if step.get("id") == name)


def gate_inputs(**inputs: str) -> dict[str, str]:
    """Return the INPUT_* variables of the gate step; an input that is not given has the default of action.yml."""
    given = {"suite": "suite.yaml"} | {name.replace("_", "-"): value for name, value in inputs.items()}
    assert set(given) <= set(ACTION["inputs"])
    found = {}
    for variable, text in step_named(ACTION["runs"], "gate")["env"].items():
        taken = _INPUT.fullmatch(text)
        assert taken is not None, f"{variable} is not one input as it is"
        found[variable] = given.get(taken[1], str(ACTION["inputs"][taken[1]].get("default", "")))
    return found


def run_here(folder: Path, *arguments: str, benchgate: FakeBenchgate, env: Mapping[str, str]) -> StepResult:
    """Run `benchgate action` in this process, as a step of a job whose temporary folder is `folder`."""
    variables, files = _step_variables(folder)
    status = main(arguments, {**variables, **env}, benchgate)
    return _result(status, files)


def run_gate(folder: Path, benchgate: FakeBenchgate, job: Mapping[str, str] | None = None, **inputs: str) -> StepResult:
    """Run `benchgate action gate` in this process, in a job with the variables `job`."""
    return run_here(folder, "gate", benchgate=benchgate, env={**(job or {}), **gate_inputs(**inputs)})


def run_shell(workspace: Path, lines: str, env: Mapping[str, str], *, kill_at: Path | None = None) -> StepResult:
    """Run the `run:` lines of a step in `workspace`. Kill all of it when the file `kill_at` appears."""
    variables, files = _step_variables(workspace)
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR", "LANG"}}
    with subprocess.Popen(
        [*_SHELL, lines],
        cwd=workspace,
        env={**kept, **variables, **env},
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
    return _result(process.returncode, files, printed)


def run_action_step(
    scratch: Path, name: str, program: str | None, env: Mapping[str, str], *, kill_at: Path | None = None
) -> StepResult:
    """Run a step of action.yml by its shell. `program` is the installed benchgate; None installs none."""
    checkout = scratch / "benchgate-action"
    put_checkout(checkout, program)
    lines = step_named(ACTION["runs"], name)["run"]
    return run_shell(scratch / "workspace", lines, {"GITHUB_ACTION_PATH": str(checkout), **env}, kill_at=kill_at)


def put_checkout(checkout: Path, program: str | None = None) -> None:
    """Link what steps use of the repository into the place of a checkout; `program` is the installed benchgate."""
    checkout.mkdir(parents=True)
    for name in ("scripts", "benchgate"):
        (checkout / name).symlink_to(ROOT / name)
    if program is not None:
        write_program(checkout / ".venv/bin/benchgate", program)


def write_program(path: Path, text: str) -> None:
    """Write an executable file, replacing what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _step_variables(folder: Path) -> tuple[dict[str, str], dict[str, Path]]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.touch()
    set_by_github = {
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_REPOSITORY": REPOSITORY,
        "CI": "true",
        "GITHUB_ACTIONS": "true",
    }
    set_by_github |= {"GITHUB_SERVER_URL": "https://github.invalid", "RUNNER_TEMP": str(folder)}
    return set_by_github | {name: str(path) for name, path in files.items()}, files


def _result(status: int, files: Mapping[str, Path], printed: str = "") -> StepResult:
    lines = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
    outputs = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return StepResult(status, outputs, files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"), printed)
