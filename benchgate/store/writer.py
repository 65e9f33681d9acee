"""Writes one run as it happens. Every call is on the disk when it returns: in the run's spool, if it has one, then in
one transaction of the database.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import Table, insert

from benchgate.errors import StoreError
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import DivergenceObservation
from benchgate.model.run import (
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
from benchgate.store import clock, rows, sealing, tables
from benchgate.store.alive import Hold
from benchgate.store.engine import Database
from benchgate.store.evidence import known_beside
from benchgate.store.keeping import Keeping, Note
from benchgate.store.reopening import take_up
from benchgate.store.resolve import require_label
from benchgate.store.spool import Spool
from benchgate.store.spooled import Beginning
from benchgate.store.telemetry_rows import telemetry_row


class RunWriter:
    """The one way into a run, from its beginning to `finish`; after that the run never changes.

    With a spool a database that fails does not end the run: `fault` says so. Every method raises StoreError when what
    it is given can be kept nowhere. Not for use by several threads at once.
    """

    def __init__(self, keeping: Keeping, run_id: str, next_seq: int = 0, kinds: frozenset[str] = frozenset()) -> None:
        self._keeping = keeping
        self.run_id = run_id
        self._next_seq = next_seq
        self._kinds = set(kinds)
        self._hold: Hold | None = None

    @classmethod
    def begin(
        cls, database: Database, run: Run, plan: bytes, *, spool: Path | None = None, note: Note | None = None
    ) -> RunWriter:
        """Stores the run, its arms and its plan, before anything is measured; at first in a new file `spool`.

        `note` is told when the run goes on without its store, or without its spool.
        """
        if run.status is not RunStatus.RUNNING or run.finished_at is not None:
            raise StoreError(f"run {run.id} cannot begin: it is already {run.status}")
        if hashlib.sha256(plan).hexdigest() != run.plan_sha256:
            raise StoreError(f"run {run.id} cannot begin: the plan does not hash to its plan_sha256 {run.plan_sha256}")
        arms = tuple(rows.arm_row(run.id, arm, deployment) for arm, deployment in run.arms.items())
        beginning = Beginning(rows.run_row(run), arms, zlib.compress(plan))
        if spool is None:
            _begin(database, beginning, run.label)
            return cls(Keeping(database, run), run.id)
        with database.reading() as connection:
            known = known_beside(connection, run)
        kept = Spool.create(spool, beginning)
        try:
            _begin(database, beginning, run.label)
        except BaseException:
            kept.remove()
            raise
        return cls(Keeping(database, run, kept, known, note), run.id)

    @classmethod
    def reopen(cls, database: Database, run_id: str, *, spool: Path, note: Note | None = None) -> RunWriter:
        """Goes on with a run that was cut short, after all that is known of it.

        What a `spool` of it holds that did not reach the store is brought in first; then it is begun anew with all that
        the store has. Raises StoreError for a run that is over, or still measured.
        """
        left = take_up(database, run_id, spool)
        kept = Spool.create(spool, left.beginning, left.kept)
        keeping = Keeping(database, left.run, kept, left.known, note, left.next_seq)
        return cls(keeping, run_id, left.next_seq, left.kinds)

    def held_by(self, hold: Hold) -> None:
        """Writes only as long as `hold` stands, and lets go of it once nothing more is written, kept or not."""
        self._keeping.still_held = hold.stands
        self._hold = hold

    @property
    def fault(self) -> str | None:
        """What the store lacks of the run, and the command that brings it there; None where it has everything."""
        return self._keeping.fault

    @property
    def is_stored(self) -> bool:
        """Whether the store has all that was kept of the run."""
        return self._keeping.is_stored

    def give_up(self, why: str) -> None:
        """Says why something was kept nowhere, and nothing more is measured: a part of `fault` from now on."""
        self._keeping.give_up(why)

    def evidence(self) -> Evidence:
        """All that was observed by now, finished or not: as the store would give it, also while that is away."""
        return self._keeping.evidence()

    def close(self) -> None:
        """Lets go of the spool, which is deleted where the store has all of the run."""
        self._keeping.close()

    def add_load(self, observation: LoadObservation) -> None:
        """Keeps one load stage of one arm in one block."""
        self._insert(tables.observation, rows.load_row(observation))

    def add_quality(self, observation: QualityObservation) -> None:
        """Keeps one eval task of one arm."""
        self._insert(tables.observation, rows.quality_row(observation))

    def add_divergence(self, observation: DivergenceObservation) -> None:
        """Keeps the reading of the fixed texts; a run has at most one."""
        self._insert_once(rows.divergence_row(observation), "has its reading of the fixed texts already")

    def add_shadow(self, observation: ShadowObservation) -> None:
        """Keeps the shadow comparison; a run has at most one."""
        self._insert_once(rows.shadow_row(observation), "has its shadow comparison already")

    def add_target_fault(self, fault: DeploymentFault) -> None:
        """Keeps that a deployment was not there, and why."""
        self._insert(tables.observation, rows.target_fault_row(fault))

    def add_start(self, start: ServerStart) -> None:
        """Keeps how long one start of a deployment's server took."""
        self._insert(tables.observation, rows.start_row(start))

    def add_budget(self, spent: BudgetReading) -> None:
        """Keeps what production had spent of its error budget; a run reads it once."""
        self._insert_once(rows.budget_row(spent), "has read its error budget already")

    def add_telemetry(self, window: TelemetryWindow) -> None:
        """Keeps what was read around one load stage of one arm in one block."""
        self._insert(tables.telemetry, telemetry_row(window))

    def event(self, kind: str, data: Mapping[str, object]) -> None:
        """Adds a line to the run's journal; `data` is plain JSON."""
        rows.check_text(kind, "the event's kind")
        row = {"kind": kind, "data": rows.to_json(dict(data), f"the data of event {kind!r}")}
        self._insert(tables.event, row)

    def set_arm(self, arm: Arm, deployment: Deployment) -> None:
        """Replaces what the run knows of an arm: the facts its server gave once it answered."""
        self._keeping.describe(arm, deployment)

    def finish(self, status: RunStatus, finished_at: str) -> None:
        """Seals the run as COMPLETE or PARTIAL: hashes all its observations, and nothing of it changes any more."""
        if status is RunStatus.RUNNING:
            raise StoreError(f"run {self.run_id} cannot finish as running; it is complete or partial")
        rows.check_text(finished_at, "the run's finished_at")
        try:
            self._keeping.finish({"status": status.value, "finished_at": finished_at})
        finally:
            self._let_go()

    def leave_open(self) -> None:
        """Marks the run as cut short: it is partial, without a seal, and may go on."""
        try:
            self._keeping.leave_open()
        finally:
            self._let_go()

    def begin_sitting(self, data: Mapping[str, object]) -> None:
        """Writes down who begins to measure, with which spool (the data of a `SITTING`), before anything is measured.

        Raises StoreError where the store does not take that: nobody would know later that there was a spool with more.
        """
        self.event(SESSION_BEGUN, data)
        self._keeping.require_stored()

    def go_on(self, resumption: Resumption, kinds: Collection[str]) -> None:
        """Writes down that the run goes on, before anything else. `kinds`: what it has already, of what it has once.

        Raises StoreError where the store does not take that: else a run could go on as often as somebody likes.
        """
        self.event(RESUMED, asdict(resumption))
        self._kinds = set(kinds)
        self._keeping.require_stored()
        self._keeping.look_up()

    def discard(self) -> None:
        """Lets go of a run that was opened and not measured, and of its spool."""
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


def _begin(database: Database, beginning: Beginning, label: str | None) -> None:
    with database.writing() as connection:
        require_label(connection, label)
        clock.require_by_now(connection, beginning.run["id"], [("beginning", beginning.run["started_at"])])
        sealing.begin_run(connection, beginning.run, beginning.arms, beginning.plan)
