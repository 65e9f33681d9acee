"""Selection of stored runs for a table of candidates: the newest of each candidate of a suite, or named ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

from benchgate.errors import Command, Remedy, UsageError
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.history import PromotionAction, current_promotions
from benchgate.model.run import Run, RunStatus
from benchgate.sizing.candidates import (
    NewerRun,
    StoredRun,
    incomparable_because,
    ineligible_because,
    unreadable_because,
)
from benchgate.store.repository import Store


@dataclass(frozen=True, slots=True)
class SelectedRuns:
    """Runs, newest first, and notes on those left out. `newer` has a candidate's newer complete run, by run id."""

    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    newer: Mapping[str, NewerRun] = field(default_factory=dict)


def select_runs(store: Store, names: Sequence[str]) -> SelectedRuns:
    """Return the named runs, or the newest complete run of each candidate of a suite (default: that of @latest)."""
    if len(names) > 1:
        return _named(store, names)
    suite = store.run(store.resolve("@latest", partial=True)).suite_name if not names else names[0]
    if store.runs(suite, limit=1):
        if names and _is_a_run(store, suite):
            raise UsageError(f"{suite!r} is a suite and also a run; name the run by its id")
        found = newest_of_each(store.runs(suite))
        if not found.runs:
            measure = () if found.notes else (Remedy("measure its candidates", Command.RUN),)
            reason = "; ".join((f"no run of the suite {suite!r} is whole and can be read", *found.notes))
            raise UsageError(reason, remedies=measure)
        return found
    try:
        return _named(store, names)
    except UsageError as error:
        known = dict.fromkeys(run.suite_name for run in store.runs())
        if near := get_close_matches(suite, known, n=1):
            raise UsageError(f"no stored run is of a suite {suite!r}; did you mean {near[0]!r}?") from None
        raise UsageError(f"no stored run is of a suite {suite!r}, and {error}") from None


def _is_a_run(store: Store, name: str) -> bool:
    try:
        store.resolve(name)
    except UsageError:
        return False
    return True


def _named(store: Store, names: Sequence[str]) -> SelectedRuns:
    found: dict[str, Run] = {}
    for name in names:
        run = store.run(store.resolve(name))
        if run.id in found:
            raise UsageError(f"{name} is run {run.id}, which is named already; name each once")
        if not _judges(run):
            why = f"measured no whole suite ({run.scope})" if run.scope else "judges no candidate"
            raise UsageError(f"run {run.id} {why}; name runs that judge a candidate by the whole suite")
        found[run.id] = run
    runs = tuple(sorted(found.values(), key=_when, reverse=True))
    return SelectedRuns(runs, (), {run.id: newer for run in runs if (newer := _newer(store, run)) is not None})


def _when(run: Run) -> tuple[str, str]:
    return run.started_at, run.id


def _newer(store: Store, run: Run) -> NewerRun | None:
    """Return the newest complete run of the same candidate; None if `run` is that."""
    name = run.arms[Arm.CANDIDATE].name
    of_it = [
        other
        for other in store.runs(run.suite_name)
        if _judges(other) and other.status is RunStatus.COMPLETE and other.arms[Arm.CANDIDATE].name == name
    ]
    newest = max(of_it, key=_when, default=run)
    if _when(newest) <= _when(run):
        return None
    return NewerRun(newest.label or newest.id[:13], store.own_outcome(newest.id))


def _judges(run: Run) -> bool:
    return run.judges_whole_suite and Arm.CANDIDATE in run.arms


def newest_of_each(runs: Sequence[Run]) -> SelectedRuns:
    """Select each candidate's newest complete run of a suite's `runs`, which are newest first.

    A run that cannot be compared with the newest of all is left out, with a note.
    """
    whole: dict[str, Run] = {}
    unfinished: dict[str, Run] = {}
    for run in filter(_judges, runs):
        name = run.arms[Arm.CANDIDATE].name
        if name in whole:
            continue
        (whole if run.status is RunStatus.COMPLETE else unfinished).setdefault(name, run)
    if not whole:
        return SelectedRuns((), ())
    closed = {name: why for name, run in whole.items() if (why := unreadable_because(run)) is not None}
    open_to_us = [run for name, run in whole.items() if name not in closed]
    apart = {run.arms[Arm.CANDIDATE].name: incomparable_because(run, open_to_us[0]) for run in open_to_us}
    notes = [f"the newest whole run of {name}, {whole[name].id}, is left out: {why}" for name, why in closed.items()]
    newest = next(iter(apart), None)
    for reason in dict.fromkeys(filter(None, apart.values())):
        names = [name for name, of in apart.items() if of == reason]
        of_which, are = ("newest whole run", "is") if len(names) == 1 else ("newest whole runs", "are")
        notes.append(
            f"{', '.join(names)} {are} left out, whose {of_which} and that of {newest} have no common table: {reason}"
        )
    for name, run in unfinished.items():
        before = "the one before it stands here" if name in whole else "it has no whole run"
        notes.append(f"the newest run of {name}, {run.id}, was not measured to its end: {before}")
    chosen = tuple(run for run in open_to_us if apart[run.arms[Arm.CANDIDATE].name] is None)
    return SelectedRuns(chosen, tuple(notes))


def read_stored(
    store: Store,
    run: Run,
    *,
    from_records: bool = True,
    newer: NewerRun | None = None,
    verdict: Mapping[str, Any] | None = None,
) -> StoredRun:
    """Return a stored run with its verdict and metrics, computed from raw records if it has them and is eligible.

    Without `from_records` the stored metrics are returned. `newer` is a newer complete run of the candidate; `verdict`
    replaces the run's own latest one.
    """
    if verdict is None:
        own = [one.document for one in store.verdicts(run.id) if one.of_the_run_itself]
        verdict = own[-1] if own else None
    # The run's promotion counts as withdrawn if it was, and no later one holds.
    promotions = [one for one in store.promotions(run.suite_name) if one.run_id == run.id]
    reasons = [one.reason or "no reason was given" for one in promotions if one.deed is PromotionAction.WITHDRAWN]
    withdrawn = reasons[-1] if reasons and run.id not in current_promotions(promotions) else None
    rows = store.metrics(run.id)
    known = partial(StoredRun, run, verdict=verdict, newer=newer, withdrawn=withdrawn)
    if ineligible_because(run, verdict) is not None or not from_records:
        return known(rows=rows, evals="its tokens were not looked at")
    gone = store.removal(run.id)
    if gone is not None:
        why = f"the run's raw records were removed on {gone.removed_at[:10]}"
        return known(rows=rows, evals=why, unchecked=why)
    evidence = store.evidence(run.id)
    made = metric_rows(evidence)
    judged = any(row.name == "accuracy" for row in made)
    evals = evidence.quality if judged else "the run has no evals that are right or wrong"
    return known(rows=made, evals=evals)
