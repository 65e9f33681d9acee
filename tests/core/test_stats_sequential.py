"""O'Brien-Fleming boundaries and repeated p-values, against published tables, a normal integral and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchgate.stats.distributions import norm_ppf, norm_sf
from benchgate.stats.sequential import look_alphas, obrien_fleming, repeated_p

EQUAL_STEPS = [
    ((1 / 2, 1.0), (2.373, 1.678)),
    ((1 / 3, 2 / 3, 1.0), (2.961, 2.094, 1.710)),
    ((1 / 4, 2 / 4, 3 / 4, 1.0), (3.466, 2.451, 2.001, 1.733)),
    ((1 / 4, 1 / 2, 1.0), (3.358, 2.374, 1.679)),
    ((1 / 8, 1 / 4, 1 / 2, 1.0), (4.749, 3.358, 2.374, 1.679)),
]


def crossing(bound: float, fractions: tuple[float, ...]) -> float:
    """P(B(t) >= bound at any fraction), by the integral of the joint normal law of all B(t)."""
    steps = np.array(fractions)
    below = multivariate_normal.cdf(
        np.full(len(steps), bound), mean=np.zeros(len(steps)), cov=np.minimum.outer(steps, steps),
        maxpts=400_000, abseps=1e-6, releps=1e-6, rng=np.random.default_rng(1),
    )  # fmt: skip
    return 1 - float(below)


@pytest.mark.parametrize(("fractions", "published"), EQUAL_STEPS)
def test_boundaries_are_those_of_the_published_tables(
    fractions: tuple[float, ...], published: tuple[float, ...]
) -> None:
    assert obrien_fleming(fractions, 0.05) == pytest.approx(published, abs=0.002)


def test_two_looks_at_half_a_percent_are_those_of_jennison_and_turnbull() -> None:
    # Table 2.3 (two-sided alpha 0.01, K = 2): C_B = 2.580, so z = C_B·√2 and C_B.
    assert obrien_fleming((0.5, 1.0), 0.005) == pytest.approx((2.580 * 2**0.5, 2.580), abs=0.002)


def test_one_look_is_the_ordinary_test() -> None:
    assert obrien_fleming((1.0,), 0.05) == pytest.approx((1.6449,), abs=1e-4)
    assert repeated_p(0.03, 1, (1.0,)) == 0.03


@pytest.mark.parametrize("fractions", [(0.25, 0.5, 1.0), (0.025, 0.9, 0.95, 1.0), (0.995, 1.0)])
def test_chance_of_crossing_is_that_of_the_joint_normal_law(fractions: tuple[float, ...]) -> None:
    for p_value in (0.6, 0.05, 0.004):
        bound = -norm_ppf(p_value) * fractions[0] ** 0.5
        assert repeated_p(p_value, 1, fractions) == pytest.approx(crossing(bound, fractions), abs=1e-5)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_repeated_p_is_alpha_exactly_at_the_boundary(alpha: float) -> None:
    fractions = (0.25, 0.5, 1.0)
    for look, tail in enumerate(look_alphas(fractions, alpha), start=1):
        assert repeated_p(tail, look, fractions) == pytest.approx(alpha, abs=1e-9)
        assert repeated_p(tail * 0.99, look, fractions) < alpha < repeated_p(tail * 1.01, look, fractions)


def test_tails_are_the_boundaries_as_probabilities() -> None:
    assert look_alphas((0.25, 0.5, 1.0), 0.05) == pytest.approx((0.000393, 0.00879, 0.0466), rel=2e-3)
    assert look_alphas((1.0,), 0.05) == pytest.approx((0.05,))


def test_certainty_stays_certainty() -> None:
    fractions = (0.25, 0.5, 1.0)
    assert repeated_p(0.0, 2, fractions) == 0.0
    assert repeated_p(1.0, 2, fractions) == 1.0
    assert repeated_p(1 - 1e-15, 3, fractions) == 1.0
    assert 0 < repeated_p(1e-300, 1, fractions) < 1e-80


def test_repeated_p_rises_with_the_p_value_and_is_never_below_it() -> None:
    fractions = (0.1, 0.3, 1.0)
    for look in (1, 2, 3):
        grid = np.linspace(0, 1, 41)
        repeated = [repeated_p(float(p_value), look, fractions) for p_value in grid]
        assert repeated == sorted(repeated)
        assert all(after >= before for before, after in zip(grid, repeated, strict=True))


def test_looking_three_times_keeps_the_error_it_promises() -> None:
    generator = np.random.default_rng(5)
    paths = np.cumsum(generator.normal(size=(40_000, 20)), axis=1)[:, [4, 9, 19]] / np.sqrt([5, 10, 20])
    crossed = (paths >= np.array(obrien_fleming((0.25, 0.5, 1.0), 0.05))).any(axis=1)
    assert np.mean(crossed) == pytest.approx(0.05, abs=0.004)
    naive = (paths >= norm_ppf(0.95)).any(axis=1)
    assert np.mean(naive) > 0.09  # looking three times at 5 % is not 5 %


def test_least_repeated_p_over_all_looks_is_below_alpha_as_often_as_alpha() -> None:
    generator = np.random.default_rng(6)
    fractions = (0.25, 0.5, 1.0)
    paths = np.cumsum(generator.normal(size=(1_500, 20)), axis=1)[:, [4, 9, 19]] / np.sqrt([5, 10, 20])
    least = [min(repeated_p(norm_sf(z), look, fractions) for look, z in enumerate(path, 1)) for path in paths]
    for alpha in (0.05, 0.2, 0.5):
        assert np.mean(np.array(least) <= alpha) == pytest.approx(alpha, abs=3.5 * (alpha * (1 - alpha) / 1_500) ** 0.5)


@pytest.mark.parametrize(
    "fractions", [(), (0.5, 0.5, 1.0), (0.5, 0.9), (0.0, 1.0), (-0.1, 1.0), (0.5, 1.5), (1.0, 0.5)]
)
def test_fractions_that_do_not_rise_to_one_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rise from above 0 to 1"):
        obrien_fleming(fractions, 0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.5, float("nan")])
def test_an_alpha_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        obrien_fleming((0.5, 1.0), alpha)


@pytest.mark.parametrize("p_value", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value_is_refused(p_value: float) -> None:
    with pytest.raises(ValueError, match="not a p-value"):
        repeated_p(p_value, 1, (0.5, 1.0))


@pytest.mark.parametrize("look", [0, 3])
def test_a_look_there_is_not_is_refused(look: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 2"):
        repeated_p(0.05, look, (0.5, 1.0))
