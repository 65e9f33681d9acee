"""Guards against response caches in the load, the evals and the shadow comparison.

A server's own prefix cache is examined by `cache-cold`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchgate.gate.comparison import paired_load
from benchgate.gate.evidence.blocks import block_value
from benchgate.gate.guards.answers import SHADOW_ANSWERS, Evals
from benchgate.gate.guards.base import (
    A_LOAD,
    EVALS,
    LOAD,
    QUALITY,
    SHADOW,
    SPEED,
    NotApplicable,
    Violation,
    guard,
    most_serious,
)
from benchgate.gate.guards.load import answered_by_both
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import AnswerAgreement, BoolArray, RequestColumns
from benchgate.model.run import Evidence
from benchgate.stats.means import two_sample_t
from benchgate.suite.schema import Suite, all_traffic, traffic_classes
from benchgate.units import show_duration

# --- The detector -----------------------------------------------------------------------------------------------------

_QUICK_NS = 5_000_000.0
_MANY_TIMES = 20  # a response within 5 ms and 1/20 of the other arm's time for the same request comes from a cache
_LEAST = 10
_SHARE = 0.05  # fewer cached responses (count and share) shift a metric by less than most margins


def _is_quick(
    own_ns: NDArray[np.number] | float, other_ns: NDArray[np.number] | float, most_ns: float = _QUICK_NS
) -> BoolArray:
    """Mark responses at cache speed whose counterparts on the other arm took a model's time."""
    quick: BoolArray = np.less_equal(own_ns, most_ns) & np.greater(other_ns, _MANY_TIMES * np.asarray(own_ns))
    return quick


def _count_quick(times_ns: Sequence[tuple[int, int]], most_ns: float = _QUICK_NS) -> int:
    baseline, candidate = np.array(times_ns, dtype=np.int64).reshape(-1, 2).T
    return int(np.count_nonzero(_is_quick(baseline, candidate, most_ns) | _is_quick(candidate, baseline, most_ns)))


def _are_many(cached: int, answers: int) -> bool:
    return cached >= _LEAST and cached > _SHARE * answers


# --- Load -------------------------------------------------------------------------------------------------------------

_LEAST_TOKENS = 8
_LEAST_CHARACTERS = 32  # of a text without tokens: as many as eight tokens of English have
_NO_CACHE = "switch off response caches in front of both servers, or give each arm an address of its own"


