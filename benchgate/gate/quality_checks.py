"""Accuracy and scores: every item paired with itself, clusters and tasks of unlike sizes taken for what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchgate import units as shown
from benchgate.gate.comparison import Comparison
from benchgate.gate.item_steps import answers_steps, scores_steps
from benchgate.gate.quality_alone import Alone, broken_alone
from benchgate.gate.quality_early import stopped_finding
from benchgate.gate.quality_figures import figure_notes
from benchgate.gate.quality_pairs import MORE_TOKENS, Pairs, few_clusters, forgiven_losses, invalid, pair_unit
from benchgate.gate.rule import Finding, Problem
from benchgate.model.records import FloatArray
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.clusters import ClusterMean, cluster_mean, pooled
from benchgate.stats.distributions import binom_cdf
from benchgate.stats.item_harm import ItemHarm, answers_harm, scores_harm
from benchgate.stats.item_shares import mean_share_limits, p_at_least
from benchgate.stats.limits import Limits
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.recovery import ScorePairs

Units = Mapping[str, tuple[str, ...]]
"""What checks call a task → the observed tasks that it consists of."""


def relative(comparison: Comparison, units: Units, *, margin: float, breach: bool, alpha: float) -> Finding:
    """Harm in accuracy: the mean over tasks of (lost - gained) / n, each task with equal weight."""
    finding = _finding(Unit.RATIO, Scale.DIFFERENCE, margin, breach)
    paired = all_paired(comparison, units)
    if isinstance(paired, Problem):
        return replace(finding, problem=paired)
    finding = _seen(finding, paired)
    if any(one.stopped for one in paired):
        return stopped_finding(finding, paired, alpha)
    problem = _right_or_wrong(paired) or _too_easy_to_lose_little(paired, margin, alpha) or few_clusters(paired)
    if problem is not None:
        return replace(finding, problem=problem)
    tested = margin if breach else 0.0
    harm = answers_harm([one.scores for one in paired], alpha, tested=tested)
    finding = _with_harm(finding, paired, harm, figure_notes(comparison, units, paired, alpha))
    finding = replace(finding, steps=answers_steps([one.scores for one in paired], alpha))
    problem = _unclear_answers_decide(paired, harm, margin, tested, alpha)

    def fell(one: Pairs) -> Alone:
        loss = answers_harm([one.scores], alpha, tested=margin)
        return loss.p_harm, loss.estimate, f"{one.name} alone fell by {shown.show_points(loss.estimate)}"

    return replace(finding, problem=problem, warning=broken_alone(comparison, units, paired, alpha, fell))


def score(comparison: Comparison, units: Units, *, margin: float, breach: bool, alpha: float, seed: int) -> Finding:
    """Harm in a task's own score, in points: a hundredth of whatever the score counts."""
    finding = _finding(Unit.COUNT, Scale.DIFFERENCE, margin, breach)
    paired = all_paired(comparison, units)
    if isinstance(paired, Problem):
        return replace(finding, problem=paired)
    finding = _seen(finding, paired)
    if any(one.stopped for one in paired):
        return stopped_finding(finding, paired, alpha)
    problem = _one_scale(paired) or few_clusters(paired) or _too_low_to_lose_much(paired[0], margin, alpha)
    if problem is not None:
        return replace(finding, problem=problem)
    tested = margin if breach else 0.0
    generator = np.random.default_rng(seed)
    harm = scores_harm(paired[0].scores, alpha, generator, tested=tested)
    finding = _with_harm(finding, paired, harm, figure_notes(comparison, units, paired, alpha))
    finding = replace(finding, steps=scores_steps(paired[0].scores, alpha))

    def fell(one: Pairs) -> Alone:
        loss = scores_harm(one.scores, alpha, generator, tested=margin)
        return loss.p_harm, loss.estimate, f"{one.name} alone fell by {shown.show_points(loss.estimate)}"

    return replace(finding, warning=broken_alone(comparison, units, paired, alpha, fell))


