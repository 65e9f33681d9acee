"""Checks of accuracy and scores: items paired by id, with their clusters, and tasks of equal weight.

A mean over tasks hides one task that broke alone, so a passing check warns of it. Evals that were stopped early because
a regression was certain can only block: where they ended depends on what their items showed, so no ordinary limit holds
(`stats/sequential.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import CannotJudge, Estimate, inconclusive, invalid
from benchgate.gate.evidence.items import (
    MORE_TOKENS,
    Pairs,
    forgive_unclear_losses,
    mean_over_tasks,
    pair_task,
    pair_unit,
    pair_units,
    require_clusters,
)
from benchgate.gate.policy import CheckSpec, judged_by, judged_units, specs_over
from benchgate.gate.summary.figures import figure_notes
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem, FloatArray
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import Scale, Unit
from benchgate.stats.clusters import cluster_mean, mean_share_limits, mean_share_p, pool_means
from benchgate.stats.distributions import Limits, binom_cdf
from benchgate.stats.evals import ItemRegression, ScorePairs, accuracy_regression, score_regression
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.sequential import anytime_p, holm, independent_differences
from benchgate.suite.schema import Suite
from benchgate.units import show_percent, show_points

Units = Mapping[str, tuple[str, ...]]  # task name of checks → the observed tasks that it consists of
Items = Mapping[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]
"""Observed task → the baseline's and the candidate's items so far, in planned order."""

_BISECTIONS = 20  # of the lower limit of an early stop: precise to a millionth
_MOST_NAMED_PARTS = 3
_ALL_ITEMS = "run without `quality.stop_early`"


class Accuracy:
    """Accuracy and scores of one task or group of tasks, or of all that the check judges together."""

    metrics = ("accuracy", "score")

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Fill in the estimate of one check over items paired by id."""
        units = judged_units(spec, suite, comparison)
        estimate.n_unit = "items"
        if spec.check.margin is None:
            accuracy_against_bound(estimate, comparison, units, alpha)
        elif spec.check.metric == "score":
            score_against_baseline(estimate, comparison, units, alpha, suite.seed)
        else:
            accuracy_against_baseline(estimate, comparison, units, alpha)


def accuracy_against_baseline(estimate: Estimate, comparison: Comparison, units: Units, alpha: float) -> None:
    """Estimate the regression in accuracy: the mean over tasks of (lost - gained) / n, each with equal weight."""
    paired = pair_units(comparison, units)
    _fill_scores(estimate, paired)
    if any(one.stopped for one in paired):
        _estimate_stopped(estimate, paired, alpha)
        return
    margin = estimate.margin
    _require_right_or_wrong(paired)
    _require_room_to_lose_accuracy(paired, margin, alpha)
    require_clusters(paired)
    tested = margin if estimate.rule.breach else 0.0
    scores = [one.scores for one in paired]
    regression = accuracy_regression(scores, alpha, tested=tested, trace=estimate.trace)
    _fill_regression(estimate, regression, figure_notes(comparison, units, paired, alpha))
    broken = broken_parts(
        comparison,
        units,
        paired,
        alpha,
        lambda one: _fall(one, accuracy_regression([one.scores], alpha, tested=margin)),
    )
    estimate.warn(broken)
    _require_clear_answers(paired, regression, margin, tested, alpha)


def score_against_baseline(estimate: Estimate, comparison: Comparison, units: Units, alpha: float, seed: int) -> None:
    """Estimate the regression in a task's own score, in points: a hundredth of the score's unit."""
    estimate.rule = replace(estimate.rule, unit=Unit.COUNT)
    paired = pair_units(comparison, units)
    _fill_scores(estimate, paired)
    if any(one.stopped for one in paired):
        _estimate_stopped(estimate, paired, alpha)
        return
    if len(paired) > 1:
        raise invalid("scores of different tasks have different scales", "name one `task`, or `each`")
    margin, only = estimate.margin, paired[0]
    if not only.continuous:
        reason = f"the answers to {only.name} are right or wrong, and have no score of another scale"
        raise invalid(reason, f"judge it by {{metric: accuracy, task: {only.name}, margin: …}}")
    if len(only) < 2:
        raise inconclusive("one item alone has no spread", "give the task rows, or raise `limit`")
    require_clusters(paired)
    # A candidate that scores nothing must be able to fail. Scores below 0 have no known zero.
    mean = cluster_mean(only.baseline, only.clusters)
    has_zero = min(np.min(only.baseline), np.min(only.candidate)) >= 0
    if mean is not None and has_zero and pool_means([mean]).limits(alpha).lower <= margin:
        reason = f"the baseline's mean score on {only.name} is only {mean.mean:.3g}"
        reason += ": a candidate that scores nothing could stay inside the margin"
        raise invalid(reason, "use a smaller margin, or items that the baseline can do")
    generator = np.random.default_rng(seed)
    tested = margin if estimate.rule.breach else 0.0
    regression = score_regression(only.scores, alpha, generator, tested=tested, trace=estimate.trace)
    _fill_regression(estimate, regression, figure_notes(comparison, units, paired, alpha))
    broken = broken_parts(
        comparison,
        units,
        paired,
        alpha,
        lambda one: _fall(one, score_regression(one.scores, alpha, generator, tested=margin)),
    )
    estimate.warn(broken)


