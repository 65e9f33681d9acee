"""Whether a candidate may be promoted, by the verdict that the store has of its run. Nothing is judged or stored here.

Everything that is missing, old, withdrawn or not understood is a no.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.errors import UsageError
from benchgate.escape import one_line
from benchgate.model.deployment import Arm, adapter_names, identity_of
from benchgate.model.history import PromotionAction, promotion_labels
from benchgate.model.run import Run, RunStatus, too_old_because
from benchgate.release.question import Question
from benchgate.store.repository import Store, StoredVerdict

_NEWEST = 100  # runs of a suite that are looked at for one of a candidate


class NoRun(UsageError):
    """The store has no run of this name, or more than one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`promotes` with the sentence that says why; `document` is the same and more, as plain JSON."""

    promotes: bool
    why: str
    document: dict[str, object]


def answer(store: Store, asked: Question, now: str) -> Answer:
    """What there is to say at the instant `now` (RFC 3339 UTC). Raises NoRun where no run is meant."""
    run = _newest(store, asked) if asked.run is None else _called(store, asked.run)
    own = [one for one in store.verdicts(run.id) if one.of_the_run_itself]
    verdict = own[-1] if own else None
    against = _against(store, asked, run, verdict, now)
    said = one_line(str(verdict.document.get("reason", ""))) if verdict is not None else ""
    why = against or said or "its verdict lets it through"
    told = f"run {run.id} of suite {run.suite_name}: {verdict.outcome if verdict is not None else 'no verdict'}; {why}"
    document: dict[str, object] = {
        "run": run.id,
        "suite": run.suite_name,
        "candidate": _candidate(run),
        "verdict": verdict.outcome.value if verdict is not None else None,
        "promotes": against is None,
        "reason": why,
        "decided_at": verdict.decided_at if verdict is not None else None,
        "finished_at": run.finished_at,
        "verdict_sha256": verdict.sha256 if verdict is not None else None,
    }
    return Answer(against is None, told, document)


def _called(store: Store, name: str) -> Run:
    try:
        return store.run(store.resolve(name, whole=True))
    except UsageError as error:
        raise NoRun(one_line(str(error))) from error


def _newest(store: Store, asked: Question) -> Run:
    """The newest run that judges this candidate, whatever became of it: an older one is no answer."""
    for run in store.runs(asked.suite, _NEWEST):
        if run.measured_by is None and not run.calibrates and _candidate(run) == asked.candidate:
            return run
    raise NoRun(f"the newest runs of suite {asked.suite!r} have none that judges {asked.candidate!r}")


def _against(store: Store, asked: Question, run: Run, verdict: StoredVerdict | None, now: str) -> str | None:
    """Why it may not be promoted; None where nothing is in the way."""
    if run.calibrates or run.imported or run.measured_by is not None:
        return "it is no run that benchgate measured to judge a candidate, and promotes nobody"
    if run.status is not RunStatus.COMPLETE:
        return f"it is {run.status}, and only a complete run says anything"
    if verdict is None:
        return "it was never judged"
    if not verdict.outcome.promotes or verdict.document.get("promotes") is not True:
        return one_line(str(verdict.document.get("reason", "its verdict says no")))
    if asked.strict and verdict.outcome.exit_code(strict=True):
        return "WARN is asked to count as a no"
    return (
        too_old_because(run.finished_at, now, asked.max_age_s)
        or _other_weights(run, asked.revision)
        or _promotion(store, asked, run)
    )


def _other_weights(run: Run, revision: str | None) -> str | None:
    candidate = run.arms.get(Arm.CANDIDATE)
    if candidate is None:
        return "it has no candidate"
    identity = identity_of(candidate, adapter_names(run.suite.get("load")))
    if identity.may_move:
        return f"its candidate is {one_line(identity.told)}"
    if revision is not None and identity.revision != revision:
        return f"it measured {one_line(identity.told)}, and is asked for revision {one_line(revision)}"
    return None


def _promotion(store: Store, asked: Question, run: Run) -> str | None:
    """A promotion that was taken back is a no, whatever the verdict says."""
    became = promotion_labels(store.promotions(run.suite_name)).get(run.id)
    if became == PromotionAction.WITHDRAWN:
        return "its promotion was withdrawn"
    return "it is asked to be promoted, and is not" if asked.promoted and became is None else None


def _candidate(run: Run) -> str:
    """The name of the deployment that it judges; by its suite where it never came to be asked."""
    found = run.arms.get(Arm.CANDIDATE)
    return found.name if found is not None else str(run.suite.get("candidate", ""))
