"""The spools of runs that were cut short: brought in before one goes on, and named where no store has their run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.model.run import Run
from benchgate.store.database import Address
from benchgate.store.repository import Store
from benchgate.store.rows import pending_spool
from benchgate.store.spool import FILE_NAME

_NAMED = 3  # spools that no store has; more are counted


def unstored(work_dir: Path, ref: str | None, address: str, store: Store | None = None) -> str:
    """Where the spools are of runs that the store does not have, and how they come into it; nothing where none is.

    `address` is that of the store, which need not be there.
    """
    found = [path for path in _spools(work_dir, ref) if store is None or not _has(store, path.parent.name)]
    if not found:
        return ""
    named = ", ".join(map(str, found[:_NAMED])) + (f" and {len(found) - _NAMED} more" if found[_NAMED:] else "")
    command = ["benchgate", "store", "import", str(found[0])]
    where = Address.parse(address)
    command += ["--store", where.shown] if where.shown_is_whole else []  # a password is not repeated
    return (
        f". What a run had measured that this store does not have is in {named}: bring it in with "
        f"`{shlex.join(command)}`, and then it can go on"
    )


class SpoolFound(Enum):
    """What became of the spool of a run that was cut short.

    `ALONE`: the run was ended without a word, so whether the file is all that was kept nobody can vouch for: a store
    that was away meanwhile knows nothing of what an older copy of it lacks.
    """

    NOT_NEEDED = auto()
    ALONE = auto()
    GONE = auto()


def bring_in(store: Store, run: Run, spool: Path, *, without_spool: bool) -> SpoolFound:
    """Gives the store what a run's spools have more than it, and says what became of them.

    Whoever may leave a spool out chooses among whole blocks, so that is refused unless asked for by name.
    """
    left = pending_spool(store.events(run.id))
    there = [path for path in dict.fromkeys([Path(left), spool] if left else [spool]) if _is_there(path)]
    for path in there:
        store.recover(path)
    if left is None:
        return SpoolFound.NOT_NEEDED
    if there:
        return SpoolFound.ALONE
    if not without_spool:
        raise UsageError(
            f"run {run.id} was ended without a word, and what it measured is kept in {left} too, which is not there: "
            f"go on where that file is, or put it at {spool}. Where it is lost, --ignore-missing-spool goes on with "
            "what the store has, and the verdict warns that records may be missing"
        )
    return SpoolFound.GONE


def _spools(work_dir: Path, ref: str | None) -> Iterator[Path]:
    """Newest first: ids begin with the time."""
    for path in sorted(work_dir.glob(f"*/{FILE_NAME}"), reverse=True):
        if ref is None or path.parent.name.startswith(ref):
            yield path


def _has(store: Store, run_id: str) -> bool:
    try:
        store.run(run_id)
    except UsageError:
        return False
    return True


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
