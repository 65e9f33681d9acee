"""Regression over eval items and shadow prompts: score differences, score retention and excess disagreement.

Items are paired by id. A regression is the mean of baseline - candidate, above 0 = worse. Several tasks count equally,
whatever their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from benchgate.model.records import BoolArray, FloatArray
from benchgate.stats.clusters import (
    ClusterLosses,
    PooledMean,
    cluster_mean,
    cluster_sums,
    join_tasks,
    pool_means,
    rare_loss_upper_limit,
)
from benchgate.stats.distributions import Limits, binom_sf, bisect, check_alpha, norm_ppf, norm_sf
from benchgate.stats.means import paired_t, sign_flip_p, sign_test_p, subset_mean_limits
from benchgate.stats.proportions import (
    PairedCounts,
    clopper_pearson,
    mcnemar_p,
    newcombe_difference,
    score_limits,
    score_statistic,
    stratified_difference,
    stratified_exact_p,
    stratified_limits,
    stratified_score_p,
    tango_limits,
    tango_noninferiority_p,
)
from benchgate.stats.trace import Trace, digits

_FEW_DIFFER = 10  # below this number of differing items t limits are not trusted alone
_FEW_ITEMS = 30  # below this number of items the mean is not taken as normal
_SELF_WEIGHT = 0.5
"""Weight of a prompt on which the baseline disagrees with itself and the candidate with one of its answers."""
_LEAST_P = 1e-12
_INVERTED = "the error alpha at which the lower limit is {}; 1 if the estimate is not above it"
MAX_EXCESS_CHANGE = 1.5  # largest difference of one prompt's excess between two runs: +1 in one, -1/2 in the other


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """Scores of one task's items on both sides, and the cluster of each item if there are clusters."""

    baseline: FloatArray
    candidate: FloatArray
    clusters: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ItemRegression:
    """Mean regression over items with limits, and the p-value of "the regression is at most `tested`"."""

    estimate: float
    limits: Limits
    p_value: float
    n: int
    method: str

    def weakened(self, limits: Limits, p_value: float, method: str, trace: Trace | None = None) -> ItemRegression:
        """Return the weaker of two claims: the wider limits and the larger p-value."""
        wider, larger = self.limits.widened(limits), max(self.p_value, p_value)
        _record_weaker(trace, wider, larger)
        return ItemRegression(self.estimate, wider, larger, self.n, method)


def _record_weaker(trace: Trace | None, limits: Limits, p_value: float) -> None:
    if trace is not None:
        shown = f"{digits(limits.lower)} to {digits(limits.upper)}; p {digits(p_value)}"
        trace.text("limits and p-value", "the wider limit on each side; the larger p-value", shown)


def accuracy_regression(
    tasks: Sequence[ScorePairs], alpha: float, *, tested: float = 0.0, trace: Trace | None = None
) -> ItemRegression:
    """Estimate the regression over items that are right or wrong (1 or 0).

    Tango's score limits and exact McNemar; for tasks of different sizes, their stratified counterparts. With clusters,
    t over clusters is computed too, with its upper limit raised for rare losses (`rare_loss_upper_limit`), and the
    weaker claim holds: limits that take the items of a cluster as independent are wrong far too often
    (tests/core/test_stats_item_harm.py). Raises ValueError without items.
    """
    check_alpha(alpha)
    counts = []
    for one in tasks:
        right, still_right = one.baseline == 1, one.candidate == 1
        lost, gained = int(np.sum(right & ~still_right)), int(np.sum(still_right & ~right))
        counts.append(PairedCounts(lost, gained, len(right)))
    if len({one.n for one in counts}) == 1:
        b, c, n = (sum(getattr(one, name) for one in counts) for name in ("b", "c", "n"))
        estimate, limits = (b - c) / n, tango_limits(b, c, n, alpha, trace)
        if trace is not None:
            trace.made("regression", f"({b} - {c}) / {n}", estimate)
        p_value = mcnemar_p(b, c, trace) if tested == 0 else 1 - tango_noninferiority_p(b, c, n, tested, trace)
        method = "Tango's score limits and exact McNemar, items paired by id"
    else:
        estimate = sum((one.b - one.c) / one.n for one in counts) / len(counts)
        limits = stratified_limits(counts, alpha, trace=trace)
        p_value = stratified_exact_p(counts) if tested == 0 else stratified_score_p(counts, tested)
        if trace is not None:
            how = "P(sum of b / n >= observed), each b ~ Bin(b + c, 1/2)"
            trace.made("p-value over tasks", how if tested == 0 else _INVERTED.format(digits(tested)), p_value)
        method = "score limits and exact test over tasks with equal weight, items paired by id"
    n = sum(one.n for one in counts)
    found = ItemRegression(estimate, limits, p_value, n, method)
    if all(one.clusters is None for one in tasks):
        return found
    over = _over_clusters(tasks, alpha, tested, f"{method}; t over clusters", trace)
    return found.weakened(over.limits, over.p_value, over.method, trace)


