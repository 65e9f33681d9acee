"""Takes many runs into a store, one at a time and each in a transaction of its own: from bundles, or another store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from benchgate.errors import EvidenceError, UsageError
from benchgate.exchange.bulk import insert_rows
from benchgate.exchange.merging import Merged, merge
from benchgate.store import clock, tables
from benchgate.store.alive import RunLocks
from benchgate.store.engine import Database, fetch
from benchgate.store.locks import lock_run
from benchgate.store.sealing import is_over
from benchgate.store.soundness import require_sound
from benchgate.store.whole_run import WholeRun, read_whole


@dataclass(frozen=True, slots=True)
class Source:
    """Where a run comes from, in words, and how to read it."""

    name: str
    read: Callable[[], WholeRun]


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of one source: either it was `merged`, or nothing of it was taken in because of a `problem`."""

    source: str
    merged: Merged | None
    problem: str | None = None


def take_in(target: Callable[[], Database], sources: Iterable[Source]) -> Iterator[Taken]:
    """Takes in one run after another. One that is damaged, hostile or contradicts the store keeps no other out.

    A verdict that compares two runs needs both; what waits for a run is tried again when all have come. `target` is
    asked for the store only once a run is there that can be taken in, so that none is made for nothing.
    """
    waiting: list[tuple[Source, Merged]] = []
    for source in sources:
        taken = _take(target, source)
        if taken.merged is not None and taken.merged.waiting_for:
            waiting.append((source, taken.merged))
        else:
            yield taken
    for source, first in waiting:
        again = _take(target, source)
        if again.merged is not None:
            added = first.added + again.merged.added if first.fate == "known" else 0
            again = replace(again, merged=replace(again.merged, fate=first.fate, added=added))
        yield again


def copy_store(origin: Database, target: Database) -> Iterator[Taken]:
    """Takes every run of one store into another, oldest first, and then what is known of machines.

    Raises UsageError where both are one store.
    """
    if origin.address.url == target.address.url:
        raise UsageError(f"{origin.address.shown} is both the store to copy and the one to copy into")
    with origin.reading() as connection:
        ids = connection.scalars(select(tables.run.c.id).order_by(tables.run.c.started_at, tables.run.c.id)).all()
        profiles = fetch(connection, select(tables.client_profile))
    yield from take_in(lambda: target, (_run_of(origin, run_id) for run_id in ids))
    table = tables.client_profile
    with target.writing() as connection:
        known = {(row["fingerprint"], row["measured_at"]) for row in fetch(connection, select(table))}
        new = [row for row in profiles if (row["fingerprint"], row["measured_at"]) not in known]
        insert_rows(connection, table, new)


def _run_of(origin: Database, run_id: str) -> Source:
    def read() -> WholeRun:
        with origin.reading() as connection:
            return read_whole(connection, run_id)

    return Source(origin.address.shown, read)


def _take(target: Callable[[], Database], source: Source) -> Taken:
    try:
        whole = source.read()
        require_sound(whole, source.name)
        with target().writing() as connection:
            clock.require_by_now(connection, whole.id, _instants(whole))
            with _nobody_measuring(target(), connection, whole.id):
                return Taken(source.name, merge(connection, whole))
    except EvidenceError as exc:
        return Taken(source.name, None, str(exc))


@contextmanager
def _nobody_measuring(database: Database, connection: Connection, run_id: str) -> Iterator[None]:
    """Holds a run that may go on, as who measures it does, until all of it is written. EvidenceError where one does.

    It is let go of before the caller commits: another job that takes it in waits for that, and must not find it held.
    """
    lock_run(connection, run_id)
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


def _instants(whole: WholeRun) -> Iterator[tuple[str, str | None]]:
    """Everything of a run by whose instant something is the newest, or the first."""
    yield from (("beginning", whole.run["started_at"]), ("end", whole.run["finished_at"]))
    yield from (("verdict", row["decided_at"]) for row in whole.of(tables.verdict))
    yield from (("promotion", row["promoted_at"]) for row in whole.of(tables.promotion))
    yield from (("noise profile", row["measured_at"]) for row in whole.of(tables.noise_profile))
