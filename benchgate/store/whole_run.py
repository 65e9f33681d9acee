"""Everything a store holds of one run, as rows: what goes into a bundle, and from one store into another."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, Table, select

from benchgate.errors import EvidenceError, UsageError
from benchgate.store import rows, tables
from benchgate.store.engine import fetch
from benchgate.store.rows import OBSERVATION_SEALED
from benchgate.store.telemetry_rows import TELEMETRY_SEALED
from benchgate.store.tombstones import sealed_rows

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
"""The tables whose rows belong to one run. `check_result` does not count: it is read off a verdict's document."""

MOST_UNPACKED = 2**31
"""Bytes that a plan, or the columns of one observation, may come to when they are unpacked."""

Story = dict[int, tuple[object, ...]]
"""What was kept of a run at each `seq`: the table's name, then what is sealed of the row, or the whole event."""


@dataclass(frozen=True, slots=True)
class WholeRun:
    """One run: its row, its plan under zlib as it was stored, and the rows of each of `PARTS` by the table's name."""

    run: rows.Row
    plan: bytes
    parts: Mapping[str, Sequence[rows.Row]]

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.run["id"])

    def of(self, table: Table) -> Sequence[rows.Row]:
        """The rows of one table, in the order of its key; verdicts as they were reached, numbered anew."""
        return self.parts[table.name]

    @property
    def story(self) -> Story:
        """What was kept at each `seq`; a removed row counts by its tombstone."""
        told = _story(self.of(tables.observation), self.of(tables.telemetry), self.of(tables.event))
        return told | _buried(self.of(tables.tombstone))


def read_whole(connection: Connection, run_id: str) -> WholeRun:
    """All rows of a run. UsageError where the store has no such run, EvidenceError where its plan is missing."""
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found:
        raise UsageError(f"the store has no run with the id {run_id!r}; @latest is the newest one it has")
    plan = connection.scalar(select(tables.plan.c.data).where(tables.plan.c.sha256 == found[0]["plan_sha256"]))
    if plan is None:
        raise EvidenceError(f"run {run_id}: its plan {found[0]['plan_sha256']} is missing: the store is damaged")
    parts = {table.name: fetch(connection, _rows_of(table, run_id)) for table in PARTS}
    reached = sorted(parts["verdict"], key=lambda row: (row["decided_at"] or "", row["seq"]))
    parts["verdict"] = [row | {"seq": seq} for seq, row in enumerate(reached)]
    return WholeRun(found[0], plan, parts)


def read_story(connection: Connection, run_id: str) -> Story:
    """What a store has at each `seq` of a run, without its data."""

    def at(table: Table, names: Iterable[str]) -> list[rows.Row]:
        wanted = select(*(table.c[name] for name in names)).where(table.c.run_id == run_id)
        return fetch(connection, wanted)

    told = _story(
        at(tables.observation, OBSERVATION_SEALED),
        at(tables.telemetry, TELEMETRY_SEALED),
        fetch(connection, _rows_of(tables.event, run_id)),
    )
    return told | _buried(fetch(connection, _rows_of(tables.tombstone, run_id)))


def unpacked(data: bytes, what: str) -> bytes:
    """The bytes under zlib. EvidenceError where they are not, or come to more than `MOST_UNPACKED`."""
    opener = zlib.decompressobj()
    try:
        plain = opener.decompress(data, MOST_UNPACKED)
    except zlib.error as exc:
        raise EvidenceError(f"{what} cannot be unpacked: {exc}") from exc
    if not opener.eof or opener.unused_data:
        raise EvidenceError(f"{what} cannot be unpacked: it is cut short, or holds more than {MOST_UNPACKED:,} bytes")
    return plain


def _story(observations: Sequence[rows.Row], telemetry: Sequence[rows.Row], events: Sequence[rows.Row]) -> Story:
    told: Story = {row["seq"]: ("event", row["kind"], row["data"]) for row in events}
    for table, found, sealed in (
        ("observation", observations, OBSERVATION_SEALED),
        ("telemetry", telemetry, TELEMETRY_SEALED),
    ):
        told |= {row["seq"]: (table, *(row[name] for name in sealed)) for row in found}
    return told


def _buried(tombstones: Sequence[rows.Row]) -> Story:
    return {stone["seq"]: (stone["of_table"], *sealed_rows(stone).values()) for stone in tombstones}


def _rows_of(table: Table, run_id: str) -> Select[*tuple[object, ...]]:
    key = [column for column in table.primary_key.columns if column.name != "run_id"]
    return select(table).where(table.c.run_id == run_id).order_by(*key)