def score_regression(
    task: ScorePairs, alpha: float, generator: np.random.Generator, *, tested: float = 0.0, trace: Trace | None = None
) -> ItemRegression:
    """Estimate the regression over items with a numeric score: t over items, or over clusters if there are any.

    The upper limit is raised for rare losses (`rare_loss_upper_limit`): down to 0, or to the lowest score of either
    side if that is below. Below 30 items, subset means and the sign-flip test are added (`generator` draws their
    patterns). Below ten differing items, the sign test is added, and as lower limit the Clopper-Pearson limit of the
    share that gains, times the range of the scores. The weakest claim holds. Raises ValueError for fewer than two items
    or clusters.
    """
    check_alpha(alpha)
    gaps, unit = task.baseline - task.candidate, "clusters" if task.clusters is not None else "items"
    found = _over_clusters([task], alpha, tested, f"t over {unit}, scores paired by item id", trace)
    if len(gaps) < _FEW_ITEMS:
        subsets, p_flip = subset_mean_limits(gaps, alpha, generator), sign_flip_p(gaps - tested, generator=generator)
        assert subsets is not None and p_flip is not None, "t over the same items found them finite"
        if trace is not None:
            trace.limits(subsets, "of means of subsets", "of means of subsets", of=" of sign flips")
            trace.made("p-value of sign flips", "share of sign patterns with a mean as large", p_flip)
        found = found.weakened(subsets, p_flip, f"{found.method}; sign flips", trace)
    if np.count_nonzero(gaps) < _FEW_DIFFER:
        span = float(np.ptp(np.concatenate([task.baseline, task.candidate, [0.0]])))
        gained = int(np.count_nonzero(gaps < 0))
        gain = span * clopper_pearson(gained, len(gaps), alpha).upper
        p_sign = sign_test_p(gaps)
        assert p_sign is not None, "t over the same items found them finite"
        if trace is not None:
            share = f"the upper Clopper-Pearson limit of {gained} of {len(gaps)}"
            trace.made("lower limit where few items differ", f"-{digits(span)} * {share}", -gain)
            trace.made("p-value of signs", "P(X >= items lost), X ~ Bin(items that differ, 1/2)", p_sign)
        found = found.weakened(Limits(-gain, found.limits.upper), p_sign, found.method, trace)
    return found


def _over_clusters(
    tasks: Sequence[ScorePairs], alpha: float, tested: float, method: str, trace: Trace | None
) -> ItemRegression:
    """Estimate by Student's t over clusters, else over items, with the upper limit raised for rare losses."""
    gaps, most = [one.baseline - one.candidate for one in tasks], []
    for one in tasks:
        # The largest possible loss is that down to 0, or to the lowest score.
        lowest = np.min(np.concatenate([one.baseline, one.candidate, [0.0]]))
        most.append(one.baseline - lowest)
    if trace is not None:
        for values in gaps:
            trace.observed("baseline's score minus the candidate's, of each item", values)
    found = _pool_losses(gaps, most, [one.clusters for one in tasks], alpha, tested, trace)
    if found is None:
        raise ValueError("a task needs at least two items, of two clusters, with finite scores")
    return ItemRegression(*found, sum(map(len, gaps)), method)


