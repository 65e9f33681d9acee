"""What is left of a run that was cut short, for it to go on: from its spool and from the database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from benchgate.errors import StoreError
from benchgate.model.run import Run
from benchgate.store import recovering, rows, sealing, tables
from benchgate.store.engine import Database, fetch
from benchgate.store.evidence import Known, known_beside
from benchgate.store.spool import spool_lock
from benchgate.store.spooled import Beginning, read_spool

_IN_ORDER = (tables.observation, tables.telemetry, tables.event)


@dataclass(frozen=True, slots=True)
class Left:
    """All that is known of a run which goes on: `kept` are its rows with their tables' names, in order of `seq`."""

    run: Run
    beginning: Beginning
    kept: tuple[tuple[str, rows.Row], ...]
    known: Known

    @property
    def next_seq(self) -> int:
        """The place of the row that comes next."""
        return max((row["seq"] for _, row in self.kept), default=-1) + 1

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of observations that it has."""
        return frozenset(row["kind"] for table, row in self.kept if table == tables.observation.name)


def take_up(database: Database, run_id: str, spool: Path) -> Left:
    """Lets a run go on, and gives what the database has of it once it has all that the spool had, if there is one.

    Raises StoreError for a run that is over or still measured, and EvidenceError for a spool that is damaged.
    """
    if spool.exists():
        with spool_lock(spool):
            spooled = read_spool(spool)
        if spooled.run_id != run_id:
            raise StoreError(f"the spool {spool} is of run {spooled.run_id}, not of {run_id}")
        with database.writing() as connection:
            recovering.bring_in(connection, spooled)
    with database.writing() as connection:
        sealing.take_up(connection, run_id)
        return _left(connection, run_id)


def _left(connection: Connection, run_id: str) -> Left:
    (row,) = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    arms = fetch(connection, tables.arms_of([run_id]))
    plan = connection.execute(select(tables.plan.c.data).where(tables.plan.c.sha256 == row["plan_sha256"])).scalar_one()
    run = rows.read_run(row, arms)
    begun = {name: value for name, value in row.items() if name != "evidence_sha256"}
    kept = [
        (table.name, one)
        for table in _IN_ORDER
        for one in fetch(connection, select(table).where(table.c.run_id == run_id))
    ]
    kept.sort(key=lambda one: one[1]["seq"])
    return Left(run, Beginning(begun, tuple(arms), plan), tuple(kept), known_beside(connection, run))
