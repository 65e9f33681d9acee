"""Spool of a run: the file its rows are written to before the database, its reader, and recovery from it.

The file holds the run first, then one line for each row in order of creation:

    SHA256 {"table":"observation","row":{"run_id":"019a…","seq":0,…,"data":"eJz…"}}

The SHA-256 covers the previous line's SHA-256 and the line's own text, so damaged, missing and moved lines are noticed.
The last line may be torn by a crash: nothing relied on it, and it is left out. Bytes are base64, a
plan is zlib-compressed as in its table. Each line is on the disk before the next thing is done.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from benchgate.errors import EvidenceError, StoreError
from benchgate.model import codec
from benchgate.model.run import ALL_STORED, RunStatus
from benchgate.store import clock, rows, stored_run, tables
from benchgate.store.database import Database, fetch
from benchgate.store.evidence import EVIDENCE_EVENTS, RunRows
from benchgate.store.integrity import is_uuid, validate_run
from benchgate.store.locks import RunLocks
from benchgate.store.merge import insert_rows
from benchgate.store.rows import BY_SPOOL, pending_spool
from benchgate.store.stored_run import read_story, run_row, story_of
from benchgate.system import create_temporary, replace_durably, try_file_lock

FILE_NAME = "spool.jsonl"

FORMAT = "benchgate-spool/1"
_HASH_CHARS = 64
_END = "run"  # the table of the line that ends a run
_TABLES = {table.name: table for table in stored_run.ORDERED_TABLES}
_COLUMNS = {
    **{table.name: frozenset(table.columns.keys()) for table in (*stored_run.ORDERED_TABLES, tables.arm)},
    _END: frozenset({"run_id", "status", "finished_at"}),
}
_RUN_COLUMNS = frozenset(tables.run.columns.keys()) - {"evidence_sha256"}


class Spool:
    """Spool of a run being measured, locked by this process so that nothing else recovers it meanwhile."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._end = 0
        self._last = ""
        self._clean = True

    @classmethod
    def create(cls, path: Path, header: RunHeader, kept: Iterable[tuple[str, rows.Row]] = ()) -> Spool:
        """Create a spool with these rows, replacing any file of its name; it is complete when the name exists.

        Raises StoreError when it cannot be written.
        """
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, part = create_temporary(path, 0o600)
        spool = cls(path, descriptor)
        try:
            _lock(spool._descriptor, path)
            spool._append({"format": FORMAT, "run": header.run, "arms": header.arms, "plan": header.plan})
            for table, row in kept:
                spool._append({"table": table, "row": row})
            with _writing(path):
                replace_durably(part, path)
        except BaseException:
            spool.close()
            _drop(part)
            raise
        return spool

    def append(self, table: str, row: rows.Row) -> None:
        """Add a row of a table, or the columns that end the run (`run`). It is on the disk on return."""
        self._append({"table": table, "row": row})

    def close(self) -> None:
        """Close the file and keep it."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """Delete the file, and its folder if that is empty then."""
        self.close()
        _drop(self.path)

    def _append(self, line: Mapping[str, object]) -> None:
        text = json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_base64).encode("ascii")
        digest = chain_hash(self._last, text)
        with _writing(self.path):
            if not self._clean:  # an earlier line was not finished: nothing of it may stand behind this one
                os.ftruncate(self._descriptor, self._end)
            self._clean = False
            data = memoryview(b"%s %s\n" % (digest.encode(), text))
            done = 0
            while done < len(data):  # the operating system may take less at a time
                done += os.pwrite(self._descriptor, data[done:], self._end + done)
            os.fsync(self._descriptor)
        self._end, self._last, self._clean = self._end + done, digest, True


@contextmanager
def spool_lock(path: Path) -> Iterator[None]:
    """Lock a spool that nothing writes. Raises StoreError while its run is being measured."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"the spool {path} cannot be read: {error.strerror}; check its name")


def _lock(descriptor: int, path: Path) -> None:
    if not try_file_lock(descriptor):
        raise StoreError(f"the run of {path} is still being measured; wait for it to end, or stop it")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        advice = "make room there, or give --work-dir a folder that can be written"
        raise StoreError(f"the spool {path} cannot be written: {exc.strerror}; {advice}") from exc


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError):  # logs of the run are in it
        path.parent.rmdir()