def _pool_losses(
    gaps: Sequence[FloatArray],
    most: Sequence[FloatArray],
    clusters: Sequence[Sequence[str] | None],
    alpha: float,
    tested: float,
    trace: Trace | None,
) -> tuple[float, Limits, float] | None:
    """Return the mean loss over tasks of equal weight, its limits raised for rare losses, and its p-value.

    The p-value is that of "the loss is at most `tested`". `most` has the largest possible loss of each item. Tasks that
    share clusters are taken as independent and as one sample, and the weaker claim holds. Return None when a task has
    fewer than two items or clusters.
    """
    joined = join_tasks([len(values) for values in gaps], clusters)
    estimates = [[cluster_mean(values, groups, trace) for values, groups in zip(gaps, clusters, strict=True)]]
    estimates += [[joined.mean(gaps, trace)]] if joined is not None and None not in estimates[0] else []
    known = [[mean for mean in of if mean is not None] for of in estimates]
    if not gaps or any(len(means) < len(of) for means, of in zip(known, estimates, strict=True)):
        return None
    losses = [[_losses_of_clusters(*one) for one in zip(gaps, most, clusters, strict=True)]]
    if joined is not None:
        whole = joined.values(gaps), joined.values(most, centred=False)
        losses.append([_losses_of_clusters(*whole, joined.clusters)])
    pools = [pool_means(means, trace) for means in known]
    raised = [_raised_limits(pool, of, alpha, trace) for pool, of in zip(pools, losses, strict=True)]
    limits, p_value = reduce(Limits.widened, raised), max(pool.p_above(tested, trace) for pool in pools)
    if joined is not None:
        _record_weaker(trace, limits, p_value)
    return pools[0].mean, limits, p_value


def _losses_of_clusters(gaps: FloatArray, most: FloatArray, clusters: Sequence[str] | None) -> ClusterLosses:
    """Sum the losses and the largest possible ones of a task's items over its clusters, if there are any."""
    mean = float(np.mean(gaps))
    lost, possible = cluster_sums(gaps - mean, clusters), cluster_sums(most, clusters)
    mean_size = len(gaps) / len(lost)
    return ClusterLosses(mean + lost / mean_size, possible / mean_size)


def _raised_limits(pool: PooledMean, losses: Sequence[ClusterLosses], alpha: float, trace: Trace | None) -> Limits:
    """Return Student's t limits, with the upper one raised for rare losses."""
    limits, rare = pool.limits(alpha, trace), rare_loss_upper_limit(losses, pool.freedom, alpha)
    if trace is not None:
        formula = "the larger of Clopper-Pearson's of no loss, and of Hall's (at most a gamma quantile)"
        trace.made("upper limit for rare losses", formula, rare)
    return Limits(limits.lower, max(limits.upper, rare))


@dataclass(frozen=True, slots=True)
class ScoreRetention:
    """Ratio of candidate score to baseline score and its limits; None if the baseline's own spread leaves them open."""

    ratio: float
    limits: Limits | None


def score_retention(
    tasks: Sequence[ScorePairs], alpha: float, *, regression: Limits | None = None
) -> ScoreRetention | None:
    """Divide the candidate's mean score by the baseline's, each task with equal weight, items paired.

    Limits by Fieller (Journal of the Royal Statistical Society B 16, 1954): all ratios R that a test of "mean(candidate
    - R·baseline) = 0" does not reject, with cluster-robust variances. With limits of the `regression`, the ratio's
    limits are never narrower than these over the baseline's mean: Fieller's have no width when no item differs.
    Return None without items or when the baseline's mean is not above 0.
    """
    check_alpha(alpha)
    if not tasks or any(len(one.baseline) == 0 for one in tasks):
        return None
    baseline_mean = sum(float(np.mean(one.baseline)) for one in tasks) / len(tasks)
    candidate_mean = sum(float(np.mean(one.candidate)) for one in tasks) / len(tasks)
    if not baseline_mean > 0:
        return None
    limits = _fieller(tasks, baseline_mean, candidate_mean, norm_ppf(1 - alpha))
    if limits is not None and regression is not None:
        limits = limits.widened(Limits(1 - regression.upper / baseline_mean, 1 - regression.lower / baseline_mean))
    return ScoreRetention(candidate_mean / baseline_mean, limits)


