"""Mean shares over tasks: their limits where items come in clusters, of which a few may hold every miss."""

from __future__ import annotations

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import mean_share_limits, mean_share_p, share_at_least_p
from benchgate.stats.distributions import t_ppf
from benchgate.stats.proportions import clopper_pearson

ALPHA = 0.05
NOISE = 3 * (ALPHA * (1 - ALPHA)) ** 0.5  # of a simulated rate, over the root of the runs: three standard errors

# clusters, items in each, true share, intra-class correlation
HIGH = [
    (10, 20, 0.9, 0.3),
    (20, 10, 0.95, 0.5),
    (10, 20, 0.95, 0.5),
    (40, 10, 0.95, 0.5),
    (50, 4, 0.98, 0.9),
    (40, 5, 0.9, 0.3),
    (20, 10, 0.8, 0.1),
]
RARE = [(60, 10, 0.95, 0.5), (30, 10, 0.9, 0.3), (100, 10, 0.97, 0.5), (150, 5, 0.98, 0.9), (60, 5, 0.95, 0.9)]
LOW = [(10, 20, 0.1, 0.3), (20, 10, 0.05, 0.5), (60, 10, 0.05, 0.5), (30, 10, 0.1, 0.3), (20, 10, 0.5, 0.5)]

Design = tuple[int, int, float, float]


def labels(clusters: int, size: int, task: int = 0) -> list[str]:
    return [f"t{task}/c{i // size}" for i in range(clusters * size)]


def drawn(generator: np.random.Generator, design: Design, task: int = 0) -> tuple[FloatArray, list[str]]:
    """Items of clusters whose own shares follow a beta law around the true one; in task 1 three times as many."""
    times = 1 + 2 * task
    clusters, size, share, correlation = design
    spread = (1 - correlation) / correlation
    own = generator.beta(share * spread, (1 - share) * spread, size=(clusters * times, 1))
    right = generator.random((clusters * times, size)) < own
    return right.astype(np.float64).reshape(-1), labels(clusters * times, size, task)


def wrong_limits(design: Design, runs: int, *, tasks: int = 1) -> tuple[float, float]:
    """How often the lower limit is above the true share, and how often a test against it as floor fails it."""
    generator, above, failed = np.random.default_rng(0), 0, 0
    for _ in range(runs):
        found = [drawn(generator, design, task) for task in range(tasks)]
        scores, clusters = [one for one, _ in found], [names for _, names in found]
        limits, p_value = mean_share_limits(scores, clusters, ALPHA), mean_share_p(scores, clusters, design[2], ALPHA)
        assert limits is not None and p_value is not None
        assert (limits[0].upper < design[2]) is (p_value < ALPHA)
        above += limits[0].lower > design[2]
        failed += p_value <= ALPHA
    return above / runs, failed / runs


@pytest.mark.parametrize("design", HIGH + RARE + LOW)
def test_a_share_at_its_floor_passes_and_fails_at_most_as_often_as_promised(design: Design) -> None:
    assert max(wrong_limits(design, 300)) <= ALPHA + NOISE / 300**0.5


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("design", HIGH + RARE + LOW)
def test_a_share_at_its_floor_passes_and_fails_at_most_as_often_as_promised_in_many_runs(
    design: Design, tasks: int
) -> None:
    assert max(wrong_limits(design, 3000, tasks=tasks)) <= ALPHA + NOISE / 3000**0.5


def test_items_without_clusters_keep_the_limits_of_so_many_independent_ones() -> None:
    values = np.array([1.0] * 180 + [0.0] * 20)
    for scores, effective in (
        ([values], 199.0),  # n - 1, by the variance over items
        ([np.ones(200)], 200.0),
        ([np.zeros(200)], 200.0),
        ([np.ones(30), np.ones(200)], 4 / (1 / 30 + 1 / 200)),
    ):
        share = float(np.mean([one.mean() for one in scores]))
        found = mean_share_limits(scores, [None] * len(scores), ALPHA)
        assert found is not None and found[1] == pytest.approx(effective)
        assert found[0] == clopper_pearson(share * found[1], found[1], ALPHA)
        for floor in (0.5, 0.9, 0.95, 0.99):
            assert mean_share_p(scores, [None] * len(scores), floor, ALPHA) == share_at_least_p(share, found[1], floor)


def test_clusters_that_are_all_right_prove_as_much_as_so_many_items() -> None:
    for right in (1.0, 0.0):
        few = mean_share_limits([np.full(200, right)], [labels(10, 20)], ALPHA)
        assert few is not None
        end = few[0].lower if right else few[0].upper
        assert end == pytest.approx(abs(right - 0.2589), abs=1e-4)  # 1 - 0.05^(1/10)
    # Over both tasks, whatever is wrong may be wrong where there are the fewest clusters.
    both = [np.ones(200), np.ones(2000)], [labels(10, 20), labels(100, 20, 1)]
    pooled = mean_share_limits(*both, ALPHA)
    assert pooled is not None and pooled[0].lower == pytest.approx(1 - 0.2589 / 2, abs=1e-4)
    # What the other task shows is not lost for it.
    some = np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 4000)
    beside = mean_share_limits([np.ones(200), some], [labels(10, 20), labels(1000, 20, 1)], ALPHA)
    assert beside is not None and beside[0].lower == pytest.approx((0.7411 + 0.8) / 2, abs=1e-4)


def test_a_share_over_few_clusters_pays_for_their_number() -> None:
    values = np.repeat(np.array([1.0] * 6 + [0.0] * 4), 20)
    found = mean_share_limits([values], [labels(10, 20)], ALPHA)
    assert found is not None
    assert found[1] == pytest.approx(9 * (t_ppf(0.95, 199) / t_ppf(0.95, 9)) ** 2)  # 10 - 1, as many as clusters tell


@pytest.mark.parametrize(
    ("wrong", "size"),
    [
        ((0,) * 10, 20),
        ((20,) * 10, 20),
        ((1, 2, 0, 3, 1, 0, 0, 2, 1, 5), 20),
        ((10, 0, 0, 0, 0, 9, 10, 10, 10, 10), 10),
    ],
)
def test_the_test_against_a_floor_inverts_the_upper_limit(wrong: tuple[int, ...], size: int) -> None:
    values = np.concatenate([np.where(np.arange(size) < misses, 0.0, 1.0) for misses in wrong])
    tasks, clusters = [values], [labels(len(wrong), size)]
    found = mean_share_limits(tasks, clusters, ALPHA)
    assert found is not None
    upper = found[0].upper
    at_limit = mean_share_p(tasks, clusters, upper, ALPHA)
    assert at_limit is not None and at_limit == pytest.approx(1.0 if values.mean() == 1 else ALPHA, abs=1e-6)
    p_values = [mean_share_p(tasks, clusters, floor, ALPHA) for floor in np.linspace(0, 1, 21)]
    known = [p_value for p_value in p_values if p_value is not None]
    assert len(known) == 21 and known == sorted(known, reverse=True) and all(0 <= p_value <= 1 for p_value in known)
    assert mean_share_p([np.array([1.0])], [None], 0.5, ALPHA) is None
