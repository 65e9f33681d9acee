"""The command in this process, made once: making it takes a hundred times as long as an answer that needs no run."""

from __future__ import annotations

import contextlib
import functools
import io
from dataclasses import dataclass
from typing import Any

import typer

from benchgate.cli.app import app


@functools.cache
def command() -> Any:  # typer's own kind of click, which it does not name in public
    """What `app` makes of itself at every call."""
    return typer.main.get_command(app)


@dataclass(frozen=True)
class Told:
    """How a command ended, and what it said on the way."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All of it."""
        return self.stdout + self.stderr


def told(*words: str) -> Told:
    """What the command answers. What benchgate itself refuses is raised as it is."""
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            command().main(args=list(words), prog_name="benchgate")
        except SystemExit as left:
            return Told(int(left.code or 0), said.getvalue(), complained.getvalue())
    raise AssertionError("the command did not end")


def answer(*words: str) -> tuple[int, str, str]:
    """The same as exit code, output and complaints."""
    found = told(*words)
    return found.exit_code, found.stdout, found.stderr
