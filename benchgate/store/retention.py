"""Sizes of a store, and removal of raw records by a policy. Metrics, verdicts and checks always stay.

Raw records are nearly all that a store holds, and are needed only to judge a run again. They are removed run by run,
each in one transaction that leaves tombstones, and only from runs that still hash: damage is reported, never hidden.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, LargeBinary, Row, Table, Text, func, literal, select, text
from sqlalchemy.exc import OperationalError

from benchgate.errors import StoreError, UsageError
from benchgate.model.history import PromotionAction, current_promotions
from benchgate.model.run import RunStatus
from benchgate.store import clock, raw_records, results, stored_run, tables
from benchgate.store.database import BUSY_TIMEOUT_MS, Database
from benchgate.store.integrity import check_run, unused_plans
from benchgate.store.locks import lock_name
from benchgate.store.migrate import HEAD
from benchgate.store.raw_records import RawBytes
from benchgate.store.stored_run import read_whole

_RAW_TABLES = tuple(table for table, _ in stored_run.RAW)
_AFTER_ALL = "~"  # behind every instant


@dataclass(frozen=True, slots=True)
class Policy:
    """Rule for what keeps raw records: runs that ended less than `older_than_s` ago, and the newest `keep_last`.

    A promoted run keeps them while its promotion is current, and for the usual time after its withdrawal; so does an
    interrupted run. `keep_last` counts complete runs of a suite and is at least 1. Calibrations, quick looks and runs
    of one part are counted apart, so that they take no other's place. `suite` None means every suite.
    """

    older_than_s: float = 0.0
    keep_last: int = 1
    suite: str | None = None


@dataclass(frozen=True, slots=True)
class RemovableRun:
    """Run whose raw records may go: their rows, records (requests, items, readings) and bytes.

    `done_with_at` is when it ended, or when its promotion was withdrawn later: its age counts from there.
    """

    run_id: str
    suite: str
    label: str | None
    finished_at: str
    done_with_at: str
    n_rows: int
    n_records: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Result of a removal: the runs whose raw records went, and what stayed of which run, with its reason.

    A run is in both where its rows went and a file of its records could not be removed.
    """

    runs: tuple[RemovableRun, ...]
    stayed: tuple[tuple[str, str], ...]


def removable_runs(connection: Connection, policy: Policy, now: str) -> list[RemovableRun]:
    """Return the runs whose raw records a policy allows to remove at `now` (RFC 3339 UTC), oldest first."""
    sizes, found = _raw_sizes(connection), list[RemovableRun]()
    for run, since, why in _classify(connection, policy, now):
        if why is None and run.id in sizes:
            found.append(RemovableRun(run.id, run.suite_name, run.label, run.finished_at, since, *sizes[run.id]))
    return sorted(found, key=lambda run: (run.finished_at, run.run_id))


def count_kept(connection: Connection, policy: Policy, now: str) -> Counter[str]:
    """Count the runs whose raw records a policy keeps at `now`, by reason."""
    sizes, classified = _raw_sizes(connection), _classify(connection, policy, now)
    return Counter(why for run, _, why in classified if why is not None and run.id in sizes)


def older_than(runs: Sequence[RemovableRun], age_s: float, now: str) -> list[RemovableRun]:
    """Return the runs that ended, or were withdrawn, longer ago than `age_s` before `now`."""
    return [run for run in runs if _age_s(run.done_with_at, now) >= age_s]


