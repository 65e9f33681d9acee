"""Tombstones of removed raw records: enough to verify the run's hash for good, and to explain the removal.

A tombstone keeps every column that the run's hash covers, with the SHA-256 of the bytes, so that the rest of a run can
still be verified against `evidence_sha256`. It is permanent, and nothing can be put in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, delete, func, insert, select

from benchgate.errors import EvidenceError
from benchgate.store import rows, tables
from benchgate.store.database import fetch
from benchgate.store.rows import TELEMETRY_SEALED

RAW: tuple[tuple[Table, Sequence[str]], ...] = (
    (tables.observation, rows.OBSERVATION_SEALED),
    (tables.telemetry, TELEMETRY_SEALED),
)
"""The tables whose rows are raw records, and the columns of each that the run's hash covers."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Removal of a run's raw records: when (RFC 3339 UTC), by which command, how many rows and bytes."""

    removed_at: str
    reason: str
    n_rows: int
    n_bytes: int


def removal(connection: Connection, run_id: str) -> Removal | None:
    """Return the removal of a run's raw records; None where they are there."""
    stone = tables.tombstone.c
    counted = func.count(), func.sum(stone.n_bytes), func.max(stone.removed_at), func.max(stone.reason)
    n_rows, n_bytes, removed_at, reason = connection.execute(select(*counted).where(stone.run_id == run_id)).one()
    return Removal(removed_at, reason, n_rows, int(n_bytes)) if n_rows else None


def remove_raw(connection: Connection, run_id: str, *, removed_at: str, reason: str) -> Removal:
    """Replace all raw records of a run by tombstones. The caller checks that they may go, and commits."""
    stones = [stone for table, sealed in RAW for stone in _stones(connection, run_id, table, sealed)]
    if stones:
        stamp = {"run_id": run_id, "removed_at": removed_at, "reason": reason}
        connection.execute(insert(tables.tombstone), [stone | stamp for stone in stones])
    for table, _ in RAW:
        connection.execute(delete(table).where(table.c.run_id == run_id))
    return Removal(removed_at, reason, len(stones), sum(stone["n_bytes"] for stone in stones))


def _stones(connection: Connection, run_id: str, table: Table, sealed: Sequence[str]) -> list[rows.Row]:
    columns = [table.c[name] for name in sealed]
    wanted = select(*columns, func.length(table.c.data).label("n_bytes")).where(table.c.run_id == run_id)
    return [
        {
            "seq": row["seq"],
            "of_table": table.name,
            "sealed": rows.to_json([row[name] for name in sealed], "a tombstone"),
            "sha256": row["sha256"],
            "n_bytes": row["n_bytes"],
        }
        for row in fetch(connection, wanted.order_by(table.c.seq))
    ]


def sealed_rows(stone: rows.Row) -> rows.Row:
    """Return the sealed columns of the removed row. Raises EvidenceError for an inconsistent tombstone."""
    names = next((sealed for table, sealed in RAW if table.name == stone["of_table"]), None)
    values = json.loads(stone["sealed"])
    if names is None or len(values) != len(names):
        raise EvidenceError(f"it does not say what it stands for: {stone['of_table']}")
    row = dict(zip(names, values, strict=True))
    if (row["seq"], row["sha256"]) != (stone["seq"], stone["sha256"]):
        raise EvidenceError("it stands for another row than its own")
    return row


def evidence_sha256(
    run: rows.Row,
    arms: Sequence[rows.Row],
    left: Iterable[tuple[str, rows.Row]],
    stones: Iterable[rows.Row],
    events: Sequence[rows.Row],
) -> str:
    """Compute the hash over a finished run from the raw rows that are `left` (table, sealed columns) and tombstones.

    `events` may be the whole journal, or those events that the hash covers.
    """
    found: dict[str, list[rows.Row]] = {table.name: [] for table, _ in RAW}
    for name, row in [*left, *((stone["of_table"], sealed_rows(stone)) for stone in stones)]:
        found[name].append(row)
    for each in found.values():
        each.sort(key=lambda row: int(row["seq"]))
    telemetry = [[row[name] for name in TELEMETRY_SEALED] for row in found["telemetry"]]
    return rows.evidence_sha256(run, arms, found["observation"], telemetry, events)
