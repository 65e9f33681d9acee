from __future__ import annotations

import random

import pytest

from benchgate.stats.series import population_stability_index


def test_index_is_the_sum_over_categories_of_the_textbook() -> None:
    # Without the half that is added to every count: (0.5-0.25) ln(0.5/0.25) * 2 = 0.34657 (worked by hand)
    found = population_stability_index([25_000, 25_000, 50_000], [50_000, 0, 50_000])
    assert found is not None
    assert found.index == pytest.approx(0.25 * 0.693147 + 0.25 * 10.8198, rel=1e-3)
    even = population_stability_index([250_000, 500_000, 250_000], [500_000, 250_000, 250_000])
    assert even is not None
    assert even.index == pytest.approx(0.346574, abs=1e-4)


def test_a_half_is_added_to_every_count_and_to_the_sums_what_that_comes_to() -> None:
    # Shares 3.5/5 and 1.5/5 against 1.5/5 and 3.5/5: 2 * 0.4 * ln(7/3)
    found = population_stability_index([3, 1], [1, 3])
    assert found is not None
    assert found.index == pytest.approx(0.8 * 0.8472979, abs=1e-6)
    smaller = population_stability_index(
        [1, 0], [0, 4]
    )  # 1.5/2 and 0.5/2 against 0.5/5 and 4.5/5: 0.65 * (ln 7.5 + ln 3.6)
    assert smaller is not None
    assert smaller.index == pytest.approx(0.65 * (2.0149030 + 1.2809338), abs=1e-6)
    assert population_stability_index([0, 0], [3, 1]) is None


def test_chance_is_the_quantile_of_chi_square_over_the_sizes() -> None:
    found = population_stability_index([40, 30, 20, 10], [400, 300, 200, 100])
    assert found is not None
    assert found.chance == pytest.approx(11.344867 * (1 / 100 + 1 / 1000))  # scipy.stats.chi2.ppf(0.99, 3)


def test_equal_distributions_exceed_chance_once_in_a_hundred_times() -> None:
    chance = random.Random(3)
    beyond = 0
    for _ in range(1000):
        was, now = ([0] * 5 for _ in range(2))
        for counts, n in ((was, 256), (now, 512)):
            for category in chance.choices(range(5), k=n):
                counts[category] += 1
        found = population_stability_index(was, now)
        assert found is not None
        beyond += found.index > found.chance
    assert 1 <= beyond <= 24


def test_nothing_to_compare_has_no_index() -> None:
    assert population_stability_index([], []) is None
    assert population_stability_index([3, 1], [0, 0]) is None
    only = population_stability_index([3], [5])
    assert only is not None
    assert (only.index, only.chance) == (0.0, 0.0)
    with pytest.raises(ValueError, match="same ones"):
        population_stability_index([1, 2], [1])
