"""Schema migrations of a store. The only user of alembic.

A store made by a newer benchgate is never touched. An older SQLite store is upgraded when it is opened, with a copy
kept beside it; an older Postgres store serves others too and is upgraded only on request.
"""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import inspect, text

import benchgate
from benchgate.errors import Command, Remedy, StoreError, UsageError
from benchgate.store.database import Address, Database, network_file_system
from benchgate.store.locks import upgrade_lock
from benchgate.store.missing import missing_store
from benchgate.store.tables import metadata

HEAD = "0008"  # the schema this benchgate reads and writes: the newest revision in `migrations/`

_VERSION_TABLE = "benchgate_schema"  # not alembic's default name: another program may share the database
_one_upgrade = threading.Lock()  # alembic keeps its current context in module globals


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Result of an upgrade. `before` is None for a new store; `backup` is the copy of an SQLite store with data."""

    before: str | None
    after: str
    backup: Path | None


@dataclass(frozen=True, slots=True)
class _Found:
    """Contents of a database: schema revision (None: no benchgate schema), last writer, emptiness."""

    revision: str | None
    tool_version: str | None
    empty: bool


def upgrade(address: str, *, create: bool = True) -> Upgrade:
    """Create the store (only with `create`) or bring it to HEAD; do nothing when it is there.

    Raises StoreError or UsageError.
    """
    database = Database.connect(Address.parse(address))
    try:
        _require_place(database, create=create)
        if not create and _find(database).revision is None:
            raise missing_store(database.address.shown)
        return _upgrade(database)
    finally:
        database.close()


@contextmanager
def opened(address: str, *, create: bool) -> Iterator[Database]:
    """Open the database of a store that is ready to use, for management and exchange; close it at the end."""
    database = Database.connect(Address.parse(address))
    try:
        ensure_current(database, create=create)
        yield database
    finally:
        database.close()


def ensure_current(database: Database, *, create: bool) -> None:
    """Make the store ready to use: create it (only with `create`) or upgrade it, or refuse with a remedy."""
    _require_place(database, create=create)
    found = _find(database)
    if found.revision == HEAD:
        return
    if found.revision is None and not create:
        raise missing_store(database.address.shown)
    if found.revision is not None and database.address.path is None:
        _refuse_newer(database, found)
        purpose = "upgrade it once, when no older benchgate uses it any more,"
        raise StoreError(
            f"the store {database.address.shown} has schema {found.revision} and this benchgate needs {HEAD}",
            remedies=(Remedy(purpose, Command.UPGRADE, store=database.address.shown_if_whole),),
        )
    _upgrade(database)


def _require_place(database: Database, *, create: bool) -> None:
    """Make a file's folder (with `create`), and refuse a file whose log is not shared by all its users.

    The log is not shared on a network file system, and with hard links.
    """
    path = database.address.path
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"the store {path} is a folder; give a file, like {path / 'benchgate.db'}")
    if create:
        with database.errors():
            path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise missing_store(database.address.shown)
    if (kind := network_file_system(path)) is not None:
        raise StoreError(
            f"the store {path} is on a network file system ({kind}), where SQLite's write-ahead log can be damaged "
            "without notice; put it on a local disk, or use a store on Postgres where several machines write"
        )
    try:
        names = path.stat().st_nlink
    except OSError:  # it does not exist yet, or cannot be read
        names = 1
    if names > 1:
        raise StoreError(
            f"the store {path} has {names} names (hard links), and SQLite keeps its log beside the one it is opened "
            "by: two who come by different names damage it without notice; remove the others, and copy a store with "
            f"""`sqlite3 {path} ".backup COPY"`"""
        )


def is_current(database: Database) -> bool:
    """Return True for a store of this benchgate's schema. Writes nothing; raises StoreError for a newer one's."""
    path = database.address.path
    if path is not None and not path.exists():
        return False
    found = _find(database)
    if found.revision == HEAD:
        return True
    _refuse_newer(database, found)
    return False


def migrations_dir() -> Path:
    """Return the migrations as installed in the wheel, or those of the repository."""
    package = Path(benchgate.__file__).parent
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError("the migrations are missing from this installation of benchgate; install it again")


def _upgrade(database: Database) -> Upgrade:
    with upgrade_lock(database):
        found = _find(database)  # again: another process may have done it while we waited
        if found.revision == HEAD:
            return Upgrade(found.revision, HEAD, None)
        _refuse_newer(database, found)
        if found.revision is None and not found.empty:
            raise StoreError(
                f"the database {database.address.shown} holds other tables and no benchgate schema; "
                "give the store a database or a schema of its own"
            )
        backup = None
        if database.address.path is not None:
            backup = _prepare_file(database, database.address.path, found)
        _run_migrations(database)
        return Upgrade(found.revision, HEAD, backup)


def _find(database: Database) -> _Found:
    with database.reading() as connection:
        tables = set(inspect(connection).get_table_names())
        revision: str | None = None
        tool: str | None = None
        if _VERSION_TABLE in tables:
            revision = connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}"))
        if "store_info" in tables:
            tool = connection.scalar(text("SELECT value FROM store_info WHERE key = 'tool_version'"))
    return _Found(revision, tool, empty=not tables)


def _refuse_newer(database: Database, found: _Found) -> None:
    if found.revision is None:
        return
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory(str(migrations_dir())).walk_revisions()}
    if found.revision in known:
        return
    writer = f"benchgate {found.tool_version}" if found.tool_version else "a newer benchgate"
    raise StoreError(
        f"the store {database.address.shown} has schema {found.revision}, made by {writer}; this is benchgate "
        f"{benchgate.__version__} and reads up to schema {HEAD}; install {writer} or newer"
    )


def _run_migrations(database: Database) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    # One transaction: a migration that fails half-way leaves the store as it was.
    with _one_upgrade, database.writing() as connection:
        config.attributes.update(connection=connection, version_table=_VERSION_TABLE, target_metadata=metadata)
        try:
            command.upgrade(config, HEAD)
        except CommandError as exc:
            raise StoreError(
                f"the store {database.address.shown} could not be upgraded to schema {HEAD}: {exc}"
            ) from exc
        connection.execute(text("DELETE FROM store_info WHERE key = 'tool_version'"))
        connection.execute(
            text("INSERT INTO store_info (key, value) VALUES ('tool_version', :version)"),
            {"version": benchgate.__version__},
        )


def _prepare_file(database: Database, path: Path, found: _Found) -> Path | None:
    """Turn on the write-ahead log, which stays on, and copy a store that has data. Returns the copy's path."""
    backup = None
    if found.revision is not None:
        with database.reading() as connection:
            has_runs = connection.scalar(text("SELECT 1 FROM run LIMIT 1")) is not None
        if has_runs:  # `NAME.schema-0001.backup`, with a number where an earlier copy has that name
            backup = first = path.with_name(f"{path.name}.schema-{found.revision}.backup")
            number = 2
            while backup.exists():
                backup, number = first.with_name(f"{first.name}.{number}"), number + 1
    with database.errors(), closing(sqlite3.connect(path)) as plain:
        (mode,) = plain.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"the store {path} cannot keep a write-ahead log here; put it on a local disk")
        if backup is not None:
            backup.touch(mode=stat.S_IMODE(path.stat().st_mode), exist_ok=False)
            try:
                with closing(sqlite3.connect(backup)) as copy:
                    plain.backup(copy)
            except BaseException:  # part of a copy would pass for one
                backup.unlink(missing_ok=True)
                raise
    return backup
