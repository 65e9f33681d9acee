"""Shadow prompts that can carry a check, and prompts whose answers could not be compared.

Where answers are compared by embeddings, the similarity of some may be missing: they differ in letters, and perhaps not
in meaning. Counted as different, they would make the baseline look noisy, which hides a broken candidate, or make an
equal candidate look broken. So they are left out, and the result must hold even if all of them had differed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchgate.gate.comparison import Comparison, TiedRuns
from benchgate.gate.decision import inconclusive, invalid
from benchgate.gate.evidence.items import too_many
from benchgate.model.records import AnswerAgreement, PairFacts, ShadowItem
from benchgate.model.run import Evidence
from benchgate.stats.evals import Excess

MAX_UNANSWERED = 0.01
"""Share of prompts that the baseline may leave unanswered; they are left out. Of few prompts, two may be."""

MAX_WITHOUT_SIMILARITY = 0.05
"""Share of prompts whose similarity may be missing. One prompt always may."""

MEASURE_AGAIN = "see the server's log and measure again"
_CHECK_EMBEDDINGS = "see what the embeddings endpoint replies to texts like these, and measure again"

DIFFERENT = PairFacts(AnswerAgreement.DIFFERENT, differs=True, exact=False, normalised=False)
_IDENTICAL = PairFacts(AnswerAgreement.EXACT, differs=False, exact=True, normalised=True)

RowPairs = tuple[tuple[ShadowItem, ShadowItem], ...]
"""The judged run's rows, each with that of the run it is compared with."""


def usable_rows(evidence: Evidence) -> tuple[ShadowItem, ...]:
    """Return the prompts that the baseline answered, by id. Raises CannotJudge for an incomplete shadow comparison.

    A prompt that the candidate left unanswered stays and counts against it.
    """
    shadow = evidence.shadow
    if shadow is None:
        raise invalid("the shadow comparison was not made", MEASURE_AGAIN)
    if shadow.fault is not None:
        raise invalid(f"the shadow comparison failed: {shadow.fault}", MEASURE_AGAIN)
    if len(shadow.items) != shadow.expected_n or shadow.expected_n == 0:
        raise invalid(f"only {len(shadow.items)} of {shadow.expected_n} prompts were shadowed", MEASURE_AGAIN)
    if len({item.prompt_id for item in shadow.items}) != len(shadow.items):
        raise invalid("some prompts of the shadow comparison have the same id", MEASURE_AGAIN)
    missing = [item for item in shadow.items if not _answered_by_baseline(item)]
    if too_many(len(missing), len(shadow.items), MAX_UNANSWERED):
        first = f"first {missing[0].prompt_id}: {missing[0].error}"
        raise invalid(f"the baseline itself failed on {len(missing)} prompts, {first}", MEASURE_AGAIN)
    return tuple(sorted(filter(_answered_by_baseline, shadow.items), key=lambda item: item.prompt_id))


def paired_rows(comparison: Comparison) -> RowPairs:
    """Pair the judged run's rows with those of the reference run by prompt; without a reference, with themselves.

    Raises CannotJudge if either run is unusable or they shadowed different prompts.
    """
    judged = usable_rows(comparison.judged)
    if not isinstance(comparison, TiedRuns):
        return tuple((row, row) for row in judged)
    reference = {row.prompt_id: row for row in usable_rows(comparison.reference)}
    if _prompt_hashes(comparison.judged) != _prompt_hashes(comparison.reference):
        raise invalid("the two runs shadowed different prompts", MEASURE_AGAIN)
    return tuple((row, reference[row.prompt_id]) for row in judged if row.prompt_id in reference)


def unanswered_notes(comparison: Comparison, used: int) -> list[str]:
    """Return a note on the prompts left out because the baseline did not answer them."""
    shadow = comparison.judged.shadow
    missing = 0 if shadow is None else len(shadow.items) - used
    return [f"{missing} of {used + missing} prompts left out: the baseline did not answer them"] if missing else []


def _answered_by_baseline(item: ShadowItem) -> bool:
    return item.primary is not None and (item.secondary is not None or bool(item.once))


def _prompt_hashes(evidence: Evidence) -> dict[str, tuple[str, bool]]:
    items = () if evidence.shadow is None else evidence.shadow.items
    return {item.prompt_id: (item.prompt_sha256, bool(item.once)) for item in items}


def lacks_similarity(row: ShadowItem) -> bool:
    """Return True if answers could not be compared. A candidate without an answer differs in any case."""
    return row.similarity_error is not None and row.candidate is not None


def require_similarity(rows: tuple[ShadowItem, ...]) -> None:
    """Raise CannotJudge if the similarity of too many prompts is missing."""
    missing = [row for row in rows if lacks_similarity(row)]
    if missing and not len(rows) > len(missing) <= max(1.0, MAX_WITHOUT_SIMILARITY * len(rows)):
        reason = f"the answers to {len(missing)} of {len(rows)} prompts could not be compared by their embeddings"
        raise invalid(f"{reason}: {missing[0].similarity_error}", _CHECK_EMBEDDINGS)


def pairs_with_similarity(pairs: RowPairs) -> RowPairs:
    """Return the pairs whose answers were compared in both runs."""
    return tuple(pair for pair in pairs if not any(map(lacks_similarity, pair)))


def require_pass_at_worst(
    excess: Excess, pairs: RowPairs, margin: float, measure: Callable[[RowPairs], Excess | None]
) -> None:
    """Raise CannotJudge if a PASS would not hold, had all candidate answers without a similarity been different."""
    missing = len(pairs) - len(pairs_with_similarity(pairs))
    if not missing or excess.limits.upper >= margin:
        return
    worst = measure(tuple((_compared_as(ours, DIFFERENT), _compared_as(theirs, _IDENTICAL)) for ours, theirs in pairs))
    if worst is None or worst.limits.upper >= margin:
        reason = f"depends on {missing} prompts whose similarity is missing: "
        raise inconclusive(f"{reason}if those answers were different, the margin would not be held", _CHECK_EMBEDDINGS)


def similarity_notes(rows: tuple[ShadowItem, ...]) -> list[str]:
    """Return a note on the prompts left out because their similarity is missing."""
    missing = sum(map(lacks_similarity, rows))
    return [f"{missing} of {len(rows)} prompts left out: their similarity is missing"] if missing else []


def _compared_as(row: ShadowItem, candidate: PairFacts) -> ShadowItem:
    """Fill in a missing similarity: the candidate's as given, and a baseline that agrees with itself."""
    if not lacks_similarity(row):
        return row
    return replace(row, with_primary=candidate, with_secondary=candidate, own=_IDENTICAL)
