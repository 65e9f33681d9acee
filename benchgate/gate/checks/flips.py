"""Flips: answers that turn from right to wrong or back, beyond the baseline's own flips when it is queried twice.

The excess subtracts the flips between the baseline's two askings, its noise floor. A second asking that went wrong
raises that floor and hides flips of the candidate, so both askings are examined here. No guard does it: it invalidates
this check alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Comparison, TiedRuns, quality_of
from benchgate.gate.decision import Estimate, inconclusive, invalid
from benchgate.gate.evidence.items import (
    MORE_TOKENS,
    Pairs,
    cluster_labels_of_units,
    is_empty,
    is_unclear,
    mean_over_tasks,
    pair_task,
    too_many,
)
from benchgate.gate.policy import CheckSpec, judged_units
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem, FloatArray
from benchgate.model.run import Evidence, QualityObservation
from benchgate.stats.clusters import MIN_CLUSTERS, mean_share_limits
from benchgate.stats.evals import Excess, ScorePairs, accuracy_regression, excess_change_of_tasks, excess_of_tasks
from benchgate.stats.sequential import holm
from benchgate.stats.trace import Trace
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

Units = Mapping[str, tuple[str, ...]]  # task name of checks → the observed tasks that it consists of

_SHARE_OF_ALPHA = 0.1
"""Error of the test that both askings score alike, as a share of alpha: noise must hardly ever fail it."""
_MOST_PER_FLIP = 1.5
"""Loss of the largest possible excess per item that the baseline flips itself: 1 of y, and half of x."""
_HEALTHY_BASELINE = "measure again with a baseline that is healthy throughout"
_MORE_ITEMS = "give the task rows, or raise `limit`"


class FlipsCheck:
    """Answers that turn between right and wrong, beyond those that the baseline turns on its own."""

    metrics = ("flips",)

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Fill in the estimate of one check over items that were answered three times."""
        estimate.n_unit, units = "items", judged_units(spec, suite, comparison)
        max_faulty_ratio = suite.quality.max_empty_ratio if suite.quality else 0.0
        flips_against_baseline(estimate, comparison, units, alpha, max_faulty_ratio)


def flips_against_baseline(
    estimate: Estimate, comparison: Comparison, units: Units, alpha: float, max_faulty_ratio: float
) -> None:
    """Estimate the excess flips, mean(x - y), each task with equal weight. Only an excess beyond the margin blocks.

    `max_faulty_ratio` is the share of the baseline's answers that may be empty, or wrong and unreadable.
    """
    estimate.rule = replace(estimate.rule, by_estimate=True)
    estimate.method = "paired excess over the baseline's flips against itself"
    tested = estimate.margin if estimate.rule.breach else 0.0
    found = excess_flips(comparison, units, alpha, tested=tested, trace=estimate.trace)
    estimate.n = found.excess.n
    for evidence in comparison.runs:
        flips = _flips_of_units(evidence, units)
        _require_healthy_answers(evidence, units, max_faulty_ratio)
        require_like_askings({name: one.askings for name, one in zip(units, flips, strict=True)}, alpha)
        _require_room_to_flip(flips, estimate.margin, alpha)
    estimate.baseline, estimate.candidate = found.baseline, found.candidate
    estimate.value, estimate.limits = found.excess.estimate, found.excess.limits
    estimate.p_value = found.excess.p_value


# --- The excess -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExcessFlips:
    """The excess with its limits, the two shares that it is the difference of, and the share that the baseline flips.

    Of two stored runs the shares are each candidate's own excess over the baseline beside it.
    """

    excess: Excess
    baseline: float
    candidate: float
    floor: float


def excess_flips(
    comparison: Comparison, units: Units, alpha: float, *, tested: float = 0.0, trace: Trace | None = None
) -> ExcessFlips:
    """Estimate how much more often the candidate flips than the baseline does by itself. Raises CannotJudge.

    Of two stored runs, compare each candidate's excess over its own run's baseline, item by item.
    """
    judged = _flips_of_units(comparison.judged, units)
    floor = theirs = mean_over_tasks([one.y for one in judged])
    ours = mean_over_tasks([one.x for one in judged])
    if not isinstance(comparison, TiedRuns):
        excess = excess_of_tasks([(one.x, one.y, one.clusters) for one in judged], alpha, margin=tested, trace=trace)
    else:
        reference = _flips_of_units(comparison.reference, units)
        theirs_asked, ours_asked = (
            [[item.item_id for item in one.items] for one in run] for run in (reference, judged)
        )
        if theirs_asked != ours_asked:
            raise invalid("the two runs did not ask the same items", "measure both with the same suite")
        gaps = [(b.x - b.y, a.x - a.y, b.clusters) for b, a in zip(judged, reference, strict=True)]
        excess = excess_change_of_tasks(gaps, alpha, margin=tested, trace=trace)
        theirs, ours = (mean_over_tasks([one.x - one.y for one in run]) for run in (reference, judged))
    if excess is None:
        raise inconclusive("there are too few items", _MORE_ITEMS)
    return ExcessFlips(excess, theirs, ours, floor)


