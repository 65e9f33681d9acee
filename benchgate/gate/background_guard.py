"""Guard over traffic in the background: was it as much in the way of the candidate as of the baseline?"""

from __future__ import annotations

import math

import numpy as np

from benchgate.gate.comparison import paired_load
from benchgate.gate.guard import SPEED_METRICS, held, tripped
from benchgate.gate.places import Place, places
from benchgate.model.metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.paired import paired_t
from benchgate.suite.background import looks_at
from benchgate.suite.schema import Suite

_LEAST_SHARE = 2 / 3  # of what the baseline answered
_NOISE_SD = 2.0


def background_guards(evidence: Evidence, suite: Suite) -> list[GuardResult]:
    """The guard, for a suite that has traffic in the background.

    A candidate that lets it wait is faster for the rest. It spoils nothing: a candidate that is slower at everything
    gets less done too, and is then still blocked by what it is slower at.
    """
    behind = [place for place in places(suite) if place.requests is None]
    if not behind:
        return []
    for place in behind:
        told = None if _is_judged(place, suite) else _starved(evidence, place.name, suite.gate.alpha)
        if told is not None:
            where = f"stage: {place.stage}, class: {place.class_name}"
            remedy = f"judge that class too, say by {{metric: e2e, {where}, margin: 50%}}, or see what holds it up"
            return [tripped("background-alike", told, remedy)]
    return [held("background-alike", "the candidate did as much in the background as the baseline, or is judged by it")]


def _is_judged(place: Place, suite: Suite) -> bool:
    """Whether a required check names the class and holds its times or rates to something."""
    return any(
        check.required
        and check.metric in SPEED_METRICS
        and (check.class_name is not None or check.place == place.name)
        and looks_at(check, place.stage, place.class_name)
        for check in suite.gate.checks
    )


def _starved(evidence: Evidence, name: str, alpha: float) -> str | None:
    """What there is to say of a candidate that answered far fewer requests, in its blocks and beyond chance."""
    pairs = paired_load(evidence, name)
    counts = np.array([[_answered(baseline), _answered(candidate)] for baseline, candidate in pairs], dtype=np.float64)
    if len(counts) < 2:
        return None
    theirs, ours = (int(total) for total in counts.sum(axis=0))
    if ours >= _LEAST_SHARE * theirs or theirs - ours <= _NOISE_SD * math.sqrt(theirs + ours):
        return None
    test = paired_t(np.log((counts[:, 1] + 0.5) / (counts[:, 0] + 0.5)), alpha)
    if test is None or test.limits.upper >= 0:
        return None
    return (
        f"stage {name}: in the background the candidate answered {ours} requests where the baseline answered {theirs} "
        f"(bound {_LEAST_SHARE:.0%}), so the rest had less beside it"
    )


def _answered(execution: LoadObservation) -> int:
    return int(np.count_nonzero(succeeded(execution.requests)))
