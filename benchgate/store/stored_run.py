"""Runs in the database: their status, all their rows as one value, and tombstones of removed raw records.

Bundles, imports and copies exchange a `WholeRun`. A tombstone keeps every column that the run's hash covers, with the
SHA-256 of the removed bytes, so that a run without its raw records is still verified against `evidence_sha256`. It is
permanent, and nothing can be put in its place.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, Table, delete, func, insert, select, union_all, update

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.run import REPLICAS, RESUMED, Run, RunStatus
from benchgate.store import raw_records, rows, tables
from benchgate.store.database import fetch

ORDERED_TABLES = (tables.observation, tables.telemetry, tables.event)
"""The tables whose rows share one order (`seq`) in a run."""

RAW: tuple[tuple[Table, Sequence[str]], ...] = (
    (tables.observation, rows.OBSERVATION_SEALED),
    (tables.telemetry, rows.TELEMETRY_SEALED),
)
"""The tables whose rows are raw records, and the columns of each that the run's hash covers."""

PARTS: tuple[Table, ...] = (
    tables.arm, tables.observation, tables.telemetry, tables.event, tables.tombstone, tables.metric, tables.verdict,
    tables.noise_profile, tables.promotion, tables.imported,
)  # fmt: skip
"""The tables whose rows belong to one run, without `check_result`, which is derived from a verdict's document."""

MAX_UNPACKED_BYTES = 2**31  # largest size of a plan, or of the columns of one observation, after decompression
SMALL_UNPACKED_BYTES = 2**26
"""Size after decompression up to which every ratio is accepted: constant telemetry packs 1,000 to 1."""
_MAX_RATIO = 100  # of larger ones; 200,000 refused connections pack 60 to 1, zeros 1,030 to 1

_AT_ONCE = 500  # runs in one query

Story = dict[int, tuple[object, ...]]
"""The record at each `seq` of a run: its table's name, then its sealed columns, or an event's kind and data."""


# Status


def begin_run(connection: Connection, run: rows.Row, arms: Sequence[rows.Row], plan: bytes) -> None:
    """Insert a run with its arms and its plan (zlib), which may be there already or be inserted at this moment."""
    row = {"sha256": run["plan_sha256"], "data": plan}
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        connection.execute(sqlite.insert(tables.plan).values(row).on_conflict_do_nothing())
    else:
        from sqlalchemy.dialects import postgresql  # a twentieth of a command's start, loaded already where needed

        connection.execute(select(func.benchgate_begin_month(run["id"])))
        connection.execute(postgresql.insert(tables.plan).values(row).on_conflict_do_nothing())
    connection.execute(insert(tables.run), run)
    if arms:
        connection.execute(insert(tables.arm), arms)


def seal_run(connection: Connection, run_id: str, end: Mapping[str, Any]) -> None:
    """End a run with this `status` and `finished_at`, and seal it with the hash over all its evidence.

    Raises EvidenceError where two of its rows have one place: two processes wrote to it.
    """
    run = run_row(connection, run_id)
    if is_over(run):
        raise StoreError(f"run {run_id} is finished already")
    places = union_all(*(select(table.c.seq).where(table.c.run_id == run_id) for table in ORDERED_TABLES)).subquery().c
    twice = select(places.seq).group_by(places.seq).having(func.count() > 1).order_by(places.seq).limit(1)
    if (seq := connection.scalar(twice)) is not None:
        raise EvidenceError(
            f"run {run_id} cannot end: two of its rows have the place {seq}, so two processes wrote to it; "
            "run the suite again"
        )
    observations, telemetry = (_fetch_sealed(connection, run_id, table, names) for table, names in RAW)
    arms = fetch(connection, tables.arms_of([run_id]))
    event = tables.event.c
    events = select(tables.event).where(event.run_id == run_id, event.kind.in_((RESUMED, REPLICAS)))
    sha256 = rows.evidence_sha256(
        {**run, **end},
        arms,
        observations,
        [tuple(row.values()) for row in telemetry],
        fetch(connection, events.order_by(event.seq)),
    )
    sealed = {**end, "evidence_sha256": sha256}
    connection.execute(update(tables.run).where(tables.run.c.id == run_id).values(sealed))


