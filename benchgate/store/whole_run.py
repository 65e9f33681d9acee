"""All rows that a store holds of one run: the value that bundles, imports and copies exchange."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, Table, select

from benchgate.errors import EvidenceError, UsageError
from benchgate.model.run import Run
from benchgate.store import rows, tables
from benchgate.store.database import fetch
from benchgate.store.tombstones import RAW, sealed_rows

PARTS: tuple[Table, ...] = (
    tables.arm,
    tables.observation,
    tables.telemetry,
    tables.event,
    tables.tombstone,
    tables.metric,
    tables.verdict,
    tables.noise_profile,
    tables.promotion,
    tables.imported,
)
"""The tables whose rows belong to one run, without `check_result`, which is derived from a verdict's document."""

MAX_UNPACKED_BYTES = 2**31
"""Largest size of a plan, or of the columns of one observation, after decompression."""

_AT_ONCE = 500  # runs in one query

Story = dict[int, tuple[object, ...]]
"""The record at each `seq` of a run: its table's name, then its sealed columns, or an event's kind and data."""


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
        table.name: fetch(connection, select(*(table.c[name] for name in sealed)).where(table.c.run_id == run_id))
        for table, sealed in (*RAW, (tables.event, ("seq", "kind", "data")))
    }
    return story_of(parts, fetch(connection, _rows_of(tables.tombstone, run_id)) if tombstones else ())


def story_of(parts: Mapping[str, Sequence[rows.Row]], stones: Sequence[rows.Row] = ()) -> Story:
    """Return the record at each `seq` of a run's rows by their tables' names."""
    story: Story = {row["seq"]: ("event", row["kind"], row["data"]) for row in parts["event"]}
    for table, sealed in RAW:
        story |= {row["seq"]: (table.name, *(row[name] for name in sealed)) for row in parts[table.name]}
    return story | {stone["seq"]: (stone["of_table"], *sealed_rows(stone).values()) for stone in stones}


def unpacked(data: bytes, what: str) -> bytes:
    """Decompress zlib data. Raises EvidenceError where it is damaged or larger than `MAX_UNPACKED_BYTES`."""
    opener = zlib.decompressobj()
    try:
        plain = opener.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as exc:
        raise EvidenceError(f"{what} cannot be unpacked: {exc}") from exc
    if not opener.eof or opener.unused_data:
        limit = f"{MAX_UNPACKED_BYTES:,} bytes"
        raise EvidenceError(f"{what} cannot be unpacked: it is truncated, or holds more than {limit}")
    return plain


def _rows_of(table: Table, run_id: str) -> Select[*tuple[object, ...]]:
    key = [column for column in table.primary_key.columns if column.name != "run_id"]
    return select(table).where(table.c.run_id == run_id).order_by(*key)
