"""Means of differences at their boundaries: margins met exactly, one group without spread, ties, and odd numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.stats.means import paired_t, sign_flip_p, sign_test_p, two_sample_t

NARROW = np.array([0.10, 0.12, 0.11, 0.13])
WIDE = np.array([0.30, 0.10, 0.20])


def test_margin_is_none_unless_said() -> None:
    assert paired_t(NARROW, 0.05) == paired_t(NARROW, 0.05, margin=0.0)
    assert two_sample_t(NARROW, WIDE, 0.05) == two_sample_t(NARROW, WIDE, 0.05, margin=0.0)


@pytest.mark.parametrize(("margin", "p_value"), [(0.1, 1.0), (math.nextafter(0.1, 0), 2**-3), (0.2, 1.0), (0.0, 2**-3)])
def test_equal_differences_harm_only_above_the_margin(margin: float, p_value: float) -> None:
    test = paired_t(np.full(3, 0.1), 0.05, margin=margin)
    assert test is not None
    assert (test.p_value, test.sd, test.n) == (p_value, 0.0, 3)
    assert test.limits.lower == test.limits.upper == test.mean == 0.1


@pytest.mark.parametrize(("spread", "sd"), [(1e-12, 0.0), (3e-12, 3e-12 / math.sqrt(2))])
def test_spread_counts_from_a_trillionth_on(spread: float, sd: float) -> None:
    test = paired_t(np.array([0.0, spread]), 0.05)
    assert test is not None
    assert test.sd == pytest.approx(sd, rel=1e-9, abs=0)
    apart = two_sample_t(np.array([0.0, spread]), np.zeros(2), 0.05)
    assert apart is not None
    assert (apart.sd > 0) == (sd > 0)


def test_two_differences_are_enough_and_one_is_not() -> None:
    # t(0.95, 1) is 6.3138: 0.2 -+ 6.3138 · 0.1414 / 1.4142
    test = paired_t(np.array([0.1, 0.3]), 0.05)
    assert test is not None
    assert (test.limits.lower, test.limits.upper) == pytest.approx((0.2 - 0.63138, 0.2 + 0.63138), abs=1e-5)
    assert test.sd == pytest.approx(0.1 * math.sqrt(2))
    assert paired_t(np.array([0.1]), 0.05) is None


@pytest.mark.parametrize("alpha", [0.0, 0.5, -0.1, math.nan])
def test_error_rates_that_are_none_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        paired_t(NARROW, alpha)
    with pytest.raises(ValueError, match="alpha"):
        two_sample_t(NARROW, WIDE, alpha)


def test_harm_between_groups_is_tested_against_the_margin() -> None:
    # scipy.stats.ttest_ind(b - 0.05, a, equal_var=False, alternative="greater")
    test = two_sample_t(NARROW, WIDE, 0.05, margin=0.05)
    assert test is not None
    assert test.p_value == pytest.approx(0.30338047092072645)
    assert test.mean == pytest.approx(0.085)


def test_one_value_that_is_not_finite_in_either_group_leaves_nothing() -> None:
    for broken in (math.nan, math.inf, -math.inf):
        values = np.array([0.1, 0.2, broken])
        assert two_sample_t(values, WIDE, 0.05) is None
        assert two_sample_t(WIDE, values, 0.05) is None


def test_the_smaller_group_is_what_counts() -> None:
    for a, b in ((NARROW, WIDE), (WIDE, NARROW)):
        test = two_sample_t(a, b, 0.05)
        assert test is not None and test.n == 3
    assert two_sample_t(WIDE[:2], NARROW, 0.05) is not None
    assert two_sample_t(WIDE[:1], NARROW, 0.05) is None
    assert two_sample_t(NARROW, WIDE[:1], 0.05) is None


def test_a_group_without_spread_beside_one_with_it_is_judged_by_that_one() -> None:
    # Welch with one variance 0: the other group's own standard error and degrees of freedom, t(0.95, 2) = 2.91999.
    reach = 2.919985580 * 0.1 / math.sqrt(3)
    test, turned = two_sample_t(np.full(4, 0.1), WIDE, 0.05), two_sample_t(WIDE, np.full(4, 0.1), 0.05)
    assert test is not None and turned is not None
    assert (test.limits.lower, test.limits.upper) == pytest.approx((0.1 - reach, 0.1 + reach))
    assert (turned.limits.lower, turned.limits.upper) == pytest.approx((-0.1 - reach, -0.1 + reach))
    assert test.sd == pytest.approx(0.1)
    assert test.p_value < 0.5 < turned.p_value


def test_spread_of_one_difference_between_groups_is_that_of_both() -> None:
    test = two_sample_t(np.array([0.0, 2.0]), np.array([0.0, 4.0]), 0.05)
    assert test is not None
    assert test.sd == pytest.approx(math.sqrt(2 + 8))


@pytest.mark.parametrize(("margin", "p_value"), [(0.5, 1.0), (math.nextafter(0.5, 0), 1 / 10), (0.6, 1.0)])
def test_groups_without_spread_harm_only_above_the_margin(margin: float, p_value: float) -> None:
    test = two_sample_t(np.full(3, 1.0), np.full(2, 1.5), 0.05, margin=margin)
    assert test is not None
    assert (test.sd, test.n) == (0.0, 2)
    assert test.p_value == pytest.approx(p_value)
    assert test.limits.lower == test.limits.upper == 0.5


def test_gains_are_no_harm_under_every_test() -> None:
    better = -NARROW
    test, apart = paired_t(better, 0.05), two_sample_t(WIDE, WIDE - 1, 0.05)
    assert test is not None and test.p_value > 0.99
    assert apart is not None and apart.p_value > 0.99
    assert sign_flip_p(better) == 1.0
    assert sign_test_p(better) == 1.0


def test_sign_flips_with_ties_count_them_as_large() -> None:
    # 0.1 + 0.2 against 0.3: equal but for the last bit. One pattern has a sum of 0.6 at least, five one of 0.
    assert sign_flip_p(np.array([0.1, 0.2, 0.3])) == 1 / 8
    assert sign_flip_p(np.array([0.1, 0.2, -0.3])) == 5 / 8
    assert sign_flip_p(np.zeros(3)) == 1.0
    assert sign_flip_p(np.array([0.5])) == 0.5
    assert sign_flip_p(np.array([-0.5])) == 1.0


def test_twenty_one_differences_are_drawn_and_twenty_are_counted() -> None:
    with pytest.raises(ValueError, match="21 differences"):
        sign_flip_p(np.ones(21))
    assert sign_flip_p(np.ones(20)) == 2**-20


def test_drawn_sign_flips_count_ties_and_gains_alike() -> None:
    assert sign_flip_p(np.zeros(25), generator=np.random.default_rng(0)) == 1.0
    gained = sign_flip_p(-np.ones(25), generator=np.random.default_rng(0))
    even = sign_flip_p(np.array([1.0, -1.0] * 15), generator=np.random.default_rng(0))
    assert gained == 1.0
    assert even == pytest.approx(0.572, abs=0.02)  # P(Bin(30, 1/2) >= 15)


def test_one_difference_has_a_sign_and_a_broken_one_spoils_all() -> None:
    assert sign_test_p(np.array([0.1])) == 0.5
    assert sign_test_p(np.array([0.0])) == 1.0
    assert sign_test_p(np.array([0.1, 0.2, math.nan])) is None
    assert sign_test_p(np.array([0.1, 0.2, -0.3])) == 0.5  # P(Bin(3, 1/2) >= 2)
