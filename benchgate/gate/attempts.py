"""Earlier runs of the same two releases that were not promoted: running it until it passes leaves a trace."""

from __future__ import annotations

from benchgate.gate.ancestry import same_pair
from benchgate.model.deployment import Arm
from benchgate.model.history import past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome

_SHOWN = 5


def attempt_notes(judged: Evidence) -> tuple[str, ...]:
    """A sentence where this candidate was measured beside this baseline before and blocked, or nothing was shown.

    It changes no outcome. Of n runs of a candidate that must not pass, each wrong with the probability alpha, one or
    more pass with up to n times that: who reads this verdict is told of the others.
    """
    if len(judged.run.arms) < len(Arm):
        return ()
    baseline, candidate = (past_arm(judged.run.arms[arm], judged.run.environment) for arm in Arm)
    found = [
        one
        for one in judged.attempts
        if one.outcome in (Outcome.BLOCK, Outcome.INCONCLUSIVE)
        and same_pair((one.baseline, one.candidate), (baseline, candidate))
    ]
    if not found:
        return ()
    shown = [f"{one.outcome} {one.told}" for one in reversed(found[-_SHOWN:])]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    many = f"{len(found)} earlier runs of this candidate beside this baseline were"
    one = "1 earlier run of this candidate beside this baseline was"
    return (f"{one if len(found) == 1 else many} not promoted ({', '.join([*shown, *more])})",)