def remove(database: Database, runs: Sequence[RemovableRun], *, now: str, reason: str) -> Removed:
    """Remove the raw records of these runs. `reason` is the command behind it, and is stored with them.

    Raises UsageError where the store's own clock is not at `now` yet: removals are final.
    """
    with database.reading() as connection:
        known = clock.latest(connection)
    if now > known:
        raise UsageError(f"this machine's clock says {now}, and the store's at most {known}; set it, then remove runs")
    gone, stayed = list[RemovableRun](), list[tuple[str, str]]()
    for run in runs:
        try:
            with database.reading() as connection:
                damage = next(check_run(read_whole(connection, run.run_id), evidence_only=True), None)
        except StoreError as error:
            stayed.append((run.run_id, f"{error.message}; check the store"))
            continue
        if damage is not None:
            stayed.append((run.run_id, f"{damage.place}: {damage.problem}; check the store"))
            continue
        with database.writing() as connection:
            lock_name(connection, run.run_id)
            if run.run_id in _promoted(connection, run.suite):
                stayed.append((run.run_id, "it was promoted a moment ago"))
                continue
            files = raw_records.names_of(connection, _RAW_TABLES, run.run_id)
            stored_run.remove_raw(connection, run.run_id, removed_at=now, reason=reason)
        gone.append(run)
        try:
            raw_records.remove(files)
        except StoreError as error:
            stayed.append((run.run_id, error.message))
    return Removed(tuple(gone), tuple(stayed))


def vacuum(database: Database) -> None:
    """Return freed space: SQLite rewrites the whole file, Postgres marks what its tables may reuse."""
    path = database.address.path
    if path is None:
        with database.errors(), database.engine.connect() as connection:
            session = connection.execution_options(isolation_level="AUTOCOMMIT")
            for table in _RAW_TABLES:
                session.execute(text(f"VACUUM {table.name}"))
        return
    # A connection of its own: VACUUM runs in no transaction, and those of the engine begin one.
    with database.errors(), closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        plain.execute("VACUUM")
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _classify(
    connection: Connection, policy: Policy, now: str
) -> Iterator[tuple[Row[*tuple[Any, ...]], str, str | None]]:
    """Yield every run of a policy's suites, newest first, with when it was last needed and why it keeps its records.

    The reason is None where nothing keeps them. Runs without raw records are among them.
    """
    run = tables.run.c
    judges = tables.judges_whole_suite().label("judges")
    about = run.id, run.suite_name, run.label, run.status, run.started_at, run.finished_at, judges
    # A file of another tool has no records, and is no suite's newest run.
    query = tables.of_suite(select(*about, run.evidence_sha256).where(tables.measured_here()), policy.suite)
    records = results.promotions(connection, policy.suite)
    withdrawn = {one.run_id: one.promoted_at for one in records if one.deed is PromotionAction.WITHDRAWN}
    promoted = _promoted(connection, policy.suite)
    newer, latest = Counter[tuple[str, bool]](), clock.latest(connection)
    for found in connection.execute(query.order_by(run.started_at.desc(), run.id.desc())):
        counted_with = found.suite_name, bool(found.judges)
        newest = newer[counted_with] < max(policy.keep_last, 1)
        # A run dated in the future would hold the place of a newest one for good.
        newer[counted_with] += found.status == RunStatus.COMPLETE.value and found.started_at <= latest
        since = max(found.finished_at or "", withdrawn.get(found.id, ""))
        if found.evidence_sha256 is None or found.finished_at is None:
            yield found, since, "not over (measured now, or may go on)"
        elif found.id in promoted:
            yield found, since, "promoted"
        elif newest:
            yield found, since, "among the newest of its suite"
        elif _age_s(since, now) < policy.older_than_s:
            yield found, since, "not old enough"
        else:
            yield found, since, None


def _promoted(connection: Connection, suite: str | None) -> set[str]:
    """Return the runs with a current promotion, also by records dated in the future: removals are final."""
    return {
        *current_promotions(results.promotions(connection, suite)),
        *current_promotions(results.promotions(connection, suite, until=_AFTER_ALL)),
    }


def _age_s(finished_at: str, now: str) -> float:
    return (datetime.fromisoformat(now) - datetime.fromisoformat(finished_at)) / timedelta(seconds=1)


