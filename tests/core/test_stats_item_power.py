"""What a number of items can show: the published tables of the decision procedure and formulas of others."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchgate.stats.clusters import cluster_mean
from benchgate.stats.distributions import binom_pmf, norm_ppf
from benchgate.stats.evals import excess_disagreement
from benchgate.stats.power import effective_items, excess_noninferiority_power, tango_noninferiority_power
from benchgate.stats.proportions import tango_limits


@pytest.mark.parametrize(("n", "flips", "margin"), [(500, 0.05, 0.02), (164, 0.06, 0.05), (1319, 0.05, 0.01)])
def test_chance_that_an_equal_candidate_passes_is_what_draws_give(n: int, flips: float, margin: float) -> None:
    drawn = np.random.default_rng(21).multinomial(n, [flips / 2, flips / 2, 1 - flips], size=10_000)
    seen = Counter((int(b), int(c)) for b, c in drawn[:, :2])
    passed = sum(times for (b, c), times in seen.items() if tango_limits(b, c, n, 0.05).upper < margin)
    assert tango_noninferiority_power(n, flips, margin) == pytest.approx(passed / 10_000, abs=0.015)


def test_a_candidate_at_the_margin_passes_at_most_as_often_as_promised() -> None:
    assert 0.03 <= tango_noninferiority_power(500, 0.05, 0.02, harm=0.02) <= 0.05


def test_arms_that_never_differ_pass_when_there_are_items_enough() -> None:
    assert (tango_noninferiority_power(100, 0.0, 0.02), tango_noninferiority_power(200, 0.0, 0.02)) == (0.0, 1.0)
    assert tango_noninferiority_power(100, 1.0, 0.02, harm=1.0) == 0.0


def test_standard_error_of_an_accuracy_is_lm_evals() -> None:
    right = round(0.8893 * 1319)
    found = cluster_mean(np.array([1.0] * right + [0.0] * (1319 - right)))
    assert found is not None and found.error == pytest.approx(0.00864, abs=5e-6)


def test_binomial_law_sums_to_one_and_has_its_mean() -> None:
    law = binom_pmf(np.arange(41), 40, 0.3)
    assert law.sum() == pytest.approx(1.0)
    assert law @ np.arange(41) == pytest.approx(12.0)
    assert law[0] == pytest.approx(0.7**40)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="harm"):
        tango_noninferiority_power(100, 0.01, 0.02, harm=0.02)
    with pytest.raises(ValueError, match="alpha"):
        tango_noninferiority_power(100, 0.1, 0.02, alpha=0.9)
    assert norm_ppf(0.95) == pytest.approx(1.6448536)


@pytest.mark.parametrize(("n", "itself", "margin"), [(400, 0.05, 0.02), (1000, 0.3, 0.05), (120, 0.02, 0.05)])
def test_chance_that_an_equals_disagreement_is_shown_to_be_small_is_what_draws_give(
    n: int, itself: float, margin: float
) -> None:
    generator = np.random.default_rng(8)
    # three answers of equals: the candidate is the odd one of three as often as either of the baseline's
    kinds = generator.choice(3, p=[itself / 2, itself, 1 - 1.5 * itself], size=(400, n))
    passed = []
    for row in kinds:
        x = np.where(row == 0, 1.0, np.where(row == 1, 0.5, 0.0))
        found = excess_disagreement(x, np.where(row == 1, 1.0, 0.0), 0.05)
        assert found is not None
        passed.append(found.limits.upper < margin)
    assert excess_noninferiority_power(n, itself, margin) == pytest.approx(np.mean(passed), abs=0.075)


def test_a_baseline_that_never_differs_from_itself_leaves_all_or_nothing() -> None:
    assert (excess_noninferiority_power(20, 0.0, 0.02), excess_noninferiority_power(500, 0.0, 0.02)) == (0.0, 1.0)


def test_items_of_clusters_are_worth_their_number_of_clusters_at_least() -> None:
    assert effective_items(400, 40, 0.0) == 400
    assert effective_items(400, 40, 1.0) == 40
    assert effective_items(400, 40, 0.3) == 108  # 400 / (1 + 9 * 0.3)


def test_disagreements_and_clusters_that_cannot_be_are_refused() -> None:
    for n, itself, margin in ((0, 0.1, 0.1), (10, 0.7, 0.1), (10, 0.1, 1.0)):
        with pytest.raises(ValueError, match="expected prompts"):
            excess_noninferiority_power(n, itself, margin)
    for n, clusters, alike in ((10, 0, 0.5), (10, 11, 0.5), (10, 5, 1.5)):
        with pytest.raises(ValueError, match="clusters"):
            effective_items(n, clusters, alike)
