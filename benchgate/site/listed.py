"""Runs and promotions as the pages list them: finished texts and places of files, nothing to be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchgate.escape import one_line
from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion, PromotionAction, current_promotions, promotion_labels
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome
from benchgate.report.display import MARKS, minute
from benchgate.site.names import run_file
from benchgate.site.shelf import Entry
from benchgate.store.queries import RunSummary

NO_VERDICT = "no verdict"
_NO_MARK = "○"
_ID_SHOWN = 13
_COMMIT_SHOWN = 12
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list. `tone` is the outcome's style; `again` says where its report is of another opinion.

    `told` is what else to know of it: that it is cut short, a calibration, a file of another tool or without records.
    `promoted` says what was recorded of it, `stands` whether that is a promotion that stands.
    """

    run_id: str
    suite: str
    file: str
    name: str
    when: str
    started_at: str
    baseline: str
    candidate: str
    outcome: str
    mark: str
    tone: str
    reason: str
    again: str
    told: tuple[str, ...]
    promoted: str
    stands: bool


@dataclass(frozen=True, slots=True)
class ListedPromotion:
    """A promotion or a withdrawal in a list. `stands` says whether it still does."""

    when: str
    suite: str
    file: str
    run: str
    candidate: str
    deed: str
    stands: bool
    by: str
    ref: str
    outcome: str
    reason: str


def name_of(glance: RunSummary) -> str:
    """What a reader knows the run by: its label, else the beginning of its id."""
    return one_line(glance.run.label or glance.run.id[:_ID_SHOWN], _LONGEST_NAME)


def listed_runs(
    runs: Sequence[RunSummary], promotions: Sequence[Promotion], reports: Mapping[str, Entry]
) -> dict[str, ListedRun]:
    """Every run by its id, in the order given; `reports` are those that were made or could not be, by run."""
    recorded, stands = promotion_labels(promotions), current_promotions(promotions)
    found = {}
    for glance in runs:
        run_id = glance.run.id
        found[run_id] = _run(glance, recorded.get(run_id, ""), run_id in stands, reports.get(run_id, Entry()))
    return found


def _run(glance: RunSummary, promoted: str, stands: bool, entry: Entry) -> ListedRun:
    run, own = glance.run, glance.outcomes[-1] if glance.outcomes else None
    names = _names(glance)
    return ListedRun(
        run_id=run.id,
        suite=run.suite_name,
        file=run_file(run.id),
        name=name_of(glance),
        when=minute(run.started_at),
        started_at=run.started_at,
        baseline=names[Arm.BASELINE],
        candidate=names[Arm.CANDIDATE],
        outcome=own.outcome.value if own is not None else NO_VERDICT,
        mark=MARKS[own.outcome] if own is not None else _NO_MARK,
        tone=own.outcome.value.lower() if own is not None else Outcome.INVALID.value.lower(),
        reason=own.reason if own is not None else "",
        again=_again(own.outcome.value if own is not None else None, entry.outcome),
        told=tuple(_known(glance, entry)),
        promoted=promoted,
        stands=stands,
    )


def _names(glance: RunSummary) -> dict[Arm, str]:
    arms = glance.run.arms
    return {arm: one_line(arms[arm].name, _LONGEST_NAME) if arm in arms else "" for arm in Arm}


def _again(stored: str | None, found: str | None) -> str:
    """A verdict may have been reached with waivers, or by an older benchgate; a report is made without and now."""
    return f"its report says {found}" if found is not None and found != stored else ""


def _known(glance: RunSummary, entry: Entry) -> list[str]:
    run = glance.run
    known = []
    if run.status is not RunStatus.COMPLETE:
        known.append("cut short" if run.status is RunStatus.PARTIAL else "not over yet")
    if run.calibrates:
        known.append("a calibration")
    if run.measured_by is not None:
        known.append(f"a file of {one_line(run.measured_by, _LONGEST_NAME)}")
    if glance.removed is not None:
        known.append("without raw records")
    if entry.fault is not None:
        known.append("no report can be made of it")
    return known


def listed_promotions(promotions: Sequence[Promotion], runs: Mapping[str, RunSummary]) -> list[ListedPromotion]:
    """Every promotion and withdrawal, newest first."""
    stands = {one.id for one in current_promotions(promotions).values()}
    return [_promotion(one, runs.get(one.run_id), one.id in stands) for one in reversed(promotions)]


def _promotion(promotion: Promotion, glance: RunSummary | None, stands: bool) -> ListedPromotion:
    origin = promotion.origin
    at = f"{origin.ref or ''} {(origin.commit or '')[:_COMMIT_SHOWN]}".strip()
    still = stands or promotion.deed is PromotionAction.WITHDRAWN
    return ListedPromotion(
        when=minute(promotion.promoted_at),
        suite=promotion.suite,
        file=run_file(promotion.run_id),
        run=name_of(glance) if glance is not None else one_line(promotion.run_id[:_ID_SHOWN]),
        candidate=_names(glance)[Arm.CANDIDATE] if glance is not None else "",
        deed=promotion.told if still else f"{promotion.told}; no longer stands",
        stands=stands,
        by=one_line(origin.by, _LONGEST_NAME),
        ref=one_line(at, _LONGEST_NAME),
        outcome=promotion.grounds.outcome.value if promotion.grounds is not None else "",
        reason=promotion.reason or "",
    )
