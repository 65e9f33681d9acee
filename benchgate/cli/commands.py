"""Commands in messages, spelled so that they can be typed as they are printed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from benchgate.cli.options import STORE
from benchgate.errors import BenchgateError, Command


def run_command(
    suite: Path, *, store: str, options: Sequence[tuple[str, str | None]], flags: Sequence[tuple[str, bool]]
) -> str:
    """Return `benchgate run suite.yaml --store runs.db` with the other options that began a run.

    `options` have values, None if not given; `flags` are options without a value, True if given.
    """
    words = ["benchgate", "run", str(suite), *_of_store(store)]
    for option, value in options:
        words += [option, value] if value is not None else []
    return shlex.join([*words, *(option for option, given in flags if given)])


def spelled(error: BenchgateError, *, begun_by: str | None = None) -> str:
    """Return the message of an error with the commands that mend it.

    `begun_by` is the command that began the run that the error is about, if it is known.
    """
    parts = [error.message]
    for remedy in error.remedies:
        if remedy.command is Command.RESUME:
            command = resume_command(begun_by or "benchgate run SUITE", str(remedy.subject))
        else:
            command = command_line(remedy.command, remedy.subject, remedy.store)
        unshown = " and its --store, or BENCHGATE_STORE" if remedy.store == "" else ""
        parts.append(f"{remedy.purpose} with `{command}`{unshown}")
    return "; ".join(parts)


def command_line(command: Command, subject: str | None = None, store: str | None = None) -> str:
    """Return a command for a run or file, with the store that it is for."""
    words = ["benchgate", *command.split(), *([subject] if subject else [])]
    return shlex.join([*words, *(_of_store(store) if store else [])])


def resume_command(begun_by: str, run_id: str) -> str:
    """Return `benchgate run suite.yaml --resume --run RUN`, from the command that began the run."""
    return f"{begun_by} --resume --run {run_id}"


def _of_store(store: str) -> list[str]:
    """Return `--store FILE`, or nothing for the usual store and the one that the environment names.

    A password is left out: readers of a log must not have it.
    """
    from benchgate.store.database import Address

    if store in (STORE, os.environ.get("BENCHGATE_STORE")):
        return []
    return ["--store", Address.parse(store).shown]
