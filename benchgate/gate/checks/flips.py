"""The baseline asked a second time: is it a floor that flips can be counted over at all?

The excess takes off what the two askings differ in, so a second asking that went wrong hides what it is there to show.
Nobody else looks at it: it spoils `flips` and nothing more.

Flips: answers that turn from right to wrong or back, beyond what the baseline does when it is asked once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate import units as shown
from benchgate.gate.checks.base import never_measured
from benchgate.gate.comparison import Comparison, quality_of
from benchgate.gate.decision import Finding, Problem
from benchgate.gate.evidence.items import MORE_TOKENS, Pairs, invalid, is_empty, pair_task, too_many, unclear
from benchgate.gate.policy import CheckSpec, judged_units
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, QualityObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.clusters import MIN_CLUSTERS
from benchgate.stats.evals import Excess, ScorePairs, accuracy_regression, excess_change_of_tasks, excess_of_tasks
from benchgate.stats.overdispersed import mean_share_limits
from benchgate.stats.sequential import holm
from benchgate.suite.schema import Suite

_SURE = 0.1
"""Of alpha: what is asked here is whether something broke, and noise alone must hardly ever look so."""
_HEALTHY = "measure again with a baseline that is healthy throughout"


def broken_answers(evidence: Evidence, units: Mapping[str, tuple[str, ...]], allowed: float) -> Problem | None:
    """Answers of either asking that are empty, or wrong and cut short or unreadable: more than the `allowed` share."""
    return next(_broken_answers(evidence, units, allowed), None)


def _broken_answers(evidence: Evidence, units: Mapping[str, tuple[str, ...]], allowed: float) -> Iterator[Problem]:
    for name, tasks in units.items():
        for repeat, asking in enumerate(("asked", "asked once more")):
            found = [quality_of(evidence, Arm.BASELINE, task, repeat) for task in tasks]
            items = [item for one in found if one is not None for item in one.items if item.error is None]
            for of, what, remedy in ((is_empty, "empty", _HEALTHY), (unclear, "cut short or unreadable", MORE_TOKENS)):
                odd = sum(map(of, items))
                if too_many(odd, len(items), allowed):
                    share = shown.show_percent(odd / len(items))
                    yield invalid(f"{share} of the baseline's answers to {name}, {asking}, are {what}", remedy)


def unlike_askings(askings: Mapping[str, ScorePairs], alpha: float) -> Problem | None:
    """A task on which the second asking is shown to do better or worse than the first: not the same model twice."""
    p_values = [min(1.0, 2 * min(_p_worse(one), _p_worse(_turned(one)))) for one in askings.values()]
    for (name, one), p_value in zip(askings.items(), holm(p_values), strict=True):
        if p_value <= _SURE * alpha:
            first, again = (shown.show_percent(_floor_mean(scores)) for scores in (one.baseline, one.candidate))
            reason = f"the baseline gets {first} of {name} right, and {again} of the same when asked once more"
            return invalid(f"{reason}: what flips there is no noise", _HEALTHY)
    return None


def _p_worse(one: ScorePairs) -> float:
    return accuracy_regression([one], 0.05).p_value


def _turned(one: ScorePairs) -> ScorePairs:
    return ScorePairs(one.candidate, one.baseline, one.clusters)


def _floor_mean(scores: FloatArray) -> float:
    return float(scores.mean())


Units = Mapping[str, tuple[str, ...]]
"""What checks call a task → the observed tasks that it consists of."""

_MOST_PER_FLIP = 1.5
"""What the largest excess loses for every item that the baseline flips itself: 1 of y, and half of x."""


@dataclass(frozen=True, slots=True)
class ExcessFlips:
    """The excess with its limits, the two shares that it is the difference of, and what the baseline flips by itself.

    Of two stored runs the shares are each candidate's own excess over the baseline beside it.
    """

    excess: Excess
    baseline: float
    candidate: float
    floor: float


@dataclass(frozen=True, slots=True, eq=False)
class Flips:
    """Per item of a task: x, half the times the candidate differs from either baseline answer; y, whether those differ.

    Right or wrong is what differs or not; item ids are in the order of the rows. `askings` are the baseline's scores
    when it was asked first and once more.
    """

    x: FloatArray
    askings: ScorePairs
    ids: tuple[str, ...]

    @property
    def y(self) -> FloatArray:
        """1 where the baseline's two answers differ, else 0."""
        return np.asarray(self.askings.baseline != self.askings.candidate, dtype=np.float64)

    @property
    def clusters(self) -> tuple[str, ...] | None:
        """Which items are of one cluster; None where none are."""
        return self.askings.clusters


