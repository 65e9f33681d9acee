"""Import of runs from bundles and other stores: new rows are added, known ones stay, contradictions are refused.

One transaction per run. The evidence of a run is compared row by row, so other evidence under a known id is refused; an
interrupted run that was resumed elsewhere is continued, as long as the rows here are a prefix of its rows. Verdicts,
promotions and notes of imports are united: every reader orders them by instant, so two stores that imported each
other's bundles agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import Connection, LargeBinary, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.run import RunStatus
from benchgate.store import clock, rows, tables
from benchgate.store.database import Database, fetch
from benchgate.store.integrity import validate_run
from benchgate.store.locks import RunLocks, lock_name
from benchgate.store.raw_records import RawBytes
from benchgate.store.rows import Row, check_rows
from benchgate.store.stored_run import (
    ORDERED_TABLES,
    Story,
    WholeRun,
    begin_run,
    is_over,
    read_story,
    read_whole,
    reopen,
)

_RUNNING = {"status": RunStatus.RUNNING.value, "finished_at": None, "evidence_sha256": None}
"""Columns of a run's row that change until it ends, with their first values."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of merging one run: `fate`, and how many verdicts and documents a known run got.

    `waiting_for` are runs that verdicts compare it with and that the store does not have; those verdicts were left out.
    `bared`: its raw records were removed in this store and are not imported again, so only the other copy has them.
    """

    run_id: str
    fate: Literal["new", "continued", "known"]
    added: int
    waiting_for: tuple[str, ...]
    bared: bool = False


def merge_run(connection: Connection, whole: WholeRun) -> MergeResult:
    """Merge a valid run into the store. Raises EvidenceError where the store has another run of this id."""
    lock_name(connection, whole.id)
    known = fetch(connection, select(tables.run).where(tables.run.c.id == whole.id))
    fate = _compare_with_store(connection, known[0], whole) if known else "new"
    if fate == "new":
        begin_run(connection, whole.run | _RUNNING, whole.of(tables.arm), whole.plan)
        _write_evidence(connection, whole, {})
    if fate == "continued":
        there = read_story(connection, whole.id)
        reopen(connection, whole.id)
        connection.execute(delete(tables.arm).where(tables.arm.c.run_id == whole.id))
        insert_rows(connection, tables.arm, whole.of(tables.arm))
        _write_evidence(connection, whole, there)
    metric, ended = tables.metric, whole.run["evidence_sha256"]
    # Metrics of an interrupted copy are of fewer records than the store may have.
    is_same = fate != "known" or (ended is not None and known[0]["evidence_sha256"] == ended)
    if is_same and connection.scalar(select(metric.c.seq).where(metric.c.run_id == whole.id).limit(1)) is None:
        insert_rows(connection, metric, whole.of(metric))
    added, waiting_for = _add_verdicts(connection, whole)
    for table in (tables.noise_profile, tables.promotion, tables.imported):
        added += _add_documents(connection, table, whole.of(table))
    stones = tables.tombstone.c
    removed = set(connection.scalars(select(stones.seq).where(stones.run_id == whole.id)))
    bared = any(row["seq"] in removed for table in (tables.observation, tables.telemetry) for row in whole.of(table))
    return MergeResult(whole.id, fate, added if fate == "known" else 0, waiting_for, bared)


def _compare_with_store(connection: Connection, known: rows.Row, whole: WholeRun) -> Literal["continued", "known"]:
    """Return whether the store has all of the run's evidence or a prefix. Raises EvidenceError for neither."""
    if any(known[name] != value for name, value in whole.run.items() if name not in _RUNNING):
        raise _conflict(whole, "its suite, plan, seed or start")
    ours, theirs = read_story(connection, whole.id), whole.story
    if not _is_prefix(ours, theirs) and not _is_prefix(theirs, ours):
        raise _conflict(whole, "what was observed in it")
    if is_over(known) and is_over(whole.run):
        if ours != theirs or known["evidence_sha256"] != whole.run["evidence_sha256"]:
            raise _conflict(whole, "what was observed in it")
        return "known"
    if is_over(known) and not _is_prefix(theirs, ours):
        raise _conflict(whole, "what was observed after its end here")
    if is_over(whole.run) and not _is_prefix(ours, theirs):
        raise _conflict(whole, "what was observed here after its end there")
    further = len(theirs) > len(ours) or is_over(whole.run)
    return "continued" if further and not is_over(known) else "known"


