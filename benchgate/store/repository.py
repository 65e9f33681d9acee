"""The store of runs, their evidence and their results.

    with Store.open("benchgate.db") as store:
        writer = store.begin_run(run, plan)
        writer.add(observation)                    # on the disk when it returns
        writer.finish(RunStatus.COMPLETE, "2026-11-20T12:00:00Z")
        evidence = store.evidence(run.id)          # exactly what was written, in order

Everything read is checked against the hash stored with it. EvidenceError reports damage, StoreError whatever the
database itself refuses, UsageError a run or an address that does not exist.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import ColumnElement, Connection, insert, select

from benchgate.errors import Command, EvidenceError, Remedy, UsageError
from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.history import Promotion
from benchgate.model.noise import NoiseKey, NoiseProfile
from benchgate.model.run import Evidence, MetricRow, Run, RunStatus, TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.store import clock, queries, results, retention, rows, stored_run, tables
from benchgate.store.database import Address, Database, fetch
from benchgate.store.evidence import JournalEntry, read_context, read_evidence, read_journal, rows_of
from benchgate.store.integrity import CheckReport, check_store
from benchgate.store.locks import RunLocks, lock_name
from benchgate.store.migrate import ensure_current, is_current
from benchgate.store.results import StoredVerdict
from benchgate.store.retention import Policy, RemovableRun, Removed, Sizes
from benchgate.store.run_reference import require_label, resolve, resolve_beside, skipped_runs
from benchgate.store.spool import Recovered, recover
from benchgate.store.stored_run import Removal, read_runs, run_row
from benchgate.store.writer import Notify, RunWriter

__all__ = ["RunWriter", "Store", "StoredVerdict"]

_AT_ONCE = 500  # runs in one query


class Store:
    """Runs, their evidence and their verdicts in one database. Use it as a context manager."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks = RunLocks(database)

    @classmethod
    def open(cls, address: str, *, create: bool = True) -> Store:
        """Open the store at a file name, `sqlite:///FILE` or a Postgres URL; `create` makes a missing one."""
        database = Database.connect(Address.parse(address))
        try:
            ensure_current(database, create=create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @classmethod
    def open_as_is(cls, address: str) -> Store | None:
        """Open a store to read it, without creating or upgrading it. Returns None unless one of this schema exists."""
        database = Database.connect(Address.parse(address))
        try:
            if is_current(database):
                return cls(database)
        except BaseException:
            database.close()
            raise
        database.close()
        return None

    def close(self) -> None:
        """Close the database and release every run that is measured through it."""
        self._locks.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _reading(self, run_id: str) -> Iterator[tuple[Connection, rows.Row]]:
        with self._database.reading() as connection:
            yield connection, run_row(connection, run_id)

    @contextmanager
    def _writing(self, *run_ids: str) -> Iterator[Connection]:
        with self._database.writing() as connection:
            for run_id in run_ids:
                run_row(connection, run_id)
            yield connection

    # Measuring

    def begin_run(self, run: Run, plan: bytes, *, spool: Path | None = None, note: Notify | None = None) -> RunWriter:
        """Store a running run with its plan (whose SHA-256 is the run's `plan_sha256`) and return its writer.

        With a `spool` (a new file) everything measured is kept there too, and a failing store does not end the run;
        `note` is called with a message when that happens.
        """
        self._locks.require(run.id)
        if run.keeps_texts:
            self._database.restrict()
        with ExitStack() as on_error:
            on_error.callback(self._locks.release, run.id)
            writer = RunWriter.begin(self._database, run, plan, spool=spool, note=note)
            on_error.pop_all()
        writer.locks = self._locks
        return writer

    def reopen_run(self, run_id: str, *, spool: Path, note: Notify | None = None) -> RunWriter:
        """Return the writer of an interrupted run, which continues after all that `spool` and store have of it."""
        with ExitStack() as on_error:
            if not self._locks.is_held(run_id):
                self._locks.require(run_id)
                on_error.callback(self._locks.release, run_id)
            writer = RunWriter.reopen(self._database, run_id, spool=spool, note=note)
            on_error.pop_all()
        writer.locks = self._locks
        return writer

    def hold_run(self, run_id: str) -> AbstractContextManager[None]:
        """Keep every other process from resuming a run. Raises StoreError where it is being measured."""
        return self._locks.hold(run_id)

    def mark_abandoned_runs(self) -> list[str]:
        """Mark every `running` run whose lock is free as interrupted: its process was killed. Returns their ids."""
        run = tables.run.c
        with self._database.reading() as connection:
            running = list(connection.scalars(select(run.id).where(run.status == RunStatus.RUNNING.value)))
        killed = []
        for run_id in running:
            if not self._locks.take(run_id):
                continue
            try:
                with self._database.writing() as connection:
                    stored_run.suspend(connection, run_id)
            finally:
                self._locks.release(run_id)
            killed.append(run_id)
        return killed

    def resumable_runs(self, suite: str | None = None) -> list[Run]:
        """Return the interrupted runs of a suite, or of all, that may be resumed, newest first."""
        run = tables.run.c
        query = select(tables.run).where(run.status == RunStatus.PARTIAL.value, run.evidence_sha256.is_(None))
        query = tables.of_suite(query, suite).order_by(run.started_at.desc(), run.id.desc())
        with self._database.reading() as connection:
            return read_runs(connection, fetch(connection, query))

    def recover(self, spool: Path) -> Recovered:
        """Insert what a spool holds and the store lacks: of a run whose store was away, or whose process was killed."""
        return recover(self._database, self._locks, spool)

    def save_import(
        self, run: Run, plan: bytes, metrics: Sequence[MetricRow], note: Mapping[str, object], *, source: str, at: str
    ) -> str:
        """Add another tool's file as a complete run with metrics and no records. Returns the run's id.

        `note` records what was imported; its `sha256` identifies the file: a known file adds nothing and returns the
        run it became before. The run's start is when it was measured, `at` is now (both RFC 3339 UTC).
        """
        sha256, imported = str(note["sha256"]), tables.imported
        with self._database.writing() as connection:
            lock_name(connection, sha256)
            known = connection.scalar(select(imported.c.run_id).where(imported.c.source_sha256 == sha256).limit(1))
            if known is not None:
                return str(known)
            require_label(connection, run.label)
            arms = [rows.arm_row(run.id, arm, deployment) for arm, deployment in run.arms.items()]
            stored_run.begin_run(connection, rows.run_row(run), arms, zlib.compress(plan))
            end = {"status": RunStatus.COMPLETE.value, "finished_at": run.started_at}
            stored_run.seal_run(connection, run.id, end)
            results.save_metrics(connection, run.id, metrics)
            key = {"id": run.id, "run_id": run.id, "imported_at": at, "source": source, "source_sha256": sha256}
            connection.execute(insert(imported), key | results.document_columns(note, "what was imported"))
        return run.id

    # Runs and their evidence

    def resolve(self, ref: str, *, suite: str | None = None, whole: bool = False, partial: bool = False) -> str:
        """Return the id of the run named by id, unique id prefix (not with `whole`), label or a name like `@latest`.

        `@latest` and `@previous` skip runs that are not complete, except with `partial`.
        """
        with self._database.reading() as connection:
            return resolve(connection, ref, suite=suite, whole=whole, partial=partial)

    def skipped_runs(self, run_id: str) -> list[str]:
        """Return the ids of the partial and running runs that are newer than this run, newest first."""
        with self._database.reading() as connection:
            return skipped_runs(connection, run_id)

    def resolve_beside(self, ref: str, run_id: str) -> str:
        """Return the id of the run that `run_id` is compared with, another run; `@promoted` is of its suite."""
        with self._reading(run_id) as (connection, row):
            return resolve_beside(connection, ref, run_id, row["suite_name"])

    def run(self, run_id: str) -> Run:
        """Return the run with exactly this id."""
        with self._reading(run_id) as (connection, row):
            return read_runs(connection, [row])[0]

    def runs(self, suite: str | None = None, limit: int | None = None) -> list[Run]:
        """Return the runs of a suite, or of all, newest first; at most `limit` of them."""
        run = tables.run.c
        query = select(tables.run).order_by(run.started_at.desc(), run.id.desc())
        query = tables.of_suite(query, suite).limit(limit)
        with self._database.reading() as connection:
            return read_runs(connection, fetch(connection, query))

    def plan(self, run_id: str) -> bytes:
        """Return the canonical JSON of the run's plan, as it was given to `begin_run`."""
        with self._reading(run_id) as (connection, row):
            data = connection.scalar(select(tables.plan.c.data).where(tables.plan.c.sha256 == row["plan_sha256"]))
        try:
            plan = zlib.decompress(data) if data is not None else b""
        except zlib.error as exc:
            raise EvidenceError(f"the plan of run {run_id} is damaged: {exc}") from exc
        if hashlib.sha256(plan).hexdigest() != row["plan_sha256"]:
            raise EvidenceError(f"the plan of run {run_id} does not hash to {row['plan_sha256']}: the store is damaged")
        return plan

    def evidence(self, run_id: str) -> Evidence:
        """Return everything observed in a run, finished or not, in order of observation.

        Raises EvidenceError where it is not what was written or `store gc` removed it, and UsageError for a file of
        another tool, which has no records.
        """
        with self._reading(run_id) as (connection, row):
            results.require_raw(connection, run_id)
            found = rows_of(connection, row)
            run = found.as_run()
            if run.measured_by is not None:
                raise UsageError(
                    f"run {run_id} was measured by {run.measured_by}: it has numbers and no records, so nothing can be "
                    "judged of it",
                    remedies=(Remedy("show its numbers", Command.TREND),),
                )
            context = read_context(connection, run)
        return read_evidence(found, context)

    def evidence_sha256(self, run_id: str) -> str | None:
        """Return the hash over all evidence of a finished run; None for one that is not over."""
        with self._reading(run_id) as (_, row):
            return None if row["evidence_sha256"] is None else str(row["evidence_sha256"])

    def journal(self, run_id: str) -> tuple[JournalEntry, ...]:
        """Return everything of a run in order of creation, with the records that resuming excluded."""
        with self._reading(run_id) as (connection, row):
            return read_journal(connection, row)

    def events(self, run_id: str) -> list[tuple[str, Mapping[str, object]]]:
        """Return kind and data of each event of a run, oldest first."""
        event = tables.event.c
        query = select(event.kind, event.data).where(event.run_id == run_id).order_by(event.seq)
        with self._database.reading() as connection:
            return [(kind, json.loads(data)) for kind, data in connection.execute(query)]

    # Results

    def save_verdict(
        self,
        run_id: str,
        document: Mapping[str, object],
        *,
        compared_run_id: str | None = None,
        decided_at: str | None = None,
    ) -> StoredVerdict:
        """Add a verdict, plain JSON that names its `outcome`. Saving the latest one again changes nothing.

        `compared_run_id` is the other run of a comparison. `decided_at` is now (RFC 3339 UTC): a run that begins
        before it does not know of the verdict. Raises StoreError for a document without a known outcome.
        """
        with self._writing(*filter(None, (run_id, compared_run_id))) as connection:
            return results.save_verdict(connection, run_id, document, compared_run_id, decided_at)

    def verdicts(self, run_id: str) -> list[StoredVerdict]:
        """Return every verdict on the run, oldest first."""
        with self._reading(run_id) as (connection, _):
            return results.verdicts(connection, run_id)

    def own_verdict(self, run_id: str) -> StoredVerdict | None:
        """Return the latest verdict by the run's own policy and baseline; None without one."""
        return next((one for one in reversed(self.verdicts(run_id)) if one.of_the_run_itself), None)

    def own_outcome(self, run_id: str) -> Outcome | None:
        """Return the outcome of the latest verdict by the run's own policy and baseline; None without one."""
        with self._reading(run_id) as (connection, _):
            return results.own_outcomes(connection, [run_id]).get(run_id)

    def save_promotion(self, promotion: Promotion) -> Promotion:
        """Add a promotion or a withdrawal; return the current promotion instead where a new one adds nothing.

        Raises UsageError, EvidenceError or StoreError for one that does not fit what the store has of its run.
        """
        with self._writing(promotion.run_id) as connection:
            return results.save_promotion(connection, promotion)

    def promotions(self, suite: str | None = None) -> list[Promotion]:
        """Return every promotion and withdrawal of a suite, or of all, in order of time."""
        with self._database.reading() as connection:
            return results.promotions(connection, suite)

    def save_metrics(self, run_id: str, metrics: Sequence[MetricRow]) -> None:
        """Replace the metrics of a run. Values are finite and no two rows have one key."""
        with self._writing(run_id) as connection:
            results.save_metrics(connection, run_id, metrics)

    def metrics(self, run_id: str) -> list[MetricRow]:
        """Return the metrics of a run as they were computed last."""
        with self._reading(run_id) as (connection, _):
            return results.metrics(connection, run_id)

    def save_client_profile(self, profile: ClientProfile) -> None:
        """Add a calibration curve of the load generator on a machine."""
        key = {"fingerprint": profile.fingerprint, "measured_at": profile.measured_at}
        row = key | results.document_columns(profile.to_json(), "the client profile")
        with self._database.writing() as connection:
            connection.execute(insert(tables.client_profile), row)

    def client_profile(self, fingerprint: str) -> ClientProfile | None:
        """Return the newest curve, by now, of the machine with this fingerprint; None when it was never measured."""
        profile = tables.client_profile.c
        query = select(tables.client_profile).where(profile.fingerprint == fingerprint)
        with self._database.reading() as connection:
            query = query.where(profile.measured_at <= clock.latest(connection)).order_by(profile.measured_at.desc())
            document = results.first_document(connection, query)
        return None if document is None else ClientProfile.from_json(document)

    def save_noise_profile(self, profile: NoiseProfile) -> None:
        """Add the noise profile of a calibration, once per calibration."""
        key = {
            "run_id": profile.run_id,
            "key_sha256": sha256_of(asdict(profile.key)),
            "measured_at": profile.measured_at,
        }
        row = key | results.document_columns(profile.to_json(), "the noise profile")
        with self._writing(profile.run_id) as connection:
            connection.execute(insert(tables.noise_profile), row)

    def noise_profile(self, key: NoiseKey, *, before: str | None = None) -> NoiseProfile | None:
        """Return the newest profile of a key that was measured by `before` (RFC 3339 UTC; None: now), or None."""
        with self._database.reading() as connection:
            return results.noise_profile(connection, key, before=before)

    # Many runs

    def list_runs(self, chosen: queries.RunFilter) -> list[queries.ListedRun]:
        """Return the runs that pass the filter, newest first, with the outcome and promotion of each."""
        with self._database.reading() as connection:
            return queries.list_runs(connection, chosen)

    def contents(self, run_id: str) -> list[queries.Contents]:
        """Return what is stored of a run: the rows and bytes of each stage, task and comparison."""
        with self._reading(run_id) as (connection, _):
            return queries.contents(connection, run_id)

    def overview(self) -> queries.Overview:
        """Return every run with its outcomes and every promotion, oldest first, without raw records."""
        with self._database.reading() as connection:
            return queries.overview(connection)

    def trend(
        self,
        name: str,
        *,
        suite: str | None = None,
        statistic: str | None = None,
        stage: str | None = None,
        task: str | None = None,
        arm: Arm | None = None,
    ) -> list[TrendPoint]:
        """Return one metric over the runs, oldest first; None means any suite, statistic, stage, task or arm."""
        where = {"statistic": statistic, "stage": stage, "task": task, "arm": arm}
        with self._database.reading() as connection:
            return queries.trend(connection, name, suite, where)

    def measurements(self, run_ids: Collection[str]) -> dict[str, str]:
        """Return the measurement hash of each run: metrics of runs with the same hash are comparable."""
        return self._by_run(tables.run.c.measurement_sha256, run_ids)

    def slos(self, run_ids: Collection[str]) -> dict[str, object]:
        """Return the `slo` of each run's suite, which its measurement hash leaves out; None for a suite without one."""
        suites = self._by_run(tables.run.c.suite, run_ids)
        return {run_id: json.loads(suite).get("slo") for run_id, suite in suites.items()}

    def _by_run(self, column: ColumnElement[str], run_ids: Collection[str]) -> dict[str, str]:
        ids, found = sorted(run_ids), dict[str, str]()
        with self._database.reading() as connection:
            for first in range(0, len(ids), _AT_ONCE):
                some = select(tables.run.c.id, column).where(tables.run.c.id.in_(ids[first : first + _AT_ONCE]))
                found |= {run_id: value for run_id, value in connection.execute(some)}
        return found

    # Managing the store

    def check(self, *, figures: bool = False) -> CheckReport:
        """Check the whole store against its integrity rules; `figures` also recomputes metrics. Changes nothing."""
        return check_store(self._database, figures=figures)

    def sizes(self, now: str) -> Sizes:
        """Return how large the store is, and of what, at the instant `now` (RFC 3339 UTC)."""
        return retention.read_sizes(self._database, now)

    def expendable(self, policy: Policy, now: str) -> list[RemovableRun]:
        """Return the runs whose raw records a policy allows to remove at `now` (RFC 3339 UTC), oldest first."""
        with self._database.reading() as connection:
            return retention.removable_runs(connection, policy, now)

    def kept_raw(self, policy: Policy, now: str) -> Mapping[str, int]:
        """Count the runs whose raw records a policy keeps at `now`, by reason."""
        with self._database.reading() as connection:
            return retention.count_kept(connection, policy, now)

    def remove_raw(self, runs: Sequence[RemovableRun], *, now: str, reason: str) -> Removed:
        """Remove the raw records of these runs, leaving tombstones; damaged runs keep theirs."""
        return retention.remove(self._database, runs, now=now, reason=reason)

    def removal(self, run_id: str) -> Removal | None:
        """Return when and why the run's raw records were removed; None where they are there."""
        with self._reading(run_id) as (connection, _):
            return stored_run.removal(connection, run_id)

    def vacuum(self) -> None:
        """Return freed space to the system; SQLite rewrites its file, which needs as much space again meanwhile."""
        retention.vacuum(self._database)
