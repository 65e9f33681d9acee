"""Drives the command as a user would: its arguments, its streams, its exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchgate.cli import app
from benchgate.model.run import Evidence
from benchgate.store.repository import Store
from tests.fakes import quick_command

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


def here(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in this process, for what reads a store or a suite and starts nothing: loading it all takes seconds.

    `environment` is what a CI would set.
    `test_gate_says_the_same_bytes_from_the_store_alone` holds it against a process of its own.
    """
    said, complained = io.StringIO(), io.StringIO()
    handled = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        patch.setattr(sys, "argv", ["benchgate", *arguments])
        patch.setattr(app, "app", quick_command.command())
        for name in [name for name in os.environ if name.startswith(("GITHUB_", "BENCHGATE_"))]:
            patch.delenv(name)
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        try:
            with pytest.raises(SystemExit) as left:
                app.main()
        finally:
            for number, handler in handled.items():
                signal.signal(number, handler)
    code = left.value.code or 0
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["benchgate", *arguments], code, said.getvalue(), complained.getvalue())


def document(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The verdict document a command printed with `--format json`."""
    assert result.stdout, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def latest_evidence(folder: Path) -> Evidence:
    """Return the evidence of the newest run, complete or not."""
    with Store.open(str(folder / STORE), create=False) as store:
        (newest,) = store.runs(limit=1)
        return store.evidence(newest.id)
