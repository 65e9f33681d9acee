"""Which prompts of a shadow comparison can carry a judgement, and why none can where that is so.

Prompts whose texts were to be compared by their embeddings, and could not be.

They differ in letters, and nobody knows whether in meaning. As different, they make the baseline look noisier than it
is, which hides a broken candidate, or an honest one look broken. So they are left out, and what rests on them is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Problem
from benchgate.gate.evidence.items import too_many
from benchgate.model.records import AnswerAgreement, PairFacts, ShadowItem
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from benchgate.stats.evals import Excess

MOST_MISSING = 0.01
"""Of the prompts, that the baseline may leave unanswered: they are left out; of few prompts two may be.

More say that something is broken.
"""


def usable_rows(evidence: Evidence) -> tuple[ShadowItem, ...] | Problem:
    """The prompts that the baseline answered as often as it was to, in order of their ids.

    A prompt that the candidate left unanswered stays: that is the candidate's, and counts against it.
    """
    shadow = evidence.shadow
    if shadow is None:
        return invalid("the shadow comparison was not made")
    if shadow.fault is not None:
        return invalid(f"the shadow comparison failed: {shadow.fault}")
    if len(shadow.items) != shadow.expected_n or shadow.expected_n == 0:
        return invalid(f"only {len(shadow.items)} of {shadow.expected_n} prompts were shadowed")
    if len({item.prompt_id for item in shadow.items}) != len(shadow.items):
        return invalid("some prompts of the shadow comparison have one id")
    missing = [item for item in shadow.items if not _answered_by_baseline(item)]
    if too_many(len(missing), len(shadow.items), MOST_MISSING):
        told = f"the baseline itself failed on {len(missing)} prompts, first {missing[0].prompt_id}: {missing[0].error}"
        return invalid(told)
    rows = [item for item in shadow.items if _answered_by_baseline(item)]
    return tuple(sorted(rows, key=lambda item: item.prompt_id))


def paired_rows(comparison: Comparison) -> tuple[tuple[ShadowItem, ShadowItem], ...] | Problem:
    """The judged run's rows, each with that of the reference run for the same prompt; with itself without one."""
    judged = usable_rows(comparison.judged)
    if isinstance(judged, Problem):
        return judged
    if comparison.reference is None:
        return tuple((row, row) for row in judged)
    reference = usable_rows(comparison.reference)
    if isinstance(reference, Problem):
        return reference
    if _asked(comparison.judged) != _asked(comparison.reference):
        return invalid("the two runs shadowed different prompts")
    theirs = {row.prompt_id: row for row in reference}
    return tuple((row, theirs[row.prompt_id]) for row in judged if row.prompt_id in theirs)


def invalid(reason: str, advice: str = "see the server's log and measure again") -> Problem:
    """Evidence that carries nothing."""
    return Problem(Outcome.INVALID, reason, advice)


def left_out(comparison: Comparison, used: int) -> tuple[str, ...]:
    """How many prompts are not judged, because the baseline left them unanswered."""
    shadow = comparison.judged.shadow
    missing = 0 if shadow is None else len(shadow.items) - used
    return (f"{missing} of {used + missing} prompts left out: the baseline did not answer them",) if missing else ()


def _answered_by_baseline(item: ShadowItem) -> bool:
    return item.primary is not None and (item.secondary is not None or bool(item.once))


def _asked(evidence: Evidence) -> dict[str, tuple[str, bool]]:
    items = () if evidence.shadow is None else evidence.shadow.items
    return {item.prompt_id: (item.prompt_sha256, bool(item.once)) for item in items}


RowPairs = tuple[tuple[ShadowItem, ShadowItem], ...]
"""The judged run's rows, each with that of the run it is compared with."""

MOST_UNREAD = 0.05
"""Of the prompts, whose similarity may be missing: an endpoint that says less is not there. One always may."""

APART = PairFacts(AnswerAgreement.DIFFERENT, differs=True, exact=False, normalised=False)
_ALIKE = PairFacts(AnswerAgreement.EXACT, differs=False, exact=True, normalised=True)
_ADVICE = "see what the embeddings endpoint says to texts like these, and measure again"


def is_unread(row: ShadowItem) -> bool:
    """A candidate that gave no answer differs whatever an embedding says."""
    return row.similarity_error is not None and row.candidate is not None


def too_many_unread(rows: tuple[ShadowItem, ...]) -> Problem | None:
    """So many that the endpoint was not there, or is none."""
    missing = [row for row in rows if is_unread(row)]
    if not missing or len(rows) > len(missing) <= max(1.0, MOST_UNREAD * len(rows)):
        return None
    told = f"the answers to {len(missing)} of {len(rows)} prompts could not be compared by their embeddings"
    return invalid(f"{told}: {missing[0].similarity_error}", _ADVICE)


def read_pairs(pairs: RowPairs) -> RowPairs:
    """Those of which everything is known, in both runs."""
    return tuple(pair for pair in pairs if not any(is_unread(row) for row in pair))


def unread_decide(
    found: Excess, pairs: RowPairs, margin: float, measured: Callable[[RowPairs], Excess | None]
) -> Problem | None:
    """Whether what holds without the unread prompts would not hold, had every candidate's answer to them differed."""
    missing = len(pairs) - len(read_pairs(pairs))
    if not missing or found.limits.upper >= margin:
        return None
    worst = measured(tuple((_as_if(ours, APART), _as_if(theirs, _ALIKE)) for ours, theirs in pairs))
    if worst is not None and worst.limits.upper < margin:
        return None
    reason = (
        f"depends on {missing} prompts whose similarity is missing: were those answers different, the margin would "
    )
    return Problem(Outcome.INCONCLUSIVE, f"{reason}not be held", _ADVICE)


def unread_notes(rows: tuple[ShadowItem, ...]) -> tuple[str, ...]:
    """How many were left out for it."""
    missing = sum(is_unread(row) for row in rows)
    return (f"{missing} of {len(rows)} prompts left out: their similarity is missing",) if missing else ()


def _as_if(row: ShadowItem, candidate: PairFacts) -> ShadowItem:
    """An unread row whose candidate is so far from the baseline, and whose baseline says the same twice."""
    if not is_unread(row):
        return row
    return replace(row, with_primary=candidate, with_secondary=candidate, own=_ALIKE)