def suspend(connection: Connection, run_id: str) -> None:
    """Mark a running run as interrupted: partial and without a hash, so that it may be resumed."""
    of_run = (tables.run.c.id == run_id) & (tables.run.c.status == RunStatus.RUNNING.value)
    connection.execute(update(tables.run).where(of_run).values(status=RunStatus.PARTIAL.value, finished_at=None))


def reopen(connection: Connection, run_id: str) -> None:
    """Set an interrupted run to running and remove its metrics. Raises StoreError for one that is over, or missing."""
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found or is_over(found[0]):
        raise StoreError(f"run {run_id} cannot go on: it is {found[0]['status'] if found else 'not in this store'}")
    reopened = {"status": RunStatus.RUNNING.value, "finished_at": None}
    connection.execute(update(tables.run).where(tables.run.c.id == run_id).values(reopened))
    connection.execute(delete(tables.metric).where(tables.metric.c.run_id == run_id))


def is_over(run: Mapping[str, Any]) -> bool:
    """Return True for a run that never changes again. An interrupted one is partial and has no hash."""
    is_interrupted = run["status"] == RunStatus.PARTIAL.value and run["evidence_sha256"] is None
    return run["status"] != RunStatus.RUNNING.value and not is_interrupted


# Rows


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run: its row, its plan as stored (zlib), and the rows of each of `PARTS` by the table's name."""

    run: rows.Row
    plan: bytes
    parts: Mapping[str, Sequence[rows.Row]]

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.run["id"])

    def of(self, table: Table) -> Sequence[rows.Row]:
        """Return the rows of a table in order of its key; verdicts in order of time, renumbered."""
        return self.parts[table.name]

    @property
    def story(self) -> Story:
        """The record at each `seq`; a removed row counts by its tombstone."""
        return story_of(self.parts, self.of(tables.tombstone))

    def compute_sha256(self) -> str:
        """Compute the evidence hash from the raw rows and the tombstones of removed ones."""
        found: dict[str, list[rows.Row]] = {table.name: list(self.of(table)) for table, _ in RAW}
        for stone in self.of(tables.tombstone):
            row = sealed_row(stone)
            found[stone["of_table"]].append(row)
        for each in found.values():
            each.sort(key=lambda row: int(row["seq"]))
        telemetry = [[row[name] for name in rows.TELEMETRY_SEALED] for row in found["telemetry"]]
        arms, events = self.of(tables.arm), self.of(tables.event)
        return rows.evidence_sha256(self.run, arms, found["observation"], telemetry, events)

    def instants(self) -> Iterator[tuple[str, str | None]]:
        """Yield every instant that orders runs or results, with what it belongs to."""
        yield from (("beginning", self.run["started_at"]), ("end", self.run["finished_at"]))
        yield from (("verdict", row["decided_at"]) for row in self.of(tables.verdict))
        yield from (("promotion", row["promoted_at"]) for row in self.of(tables.promotion))
        yield from (("noise profile", row["measured_at"]) for row in self.of(tables.noise_profile))


def read_whole(connection: Connection, run_id: str) -> WholeRun:
    """Read all rows of a run. Raises UsageError for an unknown run, EvidenceError where its plan is missing."""
    run = run_row(connection, run_id)
    plan = connection.scalar(select(tables.plan.c.data).where(tables.plan.c.sha256 == run["plan_sha256"]))
    if plan is None:
        raise EvidenceError(f"run {run_id}: its plan {run['plan_sha256']} is missing: the store is damaged")
    parts = {table.name: fetch(connection, _rows_of(table, run_id)) for table in PARTS}
    reached = sorted(parts["verdict"], key=lambda row: (row["decided_at"] or "", row["seq"]))
    parts["verdict"] = [row | {"seq": seq} for seq, row in enumerate(reached)]
    return WholeRun(run, plan, parts)


def run_row(connection: Connection, run_id: str) -> rows.Row:
    """Return the row of a run. Raises UsageError where the store has none."""
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found:
        raise UsageError(f"the store has no run with the id {run_id!r}; @latest is the newest one it has")
    return found[0]


