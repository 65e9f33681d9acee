"""Which prompts of a shadow comparison can carry a judgement, and why none can where that is so."""

from __future__ import annotations

from benchgate.gate.comparison import Comparison
from benchgate.gate.quality_answers import too_many
from benchgate.gate.rule import Problem
from benchgate.model.records import ShadowItem
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome

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
