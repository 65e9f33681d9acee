"""Means of clustered items and shares of correlated trials: cluster-robust errors, effective sample sizes.

Items of one passage, template or person are not independent, and requests of one block share its bad moments.
Student's upper limit is too low where losses are rare and large: means have a skewness-adjusted one. Shares take
Clopper-Pearson limits on the number of independent trials with the same variance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import (
    Limits,
    beta_ppf,
    check_alpha,
    gamma_ppf,
    norm_ppf,
    smallest_count,
    t_ppf,
    t_sf,
)
from benchgate.stats.proportions import clopper_pearson, share_above_p, share_below_p
from benchgate.stats.trace import Trace, digits

MIN_CLUSTERS = 10  # least number of clusters for a trustworthy cluster-robust error (Cameron, Gelbach and Miller 2008)


_NOT_SKEWED = 1e-4


@dataclass(frozen=True, slots=True)
class ClusterMean:
    """Mean over items, its cluster-robust standard error, and the numbers of clusters and items."""

    mean: float
    error: float
    clusters: int
    n: int


@dataclass(frozen=True, slots=True)
class PooledMean:
    """Mean over tasks of equal weight, its standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: float

    def limits(self, alpha: float, trace: Trace | None = None) -> Limits:
        """Return Student's t limits; the mean itself where nothing varies."""
        check_alpha(alpha)
        quantile = t_ppf(1 - alpha, self.freedom)
        reach = quantile * self.error
        limits = Limits(self.mean - reach, self.mean + reach)
        if trace is not None:
            trace.made("t quantile", f"t({digits(1 - alpha)}, {digits(self.freedom)})", quantile)
            distance = f"{digits(quantile)} * {digits(self.error)}"
            trace.limits(limits, f"{digits(self.mean)} - {distance}", f"{digits(self.mean)} + {distance}")
        return limits

    def p_above(self, margin: float, trace: Trace | None = None) -> float:
        """Return the p-value of "the mean is at most the margin"; without spread 1 at or below it and 0 above."""
        if self.error == 0:
            return 0.0 if self.mean > margin else 1.0
        statistic = (self.mean - margin) / self.error
        p_value = t_sf(statistic, self.freedom)
        if trace is not None:
            how = f"({digits(self.mean)} - {digits(margin)}) / {digits(self.error)}"
            trace.made("t statistic", how, statistic)
            trace.made("p-value over t", f"P(T({digits(self.freedom)}) > {digits(statistic)})", p_value)
        return p_value


_Items = Sequence[tuple[str | None, str]]  # of each item of a task: its declared cluster, if any, and its document


def label_units(units: Sequence[Sequence[_Items]]) -> list[tuple[str, ...] | None]:
    """Return the cluster of each item of units, each of one or more tasks; None for a unit of independent items.

    Items of one declared cluster depend on each other, in whichever task they are. So do items of different tasks with
    one document, which may be asked in several prompts. A cluster has the same name in all units.
    """
    asked = Counter(document for tasks in units for items in tasks for document in {document for _, document in items})
    labels: list[tuple[str, ...] | None] = []
    for unit, tasks in enumerate(units):
        found: list[str | None] = []
        for declared, document in chain.from_iterable(tasks):
            if declared is not None:
                found.append(f"c/{declared}")
            else:
                found.append(f"d/{document}" if document and asked[document] > 1 else None)
        known = any(label is not None for label in found)
        labels.append(tuple(label or f"i/{unit}/{item}" for item, label in enumerate(found)) if known else None)
    return labels


@dataclass(frozen=True, slots=True)
class JoinedTasks:
    """Items of tasks that share clusters, as one sample whose mean is the mean over tasks of equal weight.

    An item's distance to its task's mean is weighted by n / (K n_k), for n_k of n items in one of K tasks: the
    cluster-robust error of the sample has the covariance of the tasks. Where a small task asks a part of what a large
    one does, few clusters have most of the weight: `worth` is the number of clusters of equal weight with as many
    degrees of freedom, (Σ w²)² / Σ w⁴ over the weights w of the clusters, and at least 2.
    """

    sizes: tuple[int, ...]
    clusters: tuple[str, ...]
    worth: int

    def values(self, tasks: Sequence[FloatArray], *, centred: bool = True) -> FloatArray:
        """Return the values of the sample. With `centred` false they are weighted themselves, not their distances."""
        means = [float(np.mean(one)) if centred else 0.0 for one in tasks]
        whole, n = sum(means) / len(tasks), sum(self.sizes)
        weighted = [whole + (one - mean) * n / (len(tasks) * len(one)) for one, mean in zip(tasks, means, strict=True)]
        return np.concatenate(weighted)

    def mean(self, tasks: Sequence[FloatArray], trace: Trace | None = None) -> ClusterMean | None:
        """Return the mean over tasks as `cluster_mean` does, by `worth` clusters."""
        found = cluster_mean(self.values(tasks), self.clusters, trace)
        if found is None:
            return None
        few_clusters = self.worth / (self.worth - 1) * (found.clusters - 1) / found.clusters
        joined = replace(found, error=found.error * math.sqrt(few_clusters), clusters=self.worth)
        if trace is not None:
            how = f"with {self.worth} clusters of equal weight for the {found.clusters}"
            trace.made("standard error of the mean over tasks that share clusters", how, joined.error)
        return joined


