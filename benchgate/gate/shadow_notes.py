"""What else is known of the answers of a shadow comparison: how alike, how long, how often cut, how often refusals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from benchgate.model.records import ShadowItem
from benchgate.model.shadow import Label
from benchgate.stats.paired import paired_t
from benchgate.stats.proportions import mcnemar_harm_p

LENGTH_BAND = (0.9, 1.1)
"""Outside it a candidate that disagrees no oftener still rambles, or breaks off."""
_CUT_GAP = 0.01
_WARNINGS = 4


def warnings_on(rows: Sequence[ShadowItem], alpha: float) -> Iterator[str]:
    """What turns a PASS into a WARN: each is shown, not only seen, and all four share the error rate."""
    alpha = alpha / _WARNINGS
    yield from islice((told for lengths in _lengths(rows) for told in _length(lengths, alpha)), 1)
    both = [row for row in rows if row.primary_facts is not None and row.candidate_facts is not None]
    lost, gained = discordant(both, _refused)
    if lost > gained and mcnemar_harm_p(lost, gained) <= alpha:
        yield f"the candidate refuses {lost} prompts that the baseline answers, and answers {gained} that it refuses"
    lost, gained = discordant(both, _cut)
    if lost - gained > _CUT_GAP * len(both) and mcnemar_harm_p(lost, gained) <= alpha:
        told = f"{lost} answers of the candidate were cut at `max_tokens` where the baseline's ended"
        yield f"{told}, {gained} the reverse"


def notes_on(rows: Sequence[ShadowItem]) -> Iterator[str]:
    """Counts beside the number that decides."""
    labels = Counter(row.with_primary.label for row in rows if row.with_primary is not None)
    if labels:
        told = ", ".join(f"{labels[label]} {label.value}" for label in Label if labels[label])
        yield f"the candidate's answers beside the baseline's first: {told}"
    ratio = length_ratio(rows)
    if ratio is not None:
        yield f"the candidate's answers are {ratio:.2f} times as long"
    refused = [sum(_refused(row)[side] for row in rows) for side in (0, 1)]
    if any(refused):
        yield f"refusals: {refused[0]} of the baseline, {refused[1]} of the candidate"


def length_ratio(rows: Sequence[ShadowItem]) -> float | None:
    """All of the candidate's answers over all of the baseline's first ones; None with nothing to divide by.

    In tokens or in characters, whichever differs more.
    """
    ratios = [ratio for lengths in _lengths(rows) if (ratio := _ratio(lengths)) is not None]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio if ratio else math.inf), default=None)


def discordant(rows: Sequence[ShadowItem], of: Callable[[ShadowItem], tuple[bool, bool]]) -> tuple[int, int]:
    """How often only the candidate has it, and how often only the baseline."""
    found = [of(row) for row in rows]
    return sum(ours and not theirs for theirs, ours in found), sum(theirs and not ours for theirs, ours in found)


def _ratio(lengths: Sequence[tuple[int, int]]) -> float | None:
    total = sum(baseline for baseline, _ in lengths)
    return sum(candidate for _, candidate in lengths) / total if total else None


def _length(lengths: Sequence[tuple[int, int]], alpha: float) -> Iterator[str]:
    ratio = _ratio(lengths)
    if ratio is None or LENGTH_BAND[0] <= ratio <= LENGTH_BAND[1]:
        return
    gaps = np.array([candidate - baseline for baseline, candidate in lengths], dtype=np.float64)
    test = paired_t(gaps if ratio > 1 else -gaps, alpha / 2)
    if test is not None and test.p_harm <= alpha / 2:
        yield f"the candidate's answers are {ratio:.2f} times as long as the baseline's"


def _lengths(rows: Sequence[ShadowItem]) -> Iterator[list[tuple[int, int]]]:
    """Of every two answers: in tokens, where both sides always tell them, and in characters, which nobody tells."""
    facts = [(row.primary_facts, row.candidate_facts) for row in rows]
    both = [(theirs, ours) for theirs, ours in facts if theirs is not None and ours is not None]
    tokens = [(theirs.tokens, ours.tokens) for theirs, ours in both]
    known = [(theirs, ours) for theirs, ours in tokens if theirs is not None and ours is not None]
    if len(known) == len(both):
        yield known
    yield [(theirs.characters, ours.characters) for theirs, ours in both]


def _refused(row: ShadowItem) -> tuple[bool, bool]:
    """Of the baseline's first answer, and of the candidate's."""
    theirs, ours = row.primary_facts, row.candidate_facts
    return theirs is not None and theirs.refusal, ours is not None and ours.refusal


def _cut(row: ShadowItem) -> tuple[bool, bool]:
    return row.primary_finish == "length", row.candidate_finish == "length"