@dataclass(frozen=True, slots=True, eq=False)
class _Flips:
    """Items of one unit. Per item, x is half the number of baseline answers that the candidate's differs from.

    y is 1 if the two baseline answers differ. An answer is right or wrong, nothing else counts. `askings` are the
    scores of the baseline's first and second answers.
    """

    x: FloatArray
    y: FloatArray
    askings: ScorePairs
    clusters: tuple[str, ...] | None
    items: tuple[EvalItem, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Item ids, in the order of the rows."""
        return tuple(item.item_id for item in self.items)


def _flips_of_units(evidence: Evidence, units: Units) -> list[_Flips]:
    if not units:
        raise invalid("no eval task of this kind was run", "see the faults of the targets and run the suite again")
    parts = [[_flips_of_task(evidence, task) for task in tasks] for tasks in units.values()]
    labels = cluster_labels_of_units([[part.items for part in of] for of in parts])
    found = [_join(of, clusters) for of, clusters in zip(parts, labels, strict=True)]
    for name, one in zip(units, found, strict=True):
        if one.clusters is not None and len(set(one.clusters)) < MIN_CLUSTERS:
            reason = f"the items of {name} come in too few clusters to know how much clusters differ"
            raise inconclusive(reason, f"use items of at least {MIN_CLUSTERS} clusters")
    return found


def _flips_of_task(evidence: Evidence, task: str) -> _Flips:
    first, candidate = (quality_of(evidence, arm, task) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    again = quality_of(evidence, Arm.BASELINE, task, repeat=1)
    if first is None or candidate is None:
        raise invalid(f"task {task} was not run on both arms", "see the faults of the targets")
    if again is None:
        reason = f"the baseline was asked {task} only once, so its own flips are unknown"
        raise invalid(reason, "set `quality.repeat_baseline: true` and measure again")
    ours, itself = _pair_whole(first, candidate), _pair_whole(first, again)
    x = 0.5 * (ours.candidate != ours.baseline) + 0.5 * (ours.candidate != itself.candidate)
    askings = ScorePairs(itself.baseline, itself.candidate, ours.clusters)
    y = np.asarray(itself.baseline != itself.candidate, dtype=np.float64)
    return _Flips(x, y, askings, ours.clusters, first.items)


def _pair_whole(first: QualityObservation, other: QualityObservation) -> Pairs:
    paired = pair_task(first, other)
    if paired.continuous:
        raise invalid(
            f"the answers to {paired.name} are not simply right or wrong, so none of them flips", "name a task"
        )
    if paired.stopped or len(paired) == 0:
        reason = f"{paired.name} was stopped early, before all of its items were asked"
        raise inconclusive(reason, "run without `quality.stop_early`")
    return paired


def _join(parts: Sequence[_Flips], clusters: tuple[str, ...] | None) -> _Flips:
    def joined(column: Callable[[_Flips], FloatArray]) -> FloatArray:
        return np.concatenate([column(part) for part in parts])

    askings = ScorePairs(
        joined(lambda part: part.askings.baseline), joined(lambda part: part.askings.candidate), clusters
    )
    items = tuple(item for part in parts for item in part.items)
    return _Flips(joined(lambda part: part.x), joined(lambda part: part.y), askings, clusters, items)


# --- The noise floor --------------------------------------------------------------------------------------------------


def _require_healthy_answers(evidence: Evidence, units: Units, max_faulty_ratio: float) -> None:
    for name, tasks in units.items():
        for repeat, asking in enumerate(("asked", "asked once more")):
            found = [quality_of(evidence, Arm.BASELINE, task, repeat) for task in tasks]
            items = [item for one in found if one is not None for item in one.items if item.error is None]
            for is_faulty, fault, advice in (
                (is_empty, "empty", _HEALTHY_BASELINE),
                (is_unclear, "cut short or unreadable", MORE_TOKENS),
            ):
                faulty = sum(map(is_faulty, items))
                if too_many(faulty, len(items), max_faulty_ratio):
                    share = show_percent(faulty / len(items))
                    raise invalid(f"{share} of the baseline's answers to {name}, {asking}, are {fault}", advice)


def require_like_askings(askings: Mapping[str, ScorePairs], alpha: float) -> None:
    """Raise CannotJudge for a task on which the second asking scores otherwise: it was not the same model twice."""
    p_values = []
    for one in askings.values():
        turned = ScorePairs(one.candidate, one.baseline, one.clusters)
        both = (accuracy_regression([direction], 0.05).p_value for direction in (one, turned))
        p_values.append(min(1.0, 2 * min(both)))
    for (name, one), p_value in zip(askings.items(), holm(p_values), strict=True):
        if p_value <= _SHARE_OF_ALPHA * alpha:
            first, again = (show_percent(float(scores.mean())) for scores in (one.baseline, one.candidate))
            reason = f"the baseline gets {first} of {name} right, and {again} of the same when asked once more"
            raise invalid(f"{reason}: what flips there is no noise", _HEALTHY_BASELINE)


def _require_room_to_flip(found: Sequence[_Flips], margin: float, alpha: float) -> None:
    """Raise CannotJudge unless a candidate that flips every answer, of excess 1 - 3/2 · mean(y), exceeds the margin."""
    own = mean_share_limits([one.y for one in found], [one.clusters for one in found], alpha)
    if own is None:
        raise inconclusive("there are too few items", _MORE_ITEMS)
    if 1 - _MOST_PER_FLIP * own[0].upper > margin:
        return
    noise = mean_over_tasks([one.y for one in found])
    reason = f"asked twice, the baseline flips {show_percent(noise)} of its own answers"
    if 1 - _MOST_PER_FLIP * noise > margin:
        reason = f"{reason}, and of so few items it may be more"
    raise invalid(
        f"{reason}: a candidate that flips every one could stay inside the margin",
        "see why it does not answer alike twice, or judge `accuracy` alone",
    )
