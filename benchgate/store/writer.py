"""Durable writing of one run as it is measured: first to its spool, if it has one, then to the database.

Every call is on the disk when it returns. Either place is enough to continue. A database that is gone, full or locked
for too long is not tried again until the run ends; then it gets from the spool what it lacks. A spool that cannot be
written is abandoned. When both are lost, nothing more can be measured. A run that another process took over is not
written any more.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from benchgate.errors import Command, EvidenceError, NothingKept, Remedy, StoreError, TakenOver
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import ALL_STORED, RESUMED, SESSION_BEGUN, Evidence, Resumption, Run, RunStatus
from benchgate.model.telemetry import TelemetryWindow
from benchgate.store import clock, rows, stored_run, tables
from benchgate.store.database import Address, Database, fetch
from benchgate.store.evidence import RunContext, read_context, read_evidence, rows_of
from benchgate.store.locks import RunLocks, require_ownership, takeover_message
from benchgate.store.rows import telemetry_row
from benchgate.store.run_reference import require_label
from benchgate.store.spool import RunHeader, Spool, Spooled, insert_missing, read_spool, replace_arm, spool_lock
from benchgate.store.stored_run import run_row

Write = Callable[[Connection], object]
Notify = Callable[[str], None]

_NEITHER = "neither the store nor the spool takes what is measured any more"
_SUSPENDED = {"status": RunStatus.PARTIAL.value, "finished_at": None}
_ONCE = {
    "divergence": "has its reading of the fixed texts",
    "shadow": "has its shadow comparison",
    "error_budget": "has read its error budget",
}
"""Kinds of observations that a run has at most once."""


class RunWriter:
    """Writer of a run from its beginning to `finish`; after that the run never changes. Not thread-safe.

    With a spool, a failing database does not end the run: `fault` reports it. Without one, every StoreError reaches the
    caller. Every method raises NothingKept when its argument can be kept nowhere, and TakenOver when another process
    has taken the run over.
    """

    def __init__(
        self,
        database: Database,
        run: Run,
        spool: Spool | None = None,
        context: RunContext | None = None,
        note: Notify | None = None,
        next_seq: int = 0,
        kinds: Iterable[str] = (),
    ) -> None:
        self.run_id = run.id
        self._database = database
        self._run = run
        self._spool = spool
        self._context = context or RunContext()
        self._note = note
        self._next_seq = next_seq
        self._kinds = set(kinds)
        self._file = _file_identity(database.address)
        self.locks: RunLocks | None = None  # with the run's lock, without which nothing is written
        self._spool_works = spool is not None
        self._away: str | None = None  # why the database lacks something of the run
        self._lost: NothingKept | None = None  # why something is kept nowhere
        self._taken: str | None = None  # why the run is not ours any more
        self._end: Mapping[str, Any] | None = None
        self._settled = False  # the database has the end of the run

    @classmethod
    def begin(
        cls, database: Database, run: Run, plan: bytes, *, spool: Path | None = None, note: Notify | None = None
    ) -> RunWriter:
        """Store the run, its arms and its plan before anything is measured; first in `spool`, a new file.

        `note` is called with a message when the run continues without its store or its spool.
        """
        if run.status is not RunStatus.RUNNING or run.finished_at is not None:
            raise StoreError(f"run {run.id} cannot begin: it is already {run.status}")
        if hashlib.sha256(plan).hexdigest() != run.plan_sha256:
            raise StoreError(f"run {run.id} cannot begin: the plan does not hash to its plan_sha256 {run.plan_sha256}")
        arms = tuple(rows.arm_row(run.id, arm, deployment) for arm, deployment in run.arms.items())
        header = RunHeader(rows.run_row(run), arms, zlib.compress(plan))

        def store() -> None:
            with database.writing() as connection:
                require_label(connection, run.label)
                clock.require_by_now(connection, run.id, [("beginning", run.started_at)])
                stored_run.begin_run(connection, header.run, header.arms, header.plan)

        if spool is None:
            store()
            return cls(database, run)
        with database.reading() as connection:
            context = read_context(connection, run)
        new_spool = Spool.create(spool, header)
        try:
            store()
        except BaseException:
            new_spool.remove()
            raise
        return cls(database, run, new_spool, context, note)

    @classmethod
    def reopen(cls, database: Database, run_id: str, *, spool: Path, note: Notify | None = None) -> RunWriter:
        """Return the writer of an interrupted run, which continues after all that is known of it.

        Rows of an existing `spool` that did not reach the store are inserted first; then the spool is rewritten with
        all that the store has. Raises StoreError for a run that is over, or still measured, and EvidenceError for a
        damaged spool.
        """
        if spool.exists():
            with spool_lock(spool):
                spooled = read_spool(spool)
            if spooled.run_id != run_id:
                raise StoreError(f"the spool {spool} is of run {spooled.run_id}, not of {run_id}")
            with database.writing() as connection:
                insert_missing(connection, spooled)
        with database.writing() as connection:
            stored_run.reopen(connection, run_id)
            row = run_row(connection, run_id)
            arms = fetch(connection, tables.arms_of([run_id]))
            plan = tables.plan.c
            data = connection.execute(select(plan.data).where(plan.sha256 == row["plan_sha256"])).scalar_one()
            kept = [
                (table.name, one)
                for table in stored_run.ORDERED_TABLES
                for one in fetch(connection, select(table).where(table.c.run_id == run_id))
            ]
            run = rows.read_run(row, arms)
            context = read_context(connection, run)
        kept.sort(key=lambda one: one[1]["seq"])
        header = RunHeader({name: row[name] for name in row if name != "evidence_sha256"}, tuple(arms), data)
        kinds = [one["kind"] for table, one in kept if table == tables.observation.name]
        next_seq = kept[-1][1]["seq"] + 1 if kept else 0
        return cls(database, run, Spool.create(spool, header, kept), context, note, next_seq, kinds)

    @property
    def fault(self) -> StoreError | None:
        """Return what the store lacks of the run, with the remedies; None if it has everything."""
        if self._spool is None or self._away is None:
            return self._lost
        store = self._database.address.shown_if_whole
        recover = Remedy("bring it into the store", Command.IMPORT, str(self._spool.path), store)
        resume = () if self._lost is None else self._lost.remedies
        why = self._away if self._lost is None else self._lost.message
        return StoreError(f"{why}; what was measured is kept in {self._spool.path}", remedies=(recover, *resume))

    @property
    def is_stored(self) -> bool:
        """True where the database has all that was kept of the run."""
        return self._away is None

    def record_loss(self, error: NothingKept) -> None:
        """Record that something was kept nowhere, as part of `fault`. Nothing more is measured."""
        self._lost = error

    def evidence(self) -> Evidence:
        """Return everything kept so far: from the database, or from the spool while that is away."""
        if self._away is None:
            try:
                with self._database.reading() as connection:
                    row = fetch(connection, select(tables.run).where(tables.run.c.id == self.run_id))
                    if not row:
                        raise StoreError(f"the store {self._database.address.shown} has run {self.run_id} no more")
                    found = rows_of(connection, row[0])
                    context = read_context(connection, found.as_run())
                return read_evidence(found, context)
            except EvidenceError:
                raise
            except StoreError as error:
                self._lose_database(error)
        # The end of the run is missing in an abandoned spool: everything later is in the database alone.
        end = self._end if self._end is None or self._spool_works else _SUSPENDED
        return read_evidence(self._spooled().run_rows(end), self._context)

    def close(self) -> None:
        """Close the spool, and delete it where the store has all of the run."""
        if self._spool is None:
            return
        if self._settled and self.is_stored:
            self._spool.remove()
        else:
            self._spool.close()

    def add(self, record: rows.Observation | TelemetryWindow) -> None:
        """Store an observation, or the telemetry around a load stage. Raises StoreError for a second of `_ONCE`."""
        if isinstance(record, TelemetryWindow):
            self._insert(tables.telemetry, telemetry_row(record))
            return
        row = rows.observation_row(record)
        kind = row["kind"]
        if kind in _ONCE and kind in self._kinds:
            raise StoreError(f"run {self.run_id} {_ONCE[kind]} already")
        self._insert(tables.observation, row)
        self._kinds.add(kind)

    def event(self, kind: str, data: Mapping[str, object]) -> None:
        """Add an event to the run's journal; `data` is plain JSON."""
        rows.check_text(kind, "the event's kind")
        row = {"kind": kind, "data": rows.to_json(dict(data), f"the data of event {kind!r}")}
        self._insert(tables.event, row)

    def set_arm(self, arm: Arm, deployment: Deployment) -> None:
        """Replace an arm's deployment by one with the facts that its server reported, and read the context anew."""
        self._run = replace(self._run, arms={**self._run.arms, arm: deployment})
        row = rows.arm_row(self.run_id, arm, deployment)

        def write(connection: Connection) -> None:
            replace_arm(connection, row)
            if self._spool is not None:
                self._context = read_context(connection, self._run)

        self._keep("arm", row, write, self._next_seq)

    def finish(self, status: RunStatus, finished_at: str) -> None:
        """Seal the run as COMPLETE or PARTIAL with the hash over all its evidence. Nothing changes after that.

        A database that was away is tried once more. A run that lost something becomes PARTIAL in any case.
        """
        if status is RunStatus.RUNNING:
            raise StoreError(f"run {self.run_id} cannot finish as running; it is complete or partial")
        rows.check_text(finished_at, "the run's finished_at")
        lossless = self._lost is None
        finished_at = max(finished_at, self._run.started_at)  # the clock may have been set back since
        end = {"status": (status if lossless else RunStatus.PARTIAL).value, "finished_at": finished_at}
        self._end = end
        try:
            spooled = self._to_spool("run", {"run_id": self.run_id, **end})
            self._catch_up()
            self._settled = self._to_database(lambda connection: stored_run.seal_run(connection, self.run_id, end))
            if lossless and not spooled and not self._settled:
                self._lost = NothingKept(f"{_NEITHER}: {self._away}")
        finally:
            self._release()

    def suspend(self) -> None:
        """Mark the run as interrupted: partial, without a seal, and resumable.

        A database that was away is tried once more. An event records that the spool holds nothing more, so that a
        resumption needs none.
        """
        self._end = _SUSPENDED

        def write(connection: Connection) -> None:
            if self._spool is not None:
                event = {"run_id": self.run_id, "seq": self._next_seq, "kind": ALL_STORED, "data": "{}"}
                connection.execute(insert(tables.event), event)
            stored_run.suspend(connection, self.run_id)

        try:
            self._catch_up()
            self._settled = self._to_database(write)
            if self.fault is not None and self._lost is None:
                self._notify(str(self.fault))
        finally:
            self._release()

    def begin_session(self, data: Mapping[str, object]) -> None:
        """Record who measures from now on, and with which spool, before anything is measured.

        Raises StoreError where the database does not take it: the spool could not be found later.
        """
        self.event(SESSION_BEGUN, data)
        self._require_stored()

    def resume(self, resumption: Resumption, kinds: Collection[str]) -> None:
        """Record a resumption before anything else. `kinds` are the observations it has of those that a run has once.

        Raises StoreError where the database does not take it: resumptions must be counted.
        """
        self.event(RESUMED, asdict(resumption))
        self._kinds = set(kinds)
        self._require_stored()
        with self._database.reading() as connection:  # another one than when the run was interrupted
            self._context = read_context(connection, self._run)

    def discard(self) -> None:
        """Release a run that was opened and not measured, and delete its spool."""
        self._release()
        if self._spool is not None:
            self._spool.remove()

    def _release(self) -> None:
        if self.locks is not None:
            self.locks.release(self.run_id)
            self.locks = None

    def _insert(self, table: Table, row: rows.Row) -> None:
        seq = self._next_seq
        numbered = {"run_id": self.run_id, "seq": seq, **row}
        # Before the write: an interrupt right after the commit must not make the next observation collide with it.
        self._next_seq += 1
        self._keep(table.name, numbered, lambda connection: connection.execute(insert(table), numbered), seq)

    def _keep(self, table: str, row: rows.Row, write: Write, next_seq: int) -> None:
        spooled = self._to_spool(table, row)
        if not self._to_database(write, next_seq) and not spooled:
            self._lost = NothingKept(f"{_NEITHER}: {self._away}")
            raise self._lost

    def _to_spool(self, table: str, row: rows.Row) -> bool:
        if self._spool is None or not self._spool_works:
            return False
        try:
            self._spool.append(table, row)
        except StoreError as error:
            self._spool_works = False  # a later row must not follow a missing one
            if self._away is None:
                self._notify(f"{error}; the run goes on with the store alone")
            return False
        return True

    def _to_database(self, write: Write, next_seq: int | None = None) -> bool:
        if self._away is not None:
            return False
        try:
            with self._writing() as connection:
                self._require_ours(connection, self._next_seq if next_seq is None else next_seq)
                write(connection)
        except EvidenceError:
            raise
        except StoreError as error:
            self._lose_database(error)
            return False
        return True

    def _require_ours(self, connection: Connection, next_seq: int) -> None:
        if self._settled and self._end != _SUSPENDED:
            return  # sealed by this process, and the database refuses every further change itself
        try:
            if self._taken is not None:
                raise TakenOver(self._taken)
            if self.locks is not None and not self.locks.is_held(self.run_id):
                sign = "the file beside the store that says who measures it was removed"
                raise TakenOver(takeover_message(self.run_id, sign))
            require_ownership(connection, self.run_id, next_seq)
        except TakenOver as error:
            self._taken = str(error)
            raise

    def _require_stored(self) -> None:
        if self._away is not None:
            raise StoreError(f"{self._away}; nothing was measured: try again when the store is there")

    def _lose_database(self, error: StoreError) -> None:
        """Continue with the spool alone. Without one the error is the caller's."""
        if self._spool is None:
            raise error
        self._away = str(error)
        if self._spool_works:
            self._notify(f"{error}; the run goes on, and is kept in {self._spool.path}")

    def _catch_up(self) -> None:
        """Insert what a database that was away lacks, if it is back."""
        if self._away is None:
            return
        spooled = self._spooled()
        try:
            with self._writing() as connection:
                insert_missing(connection, spooled)
                self._require_ours(connection, self._next_seq)
        except TakenOver:
            raise
        except EvidenceError as error:
            self._taken = takeover_message(self.run_id, str(error))
            raise TakenOver(self._taken) from error
        except StoreError as error:
            self._away = str(error)
        else:
            self._away = None

    def _spooled(self) -> Spooled:
        if self._spool is None:
            raise StoreError(f"run {self.run_id} is kept in the store alone")
        return read_spool(self._spool.path)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Open a transaction. Raises StoreError for an SQLite file that was removed or replaced: nothing reads it."""
        if self._spool is not None and _file_identity(self._database.address) != self._file:
            raise StoreError(f"the store {self._database.address.shown}: its file was removed or replaced meanwhile")
        with self._database.writing() as connection:
            yield connection

    def _notify(self, message: str) -> None:
        if self._note is not None:
            self._note(message)


def _file_identity(address: Address) -> tuple[int, int] | None:
    if address.path is None:
        return None
    try:
        found = address.path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
