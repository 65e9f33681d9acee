"""Answers with nothing in them, cut short or unreadable: how many of them make an eval say nothing of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchgate.gate.guard import held, tripped
from benchgate.gate.quality_pairs import MORE_TOKENS, is_continuous, unclear
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import GuardResult

_GAP = 0.01
"""Arms whose rates of empty answers differ by more than a point did not do the same task."""
_ODD = 2
"""So many odd answers say nothing, however few there are in all: of 50 items a single one is 2 %."""
_SPOILS = ("quality",)

Arms = tuple[QualityObservation, QualityObservation]
Units = Mapping[str, Sequence[Arms]]
"""What checks call a task → the observed tasks that it consists of, on both arms."""


def too_many(odd: float, n: int, allowed: float) -> bool:
    """Whether more of n answers are odd than the allowed share, and than two; where none is allowed, any."""
    return odd > (max(_ODD, allowed * n) if allowed > 0 else 0)


def is_empty(item: EvalItem) -> bool:
    """Nothing in it but spaces."""
    return not (item.answer or "").strip()


def answers_not_empty(units: Units, allowed: float) -> GuardResult:
    """Either arm's empty answers, over a whole task or group."""
    remedy = f"{MORE_TOKENS}; see whether the server returns its answer in another field"
    for name, tasks in units.items():
        counts = [_count([arms[place] for arms in tasks], is_empty) for place in (0, 1)]
        for (odd, n), arm in zip(counts, ("baseline", "candidate"), strict=True):
            if too_many(odd, n, allowed):
                what = f"{odd / n:.1%} of the {arm}'s answers to {name} are empty"
                return tripped("answers-not-empty", what, remedy, _SPOILS)
        if _differ(counts):
            what = f"the arms' rates of empty answers to {name} differ"
            return tripped("answers-not-empty", what, remedy, _SPOILS)
    return held("answers-not-empty", "the answers are not empty")


def answers_readable(units: Units, allowed: float) -> GuardResult:
    """A baseline whose own answers are cut or unreadable measures the token limit, or the extraction.

    Of the candidate only what would decide is held against the evidence (`quality_checks`): a broken model rambles to
    the limit and answers what nobody can read, and that is its own doing. Scores by degrees have no "wrong", so there
    cut answers count in both arms, and so does a difference between them.
    """
    for name, tasks in units.items():
        counts = [_count([arms[place] for arms in tasks], unclear) for place in (0, 1)]
        shares = [odd / n if n else 0.0 for odd, n in counts]
        by_degrees = any(is_continuous(baseline) for baseline, _ in tasks)
        what = f"{shares[0]:.1%} of the baseline's answers to {name} are wrong and cut short or unreadable"
        if by_degrees:
            ours = f"{shares[1]:.1%} of the candidate's answers to {name}"
            what = f"{shares[0]:.1%} of the baseline's and {ours} are cut short or unreadable"
        if too_many(*counts[0], allowed) or (by_degrees and (too_many(*counts[1], allowed) or _differ(counts))):
            remedy = f"{MORE_TOKENS}; where answers are whole, see why nothing is read out of them"
            return tripped("answers-readable", what, remedy, _SPOILS)
    if any(one.harness.get("imported") for tasks in units.values() for arms in tasks for one in arms):
        return held("answers-readable", "answers that are not right are readable; whether any was cut is not known")
    return held("answers-readable", "answers are whole and readable, as far as they are not right")


def _count(observations: Sequence[QualityObservation], of: Callable[[EvalItem], bool]) -> tuple[float, int]:
    """How many are so, of the items that came back; a failed one is reported by `items-paired`."""
    counts = [_of_one(one, of) for one in observations]
    return sum(odd for odd, _ in counts), sum(n for _, n in counts)


def _of_one(observation: QualityObservation, of: Callable[[EvalItem], bool]) -> tuple[float, int]:
    """In items: of one that was asked several times, and shows its first answer, each asking is its part."""
    answered = [item for item in observation.items if item.error is None]
    odd = observation.harness.get("empty_count" if of is is_empty else "unclear_count")
    askings = observation.harness.get("askings_count")
    if isinstance(odd, int) and isinstance(askings, int) and askings > 0:
        return odd * len(answered) / askings, len(answered)
    return sum(map(of, answered)), len(answered)


def _differ(counts: Sequence[tuple[float, int]]) -> bool:
    (theirs, n), (ours, m) = counts
    return n > 0 and m > 0 and abs(theirs / n - ours / m) > _GAP and abs(theirs - ours) > _ODD