def flips_against_baseline(
    comparison: Comparison, units: Units, *, margin: float, breach: bool, alpha: float, allowed: float
) -> Finding:
    """Excess flips, e = mean(x - y), each task with equal weight; harm only where e itself is beyond the margin.

    `allowed` is the share of the baseline's answers that may be empty, or wrong and unreadable, in either asking.
    """
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="paired excess over the baseline's flips against itself",
        n=0,
        n_unit="items",
        breach=breach,
        by_estimate=True,
    )
    found = excess_flips(comparison, units, alpha, tested=margin if breach else 0.0)
    if isinstance(found, Problem):
        return replace(finding, problem=found)
    excess = found.excess
    problem = _unsound_floor(comparison, units, margin, alpha, allowed)
    if problem is not None:
        return replace(finding, n=excess.n, problem=problem)
    return replace(
        finding,
        n=excess.n,
        baseline=found.baseline,
        candidate=found.candidate,
        harm=excess.estimate,
        limits=excess.limits,
        p_value=excess.p_value,
    )


def _unsound_floor(comparison: Comparison, units: Units, margin: float, alpha: float, allowed: float) -> Problem | None:
    """A floor that hides flips: made by broken answers, by another model, or so high that nothing is left above it."""
    for evidence in (comparison.judged, comparison.reference):
        found = _of_units(evidence, units) if evidence is not None else []
        if evidence is None or isinstance(found, Problem):
            continue
        problem = (
            broken_answers(evidence, units, allowed)
            or unlike_askings({name: one.askings for name, one in zip(units, found, strict=True)}, alpha)
            or _no_room(found, margin, alpha)
        )
        if problem is not None:
            return problem
    return None


def _no_room(found: Sequence[Flips], margin: float, alpha: float) -> Problem | None:
    """The excess of a candidate that flips every answer is 1 - 3/2 · mean(y): it must lie beyond the margin."""
    own = mean_share_limits([one.y for one in found], [one.clusters for one in found], alpha)
    if own is None:
        return Problem(Outcome.INCONCLUSIVE, "there are too few items", "give the task rows, or raise `limit`")
    if 1 - _MOST_PER_FLIP * own[0].upper > margin:
        return None
    noise = _mean([one.y for one in found])
    reason = f"asked twice, the baseline flips {shown.show_percent(noise)} of its own answers"
    if 1 - _MOST_PER_FLIP * noise > margin:
        reason = f"{reason}, and of so few items it may be more"
    return invalid(
        f"{reason}: a candidate that flips every one could stay inside the margin",
        "see why it does not answer alike twice, or judge `accuracy` alone",
    )


def excess_flips(comparison: Comparison, units: Units, alpha: float, *, tested: float = 0.0) -> ExcessFlips | Problem:
    """How much oftener the candidate flips than the baseline does by itself.

    Of two stored runs each candidate's excess over its own run's baseline, item by item, is compared.
    """
    judged = _of_units(comparison.judged, units)
    if isinstance(judged, Problem):
        return judged
    floor = theirs = _mean([one.y for one in judged])
    ours = _mean([one.x for one in judged])
    if comparison.reference is None:
        excess = excess_of_tasks([(one.x, one.y, one.clusters) for one in judged], alpha, margin=tested)
    else:
        reference = _of_units(comparison.reference, units)
        if isinstance(reference, Problem):
            return reference
        if [one.ids for one in reference] != [one.ids for one in judged]:
            return invalid("the two runs did not ask the same items", "measure both with the same suite")
        gaps = [(b.x - b.y, a.x - a.y, b.clusters) for b, a in zip(judged, reference, strict=True)]
        excess = excess_change_of_tasks(gaps, alpha, margin=tested)
        theirs, ours = (_mean([one.x - one.y for one in run]) for run in (reference, judged))
    if excess is None:
        return Problem(Outcome.INCONCLUSIVE, "there are too few items", "give the task rows, or raise `limit`")
    return ExcessFlips(excess, theirs, ours, floor)


