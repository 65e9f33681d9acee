"""Locks of stores and runs, and the ownership check of every write.

The process that measures a run holds its lock: beside an SQLite store a locked file (`NAME.run-ID`, with the process
id), on Postgres a session's advisory lock. A `running` run whose lock is free was killed. A lock can be lost (its file
removed, the server restarted), so every write also checks that the database has no row of the run that this process did
not write: two processes that measure one run would each choose, block by block, what to keep.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, func, select, text, union_all
from sqlalchemy.exc import SQLAlchemyError

from benchgate.errors import StoreError, TakenOver
from benchgate.store import tables
from benchgate.store.database import Database, fetch
from benchgate.store.stored_run import ORDERED_TABLES, is_over
from benchgate.system import is_same_file, open_locked, remove_locked, try_file_lock

RUNS, SUITES, LABELS = 0, 1, 2  # spaces of locked names, which do not collide
WAIT_S = 60.0
_POLL_S = 0.05
_POSTGRES_KEY = {"key": 0x62656E63686761}  # "benchga", ours among the advisory locks of that database


@contextmanager
def upgrade_lock(database: Database, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the store's upgrade lock. Raises StoreError when another process keeps it longer than `wait_s`."""
    path, give_up = database.address.path, time.monotonic() + wait_s
    unlock: Callable[[], object] | None = None
    with database.errors(), ExitStack() as stack:
        if path is not None:
            # The file stays: removing it would let two processes each lock a file of the same name.
            handle = stack.enter_context(path.with_name(path.name + ".lock").open("w"))
            try_lock: Callable[[], object] = partial(try_file_lock, handle.fileno())
        else:
            # A session lock on a connection of its own: a transaction's would go with the first commit of a migration.
            connection = stack.enter_context(database.engine.connect())
            session = connection.execution_options(isolation_level="AUTOCOMMIT")
            try_lock = partial(session.scalar, text("SELECT pg_try_advisory_lock(:key)"), _POSTGRES_KEY)
            unlock = partial(session.execute, text("SELECT pg_advisory_unlock(:key)"), _POSTGRES_KEY)
        while not try_lock():
            if time.monotonic() > give_up:
                raise StoreError(
                    f"the store {database.address.shown} has been locked by another upgrade for {wait_s:g} s; "
                    "wait for it to end, or stop it, and try again"
                )
            time.sleep(_POLL_S)
        if unlock is not None:
            stack.callback(unlock)
        yield


def lock_name(connection: Connection, name: str, *, space: int = RUNS) -> None:
    """Lock a run, a suite or a label until the transaction ends; a writing transaction of SQLite is alone anyway.

    A run is locked against other imports, promotions and removals of it.
    """
    if connection.dialect.name != "sqlite":
        lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, :space))")
        connection.execute(lock, {"name": name, "space": space})


class RunLocks:
    """Locks that this process holds of one store's runs. Not thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._files: dict[str, int] = {}
        self._session: Connection | None = None
        self._held: set[str] = set()

    def take(self, run_id: str) -> bool:
        """Acquire a run's lock until `release`. Returns False where a process has it already."""
        if run_id in self._held:
            return False
        path = self._path(run_id)
        with self._database.errors():
            taken = self._lock_file(run_id, path) if path is not None else self._call("try_advisory_lock", run_id)
        if taken:
            self._held.add(run_id)
        return taken

    def require(self, run_id: str) -> None:
        """Acquire a run's lock. Raises StoreError, which names the holder, where another process has it."""
        if not self.take(run_id):
            raise StoreError(f"run {run_id} is being measured, by {self.holder(run_id)}; wait for it to end")

    @contextmanager
    def hold(self, run_id: str) -> Iterator[None]:
        """Hold a run's lock for a block. Raises StoreError, which names the holder, where another process has it."""
        self.require(run_id)
        try:
            yield
        finally:
            self.release(run_id)

    def release(self, run_id: str) -> None:
        """Release a run's lock, where this process holds it."""
        if run_id not in self._held:
            return
        self._held.remove(run_id)
        path = self._path(run_id)
        with suppress(StoreError), self._database.errors():  # a store that is gone has taken its locks along
            if path is None:
                self._call("advisory_unlock", run_id)
                return
            remove_locked(self._files.pop(run_id), path)

    def is_held(self, run_id: str) -> bool:
        """Return True while the lock file is still ours. A Postgres session may have lost its lock unnoticed."""
        path = self._path(run_id)
        return run_id in self._held and (path is None or is_same_file(self._files[run_id], path))

    def holder(self, run_id: str) -> str:
        """Return a description of the process that holds a run."""
        path = self._path(run_id)
        try:
            number = path.read_text(encoding="ascii").strip() if path is not None else ""
        except (OSError, UnicodeDecodeError):
            number = ""
        return f"process {number}" if number.isdigit() else "another process"

    def close(self) -> None:
        """Release all locks."""
        for run_id in list(self._held):
            self.release(run_id)
        self._leave_session()

    def _leave_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(StoreError), self._database.errors():
                session.close()

    def _path(self, run_id: str) -> Path | None:
        path = self._database.address.path
        return path.with_name(f"{path.name}.run-{run_id}") if path is not None else None

    def _lock_file(self, run_id: str, path: Path) -> bool:
        handle = open_locked(path)
        if handle is None:
            return False
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._files[run_id] = handle
        return True

    def _call(self, function: str, run_id: str) -> bool:
        if self._session is None:
            session = self._database.engine.connect()
            self._session = session.execution_options(isolation_level="AUTOCOMMIT")
        digest = hashlib.sha256(f"benchgate run {run_id}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        try:
            return bool(self._session.scalar(text(f"SELECT pg_{function}(:key)"), {"key": key}))
        except SQLAlchemyError:
            self._leave_session()  # with a server that went away went all that it held
            raise


def require_ownership(connection: Connection, run_id: str, next_seq: int) -> None:
    """Raise TakenOver where another process wrote to the run or ended it, StoreError where it is gone.

    `next_seq` is the place of our next row.
    """
    lock_name(connection, run_id)  # else two writers of Postgres could both look before either of them writes
    run = tables.run.c
    found = fetch(connection, select(run.status, run.evidence_sha256).where(run.id == run_id))
    if not found:
        raise StoreError(f"run {run_id} is not in the store any more")
    if is_over(found[0]):
        raise TakenOver(takeover_message(run_id, f"it is {found[0]['status']} in the store, which was not done here"))
    places = union_all(*(select(func.max(table.c.seq)).where(table.c.run_id == run_id) for table in ORDERED_TABLES))
    last = max((seq for seq in connection.scalars(places) if seq is not None), default=-1)
    if last >= next_seq:
        raise TakenOver(takeover_message(run_id, "the store has rows of it that were not written here"))


def takeover_message(run_id: str, sign: str) -> str:
    """Return the message for a run that another process took over; `sign` is how that was noticed."""
    return (
        f"run {run_id} may be measured by another process too, so this one stops: {sign}; nothing that it measures "
        "from now on counts. Check for another one; if there is none, the run can be resumed"
    )