def absolute(comparison: Comparison, units: Units, *, slo: float, alpha: float) -> Finding:
    """The candidate's own accuracy against a floor: the mean over tasks of the share that it gets right."""
    finding = replace(_finding(Unit.RATIO, Scale.ABSOLUTE, slo, True), lower_is_worse=True)
    paired = all_paired(comparison, units)
    if isinstance(paired, Problem):
        return replace(finding, problem=paired)
    finding = _seen(finding, paired)
    if any(one.stopped for one in paired):
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, _STOPPED, _ASK_ALL))
    problem = _right_or_wrong(paired) or few_clusters(paired)
    if problem is not None:
        return replace(finding, problem=problem)
    value, limits, p_value, method = _own_share(paired, [one.candidate for one in paired], slo, alpha)
    problem = None
    unclear = sum(int(np.sum(one.candidate_unclear)) for one in paired)
    if limits.lower < slo and unclear:
        whole = [np.maximum(one.candidate, one.candidate_unclear) for one in paired]
        _, at_best, p_at_best, _ = _own_share(paired, whole, slo, alpha)
        if at_best.lower >= slo or p_value <= alpha < p_at_best:
            problem = invalid(f"{unclear} of the wrong answers were {_why_unclear(paired)}", MORE_TOKENS)
    found = replace(finding, candidate=value, harm=value, limits=limits, p_value=p_value, method=method)

    def misses(one: Pairs) -> Alone:
        reached, _, p_reached, _ = _own_share([one], [one.candidate], slo, alpha)
        return p_reached, -reached, f"{one.name} alone reaches only {shown.show_percent(reached)}"

    return replace(found, problem=problem, warning=broken_alone(comparison, units, paired, alpha, misses))


def all_paired(comparison: Comparison, units: Units) -> list[Pairs] | Problem:
    """The items of every unit, or the first reason why one has none that can be compared."""
    if not units:
        return invalid("no eval task was run", "see the faults of the targets and run the suite again")
    paired: list[Pairs] = []
    for name, tasks in units.items():
        one = pair_unit(comparison, name, tasks)
        if isinstance(one, Problem):
            return one
        if len(one) == 0 and not one.stopped:
            return invalid(f"there are no items in {name}", "give the task rows, or raise `limit`")
        paired.append(one)
    return paired


def _own_share(
    paired: Sequence[Pairs], scores: Sequence[FloatArray], slo: float, alpha: float
) -> tuple[float, Limits, float, str]:
    """The value of these scores, limits, p-value of "at least the floor", and how they were made."""
    right, n = sum(int(np.sum(one == 1)) for one in scores), _n(paired)
    if all(one.clusters is None for one in paired) and len({len(one) for one in paired}) == 1:
        return (
            right / n,
            clopper_pearson(right, n, alpha),
            binom_cdf(right, n, slo),
            "Clopper-Pearson limits over items",
        )
    value = _mean(scores)
    found = mean_share_limits(scores, [one.clusters for one in paired], alpha)
    if found is None:  # one item alone has no spread of its own
        return value, Limits(0.0, 1.0), 1.0, "none"
    limits, effective = found
    return value, limits, p_at_least(value, effective, slo), "Clopper-Pearson limits over the effective number of items"


def _right_or_wrong(paired: Sequence[Pairs]) -> Problem | None:
    for one in paired:
        if one.continuous:
            reason = f"the answers to {one.name} are scored by degrees and are not simply right or wrong"
            return invalid(reason, f"judge it by {{metric: score, task: {one.name}, margin: …}}")
    return None


def _one_scale(paired: Sequence[Pairs]) -> Problem | None:
    if len(paired) > 1:
        return invalid("scores of different tasks have different scales", "name one `task`, or `each`")
    if not paired[0].continuous:
        name = paired[0].name
        reason = f"the answers to {name} are right or wrong, and have no score of another scale"
        return invalid(reason, f"judge it by {{metric: accuracy, task: {name}, margin: …}}")
    if len(paired[0]) < 2:
        return Problem(Outcome.INCONCLUSIVE, "one item alone has no spread", "give the task rows, or raise `limit`")
    return None


def _too_easy_to_lose_little(paired: Sequence[Pairs], margin: float, alpha: float) -> Problem | None:
    """A baseline that gets hardly anything right has hardly anything to lose: item by item, or task by task.

    A large task that it can do is most of the items and one of the tasks, of which the harm is the mean.
    """
    right, n = sum(int(np.sum(one.baseline == 1)) for one in paired), _n(paired)
    mean = _mean([one.baseline for one in paired])
    if clopper_pearson(right, n, alpha).lower <= margin:
        told = f"{right} of {n} items"
    elif mean <= margin:
        told = f"{shown.show_percent(mean)} of the items of each task on average"
    else:
        return None
    reason = f"the baseline gets only {told} right: a candidate that gets none right would stay inside the margin"
    return invalid(reason, "use items that the baseline can do")


