"""Evidence and journal of a run, read from its rows in the database or in a spool, and the runs before it.

Everything read is checked against the hash that was stored with it: EvidenceError names what is damaged. Earlier runs,
for what accumulates over promotions, are read from verdicts, never from records. Recorded promotions decide which runs
promoted, where the suite has a baseline series. Elsewhere, and where all of them were withdrawn, their verdicts do.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, String, Table, cast, func, or_, select

from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, PastCheck, PastRun, Promotion, baseline_series, past_arm
from benchgate.model.noise import NoiseProfile, noise_key
from benchgate.model.records import DivergenceObservation
from benchgate.model.run import (
    LOAD_ENDED,
    REPLICAS,
    RESUMED,
    SESSION_BEGUN,
    BudgetReading,
    DeploymentFault,
    Evidence,
    LoadEnd,
    LoadObservation,
    QualityObservation,
    ReplicaCount,
    Run,
    RunStatus,
    ServerStart,
    ShadowObservation,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.store import results, rows, tables
from benchgate.store.database import fetch
from benchgate.store.results import StoredVerdict
from benchgate.store.rows import TELEMETRY_SEALED, excluded_seqs, read_resumptions, read_telemetry
from benchgate.store.stored_run import is_over, read_runs

EVIDENCE_EVENTS = (LOAD_ENDED, RESUMED, REPLICAS)  # the kinds of events that are a part of what a verdict rests on

_READERS = 4
MOST_RUNS = 50
_MOST_SEARCHED = 4 * MOST_RUNS  # blocked runs among them are no history
MEASURED = ("load", "quality", "divergence", "shadow")  # observations of how deployments behaved
_UNFINISHED = (RunStatus.RUNNING.value, RunStatus.PARTIAL.value)  # of a run when a verdict on it was reached
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
    """Facts that a store knows besides a run's own rows: its baseline's noise, and earlier runs, oldest first.

    Earlier runs are those that promote, those whose first verdict did not, and those without a verdict.
    """

    noise: NoiseProfile | None = None
    promoted: tuple[PastRun, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    unjudged: tuple[Attempt, ...] = ()


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


def read_evidence(found: RunRows, known: RunContext) -> Evidence:
    """Return everything observed in a run, finished or not, in order, without records that resuming excluded."""
    run = found.as_run()
    resumed = read_resumptions(run.id, found.events)
    aside = excluded_seqs(resumed)
    counted = [row for row in found.observations if row["seq"] not in aside]
    seen = read_observations(run.id, counted)
    resumed_at = [event["seq"] for event in found.events if event["kind"] == RESUMED]
    telemetry = tuple(read_window(run.id, row) for row in found.telemetry if row["seq"] not in aside)
    if is_over(found.run) and found.sha256() != found.run["evidence_sha256"]:
        raise EvidenceError(f"run {run.id}: it is not what it was when it finished: the store is damaged")
    ends = [event["data"] for event in found.events if event["kind"] == LOAD_ENDED]
    counts = [event["data"] for event in found.events if event["kind"] == REPLICAS]
    try:
        ended = LoadEnd(**json.loads(ends[-1])) if ends else None
    except rows.UNREADABLE as exc:
        raise EvidenceError(f"run {run.id}: its journal does not tell how its load ended: {exc}") from exc
    try:
        replicas = tuple(ReplicaCount.from_document(json.loads(data)) for data in counts)
    except rows.UNREADABLE as exc:
        raise EvidenceError(f"run {run.id}: its journal holds a damaged count of replicas: {exc}") from exc
    return Evidence(
        noise=known.noise,
        history=known.promoted,
        attempts=known.attempts,
        unjudged=known.unjudged,
        ended=ended,
        run=run,
        load=tuple(
            replace(item, session=bisect(resumed_at, row["seq"]))
            for row, item in zip(counted, seen, strict=True)
            if isinstance(item, LoadObservation)
        ),
        quality=tuple(item for item in seen if isinstance(item, QualityObservation)),
        shadow=_only(run.id, seen, ShadowObservation),
        target_faults=tuple(item for item in seen if isinstance(item, DeploymentFault)),
        starts=tuple(item for item in seen if isinstance(item, ServerStart)),
        telemetry=telemetry,
        divergence=_only(run.id, seen, DivergenceObservation),
        budget_spent=_only(run.id, seen, BudgetReading),
        resumptions=resumed,
        replicas=replicas,
    )


def _only(run_id: str, seen: Sequence[object], kind: type[_Once]) -> _Once | None:
    """Return the record of a kind that a run has once. Raises EvidenceError for two: neither may be chosen."""
    found = [item for item in seen if isinstance(item, kind)]
    if len(found) > 1:
        raise EvidenceError(f"run {run_id} has {len(found)} records of a kind that a run has once ({kind.__name__})")
    return found[0] if found else None


def _in_order(connection: Connection, table: Table, run_id: str) -> list[rows.Row]:
    return fetch(connection, select(table).where(table.c.run_id == run_id).order_by(table.c.seq))


def read_window(run_id: str, row: rows.Row) -> TelemetryWindow:
    """Return the telemetry of a row. Raises EvidenceError with its place where it is damaged."""
    try:
        return read_telemetry(row)
    except (EvidenceError, *rows.UNREADABLE) as exc:
        place = f"{row['arm']} {row['stage']}"
        raise EvidenceError(f"run {run_id}, telemetry {row['seq']} ({place}): {exc}") from exc


def read_observations(run_id: str, found: Sequence[rows.Row]) -> list[rows.Observation]:
    """Return the observations of rows in order; threads decode them, for zlib and hashing release the GIL."""

    def read(row: rows.Row) -> rows.Observation:
        try:
            return rows.read_observation(row)
        except (EvidenceError, *rows.UNREADABLE) as exc:
            names = [row["kind"], row["arm"], row["stage"], row["task"]]
            place = " ".join(str(name) for name in names if name is not None)
            raise EvidenceError(f"run {run_id}, observation {row['seq']} ({place}): {exc}") from exc

    with ThreadPoolExecutor(max_workers=_READERS) as readers:
        return list(readers.map(read, found))


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


# Context: noise and earlier runs


def read_context(connection: Connection, run: Run) -> RunContext:
    """Read the noise of a run's baseline, and the newest earlier runs of the same suite and measurement.

    Earlier are runs that were over before `run` began, as decided by then. A resumed run began when it was resumed
    last: its first session may have measured next to nothing.
    Without a baseline series, a run promoted when any of its own verdicts does, with the numbers of the first that
    does: deciding again, with other waivers or none, takes nothing out of the history. Later decisions add nothing
    either: what was decided after `run` began is unknown to it, however often it is judged. Promotions are in order of
    decision. Raises EvidenceError for a damaged verdict or promotion.
    """
    # The noise known at its end; of a calibration, its own profile.
    profile = tables.noise_profile
    document = results.first_document(connection, select(profile).where(profile.c.run_id == run.id))
    noise = None if document is None else NoiseProfile.from_json(document)
    if noise is None and Arm.BASELINE in run.arms:
        key = noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256)
        noise = results.noise_profile(connection, key, before=run.finished_at or run.started_at)
    event, earlier = tables.event.c, tables.run.c
    resumed = select(tables.event).where(event.run_id == run.id, event.kind == RESUMED).order_by(event.seq)
    began_at = max([run.started_at, *(one.at for one in read_resumptions(run.id, fetch(connection, resumed)))])
    recorded = baseline_series(results.promotions(connection, run.suite_name, until=began_at))
    before = select(tables.run).where(
        earlier.measurement_sha256 == run.measurement_sha256,
        earlier.suite_name == run.suite_name,
        earlier.status == RunStatus.COMPLETE.value,
        earlier.finished_at <= began_at,
        earlier.id != run.id,
    )
    newest = before.order_by(earlier.started_at.desc(), earlier.id.desc()).limit(_MOST_SEARCHED)
    compared = _with_verdicts(connection, newest, decided_by=began_at)
    attempts = tuple(_attempt(one, own[0].outcome) for one, own in compared if not own[0].outcome.promotes)
    unjudged = _unjudged(connection, run, began_at)
    if recorded:
        return RunContext(noise, _recorded(connection, before, recorded), attempts, unjudged)
    promoting = [(one, next((v for v in own if v.outcome.promotes), None)) for one, own in compared]
    promoted = [_past(one, verdict, verdict.decided_at) for one, verdict in promoting if verdict is not None]
    promoted.sort(key=lambda past: past.promoted_at)
    return RunContext(noise, tuple(promoted[-MOST_RUNS:]), attempts, unjudged)


def _with_verdicts(
    connection: Connection, query: Select[Any], *, decided_by: str | None
) -> list[tuple[Run, list[StoredVerdict]]]:
    """Return runs of two arms with their own verdicts on all of them, reached by an instant (None: all); oldest first.

    A verdict reached while the run was measured, or interrupted, is none on all of it.
    """
    found = fetch(connection, query)
    if not found:
        return []
    own: dict[str, list[StoredVerdict]] = {row["id"]: [] for row in found}
    for verdict in results.read_verdicts(connection, tables.verdict.c.run_id.in_(own)):
        judged = verdict.document.get("run")
        is_early = isinstance(judged, Mapping) and judged.get("status") in _UNFINISHED
        in_time = decided_by is None or (verdict.decided_at or "") <= decided_by
        if verdict.of_the_run_itself and in_time and not is_early:
            own[verdict.run_id].append(verdict)
    runs = reversed(read_runs(connection, found))
    return [(one, own[one.id]) for one in runs if own[one.id] and len(one.arms) == len(Arm)]


def _unjudged(connection: Connection, run: Run, began_at: str) -> tuple[Attempt, ...]:
    """Return the newest earlier runs that measured something and had no verdict on all of it by then.

    What happened to them after this run began makes no difference: neither their end or verdict, nor what they measured
    since. Records stored only as a whole, like recorded prompts, were seen when the run was ended.
    """
    before, seen, stone, verdict = tables.run.c, tables.observation.c, tables.tombstone.c, tables.verdict.c
    event = tables.event.c
    measured = select(1).where(seen.run_id == before.id, seen.kind.in_(MEASURED)).exists()
    # Sealed columns begin with `seq` and the kind (OBSERVATION_SEALED): [12,"load",
    place = "[" + cast(stone.seq, String)
    of_measured = or_(*(stone.sealed.startswith(place + f',"{kind}",') for kind in MEASURED))
    of_observation = stone.of_table == tables.observation.name
    removed = select(1).where(stone.run_id == before.id, of_observation, of_measured).exists()
    began = select(1).where(event.run_id == before.id, event.kind == SESSION_BEGUN).exists()
    over = before.finished_at.is_not(None) & (before.finished_at <= began_at)
    whole = (before.status == RunStatus.COMPLETE.value) & over
    in_time = func.coalesce(verdict.decided_at, "") <= began_at
    # The text of a document, which is long, is searched only where the instants do not show that the run was over.
    is_early = or_(*(verdict.document.contains(f'"status":"{status}"', autoescape=True) for status in _UNFINISHED))
    of_whole = or_(verdict.decided_at.is_(None), verdict.decided_at >= before.finished_at, ~is_early)
    judged = select(1).where(verdict.run_id == before.id, verdict.own == 1, in_time, of_whole).exists()
    query = select(tables.run).where(
        before.measurement_sha256 == run.measurement_sha256,
        before.suite_name == run.suite_name,
        before.started_at < began_at,
        before.id != run.id,
        measured | removed | (began & ~over),
        ~(whole & judged),
    )
    newest = query.order_by(before.started_at.desc(), before.id.desc()).limit(MOST_RUNS)
    found = reversed(read_runs(connection, fetch(connection, newest)))
    return tuple(_attempt(one, None) for one in found if len(one.arms) == len(Arm) and not one.calibrates)


def _recorded(connection: Connection, before: Select[Any], recorded: Sequence[Promotion]) -> tuple[PastRun, ...]:
    """Return the promoted runs of `before` in order of promotion, each by the verdict it rests on.

    They are selected by id, so any number of later runs without promotion does not hide them.
    """
    of_series = before.where(tables.run.c.id.in_([one.run_id for one in recorded]))
    known = {one.id: (one, own) for one, own in _with_verdicts(connection, of_series, decided_by=None)}
    past = []
    for promotion in recorded:
        if promotion.grounds is None or promotion.run_id not in known:
            continue
        one, own = known[promotion.run_id]
        verdict = next((v for v in own if v.sha256 == promotion.grounds.verdict_sha256), None)
        if verdict is None or not verdict.outcome.promotes:
            raise EvidenceError(
                f"promotion {promotion.id} of run {one.id} rests on a verdict that is not there: the store is damaged"
            )
        past.append(_past(one, verdict, promotion.promoted_at))
    return tuple(past[-MOST_RUNS:])


def _attempt(run: Run, outcome: Outcome | None) -> Attempt:
    baseline, candidate = (past_arm(run.arms[arm], run.environment) for arm in Arm)
    return Attempt(run.id, run.started_at, run.label, baseline, candidate, outcome)


def _past(run: Run, verdict: StoredVerdict, decided_at: str | None) -> PastRun:
    document: Mapping[str, Any] = verdict.document
    checks = [_check(check, document["alpha"]) for check in document["checks"]]
    return PastRun(
        run_id=run.id,
        started_at=run.started_at,
        label=run.label,
        baseline=past_arm(run.arms[Arm.BASELINE], run.environment),
        candidate=past_arm(run.arms[Arm.CANDIDATE], run.environment),
        checks={check.id: check for check in checks if check is not None},
        decided_at=decided_at,
        slo=run.suite.get("slo"),
    )


def _check(check: Mapping[str, Any], alpha: float) -> PastCheck | None:
    """Return a valid comparison of both arms with finite numbers; None for any other check."""
    numbers = {name: check.get(name) for name in ("baseline", "candidate", "harm", "lower", "upper")}
    # Documents spell infinite numbers as text, and unmeasured ones as null.
    known = {name: float(number) for name, number in numbers.items() if isinstance(number, int | float)}
    is_valid = check["outcome"] != Outcome.INVALID.value  # it may have been advisory; its numbers are kept
    if not is_valid or check["scale"] == Scale.ABSOLUTE.value or len(known) < len(numbers):
        return None
    lower, upper = check.get("freedom") or (None, None)
    return PastCheck(
        id=check["id"],
        unit=Unit(check["unit"]),
        scale=Scale(check["scale"]),
        alpha=float(check.get("limits_alpha", alpha)),
        n=check["n"],
        freedom=(lower, upper),
        **known,
    )
