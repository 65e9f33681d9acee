"""Evals that were stopped before their last item, because harm was certain: when that is so, and what it may say.

Only harm may come of it. What was asked until then was chosen by what it showed, so no limit of it is a limit of
anything, and nothing that stopped early can pass; what may be looked at after every item is `stats/sequential`.

What an average hides: one task, or one task of a group, that broke alone.

Accuracy and scores: every item paired with itself, clusters and tasks of unlike sizes taken for what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchgate import units as shown
from benchgate.gate.checks.base import bound_of, never_measured
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Finding, Problem
from benchgate.gate.derivation import answers_steps, scores_steps
from benchgate.gate.evidence.items import (
    MORE_TOKENS,
    Pairs,
    few_clusters,
    forgiven_losses,
    invalid,
    pair_task,
    pair_unit,
)
from benchgate.gate.policy import CheckSpec, judged_by, judged_units, specs_over, unit_name
from benchgate.gate.summary.figures import figure_notes
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem, FloatArray
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.clusters import ClusterMean, cluster_mean, pool_means
from benchgate.stats.distributions import Limits, binom_cdf
from benchgate.stats.evals import ItemRegression, ScorePairs, accuracy_regression, score_regression
from benchgate.stats.overdispersed import mean_share_limits, share_at_least_p
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.sequential import anytime_p, holm, independent_differences
from benchgate.suite.schema import Suite

Items = Mapping[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]
"""Observed task → the baseline's and the candidate's items so far, in planned order."""

_HALVINGS = 20
"""Of the line on which the lower limit of harm is looked for: to a millionth."""


def shows_harm(suite: Suite, items: Items) -> str | None:
    """The id of the first required check whose harm is shown beyond its margin by the items so far; None while none is.

    Each check is held to alpha over the number of required checks, so that the verdict's correction for many checks
    cannot take it back.
    """
    paired = {task: _paired(task, *both) for task, both in items.items()}
    sound = {task: one for task, one in paired.items() if one is not None}
    if len(sound) < len(paired):
        return None
    specs = [spec for spec in specs_over(suite, {t: p.continuous for t, p in sound.items()}) if spec.check.required]
    for spec in specs:
        if spec.check.metric not in ("accuracy", "score") or spec.check.margin is None:
            continue
        judged = _judged(spec, suite, sound)
        right_kind = all(one.continuous == (spec.check.metric == "score") for one in judged)
        if judged and right_kind and _p_beyond(judged, spec.check.margin) <= suite.gate.alpha / len(specs):
            return spec.id
    return None


def stopped_finding(finding: Finding, paired: Sequence[Pairs], alpha: float) -> Finding:
    """What a check on evals that were stopped early found: harm beyond its margin, or nothing it could go by."""
    differences = _rounds([one.scores for one in paired])
    finding = replace(finding, method="betting e-process, valid whenever it is stopped")
    if len(differences) == 0 or finding.margin >= 1 or _p_beyond(paired, finding.margin) > alpha:
        one_each = all(one.tasks == 1 for one in paired)
        if one_each and len(differences) and finding.margin < 1 and anytime_p(differences, finding.margin) <= alpha:
            why = " or ".join(dict.fromkeys(one.why_unclear for one in paired if one.why_unclear))
            return replace(finding, problem=invalid(f"the loss is made by answers {why}", MORE_TOKENS))
        names = ", ".join(one.name for one in paired if one.stopped)
        shown = "what was asked until then does not show harm beyond the margin here"
        reason = f"the evals were stopped early ({names}), and {shown}"
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, "run without `quality.stop_early`"))
    return replace(
        finding,
        harm=float(np.mean(differences)),
        limits=Limits(_least_harm(differences, finding.margin, alpha), 1.0),
        p_value=_p_beyond(paired, finding.margin),
        notes=(f"stopped early, after {len(differences)} items of each task: harm was certain",),
    )


def _paired(task: str, baseline: Sequence[EvalItem], candidate: Sequence[EvalItem]) -> Pairs | None:
    by_degrees = any(item.correct is None and item.score is not None for item in (*baseline, *candidate))
    harness = {"stopped_early": True, "scale": "continuous" if by_degrees else "binary"}
    both = [
        QualityObservation(task, arm, tuple(items), len(items), None, harness)
        for arm, items in zip(Arm, (baseline, candidate), strict=True)
    ]
    found = pair_task(*both)
    return None if isinstance(found, Problem) else found


def _judged(spec: CheckSpec, suite: Suite, paired: Mapping[str, Pairs]) -> list[Pairs]:
    """The tasks that a check judges. A group of several tasks is left to the end: its items come in no one order."""
    if spec.task is not None and spec.task in paired:
        return [paired[spec.task]]
    by_name: dict[str, list[Pairs]] = {}
    for task, one in paired.items():
        by_name.setdefault(unit_name(suite, task), []).append(one)
    if any(len(parts) > 1 for parts in by_name.values()):
        by_name = {name: parts for name, parts in by_name.items() if len(parts) == 1 and spec.task == name}
    if spec.task is not None and spec.task != "each":
        return by_name.get(spec.task, [])
    names = {name: parts[0].continuous for name, parts in by_name.items()}
    return [by_name[name][0] for name in judged_by(spec.check, suite.gate.checks, names)]


def _p_beyond(paired: Sequence[Pairs], margin: float) -> float:
    """p-value of "harm is within the margin", were every loss forgiven that says nothing about the model.

    1 where there is no such order: a group's items stand task by task, and were not asked so. 1 for a margin beyond 1.
    """
    if not margin < 1 or any(one.tasks > 1 for one in paired):
        return 1.0
    return anytime_p(_rounds([forgiven_losses(one) for one in paired]), margin)


def _rounds(tasks: Sequence[ScorePairs]) -> FloatArray:
    """The differences in order; of several tasks the mean over tasks of the first item of each, of the second, and on.

    Tasks are asked side by side, so a round is known before the next one is asked; it ends where the shortest ends.
    """
    parts = [independent_differences(list(one.baseline), list(one.candidate), one.clusters) for one in tasks]
    rounds = min((len(part) for part in parts), default=0)
    if rounds == 0:
        return np.zeros(0)
    mean: FloatArray = np.mean([part[:rounds] for part in parts], axis=0)
    return mean


def _least_harm(differences: FloatArray, margin: float, alpha: float) -> float:
    """The largest harm that is refuted as the most there is: at least the margin, were nothing forgiven."""
    low, high = margin, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if anytime_p(differences, middle) <= alpha else (low, middle)
    return low


_NAMED = 3
"""So many are named, the worst first; the others are counted."""

Alone = tuple[float, float, str]
"""p-value of "it did not break", how bad it is, and what is said of it."""


def broken_alone(
    comparison: Comparison,
    units: Mapping[str, tuple[str, ...]],
    paired: Sequence[Pairs],
    alpha: float,
    look: Callable[[Pairs], Alone],
) -> str | None:
    """What is said of the parts of an average that are shown to have broken, all of them together at alpha."""
    looked = [look(_as_items(one)) for one in _parts(comparison, units, paired)]
    adjusted = holm([p_value for p_value, _, _ in looked])
    broken = sorted(
        ((bad, text) for (_, bad, text), p_holm in zip(looked, adjusted, strict=True) if p_holm <= alpha), reverse=True
    )
    told = [text for _, text in broken[:_NAMED]]
    if len(broken) > _NAMED:
        told.append(f"{len(broken) - _NAMED} more likewise")
    return ", ".join(told) or None


def _parts(comparison: Comparison, units: Mapping[str, tuple[str, ...]], paired: Sequence[Pairs]) -> list[Pairs]:
    """Each of several tasks, and each task that a group consists of."""
    parts = list(paired) if len(paired) > 1 else []
    for tasks in units.values():
        leaves = [pair_unit(comparison, task, (task,)) for task in tasks] if len(tasks) > 1 else []
        parts += [leaf for leaf in leaves if not isinstance(leaf, Problem) and len(leaf) > 1]
    return parts


def _as_items(one: Pairs) -> Pairs:
    """Of a part of few clusters its items alone can be judged: what is said is said of these."""
    return replace(one, clusters=None) if few_clusters([one]) is not None else one


Units = Mapping[str, tuple[str, ...]]
"""What checks call a task → the observed tasks that it consists of."""


def accuracy_against_baseline(
    comparison: Comparison, units: Units, *, margin: float, breach: bool, alpha: float
) -> Finding:
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
    harm = accuracy_regression([one.scores for one in paired], alpha, tested=tested)
    finding = _with_harm(finding, paired, harm, figure_notes(comparison, units, paired, alpha))
    finding = replace(finding, steps=answers_steps([one.scores for one in paired], alpha))
    problem = _unclear_answers_decide(paired, harm, margin, tested, alpha)

    def fell(one: Pairs) -> Alone:
        loss = accuracy_regression([one.scores], alpha, tested=margin)
        return loss.p_value, loss.estimate, f"{one.name} alone fell by {shown.show_points(loss.estimate)}"

    return replace(finding, problem=problem, warning=broken_alone(comparison, units, paired, alpha, fell))


def score_against_baseline(
    comparison: Comparison, units: Units, *, margin: float, breach: bool, alpha: float, seed: int
) -> Finding:
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
    harm = score_regression(paired[0].scores, alpha, generator, tested=tested)
    finding = _with_harm(finding, paired, harm, figure_notes(comparison, units, paired, alpha))
    finding = replace(finding, steps=scores_steps(paired[0].scores, alpha))

    def fell(one: Pairs) -> Alone:
        loss = score_regression(one.scores, alpha, generator, tested=margin)
        return loss.p_value, loss.estimate, f"{one.name} alone fell by {shown.show_points(loss.estimate)}"

    return replace(finding, warning=broken_alone(comparison, units, paired, alpha, fell))


def accuracy_against_bound(comparison: Comparison, units: Units, *, slo: float, alpha: float) -> Finding:
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
    return (
        value,
        limits,
        share_at_least_p(value, effective, slo),
        "Clopper-Pearson limits over the effective number of items",
    )


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
    return pool_means([mean]).limits(alpha).lower


def _unclear_answers_decide(
    paired: Sequence[Pairs], harm: ItemRegression, margin: float, tested: float, alpha: float
) -> Problem | None:
    """Answers that say nothing of the model would make the loss, or pay for one."""
    why = _why_unclear(paired)
    unclear = sum(int(np.sum(one.lost & one.candidate_unclear)) for one in paired)
    if harm.limits.upper >= margin and unclear:
        forgiven = accuracy_regression([forgiven_losses(one) for one in paired], alpha, tested=tested)
        if forgiven.limits.upper < margin or harm.p_value <= alpha < forgiven.p_value:
            lost = sum(int(np.sum(one.lost)) for one in paired)
            return invalid(f"{unclear} of the {lost} lost items were {why}", MORE_TOKENS)
    paid = sum(int(np.sum(one.gained & one.baseline_unclear)) for one in paired)
    if harm.limits.upper < margin and paid:
        earned = accuracy_regression([_without_gains(one) for one in paired], alpha)
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


def _with_harm(finding: Finding, paired: Sequence[Pairs], harm: ItemRegression, notes: tuple[str, ...]) -> Finding:
    return replace(
        finding,
        n=harm.n,
        harm=harm.estimate,
        limits=harm.limits,
        p_value=harm.p_value,
        method=harm.method,
        notes=notes,
    )


def _n(paired: Sequence[Pairs]) -> int:
    return sum(len(one) for one in paired)


def _finding(unit: Unit, scale: Scale, margin: float, breach: bool) -> Finding:
    return Finding(unit=unit, scale=scale, margin=margin, method="none", n=0, n_unit="items", breach=breach, falls=True)


_STOPPED = "the evals were stopped before their last item, so nothing is known of the rest"
_ASK_ALL = "run without `quality.stop_early`"


class Accuracy:
    """Accuracy and scores: of one task or group of evals, or of all that the check judges together."""

    metrics = ("accuracy", "score")

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Measure one check over items paired by id."""
        check, alpha, units = spec.check, suite.gate.alpha, judged_units(spec, suite, comparison)
        if not units:
            return never_measured(spec)
        if check.margin is None:
            return accuracy_against_bound(comparison, units, slo=bound_of(spec).value, alpha=alpha)
        breach = check.block_when == "breach"
        if check.metric == "score":
            return score_against_baseline(
                comparison, units, margin=check.margin, breach=breach, alpha=alpha, seed=suite.seed
            )
        return accuracy_against_baseline(comparison, units, margin=check.margin, breach=breach, alpha=alpha)
