"""Database connections: addresses, transactions, error messages, and the file system check.

SQLite: every writing transaction takes the write lock at once (BEGIN IMMEDIATE), waits up to 10 s for it, and is on the
disk when it returns. With a plain BEGIN two writers failed in 116 of 160 transactions; with BEGIN IMMEDIATE in none.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from sqlalchemy import Connection, Engine, Select, create_engine
from sqlalchemy import event as sql_event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from benchgate import credentials
from benchgate.errors import StoreError, UsageError
from benchgate.system import lacking

BUSY_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 10
_PAUSE_S = (0.001, 0.02)
# A server that is cut off says nothing: without these, libpq would wait for it for hours. Of TCP alone.
_NOTICE_SILENCE = {"keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 40_000}
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_POSTGRES_NAMES = ("postgresql", "postgres", "postgresql+psycopg")
_SECRET_PARAMETERS = ("password", "sslpassword")
_READING = "benchgate_reading"  # tells the BEGIN of SQLite that no write will follow
_ADDRESS_HELP = "give a file name, sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"

_SQLITE_PRAGMAS = (
    f"busy_timeout={BUSY_TIMEOUT_MS}",
    "synchronous=FULL",  # what a stage measured must survive the loss of power, not only of the process
    "foreign_keys=ON",
    "trusted_schema=OFF",
)

_ADVICE = {
    "database is locked": "another process is writing to it; try again when it has finished",
    "due to lock timeout": "somebody else holds it; try again when they have finished",
    "unable to open database file": "check that its folder may be read and written",
    "attempt to write a readonly database": "check that the file and its folder may be written",
    "file is not a database": "it is some other file; give the store another name",
    "database disk image is malformed": "it is damaged; go back to a copy of it",
    "database or disk is full": "make room on its disk",
    "No space left on device": "make room on its disk",
    "File exists": "a part of its path is a file; name a file in a folder",
    "connection failed": "check the address, and that the server runs and lets you in",
}

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs",
        "gfs2", "ocfs2", "orangefs", "pvfs2", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs",
        "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.goofys", "fuse.mount-s3", "fuse.blobfuse2",
    }
)  # fmt: skip
"""File systems that other machines may write to at the same time."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a store. `shown` is as it was given, without password and options.

    `path` is the SQLite file itself, after following links; None for Postgres.
    """

    url: URL
    shown: str
    path: Path | None

    @classmethod
    def parse(cls, address: str) -> Address:
        """Parse a file name, `sqlite:///FILE` or a Postgres URL. Raises UsageError for anything else."""
        if not address:
            raise UsageError(f"the address of the store is empty; {_ADDRESS_HELP}")
        if "://" not in address:
            return cls._of_file(address)
        try:
            url = make_url(address)
        except (ArgumentError, ValueError):
            # Not even the parser's message may be shown: it can quote a part of the password.
            raise UsageError(f"the address of the store cannot be understood; {_ADDRESS_HELP}") from None
        if url.drivername == "sqlite":
            return cls._of_file(url.database or "")
        if url.drivername not in _POSTGRES_NAMES:
            near = get_close_matches(url.drivername, ("sqlite", *_POSTGRES_NAMES), n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(f"a store cannot be kept in {url.drivername!r}{hint}; {_ADDRESS_HELP}")
        for secret in (url.password, *(url.query.get(name) for name in _SECRET_PARAMETERS)):
            credentials.register(*([secret] if isinstance(secret, str) else secret or ()))
        plain = URL.create("postgresql", url.username, None, url.host, url.port, url.database)
        return cls(url.set(drivername="postgresql+psycopg"), plain.render_as_string(), None)

    @property
    def shown_if_whole(self) -> str:
        """Return `shown` if it reaches the store without a password or an option, else "": a command would fail."""
        return self.shown if self.path is not None or Address.parse(self.shown).url == self.url else ""

    @classmethod
    def _of_file(cls, name: str) -> Address:
        if name in ("", ":memory:"):
            raise UsageError(f"a store in memory would forget its evidence; {_ADDRESS_HELP}")
        given = Path(name).expanduser()
        path = Path(os.path.realpath(given))  # a process that follows a link must find the same locks beside it
        return cls(URL.create("sqlite", database=str(path)), str(given), path)


@dataclass(frozen=True, slots=True)
class Database:
    """Open database: reading and writing transactions, whose failures are StoreErrors."""

    address: Address
    engine: Engine
    reader: Engine  # the same connections, for transactions that read one state of the store and write nothing
    fixed: tuple[int, int] | None = None  # state of an SQLite file whose folder cannot be written: it must stay so

    @classmethod
    def connect(cls, address: Address) -> Database:
        """Create an engine; the first transaction connects. Raises StoreError when its driver is missing."""
        if address.path is not None:
            fixed = _file_state(address.path) if _is_read_only(address.path) else None
            engine = _sqlite_engine(address, read_only=fixed is not None)
            return cls(address, engine, engine.execution_options(**{_READING: True}), fixed)
        engine = _postgres_engine(address)
        reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        return cls(address, engine, reader)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read-only transaction: it sees one state of the store and waits for no writer."""
        with self.errors(), self.reader.begin() as connection:
            yield connection
            if self.fixed is not None and self.fixed != _file_state(self.address.path):
                raise StoreError(
                    f"the store {self.address.shown} was changed while it was read from a read-only folder; try again"
                )

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is committed and on the disk when the block ends, and undone when it raises."""
        with self.errors(), self.engine.begin() as connection:
            if self.address.path is None:  # as long as SQLite waits; a server has no such limit of its own
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {BUSY_TIMEOUT_MS}")
            yield connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert driver errors into StoreError with the store's address, the cause and a remedy, without passwords.

        A Ctrl-C stays one, also where the roll-back that it causes fails.
        """
        handled = sys.exception()
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError) as exc:
            context: BaseException | None = exc
            while context is not None and context is not handled:
                if isinstance(context, KeyboardInterrupt):
                    raise context from exc
                context = context.__context__
            cause = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
            text, url = " ".join(str(cause).split()), self.address.url
            for secret in (url.password, *(url.query.get(name) for name in _SECRET_PARAMETERS)):
                if isinstance(secret, str) and secret:
                    for spelling in {secret, quote(secret), quote_plus(secret)}:
                        text = text.replace(spelling, "***")
            advice = next((f"; {advice}" for sign, advice in _ADVICE.items() if sign in text), "")
            raise StoreError(f"the store {self.address.shown}: {text}{advice}") from exc

    def restrict(self) -> None:
        """Let an SQLite file's owner alone read it, before texts of users come into it."""
        for path in [] if self.address.path is None else _files_of(self.address.path):
            with suppress(OSError):  # somebody else's, who decides about it
                path.chmod(path.stat().st_mode & 0o700)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def fetch(connection: Connection, statement: Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return all rows of a query as dictionaries."""
    return [row._asdict() for row in connection.execute(statement)]


def _files_of(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{ending}") for ending in ("", "-wal", "-shm")]


def _is_read_only(path: Path) -> bool:
    """Return True for a file that SQLite can open only as immutable: it cannot create its log beside it.

    Where the log exists, a writer may be at work, and SQLite reads both files.
    """
    return path.exists() and not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()


def _file_state(path: Path | None) -> tuple[int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found is not None else None


def _sqlite_engine(address: Address, *, read_only: bool) -> Engine:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"the store {address.shown} needs SQLite 3.37 or newer and this Python has {sqlite3.sqlite_version}; "
            "use a newer Python, or a store on Postgres"
        )
    options: dict[str, Any] = {}
    if read_only:
        uri = f"file:{quote(str(address.path))}?mode=ro&immutable=1"
        options["creator"] = partial(sqlite3.connect, uri, uri=True, check_same_thread=False)
    engine = create_engine(address.url, hide_parameters=True, **options)

    @sql_event.listens_for(engine, "connect")
    def _set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        for pragma in _SQLITE_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @sql_event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get(_READING, False)
        if reading:
            connection.exec_driver_sql("BEGIN")
        else:
            _begin_writing(connection.connection.driver_connection)

    return engine


def _begin_writing(driver: Any) -> None:
    """Take the write lock within the connection's busy timeout.

    SQLite's own waiting polls ten times a second at last, without a queue: of eight processes that write all the time
    one may get no turn before its timeout. Polling more often with random pauses lets all of them through.
    """
    (patience_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
    give_up_s = time.monotonic() + patience_ms / 1000
    driver.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_s:
                    raise
                time.sleep(random.uniform(*_PAUSE_S))
            else:
                return
    finally:
        driver.execute(f"PRAGMA busy_timeout={patience_ms}")


def _postgres_engine(address: Address) -> Engine:
    options = {"application_name": "benchgate", "connect_timeout": CONNECT_TIMEOUT_S, **_NOTICE_SILENCE}
    try:
        return create_engine(
            address.url,
            hide_parameters=True,
            pool_pre_ping=True,  # a run can leave its connection idle for longer than a firewall likes
            connect_args={name: value for name, value in options.items() if name not in address.url.query},
        )
    except ImportError as exc:
        missing = f"the store {address.shown} needs the Postgres driver, which is not installed"
        raise StoreError(lacking(missing, "postgres")) from exc


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """Return the network file system that a file (existing or not) is on; None for any other, or if unknown.

    SQLite's write-ahead log needs memory that all its users share. Over a network file system each machine has its
    own, and two writers damage the file without an error (sqlite.org/wal.html, sqlite.org/howtocorrupt.html).
    `mounts` is the kernel's table of mounted file systems (proc_pid_mountinfo(5)).
    """
    try:
        table = (mounts or _MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None  # another system: whether the log can be kept is tried when it is turned on
    place = path.expanduser().absolute().resolve()
    found: tuple[int, str] = (-1, "")
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        words, kinds = left.split(" "), right.split(" ")
        if len(words) < 5:
            continue
        point = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), words[4]))
        # A later mount on the same place, or on a deeper one, hides the earlier one.
        if place.is_relative_to(point) and len(point.parts) >= found[0]:
            found = len(point.parts), kinds[0]
    return found[1] if found[1] in NETWORK_FILE_SYSTEMS else None
