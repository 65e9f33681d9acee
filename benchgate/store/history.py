"""Results of the runs before a run, for what accumulates over promotions. Read from verdicts, never from records.

Recorded promotions decide which runs promoted, where the suite has a baseline series. Elsewhere,
and where all of them were withdrawn, their verdicts do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, PastCheck, PastRun, Promotion, baseline_series, past_arm
from benchgate.model.run import RESUMED, SESSION_BEGUN, Run, RunStatus
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.store import results, tables
from benchgate.store.database import fetch
from benchgate.store.results import StoredVerdict
from benchgate.store.rows import read_resumptions
from benchgate.store.whole_run import read_runs

MOST_RUNS = 50
_LOOKED_AT = 4 * MOST_RUNS  # blocked runs among them are no history
MEASURED = ("load", "quality", "divergence", "shadow")  # observations of what deployments did when they were asked


@dataclass(frozen=True, slots=True)
class PriorRuns:
    """Runs before a run, oldest first: those that promote, those whose first verdict did not, and unjudged ones."""

    promoted: tuple[PastRun, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    unjudged: tuple[Attempt, ...] = ()


def past_runs(connection: Connection, run: Run) -> PriorRuns:
    """Return the newest runs of the same suite and measurement that were over before `run` began, as decided by then.

    A resumed run began when it was resumed last: its first session may have measured next to nothing.
    Without a baseline series, a run promoted when any of its own verdicts does, with the numbers of the first that
    does: deciding again, with other waivers or none, takes nothing out of the history. Later decisions add nothing
    either: what was decided after `run` began is unknown to it, however often it is judged. Promotions are in order of
    decision. Raises EvidenceError for a damaged verdict or promotion.
    """
    began_at = _began_at(connection, run)
    recorded = baseline_series(results.promotions(connection, run.suite_name, until=began_at))
    before = _before(run, began_at)
    newest = before.order_by(tables.run.c.started_at.desc(), tables.run.c.id.desc()).limit(_LOOKED_AT)
    compared = _with_verdicts(connection, newest, decided_by=began_at)
    attempts = tuple(_attempt(one, own[0].outcome) for one, own in compared if not own[0].outcome.promotes)
    unjudged = _unjudged(connection, run, began_at)
    if recorded:
        return PriorRuns(_recorded(connection, before, recorded), attempts, unjudged)
    promoting = [(one, next((v for v in own if v.outcome.promotes), None)) for one, own in compared]
    promoted = [_past(one, verdict, verdict.decided_at) for one, verdict in promoting if verdict is not None]
    return PriorRuns(tuple(sorted(promoted, key=lambda past: past.promoted_at)[-MOST_RUNS:]), attempts, unjudged)


def _began_at(connection: Connection, run: Run) -> str:
    """Return when the last session of a run began. Raises EvidenceError where its journal is damaged."""
    event = tables.event.c
    went_on = select(tables.event).where(event.run_id == run.id, event.kind == RESUMED).order_by(event.seq)
    return max([run.started_at, *(one.at for one in read_resumptions(run.id, fetch(connection, went_on)))])


def _before(run: Run, began_at: str) -> Select[Any]:
    """Select the complete runs of the same suite and measurement that were over before this one began."""
    before = tables.run.c
    return select(tables.run).where(
        before.measurement_sha256 == run.measurement_sha256,
        before.suite_name == run.suite_name,
        before.status == RunStatus.COMPLETE.value,
        before.finished_at <= began_at,
        before.id != run.id,
    )


def _with_verdicts(
    connection: Connection, wanted: Select[Any], *, decided_by: str | None
) -> list[tuple[Run, list[StoredVerdict]]]:
    """Return runs of two arms with their own verdicts reached by an instant (None: all); oldest first."""
    found = fetch(connection, wanted)
    if not found:
        return []
    own: dict[str, list[StoredVerdict]] = {row["id"]: [] for row in found}
    for verdict in results.verdicts_of(connection, list(own)):
        if verdict.of_the_run_itself and (decided_by is None or (verdict.decided_at or "") <= decided_by):
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
    removed = select(1).where(stone.run_id == before.id, stone.of_table == tables.observation.name).exists()
    began = select(1).where(event.run_id == before.id, event.kind == SESSION_BEGUN).exists()
    over = before.finished_at.is_not(None) & (before.finished_at <= began_at)
    whole = (before.status == RunStatus.COMPLETE.value) & over
    in_time = func.coalesce(verdict.decided_at, "") <= began_at
    judged = select(1).where(verdict.run_id == before.id, verdict.own == 1, in_time).exists()
    wanted = select(tables.run).where(
        before.measurement_sha256 == run.measurement_sha256,
        before.suite_name == run.suite_name,
        before.started_at < began_at,
        before.id != run.id,
        measured | removed | (began & ~over),
        ~(whole & judged),
    )
    newest = wanted.order_by(before.started_at.desc(), before.id.desc()).limit(MOST_RUNS)
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
    )


def _check(check: Mapping[str, Any], alpha: float) -> PastCheck | None:
    """Return a comparison of both arms with finite numbers; None for any other check."""
    numbers = [check.get(name) for name in ("baseline", "candidate", "harm", "lower", "upper")]
    if check["scale"] == Scale.ABSOLUTE.value or not _are_finite(numbers):
        return None
    baseline, candidate, harm, lower, upper = (float(number) for number in numbers if number is not None)
    return PastCheck(
        id=check["id"],
        unit=Unit(check["unit"]),
        scale=Scale(check["scale"]),
        baseline=baseline,
        candidate=candidate,
        harm=harm,
        lower=lower,
        upper=upper,
        alpha=float(check.get("limits_alpha", alpha)),
        n=check["n"],
    )


def _are_finite(numbers: Sequence[object]) -> bool:
    """Documents spell infinite numbers as text, and unmeasured ones as null."""
    return all(isinstance(number, int | float) for number in numbers)
