"""The file of a store that is there: may it be written, by whom else, and does somebody write to it right now?"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchgate.doctor.machine import State, Symptom
from benchgate.errors import BenchgateError
from benchgate.store.database import Address
from benchgate.store.repository import Store


def examine_store_file(store: str) -> Iterator[Symptom]:
    """Of a store in a file. Of one on a server, or one that does not open, `machine.examine` tells."""
    try:
        path = Address.parse(store).path
        if path is None or not path.exists():
            return
        opened = Store.open_as_is(store)
    except BenchgateError:
        return
    yield _permissions(path)
    if opened is not None:
        with opened:
            yield _lock(path)


def _permissions(path: Path) -> Symptom:
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            remedy = "a run could keep nothing in it: let this user write to file and folder"
            return Symptom("store access", State.FAIL, f"{place} may not be written", remedy)
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            remedy = f"`chmod o-w {place}`: whoever can change evidence can change a verdict"
            return Symptom("store access", State.WARN, f"everybody may write to {place}", remedy)
    return Symptom("store access", State.OK, "may be written, and not by everybody")


def _lock(path: Path) -> Symptom:
    """Takes the lock of a writer for an instant, and writes nothing."""
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as asked:
            asked.execute("BEGIN IMMEDIATE")
            asked.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        remedy = "wait for it, or see what holds it (`fuser`): a run waits 10 s for its turn"
        return Symptom("store lock", State.WARN, f"somebody writes to it right now ({error})", remedy)
    return Symptom("store lock", State.OK, "nobody writes to it")