def _base64(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is nothing that a spool keeps")
    return base64.b64encode(value).decode("ascii")


@dataclass(frozen=True, slots=True)
class RunHeader:
    """A run before anything is measured: its row (without a hash), its arms' rows and its plan."""

    run: rows.Row
    arms: tuple[rows.Row, ...]
    plan: bytes


@dataclass(frozen=True, slots=True)
class Spooled:
    """Contents of a spool: `kept` are the rows after the header, each with its table's name, in order.

    `torn_bytes` is the length of a truncated last line, which is left out.
    """

    header: RunHeader
    kept: tuple[tuple[str, rows.Row], ...]
    torn_bytes: int

    @property
    def run_id(self) -> str:
        """Id of its run."""
        return str(self.header.run["id"])

    @property
    def end(self) -> rows.Row | None:
        """Status and end of the run; None where it did not end."""
        ends = self.of_table(_END)
        return {name: ends[-1][name] for name in ("status", "finished_at")} if ends else None

    def of_table(self, table: str) -> list[rows.Row]:
        """Return its rows of one table, in order."""
        return [row for name, row in self.kept if name == table]

    def run_rows(self, end: Mapping[str, Any] | None = None) -> RunRows:
        """Return the run's rows as a complete database would; ended by `end` where the spool has no end."""
        ended = self.end or end
        run = {**self.header.run, **(ended or {}), "evidence_sha256": None}
        latest = {row["role"]: row for row in (*self.header.arms, *self.of_table("arm"))}
        arms = [latest[role] for role in sorted(latest)]
        events = [row for row in self.of_table("event") if row["kind"] in EVIDENCE_EVENTS]
        found = RunRows(run, arms, self.of_table("observation"), self.of_table("telemetry"), events)
        return replace(found, run=run | {"evidence_sha256": found.sha256()}) if ended else found


def read_spool(path: Path) -> Spooled:
    """Read a spool. Raises EvidenceError, with the line, for any damage but a truncated last line."""
    try:
        with path.open("rb") as handle:
            return _read_lines(path, handle)
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def chain_hash(last: str, text: bytes) -> str:
    """Compute the hash of a line with this text after a line with the hash `last`."""
    digest = hashlib.sha256(last.encode())
    digest.update(text)
    return digest.hexdigest()


def _read_lines(path: Path, lines: Iterable[bytes]) -> Spooled:
    header: RunHeader | None = None
    kept: list[tuple[str, rows.Row]] = []
    last, damaged = "", b""
    for number, line in enumerate(lines, 1):
        if damaged and header is None:
            break
        if damaged:
            raise EvidenceError(f"{path}:{number - 1}: the line is not as it was written: the spool is damaged")
        text = line[_HASH_CHARS + 1 : -1]
        last = chain_hash(last, text)
        if line != b"%s %s\n" % (last.encode(), text):
            damaged = line
            continue
        try:
            document = json.loads(text, parse_constant=_reject_constant)
            if header is None:
                header = _read_header(document)
            else:
                kept.append(_read_row(document, header.run["id"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise EvidenceError(f"{path}:{number}: this is no line of a {FORMAT}: {exc}") from exc
    if header is None:
        raise EvidenceError(
            f"{path}:1: this is no {FORMAT}, or its first line is damaged: it does not begin with a run; give the "
            "spool of a run: spool.jsonl in its folder of the work directory"
        )
    return Spooled(header, tuple(kept), len(damaged))


def _read_header(document: dict[str, Any]) -> RunHeader:
    if document["format"] != FORMAT:
        raise ValueError(f"it is written as {document['format']!r}; install a newer benchgate")
    run: rows.Row = document["run"]
    plan = base64.b64decode(document["plan"], validate=True)
    _require_columns(run, _RUN_COLUMNS)
    if not is_uuid(run["id"]):  # it becomes a part of file names
        raise ValueError(f"the run's id is {ascii(run['id'])[:60]}, not a UUID in small letters")
    for arm in document["arms"]:
        _require_columns(arm, _COLUMNS["arm"], run["id"])
    return RunHeader(run, tuple(document["arms"]), plan)


def _read_row(document: dict[str, Any], run_id: str) -> tuple[str, rows.Row]:
    table, row = document["table"], document["row"]
    if table not in _COLUMNS:
        raise ValueError(f"it is of the unknown table {table!r}")
    _require_columns(row, _COLUMNS[table], run_id)
    if "data" in row and "codec" in row:
        row["data"] = base64.b64decode(row["data"], validate=True)
        if codec.digest(row["data"]) != row["sha256"]:
            raise ValueError(f"its bytes do not hash to {row['sha256']}")
    return table, row


def _reject_constant(constant: str) -> object:
    raise ValueError(f"it holds {constant}, which is no number")


def _require_columns(row: Mapping[str, object], columns: frozenset[str], run_id: str | None = None) -> None:
    if row.keys() != columns:
        raise ValueError(f"its columns are {', '.join(sorted(row))}, not {', '.join(sorted(columns))}")
    if run_id is not None and row["run_id"] != run_id:
        raise ValueError(f"it is of run {row['run_id']!r}, not of {run_id!r}")
    for name, value in row.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"its {name} has more than 64 bits")


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of a recovery: rows added, rows already present, and the status of the run in the store.

    A run that is not over may be resumed. `torn_bytes` is the length of a truncated last line, which is left out.
    """

    run_id: str
    added: int
    present: int
    status: RunStatus
    is_over: bool
    torn_bytes: int


def recover(database: Database, locks: RunLocks, path: Path) -> Recovered:
    """Insert a spool's run into the store, sealed where it had ended, else partial and resumable. Idempotent.

    Raises StoreError for a run that is being measured, or over with other records, and EvidenceError for a spool that
    is damaged, contradicts the store, or has a run that violates its rules. Then nothing is changed.
    """
    with spool_lock(path):
        spooled = read_spool(path)
        if rows.read_run(spooled.header.run, spooled.header.arms).keeps_texts:
            database.restrict()
        # A copy of the spool has a lock of its own: that the run is measured is known by the run's lock. This process
        # holds it already where it resumes the run.
        lock = nullcontext() if locks.is_held(spooled.run_id) else locks.hold(spooled.run_id)
        with lock, database.writing() as connection:
            added = insert_missing(connection, spooled, imported=True)
            run = run_row(connection, spooled.run_id)
            if not stored_run.is_over(run):
                if spooled.end is not None:
                    stored_run.seal_run(connection, spooled.run_id, spooled.end)
                # No row could be removed later, and one that cannot be read would keep every other run from its reader.
                whole = stored_run.read_whole(connection, spooled.run_id)
                validate_run(whole, str(path))
                clock.require_by_now(connection, spooled.run_id, whole.instants())
                if spooled.end is None:
                    # Record once that the spool holds nothing more, so that a resumption needs none.
                    event = tables.event
                    of_run = select(event).where(event.c.run_id == spooled.run_id).order_by(event.c.seq)
                    events = ((row["kind"], json.loads(row["data"])) for row in fetch(connection, of_run))
                    if pending_spool(events) is not None:
                        seq = 1 + max(read_story(connection, spooled.run_id, tombstones=False))
                        data = rows.to_json(BY_SPOOL, "the event of a recovery")
                        note = {"run_id": spooled.run_id, "seq": seq, "kind": ALL_STORED, "data": data}
                        connection.execute(insert(event), note)
                    stored_run.suspend(connection, spooled.run_id)
                run = run_row(connection, spooled.run_id)
    present = sum(table in _TABLES for table, _ in spooled.kept) - added
    status, over = RunStatus(run["status"]), stored_run.is_over(run)
    return Recovered(spooled.run_id, added, present, status, over, spooled.torn_bytes)


def insert_missing(connection: Connection, spooled: Spooled, *, imported: bool = False) -> int:
    """Insert the spool's rows that the database lacks, and return how many. An unfinished run is running then.

    Of an `imported` run that the database does not know, raw records stay in the rows: another store may have it too.
    """
    run_id, header = spooled.run_id, spooled.header
    try:
        plan_sha256 = hashlib.sha256(zlib.decompress(header.plan)).hexdigest()
    except zlib.error as exc:
        raise EvidenceError(f"run {run_id}: the plan of the spool is damaged: {exc}") from exc
    if plan_sha256 != header.run["plan_sha256"]:
        raise EvidenceError(f"run {run_id}: the plan of the spool does not hash to {header.run['plan_sha256']}")
    is_known = bool(fetch(connection, select(tables.run.c.id).where(tables.run.c.id == run_id)))
    if not is_known:
        clock.require_by_now(connection, run_id, [("beginning", header.run["started_at"])])
        stored_run.begin_run(connection, header.run, header.arms, header.plan)
    stored = run_row(connection, run_id)
    for name, value in header.run.items():
        if name not in ("status", "finished_at") and stored[name] != value:
            raise EvidenceError(f"run {run_id}: its {name} in the store is not the one of the spool")
    missing = _missing(connection, spooled)
    if stored_run.is_over(stored):
        if missing:
            raise StoreError(f"run {run_id} is over in this store without {len(missing)} records of this spool")
        return 0
    stored_run.reopen(connection, run_id)
    for table, row in missing:
        if imported and not is_known:
            insert_rows(connection, _TABLES[table], [row])
        else:
            connection.execute(insert(_TABLES[table]), row)
    for arm in spooled.of_table("arm"):
        replace_arm(connection, arm)
    return len(missing)


def replace_arm(connection: Connection, row: rows.Row) -> None:
    """Replace an arm's row of a run."""
    of_arm = (tables.arm.c.run_id == row["run_id"]) & (tables.arm.c.role == row["role"])
    connection.execute(delete(tables.arm).where(of_arm))
    connection.execute(insert(tables.arm), row)


def _missing(connection: Connection, spooled: Spooled) -> list[tuple[str, rows.Row]]:
    """Return the rows that the database lacks.

    Raises EvidenceError for a place at which it has another row, and where both have rows that the other lacks: then
    the run was resumed without this spool.
    """
    run_id, stored = spooled.run_id, read_story(connection, spooled.run_id, tombstones=False)
    kept = {row["seq"]: (table, row) for table, row in spooled.kept if table in _TABLES}
    for seq, record in story_of({name: spooled.of_table(name) for name in _TABLES}).items():
        if seq in stored and stored[seq] != record:
            raise EvidenceError(f"run {run_id}: {kept[seq][0]} {seq} of the store is not the one of the spool")
    missing = [one for seq, one in kept.items() if seq not in stored]
    if missing and stored.keys() - kept.keys():
        raise EvidenceError(
            f"run {run_id}: the store has records of it that this spool lacks, and lacks {len(missing)} that this one "
            "has: it was measured in two places"
        )
    return missing
