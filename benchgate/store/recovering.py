"""Brings a run from its spool into a store: the rows that are missing there. Doing it again changes nothing."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.run import RunStatus
from benchgate.store import rows, sealing, tables
from benchgate.store.engine import Database, fetch
from benchgate.store.spool import spool_lock
from benchgate.store.spooled import Spooled, read_spool
from benchgate.store.telemetry_rows import TELEMETRY_SEALED

_TABLES = {table.name: table for table in (tables.observation, tables.telemetry, tables.event)}
_COMPARED = {"observation": rows.OBSERVATION_SEALED, "telemetry": TELEMETRY_SEALED, "event": ("seq", "kind", "data")}


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


def recover(database: Database, path: Path) -> Recovered:
    """Brings the run of a spool into the store, sealed where it had ended, else partial: it may go on.

    Raises StoreError for a run that is still measured, or over with other records, and EvidenceError for a spool that
    is damaged or says otherwise than the store. Then nothing is changed.
    """
    with spool_lock(path):
        spooled = read_spool(path)
        with database.writing() as connection:
            added = bring_in(connection, spooled)
            run = _run_of(connection, spooled.run_id)
            if not sealing.is_over(run):
                _end(connection, spooled)
                run = _run_of(connection, spooled.run_id)
    present = sum(table in _TABLES for table, _ in spooled.kept) - added
    status, over = RunStatus(run["status"]), sealing.is_over(run)
    return Recovered(spooled.run_id, added, present, status, over, spooled.torn_bytes)


def bring_in(connection: Connection, spooled: Spooled) -> int:
    """Adds the rows of the spool that the database lacks, and says how many. A run that is not over is running then."""
    _require_plan(spooled)
    run_id = spooled.run_id
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found:
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
        sealing.leave_open(connection, spooled.run_id)
    else:
        sealing.seal_run(connection, spooled.run_id, spooled.end)


def _missing(connection: Connection, spooled: Spooled) -> list[tuple[str, rows.Row]]:
    """The rows that the database has not. Raises EvidenceError for one that it has otherwise."""
    known = {name: _known(connection, name, spooled.run_id) for name in _TABLES}
    missing = []
    for table, row in spooled.kept:
        if table not in _TABLES:
            continue
        stored = known[table].get(row["seq"])
        if stored is None:
            missing.append((table, row))
        elif stored != tuple(row[name] for name in _COMPARED[table]):
            raise EvidenceError(f"run {spooled.run_id}: {table} {row['seq']} of the store is not the one of the spool")
    return missing


def _known(connection: Connection, table: str, run_id: str) -> dict[int, tuple[object, ...]]:
    """What tells one row of a table from another, by `seq`; without their bytes, which their hashes stand for."""
    columns = _TABLES[table].c
    wanted = select(*(columns[name] for name in _COMPARED[table])).where(columns.run_id == run_id)
    return {row.seq: tuple(row) for row in connection.execute(wanted)}


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