def _is_prefix(story: Story, of: Story) -> bool:
    return all(of.get(seq) == record for seq, record in story.items())


def _conflict(whole: WholeRun, what: str) -> EvidenceError:
    return EvidenceError(
        f"run {whole.id}: the store has a run of this id that differs in {what}; nothing was taken in: "
        "look which of the two was changed, and import into another store to see both"
    )


def _write_evidence(connection: Connection, whole: WholeRun, there: Story) -> None:
    """Insert the missing raw rows of a running run, then its end: only after that tombstones are accepted."""
    for table in (*ORDERED_TABLES, tables.tombstone):
        if table is tables.tombstone:
            end = {name: whole.run[name] for name in _RUNNING}
            connection.execute(update(tables.run).where(tables.run.c.id == whole.id).values(end))
        insert_rows(connection, table, [row for row in whole.of(table) if row["seq"] not in there])


def _add_verdicts(connection: Connection, whole: WholeRun) -> tuple[int, tuple[str, ...]]:
    """Add the verdicts that the store lacks, oldest first. Returns how many, and the runs they wait for."""
    verdict = tables.verdict

    def identity(row: rows.Row) -> tuple[object, ...]:
        return row["compared_run_id"], row["decided_at"], row["document"]

    known = {identity(row) for row in fetch(connection, select(verdict).where(verdict.c.run_id == whole.id))}
    new = [row for row in whole.of(verdict) if identity(row) not in known]
    compared = {row["compared_run_id"] for row in new} - {None}
    there = set(connection.scalars(select(tables.run.c.id).where(tables.run.c.id.in_(compared)))) | {None}
    ready = [row for row in new if row["compared_run_id"] in there]  # oldest first, as they were read
    last = connection.scalar(select(func.max(verdict.c.seq)).where(verdict.c.run_id == whole.id))
    for seq, row in enumerate(ready, 0 if last is None else last + 1):
        connection.execute(insert(verdict), row | {"seq": seq})
        insert_rows(connection, tables.check_result, list(check_rows(whole.id, seq, json.loads(row["document"]))))
    return len(ready), tuple(sorted(compared - there))


def _add_documents(connection: Connection, table: Table, found: Sequence[rows.Row]) -> int:
    """Add rows by key and return how many were new. Raises EvidenceError where a known key differs."""
    (key,) = table.primary_key.columns
    new = []
    for row in found:
        known = fetch(connection, select(table).where(key == row[key.name]))
        if known and known[0] != row:
            raise EvidenceError(
                f"run {row['run_id']}: the store has another {table.name} {row[key.name]!r}; nothing was taken in"
            )
        new += [row] if not known else []
    insert_rows(connection, table, new)
    return len(new)


