"""Means of differences, and what they say when the numbers are few, equal or broken."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.stats.means import MeanTest, paired_t, sign_flip_p, sign_test_p, two_sample_t

DIFFERENCES = np.array([0.02, -0.01, 0.03, 0.05, 0.00, 0.04])


def test_paired_t_is_students() -> None:
    # r = scipy.stats.ttest_1samp(d, 0, alternative="greater"); limits: ttest_1samp(d, 0).confidence_interval(0.90)
    test = paired_t(DIFFERENCES, 0.05)
    assert test is not None
    assert test.p_value == pytest.approx(0.03528281767441998)
    assert test.limits.lower == pytest.approx(0.002609331953776911)
    assert test.limits.upper == pytest.approx(0.04072400137955641)
    assert test.mean == pytest.approx(0.13 / 6)
    assert test.n == 6


def test_harm_beyond_a_margin_is_tested_against_the_margin() -> None:
    # scipy.stats.ttest_1samp(d, 0.05, alternative="greater")
    test = paired_t(DIFFERENCES, 0.05, margin=0.05)
    assert test is not None
    assert test.p_value == pytest.approx(0.9848785304493882)


@pytest.mark.parametrize("values", [[], [0.1], [0.1, math.inf], [0.1, math.nan, 0.2], [-math.inf, 0.0]])
def test_too_few_or_infinite_differences_have_no_estimate(values: list[float]) -> None:
    assert paired_t(np.array(values), 0.05) is None
    assert two_sample_t(np.array(values), np.array([0.1, 0.2, 0.3]), 0.05) is None
    assert two_sample_t(np.array([0.1, 0.2, 0.3]), np.array(values), 0.05) is None


def test_no_difference_anywhere_is_no_harm() -> None:
    test = paired_t(np.zeros(6), 0.05)
    assert test is not None
    assert (test.mean, test.limits.lower, test.limits.upper, test.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_equal_differences_show_no_more_harm_than_their_number_allows() -> None:
    few, many = paired_t(np.full(2, 0.1), 0.05), paired_t(np.full(6, 0.1), 0.05)
    assert few is not None
    assert many is not None
    assert (few.p_value, many.p_value) == (0.25, 2**-6)
    beyond = paired_t(np.full(6, 0.1), 0.05, margin=0.1)
    assert beyond is not None
    assert beyond.p_value == 1.0


def test_rounding_is_not_spread() -> None:
    # Both are a tenth; 0.3 - 0.2 and 0.2 - 0.1 differ in the last bit, and t would call that certain.
    test = paired_t(np.array([0.3 - 0.2, 0.2 - 0.1]), 0.05)
    assert test is not None
    assert test.p_value == 0.25


def test_paired_t_limits_cover_as_promised() -> None:
    generator = np.random.default_rng(7)
    runs = [paired_t(generator.normal(0.03, 0.02, size=5), 0.05) for _ in range(2000)]
    tests = [test for test in runs if test is not None]
    assert len(tests) == 2000
    # Three standard errors of a share of 5 % in 2,000 are 1.5 points.
    assert np.mean([test.limits.upper < 0.03 for test in tests]) == pytest.approx(0.05, abs=0.015)
    assert np.mean([test.limits.lower > 0.03 for test in tests]) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(
    ("cv", "pairs", "change", "promoted", "blocked"),
    [
        # Operating characteristics of the three-way rule at a margin of 5 %: 20,000 simulations elsewhere.
        (0.02, 5, 0.0, 0.93, 0.01),
        (0.02, 5, 0.05, 0.05, 0.89),
        (0.03, 10, 0.025, 0.51, 0.38),
    ],
)
def test_operating_characteristics_of_the_three_way_rule(
    cv: float, pairs: int, change: float, promoted: float, blocked: float
) -> None:
    generator, margin = np.random.default_rng(3), math.log1p(0.05)
    drawn = generator.normal(math.log1p(change), math.sqrt(2) * cv, size=(1500, pairs))
    tests: list[MeanTest] = [test for row in drawn if (test := paired_t(row, 0.05)) is not None]
    within = np.array([test.limits.upper < margin for test in tests])
    harmed = np.array([test.p_value <= 0.05 for test in tests])
    assert np.mean(within) == pytest.approx(promoted, abs=0.04)
    assert np.mean(~within & harmed) == pytest.approx(blocked, abs=0.04)


def test_two_sample_t_is_welchs() -> None:
    # scipy.stats.ttest_ind(b, a, equal_var=False, alternative="greater") and its confidence_interval(0.90)
    test = two_sample_t(np.array([1.0, 1.2, 0.9, 1.1]), np.array([1.4, 1.3, 1.6]), 0.05)
    assert test is not None
    assert test.p_value == pytest.approx(0.012572156470615567)
    assert test.limits.lower == pytest.approx(0.14965282809200475)
    assert test.limits.upper == pytest.approx(0.6170138385746622)
    assert test.n == 3


def test_two_groups_without_spread_show_no_more_than_a_permutation_could() -> None:
    test = two_sample_t(np.full(3, 1.0), np.full(2, 1.5), 0.05)
    assert test is not None
    assert test.mean == 0.5
    assert test.p_value == pytest.approx(1 / 10)
    same = two_sample_t(np.full(3, 1.0), np.full(2, 1.0), 0.05)
    assert same is not None
    assert same.p_value == 1.0


def slow_sign_flip_p(differences: list[int]) -> float:
    observed, patterns = sum(differences), list(itertools.product((1, -1), repeat=len(differences)))
    sums = [sum(s * abs(d) for s, d in zip(signs, differences, strict=True)) for signs in patterns]
    return sum(total >= observed for total in sums) / len(patterns)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_sign_flip_p_is_the_share_of_sign_patterns(differences: list[int]) -> None:
    # A tenth is not exact in binary, so that sums of equal size differ by rounding.
    assert sign_flip_p(np.array(differences) / 10) == slow_sign_flip_p(differences)


def test_sign_flip_of_six_blocks() -> None:
    # scipy.stats.permutation_test((d,), np.mean, permutation_type="samples", alternative="greater", n_resamples=inf)
    assert sign_flip_p(DIFFERENCES) == 0.0625


def test_five_blocks_one_way_are_the_fewest_that_reach_five_percent() -> None:
    assert sign_flip_p(np.full(5, 0.1)) == 2**-5
    assert sign_flip_p(np.full(4, 0.1)) == 2**-4


def test_exact_sign_flips_go_up_to_twenty_differences() -> None:
    assert sign_flip_p(np.arange(1.0, 21.0)) == 2**-20


def test_sampled_sign_flips_need_a_generator_and_repeat_with_it() -> None:
    differences = np.random.default_rng(5).normal(0.3, 1.0, size=40)
    with pytest.raises(ValueError, match="generator"):
        sign_flip_p(differences)
    first = sign_flip_p(differences, generator=np.random.default_rng(1))
    second = sign_flip_p(differences, generator=np.random.default_rng(1))
    test = paired_t(differences, 0.05)
    assert test is not None
    assert first == second == pytest.approx(test.p_value, abs=0.02)


def test_sampled_sign_flips_never_give_zero() -> None:
    assert sign_flip_p(np.full(40, 1.0), generator=np.random.default_rng(1)) == pytest.approx(1e-4)


@pytest.mark.parametrize("values", [[], [math.nan, 1.0], [math.inf, 1.0]])
def test_sign_flips_of_broken_differences_are_undefined(values: list[float]) -> None:
    assert sign_flip_p(np.array(values)) is None


def test_infinite_differences_count_in_the_sign_test() -> None:
    assert sign_test_p(np.array([math.inf] * 4 + [0.1])) == 2**-5
    assert sign_test_p(np.array([-math.inf] * 5)) == 1.0


def test_ties_carry_no_sign() -> None:
    assert sign_test_p(np.array([0.0, 0.0, 0.3, 0.1, 0.2])) == 2**-3
    assert sign_test_p(np.zeros(4)) == 1.0


@pytest.mark.parametrize("values", [[], [math.nan, 1.0]])
def test_sign_test_without_differences_is_undefined(values: list[float]) -> None:
    assert sign_test_p(np.array(values)) is None
