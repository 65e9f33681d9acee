"""Earlier runs of the same two releases that were not promoted: running it until it passes leaves a trace.

So does ending it before anybody says what it came to.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.ancestry import same_pair
from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome

_SHOWN = 5


def attempt_notes(judged: Evidence) -> tuple[str, ...]:
    """Sentences where this candidate was measured beside this baseline before and blocked, or nothing was shown.

    They change no outcome. Of n runs of a candidate that must not pass, each wrong with the probability alpha, one or
    more pass with up to n times that: who reads this verdict is told of the others.
    """
    if len(judged.run.arms) < len(Arm):
        return ()
    blocked = _of_the_same_two(judged, judged.attempts)
    blocked = [one for one in blocked if one.outcome in (Outcome.BLOCK, Outcome.INCONCLUSIVE)]
    unjudged = _of_the_same_two(judged, judged.unjudged)
    notes = []
    if blocked:
        shown = _shown([f"{one.outcome} {one.told}" for one in reversed(blocked)])
        notes.append(f"{_many(blocked)} {'was' if len(blocked) == 1 else 'were'} not promoted ({shown})")
    if unjudged:
        shown = _shown([one.told for one in reversed(unjudged)])
        notes.append(f"{_many(unjudged)} had measured something and had no verdict when this one began ({shown})")
    return tuple(notes)


def _of_the_same_two(judged: Evidence, attempts: Sequence[Attempt]) -> list[Attempt]:
    arms = judged.run.arms
    baseline, candidate = (past_arm(arms[arm], judged.run.environment) for arm in Arm)
    return [one for one in attempts if same_pair((one.baseline, one.candidate), (baseline, candidate))]


def _many(found: Sequence[Attempt]) -> str:
    return f"{len(found)} earlier run{'' if len(found) == 1 else 's'} of this candidate beside this baseline"


def _shown(told: Sequence[str]) -> str:
    """The newest ones, and how many more there are."""
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return ", ".join([*told[:_SHOWN], *more])