def _fieller(tasks: Sequence[ScorePairs], baseline_mean: float, candidate_mean: float, z: float) -> Limits | None:
    """Solve (candidate - R·baseline)² = z²·var(candidate - R·baseline); None where no or every far R is rejected."""
    samples = [(one.baseline, one.candidate, one.baseline + one.candidate) for one in tasks]
    joined = join_tasks([len(one.baseline) for one in tasks], [one.clusters for one in tasks])
    if joined is not None:
        means = [[joined.mean(of) for of in zip(*samples, strict=True)]]
    else:
        means = [[cluster_mean(of, one.clusters) for of in scores] for one, scores in zip(tasks, samples, strict=True)]
    parts = []
    for scores in means:
        if any(mean is None for mean in scores):
            return None
        baseline, candidate, both = (mean.error**2 for mean in scores if mean is not None)
        parts.append((baseline, candidate, (both - baseline - candidate) / 2))
    var_baseline, var_candidate, covariance = (sum(part[i] for part in parts) / len(parts) ** 2 for i in range(3))
    square = baseline_mean**2 - z**2 * var_baseline
    if square <= 0:
        return None
    middle = candidate_mean * baseline_mean - z**2 * covariance
    root = math.sqrt(max(middle**2 - square * (candidate_mean**2 - z**2 * var_candidate), 0.0))
    return Limits((middle - root) / square, (middle + root) / square)


@dataclass(frozen=True, slots=True)
class Excess:
    """Excess disagreement over n prompts (a share), its limits, and the p-value of "at most the margin"."""

    estimate: float
    limits: Limits
    p_value: float
    n: int


