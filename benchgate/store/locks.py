"""One upgrade at a time: a file lock beside an SQLite store, a session lock on the Postgres server. And one at a time
who changes what is known of a finished run.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, text

from benchgate.errors import StoreError
from benchgate.store.engine import Database

WAIT_S = 60.0
_POLL_S = 0.05
_POSTGRES_KEY = 0x62656E63686761  # "benchga", ours among the advisory locks of that database


@contextmanager
def upgrade_lock(database: Database, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Holds the store's upgrade lock. Raises StoreError when another process keeps it longer than `wait_s`."""
    path = database.address.path
    with _file_lock(database, path, wait_s) if path is not None else _server_lock(database, wait_s):
        yield


@contextmanager
def _file_lock(database: Database, path: Path, wait_s: float) -> Iterator[None]:
    # The file stays: removing it would let two processes each lock a file of the same name.
    with database.errors(), path.with_name(path.name + ".lock").open("w") as handle:

        def try_lock() -> bool:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        _wait_for(try_lock, database, wait_s)
        yield


@contextmanager
def _server_lock(database: Database, wait_s: float) -> Iterator[None]:
    # A session lock on a connection of its own: a transaction's lock would go with the first commit of a migration.
    with database.errors(), database.engine.connect() as connection:
        session = connection.execution_options(isolation_level="AUTOCOMMIT")
        key = {"key": _POSTGRES_KEY}

        def try_lock() -> bool:
            return bool(session.scalar(text("SELECT pg_try_advisory_lock(:key)"), key))

        _wait_for(try_lock, database, wait_s)
        try:
            yield
        finally:
            session.execute(text("SELECT pg_advisory_unlock(:key)"), key)


def lock_run(connection: Connection, run_id: str) -> None:
    """Until the transaction ends nobody else takes in, promotes or bares this run.

    A writing transaction of SQLite is alone anyway.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:run, 0))"), {"run": run_id})


def _wait_for(try_lock: Callable[[], bool], database: Database, wait_s: float) -> None:
    give_up = time.monotonic() + wait_s
    while not try_lock():
        if time.monotonic() > give_up:
            raise StoreError(
                f"the store {database.address.shown} has been locked by another upgrade for {wait_s:g} s; "
                "wait for it to end, or stop it, and try again"
            )
        time.sleep(_POLL_S)
