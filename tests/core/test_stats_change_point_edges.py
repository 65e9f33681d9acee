"""Where a series changed: the statistic by its definition, changes where they are, and none where there is none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.series import best_split, change_points, level_changes

STEP = np.array([0.0, 0.1, 0.2, 0.1, 0.0, 5.0, 5.1, 5.2, 5.1, 5.0])


def energy(before: FloatArray, after: FloatArray) -> float:
    """nm/(n+m) times the energy distance, by its definition over all pairs."""
    across = float(np.mean([abs(x - y) for x in before for y in after]))
    inside = [float(np.mean([abs(x - y) for x, y in itertools.combinations(side, 2)])) for side in (before, after)]
    return len(before) * len(after) / (len(before) + len(after)) * (2 * across - sum(inside))


def test_best_split_is_the_largest_energy_distance_over_all_cuts_and_ends() -> None:
    generator = np.random.default_rng(1)
    for least in (2, 3):
        values = np.concatenate([generator.normal(0, 1, 7), generator.normal(1.5, 1, 5)])
        every = {
            cut: max(energy(values[:cut], values[cut:end]) for end in range(cut + least, 13))
            for cut in range(least, 13 - least)
        }
        found = best_split(values, least)
        assert found is not None
        assert found.distance == pytest.approx(max(every.values()))
        assert every[found.at] == pytest.approx(found.distance)


def test_no_room_for_two_stretches_or_no_spread_is_no_split() -> None:
    assert best_split(STEP[:9], 5) is None
    assert best_split(STEP, 5) is not None
    assert best_split(np.ones(40), 5) is None


def test_a_step_is_found_where_it_is_with_the_medians_of_both_sides() -> None:
    (change,) = change_points(STEP, np.random.default_rng(0), 0.05)
    assert (change.at, change.before, change.after) == (5, 0.1, 5.1)
    assert 1 / 500 <= change.p_value <= 0.05


def test_two_steps_are_found_in_order() -> None:
    generator = np.random.default_rng(2)
    series = np.concatenate([generator.normal(mean, 0.1, 12) for mean in (0.0, 3.0, 1.0)])
    found = change_points(series, np.random.default_rng(0), 0.05, permutations=99)
    assert [change.at for change in found] == [12, 24]
    assert [round(change.before) for change in found] == [0, 3]
    assert [round(change.after) for change in found] == [3, 1]


def test_a_series_of_one_law_is_cut_about_as_often_as_said() -> None:
    generator = np.random.default_rng(3)
    cut = sum(
        bool(change_points(generator.normal(0, 1, 20), np.random.default_rng(seed), 0.1, permutations=19))
        for seed in range(150)
    )
    assert 4 <= cut <= 26  # 15 of 150; three standard errors are 11


def test_values_that_are_all_equal_or_too_few_never_changed() -> None:
    assert change_points(np.ones(40), np.random.default_rng(0), 0.05) == ()
    assert change_points(np.empty(0), np.random.default_rng(0), 0.05) == ()
    assert change_points(STEP[:9], np.random.default_rng(0), 0.05) == ()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused(broken: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        change_points(np.array([*STEP, broken]), np.random.default_rng(0), 0.05)


def test_so_few_permutations_that_nothing_could_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot show anything"):
        change_points(STEP, np.random.default_rng(0), 0.05, permutations=18)
    assert change_points(STEP, np.random.default_rng(0), 0.05, permutations=19) != ()
    with pytest.raises(ValueError, match="alpha"):
        change_points(STEP, np.random.default_rng(0), 0.5)


def test_levels_that_changed_twice_are_found_where_they_did_and_noise_is_not() -> None:
    values = np.random.default_rng(3).normal(0, 0.01, 36)
    values[12:24] += 0.2
    found = level_changes(values.tolist(), 1, 0.05, among=10)
    assert [change.at for change in found] == [12, 24]
    assert found[0].after - found[0].before > 0.15 > 0 > found[1].after - found[1].before
    assert level_changes(values[:12].tolist(), 1, 0.05, among=10) == ()
    assert level_changes(values[:9].tolist(), 1, 0.05, among=1) == ()  # fewer than five on each side