def _raw_sizes(connection: Connection) -> dict[str, tuple[int, int, int]]:
    """Return rows, records and bytes of each run's raw records."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for table in _RAW_TABLES:
        n_bytes = raw_records.n_bytes(connection, table.c.data)
        counted = func.count(), func.sum(table.c.n_rows), func.sum(n_bytes)
        for run_id, n_rows, records, size in connection.execute(
            select(table.c.run_id, *counted).group_by(table.c.run_id)
        ):
            before = sizes.get(run_id, (0, 0, 0))
            sizes[run_id] = before[0] + n_rows, before[1] + int(records), before[2] + int(size)
    return sizes


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of a table: rows, and bytes with its indexes (of its contents alone where SQLite cannot tell)."""

    name: str
    n_rows: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a store. `runs` counts by (suite, status); `removed` counts runs without raw records.

    `expendable` are those whose raw records may go: finished, not promoted, not the newest of their suite.
    """

    address: str
    schema: str
    tool_version: str | None
    server: str
    n_bytes: int
    tables: tuple[TableSize, ...]
    runs: Mapping[tuple[str, str], int]
    removed: int
    unused_plans: int
    expendable: tuple[RemovableRun, ...]


def read_sizes(database: Database, now: str) -> Sizes:
    """Read the sizes of a store of this schema at `now` (RFC 3339 UTC)."""
    with database.reading() as connection:
        info, run = tables.store_info.c, tables.run.c
        counted = select(run.suite_name, run.status, func.count()).group_by(run.suite_name, run.status)
        stones = tables.tombstone.c
        sizes = _table_sizes(connection)
        if connection.dialect.name == "sqlite":
            server = f"SQLite {connection.scalar(text('SELECT sqlite_version()'))}"
            pages, page_bytes = (connection.scalar(text(f"PRAGMA {name}")) for name in ("page_count", "page_size"))
            n_bytes = int(pages or 0) * int(page_bytes or 0)  # without the log
        else:
            server = f"Postgres {connection.scalar(text('SHOW server_version'))}"
            n_bytes = sum(table.n_bytes for table in sizes)
        return Sizes(
            address=database.address.shown,
            schema=HEAD,
            tool_version=connection.scalar(select(info.value).where(info.key == "tool_version")),
            server=server,
            n_bytes=n_bytes,
            tables=tuple(sizes),
            runs={(suite, status): n for suite, status, n in sorted(tuple(row) for row in connection.execute(counted))},
            removed=int(connection.scalar(select(func.count(stones.run_id.distinct()))) or 0),
            unused_plans=unused_plans(connection),
            expendable=tuple(removable_runs(connection, Policy(), now)),
        )


def _table_sizes(connection: Connection) -> list[TableSize]:
    every = tables.metadata.sorted_tables
    n_bytes = _bytes_by_table(connection, every)
    if not n_bytes:  # of all values, numbers as 8 bytes
        for table in every:
            long = [column for column in table.columns if isinstance(column.type, Text | LargeBinary | RawBytes)]
            numbers = literal(8 * (len(table.columns) - len(long)))
            each = sum((func.coalesce(func.length(column), 0) for column in long), numbers)
            n_bytes[table.name] = int(connection.scalar(select(func.sum(each)).select_from(table)) or 0)
    n_rows = [int(connection.scalar(select(func.count()).select_from(table)) or 0) for table in every]
    return [TableSize(table.name, n, n_bytes.get(table.name, 0)) for table, n in zip(every, n_rows, strict=True)]


def _bytes_by_table(connection: Connection, every: Sequence[Table]) -> dict[str, int]:
    """Return the sizes with indexes; empty for an SQLite without dbstat."""
    if connection.dialect.name != "sqlite":
        parts = "(SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(CAST(:name AS regclass)))"
        size = text(f"SELECT coalesce({parts}, pg_total_relation_size(CAST(:name AS regclass)))")
        return {table.name: int(connection.scalar(size, {"name": table.name}) or 0) for table in every}
    of_table = (
        "SELECT m.tbl_name, SUM(d.pgsize) FROM dbstat d JOIN sqlite_master m ON m.name = d.name "
        "WHERE d.aggregate = 1 GROUP BY m.tbl_name"
    )
    try:
        return {name: int(size) for name, size in connection.execute(text(of_table))}
    except OperationalError:
        return {}
