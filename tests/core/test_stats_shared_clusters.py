"""Averages over tasks whose items share clusters: one error for all, against plain formulas and by simulation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import join_tasks, label_units, mean_share_limits, mean_share_p
from benchgate.stats.evals import (
    ScorePairs,
    accuracy_regression,
    excess_change_of_tasks,
    excess_of_tasks,
    score_retention,
)

ALPHA = 0.05
Sizes = tuple[int, ...]  # of tasks that all ask the first documents of the same
Labels = list[tuple[str, ...] | None]


def test_units_share_the_names_of_their_documents_and_declared_clusters_and_of_nothing_else() -> None:
    units: list[list[list[tuple[str | None, str]]]] = [
        [[(None, "a"), (None, "b")]],
        [[(None, "b"), (None, "c")]],
        [[(None, "x"), (None, "y")]],
        [[("p", "d")]],
        [[("p", "e")]],
    ]
    first, second, third, fourth, fifth = label_units(units)
    assert first is not None and second is not None
    assert first[1] == second[0]
    assert len({*first, *second}) == 3
    assert third is None
    assert fourth == fifth
    together, between = join_tasks([2, 2], [first, second]), join_tasks([2, 2, 2], [first, None, second])
    assert together is not None and between is not None
    assert together.clusters == (*first, *second)
    assert len(set(between.clusters)) == 5
    assert join_tasks([2, 2], [first, None]) is None
    assert join_tasks([2, 2], [None, None]) is None


def test_the_error_of_tasks_on_the_same_documents_is_that_of_each_documents_average() -> None:
    generator = np.random.default_rng(3)
    tasks = [generator.normal(size=50), generator.normal(size=50)]
    joined = join_tasks([50, 50], [tuple(f"d{i}" for i in range(50))] * 2)
    assert joined is not None
    found, averages = joined.mean(tasks), (tasks[0] + tasks[1]) / 2
    assert found is not None
    assert (found.mean, found.error) == pytest.approx((averages.mean(), averages.std(ddof=1) / 50**0.5))
    assert found.clusters == 50


def test_the_error_of_tasks_of_unlike_sizes_is_by_each_items_weight_and_by_the_clusters_that_have_it() -> None:
    generator = np.random.default_rng(4)
    tasks = [generator.normal(size=n) for n in (300, 12, 7)]
    joined = join_tasks([300, 12, 7], [tuple(f"d{i}" for i in range(n)) for n in (300, 12, 7)])
    sums = np.zeros(300)
    for values in tasks:
        sums[: len(values)] += (values - values.mean()) / (3 * len(values))
    assert joined is not None
    found = joined.mean(tasks)
    assert found is not None
    weights = np.array([1 / 300 + 1 / 12 + 1 / 7] * 7 + [1 / 300 + 1 / 12] * 5 + [1 / 300] * 288)
    assert found.clusters == joined.worth == int((weights**2).sum() ** 2 / (weights**4).sum()) == 8
    assert found.mean == pytest.approx(np.mean([values.mean() for values in tasks]))
    assert found.error == pytest.approx((8 / 7 * float(np.sum(sums**2))) ** 0.5)


def test_one_cluster_of_nearly_all_items_leaves_next_to_nothing_shown() -> None:
    names = (*("most",) * 1000, *(f"c{i}" for i in range(9)))
    both = np.where(np.arange(1009) % 10 == 0, 0.0, 1.0)
    found = accuracy_regression([ScorePairs(both, np.roll(both, 1), names)] * 2, ALPHA)
    assert found.limits.upper > 0.1


def labels_of(sizes: Sizes) -> Labels:
    return label_units([[[(None, f"d{i}") for i in range(n)]] for n in sizes])


def asked_by_all(values: FloatArray, sizes: Sizes) -> list[FloatArray]:
    return [values[:n] for n in sizes]


def lost(drawn: FloatArray) -> tuple[FloatArray, FloatArray]:
    """10 % of the documents are lost and 5 % gained: a regression of 5 points."""
    return np.where(drawn >= 0.95, 0.0, 1.0), np.where(drawn < 0.1, 0.0, 1.0)


def regression_holds(drawn: FloatArray, sizes: Sizes, labels: Labels) -> bool:
    theirs, ours = (asked_by_all(one, sizes) for one in lost(drawn))
    tasks = [ScorePairs(*one) for one in zip(theirs, ours, labels, strict=True)]
    return accuracy_regression(tasks, ALPHA, tested=0.05).limits.upper < 0.05


def retention_holds(drawn: FloatArray, sizes: Sizes, labels: Labels) -> bool:
    theirs, ours = (asked_by_all(one, sizes) for one in lost(drawn))
    found = score_retention([ScorePairs(*one) for one in zip(theirs, ours, labels, strict=True)], ALPHA)
    return found is not None and found.limits is not None and found.limits.lower > 0.9 / 0.95


def floor_holds(drawn: FloatArray, sizes: Sizes, labels: Labels) -> bool:
    shares = asked_by_all(np.where(drawn < 0.8, 1.0, 0.0), sizes)
    found, p_value = mean_share_limits(shares, labels, ALPHA), mean_share_p(shares, labels, 0.8, ALPHA)
    assert found is not None and p_value is not None
    assert (p_value < ALPHA) is (found[0].upper < 0.8)
    return found[0].lower > 0.8


def flips_hold(drawn: FloatArray, sizes: Sizes, labels: Labels) -> bool:
    x, y = (asked_by_all(np.where(drawn < share, 1.0, 0.0), sizes) for share in (0.08, 0.0))
    found = excess_of_tasks(list(zip(x, y, labels, strict=True)), ALPHA, margin=0.08)
    return found is not None and found.limits.upper < 0.08


def change_holds(drawn: FloatArray, sizes: Sizes, labels: Labels) -> bool:
    judged, reference = (asked_by_all(np.where(drawn < share, 1.0, 0.0), sizes) for share in (0.2, 0.0))
    found = excess_change_of_tasks(list(zip(judged, reference, labels, strict=True)), ALPHA, margin=0.2)
    return found is not None and found.limits.upper < 0.2


@pytest.mark.parametrize("sizes", [(180, 120), (400, 80, 80)])
@pytest.mark.parametrize(
    "holds",
    [
        retention_holds,
        change_holds,
        *(pytest.param(holds, marks=pytest.mark.slow) for holds in (regression_holds, floor_holds, flips_hold)),
    ],
)
def test_one_question_in_several_tasks_is_not_shown_more_often_at_the_margin(
    holds: Callable[[FloatArray, Sizes, Labels], bool], sizes: Sizes
) -> None:
    generator, runs = np.random.default_rng(11), 400
    draws = [generator.random(sizes[0]) for _ in range(runs)]
    shared = sum(holds(drawn, sizes, labels_of(sizes)) for drawn in draws)
    apart = sum(holds(drawn, sizes, [None] * len(sizes)) for drawn in draws)
    assert shared <= 33  # 5 % promised: 34 or more come 4 times in 1,000
    assert apart > 33  # what items of different tasks would show, if they were independent
