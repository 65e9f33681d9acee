"""Which runs are being measured at this moment: whoever measures one holds a lock that goes with their process.

Beside an SQLite store that is a lock on a small file (`NAME.run-ID`, which holds the number of the process), on
Postgres an advisory lock of the session. A run that is `running` and whose lock is free was killed. A lock can be lost
(its file removed, the server restarted), so who writes a run also looks at its rows (`owning`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import SQLAlchemyError

from benchgate.errors import StoreError
from benchgate.model.run import RunStatus
from benchgate.store import sealing, tables
from benchgate.store.engine import Database


class RunLocks:
    """The locks that this process holds of one store's runs. Not for use by several threads at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._files: dict[str, int] = {}
        self._session: Connection | None = None
        self._held: set[str] = set()

    def take(self, run_id: str) -> bool:
        """Holds a run until `release`; False where somebody holds it already."""
        if run_id in self._held:
            return False
        path = self._path(run_id)
        with self._database.errors():
            taken = self._lock_file(run_id, path) if path is not None else self._ask("try_advisory_lock", run_id)
        if taken:
            self._held.add(run_id)
        return taken

    def release(self, run_id: str) -> None:
        """Lets go of a run, where this process holds it."""
        if run_id not in self._held:
            return
        self._held.remove(run_id)
        path = self._path(run_id)
        with suppress(StoreError), self._database.errors():  # a store that is gone has taken its locks along
            if path is None:
                self._ask("advisory_unlock", run_id)
                return
            handle = self._files.pop(run_id)
            try:
                if _is_file(handle, path):  # where somebody removed it, the file of that name may be another's lock
                    path.unlink(missing_ok=True)  # while it is locked: whoever locks it next finds that it is gone
            finally:
                os.close(handle)

    def stands(self, run_id: str) -> bool:
        """Whether a run is still held, as far as that can be seen: a session of Postgres may have lost its lock."""
        path = self._path(run_id)
        return run_id in self._held and (path is None or _is_file(self._files[run_id], path))

    def holder(self, run_id: str) -> str:
        """Who holds a run, in words."""
        path = self._path(run_id)
        try:
            number = path.read_text(encoding="ascii").strip() if path is not None else ""
        except (OSError, UnicodeDecodeError):
            number = ""
        return f"process {number}" if number.isdigit() else "another process"

    def close(self) -> None:
        """Lets go of all of them."""
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
        # Not inherited by processes that are started: theirs would keep a killed run alive. What is locked must still
        # be the file of that name: the one who held it removed it, and a third one may have made another.
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            if _is_file(handle, path):
                break
            os.close(handle)
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._files[run_id] = handle
        return True

    def _ask(self, function: str, run_id: str) -> bool:
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


@dataclass(frozen=True, slots=True)
class Hold:
    """The lock of one run that this process measures."""

    locks: RunLocks
    run_id: str

    def stands(self) -> bool:
        """Whether it is still held."""
        return self.locks.stands(self.run_id)

    def release(self) -> None:
        """Lets go of the run."""
        self.locks.release(self.run_id)


def settle(database: Database, locks: RunLocks) -> list[str]:
    """Marks every run that is `running` and was killed as cut short, so that it may go on; their ids."""
    run = tables.run.c
    with database.reading() as connection:
        running = list(connection.scalars(select(run.id).where(run.status == RunStatus.RUNNING.value)))
    killed = []
    for run_id in running:
        if not locks.take(run_id):
            continue
        try:
            with database.writing() as connection:
                sealing.leave_open(connection, run_id)
        finally:
            locks.release(run_id)
        killed.append(run_id)
    return killed


def _is_file(handle: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
