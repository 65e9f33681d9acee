"""Prompts whose texts were to be compared by their embeddings, and could not be.

They differ in letters, and nobody knows whether in meaning. As different, they make the baseline look noisier than it
is, which hides a broken candidate, or an honest one look broken. So they are left out, and what rests on them is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchgate.gate.rule import Problem
from benchgate.gate.shadow_rows import invalid
from benchgate.model.records import ShadowItem
from benchgate.model.shadow import Label, PairFacts
from benchgate.model.verdict import Outcome
from benchgate.stats.excess import Excess

RowPairs = tuple[tuple[ShadowItem, ShadowItem], ...]
"""The judged run's rows, each with that of the run it is compared with."""

MOST_UNREAD = 0.05
"""Of the prompts, whose similarity may be missing: an endpoint that says less is not there. One always may."""

APART = PairFacts(Label.DIFFERENT, differs=True, exact=False, normalised=False)
_ALIKE = PairFacts(Label.EXACT, differs=False, exact=True, normalised=True)
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
