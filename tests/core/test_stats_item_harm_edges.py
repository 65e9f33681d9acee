"""Harm over items at its boundaries: ten differing, thirty items, and whichever of two ways claims less."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean, mean_share_limits, pool_means, share_at_least_p
from benchgate.stats.distributions import Limits, t_ppf
from benchgate.stats.evals import ItemRegression, ScorePairs, accuracy_regression, score_regression, score_retention
from benchgate.stats.means import paired_t, sign_flip_p, subset_mean_limits
from benchgate.stats.proportions import (
    PairedCounts,
    clopper_pearson,
    mcnemar_p,
    score_limits,
    stratified_difference,
    stratified_exact_p,
    stratified_limits,
    stratified_score_p,
    tango_limits,
    tango_noninferiority_p,
)


def answers(b: int, c: int, n: int, clusters: tuple[str, ...] | None = None) -> ScorePairs:
    """Of n items b are lost and c gained; the others are right in both."""
    baseline, candidate = np.ones(n), np.ones(n)
    candidate[:b] = 0.0
    baseline[b : b + c] = 0.0
    return ScorePairs(baseline, candidate, clusters)


def scored(gaps: FloatArray, tested: float = 0.0, *, clusters: tuple[str, ...] | None = None) -> ItemRegression:
    baseline = np.full(len(gaps), 0.5)
    pairs = ScorePairs(baseline, baseline - gaps, clusters)
    return score_regression(pairs, 0.05, np.random.default_rng(0), tested=tested)


def spread(n: int, mean: float = 0.02) -> FloatArray:
    """n differences of all sizes, symmetric about a mean; none of them 0."""
    return mean + 0.1 * scipy_stats.norm.ppf((np.arange(n) + 0.5) / n)


@pytest.mark.parametrize("scores", [[0.5], [], [0.5, math.nan], [0.5, math.inf]])
def test_scores_that_no_mean_can_be_had_of_are_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two items"):
        score_regression(ScorePairs(np.array(scores), np.full(len(scores), 0.5)), 0.05, np.random.default_rng(0))


def test_items_of_one_cluster_are_refused() -> None:
    with pytest.raises(ValueError, match="two clusters"):
        score_regression(ScorePairs(np.ones(4), np.ones(4), ("a",) * 4), 0.05, np.random.default_rng(0))
    with pytest.raises(ValueError, match="two clusters"):
        accuracy_regression([answers(1, 0, 4, ("a",) * 4)], 0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_error_rates_that_are_none_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        accuracy_regression([answers(1, 0, 4)], alpha)
    with pytest.raises(ValueError, match="alpha"):
        score_regression(ScorePairs(np.ones(4), np.ones(4)), alpha, np.random.default_rng(0))


def test_what_is_tested_is_no_harm_unless_said() -> None:
    assert accuracy_regression([answers(9, 3, 100)], 0.05) == accuracy_regression(
        [answers(9, 3, 100)], 0.05, tested=0.0
    )
    assert scored(spread(40)) == scored(spread(40), 0.0)
    assert accuracy_regression([answers(9, 3, 100)], 0.05).p_value == mcnemar_p(9, 3)


@pytest.mark.parametrize("tested", [0.01, 0.06, 0.2])
def test_harm_of_answers_is_tested_against_what_is_said(tested: float) -> None:
    one = accuracy_regression([answers(9, 3, 100)], 0.05, tested=tested)
    assert one.p_value == pytest.approx(1 - tango_noninferiority_p(9, 3, 100, tested))
    unlike = [answers(9, 3, 100), answers(2, 0, 50)]
    counts = [PairedCounts(9, 3, 100), PairedCounts(2, 0, 50)]
    assert accuracy_regression(unlike, 0.05, tested=tested).p_value == stratified_score_p(counts, tested)
    assert accuracy_regression(unlike, 0.05).p_value == stratified_exact_p(counts)


def test_losses_are_harm_and_gains_are_not() -> None:
    lost, gained = accuracy_regression([answers(10, 0, 100)], 0.05), accuracy_regression([answers(0, 10, 100)], 0.05)
    assert (lost.estimate, gained.estimate) == (0.1, -0.1)
    assert lost.p_value == 2**-10 and gained.p_value == 1.0
    assert scored(np.full(40, 0.1) + 0.001 * np.arange(40)).estimate > 0.1


def test_wrong_in_both_arms_or_right_in_both_is_no_difference() -> None:
    both = ScorePairs(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0]))
    assert accuracy_regression([both], 0.05).limits == tango_limits(0, 0, 4, 0.05)


def test_items_of_all_tasks_are_counted() -> None:
    assert accuracy_regression([answers(1, 0, 50), answers(1, 0, 50)], 0.05).n == 100
    assert accuracy_regression([answers(1, 0, 50), answers(1, 0, 70)], 0.05).n == 120
    clustered = accuracy_regression([answers(1, 0, 50, tuple(f"c{i // 5}" for i in range(50)))], 0.05)
    assert (clustered.estimate, clustered.n) == (0.02, 50)
    assert (scored(spread(12)).n, scored(np.zeros(40)).n) == (12, 40)


def test_the_method_says_what_was_done() -> None:
    one, unlike = (
        accuracy_regression([answers(1, 0, 50)], 0.05),
        accuracy_regression([answers(1, 0, 50), answers(1, 0, 70)], 0.05),
    )
    assert "Tango" in one.method and "McNemar" in one.method
    assert "equal weight" in unlike.method


def test_clusters_of_one_task_are_heard_beside_another_without_any() -> None:
    labels = tuple(f"c{i // 10}" for i in range(100))
    plain = accuracy_regression([answers(20, 0, 100), answers(5, 5, 100)], 0.05)
    for tasks in ([answers(20, 0, 100, labels), answers(5, 5, 100)], [answers(5, 5, 100), answers(20, 0, 100, labels)]):
        found = accuracy_regression(tasks, 0.05)
        assert "clusters" in found.method
        assert found.limits.lower < plain.limits.lower
        assert found.limits.upper > plain.limits.upper
        assert found.p_value > plain.p_value


def test_clusters_that_balance_never_claim_more_than_the_items_alone() -> None:
    # In each cluster of two one item is lost and one gained: over clusters nothing varies at all.
    baseline, candidate = np.tile([1.0, 0.0], 50), np.tile([0.0, 1.0], 50)
    labels = tuple(f"c{i // 2}" for i in range(100))
    found, alone = (accuracy_regression([ScorePairs(baseline, candidate, of)], 0.05) for of in (labels, None))
    assert found.limits.lower == alone.limits.lower < 0 < alone.limits.upper <= found.limits.upper
    assert found.p_value == max(alone.p_value, 1.0)


@pytest.mark.parametrize(("n", "permuted"), [(29, True), (30, False), (31, False)])
def test_below_thirty_items_the_signs_are_flipped_too(n: int, permuted: bool) -> None:
    gaps = spread(n)
    found, student = scored(gaps), paired_t(gaps, 0.05)
    assert student is not None
    assert ("sign flips" in found.method) == permuted
    assert (found.limits.lower == pytest.approx(student.limits.lower, abs=1e-12)) == (not permuted)
    flipped = sign_flip_p(gaps, generator=np.random.default_rng(0))
    assert flipped is not None and found.p_value >= student.p_value - 1e-12


def test_the_sign_flips_test_what_is_asked() -> None:
    gaps = np.linspace(0.10, 0.21, 12)
    assert scored(gaps, 0.0).p_value == 2**-12
    assert scored(gaps, 0.15).p_value > 0.2
    assert scored(gaps, 0.3).p_value == 1.0


@pytest.mark.parametrize(("differing", "few"), [(9, True), (10, False), (11, False)])
def test_below_ten_differing_items_gains_that_were_not_seen_are_left_open(differing: int, few: bool) -> None:
    gaps = np.zeros(200)
    gaps[:differing] = 0.3
    found, student = scored(gaps), paired_t(gaps, 0.05)
    assert student is not None
    # Scores lie from 0 to 0.5, so each of the items that may gain, were none seen to, gains 0.5 at most.
    gain = 0.5 * (1 - 0.05 ** (1 / 200))
    assert found.limits.lower == pytest.approx(min(-gain, student.limits.lower) if few else student.limits.lower)
    assert found.p_value == pytest.approx(max(student.p_value, 2.0**-differing) if few else student.p_value)


def test_few_that_differ_prove_no_more_than_their_signs() -> None:
    # Four of 200 lose the same: their mean is 4 of 200 and t would call it 2 %, their signs one in 16.
    gaps = np.zeros(200)
    gaps[:4] = 0.4
    student = paired_t(gaps, 0.05)
    assert student is not None and student.p_value < 0.03
    assert scored(gaps).p_value == 2**-4


def test_gains_that_were_seen_leave_as_many_open_as_exact_limits_allow() -> None:
    gaps = np.zeros(200)
    gaps[:3], gaps[3:5] = -0.2, 0.2
    found = scored(gaps)
    assert found.limits.lower == pytest.approx(-0.7 * clopper_pearson(3, 200, 0.05).upper)  # scores from 0 to 0.7


def test_scores_over_clusters_are_students_over_clusters_from_below() -> None:
    gaps, labels = spread(60), tuple(f"c{i // 3}" for i in range(60))
    found, mean = scored(gaps, clusters=labels), cluster_mean(gaps, labels)
    assert mean is not None
    assert found.limits.lower == pytest.approx(pool_means([mean]).limits(0.05).lower)
    assert found.p_value == pytest.approx(pool_means([mean]).p_above(0.0))
    assert "over clusters" in found.method and "over items" in scored(gaps).method
    assert found.n == 60


def test_upper_limit_is_never_below_students() -> None:
    for n in (2, 5, 29, 30, 80):
        gaps = spread(n)
        student = paired_t(gaps, 0.05)
        assert student is not None
        assert scored(gaps).limits.upper >= student.limits.upper - 1e-12


def test_scores_below_zero_have_more_to_lose() -> None:
    # Nothing differs; 1 - 0.05^(1/50) of the items may fall from 0.5 to the lowest score that either arm ever had.
    share = 1 - 0.05 ** (1 / 50)
    for low_of in ("baseline", "candidate"):
        baseline, candidate = np.full(50, 0.5), np.full(50, 0.5)
        (baseline if low_of == "baseline" else candidate)[0] = -1.5
        found = score_regression(ScorePairs(baseline, candidate), 0.05, np.random.default_rng(0))
        assert found.limits.upper >= share * float(np.mean(baseline + 1.5)) - 1e-12
    baseline, candidate = np.full(50, 0.5), np.full(50, 0.5)
    baseline[0], candidate[0] = -1.0, -1.5  # one of either arm may be the lowest
    found = score_regression(ScorePairs(baseline, candidate), 0.05, np.random.default_rng(0))
    assert found.limits.upper == pytest.approx(share * float(np.mean(baseline + 1.5)))
    same = score_regression(ScorePairs(np.full(50, 0.5), np.full(50, 0.5)), 0.05, np.random.default_rng(0))
    assert same.limits.upper == pytest.approx(share * 0.5)


@pytest.mark.parametrize("collapsed", [1, 3, 12])
def test_a_few_scores_that_collapse_are_limited_as_poisson_counts_are(collapsed: int) -> None:
    n = 20_000
    gaps = np.where(np.arange(n) < collapsed, 0.5, 0.0)
    exact = float(scipy_stats.gamma.ppf(0.95, collapsed + 1))
    assert n * scored(gaps).limits.upper == pytest.approx(0.5 * exact, rel=2e-3)


@pytest.mark.parametrize("collapsed", [1, 3, 12])
def test_a_few_clusters_that_collapse_are_limited_as_poisson_counts_are(collapsed: int) -> None:
    labels = tuple(f"c{i // 5}" for i in range(20_000))
    exact = float(scipy_stats.gamma.ppf(0.95, collapsed + 1))
    assert 4_000 * accuracy_regression([answers(5 * collapsed, 0, 20_000, labels)], 0.05).limits.upper == pytest.approx(
        exact, rel=5e-3
    )


def test_many_scores_of_all_sizes_are_limited_by_student_and_half_an_item() -> None:
    gaps = spread(2_000, 0.1)
    student = paired_t(gaps, 0.05)
    assert student is not None
    assert scored(gaps).limits.upper == pytest.approx(student.limits.upper + 0.25 / 2_000, abs=1e-6)


def test_drawn_subsets_limit_as_the_sign_flips_do() -> None:
    """At a limit the sign-flip test of "the mean lies beyond it" just reaches alpha."""
    values = spread(20, 0.1)
    limits = subset_mean_limits(values, 0.05, np.random.default_rng(1))
    assert limits is not None
    assert sign_flip_p(values - limits.lower) == pytest.approx(0.05, abs=0.005)
    assert sign_flip_p(limits.upper - values) == pytest.approx(0.05, abs=0.005)
    assert scored(values).limits.lower <= limits.lower + 0.002


def test_subset_limits_are_infinite_until_one_stretch_may_lie_beyond() -> None:
    values, generator = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.random.default_rng(0)
    assert subset_mean_limits(values, 0.05, generator) == Limits(1.0, 16.0)  # 1 of 32
    assert subset_mean_limits(values[:4], 0.05, generator) == Limits(-math.inf, math.inf)  # 1 of 16 is more than 5 %
    assert subset_mean_limits(values[:4], 1 / 16, generator) == Limits(1.0, 8.0)
    assert subset_mean_limits(values[:4], 1 / 16.5, generator) == Limits(-math.inf, math.inf)


@pytest.mark.parametrize("n", [16, 17])
def test_subsets_are_listed_up_to_sixteen_values_and_drawn_above(n: int) -> None:
    values = spread(n)
    one, other = (subset_mean_limits(values, 0.05, np.random.default_rng(seed)) for seed in (1, 2))
    assert (one == other) == (n == 16)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_subsets_of_broken_values_limit_nothing(values: list[float]) -> None:
    assert subset_mean_limits(np.array(values), 0.05, np.random.default_rng(0)) is None


def test_recovery_of_one_item_has_no_limits_and_of_no_item_nothing() -> None:
    found = score_retention([ScorePairs(np.array([1.0]), np.array([0.5]))], 0.05)
    assert found is not None and (found.ratio, found.limits) == (0.5, None)
    assert score_retention([ScorePairs(np.empty(0), np.empty(0))], 0.05) is None
    whole = ScorePairs(np.ones(4), np.ones(4))
    assert score_retention([whole, ScorePairs(np.empty(0), np.empty(0))], 0.05) is None
    assert score_retention([ScorePairs(np.zeros(4), np.ones(4))], 0.05) is None
    assert score_retention([ScorePairs(-np.ones(4), np.ones(4))], 0.05) is None
    broken = score_retention([whole, ScorePairs(np.ones(4), np.ones(4), ("a",) * 4)], 0.05)
    assert broken is not None and (broken.ratio, broken.limits) == (1.0, None)


def test_a_share_of_all_is_never_below_a_floor() -> None:
    assert share_at_least_p(1.0, 50.0, 0.999) == 1.0
    assert share_at_least_p(0.0, 5.0, 0.5) == pytest.approx(0.5**5)
    # P(X <= 8), X ~ Bin(10, 0.9), by hand
    assert share_at_least_p(0.8, 10.0, 0.9) == pytest.approx(1 - 0.9**10 - 10 * 0.9**9 * 0.1)
    assert clopper_pearson(50.0, 50.0, 0.05).upper == 1.0
    assert clopper_pearson(0.0, 50.0, 0.05).lower == 0.0
    assert clopper_pearson(50.0, 50.0, 0.05).lower == pytest.approx(0.05 ** (1 / 50))


def test_one_task_without_two_items_leaves_all_shares_open() -> None:
    fine, one = np.array([1.0, 0.0, 1.0]), np.array([1.0])
    assert mean_share_limits([fine, one], [None, None], 0.05) is None
    assert mean_share_limits([], [], 0.05) is None
    same = mean_share_limits([np.ones(20)], [None], 0.05)
    assert same is not None and same[1] == pytest.approx(20)


def test_two_clustered_tasks_tell_twice_as_much_as_one_of_them() -> None:
    values, clusters = np.repeat(np.array([1.0] * 16 + [0.0] * 4), 10), [f"c{i // 10}" for i in range(200)]
    two = mean_share_limits([values, values], [clusters, [f"other {name}" for name in clusters]], 0.05)
    assert two is not None and two[1] == pytest.approx(38 * (t_ppf(0.95, 398) / t_ppf(0.95, 38)) ** 2)


def test_clusters_that_balance_tell_no_more_than_their_items() -> None:
    found = mean_share_limits([np.tile([1.0, 0.0], 20)], [[f"c{i // 2}" for i in range(40)]], 0.05)
    assert found is not None and found[1] == pytest.approx(40)


def test_recovery_of_two_tasks_alike_is_that_of_both_together() -> None:
    task = ScorePairs(np.tile([1.0, 1.0, 1.0, 0.0], 100), np.tile([1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 50))
    both = ScorePairs(np.tile(task.baseline, 2), np.tile(task.candidate, 2))
    apart, together = score_retention([task, task], 0.05), score_retention([both], 0.05)
    assert apart is not None and together is not None and apart.limits is not None and together.limits is not None
    assert apart.ratio == together.ratio
    assert apart.limits.lower == pytest.approx(together.limits.lower, rel=1e-3)
    assert apart.limits.upper == pytest.approx(together.limits.upper, rel=1e-3)


def test_the_test_over_tasks_is_mcnemars_over_every_small_table() -> None:
    for b in range(13):
        for c in range(13 - b):
            assert stratified_exact_p([PairedCounts(b, c, 30)]) == pytest.approx(mcnemar_p(b, c))


def test_one_item_that_differs_counts_in_every_task() -> None:
    assert stratified_exact_p([PairedCounts(1, 0, 10), PairedCounts(1, 0, 20)]) == pytest.approx(1 / 4)
    assert stratified_exact_p([PairedCounts(0, 0, 1), PairedCounts(0, 0, 1)]) == 1.0
    assert PairedCounts(1, 0, 1).difference(1.0) == 1.0


def test_half_weights_are_half_in_estimate_and_limits() -> None:
    tasks = [PairedCounts(4, 6, 40), PairedCounts(10, 20, 300)]
    own = [(4 - 3) / 40, (10 - 10) / 300]
    limits = [score_limits(4, 6, 40, 0.05, weight=0.5), score_limits(10, 20, 300, 0.05, weight=0.5)]
    found, mean = stratified_limits(tasks, 0.05, weight=0.5), sum(own) / 2
    assert stratified_difference(tasks, weight=0.5) == pytest.approx(mean)
    assert stratified_difference(tasks) == pytest.approx((-2 / 40 - 10 / 300) / 2)
    assert found.lower == pytest.approx(
        mean - math.hypot(*(at - of.lower for at, of in zip(own, limits, strict=True))) / 2
    )
    assert found.upper == pytest.approx(
        mean + math.hypot(*(of.upper - at for at, of in zip(own, limits, strict=True))) / 2
    )
    assert stratified_score_p(tasks, found.lower, weight=0.5) == pytest.approx(0.05, abs=1e-5)
    assert stratified_score_p(tasks, mean - 0.001, weight=0.5) < 1.0 == stratified_score_p(tasks, mean, weight=0.5)


def test_a_mean_a_hair_above_the_margin_shows_no_harm() -> None:
    tasks = [PairedCounts(4, 0, 20), PairedCounts(1, 0, 100)]
    mean = (4 / 20 + 1 / 100) / 2
    assert stratified_score_p(tasks, mean - 1e-9) == 0.5
    assert stratified_score_p(tasks, mean) == 1.0
    assert stratified_score_p(tasks, stratified_limits(tasks, 0.05).lower) == pytest.approx(0.05, abs=1e-6)
    certain = stratified_score_p([PairedCounts(1000, 0, 1000), PairedCounts(900, 0, 900)], 0.01)
    assert 0 < certain < 1e-14  # that of eight standard errors, and not 0


@pytest.mark.parametrize(("b", "c", "n"), [(-1, 0, 5), (0, -1, 5), (3, 3, 5), (0, 0, 0)])
def test_counts_that_cannot_be_are_refused(b: int, c: int, n: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        PairedCounts(b, c, n)
