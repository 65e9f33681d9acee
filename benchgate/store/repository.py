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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Table, select

from benchgate.errors import EvidenceError, UsageError
from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm
from benchgate.model.divergence import DivergenceObservation
from benchgate.model.noise import NoiseKey, NoiseProfile, noise_key
from benchgate.model.run import (
    LOAD_ENDED,
    Evidence,
    LoadEnd,
    LoadObservation,
    MetricRow,
    QualityObservation,
    Run,
    RunStatus,
    ShadowObservation,
    StartUp,
    TargetFault,
    TrendPoint,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import Outcome
from benchgate.store import noise_profiles, profiles, results, rows, tables
from benchgate.store.engine import Address, Database, fetch
from benchgate.store.history import past_runs
from benchgate.store.migrate import ensure_current, is_current
from benchgate.store.resolve import resolve
from benchgate.store.results import StoredVerdict
from benchgate.store.telemetry_rows import read_telemetry
from benchgate.store.writer import RunWriter, sealed_telemetry

__all__ = ["RunWriter", "Store", "StoredVerdict"]

_READERS = 4


class Store:
    """Runs, their evidence and their verdicts in one database. Use it as a context manager."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        """Closes the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def begin_run(self, run: Run, plan: bytes) -> RunWriter:
        """Stores a running run with its plan (whose SHA-256 is the run's `plan_sha256`) and gives its writer."""
        return RunWriter.begin(self._database, run, plan)

    def resolve(self, ref: str, *, suite: str | None = None) -> str:
        """The id of the run called by id, unique prefix of 4 or more characters, label, `@latest` or `@previous`."""
        with self._database.reading() as connection:
            return resolve(connection, ref, suite=suite)

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
        """All that was observed in a run, finished or not, in order of observation."""
        with self._database.reading() as connection:
            row = _run_row(connection, run_id)
            arms = fetch(connection, tables.arms_of([run_id]))
            found, windows = (_in_order(connection, table, run_id) for table in (tables.observation, tables.telemetry))
            sealed = sealed_telemetry(connection, run_id)
            run = rows.read_run(row, arms)
            noise = _noise_of(connection, run)
            before = past_runs(connection, run)
            ended = _load_end(connection, run_id)
        seen = _read_observations(run_id, found)
        telemetry = tuple(_read_telemetry(run_id, window) for window in windows)
        sha256 = rows.evidence_sha256(row, arms, found, sealed)
        if run.status is not RunStatus.RUNNING and sha256 != row["evidence_sha256"]:
            raise EvidenceError(f"run {run_id}: it is not what it was when it finished: the store is damaged")
        return Evidence(
            noise=noise,
            history=before.promoted,
            attempts=before.attempts,
            ended=ended,
            run=run,
            load=tuple(item for item in seen if isinstance(item, LoadObservation)),
            quality=tuple(item for item in seen if isinstance(item, QualityObservation)),
            shadow=next((item for item in seen if isinstance(item, ShadowObservation)), None),
            target_faults=tuple(item for item in seen if isinstance(item, TargetFault)),
            starts=tuple(item for item in seen if isinstance(item, StartUp)),
            telemetry=telemetry,
            divergence=next((item for item in seen if isinstance(item, DivergenceObservation)), None),
        )

    def events(self, run_id: str) -> list[tuple[str, Mapping[str, object]]]:
        """The run's journal: kind and data of each event, oldest first."""
        event = tables.event.c
        with self._database.reading() as connection:
            found = connection.execute(
                select(event.kind, event.data).where(event.run_id == run_id).order_by(event.seq)
            ).all()
        return [(row.kind, json.loads(row.data)) for row in found]

    def save_verdict(
        self, run_id: str, document: Mapping[str, object], *, compared_run_id: str | None = None
    ) -> StoredVerdict:
        """Adds a decision, plain JSON that names its `outcome`. Saving the latest one once more changes nothing.

        `compared_run_id` is the other run when two runs were compared. Raises StoreError for a document without a
        known outcome.
        """
        with self._database.writing() as connection:
            for known in filter(None, (run_id, compared_run_id)):
                _run_row(connection, known)
            return results.save_verdict(connection, run_id, document, compared_run_id)

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

    def save_metrics(self, run_id: str, metrics: Sequence[MetricRow]) -> None:
        """Keeps the derived numbers of a run in place of those it had. Values are finite and no two rows alike."""
        with self._database.writing() as connection:
            _run_row(connection, run_id)
            results.save_metrics(connection, run_id, metrics)

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
            return results.trend(connection, name, suite, where)

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


def _run_row(connection: Connection, run_id: str) -> rows.Row:
    found = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    if not found:
        raise UsageError(f"the store has no run with the id {run_id!r}; @latest is the newest one it has")
    return found[0]


def _noise_of(connection: Connection, run: Run) -> NoiseProfile | None:
    """What was known of the baseline's own noise when the run ended: its own profile, where it is a calibration."""
    own = noise_profiles.profile_of_run(connection, run.id)
    if own is not None or Arm.BASELINE not in run.arms:
        return own
    key = noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256)
    return noise_profiles.noise_profile(connection, key, before=run.finished_at or run.started_at)


def _load_end(connection: Connection, run_id: str) -> LoadEnd | None:
    """Where the load ended, by the run's journal; None for a fixed number of blocks, and where it did not end."""
    event = tables.event.c
    wanted = select(event.data).where(event.run_id == run_id, event.kind == LOAD_ENDED).order_by(event.seq.desc())
    data = connection.scalar(wanted.limit(1))
    try:
        return LoadEnd(**json.loads(data)) if data is not None else None
    except (ValueError, TypeError) as exc:
        raise EvidenceError(f"run {run_id}: its journal does not tell how its load ended: {exc}") from exc


def _in_order(connection: Connection, table: Table, run_id: str) -> list[rows.Row]:
    return fetch(connection, select(table).where(table.c.run_id == run_id).order_by(table.c.seq))


def _read_telemetry(run_id: str, row: rows.Row) -> TelemetryWindow:
    try:
        return read_telemetry(row)
    except (EvidenceError, ValueError, KeyError, TypeError) as exc:
        place = f"{row['arm']} {row['stage']}"
        raise EvidenceError(f"run {run_id}, telemetry {row['seq']} ({place}): {exc}") from exc


def _read_observations(run_id: str, found: Sequence[rows.Row]) -> list[rows.Observation]:
    """Each of them, in order, several at a time: unpacking and hashing need no interpreter."""
    with ThreadPoolExecutor(max_workers=_READERS) as readers:
        return list(readers.map(partial(_read_observation, run_id), found))


def _read_observation(run_id: str, row: rows.Row) -> rows.Observation:
    try:
        return rows.read_observation(row)
    except (EvidenceError, ValueError, KeyError, TypeError) as exc:
        names = [row["kind"], row["arm"], row["stage"], row["task"]]
        place = " ".join(str(name) for name in names if name is not None)
        raise EvidenceError(f"run {run_id}, observation {row['seq']} ({place}): {exc}") from exc