@guard("load-not-cached", "no arm answered faster than a model can", invalidates=LOAD, by_arm=True, needs=A_LOAD)
def load_not_cached(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag responses to the load that came from a cache.

    More than 5 % of an arm's responses (ten at least) have 8 tokens or more and came whole, within 5 ms and 1/20 of the
    other arm's time for the same request. A text without tokens (`infer`) must have 32 visible characters instead. Not
    applicable without such responses: a sound server may embed a text within 5 ms.
    """
    found, any_long = [], False
    for place in all_traffic(suite):
        cached, answered = dict.fromkeys(Arm, 0), 0
        for pair in paired_load(run, place.name):
            rows = answered_by_both(pair)
            answered += len(rows[0])
            times_ns = [(o.requests.end_ns - o.requests.sent_ns)[at] for o, at in zip(pair, rows, strict=True)]
            for arm, execution, at, own, other in zip(Arm, pair, rows, times_ns, times_ns[::-1], strict=True):
                long = _is_long(execution.requests)[at]
                any_long = any_long or bool(long.any())
                quick = at[long & _is_quick(own, other)]
                if len(quick):  # to look at every piece of every answer takes long
                    whole = request_metrics.distinct_arrivals(execution.requests) <= 2
                    cached[arm] += int(np.count_nonzero(whole[quick]))
        arms = [arm for arm in Arm if _are_many(cached[arm], answered)]
        if arms:
            most = max(arms, key=lambda arm: cached[arm])
            what = f"{cached[most]} of {answered} answers of the {most.value} came from a cache"
            how = f"whole, within 5 ms and 1/20 of the other arm's time (bound {_SHARE:.0%})"
            at_fault = Arm.CANDIDATE if Arm.CANDIDATE in arms else most
            found.append(Violation(f"stage {place.name}: {what}: {how}", _NO_CACHE, at_fault))
    return most_serious(found) if any_long else NotApplicable("no answers from both arms are long enough")


def _is_long(columns: RequestColumns) -> BoolArray:
    text = (columns.tokenless == 1) & (columns.answer_chars >= _LEAST_CHARACTERS)
    long: BoolArray = text | (columns.output_tokens >= _LEAST_TOKENS)
    return long


_CARRIED = 0.8  # of what it would have taken as the first
_SURE = 0.1  # of alpha: there are as many tests as stages


@guard(
    "order-does-not-matter", "neither arm was much faster for being measured second", invalidates=SPEED, needs=A_LOAD
)
def order_does_not_matter(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a cache shared by both arms.

    The arm measured second in a block takes significantly less than 0.8 times as long (median E2E, at a tenth of
    alpha). The alternating order cancels this in the mean, but then caches are compared instead of models.
    """
    for place in traffic_classes(suite):
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for baseline, candidate in paired_load(run, place.name):
            b, c = (block_value(one, "e2e", 0.5) for one in (baseline, candidate))
            if b is not None and c is not None and min(b, c) > 0 and max(b, c) < math.inf:
                ratios[baseline.position < candidate.position].append(math.log(c / b))
        candidate_first, baseline_first = (np.array(ratios[first], dtype=np.float64) for first in (False, True))
        # the difference is twice the gain: it has opposite signs in the two orders
        test = two_sample_t(candidate_first, baseline_first, _SURE * suite.gate.alpha)
        if test is not None and test.limits.upper < 2 * math.log(_CARRIED):
            times = f"{math.exp(test.mean / 2):.2f} times as long as otherwise (bound {_CARRIED:g})"
            what = f"the arm measured second in a block took {times}: the arms share a cache"
            remedy = "give each arm a cache of its own, and switch off shared ones"
            return Violation(f"stage {place.name}: {what}", remedy)
    return None


# --- Evals ------------------------------------------------------------------------------------------------------------

_NO_MODEL_NS = 1_000_000  # an answer within 1 ms over HTTP came from a cache, not from a model
_FEW = 30  # fewer answers may all be equal by chance


@guard("not-cached", "answers took as long as a model takes", invalidates=QUALITY, needs=EVALS)
def not_cached(evals: Evals, suite: Suite) -> Violation | NotApplicable | None:
    """Flag evals that a cache answered.

    All answers to a task (30 at least) are the same on both arms, and one arm's median answer took at most 1 ms, or at
    most 5 ms and 1/20 of the other's. Or more than 5 % of the answers (ten at least) are the same, and took at most
    5 ms and 1/20 of the other arm's time for that item.
    """
    looked = False
    for task, arms in evals.arms.items():
        n = len(arms[0].items)
        times_ns = [[item.latency_ns for item in one.items if item.latency_ns is not None] for one in arms]
        if n < _FEW or any(not times or len(times) < len(one.items) for times, one in zip(times_ns, arms, strict=True)):
            continue
        looked = True
        medians = [float(np.median(times)) for times in times_ns]
        quick, slow = sorted(medians)
        baseline = {item.item_id: item for item in arms[0].items}
        alike = [
            (baseline[item.item_id], item)
            for item in arms[1].items
            if item.item_id in baseline and baseline[item.item_id].answer == item.answer
        ]
        if len(alike) == len(arms[1].items) and (quick <= _NO_MODEL_NS or _is_quick(quick, slow)):
            arm = arms[medians.index(quick)].arm.value
            came = f"the {arm}'s median took {show_duration(quick * 1e-9)}"
            return Violation(f"all answers to {task} are the same on both arms, and {came}: from a cache", _NO_CACHE)
        count = _count_quick([(b.latency_ns or 0, c.latency_ns or 0) for b, c in alike])
        if _are_many(count, n):
            same = f"{count} of {n} answers to {task} are the same on both arms"
            return Violation(
                f"{same}, and came within 5 ms and 1/20 of the other's time (bound {_SHARE:.0%})", _NO_CACHE
            )
    return None if looked else NotApplicable("answers have no recorded latencies, or there are too few of them")


# --- Shadow -----------------------------------------------------------------------------------------------------------

_FEWEST = 20  # prompts before equal answers to all of them mean anything
_FEWEST_TOKENS = 32  # shorter answers are fast without a cache
_QUICKEST_NS_PER_TOKEN = 50_000
"""20,000 tokens per second in one stream: ten times the fastest engines, so the answer was not generated."""
_BELOW_QUICK_NS = math.nextafter(_QUICK_NS, 0)
"""Shadow answers count as cached below 5 ms; those of load and evals at exactly 5 ms too."""


@guard(
    "shadow-not-cached",
    "the answers to recorded prompts are not from a cache",
    invalidates=SHADOW,
    needs=SHADOW_ANSWERS,
)
def shadow_not_cached(run: Evidence, suite: Suite) -> Violation | None:
    """Flag answers to recorded prompts that came from a cache instead of the candidate.

    All answers (20 at least) are the same on both arms, and came at more than 20,000 tokens per second (32 tokens at
    least), or one arm's median answer took less than 5 ms and 1/20 of the other's. Or more than 5 % of the answers (ten
    at least) are the same and took less than 5 ms and 1/20 of the other arm's time.
    """
    items = run.shadow.items if run.shadow is not None else ()
    alike = [
        item for item in items if item.with_primary is not None and item.with_primary.label is AnswerAgreement.EXACT
    ]
    times_ns = [
        (item.primary_facts.latency_ns, item.candidate_facts.latency_ns)
        for item in alike
        if item.primary_facts is not None and item.candidate_facts is not None
    ]
    if len(alike) == len(items) >= _FEWEST:
        quick, slow = sorted(map(float, np.median(times_ns, axis=0))) if times_ns else (math.inf, math.inf)
        facts = [item.candidate_facts for item in items]
        paces = [f.latency_ns / f.tokens for f in facts if f is not None and f.tokens and f.tokens >= _FEWEST_TOKENS]
        too_fast = len(paces) == len(items) and float(np.median(paces)) < _QUICKEST_NS_PER_TOKEN
        if too_fast or _is_quick(quick, slow, _BELOW_QUICK_NS):
            what = "every answer of the candidate equals the baseline's and came faster than an engine can generate"
            return Violation(f"{what}: from a cache", _NO_CACHE)
    count = _count_quick(times_ns, _BELOW_QUICK_NS)
    if _are_many(count, len(items)):
        what = f"{count} of {len(items)} answers of the candidate equal the baseline's"
        came = f"came within 5 ms and 1/20 of the other arm's time (bound {_SHARE:.0%})"
        return Violation(f"{what}, and {came}: from a cache", _NO_CACHE)
    return None