def join_tasks(sizes: Sequence[int], clusters: Sequence[Sequence[str] | None]) -> JoinedTasks | None:
    """Join tasks of so many items if a cluster has items in several of them; None if they are independent samples.

    `clusters` are the labels of each task's items, None for a task of independent items.
    """
    tasks_of = Counter(label for groups in clusters for label in set(groups or ()))
    if all(count == 1 for count in tasks_of.values()):
        return None
    own = ((f"{task}/{item}" for item in range(size)) for task, size in enumerate(sizes))
    labels = tuple(chain.from_iterable(theirs or alone for theirs, alone in zip(clusters, own, strict=True)))
    weights = cluster_sums(np.concatenate([np.full(size, 1 / max(size, 1)) for size in sizes]), labels)
    worth = math.floor(float(np.sum(weights**2)) ** 2 / float(np.sum(weights**4)) + 1e-9)
    return JoinedTasks(tuple(sizes), labels, max(2, worth))


def cluster_sums(values: FloatArray, clusters: Sequence[str] | None = None) -> FloatArray:
    """Return each cluster's sum, by name; without `clusters` the items. Raises ValueError for unequal lengths."""
    if clusters is None:
        return values
    if len(clusters) != len(values):
        raise ValueError(f"{len(clusters)} clusters for {len(values)} items; expected one for each")
    numbers = np.unique(np.asarray(clusters), return_inverse=True)[1]
    return np.bincount(numbers, weights=values).astype(np.float64)


def cluster_mean(
    values: FloatArray, clusters: Sequence[str] | None = None, trace: Trace | None = None
) -> ClusterMean | None:
    """Return the mean of the items with its cluster-robust standard error; without `clusters` every item is its own.

    SE² = G/(G-1) · n⁻² · Σ_g (Σ_{i in g} (d_i - d̄))², G clusters, n items (Liang and Zeger 1986; Miller, arXiv
    2411.00640, 2.2). Independent items give the ordinary s²/n. Return None below two items or clusters, or when a value
    is not finite. The caller checks for enough clusters (`MIN_CLUSTERS`). Raises ValueError unless there is one
    cluster name per item.
    """
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        return None
    mean = float(np.mean(values))
    sums = cluster_sums(values - mean, clusters)
    groups = len(sums)
    if groups < 2:
        return None
    error = math.sqrt(groups / (groups - 1) * float(np.sum(sums**2))) / n
    if trace is not None:
        trace.made("their mean", f"sum of them / {n}", mean)
        squares = "(each - mean)^2" if clusters is None else "squares of each cluster's sum of (each - mean)"
        trace.made("standard error of the mean", f"sqrt({groups} / {groups - 1} * sum of {squares}) / {n}", error)
    return ClusterMean(mean, error, groups, n)


def pool_means(means: Sequence[ClusterMean], trace: Trace | None = None) -> PooledMean:
    """Average the means of independent tasks with equal weight; degrees of freedom by Satterthwaite (1946)."""
    if not means:
        raise ValueError("there is no mean to pool")
    weight = 1 / len(means)
    variances = [(weight * one.error) ** 2 for one in means]
    total = sum(variances)
    least = min(one.clusters - 1 for one in means)
    spread = sum(v**2 / (one.clusters - 1) for v, one in zip(variances, means, strict=True))
    freedom = total**2 / spread if spread > 0 else float(least)
    pooled = PooledMean(sum(weight * one.mean for one in means), math.sqrt(total), freedom)
    if trace is not None and len(means) > 1:
        trace.made("mean over tasks", f"sum of their means / {len(means)}", pooled.mean)
        trace.made("its standard error", f"sqrt(sum of their squared errors) / {len(means)}", pooled.error)
        trace.made("degrees of freedom (Satterthwaite)", "V^2 / sum of v^2 / (clusters - 1), V = sum of v", freedom)
    return pooled