def read_runs(connection: Connection, found: Sequence[rows.Row]) -> list[Run]:
    """Return the runs of these rows with their arms, in the same order."""
    arms: dict[str, list[rows.Row]] = {row["id"]: [] for row in found}
    ids = list(arms)
    for first in range(0, len(ids), _AT_ONCE):
        for arm in fetch(connection, tables.arms_of(ids[first : first + _AT_ONCE])):
            arms[arm["run_id"]].append(arm)
    return [rows.read_run(row, arms[row["id"]]) for row in found]


def read_story(connection: Connection, run_id: str, *, tombstones: bool = True) -> Story:
    """Read the record at each `seq` of a stored run, without its data."""
    parts = {
        table.name: _fetch_sealed(connection, run_id, table, names)
        for table, names in (*RAW, (tables.event, ("seq", "kind", "data")))
    }
    return story_of(parts, fetch(connection, _rows_of(tables.tombstone, run_id)) if tombstones else ())


def story_of(parts: Mapping[str, Sequence[rows.Row]], stones: Sequence[rows.Row] = ()) -> Story:
    """Return the record at each `seq` of a run's rows by their tables' names."""
    story: Story = {row["seq"]: ("event", row["kind"], row["data"]) for row in parts["event"]}
    for table, sealed in RAW:
        story |= {row["seq"]: (table.name, *(row[name] for name in sealed)) for row in parts[table.name]}
    return story | {stone["seq"]: (stone["of_table"], *sealed_row(stone).values()) for stone in stones}


def most_unpacked(packed: int) -> int:
    """Return the largest size to which so many bytes may grow."""
    return min(MAX_UNPACKED_BYTES, max(SMALL_UNPACKED_BYTES, _MAX_RATIO * packed))


def unpacked(data: bytes, what: str) -> bytes:
    """Decompress zlib data. Raises EvidenceError where it is damaged, or too large for the memory it may take.

    The limit depends on the packed size: a bundle of 4 MB must not cost gigabytes before it is refused.
    """
    most = most_unpacked(len(data))
    opener = zlib.decompressobj()
    try:
        plain = opener.decompress(data, most)
    except zlib.error as exc:
        raise EvidenceError(f"{what} cannot be unpacked: {exc}") from exc
    if not opener.eof or opener.unused_data:
        raise EvidenceError(f"{what} cannot be unpacked: it is truncated, or holds more than {most:,} bytes")
    return plain


def _rows_of(table: Table, run_id: str) -> Select[*tuple[object, ...]]:
    key = [column for column in table.primary_key.columns if column.name != "run_id"]
    return select(table).where(table.c.run_id == run_id).order_by(*key)


def _fetch_sealed(connection: Connection, run_id: str, table: Table, names: Iterable[str]) -> list[rows.Row]:
    columns = (table.c[name] for name in names)
    return fetch(connection, select(*columns).where(table.c.run_id == run_id).order_by(table.c.seq))


# Tombstones


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
    stones = []
    for table, sealed in RAW:
        columns = [table.c[name] for name in sealed]
        n_bytes = raw_records.n_bytes(connection, table.c.data).label("n_bytes")
        query = select(*columns, n_bytes).where(table.c.run_id == run_id).order_by(table.c.seq)
        for row in fetch(connection, query):
            stone = {name: row[name] for name in ("seq", "sha256", "n_bytes")}
            stone["sealed"] = rows.to_json([row[name] for name in sealed], "a tombstone")
            stone |= {"of_table": table.name, "run_id": run_id, "removed_at": removed_at, "reason": reason}
            stones.append(stone)
    if stones:
        connection.execute(insert(tables.tombstone), stones)
    for table, _ in RAW:
        connection.execute(delete(table).where(table.c.run_id == run_id))
    return Removal(removed_at, reason, len(stones), sum(stone["n_bytes"] for stone in stones))


def sealed_row(stone: rows.Row) -> rows.Row:
    """Return the sealed columns of the removed row. Raises EvidenceError for an inconsistent tombstone."""
    names = next((sealed for table, sealed in RAW if table.name == stone["of_table"]), None)
    values = json.loads(stone["sealed"])
    if names is None or len(values) != len(names):
        raise EvidenceError(f"it does not say what it stands for: {stone['of_table']}")
    row = dict(zip(names, values, strict=True))
    if (row["seq"], row["sha256"]) != (stone["seq"], stone["sha256"]):
        raise EvidenceError("it stands for another row than its own")
    return row
