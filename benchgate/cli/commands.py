"""Commands that a command prints for whoever reads it: they run as they stand."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from benchgate.cli.options import STORE
from benchgate.errors import BenchgateError, Command

_OF_A_SUITE = ("plan", "calibrate")
_OF_A_STORE = ("plan", "calibrate", "doctor --client", "store upgrade")
_BARE = re.compile(rf"`benchgate ({'|'.join(_OF_A_STORE)})`")


def run_command(
    suite: Path, *, store: str, said: Sequence[tuple[str, str | None]], flags: Sequence[tuple[str, bool]]
) -> str:
    """`benchgate run suite.yaml --store runs.db`, with what else was said of a run when it was begun.

    `said` are options with their values, None for those that were not given; `flags` those that have none, and whether
    they were given.
    """
    words = ["benchgate", "run", str(suite), *_of_store(store)]
    for option, value in said:
        words += [option, value] if value is not None else []
    return shlex.join([*words, *(option for option, given in flags if given)])


def spelled(error: BenchgateError, *, begun_by: str | None = None) -> str:
    """The message of an error with the commands that mend it, as they can be typed.

    `begun_by` is the command that began the run which an error is about, where that is known.
    """
    parts = [error.message]
    for remedy in error.remedies:
        if remedy.command is Command.RESUME:
            command = resume_command(begun_by or "benchgate run SUITE", str(remedy.subject))
        else:
            words = ["benchgate", *remedy.command.split(), *([remedy.subject] if remedy.subject else [])]
            command = shlex.join([*words, *(_of_store(remedy.store) if remedy.store else [])])
        unshown = " and its --store, or BENCHGATE_STORE" if remedy.store == "" else ""
        parts.append(f"{remedy.purpose} with `{command}`{unshown}")
    return "; ".join(parts)


def resume_command(begun_by: str, run_id: str) -> str:
    """`benchgate run suite.yaml --resume --run RUN`, from the command that began the run."""
    return f"{begun_by} --resume --run {run_id}"


def gate_command(run_id: str, *, store: str) -> str:
    """`benchgate gate RUN --store runs.db`."""
    return shlex.join(["benchgate", "gate", run_id, *_of_store(store)])


def completed(text: str, *, suite: Path | None, store: str | None) -> str:
    """A text of the core's, which knows neither suite nor store, with both in the commands that it names.

    `suite` and `store` are None where there is none to name.
    """

    def whole(bare: re.Match[str]) -> str:
        words = ["benchgate", *bare[1].split()]
        words += [str(suite)] if suite is not None and bare[1] in _OF_A_SUITE else []
        words += _of_store(store) if store is not None else []
        return f"`{shlex.join(words)}`"

    return _BARE.sub(whole, text)


def _of_store(store: str) -> list[str]:
    """`--store FILE`, where it has to be said: not of the usual one, nor of the one that the environment names.

    Without a password: the reader of a log is not to have it.
    """
    from benchgate.store.database import Address

    if store in (STORE, os.environ.get("BENCHGATE_STORE")):
        return []
    return ["--store", Address.parse(store).shown]
