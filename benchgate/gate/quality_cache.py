"""Evals whose answers one arm gave twice: what no model says so fast, and says in the other's very words."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from benchgate import units as shown
from benchgate.gate.guard import held, tripped, unknown
from benchgate.gate.quality_answers import Arms
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import GuardResult

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
        count = _remembered(baseline, candidate)
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


def _remembered(baseline: QualityObservation, candidate: QualityObservation) -> int:
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