def _too_low_to_lose_much(one: Pairs, margin: float, alpha: float) -> Problem | None:
    """The same of scores; of those that go below 0 nobody knows what nothing is."""
    mean = cluster_mean(one.baseline, one.clusters)
    if mean is None or min(np.min(one.baseline), np.min(one.candidate)) < 0 or _least(mean, alpha) > margin:
        return None
    reason = f"the baseline's mean score on {one.name} is only {mean.mean:.3g}: a candidate that scores nothing could"
    return invalid(f"{reason} stay inside the margin", "use a smaller margin, or items that the baseline can do")


def _least(mean: ClusterMean, alpha: float) -> float:
    return pooled([mean]).limits(alpha).lower


def _unclear_answers_decide(
    paired: Sequence[Pairs], harm: ItemHarm, margin: float, tested: float, alpha: float
) -> Problem | None:
    """Answers that say nothing of the model would make the loss, or pay for one."""
    why = _why_unclear(paired)
    unclear = sum(int(np.sum(one.lost & one.candidate_unclear)) for one in paired)
    if harm.limits.upper >= margin and unclear:
        forgiven = answers_harm([forgiven_losses(one) for one in paired], alpha, tested=tested)
        if forgiven.limits.upper < margin or harm.p_harm <= alpha < forgiven.p_harm:
            lost = sum(int(np.sum(one.lost)) for one in paired)
            return invalid(f"{unclear} of the {lost} lost items were {why}", MORE_TOKENS)
    paid = sum(int(np.sum(one.gained & one.baseline_unclear)) for one in paired)
    if harm.limits.upper < margin and paid:
        earned = answers_harm([_without_gains(one) for one in paired], alpha)
        if earned.limits.upper >= margin:
            gained = sum(int(np.sum(one.gained)) for one in paired)
            reason = (
                f"{paid} of the {gained} gained items pay for lost ones only because the baseline's answer was {why}"
            )
            return invalid(reason, MORE_TOKENS)
    return None


def _why_unclear(paired: Sequence[Pairs]) -> str:
    return " or ".join(dict.fromkeys(one.why_unclear for one in paired if one.why_unclear))


def _without_gains(one: Pairs) -> ScorePairs:
    baseline = np.where(one.gained & one.baseline_unclear, one.candidate, one.baseline)
    return ScorePairs(baseline, one.candidate, one.clusters)


def _seen(finding: Finding, paired: Sequence[Pairs]) -> Finding:
    """With what was measured, whatever may be said of it: how many items, and what either arm scored on them.

    Scores of several tasks have no mean, and those by degrees are no shares.
    """
    finding = replace(finding, n=_n(paired))
    by_degrees = any(one.continuous for one in paired)
    if any(len(one) == 0 for one in paired) or (by_degrees and len(paired) > 1):
        return finding
    theirs, ours = (_mean([getattr(one, arm) for one in paired]) for arm in ("baseline", "candidate"))
    unit = Unit.COUNT if by_degrees else finding.unit
    return replace(finding, unit=unit, baseline=None if finding.scale is Scale.ABSOLUTE else theirs, candidate=ours)


def _mean(scores: Sequence[FloatArray]) -> float:
    """Each task with equal weight."""
    return sum(float(np.mean(one)) for one in scores) / len(scores)


def _with_harm(finding: Finding, paired: Sequence[Pairs], harm: ItemHarm, notes: tuple[str, ...]) -> Finding:
    return replace(
        finding,
        n=harm.n,
        harm=harm.estimate,
        limits=harm.limits,
        p_value=harm.p_harm,
        method=harm.method,
        notes=notes,
    )


def _n(paired: Sequence[Pairs]) -> int:
    return sum(len(one) for one in paired)


def _finding(unit: Unit, scale: Scale, margin: float, breach: bool) -> Finding:
    return Finding(unit=unit, scale=scale, margin=margin, method="none", n=0, n_unit="items", breach=breach, falls=True)


_STOPPED = "the evals were stopped before their last item, so nothing is known of the rest"
_ASK_ALL = "run without `quality.stop_early`"