@dataclass(frozen=True, slots=True)
class ClusterLosses:
    """Independent units of a task, items or clusters, scaled so that their mean is the mean over items."""

    loss: FloatArray
    most: FloatArray  # the largest loss possible: all that the baseline had there


def skewness_adjusted_upper_limit(values: FloatArray, clusters: Sequence[str], alpha: float) -> float | None:
    """Return a one-sided upper limit of a mean over clusters, adjusted for skewness (Hall 1992).

    For log-normal values with log deviation 1.5 in 65 clusters of three, the truth lies above it 9% of the time, above
    Student's limit 16%, where 5% is promised (1,000 simulations). It equals Student's limit where nothing is skewed or
    nothing varies. Return None below three clusters or when a value is not finite.
    """
    check_alpha(alpha)
    count = len(cluster_sums(values, clusters))
    if count < 3 or not np.isfinite(values).all():
        return None
    moments = _moments_over_clusters(values, clusters)
    return moments.mean + _hall_reach(moments, t_ppf(1 - alpha, count - 1))


def rare_loss_upper_limit(tasks: Sequence[ClusterLosses], freedom: float, alpha: float) -> float:
    """Return an upper limit of the mean loss over tasks of equal weight, when a few units may lose everything.

    It is the larger of two limits:

    - the Clopper-Pearson limit of the share of lost units when none was lost, times the mean possible loss of a unit,
      in the task where that is most;
    - Hall's limit plus half a lost unit (a continuity correction: losses come in whole units), but at most the gamma
      limit for sums of few large losses. Its mean, variance and third moment are those of the data and of one more loss
      (Fay and Feuer 1997, with the mean unit for that one: Tiwari, Clegg and Zou 2006). Hall's limit alone jumps up and
      down where three or four units make up the whole loss.

    For a candidate exactly at the margin, whose clusters lose some or all of what they have among others that only
    vary, it promotes at most about 5% of the time, 6.5% for clusters of very unequal sizes; Student's limit up to 36%
    (tests/core/test_stats_lost_units.py).
    """
    check_alpha(alpha)
    weight, moments = 1 / len(tasks), _pool_moments([_moments(one.loss) for one in tasks])
    unseen = weight * max(float(np.mean(one.most)) * clopper_pearson(0, len(one.most), alpha).upper for one in tasks)
    losses = [one.most / len(one.most) / len(tasks) for one in tasks]
    one_more = _Moments(*(max(float(np.mean(loss**power)) for loss in losses) for power in (1, 2, 3)))
    hall = moments.mean + one_more.mean / 2 + _hall_reach(moments, t_ppf(1 - alpha, freedom))
    return max(unseen, min(hall, _gamma_limit(moments, one_more, alpha)))


@dataclass(frozen=True, slots=True)
class _Moments:
    """Mean, variance and third central moment of an estimate."""

    mean: float
    second: float
    third: float


def _mirrored(moments: _Moments) -> _Moments:
    return _Moments(-moments.mean, moments.second, -moments.third)


def _moments(values: FloatArray) -> _Moments:
    """Return the moments of the mean of these values; below three values the third is unknown and taken as 0."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return _Moments(mean, 0.0, 0.0)
    centred = values - mean
    second = float(np.sum(centred**2)) / (count * (count - 1))
    third = float(np.sum(centred**3)) / (count * (count - 1) * (count - 2)) if count > 2 else 0.0
    return _Moments(mean, second, third)


def _moments_over_clusters(values: FloatArray, clusters: Sequence[str] | None) -> _Moments:
    """Return the moments of the mean over items, from its residuals in each cluster."""
    mean = float(np.mean(values))
    residuals = cluster_sums(values - mean, clusters)
    return replace(_moments(residuals * len(residuals) / len(values)), mean=mean)


def _pool_moments(tasks: Sequence[_Moments]) -> _Moments:
    """Return the moments of the mean over independent tasks of equal weight."""
    weight = 1 / len(tasks)
    return _Moments(
        weight * sum(one.mean for one in tasks),
        weight**2 * sum(one.second for one in tasks),
        weight**3 * sum(one.third for one in tasks),
    )


def _hall_reach(moments: _Moments, quantile: float) -> float:
    """Return the distance of the upper limit above the mean: s·3/g (1 - (1 - g (t + g/6))^(1/3)).

    s is the standard error of the mean, g its skewness (P. Hall, "On the removal of skewness by transformation", JRSS B
    54, 1992, 221-228). Without skewness it is Student's distance.
    """
    error = math.sqrt(moments.second)
    skewness = moments.third / error**3 if error**3 > 0 else 0.0
    if abs(skewness) < _NOT_SKEWED:
        return error * quantile
    return error * 3 / skewness * (1 - float(np.cbrt(1 - skewness * (quantile + skewness / 6))))


def _hall_statistic(moments: _Moments, distance: float) -> float:
    """Return the quantile at which Hall's limit lies this far above the mean, the inverse of `_hall_reach`."""
    error = math.sqrt(moments.second)
    if error == 0:
        return math.copysign(math.inf, distance)
    skewness, scaled = moments.third / error**3, distance / error
    if abs(skewness) < _NOT_SKEWED:
        return scaled
    return float((1 - (1 - skewness * scaled / 3) ** 3) / skewness - skewness / 6)


