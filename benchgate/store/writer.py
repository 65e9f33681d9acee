"""Writes one run as it happens. Every call is one transaction that is on the disk when it returns."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from benchgate.errors import StoreError
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.divergence import DivergenceObservation
from benchgate.model.run import (
    LoadObservation,
    QualityObservation,
    Run,
    RunStatus,
    ShadowObservation,
    StartUp,
    TargetFault,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.store import rows, tables
from benchgate.store.engine import Database, fetch
from benchgate.store.telemetry_rows import TELEMETRY_SEALED, telemetry_row


class RunWriter:
    """The one way into a run, from its beginning to `finish`; after that the run never changes.

    Every method raises StoreError when the store refuses. Not for use by several threads at once.
    """

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self.run_id = run_id
        self._next_seq = 0
        self._has_shadow = False
        self._has_divergence = False

    @classmethod
    def begin(cls, database: Database, run: Run, plan: bytes) -> RunWriter:
        """Stores the run, its arms and its plan, before anything is measured."""
        if run.status is not RunStatus.RUNNING or run.finished_at is not None:
            raise StoreError(f"run {run.id} cannot begin: it is already {run.status}")
        if hashlib.sha256(plan).hexdigest() != run.plan_sha256:
            raise StoreError(f"run {run.id} cannot begin: the plan does not hash to its plan_sha256 {run.plan_sha256}")
        row = rows.run_row(run)
        arms = [rows.arm_row(run.id, arm, deployment) for arm, deployment in run.arms.items()]
        with database.writing() as connection:
            _keep_plan(connection, run.plan_sha256, plan)
            connection.execute(insert(tables.run), row)
            if arms:
                connection.execute(insert(tables.arm), arms)
        return cls(database, run.id)

    def add_load(self, observation: LoadObservation) -> None:
        """Keeps one load stage of one arm in one block."""
        self._insert(tables.observation, rows.load_row(observation))

    def add_quality(self, observation: QualityObservation) -> None:
        """Keeps one eval task of one arm."""
        self._insert(tables.observation, rows.quality_row(observation))

    def add_divergence(self, observation: DivergenceObservation) -> None:
        """Keeps the reading of the fixed texts; a run has at most one."""
        if self._has_divergence:
            raise StoreError(f"run {self.run_id} has its reading of the fixed texts already")
        self._insert(tables.observation, rows.divergence_row(observation))
        self._has_divergence = True

    def add_shadow(self, observation: ShadowObservation) -> None:
        """Keeps the shadow comparison; a run has at most one."""
        if self._has_shadow:
            raise StoreError(f"run {self.run_id} has its shadow comparison already")
        self._insert(tables.observation, rows.shadow_row(observation))
        self._has_shadow = True

    def add_target_fault(self, fault: TargetFault) -> None:
        """Keeps that a deployment was not there, and why."""
        self._insert(tables.observation, rows.target_fault_row(fault))

    def add_start(self, start: StartUp) -> None:
        """Keeps how long one start of a deployment's server took."""
        self._insert(tables.observation, rows.start_row(start))

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
        row = rows.arm_row(self.run_id, arm, deployment)
        of_arm = (tables.arm.c.run_id == self.run_id) & (tables.arm.c.role == arm.value)
        with self._database.writing() as connection:
            connection.execute(delete(tables.arm).where(of_arm))
            connection.execute(insert(tables.arm), row)

    def finish(self, status: RunStatus, finished_at: str) -> None:
        """Seals the run as COMPLETE or PARTIAL: hashes all its observations, and nothing of it changes any more."""
        if status is RunStatus.RUNNING:
            raise StoreError(f"run {self.run_id} cannot finish as running; it is complete or partial")
        rows.check_text(finished_at, "the run's finished_at")
        with self._database.writing() as connection:
            (row,) = fetch(connection, select(tables.run).where(tables.run.c.id == self.run_id))
            if row["status"] != RunStatus.RUNNING.value:
                raise StoreError(f"run {self.run_id} is finished already")
            end = {"status": status.value, "finished_at": finished_at}
            end["evidence_sha256"] = _evidence_sha256(connection, row | end)
            connection.execute(update(tables.run).where(tables.run.c.id == self.run_id).values(end))

    def _insert(self, table: Table, row: rows.Row) -> None:
        seq = self._next_seq
        # Before the write: an interrupt right after the commit must not make the next observation collide with it.
        self._next_seq += 1
        with self._database.writing() as connection:
            connection.execute(insert(table), {"run_id": self.run_id, "seq": seq, **row})


def _keep_plan(connection: Connection, sha256: str, plan: bytes) -> None:
    """Stores a plan unless an earlier run had the same one, also when another process stores it at this moment."""
    insert_into = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    row = {"sha256": sha256, "data": zlib.compress(plan)}
    connection.execute(insert_into(tables.plan).values(row).on_conflict_do_nothing())


def _evidence_sha256(connection: Connection, run: Mapping[str, Any]) -> str:
    observation = tables.observation.c
    columns = (observation[name] for name in rows.OBSERVATION_SEALED)
    seen = select(*columns).where(observation.run_id == run["id"]).order_by(observation.seq)
    arms = fetch(connection, tables.arms_of([run["id"]]))
    return rows.evidence_sha256(run, arms, fetch(connection, seen), sealed_telemetry(connection, run["id"]))


def sealed_telemetry(connection: Connection, run_id: str) -> list[tuple[object, ...]]:
    """The columns of a run's telemetry that its evidence hash covers, in order."""
    telemetry = tables.telemetry.c
    columns = (telemetry[name] for name in TELEMETRY_SEALED)
    wanted = select(*columns).where(telemetry.run_id == run_id).order_by(telemetry.seq)
    return [tuple(row) for row in connection.execute(wanted)]
