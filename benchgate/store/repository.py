"""The store as the rest of benchgate sees it: runs in, evidence and verdicts out.

    with Store.open("benchgate.db") as store:
        writer = store.begin_run(run, plan)
        writer.add_load(observation)               # on the disk when it returns
        writer.finish(RunStatus.COMPLETE, "2026-11-20T12:00:00Z")
        evidence = store.evidence(run.id)          # exactly what was written, in order

Everything read is checked against the hash stored with it: EvidenceError says what is damaged. Whatever the database
itself refuses is a StoreError, and a run or an address that does not exist a UsageError.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, select

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion
from benchgate.model.noise import NoiseKey, NoiseProfile
from benchgate.model.run import Evidence, MetricRow, Run, TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.store import (
    imports,
    noise_profiles,
    profiles,
    promotions,
    results,
    retention,
    rows,
    sealing,
    tables,
    tombstones,
    trends,
)
from benchgate.store.alive import Hold, RunLocks, settle
from benchgate.store.checking import Checked, check_store
from benchgate.store.engine import Address, Database, fetch
from benchgate.store.evidence import known_beside, read_evidence, rows_of
from benchgate.store.journal import Entry, read_journal
from benchgate.store.keeping import Note
from benchgate.store.migrate import ensure_current, is_current
from benchgate.store.overview import Overview, overview
from benchgate.store.recovering import Recovered, recover
from benchgate.store.resolve import resolve, resolve_beside
from benchgate.store.results import StoredVerdict
from benchgate.store.retention import Expendable, Policy, Removed
from benchgate.store.sizes import Sizes, sizes_of
from benchgate.store.tombstones import Removal
from benchgate.store.writer import RunWriter

__all__ = ["RunWriter", "Store", "StoredVerdict"]


class Store:
    """Runs, their evidence and their verdicts in one database. Use it as a context manager."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks = RunLocks(database)

    @classmethod
    def open(cls, address: str, *, create: bool = True) -> Store:
        """Opens the store at a file name, `sqlite:///FILE` or a Postgres URL; with `create` makes it when missing."""
        database = Database.connect(Address.parse(address))
        try:
            ensure_current(database, create=create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @classmethod
    def open_as_is(cls, address: str) -> Store | None:
        """The store for reading alone, neither made nor upgraded; None where there is none of this schema."""
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
        """Closes the database, and lets go of every run that is measured through it."""
        self._locks.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def begin_run(self, run: Run, plan: bytes, *, spool: Path | None = None, note: Note | None = None) -> RunWriter:
        """Stores a running run with its plan (whose SHA-256 is the run's `plan_sha256`) and gives its writer.

        With a `spool` (a new file) what is measured is kept there too, and a store that fails does not end the run;
        `note` is told of it.
        """
        self._hold(run.id)
        return self._held(run.id, lambda: RunWriter.begin(self._database, run, plan, spool=spool, note=note))

    def reopen_run(self, run_id: str, *, spool: Path, note: Note | None = None) -> RunWriter:
        """The writer of a run that was cut short, to go on after what `spool` and store have of it."""
        held = self._locks.stands(run_id)
        if not held:
            self._hold(run_id)
        return self._held(run_id, lambda: RunWriter.reopen(self._database, run_id, spool=spool, note=note), before=held)

    def settle(self) -> list[str]:
        """Marks every run that was killed while it was measured as cut short; their ids."""
        return settle(self._database, self._locks)

    @contextmanager
    def holding(self, run_id: str) -> Iterator[None]:
        """Keeps everybody else from going on with a run. StoreError where it is being measured."""
        self._hold(run_id)
        try:
            yield
        finally:
            self._locks.release(run_id)

    def may_go_on(self, suite: str | None = None) -> list[Run]:
        """The runs of a suite, or all, that were cut short and are not over, newest first."""
        with self._database.reading() as connection:
            wanted = sealing.left_open(suite)
            found = fetch(connection, wanted)
            return [rows.read_run(row, fetch(connection, tables.arms_of([row["id"]]))) for row in found]

    def journal(self, run_id: str) -> tuple[Entry, ...]:
        """Everything of a run in the order in which it came to be, with what was set aside and is in no evidence."""
        with self._database.reading() as connection:
            return read_journal(connection, _run_row(connection, run_id))

    def _hold(self, run_id: str) -> None:
        if not self._locks.take(run_id):
            raise StoreError(f"run {run_id} is being measured, by {self._locks.holder(run_id)}; wait for it to end")

    def _held(self, run_id: str, writer: Callable[[], RunWriter], *, before: bool = False) -> RunWriter:
        """The writer of a run that is held until it writes no more; `before`: whoever asks for it held it already."""
        hold = Hold(self._locks, run_id)
        try:
            opened = writer()
        except BaseException:
            if not before:
                hold.release()
            raise
        opened.held_by(hold)
        return opened

    def recover(self, spool: Path) -> Recovered:
        """Brings in what a run measured while its store was away, or what a killed one did not bring in itself."""
        return recover(self._database, self._locks, spool)

    def resolve(self, ref: str, *, suite: str | None = None, whole: bool = False) -> str:
        """The id of the run called by id, unique beginning of it (not with `whole`), label or a name like `@latest`."""
        with self._database.reading() as connection:
            return resolve(connection, ref, suite=suite, whole=whole)

    def resolve_beside(self, ref: str, run_id: str) -> str:
        """As `resolve`, for what a run is held against, another run: `@promoted` is of the suite of that run."""
        suite = self.run(run_id).suite_name
        with self._database.reading() as connection:
            return resolve_beside(connection, ref, run_id, suite)

    def run(self, run_id: str) -> Run:
        """The run with exactly this id."""
        with self._database.reading() as connection:
            return rows.read_run(_run_row(connection, run_id), fetch(connection, tables.arms_of([run_id])))

    def runs(self, suite: str | None = None, limit: int | None = None) -> list[Run]:
        """The runs of a suite, or all, newest first; at most `limit` of them."""
        run = tables.run.c
        wanted = select(tables.run).order_by(run.started_at.desc(), run.id.desc()).limit(limit)
        if suite is not None:
            wanted = wanted.where(run.suite_name == suite)
        with self._database.reading() as connection:
            found = fetch(connection, wanted)
            arms: dict[str, list[rows.Row]] = {row["id"]: [] for row in found}
            for arm in fetch(connection, tables.arms_of(select(wanted.subquery().c.id))):
                arms[arm["run_id"]].append(arm)
        return [rows.read_run(row, arms[row["id"]]) for row in found]

    def overview(self) -> Overview:
        """Every run with what became of it and every promotion, oldest first, without raw records."""
        with self._database.reading() as connection:
            return overview(connection)

    def plan(self, run_id: str) -> bytes:
        """The canonical JSON of the run's plan, as it was given to `begin_run`."""
        with self._database.reading() as connection:
            row = _run_row(connection, run_id)
            data = connection.scalar(select(tables.plan.c.data).where(tables.plan.c.sha256 == row["plan_sha256"]))
        try:
            plan = zlib.decompress(data) if data is not None else b""
        except zlib.error as exc:
            raise EvidenceError(f"the plan of run {run_id} is damaged: {exc}") from exc
        if hashlib.sha256(plan).hexdigest() != row["plan_sha256"]:
            raise EvidenceError(f"the plan of run {run_id} does not hash to {row['plan_sha256']}: the store is damaged")
        return plan

    def evidence(self, run_id: str) -> Evidence:
        """All that was observed in a run, finished or not, in order of observation.

        Raises EvidenceError where it is not what was written, or where `store gc` removed it, and UsageError for a file
        of another tool, which has none.
        """
        with self._database.reading() as connection:
            tombstones.require_raw(connection, run_id)
            found = rows_of(connection, _run_row(connection, run_id))
            _require_records(found.as_run())
            known = known_beside(connection, found.as_run())
        return read_evidence(found, known)

    def save_import(
        self, run: Run, plan: bytes, metrics: Sequence[MetricRow], note: Mapping[str, object], *, source: str, at: str
    ) -> str:
        """Adds another tool's file as a run with numbers alone; its id, or that of the run the file became before.

        `note` says what was taken and what was not, and has the file's `sha256`; `at` is now (RFC 3339 UTC).
        """
        return imports.save_import(self._database, run, plan, metrics, note, source=source, imported_at=at)

    def events(self, run_id: str) -> list[tuple[str, Mapping[str, object]]]:
        """The run's journal: kind and data of each event, oldest first."""
        event = tables.event.c
        with self._database.reading() as connection:
            found = connection.execute(
                select(event.kind, event.data).where(event.run_id == run_id).order_by(event.seq)
            ).all()
        return [(row.kind, json.loads(row.data)) for row in found]

    def save_verdict(
        self,
        run_id: str,
        document: Mapping[str, object],
        *,
        compared_run_id: str | None = None,
        decided_at: str | None = None,
    ) -> StoredVerdict:
        """Adds a decision, plain JSON that names its `outcome`. Saving the latest one once more changes nothing.

        `compared_run_id` is the other run when two runs were compared. `decided_at` is now (RFC 3339 UTC): a run that
        begins before it does not know of the decision. Raises StoreError for a document without a known outcome.
        """
        with self._database.writing() as connection:
            for known in filter(None, (run_id, compared_run_id)):
                _run_row(connection, known)
            return results.save_verdict(connection, run_id, document, compared_run_id, decided_at)

    def verdicts(self, run_id: str) -> list[StoredVerdict]:
        """Every decision made from the run, oldest first."""
        with self._database.reading() as connection:
            _run_row(connection, run_id)
            return results.verdicts(connection, run_id)

    def own_outcome(self, run_id: str) -> Outcome | None:
        """What the run's latest own verdict says, by its own policy and against its own baseline; None without one."""
        with self._database.reading() as connection:
            _run_row(connection, run_id)
            return results.own_outcomes(connection, [run_id]).get(run_id)

    def evidence_sha256(self, run_id: str) -> str | None:
        """The hash over all evidence of a finished run; None of one that is not over."""
        with self._database.reading() as connection:
            found = _run_row(connection, run_id)["evidence_sha256"]
            return None if found is None else str(found)

    def save_promotion(self, promotion: Promotion) -> Promotion:
        """Adds a promotion or a withdrawal; gives the one that stands where a promotion says no more than that.

        Raises UsageError, EvidenceError or StoreError for one that does not fit what the store has of its run.
        """
        with self._database.writing() as connection:
            _run_row(connection, promotion.run_id)
            return promotions.save_promotion(connection, promotion)

    def promotions(self, suite: str | None = None) -> list[Promotion]:
        """Every promotion and withdrawal of a suite, or of all, in order of time."""
        with self._database.reading() as connection:
            return promotions.promotions(connection, suite)

    def save_metrics(self, run_id: str, metrics: Sequence[MetricRow]) -> None:
        """Keeps the derived numbers of a run in place of those it had. Values are finite and no two rows alike."""
        with self._database.writing() as connection:
            _run_row(connection, run_id)
            results.save_metrics(connection, run_id, metrics)

    def metrics(self, run_id: str) -> list[MetricRow]:
        """The derived numbers of a run as they were computed last."""
        with self._database.reading() as connection:
            _run_row(connection, run_id)
            return results.metrics(connection, run_id)

    def removal(self, run_id: str) -> Removal | None:
        """When and why the run's raw records were removed; None where they are there."""
        with self._database.reading() as connection:
            _run_row(connection, run_id)
            return tombstones.removal(connection, run_id)

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
        """One metric over the runs, oldest first; None means any suite, statistic, stage, task or arm."""
        where = {"statistic": statistic, "stage": stage, "task": task, "arm": arm}
        with self._database.reading() as connection:
            return trends.trend(connection, name, suite, where)

    def measurements(self, run_ids: Collection[str]) -> dict[str, str]:
        """What each of these runs asked of both arms, by its hash."""
        with self._database.reading() as connection:
            return trends.measurements(connection, run_ids)

    def check(self, *, figures: bool = False) -> Checked:
        """Every hash, link and number of the whole store, held against what was written; changes nothing.

        With `figures` the numbers that are kept of runs are made of their records again.
        """
        return check_store(self._database, figures=figures)

    def sizes(self, now: str) -> Sizes:
        """How large the store is, and of what, at the instant `now` (RFC 3339 UTC)."""
        return sizes_of(self._database, now)

    def expendable(self, policy: Policy, now: str) -> list[Expendable]:
        """The runs whose raw records may go by a policy at the instant `now` (RFC 3339 UTC), oldest first."""
        with self._database.reading() as connection:
            return retention.expendable(connection, policy, now)

    def kept_raw(self, policy: Policy, now: str) -> Mapping[str, int]:
        """Of how many runs the raw records stay by a policy at the instant `now`, by the reason."""
        with self._database.reading() as connection:
            return retention.kept(connection, policy, now)

    def remove_raw(self, runs: Sequence[Expendable], *, now: str, reason: str) -> Removed:
        """Removes the raw records of these runs, each behind tombstones, and of none that is not as it was written."""
        return retention.remove(self._database, runs, now=now, reason=reason)

    def vacuum(self) -> None:
        """Gives the room of what was removed back: SQLite by writing its file anew, which needs as much room again."""
        retention.vacuum(self._database)

    def save_client_profile(self, profile: ClientProfile) -> None:
        """Adds a curve of the load generator on a machine."""
        with self._database.writing() as connection:
            profiles.save_client_profile(connection, profile)

    def client_profile(self, fingerprint: str) -> ClientProfile | None:
        """The newest curve of the machine with this fingerprint; None when it was never measured."""
        with self._database.reading() as connection:
            return profiles.client_profile(connection, fingerprint)

    def save_noise_profile(self, profile: NoiseProfile) -> None:
        """Adds what a calibration found, once per calibration."""
        with self._database.writing() as connection:
            _run_row(connection, profile.run_id)
            noise_profiles.save_noise_profile(connection, profile)

    def noise_profile(self, key: NoiseKey, *, before: str | None = None) -> NoiseProfile | None:
        """The newest profile of a key, with `before` (RFC 3339 UTC) of those measured by then; None without one."""
        with self._database.reading() as connection:
            return noise_profiles.noise_profile(connection, key, before=before)


def _require_records(run: Run) -> None:
    """Another tool's file is numbers without a baseline: a verdict on them would be made of nothing."""
    if run.measured_by is not None:
        raise UsageError(
            f"run {run.id} is a file of {run.measured_by}: it has numbers and no records, so nothing can be judged of "
            "it; `benchgate trend` and `benchgate compare` show its numbers"
        )


def _run_row(connection: Connection, run_id: str) -> rows.Row:
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found:
        raise UsageError(f"the store has no run with the id {run_id!r}; @latest is the newest one it has")
    return found[0]
