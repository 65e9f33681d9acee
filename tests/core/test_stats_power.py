"""How many pairs and items a margin needs: the published tables of the decision procedure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.stats.distributions import binom_sf
from benchgate.stats.means import paired_t
from benchgate.stats.power import (
    blocks_for_power,
    items_for_power,
    minimum_detectable_difference,
    minimum_detectable_excess,
    minimum_detectable_regression,
    paired_t_power,
    prompts_for_excess,
)


def pairs_needed(cv: float, change: float, power: float = 0.95) -> int | None:
    """Blocks for a change of a value that varies by `cv` from block to block on each arm by itself."""
    return blocks_for_power(math.sqrt(2) * cv, math.log1p(change), power=power)


@pytest.mark.parametrize(
    ("cv", "pairs"),
    [
        (0.01, (5, 3, 3, 2)),
        (0.02, (12, 6, 3, 3)),
        (0.03, (24, 10, 4, 3)),
        (0.05, (64, 25, 8, 4)),
        (0.08, (160, 60, 17, 6)),
        (0.10, (250, 93, 26, 9)),
        (0.15, (559, 206, 55, 17)),
    ],
)
def test_pairs_needed_for_a_change_of_3_5_10_and_20_percent(cv: float, pairs: tuple[int, ...]) -> None:
    assert tuple(pairs_needed(cv, change) for change in (0.03, 0.05, 0.10, 0.20)) == pairs


@pytest.mark.parametrize(("cv", "pairs"), [(0.03, (15, 7, 4, 3)), (0.05, (37, 15, 6, 3)), (0.10, (143, 54, 16, 6))])
def test_less_power_needs_fewer_pairs(cv: float, pairs: tuple[int, ...]) -> None:
    assert tuple(pairs_needed(cv, change, power=0.8) for change in (0.03, 0.05, 0.10, 0.20)) == pairs


def test_planned_pairs_find_the_change_they_were_planned_for() -> None:
    drawn = np.random.default_rng(1).normal(math.log1p(0.05), math.sqrt(2) * 0.03, size=(1000, 10))
    found = [test.p_value <= 0.05 for row in drawn if (test := paired_t(row, 0.05)) is not None]
    assert np.mean(found) == pytest.approx(0.95, abs=0.025)


def test_a_hopeless_plan_has_no_number() -> None:
    assert pairs_needed(1.5, 0.0001) is None


@pytest.mark.parametrize(
    ("discordance", "margin", "items", "items_at_80_percent"),
    [
        (0.02, 0.01, 2160, 1235),
        (0.02, 0.02, 536, 308),
        (0.035, 0.01, 3783, 2162),
        (0.035, 0.02, 942, 539),
        (0.035, 0.03, 416, 239),
        (0.05, 0.005, 21639, 12364),
        (0.05, 0.01, 5406, 3090),
        (0.05, 0.02, 1348, 771),
        (0.05, 0.03, 596, 342),
        (0.05, 0.05, 211, 122),
        (0.08, 0.01, 8653, 4944),
        (0.08, 0.02, 2160, 1235),
        (0.08, 0.03, 957, 548),
        (0.08, 0.05, 341, 196),
        (0.10, 0.01, 10817, 6181),
        (0.10, 0.02, 2701, 1544),
        (0.10, 0.03, 1198, 685),
        (0.10, 0.05, 428, 246),
        (0.15, 0.01, 16228, 9272),
        (0.15, 0.02, 4053, 2317),
        (0.20, 0.01, 21639, 12364),
        (0.20, 0.02, 5406, 3090),
    ],
)
def test_items_needed(discordance: float, margin: float, items: int, items_at_80_percent: int) -> None:
    assert items_for_power(discordance, margin) == items
    assert items_for_power(discordance, margin, power=0.8) == items_at_80_percent


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="margin"):
        items_for_power(0.01, 0.02)
    with pytest.raises(ValueError, match="above 0"):
        blocks_for_power(0.0, 0.05)
    with pytest.raises(ValueError, match="power"):
        items_for_power(0.05, 0.02, power=1.0)
    with pytest.raises(ValueError, match="alpha"):
        blocks_for_power(0.02, 0.05, alpha=0.7)


def test_a_chance_of_finding_it_is_that_of_drawn_differences() -> None:
    drawn = np.random.default_rng(2).normal(0.05, 0.06, size=(4000, 8))
    found = [test.p_value <= 0.05 for row in drawn if (test := paired_t(row, 0.05)) is not None]
    assert paired_t_power(8, 0.06, 0.05) == pytest.approx(np.mean(found), abs=0.025)
    assert paired_t_power(1, 0.06, 0.05) == 0
    assert paired_t_power(8, 0.06, 0.0) == pytest.approx(0.05)


@pytest.mark.parametrize("power", [0.8, 0.95])
def test_the_smallest_harm_that_is_seen_is_the_one_that_takes_so_many_blocks(power: float) -> None:
    harm = minimum_detectable_regression(10, 0.05, power=power)
    assert harm is not None
    assert paired_t_power(10, 0.05, harm) == pytest.approx(power, abs=1e-6)
    assert blocks_for_power(0.05, harm * 1.0001, power=power) == 10
    assert minimum_detectable_regression(1, 0.05) is None


def test_no_harm_is_told_that_no_number_holds() -> None:
    assert minimum_detectable_regression(2, 1.0, alpha=1e-15, power=0.999) is None


def test_the_smallest_difference_of_items_is_the_one_that_takes_so_many() -> None:
    seen = minimum_detectable_difference(1348, 0.05, power=0.95)
    assert seen is not None
    assert seen == pytest.approx(0.02, abs=1e-4)
    # above the discordance, items that are lost are what differs
    harm = minimum_detectable_difference(30, 0.01)
    assert harm is not None
    assert items_for_power(harm, harm, power=0.8) == 30
    assert minimum_detectable_difference(1, 0.05) is None


@pytest.mark.parametrize(("n", "itself"), [(1000, 0.0), (1000, 0.05), (400, 0.3)])
def test_the_smallest_excess_is_shown_as_often_as_is_said(n: int, itself: float) -> None:
    excess = minimum_detectable_excess(n, itself, power=0.8)
    assert excess is not None
    assert prompts_for_excess(itself, excess, power=0.8) == pytest.approx(n, abs=1)
    shares = [itself / 2 + excess, itself, 1 - 1.5 * itself - excess]
    drawn = np.random.default_rng(5).multinomial(n, shares, size=2000).tolist()
    shown = [binom_sf(more - 1, more + fewer, 1 / 3) <= 0.05 for more, fewer, _ in drawn]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.08)  # rather less: the exact test spends less than 5 %


def test_no_excess_is_enough_for_a_few_prompts() -> None:
    assert minimum_detectable_excess(2, 0.05) is None
    assert minimum_detectable_excess(1000, 0.7) is None


def test_powers_of_what_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="deviation"):
        paired_t_power(5, 0.0, 0.1)
    with pytest.raises(ValueError, match="above 0"):
        blocks_for_power(0.1, 0.0)
    with pytest.raises(ValueError, match="discordance"):
        minimum_detectable_difference(0, 0.05)
    with pytest.raises(ValueError, match="excess"):
        prompts_for_excess(0.1, 0.0)
