"""What runs before a run concluded, for what adds up over promotions. Read from verdicts alone, never from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, PastCheck, PastRun, past_arm
from benchgate.model.run import Run, RunStatus
from benchgate.model.verdict import Scale, Unit
from benchgate.store import results, rows, tables
from benchgate.store.engine import fetch
from benchgate.store.results import StoredVerdict

MOST_RUNS = 50
_LOOKED_AT = 4 * MOST_RUNS  # blocked runs among them are no history


@dataclass(frozen=True, slots=True)
class Before:
    """The runs before a run: those that promote, and those whose first verdict did not. Oldest first."""

    promoted: tuple[PastRun, ...] = ()
    attempts: tuple[Attempt, ...] = ()


def past_runs(connection: Connection, run: Run) -> Before:
    """The newest runs of the same suite and measurement that were over before `run` began.

    A run promoted when any verdict of its own does, and by the numbers of the first that does: deciding it again, with
    other waivers or none, takes nothing out of the history. Raises EvidenceError for a verdict that does not hash.
    """
    before = tables.run.c
    wanted = (
        select(tables.run)
        .where(
            before.measurement_sha256 == run.measurement_sha256,
            before.suite_name == run.suite_name,
            before.status == RunStatus.COMPLETE.value,
            before.finished_at <= run.started_at,
            before.id != run.id,
        )
        .order_by(before.started_at.desc(), before.id.desc())
        .limit(_LOOKED_AT)
    )
    found = fetch(connection, wanted)
    if not found:
        return Before()
    own: dict[str, list[StoredVerdict]] = {row["id"]: [] for row in found}
    for verdict in results.verdicts_of(connection, list(own)):
        if verdict.of_the_run_itself:
            own[verdict.run_id].append(verdict)
    arms: dict[str, list[rows.Row]] = {row["id"]: [] for row in found}
    for arm in fetch(connection, tables.arms_of(list(arms))):
        arms[arm["run_id"]].append(arm)
    runs = [(rows.read_run(row, arms[row["id"]]), own[row["id"]]) for row in reversed(found)]
    compared = [(one, said) for one, said in runs if said and len(one.arms) == len(Arm)]
    promoting = [(one, next((v for v in said if v.outcome.promotes), None)) for one, said in compared]
    return Before(
        tuple([_past(one, verdict) for one, verdict in promoting if verdict is not None][-MOST_RUNS:]),
        tuple(_attempt(one, said[0]) for one, said in compared if not said[0].outcome.promotes),
    )


def _attempt(run: Run, verdict: StoredVerdict) -> Attempt:
    baseline, candidate = (past_arm(run.arms[arm], run.environment) for arm in Arm)
    return Attempt(run.id, run.started_at, run.label, baseline, candidate, verdict.outcome)


def _past(run: Run, verdict: StoredVerdict) -> PastRun:
    document: Mapping[str, Any] = verdict.document
    checks = [_check(said, document["alpha"]) for said in document["checks"]]
    return PastRun(
        run_id=run.id,
        started_at=run.started_at,
        label=run.label,
        baseline=past_arm(run.arms[Arm.BASELINE], run.environment),
        candidate=past_arm(run.arms[Arm.CANDIDATE], run.environment),
        checks={check.id: check for check in checks if check is not None},
    )


def _check(said: Mapping[str, Any], alpha: float) -> PastCheck | None:
    """A comparison of both arms with finite numbers; None for any other check."""
    numbers = [said.get(name) for name in ("baseline", "candidate", "harm", "lower", "upper")]
    if said["scale"] == Scale.ABSOLUTE.value or not _are_finite(numbers):
        return None
    baseline, candidate, harm, lower, upper = (float(number) for number in numbers if number is not None)
    return PastCheck(
        id=said["id"],
        unit=Unit(said["unit"]),
        scale=Scale(said["scale"]),
        baseline=baseline,
        candidate=candidate,
        harm=harm,
        lower=lower,
        upper=upper,
        alpha=float(said.get("limits_alpha", alpha)),
        n=said["n"],
    )


def _are_finite(numbers: Sequence[object]) -> bool:
    """A document spells what is infinite as text, and what was not measured as null."""
    return all(isinstance(number, int | float) for number in numbers)
