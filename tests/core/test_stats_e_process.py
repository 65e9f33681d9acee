"""Harm that may be looked for after every item: never too often found where there is none, soon where there is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import beta, betainc

from benchgate.stats.sequential import anytime_p, e_values, independent_differences


def is_harm(
    baseline: Sequence[float], candidate: Sequence[float], clusters: Sequence[str | None] | None = None
) -> bool:
    """Whether harm beyond 5 points is shown at 5 %."""
    return anytime_p(independent_differences(baseline, candidate, clusters), 0.05) <= 0.05


def drawn(
    generator: np.random.Generator, runs: int, items: int, lost: float, gained: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Differences of so many runs: 1 for an item lost, -1 for one gained."""
    u = generator.random((runs, items))
    return np.where(u < lost, 1.0, np.where(u < lost + gained, -1.0, 0.0))


@pytest.mark.parametrize(("b", "c"), [(0, 0), (5, 0), (7, 2), (3, 9), (40, 10), (60, 60)])
def test_without_a_margin_it_is_the_mixture_of_a_sign_test_in_closed_form(b: int, c: int) -> None:
    # M = 2^(m+1) B(b+1, c+1) (1 - I_1/2(b+1, c+1)), the uniform mixture over the chances from 1/2 to 1
    closed = 2 ** (b + c + 1) * beta(b + 1, c + 1) * (1 - betainc(b + 1, c + 1, 0.5))
    differences = np.array([1.0] * b + [-1.0] * c + [0.0] * 11)
    assert e_values(differences, 0.0)[-1] == pytest.approx(closed)


def test_evidence_after_each_item_has_seen_no_later_one() -> None:
    differences = np.array([1.0, 0.0, -1.0, 1.0, 1.0])
    whole = e_values(differences, 0.02)
    assert [e_values(differences[: i + 1], 0.02)[-1] for i in range(5)] == pytest.approx(list(whole))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("margin", "lost", "gained"),
    [
        (0.0, 0.05, 0.05),  # equal models that flip a tenth of the items
        (0.05, 0.10, 0.05),  # harm that is the margin itself, the worst that is allowed
    ],
)
def test_looking_after_every_item_finds_no_harm_in_what_has_none(margin: float, lost: float, gained: float) -> None:
    runs = drawn(np.random.default_rng(5), 5_000, 100, lost, gained)
    crossed = sum(anytime_p(differences, margin) <= 0.05 for differences in runs)
    assert 10 <= crossed <= 250  # at most 5 %, and not because nothing is ever found; a standard error is 15


def test_a_collapsed_model_is_found_within_60_items() -> None:
    generator = np.random.default_rng(6)
    for _ in range(300):
        baseline, candidate = generator.random(60) < 0.95, generator.random(60) < 0.20
        assert is_harm(baseline.tolist(), candidate.tolist())


def test_a_model_that_is_well_is_let_go_on() -> None:
    generator = np.random.default_rng(7)
    stopped = 0
    for _ in range(300):
        baseline, candidate = generator.random(200) < 0.95, generator.random(200) < 0.95
        stopped += is_harm(baseline.tolist(), candidate.tolist())
    assert stopped <= 3


def test_scores_by_degrees_are_looked_at_as_well() -> None:
    generator = np.random.default_rng(8)
    baseline = generator.uniform(0.5, 0.9, 60)
    assert is_harm(list(baseline), list(baseline - 0.4))
    assert not is_harm(list(baseline), list(baseline))


def test_scores_of_any_scale_never_stop() -> None:
    assert not is_harm([40.0] * 100, [0.0] * 100)
    assert not is_harm([math.nan] * 100, [0.0] * 100)


def test_items_of_one_cluster_are_one_loss() -> None:
    ones, zeros = [1.0] * 60, [0.0] * 60
    assert is_harm(ones, zeros)
    assert not is_harm(ones, zeros, ["a", "b", "c"] * 20)
    assert is_harm(ones, zeros, [None] * 60)
    assert list(independent_differences([1, 1, 1, 0], [0, 0, 1, 1], ["a", "a", None, "b"])) == [1, 0, -1]


def test_no_item_is_no_evidence() -> None:
    assert anytime_p(np.zeros(0), 0.05) == 1.0
    assert not is_harm([], [])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="from -1 to 1"):
        e_values(np.array([2.0]), 0.0)
    with pytest.raises(ValueError, match="from -1 to 1"):
        e_values(np.array([math.nan]), 0.0)
    with pytest.raises(ValueError, match="margin"):
        e_values(np.array([1.0]), 1.0)
    with pytest.raises(ValueError, match="equal numbers"):
        is_harm([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="one for each"):
        is_harm([1.0], [1.0], ["a", "b"])
