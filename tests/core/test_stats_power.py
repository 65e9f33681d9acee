"""How many pairs and items a margin needs: the published tables of the decision procedure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.stats.paired import paired_t
from benchgate.stats.power import items_needed, pairs_needed


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


def test_less_power_needs_fewer_pairs() -> None:
    assert [pairs_needed(0.05, change, power=0.8) for change in (0.03, 0.05, 0.10, 0.20)] == [37, 15, 6, 3]


def test_planned_pairs_find_the_change_they_were_planned_for() -> None:
    drawn = np.random.default_rng(1).normal(math.log1p(0.05), math.sqrt(2) * 0.03, size=(1000, 10))
    found = [test.p_harm <= 0.05 for row in drawn if (test := paired_t(row, 0.05)) is not None]
    assert np.mean(found) == pytest.approx(0.95, abs=0.025)


def test_a_hopeless_plan_has_no_number() -> None:
    assert pairs_needed(1.5, 0.0001) is None


@pytest.mark.parametrize(
    ("discordance", "margin", "items", "items_at_80_percent"),
    [
        (0.02, 0.01, 2160, 1235),
        (0.035, 0.02, 942, 539),
        (0.05, 0.005, 21639, 12364),
        (0.05, 0.02, 1348, 771),
        (0.05, 0.03, 596, 342),
        (0.08, 0.05, 341, 196),
        (0.10, 0.01, 10817, 6181),
        (0.20, 0.02, 5406, 3090),
    ],
)
def test_items_needed(discordance: float, margin: float, items: int, items_at_80_percent: int) -> None:
    assert items_needed(discordance, margin) == items
    assert items_needed(discordance, margin, power=0.8) == items_at_80_percent


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="margin"):
        items_needed(0.01, 0.02)
    with pytest.raises(ValueError, match="above 0"):
        pairs_needed(0.0, 0.05)
    with pytest.raises(ValueError, match="power"):
        items_needed(0.05, 0.02, power=1.0)
    with pytest.raises(ValueError, match="alpha"):
        pairs_needed(0.02, 0.05, alpha=0.7)