def excess_disagreement(
    x: FloatArray, y: FloatArray, alpha: float, *, margin: float = 0.0, trace: Trace | None = None
) -> Excess | None:
    """Estimate mean(x - y) over prompts, each answered twice by the baseline (P, S) and once by the candidate (C).

    x = ½(1[C≠P] + 1[C≠S]), y = 1[P≠S] per prompt. Then x - y has three values: +1 (P = S, C differs), -½ (P ≠ S, C
    agrees with one), 0. The limits are Tango's score limits with weight ½ (`score_statistic`). p_value of H0 "excess <=
    0" is exact: given m prompts that are not 0, the +1 are at most Bin(m, ⅓) under H0. For a margin above 0 it is 1 -
    Φ(T).

    t limits are too narrow where few prompts differ, and have no width when none does. At 100 prompts, a margin of 5
    points and 1% self-disagreement they accept a candidate at the margin 9.5% of the time where 5% is promised, the
    score limits 4.3% (40,000 simulations). One or two differing prompts never show a regression at alpha 5%.

    Return None without prompts. Raises ValueError when x and y differ in length, or when x - y has another value: then
    the answers were not those of one prompt.
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"x has {first.size} prompts and y {second.size}; expected the same prompts in both")
    gap, n = first - second, len(first)
    more, fewer = int(np.count_nonzero(gap == 1)), int(np.count_nonzero(gap == -_SELF_WEIGHT))
    if more + fewer + int(np.count_nonzero(gap == 0)) != n:
        raise ValueError("x - y must be 1, -½ or 0 for every prompt; expected x and y of the same three answers")
    if n == 0:
        return None
    estimate = (more - _SELF_WEIGHT * fewer) / n
    if trace is not None:
        trace.count("b: only the candidate differs (x - y = 1)", more)
        trace.count("c: the baseline differs from itself, the candidate agrees with one of both (x - y = -1/2)", fewer)
        trace.count("n: all", n)
        trace.made("excess", f"({more} - {fewer} / 2) / {n}", estimate)
    limits = score_limits(more, fewer, n, alpha, weight=_SELF_WEIGHT, trace=trace)
    if margin == 0:
        p_value = binom_sf(more - 1, more + fewer, _SELF_WEIGHT / (1 + _SELF_WEIGHT))
        how = f"P(X >= {more}), X ~ Bin({more + fewer}, 1/3)"
    else:
        statistic = score_statistic(more, fewer, n, margin, weight=_SELF_WEIGHT)
        p_value = norm_sf(statistic)
        how = f"P(Z > T), T = {digits(statistic)} by the formula of the limits at x = {digits(margin)}"
    if trace is not None:
        trace.made("p-value of the excess", how, p_value)
    return Excess(estimate, limits, p_value, n)


def excess_of_tasks(
    tasks: Sequence[tuple[FloatArray, FloatArray, Sequence[str] | None]],
    alpha: float,
    *,
    margin: float = 0.0,
    trace: Trace | None = None,
) -> Excess | None:
    """Average `excess_disagreement` over tasks (x, y, clusters) of equal weight.

    Tasks of one size are pooled as one sample. For different sizes, their limits are combined and an exact test covers
    all. With clusters, t over clusters is computed too, with its upper limit raised for rare losses
    (`rare_loss_upper_limit`), and the weaker claim holds. Return None without prompts, or when a clustered task has
    fewer than two clusters. Raises ValueError as `excess_disagreement`.
    """
    parts = [excess_disagreement(x, y, alpha, margin=margin) for x, y, _ in tasks]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if len({part.n for part in known}) == 1:
        x, y = (np.concatenate([task[i] for task in tasks]) for i in (0, 1))
        found = excess_disagreement(x, y, alpha, margin=margin, trace=trace)
    else:
        counts = []
        for x, y, _ in tasks:
            more, fewer = int(np.count_nonzero(x - y == 1)), int(np.count_nonzero(x - y == -_SELF_WEIGHT))
            counts.append(PairedCounts(more, fewer, len(x)))
        limits = stratified_limits(counts, alpha, weight=_SELF_WEIGHT, trace=trace)
        if margin == 0:
            p_value, how = stratified_exact_p(counts, weight=_SELF_WEIGHT), "exact, each b ~ Bin(b + c, 1/3)"
        else:
            p_value = stratified_score_p(counts, margin, weight=_SELF_WEIGHT)
            how = _INVERTED.format(digits(margin))
        if trace is not None:
            trace.made("p-value over tasks", how, p_value)
        estimate = stratified_difference(counts, weight=_SELF_WEIGHT)
        found = Excess(estimate, limits, p_value, sum(one.n for one in counts))
    if found is None or all(clusters is None for _, _, clusters in tasks):
        return found
    gaps, most = [x - y for x, y, _ in tasks], [np.ones(len(x)) for x, _, _ in tasks]
    pooled = _pool_losses(gaps, most, [clusters for _, _, clusters in tasks], alpha, margin, trace)
    if pooled is None:
        return None
    _, wider, p_value = pooled
    limits, p_value = found.limits.widened(wider), max(found.p_value, p_value)
    _record_weaker(trace, limits, p_value)
    return Excess(found.estimate, limits, p_value, found.n)


def excess_sampled(
    differs: BoolArray, itself: BoolArray, alpha: float, *, margin: float = 0.0, trace: Trace | None = None
) -> Excess | None:
    """Estimate mean(differs) - mean(itself) when the baseline answered only some of the prompts twice.

    `differs` is 1[C≠P] of every prompt, `itself` 1[P≠S] of those answered twice. Limits by Newcombe (1998, method 10):
    each share's distance to its Wilson limit, combined as a root sum of squares. The method adds variances as if the
    shares came from different prompts. They have prompts in common and agree there, so the limits are rather wide.
    p_value is the alpha at which the lower limit reaches the margin. Return None when either has no prompts.
    """
    n, m = len(differs), len(itself)
    if n == 0 or m == 0:
        return None
    more, own = int(np.count_nonzero(differs)), int(np.count_nonzero(itself))
    limits = newcombe_difference(more, n, own, m, alpha)
    estimate, p_value = more / n - own / m, 1.0
    if estimate > margin:
        p_value = bisect(
            lambda error: newcombe_difference(more, n, own, m, error).lower > margin, _LEAST_P, 0.5, geometric=True
        )
    if trace is not None:
        trace.count("prompts", n)
        trace.count("prompts on which the candidate differs", more)
        trace.count("prompts that the baseline answered twice", m)
        trace.count("prompts on which the baseline differs from itself", own)
        trace.made("excess", f"{more} / {n} - {own} / {m}", estimate)
        shares = f"Newcombe's limit of {more} of {n} minus {own} of {m}"
        trace.limits(limits, shares, shares)
        trace.made("p-value of the excess", _INVERTED.format(digits(margin)), p_value)
    return Excess(estimate, limits, p_value, n)


def excess_change(
    judged: FloatArray,
    reference: FloatArray,
    alpha: float,
    *,
    margin: float = 0.0,
    widest: float = MAX_EXCESS_CHANGE,
    trace: Trace | None = None,
) -> Excess | None:
    """Estimate mean(judged - reference): the excess that one run's candidate adds to another's, prompt by prompt.

    Both are the x - y of `excess_disagreement` for the same prompts in the same order. t limits and p-value. Below ten
    differing prompts, also the sign test and Clopper-Pearson limits on the share that differs, times `widest`, the
    largest difference of one prompt; the weaker claim holds. Return None below two prompts or when a value is not
    finite.
    """
    gap = np.asarray(judged, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    if trace is not None:
        trace.observed("x - y in the judged run minus x - y in the reference run, of each prompt", gap)
    test, sign = paired_t(gap, alpha, margin=margin, trace=trace), sign_test_p(gap)
    if test is None or sign is None:
        return None
    limits, p_value, n = test.limits, test.p_value, len(gap)
    above, below = int(np.count_nonzero(gap > 0)), int(np.count_nonzero(gap < 0))
    if above + below < _FEW_DIFFER:
        gain, loss = (widest * clopper_pearson(count, n, alpha).upper for count in (below, above))
        limits, p_value = limits.widened(Limits(-gain, loss)), max(p_value, sign)
        if trace is not None:
            most = f"{widest:g} * the upper Clopper-Pearson limit of {{}} of {n}"
            trace.limits(Limits(-gain, loss), "-" + most.format(below), most.format(above), of=" where few differ")
            trace.made("p-value of signs", f"P(X >= {above}), X ~ Bin({above + below}, 1/2)", sign)
        _record_weaker(trace, limits, p_value)
    return Excess(test.mean, limits, p_value, n)


def excess_change_of_tasks(
    tasks: Sequence[tuple[FloatArray, FloatArray, Sequence[str] | None]],
    alpha: float,
    *,
    margin: float = 0.0,
    trace: Trace | None = None,
) -> Excess | None:
    """Average `excess_change` over tasks (judged, reference, clusters) of equal weight.

    Each task's distance to its own limit, combined as a root sum of squares (Zou and Donner 2008), and t over the mean
    of all. With clusters, also t over clusters, with its upper limit raised for rare losses (`rare_loss_upper_limit`).
    The weakest claim holds. Return None without a task, or when a task has fewer than two prompts or clusters.
    """
    parts = [excess_change(judged, reference, alpha, margin=margin, trace=trace) for judged, reference, _ in tasks]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if len(tasks) == 1 and tasks[0][2] is None:
        return known[0]
    estimate = sum(part.estimate for part in known) / len(known)
    below = math.sqrt(sum((part.estimate - part.limits.lower) ** 2 for part in known)) / len(known)
    above = math.sqrt(sum((part.limits.upper - part.estimate) ** 2 for part in known)) / len(known)
    gaps = [judged - reference for judged, reference, _ in tasks]
    limits, p_value = Limits(estimate - below, estimate + above), 0.0
    if trace is not None:
        trace.made("mean over tasks", f"sum of theirs / {len(known)}", estimate)
        root = f"sqrt(sum of the squared distances of each task's limit) / {len(known)}"
        trace.limits(limits, f"{digits(estimate)} - {root}", f"{digits(estimate)} + {root}")
    if sum(int(np.count_nonzero(gap)) for gap in gaps) < _FEW_DIFFER:
        p_value = sign_test_p(np.concatenate(gaps)) or 1.0
    means = [cluster_mean(gap, None, trace) for gap in gaps]
    pool = pool_means([mean for mean in means if mean is not None], trace)
    limits, p_value = limits.widened(pool.limits(alpha, trace)), max(p_value, pool.p_above(margin, trace))
    if any(clusters is not None for _, _, clusters in tasks):
        most = [np.full(len(gap), MAX_EXCESS_CHANGE) for gap in gaps]
        pooled = _pool_losses(gaps, most, [clusters for _, _, clusters in tasks], alpha, margin, trace)
        if pooled is None:
            return None
        limits, p_value = limits.widened(pooled[1]), max(p_value, pooled[2])
    _record_weaker(trace, limits, p_value)
    return Excess(estimate, limits, p_value, sum(part.n for part in known))
