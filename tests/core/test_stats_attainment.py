"""Miss shares over blocks: requests of one block are not independent."""

from __future__ import annotations

import numpy as np
import pytest

from benchgate.stats.clusters import miss_share_limits, miss_share_p, sample_size_to_decide
from benchgate.stats.proportions import clopper_pearson


def test_no_miss_leaves_the_exact_limit_of_all_requests() -> None:
    limits = miss_share_limits([100, 100, 99], [100, 100, 99], 0.05)
    assert limits is not None
    assert limits.lower == 0.0
    assert limits.upper == pytest.approx(1 - 0.05 ** (1 / 299))


def test_nothing_good_is_all_missed() -> None:
    limits = miss_share_limits([0, 0], [20, 20], 0.05)
    assert limits is not None
    assert limits.upper == 1.0
    assert limits.lower > 0.9


def test_misses_in_one_burst_say_less_than_the_same_misses_spread_out() -> None:
    spread, burst = miss_share_limits([45] * 10, [50] * 10, 0.05), miss_share_limits([50] * 9 + [0], [50] * 10, 0.05)
    assert spread is not None
    assert burst is not None
    assert burst.lower < spread.lower < 0.1 < spread.upper < burst.upper
    assert burst.upper - burst.lower > 5 * (spread.upper - spread.lower)


def test_limits_are_never_narrower_than_those_of_independent_requests() -> None:
    generator = np.random.default_rng(6)
    for good in generator.binomial(40, 0.95, size=(200, 6)):
        limits, exact = (
            miss_share_limits([int(k) for k in good], [40] * 6, 0.05),
            clopper_pearson(240 - int(good.sum()), 240, 0.05),
        )
        assert limits is not None
        assert limits.lower <= exact.lower
        assert exact.upper <= limits.upper


def test_blocks_of_unequal_size_weigh_by_their_requests() -> None:
    limits = miss_share_limits([90, 9], [100, 10], 0.05)
    assert limits is not None
    assert limits.lower < 0.1 < limits.upper


@pytest.mark.parametrize(("miss", "icc"), [(0.05, 0.05), (0.1, 0.05), (0.3, 0.3)])
def test_limits_cover_when_requests_of_a_block_share_their_fate(miss: float, icc: float) -> None:
    # Beta-binomial blocks of 50 with the given intra-class correlation. Limits of independent requests would miss
    # 17 to 34 % of the time here, t limits over the blocks 8 to 12 %.
    generator, concentration = np.random.default_rng(12), (1 - icc) / icc
    shares = generator.beta(miss * concentration, (1 - miss) * concentration, size=(1000, 10))
    missed = generator.binomial(50, shares)
    found = [miss_share_limits([50 - int(k) for k in row], [50] * 10, 0.05) for row in missed]
    limits = [one for one in found if one is not None]
    assert len(limits) == 1000
    assert np.mean([one.upper < miss for one in limits]) <= 0.075
    assert np.mean([one.lower > miss for one in limits]) <= 0.06


@pytest.mark.parametrize(("good", "scheduled"), [([], []), ([5], [5]), ([5, 0], [5, 0])])
def test_too_few_blocks_or_an_empty_one_have_no_limits(good: list[int], scheduled: list[int]) -> None:
    assert miss_share_limits(good, scheduled, 0.05) is None


@pytest.mark.parametrize(("good", "scheduled"), [([6, 1], [5, 5]), ([-1, 1], [5, 5]), ([1], [5, 5])])
def test_counts_that_cannot_be_are_refused(good: list[int], scheduled: list[int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        miss_share_limits(good, scheduled, 0.05)


def test_the_p_value_is_below_alpha_exactly_when_the_lower_limit_is_above_what_is_allowed() -> None:
    for missed in ([0, 0, 0], [3, 1, 0], [9, 0, 0], [12, 9, 11], [100, 100, 100]):
        good, scheduled = [100 - m for m in missed], [100] * 3
        limits = miss_share_limits(good, scheduled, 0.05)
        assert limits is not None
        for allowed in (0.001, 0.01, 0.03, 0.09, 0.5):
            p_value = miss_share_p(good, scheduled, allowed, 0.05)
            assert p_value is not None
            assert (p_value < 0.05) == (limits.lower > allowed)


def test_every_request_of_two_blocks_missed_is_proof() -> None:
    p_value = miss_share_p([0, 0], [75, 75], 0.02, 0.05)
    assert p_value is not None and p_value < 1e-9


def test_requests_needed_without_a_miss_are_those_of_the_exact_limit() -> None:
    assert sample_size_to_decide([10, 10], [10, 10], 0.95, 0.05) == 59  # 0.95 ** 59 is the first power below 5 %
    assert sample_size_to_decide([20], [20], 0.99, 0.05) == 299


def test_requests_needed_show_the_side_that_the_share_is_on_and_few_less_do_not() -> None:
    for missed_of_100 in (2, 9):
        n = sample_size_to_decide([100 - missed_of_100], [100], 0.95, 0.05)
        assert n is not None

        def decided(requests: int, share: float = missed_of_100 / 100) -> bool:
            limits = clopper_pearson(round(share * requests), requests, 0.05)
            return limits.upper <= 0.05 if share < 0.05 else limits.lower > 0.05

        assert decided(round(1.1 * n))
        assert not decided(round(0.85 * n))


def test_requests_that_miss_in_bursts_need_more_of_them() -> None:
    apart = sample_size_to_decide([44] * 8 + [43] * 2, [45] * 10, 0.95, 0.05)
    together = sample_size_to_decide([45] * 9 + [33], [45] * 10, 0.95, 0.05)
    assert apart is not None
    assert together is not None
    assert together > 3 * apart


def test_no_number_of_requests_shows_a_side_of_the_share_itself() -> None:
    assert sample_size_to_decide([95], [100], 0.95, 0.05) is None
    assert sample_size_to_decide([], [], 0.95, 0.05) is None
    with pytest.raises(ValueError, match="target"):
        sample_size_to_decide([1], [1], 1.1, 0.05)


def test_no_number_of_requests_shows_that_none_will_ever_miss() -> None:
    assert sample_size_to_decide([20], [20], 1.0, 0.05) is None
    assert sample_size_to_decide([19], [20], 1.0, 0.05) is not None
