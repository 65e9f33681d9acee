"""The command in this process, made once: making it takes a hundred times as long as an answer that needs no run."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Any

import typer

from benchgate.cli.app import app


@functools.cache
def _command() -> Any:  # typer's own kind of click, which it does not name in public
    return typer.main.get_command(app)


def answer(*words: str) -> tuple[int, str, str]:
    """Exit code, output and complaints. What benchgate itself refuses is raised as it is."""
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            _command().main(args=list(words), prog_name="benchgate")
        except SystemExit as left:
            return int(left.code or 0), said.getvalue(), complained.getvalue()
    raise AssertionError("the command did not end")