def _fall(one: Pairs, loss: ItemRegression) -> PartTest:
    return PartTest(loss.p_value, loss.estimate, f"{one.name} alone fell by {show_points(loss.estimate)}")


def accuracy_against_bound(estimate: Estimate, comparison: Comparison, units: Units, alpha: float) -> None:
    """Estimate the candidate's own accuracy, held to a floor: the mean over tasks of the share that is right."""
    paired, floor = pair_units(comparison, units), estimate.margin
    _fill_scores(estimate, paired)
    if any(one.stopped for one in paired):
        raise inconclusive("the evals were stopped before their last item, so the rest is unknown", _ALL_ITEMS)
    _require_right_or_wrong(paired)
    require_clusters(paired)
    own = _own_accuracy(paired, [one.candidate for one in paired], floor, alpha)
    estimate.candidate = estimate.value = own.value
    estimate.limits, estimate.p_value, estimate.method = own.limits, own.p_value, own.method

    def miss(one: Pairs) -> PartTest:
        part = _own_accuracy([one], [one.candidate], floor, alpha)
        return PartTest(part.p_value, -part.value, f"{one.name} alone reaches only {show_percent(part.value)}")

    estimate.warn(broken_parts(comparison, units, paired, alpha, miss))
    unclear = sum(int(np.sum(one.candidate_unclear)) for one in paired)
    if own.limits.lower < floor and unclear:
        best_scores = [np.maximum(one.candidate, one.candidate_unclear) for one in paired]
        best = _own_accuracy(paired, best_scores, floor, alpha)
        if best.limits.lower >= floor or own.p_value <= alpha < best.p_value:
            raise invalid(f"{unclear} of the wrong answers were {_why_unclear(paired)}", MORE_TOKENS)


@dataclass(frozen=True, slots=True)
class _OwnAccuracy:
    """Accuracy of one arm with its limits, and the p-value of "at least the floor"."""

    value: float
    limits: Limits
    p_value: float
    method: str


def _own_accuracy(paired: Sequence[Pairs], scores: Sequence[FloatArray], floor: float, alpha: float) -> _OwnAccuracy:
    right, n = sum(int(np.sum(one == 1)) for one in scores), sum(map(len, paired))
    if all(one.clusters is None for one in paired) and len({len(one) for one in paired}) == 1:
        limits, p_value = clopper_pearson(right, n, alpha), binom_cdf(right, n, floor)
        return _OwnAccuracy(right / n, limits, p_value, "Clopper-Pearson limits over items")
    value = mean_over_tasks(scores)
    clusters = [one.clusters for one in paired]
    found, p_own = mean_share_limits(scores, clusters, alpha), mean_share_p(scores, clusters, floor, alpha)
    if found is None or p_own is None:  # one item alone has no spread
        return _OwnAccuracy(value, Limits(0.0, 1.0), 1.0, "none")
    method = "Clopper-Pearson limits over the effective number of items"
    if any(one is not None for one in clusters):
        method += ", widened for skewness and for the clusters that a sample of this size can miss"
    return _OwnAccuracy(value, found[0], p_own, method)


def _require_right_or_wrong(paired: Sequence[Pairs]) -> None:
    for one in paired:
        if one.continuous:
            reason = f"the answers to {one.name} are scored by degrees and are not simply right or wrong"
            raise invalid(reason, f"judge it by {{metric: score, task: {one.name}, margin: …}}")


def _require_room_to_lose_accuracy(paired: Sequence[Pairs], margin: float, alpha: float) -> None:
    """Raise CannotJudge for a baseline so near to guessing that a candidate that guesses stays inside the margin.

    Where there is nothing to guess, that candidate gets nothing right. Both all items and the mean over tasks must have
    room: one large task that the baseline can do is most of the items, but only one of the tasks over which the
    regression is averaged.
    """
    right, n = sum(int(np.sum(one.baseline == 1)) for one in paired), sum(map(len, paired))
    mean = mean_over_tasks([one.baseline for one in paired])
    guessed = sum(one.chance * len(one) for one in paired) / n
    mean_guessed = sum(one.chance for one in paired) / len(paired)
    if clopper_pearson(right, n, alpha).lower - guessed <= margin:
        share = f"{right} of {n} items"
    elif mean - mean_guessed <= margin:
        share, guessed = f"{show_percent(mean)} of the items of each task on average", mean_guessed
    else:
        return
    worst = f"guesses ({show_percent(guessed)})" if guessed else "gets none right"
    reason = f"the baseline gets only {share} right: a candidate that {worst} would stay inside the margin"
    raise invalid(reason, "use items that the baseline can do")