@dataclass(frozen=True, slots=True)
class RunSource:
    """Source of a run: its name in messages, and how to read it."""

    name: str
    read: Callable[[], WholeRun]


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of importing one source: either it was `merged`, or nothing was imported because of a `problem`."""

    source: str
    merged: MergeResult | None
    problem: str | None = None


def import_runs(target: Callable[[], Database], sources: Iterable[RunSource]) -> Iterator[ImportResult]:
    """Import runs one by one. A damaged, hostile or contradicting run does not keep others out.

    A verdict that compares two runs needs both, so runs that wait for another are tried again at the end. `target` is
    called only once a valid run is there, so that no store is created for nothing.
    """
    waiting: list[tuple[RunSource, MergeResult]] = []
    for source in sources:
        taken = _import_run(target, source)
        if taken.merged is not None and taken.merged.waiting_for:
            waiting.append((source, taken.merged))
        else:
            yield taken
    for source, first in waiting:
        again = _import_run(target, source)
        if again.merged is not None:
            added = first.added + again.merged.added if first.fate == "known" else 0
            again = replace(again, merged=replace(again.merged, fate=first.fate, added=added))
        yield again


def copy_store(origin: Database, target: Database) -> Iterator[ImportResult]:
    """Copy every run of one store into another, oldest first, then the client profiles.

    Raises UsageError where both are one store.
    """
    if origin.address.url == target.address.url:
        raise UsageError(f"{origin.address.shown} is both the store to copy and the one to copy into")
    with origin.reading() as connection:
        ids = connection.scalars(select(tables.run.c.id).order_by(tables.run.c.started_at, tables.run.c.id)).all()
        profiles = fetch(connection, select(tables.client_profile))

    def read(run_id: str) -> WholeRun:
        with origin.reading() as connection:
            return read_whole(connection, run_id)

    sources = (RunSource(origin.address.shown, partial(read, run_id)) for run_id in ids)
    yield from import_runs(lambda: target, sources)
    table = tables.client_profile
    with target.writing() as connection:
        known = {(row["fingerprint"], row["measured_at"]) for row in fetch(connection, select(table))}
        new = [row for row in profiles if (row["fingerprint"], row["measured_at"]) not in known]
        insert_rows(connection, table, new)


def _import_run(target: Callable[[], Database], source: RunSource) -> ImportResult:
    try:
        whole = source.read()
    except StoreError as exc:  # damaged, or a file of its raw records is lost
        return ImportResult(source.name, None, str(exc))
    try:
        validate_run(whole, source.name)
        if rows.read_run(whole.run, whole.of(tables.arm)).keeps_texts:
            target().restrict()
        with target().writing() as connection:
            clock.require_by_now(connection, whole.id, whole.instants())
            with _exclusive(target(), connection, whole.id):
                return ImportResult(source.name, merge_run(connection, whole))
    except EvidenceError as exc:
        return ImportResult(source.name, None, str(exc))


@contextmanager
def _exclusive(database: Database, connection: Connection, run_id: str) -> Iterator[None]:
    """Hold the lock of an unfinished run until all of it is written. Raises EvidenceError while it is measured.

    The lock is released before the caller commits: another import of the run waits for the commit and must not find the
    lock taken.
    """
    lock_name(connection, run_id)
    known = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not known or is_over(known[0]):
        yield
        return
    locks = RunLocks(database)
    try:
        if not locks.take(run_id):
            raise EvidenceError(
                f"run {run_id} is being measured, by {locks.holder(run_id)}; take it in when it has ended"
            )
        yield
    finally:
        locks.close()


def insert_rows(connection: Connection, table: Table, found: Sequence[Row]) -> None:
    """Insert rows with equal columns, by COPY on Postgres; triggers check each of them on both databases.

    Raw records are kept in the rows: a file of the store that they came from is removed with the runs of that store.
    """
    if not found:
        return
    if connection.dialect.name == "sqlite":
        raw = {column.name for column in table.columns if isinstance(column.type, RawBytes)}
        values = {name: bindparam(name, type_=LargeBinary() if name in raw else None) for name in found[0]}
        connection.execute(insert(table).values(values), list(found))
        return
    # SQLAlchemy lacks COPY, so it is the driver's, and its errors are converted.
    quote = connection.dialect.identifier_preparer.quote
    names = list(found[0])
    statement = f"COPY {quote(table.name)} ({', '.join(map(quote, names))}) FROM STDIN"
    driver: Any = connection.connection.driver_connection
    driver_error: type[Exception] = connection.dialect.loaded_dbapi.Error
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in found:
                copy.write_row([row[name] for name in names])
    except driver_error as exc:
        raise DBAPIError(statement, None, exc) from exc
