"""Is the reading of the fixed texts usable? Anything short of all of it, in numbers that can be ones, is INVALID."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchgate import units
from benchgate.gate.rule import Problem
from benchgate.model.divergence import DivergenceItem, DivergenceObservation
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome

_STRANGERS = 0.1
"""Where texts are cut, the share of positions without a common token from which on tokenizers are taken to differ."""


def usable_reading(evidence: Evidence) -> DivergenceObservation | Problem:
    """What was read, when all of it can be used."""
    seen = evidence.divergence
    if seen is None:
        return invalid("the fixed texts were not read", _AGAIN)
    if seen.fault is not None:
        advice = _AGAIN if seen.way is not None else _NO_WAY
        return invalid(f"the fixed texts were not read as planned: {seen.fault}", advice)
    items = seen.items
    if len(items) != seen.expected_n or not items:
        return invalid(f"only {len(items)} of {seen.expected_n} positions were read", _AGAIN)
    if len({item.place for item in items}) < len(items):
        return invalid("a position was read twice", _AGAIN)
    if not all(map(_sound, items)):
        return invalid("a divergence or a probability is not a number that one can be", _AGAIN)
    if len({(item.floor_kld is None, item.floor_same_top1 is None) for item in items}) > 1:
        return invalid("the baseline was asked again at some positions only", _AGAIN)
    strangers = sum(item.shared == 0 for item in items)
    if seen.way == "cut" and strangers > _STRANGERS * len(items):
        reason = f"at {strangers} of {len(items)} positions the arms list no token in common"
        return invalid(f"{reason}: their tokenizers differ, or the candidate's answers are noise", _TOKENIZERS)
    return seen


def _sound(item: DivergenceItem) -> bool:
    """A divergence is finite and not negative; the logarithm of a probability is finite and not positive."""
    divergences = [item.kld, *([item.floor_kld] if item.floor_kld is not None else [])]
    logs = [ln for ln in (item.baseline_ln, item.candidate_ln) if ln is not None]
    known: Sequence[float | None] = [*divergences, *logs]
    if any(value is None or not math.isfinite(value) for value in known):
        return False
    return all(value >= 0 for value in divergences) and all(ln <= 0 for ln in logs)


def no_room_for_distance(seen: DivergenceObservation, bound: float) -> Problem | None:
    """A baseline as far from itself as the candidate may be from it: behind that, a broken one would be hidden."""
    floor = [item.floor_kld for item in seen.items if item.floor_kld is not None]
    if not floor or (mean := sum(floor) / len(floor)) < bound:
        return None
    reason = (
        f"the baseline lies {units.show_nats(mean)} from itself, and the candidate may lie {units.show_nats(bound)} "
        "beyond that: what is taken off hides as much as is looked for"
    )
    return invalid(reason, _NOISY)


def no_room_for_disagreement(share: float, upper: float, bound: float) -> Problem | None:
    """A baseline that disagrees with itself so often that a candidate that agrees nowhere could pass.

    `upper` is the upper limit of that share; a candidate can disagree at no more than the rest of the positions.
    """
    if upper < bound:
        return None
    reason = (
        f"the baseline disagrees with itself at {units.show_percent(share)} of the positions, so a candidate that "
        "agrees nowhere would pass"
    )
    return invalid(reason, _NOISY)


def invalid(reason: str, advice: str) -> Problem:
    """Evidence that says nothing for or against the candidate, and what to do."""
    return Problem(Outcome.INVALID, reason, advice)


_AGAIN = "see the servers' logs and measure again; nothing here speaks for or against the candidate"
_NOISY = "see why the baseline's probabilities change so much from one asking to the next, and measure again"
_NO_WAY = (
    "see what each way met: both arms need the completions endpoint, a context as long as `divergence.window`, and as "
    "many log-probabilities as `divergence.top`"
)
_TOKENIZERS = "see whether both serve the same tokenizer, and ask both arms a few prompts yourself"