def _gamma_limit(moments: _Moments, one_more: _Moments, alpha: float) -> float:
    """Return the quantile of the shifted gamma law with the moments of the data and of one more lost unit.

    The third moment counts twice, as for Poisson counts: there this is their exact limit, a quantile of Gamma(count +
    1).
    """
    error = math.sqrt(moments.second + one_more.second)
    skewness = 2 * (moments.third + one_more.third) / error**3 if error**3 > 0 else 0.0
    if abs(skewness) < _NOT_SKEWED:
        quantile = norm_ppf(1 - alpha)
    else:  # of the law scaled to mean 0 and variance 1 (Pearson type III), reflected for a negative skewness
        shape = 4 / skewness**2
        reach = (gamma_ppf(alpha if skewness < 0 else 1 - alpha, shape) - shape) / math.sqrt(shape)
        quantile = -reach if skewness < 0 else reach
    return moments.mean + one_more.mean + error * quantile


_AT_TARGET = 1e-9
_MOST_NEEDED = 2**29
_EFFECTIVE = "effective number of requests (n*, Korn and Graubard)"


def effective_sample_size(
    good: Sequence[int], scheduled: Sequence[int], alpha: float, trace: Trace | None = None
) -> float | None:
    """Return the number of independent requests whose miss share has the same variance (Korn and Graubard).

    n* = n / max(1, deff) · (t(1-alpha, n-1) / t(1-alpha, G-1))², G blocks, and the design effect deff = G/(G-1) ·
    Σ(missed_g - p·scheduled_g)² / (n·p·(1-p)), which grows as misses come in bursts (Survey Methodology 24, 1998). It
    is n when no request missed or all did.

    Return None with fewer than two blocks, or when a block scheduled nothing: its share is undefined. Raises ValueError
    when the sequences differ in length or a count is impossible.
    """
    check_alpha(alpha)
    if len(good) != len(scheduled):
        raise ValueError(f"{len(good)} counts of good requests for {len(scheduled)} blocks; expected one per block")
    if any(not 0 <= kept <= total for kept, total in zip(good, scheduled, strict=True)):
        raise ValueError(f"good requests {list(good)} of {list(scheduled)}; expected 0 <= good <= scheduled in each")
    if len(good) < 2 or min(scheduled) == 0:
        return None
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    if missed in (0, requests):
        if trace is not None:
            trace.made(_EFFECTIVE, f"all of them: {'each' if missed else 'none'} missed", requests)
        return float(requests)
    misses, counts = np.subtract(scheduled, good), np.asarray(scheduled)
    blocks, share = len(counts), misses.sum() / requests
    spread = float(((misses - share * counts) ** 2).sum()) * blocks / (blocks - 1)
    design_effect = max(1.0, spread / (requests * share * (1 - share)))
    few_blocks = _freedom_factor(alpha, requests - 1, blocks - 1)
    effective = min(float(requests), float(requests / design_effect * few_blocks))
    if trace is not None:
        quantiles = f"(t({digits(1 - alpha)}, {requests - 1}) / t({digits(1 - alpha)}, {blocks - 1}))^2"
        squares = f"{blocks} / {blocks - 1} * sum over blocks of (misses - share * requests)^2"
        design = f"the design effect {squares} / ({requests} * share * (1 - share))"
        formula = f"{requests} / max(1, {design}) * {quantiles}, at most {requests}"
        trace.made(_EFFECTIVE, formula, effective)
    return effective


