"""Did a model answer at all? Guards over what remembers between the client and the models, or between the arms.

A prefix cache is a server's own and `cache-cold` looks at it; this is about whole answers, and about an arm that is
faster because the other was asked before it.

Evals whose answers one arm gave twice: what no model says so fast, and says in the other's very words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

import numpy as np

from benchgate import units as shown
from benchgate.gate.comparison import paired_load, places
from benchgate.gate.evidence.blocks import block_value
from benchgate.gate.evidence.items import Arms
from benchgate.gate.evidence.tokens import same_rows
from benchgate.gate.guards.base import SPEED, gravest, held, spoils_of, tripped, unknown
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray, IntArray
from benchgate.model.run import Evidence, LoadObservation, QualityObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.means import two_sample_t
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
            both = np.logical_and(
                *(request_metrics.succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True))
            )
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
    whole = (one.requests.output_tokens >= _LEAST_TOKENS) & (request_metrics.arrivals(one.requests) <= 2)
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


_NO_MODEL_S = 0.001
"""No model answers over HTTP within this time; a cache does."""
_HARDLY_A_MODEL_S = 0.005
_MUCH_FASTER = 20
"""Within this time, and so many times faster than the other arm with the very same answers, is a cache too."""
_FEW = 30
"""Fewer answers may be all the same by chance."""
_REMEMBERED = 0.05
_LEAST_REMEMBERED = 10
"""So many answers from a cache, and such a share of a task, hide as much of what a candidate would have lost."""
_NO_CACHE = "switch off the cache between benchgate and the servers, or give each arm an address of its own"
_SPOILS = ("quality",)


def answers_not_cached(both: Mapping[str, Arms]) -> GuardResult:
    """All answers to a task, or a good part of them."""
    looked = False
    for task, (baseline, candidate) in both.items():
        times = [_median_s(observation) for observation in (baseline, candidate)]
        known = [time for time in times if time is not None]
        if len(baseline.items) < _FEW or len(known) < len(times):
            continue
        looked = True
        quick_s, slow_s = min(known), max(known)
        much_faster = quick_s <= _HARDLY_A_MODEL_S and slow_s > _MUCH_FASTER * quick_s
        if _all_alike(baseline, candidate) and (quick_s <= _NO_MODEL_S or much_faster):
            arm = (baseline if times[0] == quick_s else candidate).arm.value
            came = f"the {arm}'s came within {shown.show_duration(quick_s)}"
            what = f"all answers to {task} are the same on both arms, and {came}"
            return tripped("not-cached", what, _NO_CACHE, _SPOILS)
        count = _remembered_items(baseline, candidate)
        if count >= _LEAST_REMEMBERED and count > _REMEMBERED * len(baseline.items):
            same = f"{count} of {len(baseline.items)} answers to {task} are the same on both arms"
            what = f"{same}, and came within 5 ms on one and a twentieth of the other's time (bound {_REMEMBERED:.0%})"
            return tripped("not-cached", what, _NO_CACHE, _SPOILS)
    if not looked:
        return unknown("not-cached", "how long answers took is not known, or there are too few of them to tell")
    return held("not-cached", "answers took as long as a model takes")


def _all_alike(baseline: QualityObservation, candidate: QualityObservation) -> bool:
    theirs = {item.item_id: item.answer for item in baseline.items}
    return all(theirs.get(item.item_id) == item.answer for item in candidate.items)


def _remembered_items(baseline: QualityObservation, candidate: QualityObservation) -> int:
    """How many items have one answer, which one arm gave in hardly any time and the other in a model's."""
    theirs = {item.item_id: item for item in baseline.items}
    count = 0
    for item in candidate.items:
        other = theirs.get(item.item_id)
        if other is None or other.answer != item.answer or other.latency_ns is None or item.latency_ns is None:
            continue
        quick_s, slow_s = (time * 1e-9 for time in sorted((other.latency_ns, item.latency_ns)))
        count += quick_s <= _HARDLY_A_MODEL_S and slow_s > _MUCH_FASTER * quick_s
    return count


def _median_s(observation: QualityObservation) -> float | None:
    times = [item.latency_ns for item in observation.items if item.latency_ns is not None]
    return median(times) * 1e-9 if times and len(times) == len(observation.items) else None
