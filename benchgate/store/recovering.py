"""Brings a run from its spool into a store: the rows that are missing there. Doing it again changes nothing."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.run import ALL_STORED, RunStatus
from benchgate.store import clock, rows, sealing, tables
from benchgate.store.alive import RunLocks
from benchgate.store.engine import Database, fetch
from benchgate.store.resumed import spool_left
from benchgate.store.spool import spool_lock
from benchgate.store.spooled import Spooled, read_spool
from benchgate.store.telemetry_rows import TELEMETRY_SEALED

_TABLES = {table.name: table for table in (tables.observation, tables.telemetry, tables.event)}
_COMPARED: Mapping[str, tuple[str, ...]] = {
    "observation": rows.OBSERVATION_SEALED,
    "telemetry": TELEMETRY_SEALED,
    "event": ("seq", "kind", "data"),
}


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of a spool: rows that the store lacked, rows that it had, and how the run stands there now.

    A run that is not over may go on. `torn_bytes`: of a last line that was cut short, and is left out.
    """

    run_id: str
    added: int
    present: int
    status: RunStatus
    is_over: bool
    torn_bytes: int


def recover(database: Database, locks: RunLocks, path: Path) -> Recovered:
    """Brings the run of a spool into the store, sealed where it had ended, else partial: it may go on.

    Raises StoreError for a run that is still measured, or over with other records, and EvidenceError for a spool that
    is damaged or says otherwise than the store. Then nothing is changed.
    """
    with spool_lock(path):
        spooled = read_spool(path)
        # A copy of the spool has a lock of its own: what says that the run is measured is the lock of the run.
        with _held(locks, spooled.run_id), database.writing() as connection:
            added = bring_in(connection, spooled)
            run = _run_of(connection, spooled.run_id)
            if not sealing.is_over(run):
                _end(connection, spooled)
                run = _run_of(connection, spooled.run_id)
    present = sum(table in _TABLES for table, _ in spooled.kept) - added
    status, over = RunStatus(run["status"]), sealing.is_over(run)
    return Recovered(spooled.run_id, added, present, status, over, spooled.torn_bytes)


@contextmanager
def _held(locks: RunLocks, run_id: str) -> Iterator[None]:
    """Keeps everybody else from measuring a run meanwhile; who is about to go on with it holds it already."""
    if locks.stands(run_id):
        yield
        return
    if not locks.take(run_id):
        raise StoreError(f"run {run_id} is being measured, by {locks.holder(run_id)}; wait for it to end")
    try:
        yield
    finally:
        locks.release(run_id)


def bring_in(connection: Connection, spooled: Spooled) -> int:
    """Adds the rows of the spool that the database lacks, and says how many. A run that is not over is running then."""
    _require_plan(spooled)
    run_id = spooled.run_id
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found:
        clock.require_by_now(connection, run_id, [("beginning", spooled.beginning.run["started_at"])])
        sealing.begin_run(connection, spooled.beginning.run, spooled.beginning.arms, spooled.beginning.plan)
        found = [_run_of(connection, run_id)]
    _require_same_run(found[0], spooled)
    missing = _missing(connection, spooled)
    if sealing.is_over(found[0]):
        if missing:
            raise StoreError(f"run {run_id} is over in this store without {len(missing)} records of this spool")
        return 0
    sealing.take_up(connection, run_id)
    for table, row in missing:
        connection.execute(insert(_TABLES[table]), row)
    for arm in spooled.of_table("arm"):
        replace_arm(connection, arm)
    return len(missing)


def replace_arm(connection: Connection, row: rows.Row) -> None:
    """Puts an arm's row in place of the one that the run has."""
    of_arm = (tables.arm.c.run_id == row["run_id"]) & (tables.arm.c.role == row["role"])
    connection.execute(delete(tables.arm).where(of_arm))
    connection.execute(insert(tables.arm), row)


def _end(connection: Connection, spooled: Spooled) -> None:
    if spooled.end is None:
        _note_all_stored(connection, spooled.run_id)
        sealing.leave_open(connection, spooled.run_id)
    else:
        sealing.seal_run(connection, spooled.run_id, spooled.end)


def _note_all_stored(connection: Connection, run_id: str) -> None:
    """So that whoever goes on with the run looks for no spool any more; once."""
    event = tables.event
    told = connection.execute(select(event.c.kind, event.c.data).where(event.c.run_id == run_id).order_by(event.c.seq))
    if spool_left((row.kind, json.loads(row.data)) for row in told) is not None:
        said = {"run_id": run_id, "seq": 1 + max(_stored(connection, run_id)), "kind": ALL_STORED, "data": "{}"}
        connection.execute(insert(event), said)


def _missing(connection: Connection, spooled: Spooled) -> list[tuple[str, rows.Row]]:
    """The rows that the database has not.

    Raises EvidenceError for a place at which it has another, and where either has rows that the other lacks: then the
    run was gone on with without this spool.
    """
    run_id, stored = spooled.run_id, _stored(connection, spooled.run_id)
    ours = {row["seq"]: (table, row) for table, row in spooled.kept if table in _TABLES}
    for seq, (table, row) in ours.items():
        if seq in stored and stored[seq] != (table, *(row[name] for name in _COMPARED[table])):
            raise EvidenceError(f"run {run_id}: {table} {seq} of the store is not the one of the spool")
    missing = [one for seq, one in ours.items() if seq not in stored]
    if missing and stored.keys() - ours.keys():
        raise EvidenceError(
            f"run {run_id}: the store has records of it that this spool lacks, and lacks {len(missing)} that this one "
            "has: it was measured in two places"
        )
    return missing


def _stored(connection: Connection, run_id: str) -> dict[int, tuple[object, ...]]:
    """What tells the row at each `seq` from another; without its bytes, which their hash stands for."""
    stored: dict[int, tuple[object, ...]] = {}
    for name, table in _TABLES.items():
        wanted = select(*(table.c[column] for column in _COMPARED[name])).where(table.c.run_id == run_id)
        stored |= {row.seq: (name, *row) for row in connection.execute(wanted)}
    return stored


def _require_plan(spooled: Spooled) -> None:
    wanted = spooled.beginning.run["plan_sha256"]
    try:
        found = hashlib.sha256(zlib.decompress(spooled.beginning.plan)).hexdigest()
    except zlib.error as exc:
        raise EvidenceError(f"run {spooled.run_id}: the plan of the spool is damaged: {exc}") from exc
    if found != wanted:
        raise EvidenceError(f"run {spooled.run_id}: the plan of the spool does not hash to {wanted}")


def _require_same_run(stored: Mapping[str, Any], spooled: Spooled) -> None:
    changing = ("status", "finished_at")
    for name, value in spooled.beginning.run.items():
        if name not in changing and stored[name] != value:
            raise EvidenceError(f"run {spooled.run_id}: its {name} in the store is not the one of the spool")


def _run_of(connection: Connection, run_id: str) -> rows.Row:
    return fetch(connection, select(tables.run).where(tables.run.c.id == run_id))[0]
