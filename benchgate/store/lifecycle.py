"""Status changes of a run in the database, within the caller's transaction: begin, suspend, reopen, seal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, func, insert, select, union_all, update

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.run import REPLICAS, RESUMED, RunStatus
from benchgate.store import rows, tables
from benchgate.store.database import fetch

ORDERED_TABLES = (tables.observation, tables.telemetry, tables.event)
"""The tables whose rows share one order (`seq`) in a run."""


def begin_run(connection: Connection, run: rows.Row, arms: Sequence[rows.Row], plan: bytes) -> None:
    """Insert a run with its arms and its plan (zlib)."""
    _insert_plan(connection, run["plan_sha256"], plan)
    connection.execute(insert(tables.run), run)
    if arms:
        connection.execute(insert(tables.arm), arms)


def seal_run(connection: Connection, run_id: str, end: Mapping[str, Any]) -> None:
    """End a run with this `status` and `finished_at`, and seal it with the hash over all its evidence.

    Raises EvidenceError where two of its rows have one place: two processes wrote to it.
    """
    (row,) = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if is_over(row):
        raise StoreError(f"run {run_id} is finished already")
    places = union_all(*(select(table.c.seq).where(table.c.run_id == run_id) for table in ORDERED_TABLES)).subquery().c
    twice = select(places.seq).group_by(places.seq).having(func.count() > 1).order_by(places.seq).limit(1)
    if (seq := connection.scalar(twice)) is not None:
        raise EvidenceError(
            f"run {run_id} cannot end: two of its rows have the place {seq}, so two processes wrote to it; "
            "run the suite again"
        )
    sealed = {**end, "evidence_sha256": evidence_sha256(connection, {**row, **end})}
    connection.execute(update(tables.run).where(tables.run.c.id == run_id).values(sealed))


def suspend(connection: Connection, run_id: str) -> None:
    """Mark a running run as interrupted: partial and without a hash, so that it may be resumed."""
    of_run = (tables.run.c.id == run_id) & (tables.run.c.status == RunStatus.RUNNING.value)
    connection.execute(update(tables.run).where(of_run).values(status=RunStatus.PARTIAL.value, finished_at=None))


def reopen(connection: Connection, run_id: str) -> None:
    """Set an interrupted run to running. Raises StoreError for one that is over, or missing."""
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found or is_over(found[0]):
        raise StoreError(f"run {run_id} cannot go on: it is {found[0]['status'] if found else 'not in this store'}")
    went = {"status": RunStatus.RUNNING.value, "finished_at": None}
    connection.execute(update(tables.run).where(tables.run.c.id == run_id).values(went))


def select_resumable(suite: str | None) -> Select[*tuple[Any, ...]]:
    """Return the query for interrupted runs of a suite, or of all, newest first."""
    run = tables.run
    cut = run.c.status == RunStatus.PARTIAL.value, run.c.evidence_sha256.is_(None)
    wanted = select(run).where(*cut).order_by(run.c.started_at.desc(), run.c.id.desc())
    return wanted if suite is None else wanted.where(run.c.suite_name == suite)


def is_over(run: Mapping[str, Any]) -> bool:
    """Return True for a run that never changes again. An interrupted one is partial and has no hash."""
    open_again = run["status"] == RunStatus.PARTIAL.value and run["evidence_sha256"] is None
    return run["status"] != RunStatus.RUNNING.value and not open_again


def evidence_sha256(connection: Connection, run: Mapping[str, Any]) -> str:
    """Compute the hash over a stored run: its row, its arms and all observations, read without their bytes."""
    event = tables.event

    def sealed(table: Table, names: Iterable[str]) -> list[rows.Row]:
        columns = (table.c[name] for name in names)
        return fetch(connection, select(*columns).where(table.c.run_id == run["id"]).order_by(table.c.seq))

    arms = fetch(connection, tables.arms_of([run["id"]]))
    observations = sealed(tables.observation, rows.OBSERVATION_SEALED)
    windows = [tuple(row.values()) for row in sealed(tables.telemetry, rows.TELEMETRY_SEALED)]
    of_run = select(event).where(event.c.run_id == run["id"], event.c.kind.in_((RESUMED, REPLICAS)))
    return rows.evidence_sha256(run, arms, observations, windows, fetch(connection, of_run.order_by(event.c.seq)))


def _insert_plan(connection: Connection, sha256: str, plan: bytes) -> None:
    """Insert a plan unless it is there, also when another process inserts it at this moment."""
    row = {"sha256": sha256, "data": plan}
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        connection.execute(sqlite.insert(tables.plan).values(row).on_conflict_do_nothing())
        return
    from sqlalchemy.dialects import postgresql  # a twentieth of a command's start, and there already where it is needed

    connection.execute(postgresql.insert(tables.plan).values(row).on_conflict_do_nothing())
