"""Which raw records may go, and how they go. What was concluded from them (metrics, verdicts, checks) always stays.

Raw records are nearly all that a store holds, and are needed only to judge a run again. They go run by run, each in one
transaction behind tombstones (`tombstones`), and only of a run that still hashes: damage is reported, never buried.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, func, select, text

from benchgate.model.history import PromotionAction, current_promotions
from benchgate.model.run import RunStatus
from benchgate.store import clock, promotions, tables, tombstones
from benchgate.store.checking import run_findings
from benchgate.store.engine import BUSY_TIMEOUT_MS, Database
from benchgate.store.locks import lock_run

_RAW_TABLES = tuple(table for table, _ in tombstones.RAW)
_LAST = "~"  # behind every instant


@dataclass(frozen=True, slots=True)
class Policy:
    """What keeps its raw records: runs that ended less than `older_than_s` ago, and the newest `keep_last` of a suite.

    A promoted run keeps them while its promotion stands, and for as long again as others do from when it was withdrawn;
    so does one that may go on. `keep_last` counts complete runs and is at least 1; `suite` None means every suite.
    """

    older_than_s: float = 0.0
    keep_last: int = 1
    suite: str | None = None


@dataclass(frozen=True, slots=True)
class Expendable:
    """A run whose raw records may go: how many rows of how many records (requests, items, readings) and bytes.

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
    """What came of a removal: the runs whose raw records went, and of the others why they stayed."""

    runs: tuple[Expendable, ...]
    stayed: tuple[tuple[str, str], ...]


def expendable(connection: Connection, policy: Policy, now: str) -> list[Expendable]:
    """The runs whose raw records may go by a policy at the instant `now` (RFC 3339 UTC), oldest first."""
    sizes, found = _sizes(connection), list[Expendable]()
    for run, since, why in _looked_at(connection, policy, now):
        if why is None and run.id in sizes:
            found.append(Expendable(run.id, run.suite_name, run.label, run.finished_at, since, *sizes[run.id]))
    return sorted(found, key=lambda run: (run.finished_at, run.run_id))


def kept(connection: Connection, policy: Policy, now: str) -> Counter[str]:
    """Of how many runs the raw records stay by a policy at the instant `now`, by the reason."""
    sizes = _sizes(connection)
    looked_at = _looked_at(connection, policy, now)
    return Counter(why for run, _, why in looked_at if why is not None and run.id in sizes)


def older_than(runs: Sequence[Expendable], age_s: float, now: str) -> list[Expendable]:
    """Those that ended, or were withdrawn, longer ago than so many seconds before `now`."""
    return [run for run in runs if _age_s(run.done_with_at, now) >= age_s]


def remove(database: Database, runs: Sequence[Expendable], *, now: str, reason: str) -> Removed:
    """Removes the raw records of these runs. `reason` is the command that asked for it, and stays with them."""
    gone, stayed = list[Expendable](), list[tuple[str, str]]()
    for run in runs:
        with database.reading() as connection:
            wrong = list(run_findings(connection, Counter(), run.run_id))
        if wrong:
            stayed.append((run.run_id, f"{wrong[0].place}: {wrong[0].problem}; see `benchgate store check`"))
            continue
        with database.writing() as connection:
            lock_run(connection, run.run_id)
            if run.run_id in _promoted(connection, run.suite):
                stayed.append((run.run_id, "it was promoted a moment ago"))
                continue
            tombstones.bury(connection, run.run_id, removed_at=now, reason=reason)
        gone.append(run)
    return Removed(tuple(gone), tuple(stayed))


def vacuum(database: Database) -> None:
    """Gives freed room back: SQLite writes the whole file anew, Postgres marks what its tables may use again."""
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


def _looked_at(
    connection: Connection, policy: Policy, now: str
) -> Iterator[tuple[Row[*tuple[Any, ...]], str, str | None]]:
    """Every run of a policy's suites, suite by suite from the newest on, whether or not it has raw records.

    With since when it is done with, and what keeps its raw records; None where nothing does.
    """
    run = tables.run.c
    about = run.id, run.suite_name, run.label, run.status, run.started_at, run.finished_at
    wanted = select(*about, run.evidence_sha256)
    wanted = wanted.where(tables.measured_here())  # a file of another tool has no records, and is no suite's newest run
    if policy.suite is not None:
        wanted = wanted.where(run.suite_name == policy.suite)
    promoted, withdrawn = _promoted(connection, policy.suite), _withdrawn(connection, policy.suite)
    newer, latest = Counter[str](), clock.latest(connection)
    for found in connection.execute(wanted.order_by(run.started_at.desc(), run.id.desc())):
        newest = newer[found.suite_name] < max(policy.keep_last, 1)
        # One that is of a time to come would hold the place of a newest one for good.
        newer[found.suite_name] += found.status == RunStatus.COMPLETE.value and found.started_at <= latest
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
    """Runs whose promotion stands, or will by a record that is ahead of the clock: what goes does not come back."""
    return {
        *current_promotions(promotions.promotions(connection, suite)),
        *current_promotions(promotions.promotions(connection, suite, until=_LAST)),
    }


def _withdrawn(connection: Connection, suite: str | None) -> dict[str, str]:
    """When the promotion of a run was withdrawn, by its id: the last time."""
    records = promotions.promotions(connection, suite)
    return {one.run_id: one.promoted_at for one in records if one.deed is PromotionAction.WITHDRAWN}


def _age_s(finished_at: str, now: str) -> float:
    return (datetime.fromisoformat(now) - datetime.fromisoformat(finished_at)) / timedelta(seconds=1)


def _sizes(connection: Connection) -> dict[str, tuple[int, int, int]]:
    """Rows, records and bytes of each run's raw records."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for table in _RAW_TABLES:
        counted = func.count(), func.sum(table.c.n_rows), func.sum(func.length(table.c.data))
        for run_id, n_rows, records, n_bytes in connection.execute(
            select(table.c.run_id, *counted).group_by(table.c.run_id)
        ):
            before = sizes.get(run_id, (0, 0, 0))
            sizes[run_id] = before[0] + n_rows, before[1] + int(records), before[2] + int(n_bytes)
    return sizes
