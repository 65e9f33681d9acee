"""Files written by exports: replaced as a whole or not at all, and only where an export wrote the old one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchgate.errors import StoreError, UsageError


@contextmanager
def write_atomic(file: Path) -> Iterator[Path]:
    """Gives a place to write to, which takes the name of `file` once the block has ended; its folder is made.

    Raises StoreError where it cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as exc:
        raise StoreError(f"{file} could not be written: {exc.strerror or exc}") from exc


_LONGEST_LINE = 2**24
_ELSEWHERE = "it was not written over: name another file, or a folder"


def require_replaceable(file: Path, what: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raise UsageError where `file` is there and its first line is not that of `what`. StoreError where it is unread.

    `is_ours` gets the first line, with its end.
    """
    if not file.is_file():
        return
    try:
        with file.open("rb") as found:
            first = found.readline(_LONGEST_LINE)
    except OSError as exc:
        raise StoreError(f"{file} is in the way and cannot be read: {exc.strerror or exc}") from exc
    if not is_ours(first):
        raise UsageError(f"{file} is there and is not {what}; {_ELSEWHERE}")


def in_the_way(file: Path, why: str) -> UsageError:
    """The error of a file that is in the way, for a reason that only its reader knows."""
    return UsageError(f"{file} is there, and {why}; {_ELSEWHERE}")


def is_records_of(run_id: str) -> Callable[[bytes], bool]:
    """Whether a line is the first of a run's records in JSON lines."""

    def is_ours(first: bytes) -> bool:
        try:
            said = json.loads(first)
        except (ValueError, RecursionError):
            return False
        return isinstance(said, dict) and (said.get("kind"), said.get("run_id")) == ("run", run_id)

    return is_ours


def starts_with(*marks: str) -> Callable[[bytes], bool]:
    """Whether a line begins with one of these texts."""
    return lambda first: first.startswith(tuple(mark.encode("ascii") for mark in marks))