def _of_units(evidence: Evidence, units: Units) -> list[Flips] | Problem:
    found: list[Flips] = []
    for tasks in units.values():
        parts: list[Flips] = []
        for task in tasks:
            one = _of_task(evidence, task)
            if isinstance(one, Problem):
                return one
            parts.append(one)
        found.append(_joined(parts))
    if not found:
        return invalid("no eval task is right or wrong", "see the faults of the targets and run the suite again")
    for name, one in zip(units, found, strict=True):
        if one.clusters is not None and len(set(one.clusters)) < MIN_CLUSTERS:
            reason = f"the items of {name} come in too few clusters to know how much clusters differ"
            return Problem(Outcome.INCONCLUSIVE, reason, f"use items of at least {MIN_CLUSTERS} clusters")
    return found


def _of_task(evidence: Evidence, task: str) -> Flips | Problem:
    first, candidate = (quality_of(evidence, arm, task) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    again = quality_of(evidence, Arm.BASELINE, task, repeat=1)
    if first is None or candidate is None:
        return invalid(f"task {task} was not run on both arms", "see the faults of the targets")
    if again is None:
        reason = f"the baseline was asked {task} only once, so nobody knows how often it flips against itself"
        return invalid(reason, "set `quality.repeat_baseline: true` and measure again")
    ours, itself = pair_task(first, candidate), pair_task(first, again)
    for paired in (ours, itself):
        if isinstance(paired, Problem):
            return paired
        if paired.continuous:
            return invalid(f"the answers to {task} are not simply right or wrong, so none of them flips", "name a task")
        if paired.stopped or len(paired) == 0:
            reason = f"{task} was stopped early, before all of its items were asked"
            return Problem(Outcome.INCONCLUSIVE, reason, "run without `quality.stop_early`")
    assert isinstance(ours, Pairs) and isinstance(itself, Pairs), "problems have returned"
    return _flips(first, ours, itself)


def _flips(first: QualityObservation, ours: Pairs, itself: Pairs) -> Flips:
    x = 0.5 * (ours.candidate != ours.baseline) + 0.5 * (ours.candidate != itself.candidate)
    askings = ScorePairs(itself.baseline, itself.candidate, ours.clusters)
    return Flips(x, askings, tuple(item.item_id for item in first.items))


def _joined(parts: Sequence[Flips]) -> Flips:
    clustered = any(part.clusters is not None for part in parts)
    askings = ScorePairs(
        baseline=np.concatenate([part.askings.baseline for part in parts]),
        candidate=np.concatenate([part.askings.candidate for part in parts]),
        clusters=tuple(label for part in parts for label in part.clusters or part.ids) if clustered else None,
    )
    return Flips(
        x=np.concatenate([part.x for part in parts]),
        askings=askings,
        ids=tuple(one for part in parts for one in part.ids),
    )


def _mean(columns: Sequence[FloatArray]) -> float:
    return sum(float(np.mean(column)) for column in columns) / len(columns)


class FlipsCheck:
    """Answers that turn between right and wrong, beyond those that the baseline turns of its own."""

    metrics = ("flips",)

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Measure one check over items that were answered three times."""
        check, units = spec.check, judged_units(spec, suite, comparison)
        if not units:
            return never_measured(spec)
        assert check.margin is not None, "flips have a margin and no bound: the suite was validated"
        allowed = suite.quality.max_empty_ratio if suite.quality else 0.0
        breach, alpha = check.block_when == "breach", suite.gate.alpha
        return flips_against_baseline(
            comparison, units, margin=check.margin, breach=breach, alpha=alpha, allowed=allowed
        )
