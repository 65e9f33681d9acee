"""Miss shares at their boundaries: no miss, one miss, nothing but misses, one block, and a target met exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.stats.clusters import effective_sample_size, miss_share_limits, miss_share_p, sample_size_to_decide
from benchgate.stats.proportions import clopper_pearson


@pytest.mark.parametrize(("good", "scheduled"), [([], []), ([5], [5]), ([5, 0], [5, 0]), ([0, 5], [0, 5])])
def test_where_there_are_no_limits_nothing_is_tested_and_nothing_counts(good: list[int], scheduled: list[int]) -> None:
    assert miss_share_limits(good, scheduled, 0.05) is None
    assert miss_share_p(good, scheduled, 0.02, 0.05) is None
    assert effective_sample_size(good, scheduled, 0.05) is None


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_error_rates_that_are_none_are_refused(alpha: float) -> None:
    for call in (
        lambda: miss_share_limits([1, 1], [1, 1], alpha),
        lambda: miss_share_p([1, 1], [1, 1], 0.1, alpha),
        lambda: sample_size_to_decide([1, 1], [1, 1], 0.9, alpha),
    ):
        with pytest.raises(ValueError, match="alpha"):
            call()


def test_two_blocks_of_one_request_are_enough() -> None:
    assert miss_share_limits([1, 1], [1, 1], 0.05) == clopper_pearson(0, 2, 0.05)
    assert miss_share_limits([0, 0], [1, 1], 0.05) == clopper_pearson(2, 2, 0.05)


@pytest.mark.parametrize(("good", "missed"), [([100, 99], 1), ([1, 0], 199)])
def test_one_miss_or_one_hit_is_no_longer_the_exact_limit(good: list[int], missed: int) -> None:
    limits, exact = miss_share_limits(good, [100, 100], 0.05), clopper_pearson(missed, 200, 0.05)
    assert limits is not None
    assert limits.lower < exact.lower
    assert limits.upper > exact.upper


def test_even_misses_are_limited_by_how_few_blocks_there_are() -> None:
    # No clustering at all, so n* = 500 (t(0.95, 499) / t(0.95, 4))² = 500 (1.647913 / 2.131847)²; of it a tenth missed.
    effective = 500 * (1.64791303 / 2.13184679) ** 2
    limits = miss_share_limits([90] * 5, [100] * 5, 0.05)
    assert limits is not None
    hits = effective / 10
    assert limits.lower == pytest.approx(float(scipy_stats.beta.ppf(0.05, hits, effective - hits + 1)))
    assert limits.upper == pytest.approx(float(scipy_stats.beta.ppf(0.95, hits + 1, effective - hits)))
    assert effective_sample_size([90] * 5, [100] * 5, 0.05) == pytest.approx(effective)


def test_clustered_misses_count_by_their_design_effect() -> None:
    # Missed 0, 5, 10, 15, 20 of 100 each: p = 0.1, deff = 5/4 · (100 + 25 + 0 + 25 + 100) / (500 · 0.1 · 0.9) = 6.944
    effective = 500 / (1.25 * 250 / 45) * (1.64791303 / 2.13184679) ** 2
    assert effective_sample_size([100, 95, 90, 85, 80], [100] * 5, 0.05) == pytest.approx(effective)


def test_without_a_miss_or_a_hit_every_request_counts_and_no_more() -> None:
    assert effective_sample_size([30, 20], [30, 20], 0.05) == 50.0
    assert effective_sample_size([0, 0], [30, 20], 0.05) == 50.0
    some = effective_sample_size([90] * 50, [100] * 50, 0.05)
    assert some is not None and 4800 < some < 5000


def test_no_miss_breaks_no_allowance_and_an_allowance_of_all_is_never_broken() -> None:
    assert miss_share_p([50, 50], [50, 50], 0.0, 0.05) == 1.0
    assert miss_share_p([0, 0], [50, 50], 1.0, 0.05) == 1.0
    assert miss_share_p([25, 25], [50, 50], 1.0, 0.05) == 1.0
    assert miss_share_p([25, 25], [50, 50], 1.5, 0.05) == 1.0


def test_a_miss_where_none_is_allowed_is_proof() -> None:
    assert miss_share_p([49, 50], [50, 50], 0.0, 0.05) == 0.0


def test_nothing_but_misses_is_as_unlikely_as_so_many_misses() -> None:
    assert miss_share_p([0, 0], [3, 2], 0.5, 0.05) == pytest.approx(0.5**5)


def test_clusters_never_show_more_than_requests_alone_would() -> None:
    good, scheduled = [90, 91, 89, 90], [100] * 4
    alone = float(scipy_stats.binom.sf(39, 400, 0.06))
    p_value = miss_share_p(good, scheduled, 0.06, 0.05)
    assert p_value is not None
    assert alone < p_value < 0.2
    steep = miss_share_p(good, scheduled, 0.101, 0.05)  # more than was seen is allowed
    assert steep is not None and steep > 0.5


@pytest.mark.parametrize(("target", "told"), [(0.0, True), (1.0, True), (-1e-9, False), (1.0 + 1e-9, False)])
def test_a_target_is_a_share(target: float, told: bool) -> None:
    if told:
        sample_size_to_decide([95], [100], target, 0.05)
    else:
        with pytest.raises(ValueError, match="target"):
            sample_size_to_decide([95], [100], target, 0.05)


def test_a_share_a_hair_from_its_target_needs_more_requests_than_anyone_sends() -> None:
    assert sample_size_to_decide([95 * 10**6 + 1], [10**8], 0.95, 0.05) is None
    assert sample_size_to_decide([95 * 10**3 + 10], [10**5], 0.95, 0.05) is not None


def test_requests_needed_are_the_fewest_that_show_the_side() -> None:
    # All missed: alpha^(1/n) is the lower limit of n misses of n, so the fewest n with 0.05^(1/n) > 0.5 is 5.
    assert sample_size_to_decide([0], [10], 0.5, 0.05) == 5
    assert sample_size_to_decide([10], [10], 0.5, 0.05) == 5  # and 1 - 0.05^(1/n) <= 0.5
    assert sample_size_to_decide([0, 0], [5, 5], 0.5, 0.05) == sample_size_to_decide([5, 5], [5, 5], 0.5, 0.05) == 5
    assert sample_size_to_decide([1], [1], 0.0, 0.05) == 1  # a miss share below all is shown by any request


def test_one_block_or_an_empty_one_is_taken_for_independent_requests() -> None:
    alone = sample_size_to_decide([90], [100], 0.95, 0.05)
    assert alone is not None
    assert sample_size_to_decide([90, 0], [100, 0], 0.95, 0.05) == alone
    assert sample_size_to_decide([45, 45], [50, 50], 0.95, 0.05) != alone


def test_bursts_of_a_share_that_passes_need_more_as_well() -> None:
    even, bursty = (sample_size_to_decide(good, [100] * 5, 0.9, 0.05) for good in ([97] * 5, [100, 100, 100, 100, 85]))
    assert even is not None and bursty is not None
    assert bursty > 3 * even


def test_limits_stay_where_all_requests_would_put_them_when_blocks_are_more_alike_than_chance() -> None:
    generator = np.random.default_rng(3)
    for blocks in (2, 3, 40):
        good = [int(k) for k in generator.binomial(30, 0.9, blocks)]
        limits = miss_share_limits(good, [30] * blocks, 0.05)
        exact = clopper_pearson(30 * blocks - sum(good), 30 * blocks, 0.05)
        assert limits is not None and limits.lower <= exact.lower and exact.upper <= limits.upper
