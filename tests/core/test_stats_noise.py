"""Spread, block bootstrap and the difference of two runs: against tables, scipy and simulations with known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import deviation_limits, pooled_deviation
from benchgate.stats.means import VarianceComponent, combined_t
from benchgate.stats.series import bootstrap_block_length, moving_block_error


def mean(values: FloatArray) -> float:
    return float(np.mean(values))


def median(values: FloatArray) -> float:
    return float(np.median(values))


def ar1(generator: np.random.Generator, n: int, rho: float) -> FloatArray:
    """A series whose neighbours are alike, of variance 1."""
    values = np.empty(n)
    values[0] = generator.normal()
    for at in range(1, n):
        values[at] = rho * values[at - 1] + generator.normal() * math.sqrt(1 - rho**2)
    return values


def test_limits_of_a_standard_deviation_are_those_of_the_chi_square_tables() -> None:
    limits = deviation_limits(0.04, 10, 0.05)  # chi-square of 9 degrees: 16.919 and 3.325
    assert limits.lower == pytest.approx(0.04 * math.sqrt(9 / 16.919), rel=1e-4)
    assert limits.upper == pytest.approx(0.04 * math.sqrt(9 / 3.325), rel=1e-4)
    with pytest.raises(ValueError, match="1 values have no standard deviation"):
        deviation_limits(0.04, 1, 0.05)
    with pytest.raises(ValueError, match="alpha"):
        deviation_limits(0.04, 10, 0.5)


def test_limits_of_a_standard_deviation_hold_the_true_one_as_often_as_they_say() -> None:
    generator = np.random.default_rng(1)
    found = [deviation_limits(float(np.std(generator.normal(0, 2, 8), ddof=1)), 8, 0.05) for _ in range(2000)]
    assert np.mean([limits.lower > 2 for limits in found]) == pytest.approx(0.05, abs=0.02)
    assert np.mean([limits.upper < 2 for limits in found]) == pytest.approx(0.05, abs=0.02)


def test_pooled_deviation_takes_each_group_about_its_own_mean() -> None:
    first, second = np.array([1.0, 2.0, 3.0]), np.array([11.0, 13.0, 15.0])
    assert pooled_deviation(first, second) == pytest.approx(math.sqrt((1 + 4) / 2))


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, math.inf], [1.0, 2.0]), ([1.0, 2.0], [math.nan, 2.0])],
)
def test_pooled_deviation_of_what_has_none_is_none(first: list[float], second: list[float]) -> None:
    assert pooled_deviation(np.array(first), np.array(second)) is None


def test_blocks_are_as_long_as_the_cube_root() -> None:
    assert [bootstrap_block_length(n) for n in (1, 8, 27, 28, 1000)] == [1, 2, 3, 4, 10]


def test_bootstrap_of_independent_values_knows_the_errors_of_mean_and_median() -> None:
    generator = np.random.default_rng(2)
    values = generator.normal(0, 3, 2000)
    of_mean = moving_block_error(values, mean, generator, draws=400)
    of_median = moving_block_error(values, median, generator, draws=400)
    assert of_mean == pytest.approx(3 / math.sqrt(2000), rel=0.15)
    assert of_median == pytest.approx(1.2533 * 3 / math.sqrt(2000), rel=0.25)


def test_bootstrap_covers_the_mean_of_a_series_whose_neighbours_are_alike() -> None:
    generator = np.random.default_rng(3)
    covered, naive = [], []
    for _ in range(200):
        values = ar1(generator, 512, 0.5)
        error = moving_block_error(values, mean, generator, draws=100)
        assert error is not None
        covered.append(abs(mean(values)) <= 1.96 * error)
        naive.append(abs(mean(values)) <= 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values)))
    assert np.mean(covered) >= 0.87
    assert np.mean(naive) < 0.80  # as if requests were independent


def test_bootstrap_says_nothing_of_few_values_or_of_failures() -> None:
    generator = np.random.default_rng(4)
    assert moving_block_error(np.ones(19), mean, generator) is None
    assert moving_block_error(np.ones(20), mean, generator) == 0.0
    failing = np.where(np.arange(100) % 2 == 0, np.inf, 1.0)
    assert moving_block_error(failing, mean, generator) is None


def test_same_generator_gives_the_same_error() -> None:
    values = np.random.default_rng(5).normal(size=64)
    errors = {moving_block_error(values, mean, np.random.default_rng(6)) for _ in range(2)}
    assert len(errors) == 1


def test_two_parts_alone_are_welchs_t() -> None:
    generator = np.random.default_rng(7)
    first, second = generator.normal(0, 1, 6), generator.normal(0.5, 3, 11)
    parts = [VarianceComponent(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in (first, second)]
    found = combined_t(mean(second) - mean(first), parts, 0.05, margin=0.1)
    known = stats.ttest_ind(second - 0.1, first, equal_var=False, alternative="greater")
    interval = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.90)
    assert found is not None
    assert found.p_value == pytest.approx(known.pvalue)
    assert (found.limits.lower, found.limits.upper) == pytest.approx((interval.low, interval.high))
    assert found.freedom == pytest.approx(known.df)


def test_what_lies_between_runs_widens_the_limits_and_costs_degrees_of_freedom() -> None:
    own = [VarianceComponent(1e-4, 9), VarianceComponent(1e-4, 9)]
    narrow, wide = combined_t(0.0, own, 0.05), combined_t(0.0, [*own, VarianceComponent(2 * 0.05**2, 3)], 0.05)
    assert narrow is not None and wide is not None
    assert wide.error == pytest.approx(math.sqrt(2e-4 + 2 * 0.05**2))
    assert wide.freedom < 4 < narrow.freedom
    assert wide.limits.upper > 3 * narrow.limits.upper


def test_limits_cover_the_difference_of_runs_that_differ_as_a_calibration_says() -> None:
    generator = np.random.default_rng(8)
    cv, blocks, above, below, harmed = 0.05, 6, 0, 0, 0
    for _ in range(3000):
        profile = generator.normal(0, cv, 10)
        runs = [generator.normal(0, cv) + generator.normal(0, 0.02, blocks) for _ in range(2)]
        parts = [VarianceComponent(float(np.var(run, ddof=1)) / blocks, blocks - 1) for run in runs]
        parts.append(VarianceComponent(2 * float(np.var(profile, ddof=1)), 9))
        found = combined_t(mean(runs[1]) - mean(runs[0]), parts, 0.05)
        assert found is not None
        above += found.limits.lower > 0
        below += found.limits.upper < 0
        harmed += found.p_value <= 0.05
    for rate in (above / 3000, below / 3000, harmed / 3000):
        assert rate == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(
    ("estimate", "parts"),
    [
        (0.1, [VarianceComponent(0.0, 5)]),
        (0.1, [VarianceComponent(1e-32, 5)]),
        (math.inf, [VarianceComponent(1.0, 5)]),
        (0.1, [VarianceComponent(math.inf, 5)]),
        (0.1, []),
    ],
)
def test_nothing_is_said_without_a_finite_spread(estimate: float, parts: list[VarianceComponent]) -> None:
    assert combined_t(estimate, parts, 0.05) is None


def test_part_without_degrees_of_freedom_is_refused() -> None:
    with pytest.raises(ValueError, match="degrees of freedom"):
        combined_t(0.1, [VarianceComponent(1.0, 0)], 0.05)
    with pytest.raises(ValueError, match="alpha"):
        combined_t(0.1, [VarianceComponent(1.0, 5)], 0.6)