def _freedom_factor(alpha: float, freedom_of_items: float, freedom: float) -> float:
    """Return Korn and Graubard's factor of an effective sample size for the degrees of freedom of its variance."""
    return (t_ppf(1 - alpha, freedom_of_items) / t_ppf(1 - alpha, freedom)) ** 2


def miss_share_limits(
    good: Sequence[int], scheduled: Sequence[int], alpha: float, trace: Trace | None = None
) -> Limits | None:
    """Return limits of the miss share 1 - Σgood/Σscheduled, Clopper-Pearson on `effective_sample_size` requests.

    They are never narrower than Clopper-Pearson limits on all requests, and equal to them when none or all missed:
    0 of 299 shows less than 1%. Student's t limits over the blocks' shares are far too narrow for rare misses
    (docs/reference/metrics.md, goodput). Return None and raise ValueError as `effective_sample_size` does.
    """
    effective = effective_sample_size(good, scheduled, alpha, trace)
    if effective is None:
        return None
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    limits = clopper_pearson(missed, requests, alpha)
    if missed not in (0, requests):
        limits = clopper_pearson(effective * missed / requests, effective, alpha).widened(limits)
    if trace is not None:
        law = f"Beta({{}}) with n* requests, of which n* * {missed} / {requests} missed, its {{}} quantile"
        lower = law.format("missed, kept + 1", digits(alpha))
        trace.limits(limits, lower, law.format("missed + 1, kept", digits(1 - alpha)), " of the miss share")
    return limits


def miss_share_p(good: Sequence[int], scheduled: Sequence[int], allowed: float, alpha: float) -> float | None:
    """Return the p-value of "the true miss share is at most `allowed`", the test that `miss_share_limits` inverts.

    It is below alpha exactly when the lower limit is above `allowed`; `alpha` enters the effective sample size. Return
    None and raise ValueError as `effective_sample_size` does.
    """
    effective = effective_sample_size(good, scheduled, alpha)
    if effective is None:
        return None
    missed, requests = sum(scheduled) - sum(good), sum(scheduled)
    if missed == 0 or allowed >= 1:
        return 1.0
    exact = share_above_p(missed, requests, allowed)
    if missed == requests:
        return exact
    return max(exact, share_above_p(effective * missed / requests, effective, allowed))


def sample_size_to_decide(good: Sequence[int], scheduled: Sequence[int], target: float, alpha: float) -> int | None:
    """Estimate the number of requests that would show on which side of `target` the share of good ones lies.

    It is the least number at which a Clopper-Pearson limit reaches the target, if the share and the design effect stay
    as they are. Return None where nothing was scheduled, where the share equals the target, and from 2**29 requests on.
    Raises ValueError for a target that is no share.
    """
    check_alpha(alpha)
    if not 0 <= target <= 1:
        raise ValueError(f"target is {target!r}; expected a share from 0 to 1")
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    allowed = 1 - target
    if requests == 0 or abs(missed / requests - allowed) < _AT_TARGET:
        return None
    effective = effective_sample_size(good, scheduled, alpha)
    worth = 1.0 if effective is None else effective / requests

    def shown(n: int) -> bool:
        trials = n * worth
        hits = trials * missed / requests
        if missed / requests < allowed:
            return beta_ppf(1 - alpha, hits + 1, trials - hits) <= allowed
        return beta_ppf(alpha, hits, trials - hits + 1) > allowed

    return smallest_count(shown, most=_MOST_NEEDED)


@dataclass(frozen=True, slots=True)
class _MeanShare:
    """Mean share over tasks, with what its limits need. `moments` are None without clusters."""

    share: float
    effective: float
    tasks: tuple[ClusterMean, ...]
    moments: _Moments | None
    freedom: float


def _mean_shares(
    tasks: Sequence[FloatArray], clusters: Sequence[Sequence[str] | None], alpha: float
) -> list[_MeanShare] | None:
    """Return the mean share over tasks taken as independent, and as one sample if they share clusters."""
    check_alpha(alpha)
    means = [cluster_mean(values, groups) for values, groups in zip(tasks, clusters, strict=True)]
    known = tuple(mean for mean in means if mean is not None)
    if not known or len(known) < len(means):
        return None
    moments = None
    if any(groups is not None for groups in clusters):
        moments = _pool_moments([_moments_over_clusters(*one) for one in zip(tasks, clusters, strict=True)])
    most = len(known) ** 2 / sum(1 / mean.n for mean in known)
    found = [_mean_share(known, most, moments, alpha)]
    joined = join_tasks([len(values) for values in tasks], clusters)
    if joined is not None:
        mean = joined.mean(tasks)
        if mean is None:
            return None
        found.append(_mean_share((mean,), most, _moments_over_clusters(joined.values(tasks), joined.clusters), alpha))
    return found