def _require_clear_answers(
    paired: Sequence[Pairs], regression: ItemRegression, margin: float, tested: float, alpha: float
) -> None:
    why = _why_unclear(paired)
    unclear = sum(int(np.sum(one.lost & one.candidate_unclear)) for one in paired)
    if regression.limits.upper >= margin and unclear:
        forgiven = accuracy_regression([forgive_unclear_losses(one) for one in paired], alpha, tested=tested)
        if forgiven.limits.upper < margin or regression.p_value <= alpha < forgiven.p_value:
            lost = sum(int(np.sum(one.lost)) for one in paired)
            raise invalid(f"{unclear} of the {lost} lost items were {why}", MORE_TOKENS)
    offsets = sum(int(np.sum(one.gained & one.baseline_unclear)) for one in paired)
    if regression.limits.upper < margin and offsets:
        without_gains = [
            ScorePairs(
                np.where(one.gained & one.baseline_unclear, one.candidate, one.baseline), one.candidate, one.clusters
            )
            for one in paired
        ]
        earned = accuracy_regression(without_gains, alpha)
        if earned.limits.upper >= margin:
            gained = sum(int(np.sum(one.gained)) for one in paired)
            reason = f"{offsets} of the {gained} gained items pay for lost ones only because the baseline's answer was"
            raise invalid(f"{reason} {why}", MORE_TOKENS)


def _why_unclear(paired: Sequence[Pairs]) -> str:
    return " or ".join(dict.fromkeys(one.why_unclear for one in paired if one.why_unclear))


def _fill_scores(estimate: Estimate, paired: Sequence[Pairs]) -> None:
    """Fill in the number of items and the mean scores; scores of several tasks have no mean."""
    estimate.n = sum(map(len, paired))
    continuous = any(one.continuous for one in paired)
    if any(len(one) == 0 for one in paired) or (continuous and len(paired) > 1):
        return
    if continuous:
        estimate.rule = replace(estimate.rule, unit=Unit.COUNT)
    if estimate.rule.scale is not Scale.ABSOLUTE:
        estimate.baseline = mean_over_tasks([one.baseline for one in paired])
    estimate.candidate = mean_over_tasks([one.candidate for one in paired])


def _fill_regression(estimate: Estimate, regression: ItemRegression, notes: Sequence[str]) -> None:
    estimate.n, estimate.method = regression.n, regression.method
    estimate.value, estimate.limits, estimate.p_value = regression.estimate, regression.limits, regression.p_value
    estimate.notes += notes


# --- One part of an average that broke alone --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartTest:
    """Test of one task: p-value of "it did not break", how bad it is, and a description for the warning."""

    p_value: float
    severity: float
    text: str


def broken_parts(
    comparison: Comparison,
    units: Units,
    paired: Sequence[Pairs],
    alpha: float,
    test: Callable[[Pairs], PartTest],
) -> str | None:
    """Describe the parts of an average that are shown to have broken, at alpha for all together; None if none.

    Parts are each of several tasks, and each task of a group.
    """
    parts = list(paired) if len(paired) > 1 else []
    leaves = [task for tasks in units.values() if len(tasks) > 1 for task in tasks]
    parts += [leaf for task in leaves if len(leaf := pair_unit(comparison, task, (task,))) > 1]
    tests = []
    for part in parts:
        try:
            require_clusters([part])
        except CannotJudge:  # few clusters: test item by item
            part = replace(part, clusters=None)
        tests.append(test(part))
    adjusted = holm([one.p_value for one in tests])
    broken = [one for one, p_holm in zip(tests, adjusted, strict=True) if p_holm <= alpha]
    named = [one.text for one in sorted(broken, key=lambda one: (one.severity, one.text), reverse=True)]
    if len(named) > _MOST_NAMED_PARTS:
        named[_MOST_NAMED_PARTS:] = [f"{len(named) - _MOST_NAMED_PARTS} more likewise"]
    return ", ".join(named) or None


# --- Evals that were stopped early ------------------------------------------------------------------------------------


