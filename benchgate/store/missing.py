"""Refusal of a store, a run or a label that cannot be, without SQLAlchemy: importing that costs more than the rest."""

from __future__ import annotations

import os
import sqlite3
import unicodedata
from collections.abc import Sequence
from contextlib import closing, suppress
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import quote

from benchgate.errors import Command, Remedy, StoreError, UsageError

SHORTEST_PREFIX = 13  # length of the instant in an id (RFC 9562): runs begun close in time share any shorter prefix
PROMOTED = "@promoted"
NAMES = ("@latest", "@previous", PROMOTED)
_SHOWN = 5
_LENGTH, _DASHES = 36, (8, 13, 18, 23)  # of an id


def require_stored(address: str, *references: str) -> None:
    """Raise UsageError for an SQLite file that does not exist, and for a run that is not in it.

    Other addresses, and whatever is wrong with the file itself, are left to `Store`.
    """
    path = sqlite_file(address)
    if path is None or path.is_dir():
        return
    if not path.exists():
        raise missing_store(str(path))
    try:
        with closing(_read_only(path)) as database:
            known = database.execute("SELECT id, label FROM run ORDER BY started_at DESC, id DESC").fetchall()
    except sqlite3.Error:
        return
    for reference in references:
        if reference.startswith("@"):
            if reference not in NAMES:
                raise unknown_name(reference)
        elif not any(
            reference in (run_id, label) or (len(reference) >= SHORTEST_PREFIX and run_id.startswith(reference))
            for run_id, label in known
        ):
            raise unknown_run(reference, known)


def sqlite_file(address: str) -> Path | None:
    """Return the SQLite file of an address; None for a database server, and for what is no address."""
    name = address.removeprefix("sqlite:///")
    return None if name in ("", ":memory:") or "://" in name else Path(name).expanduser()


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.path.realpath(path))}?mode=ro", uri=True)


def is_absent(address: str) -> bool:
    """Return True for an SQLite file that does not exist."""
    path = sqlite_file(address)
    return path is not None and not path.exists()


def require_new_run(address: str, label: str | None) -> None:
    """Raise StoreError for an SQLite file that cannot be made, UsageError for the label of another run in it.

    Whatever else is wrong with the file is left to `Store`.
    """
    path = sqlite_file(address)
    if path is None:
        return
    folder = next(above for above in Path(os.path.realpath(path)).parents if os.path.lexists(above))
    if not folder.is_dir():
        raise StoreError(f"the store {path} cannot be made: {folder} is no folder; name a file in a folder")
    if not path.exists():
        try:
            TemporaryFile(dir=folder).close()  # permissions alone do not say it: /proc takes no file of anybody
        except OSError as error:
            why = f"{folder}: {error.strerror}"
            raise StoreError(f"the store {path} cannot be made: {why}; name a file where you may write") from error
    if label is None or not path.is_file():
        return
    with suppress(sqlite3.Error), closing(_read_only(path)) as database:
        taken = database.execute("SELECT id FROM run WHERE label = ? LIMIT 1", (label,)).fetchone()
        if taken is not None:
            raise taken_label(label, taken[0])


def taken_label(label: str, run_id: str) -> UsageError:
    """Return the error for a label that another run has."""
    return UsageError(f"--label {label}: run {run_id} has it already, and a label means one run; give another")


def missing_store(shown: str) -> UsageError:
    """Return the error for an address without a store."""
    message = f"there is no benchgate store at {shown}"
    return UsageError(message, remedies=(Remedy("check the address, or make one", Command.RUN),))


def unknown_name(reference: str) -> UsageError:
    """Return the error for a name like `@last`."""
    near = get_close_matches(reference, NAMES, n=1, cutoff=0)
    return UsageError(f"{reference!r} names no run; did you mean {near[0]}? Known: {', '.join(NAMES)}")


def unknown_run(reference: str, known: Sequence[tuple[str, str | None]]) -> UsageError:
    """Return the error for a reference to none of the known runs: their ids and labels, newest first."""
    ids = [run_id for run_id, _ in known]
    if not ids:
        message = f"no run is called {reference!r}: the store has none yet"
        return UsageError(message, remedies=(Remedy("make one", Command.RUN),))
    if len(reference) < SHORTEST_PREFIX and any(run_id.startswith(reference) for run_id in ids):
        return UsageError(
            f"{reference!r} is too short for a run id: those of one day begin alike; give at least {SHORTEST_PREFIX} "
            "characters of it, or the run's label"
        )
    names = {name: name for name in (*ids, *(label for _, label in known if label is not None), *NAMES)}
    prefixes = {run_id[: len(reference)]: run_id for run_id in reversed(ids)}  # of several that begin alike the newest
    near = get_close_matches(reference, prefixes | names, n=1)
    hint = f"did you mean {(prefixes | names)[near[0]]}?" if near else f"the newest runs are {join_ids(ids)}"
    return UsageError(f"no run is called {reference!r}; {hint}")


def join_ids(ids: Sequence[str]) -> str:
    """Return a few of the ids, and the number of the others."""
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more


def require_spelling(label: str) -> None:
    """Raise UsageError for a text that can never be a label."""
    if not label.strip() or label.startswith("@") or any(unicodedata.category(char)[0] == "C" for char in label):
        raise UsageError(f"--label {ascii(label)[:60]}: expected a name on one line that does not begin with @")
    if label != label.strip() or any(char.isspace() and char != " " for char in label):
        raise UsageError(
            f"--label {ascii(label)[:60]}: expected no space around it and only plain ones in it: it would look like "
            "another run's name"
        )
    if looks_like_id(label):
        raise UsageError(f"--label {label}: it looks like the id of a run, or the beginning of one; add a word to it")


def looks_like_id(name: str) -> bool:
    """Return True for a text spelled like an id, or like a prefix that is long enough to be looked up.

    Ids begin with their instant, and that with a 0 until the year 2527; a date with a time does not (20261121-0930).
    """
    if not SHORTEST_PREFIX <= len(name) <= _LENGTH or (name[0] != "0" and len(name) < _LENGTH):
        return False
    expected = ("-" if place in _DASHES else "0123456789abcdef" for place in range(len(name)))
    return all(char in allowed for char, allowed in zip(name.lower(), expected, strict=True))
