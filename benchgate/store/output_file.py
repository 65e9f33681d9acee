"""Files written by exports: replaced as a whole or not at all, and only where an export wrote the old one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from benchgate.errors import StoreError, UsageError
from benchgate.system import atomic_file

_LONGEST_LINE = 2**24
_ELSEWHERE = "it was not written over: name another file, or a folder"


@contextmanager
def output_file(file: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of `file` when the block ends. Raises StoreError where it cannot."""
    try:
        with atomic_file(file) as out:
            yield out
    except OSError as exc:
        raise StoreError(f"{file} could not be written: {exc.strerror or exc}") from exc


def require_replaceable(file: Path, what: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raise UsageError where `file` exists and its first line, by `is_ours`, is not that of `what`.

    Raises StoreError where it cannot be read.
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
    """Return the error for an existing file that may not be replaced."""
    return UsageError(f"{file} is there, and {why}; {_ELSEWHERE}")


def is_records_of(run_id: str) -> Callable[[bytes], bool]:
    """Return a test for the first line of a run's records in JSONL."""

    def is_ours(first: bytes) -> bool:
        try:
            record = json.loads(first)
        except (ValueError, RecursionError):
            return False
        return isinstance(record, dict) and (record.get("kind"), record.get("run_id")) == ("run", run_id)

    return is_ours


def starts_with(*marks: str) -> Callable[[bytes], bool]:
    """Return a test for lines that start with one of these texts."""
    return lambda first: first.startswith(tuple(mark.encode("ascii") for mark in marks))
