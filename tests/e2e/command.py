"""Drives the installed command as a user would: a process of its own, its streams, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchgate.model.run import Evidence
from benchgate.store.repository import Store

STORE = ".benchgate/benchgate.db"


def command_line(*arguments: str) -> list[str]:
    """The command with these arguments, run by the interpreter the tests run in."""
    return [sys.executable, "-m", "benchgate", *arguments]


def benchgate(folder: Path, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` to its end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "BENCHGATE_"))}
    return subprocess.run(
        command_line(*arguments), cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def document(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The verdict document a command printed with `--format json`."""
    assert result.stdout, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def latest_evidence(folder: Path) -> Evidence:
    """What the store holds of the newest run."""
    with Store.open(str(folder / STORE), create=False) as store:
        return store.evidence(store.resolve("@latest"))
