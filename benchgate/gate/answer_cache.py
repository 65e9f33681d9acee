"""Did a model answer at all? Guards over what remembers between the client and the models, or between the arms.

A prefix cache is a server's own and `cache-cold` looks at it; this is about whole answers, and about an arm that is
faster because the other was asked before it.
"""

from __future__ import annotations

import math

import numpy as np

from benchgate.gate.block_values import block_value
from benchgate.gate.comparison import paired_load
from benchgate.gate.guard import SPEED, gravest, held, spoils_of, tripped
from benchgate.gate.paired_guards import same_rows
from benchgate.gate.places import places
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray, IntArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.paired import two_sample_t
from benchgate.suite.schema import Suite

_QUICK_S = 0.005
_MANY_TIMES = 20  # both as for evals and shadow answers
_LEAST_TOKENS = 8
_SHARE = 0.05  # of the requests that both arms answered: what so many hide stays below most margins
_LEAST = 10
_CARRIED = 0.8  # of what it would have taken as the first
_MEDIAN = block_value("e2e", 0.5)
_SURE = 0.1  # of alpha: there are as many tests as stages


def load_not_cached(evidence: Evidence, suite: Suite) -> GuardResult:
    """Long answers that came whole, in no time, where the other arm took many times as long for the same request."""
    found = []
    for place in places(suite):
        quick, answered = dict.fromkeys(Arm, 0), 0
        for pair in paired_load(evidence, place.name):
            rows = same_rows(*pair)
            both = np.logical_and(*(metrics.succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True)))
            kept = (rows[0][both], rows[1][both])
            answered += int(both.sum())
            for arm, of_both, at in ((Arm.BASELINE, pair, kept), (Arm.CANDIDATE, pair[::-1], kept[::-1])):
                quick[arm] += _remembered(of_both[0], at[0], of_both[1], at[1])
        remembered = [one for one in Arm if quick[one] >= _LEAST and quick[one] > _SHARE * answered]
        if remembered:
            arm = max(remembered, key=lambda one: quick[one])
            told = f"{quick[arm]} of {answered} answers of the {arm.value} came whole, within 5 ms and a twentieth of"
            remedy = "take the cache out of the way to both, or give each arm an address of its own"
            what = f"stage {place.name}: {told} the other's time: from a cache"
            spoils = spoils_of(Arm.CANDIDATE if Arm.CANDIDATE in remembered else arm, "load")
            found.append(tripped("load-not-cached", what, remedy, spoils))
    return gravest(found) or held("load-not-cached", "no arm's answers came sooner than a model writes them")


def _remembered(one: LoadObservation, rows: IntArray, other: LoadObservation, other_rows: IntArray) -> int:
    """How many of the answers in these rows no model can have written; the other's rows are of the same requests."""
    own_s, others_s = _took_s(one)[rows], _took_s(other)[other_rows]
    quick = (own_s <= _QUICK_S) & (others_s > _MANY_TIMES * own_s)
    if np.count_nonzero(quick) == 0:
        return 0  # to look at every piece of every answer takes long
    whole = (one.requests.output_tokens >= _LEAST_TOKENS) & (metrics.arrivals(one.requests) <= 2)
    return int(np.count_nonzero(quick & whole[rows]))


def _took_s(execution: LoadObservation) -> FloatArray:
    """From the send itself: what waited in the client says nothing of who answered."""
    columns = execution.requests
    return (columns.end_ns - columns.sent_ns).astype(np.float64) * 1e-9


def order_does_not_matter(evidence: Evidence, suite: Suite) -> GuardResult:
    """Whoever is asked second in a block is not much faster for it: then something keeps what the first one asked.

    That the order alternates takes such a gain out of the mean. What is compared is then two caches, not two models.
    """
    for place in places(suite):
        gain = _of_the_second(evidence, place.name, suite.gate.alpha)
        if gain is not None:
            what = f"stage {place.name}: whoever was asked second in a block took {gain:.2f} times as long as otherwise"
            bound = f"(bound {_CARRIED:g}): something remembers what the other arm was asked"
            remedy = "give each arm a cache of its own, and take shared ones out of the way"
            return tripped("order-does-not-matter", f"{what} {bound}", remedy, (SPEED,))
    return held("order-does-not-matter", "neither arm was much faster for being asked second")


def _of_the_second(evidence: Evidence, stage: str, alpha: float) -> float | None:
    """How many times as long the second one takes, where that is shown to be less than the bound."""
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for baseline, candidate in paired_load(evidence, stage):
        theirs, ours = _MEDIAN(baseline), _MEDIAN(candidate)
        if theirs is not None and ours is not None and min(theirs, ours) > 0 and max(theirs, ours) < math.inf:
            ratios[baseline.position < candidate.position].append(math.log(ours / theirs))
    candidate_first, baseline_first = (np.array(ratios[which], dtype=np.float64) for which in (False, True))
    test = two_sample_t(candidate_first, baseline_first, _SURE * alpha)  # twice the gain: it is in both, with two signs
    if test is None or test.limits.upper >= 2 * math.log(_CARRIED):
        return None
    return math.exp(test.mean / 2)
