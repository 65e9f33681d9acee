"""Harm over paired items: size by simulation, published tables, and the cases where a shorter way would be wrong."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean, mean_share_limits, pool_means, share_at_least_p
from benchgate.stats.distributions import t_ppf
from benchgate.stats.evals import ScorePairs, accuracy_regression, score_regression, score_retention
from benchgate.stats.means import subset_mean_limits
from benchgate.stats.proportions import (
    PairedCounts,
    mcnemar_p,
    stratified_exact_p,
    stratified_limits,
    stratified_score_p,
    tango_limits,
    tango_noninferiority_p,
)


def pairs(b: int, c: int, n: int, right: int | None = None, clusters: tuple[str, ...] | None = None) -> ScorePairs:
    """Items of which b are lost and c gained, and of the others as many right as said (all unless said)."""
    both = n - b - c if right is None else right
    baseline = [1.0] * b + [0.0] * c + [1.0] * both + [0.0] * (n - b - c - both)
    candidate = [0.0] * b + [1.0] * c + [1.0] * both + [0.0] * (n - b - c - both)
    return ScorePairs(np.array(baseline), np.array(candidate), clusters)


def clustered_differences(
    generator: np.random.Generator, clusters: int, size: int, harm: float, flips: float, icc: float
) -> FloatArray:
    """Differences d in {1, 0, -1} with mean `harm`, E[d²] = `flips`, and this correlation inside a cluster.

    With probability √icc an item copies its cluster's own draw, else it has one of its own.
    """
    shares = [(flips + harm) / 2, (flips - harm) / 2, 1 - flips]
    values = np.array([1.0, -1.0, 0.0])
    own = generator.choice(values, p=shares, size=(clusters, size))
    common = generator.choice(values, p=shares, size=(clusters, 1))
    return np.where(generator.random((clusters, size)) < math.sqrt(icc), common, own)


def as_pairs(differences: FloatArray, right: float = 0.7) -> ScorePairs:
    """Scores with these differences, a cluster for each row; of the items that do not differ as many right as said."""
    rows, size = differences.shape
    flat = differences.reshape(-1)
    clusters = tuple(f"c{row}" for row in range(rows) for _ in range(size))
    both = (flat == 0) & (np.arange(len(flat)) % 100 < 100 * right)
    return ScorePairs(((flat == 1) | both).astype(float), ((flat == -1) | both).astype(float), clusters)


@functools.cache
def upper_limit(counts: tuple[PairedCounts, ...]) -> float:
    """Cached: the same tables come up over and over."""
    return stratified_limits(counts, 0.05).upper


def test_one_task_is_tango_and_exact_mcnemar() -> None:
    found = accuracy_regression([pairs(9, 3, 200)], 0.05)
    limits = tango_limits(9, 3, 200, 0.05)
    assert (found.estimate, found.limits) == (0.03, limits)
    assert found.p_value == pytest.approx(scipy_stats.binomtest(9, 12, 0.5, alternative="greater").pvalue)


def test_tasks_of_one_size_are_one_sample() -> None:
    found = accuracy_regression([pairs(6, 1, 100), pairs(3, 2, 100)], 0.05)
    assert (found.estimate, found.limits) == (0.03, tango_limits(9, 3, 200, 0.05))


def test_mcnemar_agrees_with_scipy_over_all_small_tables() -> None:
    for b in range(0, 30, 3):
        for c in range(0, 30, 4):
            if b + c:
                theirs = scipy_stats.binomtest(b, b + c, 0.5, alternative="greater").pvalue
                assert mcnemar_p(b, c) == pytest.approx(theirs)


@pytest.mark.parametrize(("n", "discordance", "margin"), [(500, 0.05, 0.02), (164, 0.06, 0.05), (1319, 0.10, 0.02)])
def test_tango_promotes_what_is_at_the_margin_at_most_as_often_as_promised(
    n: int, discordance: float, margin: float
) -> None:
    shares = [(discordance + margin) / 2, (discordance - margin) / 2, 1 - discordance]
    drawn = np.random.default_rng(12).multinomial(n, shares, size=10_000)
    seen = Counter((int(b), int(c)) for b, c in drawn[:, :2])
    promoted = sum(times for (b, c), times in seen.items() if tango_noninferiority_p(b, c, n, margin) <= 0.05)
    assert 0.035 <= promoted / 10_000 <= 0.05


def test_strata_of_one_task_are_its_own_limits_and_tests() -> None:
    one = [PairedCounts(9, 3, 200)]
    limits, tango = stratified_limits(one, 0.05), tango_limits(9, 3, 200, 0.05)
    assert (limits.lower, limits.upper) == pytest.approx((tango.lower, tango.upper))
    assert stratified_exact_p(one) == pytest.approx(mcnemar_p(9, 3))
    assert stratified_score_p(one, 0.01) == pytest.approx(1 - tango_noninferiority_p(9, 3, 200, 0.01), abs=1e-6)
    with pytest.raises(ValueError, match="impossible"):
        PairedCounts(3, 3, 5)


def test_a_small_task_counts_as_much_as_a_large_one() -> None:
    # 10 of 100 lost in one, 0 of 10,000 in the other: 5 points on the mean over tasks, 0.1 in all items together.
    found = accuracy_regression([pairs(10, 0, 100), pairs(0, 0, 10_000)], 0.05)
    assert found.estimate == pytest.approx(0.05)
    assert found.limits.lower < 0.05 < found.limits.upper
    assert found.p_value < 0.01
    assert accuracy_regression([pairs(10, 0, 100), pairs(0, 0, 10_000)], 0.05, tested=0.05).p_value > 0.3


def test_gains_of_a_large_task_do_not_hide_the_losses_of_a_small_one() -> None:
    found = accuracy_regression([pairs(12, 0, 60), pairs(2, 20, 2000)], 0.05)
    assert found.estimate == pytest.approx((0.2 - 0.009) / 2)
    assert found.p_value < 0.01


@pytest.mark.parametrize(
    "tasks",
    [
        ((150, 0.08, 0.02), (1000, 0.05, 0.02)),  # size, discordance, harm of each: 2 points on the mean
        ((164, 0.10, 0.06), (1319, 0.04, 0.0), (500, 0.04, 0.0)),  # one task carries all of it
    ],
)
def test_a_stratified_pool_keeps_its_size_at_the_margin(tasks: tuple[tuple[int, float, float], ...]) -> None:
    generator, runs, margin = np.random.default_rng(13), 3_000, 0.02
    drawn = [
        generator.multinomial(n, [(f + harm) / 2, (f - harm) / 2, 1 - f], size=runs)[:, :2] for n, f, harm in tasks
    ]
    tables = [[PairedCounts(int(b), int(c), n) for b, c in d] for d, (n, _, _) in zip(drawn, tasks, strict=True)]
    promoted = sum(upper_limit(counts) < margin for counts in zip(*tables, strict=True))
    assert 0.02 <= promoted / runs <= 0.055  # a simulation's own noise is 0.4 points


def test_an_exact_test_over_tasks_is_the_sum_over_all_ways_the_items_may_fall() -> None:
    # 3 of 4 differing items lost of 10, 2 of 2 of 40: mean difference (2/10 + 2/40)/2 = 0.125
    tasks = [PairedCounts(3, 1, 10), PairedCounts(2, 0, 40)]
    as_large = sum(
        math.comb(4, i) * math.comb(2, j)
        for i in range(5)
        for j in range(3)
        if (2 * i - 4) / 10 + (2 * j - 2) / 40 > 0.2499
    )
    assert stratified_exact_p(tasks) == pytest.approx(as_large / 64)


def test_stratified_harm_is_found_in_equal_models_at_most_as_often_as_promised() -> None:
    generator, runs, sizes = np.random.default_rng(14), 1_000, (50, 164, 1000)
    drawn = [generator.multinomial(n, [0.04, 0.04, 0.92], size=runs)[:, :2] for n in sizes]
    found = sum(
        stratified_exact_p([PairedCounts(int(d[run, 0]), int(d[run, 1]), n) for d, n in zip(drawn, sizes, strict=True)])
        <= 0.05
        for run in range(runs)
    )
    assert 0.02 <= found / runs <= 0.065  # an exact test; a simulation's own noise is 0.7 points
    assert stratified_exact_p([PairedCounts(0, 0, 10), PairedCounts(0, 0, 20)]) == 1.0


def test_clusters_keep_the_size_that_items_taken_for_independent_do_not() -> None:
    generator, runs, margin = np.random.default_rng(15), 1_000, 0.04
    naive = robust = 0
    for _ in range(runs):
        one = as_pairs(clustered_differences(generator, 60, 10, harm=margin, flips=0.2, icc=0.3))
        robust += accuracy_regression([one], 0.05).limits.upper < margin
        naive += accuracy_regression([ScorePairs(one.baseline, one.candidate)], 0.05).limits.upper < margin
    assert robust / runs <= 0.06  # a simulation's own noise is 0.7 points
    assert naive / runs >= 0.12


def test_clusters_find_harm_in_equal_models_at_most_as_often_as_promised() -> None:
    generator, runs = np.random.default_rng(16), 1_000
    naive = robust = 0
    for _ in range(runs):
        one = as_pairs(clustered_differences(generator, 40, 8, harm=0.0, flips=0.2, icc=0.3))
        robust += accuracy_regression([one], 0.05).p_value <= 0.05
        naive += accuracy_regression([ScorePairs(one.baseline, one.candidate)], 0.05).p_value <= 0.05
    assert robust / runs <= 0.06  # as above
    assert naive / runs >= 0.12


@pytest.mark.parametrize(("clusters", "size", "margin"), [(20, 50, 0.15), (50, 20, 0.06), (100, 10, 0.05)])
def test_clusters_that_lose_in_part_are_promoted_at_the_margin_at_most_as_often_as_promised(
    clusters: int, size: int, margin: float
) -> None:
    # Each cluster has a chance of its own to lose an item, from a beta law with correlation 0.3 inside of clusters.
    generator, runs, promoted = np.random.default_rng(19), 400, 0
    shares = generator.beta(margin * 7 / 3, (1 - margin) * 7 / 3, (runs, clusters, 1))
    for share in shares:
        lost = generator.random((clusters, size)) < share
        promoted += accuracy_regression([as_pairs(lost.astype(float), right=1.0)], 0.05).limits.upper < margin
    assert promoted / runs <= 0.06  # a simulation's own noise is a point; Student's limit: 10 to 12 %


def test_equal_arms_over_clusters_still_pass() -> None:
    generator, runs, promoted = np.random.default_rng(21), 300, 0
    for _ in range(runs):
        one = as_pairs(clustered_differences(generator, 100, 10, harm=0.0, flips=0.05, icc=0.3), right=0.7)
        promoted += accuracy_regression([one], 0.05).limits.upper < 0.05
    assert promoted / runs >= 0.86  # Student's limit: 97 %


def test_a_cluster_of_its_own_for_each_item_is_no_cluster() -> None:
    values = np.array([0.3, -0.1, 0.7, 0.2, 0.0, 0.9])
    alone, named = cluster_mean(values), cluster_mean(values, ["a", "b", "c", "d", "e", "f"])
    assert alone is not None and named is not None
    assert alone.error == pytest.approx(float(scipy_stats.sem(values)))
    assert named.error == pytest.approx(alone.error)


def test_a_cluster_mean_is_the_formula_by_hand() -> None:
    # d = 1, 1 | 0, 0 | -1, 0: mean 1/6; sums of residuals 10/6, -2/6, -8/6; 3/2 · (100 + 4 + 64)/36 / 36
    found = cluster_mean(np.array([1.0, 1.0, 0.0, 0.0, -1.0, 0.0]), ["x", "x", "y", "y", "z", "z"])
    assert found is not None
    assert found.mean == pytest.approx(1 / 6)
    assert (found.clusters, found.n) == (3, 6)
    assert found.error**2 == pytest.approx(1.5 * (100 + 4 + 64) / 36 / 36)


def test_clusters_without_two_of_them_have_no_error() -> None:
    assert cluster_mean(np.array([1.0])) is None
    assert cluster_mean(np.array([1.0, 0.0]), ["a", "a"]) is None
    assert cluster_mean(np.array([1.0, math.nan])) is None
    with pytest.raises(ValueError, match="one for each"):
        cluster_mean(np.array([1.0, 0.0]), ["a"])
    with pytest.raises(ValueError, match="no mean"):
        pool_means([])


def test_scores_are_the_paired_t_of_scipy() -> None:
    generator = np.random.default_rng(17)
    baseline = generator.normal(0.6, 0.2, 80)
    candidate = baseline - generator.normal(0.02, 0.1, 80)
    found = score_regression(ScorePairs(baseline, candidate), 0.05, generator)
    theirs = scipy_stats.ttest_rel(baseline, candidate, alternative="greater")
    assert found.p_value == pytest.approx(theirs.pvalue)
    assert found.limits.lower == pytest.approx(theirs.confidence_interval(0.95).low)


def test_few_scores_are_permuted() -> None:
    # Eight differences, all harm: no sign-flip can be rarer than 2^-8, whatever a t distribution says.
    gaps = np.array([0.10, 0.11, 0.12, 0.10, 0.11, 0.12, 0.11, 0.10])
    found = score_regression(ScorePairs(gaps, np.zeros(8)), 0.05, np.random.default_rng(0))
    assert found.p_value == 2**-8
    assert "sign flips" in found.method
    # With fewer than ten items a ninth may be as far the other way as scores were seen to go.
    assert found.limits.lower < 0.10 < found.estimate < found.limits.upper


def test_few_skewed_scores_promote_what_is_at_the_margin_at_most_as_often_as_promised() -> None:
    generator, runs, margin = np.random.default_rng(18), 600, 0.4
    promoted = 0
    for _ in range(runs):
        gaps = generator.laplace(margin, 0.1, 14)
        promoted += score_regression(ScorePairs(np.full(14, 0.7), 0.7 - gaps), 0.05, generator).limits.upper < margin
    assert 0 < promoted / runs <= 0.065


def test_subset_means_are_the_sign_flip_test_turned_round() -> None:
    # Of 1, 2, 4: means 1, 1.5, 2, 7/3, 2.5, 3, 4 part the line into eight stretches of equal chance.
    limits = subset_mean_limits(np.array([1.0, 2.0, 4.0]), 0.25, np.random.default_rng(0))
    assert limits is not None
    assert (limits.lower, limits.upper) == pytest.approx((1.5, 3.0))
    wide = subset_mean_limits(np.array([1.0, 2.0]), 0.05, np.random.default_rng(0))
    assert wide is not None and math.isinf(wide.lower) and math.isinf(wide.upper)
    assert subset_mean_limits(np.array([]), 0.05, np.random.default_rng(0)) is None


def test_recovery_of_accuracies_has_fiellers_limits() -> None:
    # R solves (y - R x)² = z² (s_yy - 2 R s_xy + R² s_xx)/n: at either limit the test statistic is z
    one = pairs(30, 10, 400, right=300)
    found = score_retention([one], 0.05)
    assert found is not None and found.limits is not None
    assert found.ratio == pytest.approx(310 / 330)
    for limit, sign in ((found.limits.lower, 1), (found.limits.upper, -1)):
        gap = one.candidate - limit * one.baseline
        assert gap.mean() / (gap.std(ddof=1) / math.sqrt(400)) == pytest.approx(sign * 1.6448536269514722)


def test_recovery_of_models_that_never_differ_is_not_a_point() -> None:
    harm = tango_limits(0, 0, 100, 0.05)
    found = score_retention([pairs(0, 0, 100, right=80)], 0.05, regression=harm)
    assert found is not None and found.limits is not None
    assert found.ratio == 1.0
    assert (found.limits.lower, found.limits.upper) == pytest.approx((1 - harm.upper / 0.8, 1 - harm.lower / 0.8))


def test_recovery_of_nothing_is_nothing() -> None:
    assert score_retention([pairs(0, 0, 10, right=0)], 0.05) is None
    assert score_retention([], 0.05) is None
    hardly = score_retention([pairs(1, 0, 30, right=0)], 0.05)
    assert hardly is not None and hardly.limits is None


def test_a_mean_share_over_unlike_tasks_is_surer_the_more_items_each_has() -> None:
    right = [np.array([1.0] * 90 + [0.0] * 110), np.array([1.0] * 700 + [0.0] * 300)]
    found = mean_share_limits(right, [None, None], 0.05)
    assert found is not None
    limits, effective = found
    assert limits.lower < 0.575 < limits.upper
    # As many as items of equal weight are worth, 4 / (1/200 + 1/1000): the tasks' own spread would say a few more.
    assert effective == pytest.approx(666.667, abs=0.001)
    assert share_at_least_p(0.575, effective, limits.upper) == pytest.approx(0.05)
    assert mean_share_limits([np.array([1.0])], [None], 0.05) is None


def test_clusters_make_a_share_less_sure() -> None:
    values = np.repeat(np.array([1.0] * 16 + [0.0] * 4), 10)
    clusters = [f"c{i // 10}" for i in range(200)]
    alone, together = mean_share_limits([values], [None], 0.05), mean_share_limits([values], [clusters], 0.05)
    assert alone is not None and together is not None
    assert alone[1] == pytest.approx(199)
    assert together[1] == pytest.approx(19 * (t_ppf(0.95, 199) / t_ppf(0.95, 19)) ** 2)  # of 20 clusters


def test_strata_mirror_when_arms_swap() -> None:
    ours, swapped = (
        [PairedCounts(12, 3, 90), PairedCounts(5, 8, 700)],
        [PairedCounts(3, 12, 90), PairedCounts(8, 5, 700)],
    )
    limits, mirrored = stratified_limits(ours, 0.05), stratified_limits(swapped, 0.05)
    assert (limits.lower, limits.upper) == pytest.approx((-mirrored.upper, -mirrored.lower))
    assert stratified_score_p(ours, limits.lower) == pytest.approx(0.05, abs=1e-6)
    assert stratified_score_p(ours, 0.2) == 1.0


@pytest.mark.parametrize(
    "tasks",
    [
        (PairedCounts(3, 1, 7), PairedCounts(2, 1, 31)),
        (PairedCounts(1, 1, 53), PairedCounts(2, 3, 41)),  # rounded down it would be 0.58, where 0.73 is true
        (PairedCounts(5, 0, 11), PairedCounts(1, 4, 13), PairedCounts(0, 1, 997)),
    ],
)
def test_the_rounded_test_over_tasks_never_claims_more_than_the_exact_one(tasks: tuple[PairedCounts, ...]) -> None:
    seen = sum((one.b - one.c) / one.n for one in tasks)
    ways = itertools.product(*(range(one.b + one.c + 1) for one in tasks))
    exact = sum(
        math.prod(math.comb(one.b + one.c, lost) / 2 ** (one.b + one.c) for one, lost in zip(tasks, way, strict=True))
        for way in ways
        if sum((2 * lost - one.b - one.c) / one.n for one, lost in zip(tasks, way, strict=True)) >= seen - 1e-12
    )
    assert exact - 1e-12 <= stratified_exact_p(tasks) <= exact + 0.02
