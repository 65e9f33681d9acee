"""Durable writing of one run as it is measured: first to its spool, if it has one, then to the database.

Every call is on the disk when it returns. Either place is enough to continue. A database that is gone, full or locked
for too long is not tried again until the run ends; then it gets from the spool what it lacks. A spool that cannot be
written is abandoned. When both are lost, nothing more can be measured. A run that another process took over is not
written any more.
"""

from __future__ import annotations

import hashlib
import shlex
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from benchgate.errors import EvidenceError, NothingKept, StoreError, TakenOver
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import DivergenceObservation
from benchgate.model.run import (
    ALL_STORED,
    RESUMED,
    SESSION_BEGUN,
    BudgetReading,
    DeploymentFault,
    Evidence,
    LoadObservation,
    QualityObservation,
    Resumption,
    Run,
    RunStatus,
    ServerStart,
    ShadowObservation,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.store import clock, lifecycle, rows, tables
from benchgate.store.database import Address, Database, fetch
from benchgate.store.evidence import RunContext, read_context, read_evidence, rows_of
from benchgate.store.locks import RunLock, require_ownership, takeover_message
from benchgate.store.rows import telemetry_row
from benchgate.store.run_reference import require_label
from benchgate.store.spool import RunHeader, Spool, Spooled, insert_missing, read_spool, replace_arm, spool_lock


class RunWriter:
    """Writer of a run from its beginning to `finish`; after that the run never changes. Not thread-safe.

    With a spool, a failing database does not end the run: `fault` reports it. Every method raises StoreError when its
    argument can be kept nowhere.
    """

    def __init__(
        self, keeping: DurableWriter, run_id: str, next_seq: int = 0, kinds: frozenset[str] = frozenset()
    ) -> None:
        self._keeping = keeping
        self.run_id = run_id
        self._next_seq = next_seq
        self._kinds = set(kinds)
        self._hold: RunLock | None = None

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
        beginning = RunHeader(rows.run_row(run), arms, zlib.compress(plan))
        if spool is None:
            _begin(database, beginning, run.label)
            return cls(DurableWriter(database, run), run.id)
        with database.reading() as connection:
            known = read_context(connection, run)
        kept = Spool.create(spool, beginning)
        try:
            _begin(database, beginning, run.label)
        except BaseException:
            kept.remove()
            raise
        return cls(DurableWriter(database, run, kept, known, note), run.id)

    @classmethod
    def reopen(cls, database: Database, run_id: str, *, spool: Path, note: Notify | None = None) -> RunWriter:
        """Return the writer of an interrupted run, which continues after all that is known of it.

        Rows of an existing `spool` that did not reach the store are inserted first; then the spool is rewritten with
        all that the store has. Raises StoreError for a run that is over, or still measured.
        """
        left = reopen_run(database, run_id, spool)
        kept = Spool.create(spool, left.beginning, left.kept)
        keeping = DurableWriter(database, left.run, kept, left.known, note, left.next_seq)
        return cls(keeping, run_id, left.next_seq, left.kinds)

    def use_lock(self, hold: RunLock) -> None:
        """Write only while `hold` is held, and release it once nothing more is written."""
        self._keeping.still_held = hold.is_held
        self._hold = hold

    @property
    def fault(self) -> str | None:
        """What the store lacks of the run, with the command that inserts it; None where it has everything."""
        return self._keeping.fault

    @property
    def is_stored(self) -> bool:
        """True where the store has all that was kept of the run."""
        return self._keeping.is_stored

    def record_loss(self, why: str) -> None:
        """Record why something was kept nowhere, as part of `fault`. Nothing more is measured."""
        self._keeping.record_loss(why)

    def evidence(self) -> Evidence:
        """Return everything observed so far, as the store would, also while the database is away."""
        return self._keeping.evidence()

    def close(self) -> None:
        """Close the spool, and delete it where the store has all of the run."""
        self._keeping.close()

    def add_load(self, observation: LoadObservation) -> None:
        """Store one load stage of one arm in one block."""
        self._insert(tables.observation, rows.load_row(observation))

    def add_quality(self, observation: QualityObservation) -> None:
        """Store one eval task of one arm."""
        self._insert(tables.observation, rows.quality_row(observation))

    def add_divergence(self, observation: DivergenceObservation) -> None:
        """Store the divergence on the fixed texts; a run has at most one."""
        self._insert_once(rows.divergence_row(observation), "has its reading of the fixed texts already")

    def add_shadow(self, observation: ShadowObservation) -> None:
        """Store the shadow comparison; a run has at most one."""
        self._insert_once(rows.shadow_row(observation), "has its shadow comparison already")

    def add_target_fault(self, fault: DeploymentFault) -> None:
        """Store that a deployment failed, and why."""
        self._insert(tables.observation, rows.target_fault_row(fault))

    def add_start(self, start: ServerStart) -> None:
        """Store how long one start of a deployment's server took."""
        self._insert(tables.observation, rows.start_row(start))

    def add_budget(self, spent: BudgetReading) -> None:
        """Store how much of its error budget production had spent; a run reads it once."""
        self._insert_once(rows.budget_row(spent), "has read its error budget already")

    def add_telemetry(self, window: TelemetryWindow) -> None:
        """Store the telemetry around one load stage of one arm in one block."""
        self._insert(tables.telemetry, telemetry_row(window))

    def event(self, kind: str, data: Mapping[str, object]) -> None:
        """Add an event to the run's journal; `data` is plain JSON."""
        rows.check_text(kind, "the event's kind")
        row = {"kind": kind, "data": rows.to_json(dict(data), f"the data of event {kind!r}")}
        self._insert(tables.event, row)

    def set_arm(self, arm: Arm, deployment: Deployment) -> None:
        """Replace an arm's deployment by one with the facts that its server reported."""
        self._keeping.describe(arm, deployment)

    def finish(self, status: RunStatus, finished_at: str) -> None:
        """Seal the run as COMPLETE or PARTIAL with the hash over all its evidence. Nothing changes after that."""
        if status is RunStatus.RUNNING:
            raise StoreError(f"run {self.run_id} cannot finish as running; it is complete or partial")
        rows.check_text(finished_at, "the run's finished_at")
        try:
            self._keeping.finish({"status": status.value, "finished_at": finished_at})
        finally:
            self._let_go()

    def suspend(self) -> None:
        """Mark the run as interrupted: partial, without a seal, and resumable."""
        try:
            self._keeping.suspend()
        finally:
            self._let_go()

    def begin_session(self, data: Mapping[str, object]) -> None:
        """Record who measures from now on, and with which spool, before anything is measured.

        Raises StoreError where the database does not take it: the spool could not be found later.
        """
        self.event(SESSION_BEGUN, data)
        self._keeping.require_stored()

    def resume(self, resumption: Resumption, kinds: Collection[str]) -> None:
        """Record a resumption before anything else. `kinds` are the observations it has of those that a run has once.

        Raises StoreError where the database does not take it: resumptions must be counted.
        """
        self.event(RESUMED, asdict(resumption))
        self._kinds = set(kinds)
        self._keeping.require_stored()
        self._keeping.look_up()

    def discard(self) -> None:
        """Release a run that was opened and not measured, and delete its spool."""
        self._let_go()
        self._keeping.discard()

    def _let_go(self) -> None:
        self._keeping.still_held = None
        if self._hold is not None:
            self._hold.release()

    def _insert_once(self, row: rows.Row, already: str) -> None:
        if row["kind"] in self._kinds:
            raise StoreError(f"run {self.run_id} {already}")
        self._insert(tables.observation, row)
        self._kinds.add(row["kind"])

    def _insert(self, table: Table, row: rows.Row) -> None:
        whole = {"run_id": self.run_id, "seq": self._next_seq, **row}
        # Before the write: an interrupt right after the commit must not make the next observation collide with it.
        self._next_seq += 1
        self._keeping.keep(table.name, whole, lambda connection: connection.execute(insert(table), whole))


def _begin(database: Database, beginning: RunHeader, label: str | None) -> None:
    with database.writing() as connection:
        require_label(connection, label)
        clock.require_by_now(connection, beginning.run["id"], [("beginning", beginning.run["started_at"])])
        lifecycle.begin_run(connection, beginning.run, beginning.arms, beginning.plan)


Write = Callable[[Connection], object]
Notify = Callable[[str], None]

_NEITHER = "neither the store nor the spool takes what is measured any more"
_SUSPENDED = {"status": RunStatus.PARTIAL.value, "finished_at": None}


class DurableWriter:
    """Rows of one run on their way to spool and database. Without a spool every StoreError reaches the caller."""

    def __init__(
        self,
        database: Database,
        run: Run,
        spool: Spool | None = None,
        known: RunContext | None = None,
        note: Notify | None = None,
        next_seq: int = 0,
    ) -> None:
        self._database = database
        self._run = run
        self._spool = spool
        self._known = known or RunContext()
        self._note = note
        self._file = _file_identity(database.address)
        self._spool_works = spool is not None
        self._away: str | None = None  # why the database lacks something of the run
        self._lost: str | None = None  # why something is kept nowhere
        self._end: Mapping[str, Any] | None = None
        self._settled = False
        self._next_seq = next_seq
        self._taken: str | None = None  # why the run is not ours any more
        self.still_held: Callable[[], bool] | None = None
        """Whether the lock of the run is still this process's; None where it holds none (any more)."""

    @property
    def fault(self) -> str | None:
        """What the store lacks of the run, and the remedy; None where it has all that was measured."""
        if self._spool is None or self._away is None:
            return self._lost
        kept = f"what was measured is kept in {self._spool.path}: {self._remedy(self._spool)}"
        return f"{self._lost or self._away}; {kept}"

    @property
    def is_stored(self) -> bool:
        """True where the database has all that was kept of the run."""
        return self._away is None

    def look_up(self) -> None:
        """Read the run's context again, which has changed since the run was interrupted."""
        with self._database.reading() as connection:
            self._known = read_context(connection, self._run)

    def require_stored(self) -> None:
        """Raise StoreError where the database lacks something of the run."""
        if self._away is not None:
            raise StoreError(f"{self._away}; nothing was measured: try again when the store is there")

    def record_loss(self, why: str) -> None:
        """Record that something was kept nowhere; the run ends by that."""
        self._lost = why

    def keep(self, table: str, row: rows.Row, write: Write) -> None:
        """Write a row to the spool, and to the database by `write`. Raises NothingKept when neither took it.

        This and every other write raises TakenOver when another process has taken the run over.
        """
        self._next_seq = row.get("seq", self._next_seq)
        try:
            spooled = self._to_spool(table, row)
            if not self._to_database(write) and not spooled:
                self.record_loss(f"{_NEITHER}: {self._away}")
                raise NothingKept(self._lost)
        finally:
            if "seq" in row:
                self._next_seq = row["seq"] + 1

    def describe(self, arm: Arm, deployment: Deployment) -> None:
        """Replace an arm's deployment, and read the run's context anew."""
        self._run = replace(self._run, arms={**self._run.arms, arm: deployment})
        row = rows.arm_row(self._run.id, arm, deployment)

        def write(connection: Connection) -> None:
            replace_arm(connection, row)
            if self._spool is not None:
                self._known = read_context(connection, self._run)

        self.keep("arm", row, write)

    def finish(self, end: Mapping[str, Any]) -> None:
        """End the run with this `status` and `finished_at`; a database that was away is tried once more.

        A run that lost something is partial, whatever the caller passes.
        """
        whole = self._lost is None
        self._end = end if whole else {**end, "status": RunStatus.PARTIAL.value}
        spooled = self._to_spool("run", {"run_id": self._run.id, **self._end})
        self._catch_up()
        sealed = self._end
        self._settled = self._to_database(lambda connection: lifecycle.seal_run(connection, self._run.id, sealed))
        if whole and not spooled and not self._settled:
            self.record_loss(f"{_NEITHER}: {self._away}")

    def suspend(self) -> None:
        """Mark the run as interrupted; a database that was away is tried once more."""
        self._end = _SUSPENDED
        self._catch_up()
        self._settled = self._to_database(self._leave)
        if self.fault is not None and self._lost is None:
            self._tell(self.fault)

    def evidence(self) -> Evidence:
        """Return everything kept so far: from the database, or from the spool while that is away."""
        if self._away is None:
            try:
                return self._stored()
            except EvidenceError:
                raise
            except StoreError as error:
                self._lose_database(error)
        # What stands behind the end of a spool that was given up is in the database alone.
        end = self._end if self._end is None or self._spool_works else _SUSPENDED
        return read_evidence(self._spooled().run_rows(end), self._known)

    def close(self) -> None:
        """Close the spool, and delete it where the store has all of the run."""
        if self._spool is None:
            return
        if self._settled and self.is_stored:
            self._spool.remove()
        else:
            self._spool.close()

    def discard(self) -> None:
        """Delete the spool of a run of which the store has everything."""
        if self._spool is not None:
            self._spool.remove()

    def _leave(self, connection: Connection) -> None:
        """Record that the spool holds nothing more, so that a resumption needs none."""
        if self._spool is not None:
            said = {"run_id": self._run.id, "seq": self._next_seq, "kind": ALL_STORED, "data": "{}"}
            connection.execute(insert(tables.event), said)
        lifecycle.suspend(connection, self._run.id)

    def _stored(self) -> Evidence:
        with self._database.reading() as connection:
            run = fetch(connection, select(tables.run).where(tables.run.c.id == self._run.id))
            if not run:
                raise StoreError(f"the store {self._database.address.shown} has run {self._run.id} no more")
            found = rows_of(connection, run[0])
            known = read_context(connection, found.as_run())
        return read_evidence(found, known)

    def _to_spool(self, table: str, row: rows.Row) -> bool:
        if self._spool is None or not self._spool_works:
            return False
        try:
            self._spool.append(table, row)
        except StoreError as error:
            self._spool_works = False  # a later row must not stand behind one that is missing
            if self._away is None:
                self._tell(f"{error}; the run goes on with the store alone")
            return False
        return True

    def _to_database(self, write: Write) -> bool:
        if self._away is not None:
            return False
        try:
            self._require_file()
            with self._database.writing() as connection:
                self._require_ours(connection)
                write(connection)
        except EvidenceError:
            raise
        except StoreError as error:
            self._lose_database(error)
            return False
        return True

    def _require_ours(self, connection: Connection) -> None:
        run_id = self._run.id
        if self._settled and self._end != _SUSPENDED:
            return  # it was ended here, and takes no more from anybody: that the database says itself
        try:
            if self._taken is not None:
                raise TakenOver(self._taken)
            if self.still_held is not None and not self.still_held():
                raise TakenOver(
                    takeover_message(run_id, "the file beside the store that says who measures it was removed")
                )
            require_ownership(connection, run_id, self._next_seq)
        except TakenOver as error:
            self._taken = str(error)
            raise

    def _lose_database(self, error: StoreError) -> None:
        """Continue with the spool alone. Without one the error is the caller's."""
        if self._spool is None:
            raise error
        self._away = str(error)
        if self._spool_works:
            self._tell(f"{error}; the run goes on, and is kept in {self._spool.path}")

    def _catch_up(self) -> None:
        """Insert what a database that was away lacks, if it is back."""
        if self._away is None:
            return
        spooled = self._spooled()
        try:
            self._require_file()
            with self._database.writing() as connection:
                insert_missing(connection, spooled)
                self._require_ours(connection)
        except TakenOver:
            raise
        except EvidenceError as error:
            self._taken = takeover_message(self._run.id, str(error))
            raise TakenOver(self._taken) from error
        except StoreError as error:
            self._away = str(error)
        else:
            self._away = None

    def _spooled(self) -> Spooled:
        if self._spool is None:
            raise StoreError(f"run {self._run.id} is kept in the store alone")
        return read_spool(self._spool.path)

    def _require_file(self) -> None:
        """Raise StoreError for an SQLite file that was removed or replaced: it takes rows that nothing will read."""
        if self._spool is not None and _file_identity(self._database.address) != self._file:
            raise StoreError(f"the store {self._database.address.shown}: its file was removed or replaced meanwhile")

    def _remedy(self, spool: Spool) -> str:
        address = self._database.address
        command = ["benchgate", "store", "recover", str(spool.path)]
        if address.shown_is_whole:
            return f"bring it into the store with `{shlex.join([*command, '--store', address.shown])}`"
        return f"bring it into the store with `{shlex.join(command)}` and the --store, or BENCHGATE_STORE, of this run"

    def _tell(self, line: str) -> None:
        if self._note is not None:
            self._note(line)


def _file_identity(address: Address) -> tuple[int, int] | None:
    if address.path is None:
        return None
    try:
        found = address.path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


_IN_ORDER = (tables.observation, tables.telemetry, tables.event)


@dataclass(frozen=True, slots=True)
class ResumableState:
    """Everything known of an interrupted run: `kept` are its rows with their tables' names, in order of `seq`."""

    run: Run
    beginning: RunHeader
    kept: tuple[tuple[str, rows.Row], ...]
    known: RunContext

    @property
    def next_seq(self) -> int:
        """Place of the next row."""
        return max((row["seq"] for _, row in self.kept), default=-1) + 1

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of its observations."""
        return frozenset(row["kind"] for table, row in self.kept if table == tables.observation.name)


def reopen_run(database: Database, run_id: str, spool: Path) -> ResumableState:
    """Set an interrupted run to running, after inserting what `spool` has of it, and read its rows.

    Raises StoreError for a run that is over or still measured, and EvidenceError for a damaged spool.
    """
    if spool.exists():
        with spool_lock(spool):
            spooled = read_spool(spool)
        if spooled.run_id != run_id:
            raise StoreError(f"the spool {spool} is of run {spooled.run_id}, not of {run_id}")
        with database.writing() as connection:
            insert_missing(connection, spooled)
    with database.writing() as connection:
        lifecycle.reopen(connection, run_id)
        return _read_state(connection, run_id)


def _read_state(connection: Connection, run_id: str) -> ResumableState:
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
    return ResumableState(run, RunHeader(begun, tuple(arms), plan), tuple(kept), read_context(connection, run))
