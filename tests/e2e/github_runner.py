"""Runs steps of action.yml and of the workflows as GitHub's runner would, with the files and flags it uses.

Only what these files use is understood: `${{ }}` holding dotted names, `||` and string literals. Anything else is an
error, so that a test cannot pass by reading an expression differently from the runner.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
_NAME = re.compile(r"[a-z_]+(\.[a-z0-9_-]+)+")
_LITERAL = re.compile(r"'([^']*)'")


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


def read_yaml(path: Path) -> Any:
    """A YAML 1.2 file as plain values (`on` is a word there, not a truth value)."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def evaluate(text: str, context: Mapping[str, str]) -> str:
    """`text` with every `${{ }}` replaced; a name that `context` lacks is empty, as on GitHub."""
    return _EXPRESSION.sub(lambda match: _alternatives(match[1], context), text)


def _alternatives(expression: str, context: Mapping[str, str]) -> str:
    for part in expression.split("||"):
        value = _operand(part.strip(), context)
        if value:
            return value
    return ""


def _operand(text: str, context: Mapping[str, str]) -> str:
    if literal := _LITERAL.fullmatch(text):
        return literal[1]
    if _NAME.fullmatch(text):
        return context.get(text, "")
    raise ValueError(f"an expression this runner does not know: {text!r}")


def run_step(
    step: Mapping[str, Any], context: Mapping[str, str], scratch: Path, extra: Mapping[str, str] | None = None
) -> StepResult:
    """Run a `run:` step with `scratch` as the workspace; `extra` are variables the runner itself would set."""
    scratch.mkdir(parents=True, exist_ok=True)
    assert step["shell"] == "bash", "without it GitHub runs bash without pipefail"
    script = scratch / "step.sh"
    script.write_text(step["run"], encoding="utf-8")
    files = {name: scratch / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")}
    for path in files.values():
        path.touch()
    environment = {name: evaluate(str(value), context) for name, value in step.get("env", {}).items()}
    done = subprocess.run(
        [*SHELL, str(script)],
        cwd=scratch,
        env={**_runner_environment(), **{n: str(p) for n, p in files.items()}, **(extra or {}), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    outputs = dict(_outputs(files["GITHUB_OUTPUT"].read_text(encoding="utf-8")))
    summary = files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
    return StepResult(done.returncode, outputs, summary, done.stdout + done.stderr)


def _runner_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR", "LANG"}}
    return {**kept, "CI": "true", "GITHUB_ACTIONS": "true"}


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