def certain_regression(suite: Suite, items: Items, continuous: Collection[str] = ()) -> str | None:
    """Return the id of the first required check whose regression the items so far show to exceed its margin, or None.

    `continuous`: the tasks scored by degrees, even if all their scores so far are 0 or 1.
    Each check is tested at alpha over the largest number of required checks that the verdict can have, so that its
    correction for many checks cannot take it back.
    """
    paired: dict[str, Pairs] = {}
    for task, both in items.items():
        partly = any(item.correct is None and item.score is not None for side in both for item in side)
        harness = {"stopped_early": True, "scale": "continuous" if partly or task in continuous else "binary"}
        baseline, candidate = (
            QualityObservation(task, arm, tuple(side), len(side), None, harness)
            for arm, side in zip(Arm, both, strict=True)
        )
        try:
            paired[task] = pair_task(baseline, candidate)
        except CannotJudge:
            return None
    specs = [spec for spec in specs_over(suite, {t: p.continuous for t, p in paired.items()}) if spec.check.required]
    # Each task whose items were sent among a load is a check of its own there, and none of `items`.
    of_load = sum(check.required and check.task == "each" and check.stage is not None for check in suite.gate.checks)
    most = len(specs) + of_load * len(suite.quality.names if suite.quality is not None else ())
    for spec in specs:
        if spec.check.metric not in ("accuracy", "score") or spec.check.margin is None:
            continue
        judged = _judged_so_far(spec, suite, paired)
        right_kind = all(one.continuous == (spec.check.metric == "score") for one in judged)
        if judged and right_kind and _p_beyond(judged, spec.check.margin) <= suite.gate.alpha / most:
            return spec.id
    return None


def _judged_so_far(spec: CheckSpec, suite: Suite, paired: Mapping[str, Pairs]) -> list[Pairs]:
    """Return the tasks that a check judges, without groups of several tasks: their items have no common order."""
    if spec.task is not None and spec.task in paired:
        return [paired[spec.task]]
    by_name: dict[str, list[Pairs]] = {}
    for task, one in paired.items():
        by_name.setdefault(suite.unit_name(task), []).append(one)
    if any(len(parts) > 1 for parts in by_name.values()):
        by_name = {name: parts for name, parts in by_name.items() if len(parts) == 1 and spec.task == name}
    if spec.task is not None and spec.task != "each":
        return by_name.get(spec.task, [])
    names = {name: parts[0].continuous for name, parts in by_name.items()}
    return [by_name[name][0] for name in judged_by(spec.check, suite.gate.checks, names)]


def _estimate_stopped(estimate: Estimate, paired: Sequence[Pairs], alpha: float) -> None:
    differences, margin = _rounds([one.scores for one in paired]), estimate.margin
    estimate.method = "betting e-process, valid whenever it is stopped"
    p_value = _p_beyond(paired, margin)
    if len(differences) == 0 or margin >= 1 or p_value > alpha:
        one_each = all(one.tasks == 1 for one in paired)
        if one_each and len(differences) and margin < 1 and anytime_p(differences, margin) <= alpha:
            raise invalid(f"the loss is made by answers {_why_unclear(paired)}", MORE_TOKENS)
        names = ", ".join(one.name for one in paired if one.stopped)
        reason = (
            f"the evals were stopped early ({names}), and the items until then show no regression beyond the margin"
        )
        raise inconclusive(reason, _ALL_ITEMS)
    # The largest regression that is rejected as an upper bound; at least the margin, without forgiveness.
    low, high = margin, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if anytime_p(differences, middle) <= alpha else (low, middle)
    estimate.value = float(np.mean(differences))
    # The limit may be that of earlier items alone, if later ones lost less.
    estimate.limits, estimate.p_value = Limits(min(low, estimate.value), 1.0), p_value
    estimate.notes.append(f"stopped early, after {len(differences)} items of each task: a regression was certain")


def _p_beyond(paired: Sequence[Pairs], margin: float) -> float:
    """Return the p-value of "the regression is within the margin", with unclear losses forgiven.

    It is 1 for a group, whose items are stored task by task and not in the order of the requests, and for a margin
    above 1.
    """
    if not margin < 1 or any(one.tasks > 1 for one in paired):
        return 1.0
    return anytime_p(_rounds([forgive_unclear_losses(one) for one in paired]), margin)


def _rounds(tasks: Sequence[ScorePairs]) -> FloatArray:
    """Return the differences in order; of several tasks, the mean over tasks of their first items, second items, …

    Tasks run side by side, so a round is known before the next one begins. The shortest task ends it.
    """
    parts = [independent_differences(list(one.baseline), list(one.candidate), one.clusters) for one in tasks]
    rounds = min((len(part) for part in parts), default=0)
    if rounds == 0:
        return np.zeros(0)
    mean: FloatArray = np.mean([part[:rounds] for part in parts], axis=0)
    return mean
