"""Evidence and journal of a run, read from its rows in the database or in a spool.

Everything read is checked against the hash that was stored with it: EvidenceError names what is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Table, select

from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm
from benchgate.model.noise import NoiseProfile, noise_key
from benchgate.model.records import DivergenceObservation
from benchgate.model.run import (
    LOAD_ENDED,
    REPLICAS,
    RESUMED,
    BudgetReading,
    DeploymentFault,
    Evidence,
    LoadEnd,
    LoadObservation,
    QualityObservation,
    ReplicaCount,
    Run,
    ServerStart,
    ShadowObservation,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.store import results, rows, tables
from benchgate.store.database import fetch
from benchgate.store.history import PriorRuns, past_runs
from benchgate.store.lifecycle import is_over
from benchgate.store.rows import TELEMETRY_SEALED, excluded_seqs, read_resumptions, read_telemetry

EVIDENCE_EVENTS = (LOAD_ENDED, RESUMED, REPLICAS)
"""The kinds of events that are a part of what a verdict rests on."""

_READERS = 4
_Once = TypeVar("_Once", ShadowObservation, DivergenceObservation, BudgetReading)


@dataclass(frozen=True, slots=True)
class RunRows:
    """Rows of one run that its evidence is read from, each list in order of `seq` (`arms`: of role).

    `events` are those of the kinds in `EVIDENCE_EVENTS`.
    """

    run: rows.Row
    arms: Sequence[rows.Row]
    observations: Sequence[rows.Row]
    telemetry: Sequence[rows.Row]
    events: Sequence[rows.Row]

    def as_run(self) -> Run:
        """Return the run that these rows are of."""
        return rows.read_run(self.run, self.arms)

    def sha256(self) -> str:
        """Compute the evidence hash over these rows."""
        telemetry = [tuple(row[name] for name in TELEMETRY_SEALED) for row in self.telemetry]
        return rows.evidence_sha256(self.run, self.arms, self.observations, telemetry, self.events)


@dataclass(frozen=True, slots=True)
class RunContext:
    """Facts that a store knows besides a run's own rows: its baseline's noise, and earlier runs."""

    noise: NoiseProfile | None = None
    before: PriorRuns = field(default_factory=PriorRuns)


def rows_of(connection: Connection, run: rows.Row) -> RunRows:
    """Read the rows of the run with this row from the database."""
    event = tables.event.c
    events = select(tables.event).where(event.run_id == run["id"], event.kind.in_(EVIDENCE_EVENTS)).order_by(event.seq)
    return RunRows(
        run=run,
        arms=fetch(connection, tables.arms_of([run["id"]])),
        observations=_in_order(connection, tables.observation, run["id"]),
        telemetry=_in_order(connection, tables.telemetry, run["id"]),
        events=fetch(connection, events),
    )


def read_context(connection: Connection, run: Run) -> RunContext:
    """Read the noise of a run's baseline and the runs before it."""
    return RunContext(_noise_of(connection, run), past_runs(connection, run))


def read_evidence(found: RunRows, known: RunContext) -> Evidence:
    """Return everything observed in a run, finished or not, in order, without records that resuming excluded."""
    run = found.as_run()
    resumed = read_resumptions(run.id, found.events)
    aside = excluded_seqs(resumed)
    seen = read_observations(run.id, [row for row in found.observations if row["seq"] not in aside])
    telemetry = tuple(read_window(run.id, row) for row in found.telemetry if row["seq"] not in aside)
    if is_over(found.run) and found.sha256() != found.run["evidence_sha256"]:
        raise EvidenceError(f"run {run.id}: it is not what it was when it finished: the store is damaged")
    return Evidence(
        noise=known.noise,
        history=known.before.promoted,
        attempts=known.before.attempts,
        unjudged=known.before.unjudged,
        ended=_load_end(run.id, found.events),
        run=run,
        load=tuple(item for item in seen if isinstance(item, LoadObservation)),
        quality=tuple(item for item in seen if isinstance(item, QualityObservation)),
        shadow=_only(run.id, seen, ShadowObservation),
        target_faults=tuple(item for item in seen if isinstance(item, DeploymentFault)),
        starts=tuple(item for item in seen if isinstance(item, ServerStart)),
        telemetry=telemetry,
        divergence=_only(run.id, seen, DivergenceObservation),
        budget_spent=_only(run.id, seen, BudgetReading),
        resumptions=resumed,
        replicas=_replica_counts(run.id, found.events),
    )


