"""Clusters lost or flipped as wholes and scores that collapse: what few of them leave open, though none was seen to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.model.records import FloatArray
from benchgate.stats.evals import (
    ScorePairs,
    accuracy_regression,
    excess_change_of_tasks,
    excess_of_tasks,
    score_regression,
)


def largest_size(n: int, loss: float, limit: Callable[[int], float]) -> float:
    """The most often that n units are promoted, of which each loses all of `loss` or nothing, at any margin up to half.

    Exact: the limit of each number of lost units, and the binomial law of that number with the mean loss at the margin.
    """
    limits = np.array([limit(lost) for lost in range(n + 1)])
    margins = limits[limits < loss / 2] + 1e-9
    chances = [np.asarray(scipy_stats.binom.pmf(range(n + 1), n, margin / loss)) for margin in margins]
    return max(float(chance[limits < margin].sum()) for chance, margin in zip(chances, margins, strict=True))


@pytest.mark.parametrize("clusters", [10, 20, 50, 100])
def test_clusters_that_lose_as_wholes_are_promoted_at_the_margin_at_most_as_often_as_promised(clusters: int) -> None:
    labels, baseline = tuple(f"c{i // 5}" for i in range(5 * clusters)), np.ones(5 * clusters)

    def limit(lost: int) -> float:
        candidate = np.where(np.arange(5 * clusters) < 5 * lost, 0.0, 1.0)
        return accuracy_regression([ScorePairs(baseline, candidate, labels)], 0.05).limits.upper

    limits = [limit(lost) for lost in range(clusters // 2)]
    assert limits == sorted(limits)
    assert largest_size(clusters, 1.0, limit) <= 0.05


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("clusters", [10, 20, 50, 100])
def test_clusters_that_flip_as_wholes_pass_at_the_margin_at_most_as_often_as_promised(
    clusters: int, stored: bool
) -> None:
    labels, none = [f"c{i // 5}" for i in range(5 * clusters)], np.zeros(5 * clusters)

    def limit(flipped: int) -> float:
        return excess_limit(np.where(np.arange(5 * clusters) < 5 * flipped, 1.0, 0.0), none, none, labels, stored)

    limits = [limit(flipped) for flipped in range(clusters // 2)]
    assert limits == sorted(limits)
    assert largest_size(clusters, 1.0, limit) <= 0.05


def excess_limit(x: FloatArray, y: FloatArray, reference: FloatArray, labels: list[str], stored: bool) -> float:
    """The upper limit of the excess over clusters, in one run or over the excess of a stored one."""
    found = excess_of_tasks([(x, y, labels)], 0.05)
    if stored:
        found = excess_change_of_tasks([(x - y, reference, labels)], 0.05)
    assert found is not None
    return found.limits.upper


FLIPS = [(10, 20, 0.05, 0.3), (20, 10, 0.05, 0.6), (60, 5, 0.05, 0.6), (100, 5, 0.05, 0.9), (30, 10, 0.1, 0.3)]


def passed_at_the_margin(design: tuple[int, int, float, float], runs: int, *, stored: bool) -> float:
    """How often flips of this mean pass a margin as large, beside a baseline that flips 2% of its own answers."""
    clusters, size, share, correlation = design
    generator, noise, passed = np.random.default_rng(0), 0.02, 0
    labels, spread = [f"c{i // size}" for i in range(clusters * size)], (1 - correlation) / correlation

    def excess(flips: float) -> tuple[FloatArray, FloatArray]:
        turned = np.zeros(clusters * size, dtype=bool)
        if flips:
            own = generator.beta(flips * spread, (1 - flips) * spread, size=(clusters, 1))
            turned = (generator.random((clusters, size)) < own).reshape(-1)
        baseline, odd = (generator.random(clusters * size) < chance for chance in (noise, noise / 2))
        return np.where(baseline, 0.5, np.where(turned | odd, 1.0, 0.0)), np.where(baseline, 1.0, 0.0)

    margin = (1 - noise) * share * (1 - noise / 2) - (0.0 if stored else noise**2 / 2)
    for _ in range(runs):
        (x, y), reference = excess(share), excess(0.0)
        passed += excess_limit(x, y, reference[0] - reference[1], labels, stored) < margin
    return passed / runs


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("design", FLIPS)
def test_flips_that_lie_together_pass_at_the_margin_at_most_as_often_as_promised(
    design: tuple[int, int, float, float], stored: bool
) -> None:
    assert passed_at_the_margin(design, 200, stored=stored) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("design", FLIPS)
def test_flips_that_lie_together_pass_at_the_margin_at_most_as_often_as_promised_in_many_runs(
    design: tuple[int, int, float, float], stored: bool
) -> None:
    assert passed_at_the_margin(design, 3000, stored=stored) <= 0.05 + 3 * (0.05 * 0.95 / 3000) ** 0.5


@pytest.mark.parametrize("n", [30, 50, 100, 200])
def test_scores_that_collapse_are_promoted_at_the_margin_at_most_as_often_as_promised(n: int) -> None:
    generator, baseline = np.random.default_rng(0), np.full(n, 0.6)

    def limit(collapsed: int) -> float:
        candidate = np.where(np.arange(n) < collapsed, 0.0, 0.6)
        return score_regression(ScorePairs(baseline, candidate), 0.05, generator).limits.upper

    assert largest_size(n, 0.6, limit) <= 0.05


def test_rare_collapses_under_small_noise_are_promoted_at_the_margin_at_most_as_often_as_promised() -> None:
    generator, runs, promoted = np.random.default_rng(20), 600, Counter[float]()
    for _ in range(runs):
        baseline = generator.normal(0.6, 0.1, 200)
        noisy = baseline + generator.normal(0, 0.01, 200)
        for margin, share in ((0.01, 0.01 / 0.6), (0.02, 0.02 / 0.6), (0.02001, 0.0)):  # the last one is equal
            candidate = np.where(generator.random(200) < share, 0.0, noisy)
            promoted[margin] += score_regression(ScorePairs(baseline, candidate), 0.05, generator).limits.upper < margin
    assert promoted[0.01] / runs <= 0.06  # a simulation's own noise is 0.9 points
    assert promoted[0.02] / runs <= 0.06
    assert promoted[0.02001] == runs


def test_ten_perfect_scores_in_both_arms_are_no_certainty() -> None:
    found = score_regression(ScorePairs(np.ones(10), np.ones(10)), 0.05, np.random.default_rng(0))
    assert found.limits.upper == pytest.approx(0.2589, abs=1e-4)  # 1 - 0.05^(1/10)


def test_scores_that_never_differ_still_leave_room() -> None:
    # 1 - 0.05^(1/100) of the items may be unlike those seen, and lose what the mean item has: all of 0.5
    scores = np.linspace(0.2, 0.8, 100)
    found = score_regression(ScorePairs(scores, scores), 0.05, np.random.default_rng(0))
    assert found.limits.upper == pytest.approx(0.5 * 0.029513, rel=1e-4)
    assert found.p_value == 1.0


def test_clusters_without_any_difference_prove_as_much_as_so_many_items() -> None:
    right = {n: np.ones(10 * n) for n in (10, 100)}
    few, many = (ScorePairs(ones, ones, tuple(f"c{i // 10}" for i in range(10 * n))) for n, ones in right.items())
    assert accuracy_regression([few], 0.05).limits.upper == pytest.approx(0.2589, abs=1e-4)  # 1 - 0.05^(1/10)
    assert accuracy_regression([many], 0.05).limits.upper == pytest.approx(0.0295, abs=1e-4)
    # Over both, whatever is lost may be lost where there are the fewest clusters.
    assert accuracy_regression([few, many], 0.05).limits.upper == pytest.approx(0.1294, abs=1e-4)