def _mean_share(means: tuple[ClusterMean, ...], most: float, moments: _Moments | None, alpha: float) -> _MeanShare:
    pool, effective = pool_means(means), most
    share = sum(mean.mean for mean in means) / len(means)
    variance = sum(mean.error**2 for mean in means) / len(means) ** 2
    if variance > 0 and 0 < share < 1:
        factor = _freedom_factor(alpha, sum(one.n - 1 for one in means), pool.freedom) if moments is not None else 1.0
        effective = min(most, share * (1 - share) / variance * factor)
    return _MeanShare(share, effective, means, moments, pool.freedom)


def mean_share_limits(
    tasks: Sequence[FloatArray], clusters: Sequence[Sequence[str] | None], alpha: float
) -> tuple[Limits, float] | None:
    """Return limits of the mean over tasks of the share of items that are 1, with the effective number of items.

    Clopper-Pearson on n* items (Korn and Graubard, Survey Methodology 24, 1998): n* = p(1-p)/variance of the mean with
    cluster-robust variances, but at most the number of equally weighted items with the same variance, K² / Σ 1/n_k.
    With clusters, n* has the factor for few clusters that `effective_sample_size` has too. The limits are widened by
    Hall's over the clusters, and for clusters that were not sampled: if a share of 1 - alpha^(1/G) of them were all
    wrong (or all right), a sample of G could still miss it. It counts in the task where it changes most. Tasks that
    share clusters are taken as one sample too (`JoinedTasks`), and the wider limits hold.

    At a true share equal to a floor of 95%, 10 clusters of 20 items with an intra-class correlation of 0.5 pass 33% of
    the time by Clopper-Pearson alone, and never by these limits; with other clusters at most 6%
    (tests/core/test_stats_mean_share.py). Return None when a task has fewer than two items or clusters.
    """
    parts = _mean_shares(tasks, clusters, alpha)
    if parts is None:
        return None
    limits = [_limits_of_share(found, alpha) for found in parts]
    return reduce(Limits.widened, limits), min(found.effective for found in parts)


def _limits_of_share(found: _MeanShare, alpha: float) -> Limits:
    share, effective = found.share, found.effective
    limits = clopper_pearson(share * effective, effective, alpha)
    if found.moments is None:
        return limits
    quantile, weight = t_ppf(1 - alpha, found.freedom), 1 / len(found.tasks)
    unseen = [(one.mean, clopper_pearson(0, one.clusters, alpha).upper) for one in found.tasks]
    below = max(_hall_reach(_mirrored(found.moments), quantile), *(weight * (p + u - 1) for p, u in unseen))
    above = max(_hall_reach(found.moments, quantile), *(weight * (u - p) for p, u in unseen))
    return limits.widened(Limits(max(0.0, share - below), min(1.0, share + above)))


def mean_share_p(
    tasks: Sequence[FloatArray], clusters: Sequence[Sequence[str] | None], floor: float, alpha: float
) -> float | None:
    """Return the p-value of "the true mean share is at least `floor`", the test that `mean_share_limits` inverts.

    `alpha` enters the effective number of items. Return None as `mean_share_limits` does.
    """
    parts = _mean_shares(tasks, clusters, alpha)
    return None if parts is None else max(_share_p(found, floor) for found in parts)


def _share_p(found: _MeanShare, floor: float) -> float:
    p_value, missing = share_at_least_p(found.share, found.effective, floor), floor - found.share
    if found.moments is None or missing <= 0:
        return p_value
    p_value = max(p_value, t_sf(_hall_statistic(found.moments, missing), found.freedom))
    for one in found.tasks:
        right = one.mean + len(found.tasks) * missing  # share of this task's clusters that would make up for it
        p_value = max(p_value, (1 - right) ** one.clusters if right < 1 else 0.0)
    return p_value


def share_at_least_p(share: float, effective: float, floor: float) -> float:
    """Return the p-value of "the true share is at least `floor`", on an effective number of items."""
    return share_below_p(share * effective, effective, floor) if share < 1 else 1.0