def _only(run_id: str, seen: Sequence[object], kind: type[_Once]) -> _Once | None:
    """Return the record of a kind that a run has once. Raises EvidenceError for two: neither may be chosen."""
    found = [item for item in seen if isinstance(item, kind)]
    if len(found) > 1:
        raise EvidenceError(f"run {run_id} has {len(found)} records of a kind that a run has once ({kind.__name__})")
    return found[0] if found else None


def _noise_of(connection: Connection, run: Run) -> NoiseProfile | None:
    """Return the baseline's noise known when the run ended; a calibration's own profile comes first."""
    own = results.profile_of_run(connection, run.id)
    if own is not None or Arm.BASELINE not in run.arms:
        return own
    key = noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256)
    return results.noise_profile(connection, key, before=run.finished_at or run.started_at)


def _load_end(run_id: str, events: Sequence[rows.Row]) -> LoadEnd | None:
    """Return the end of the load by the run's journal; None for a fixed number of blocks."""
    ends = [event["data"] for event in events if event["kind"] == LOAD_ENDED]
    try:
        return LoadEnd(**json.loads(ends[-1])) if ends else None
    except (ValueError, TypeError) as exc:
        raise EvidenceError(f"run {run_id}: its journal does not tell how its load ended: {exc}") from exc


def _replica_counts(run_id: str, events: Sequence[rows.Row]) -> tuple[ReplicaCount, ...]:
    counts = [event["data"] for event in events if event["kind"] == REPLICAS]
    try:
        return tuple(ReplicaCount.from_document(json.loads(data)) for data in counts)
    except (ValueError, TypeError, KeyError) as exc:
        raise EvidenceError(f"run {run_id}: its journal holds a damaged count of replicas: {exc}") from exc


def _in_order(connection: Connection, table: Table, run_id: str) -> list[rows.Row]:
    return fetch(connection, select(table).where(table.c.run_id == run_id).order_by(table.c.seq))


def read_window(run_id: str, row: rows.Row) -> TelemetryWindow:
    """Return the telemetry of a row. Raises EvidenceError with its place where it is damaged."""
    try:
        return read_telemetry(row)
    except (EvidenceError, ValueError, KeyError, TypeError) as exc:
        place = f"{row['arm']} {row['stage']}"
        raise EvidenceError(f"run {run_id}, telemetry {row['seq']} ({place}): {exc}") from exc


def read_observations(run_id: str, found: Sequence[rows.Row]) -> list[rows.Observation]:
    """Return the observations of rows in order; threads decode them, for zlib and hashing release the GIL."""
    with ThreadPoolExecutor(max_workers=_READERS) as readers:
        return list(readers.map(partial(_read_observation, run_id), found))


def _read_observation(run_id: str, row: rows.Row) -> rows.Observation:
    try:
        return rows.read_observation(row)
    except (EvidenceError, ValueError, KeyError, TypeError) as exc:
        names = [row["kind"], row["arm"], row["stage"], row["task"]]
        place = " ".join(str(name) for name in names if name is not None)
        raise EvidenceError(f"run {run_id}, observation {row['seq']} ({place}): {exc}") from exc


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """Event of a run's journal."""

    kind: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Record or event at one `seq`. `aside`: it was incomplete at an interruption, and is excluded."""

    seq: int
    what: rows.Observation | TelemetryWindow | JournalEvent
    aside: bool = False


def read_journal(connection: Connection, run: rows.Row) -> tuple[JournalEntry, ...]:
    """Return everything of the run with this row, in order. Raises EvidenceError where it is damaged."""
    run_id, event = run["id"], tables.event
    found = rows_of(connection, run)
    events = fetch(connection, select(event).where(event.c.run_id == run_id))
    aside = excluded_seqs(read_resumptions(run_id, found.events))
    seen = zip(found.observations, read_observations(run_id, found.observations), strict=True)
    what: dict[int, rows.Observation | TelemetryWindow | JournalEvent] = {
        **{row["seq"]: observation for row, observation in seen},
        **{row["seq"]: read_window(run_id, row) for row in found.telemetry},
        **{row["seq"]: JournalEvent(row["kind"], json.loads(row["data"])) for row in events},
    }
    return tuple(JournalEntry(seq, what[seq], seq in aside) for seq in sorted(what))
