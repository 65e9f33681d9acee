"""Shares and differences of shares, against outside values and against slow definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from benchgate.stats.proportions import (
    clopper_pearson,
    mcnemar_p,
    newcombe_difference,
    poisson_rates_p,
    score_statistic,
    tango_limits,
    tango_noninferiority_p,
    wilson,
)

Z_95 = 1.6448536269514722  # scipy.stats.norm.ppf(0.95)


@st.composite
def pair_counts(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 400))
    b = draw(st.integers(0, n))
    return b, draw(st.integers(0, n - b)), n


def slow_score_statistic(b: int, c: int, n: int, delta: float, weight: float) -> float:
    """By definition: maximise the likelihood under H0 numerically, then divide by the standard deviation it gives."""

    def share_plus(share_minus: float) -> float:
        return delta + weight * share_minus

    def minus_log_likelihood(share_minus: float) -> float:
        shares = (share_plus(share_minus), share_minus, 1 - share_plus(share_minus) - share_minus)
        return -sum(
            count * math.log(max(share, 1e-300)) for count, share in zip((b, c, n - b - c), shares, strict=True)
        )

    ends = (max(0.0, -delta / weight), (1 - delta) / (1 + weight))
    fitted = minimize_scalar(minus_log_likelihood, bounds=ends, method="bounded", options={"xatol": 1e-12}).x
    variance = share_plus(fitted) + weight**2 * fitted - delta**2
    return float((b - weight * c - n * delta) / math.sqrt(n * variance))


@pytest.mark.parametrize("weight", [1.0, 0.5])
@pytest.mark.parametrize(("b", "c", "n"), [(7, 3, 60), (1, 12, 40), (20, 20, 500), (30, 5, 80)])
@pytest.mark.parametrize("delta", [-0.2, -0.03, 0.02, 0.05, 0.3])
def test_score_statistic_is_what_maximum_likelihood_gives(b: int, c: int, n: int, delta: float, weight: float) -> None:
    fast = score_statistic(b, c, n, delta, weight=weight)
    assert fast == pytest.approx(slow_score_statistic(b, c, n, delta, weight), rel=1e-4)


def test_tango_limits_of_published_paired_data() -> None:
    # Airway reactivity before and after a transplant (Bentur et al. 2009): 1, 1, 7, 12; the score interval given by
    # Fagerland, Lydersen and Laake (Statistics in Medicine 33, 2014) is -0.517 to -0.026.
    limits = tango_limits(1, 7, 21, 0.025)
    assert (round(limits.lower, 3), round(limits.upper, 3)) == (-0.517, -0.026)


def test_tango_limits_without_discordant_items_are_not_a_point() -> None:
    # Closed form for b = c = 0: z²/(n+z²).
    limits = tango_limits(0, 0, 100, 0.05)
    assert limits.upper == pytest.approx(Z_95**2 / (100 + Z_95**2))
    assert limits.lower == pytest.approx(-limits.upper)


def test_tango_limits_reach_the_ends_when_every_item_differs() -> None:
    assert tango_limits(54, 0, 54, 0.05).upper == 1.0
    assert tango_limits(0, 54, 54, 0.05).lower == -1.0


@given(pair_counts())
def test_tango_limits_mirror_when_arms_swap(counts: tuple[int, int, int]) -> None:
    b, c, n = counts
    ours, swapped = tango_limits(b, c, n, 0.05), tango_limits(c, b, n, 0.05)
    assert ours.lower == pytest.approx(-swapped.upper, abs=1e-9)
    assert ours.lower <= (b - c) / n <= ours.upper


@given(pair_counts(), st.sampled_from([0.01, 0.02, 0.05, 0.2]))
def test_tango_upper_limit_and_p_value_agree_about_the_margin(counts: tuple[int, int, int], margin: float) -> None:
    b, c, n = counts
    upper, p_value = tango_limits(b, c, n, 0.05).upper, tango_noninferiority_p(b, c, n, margin)
    if abs(upper - margin) > 1e-9:
        assert (upper < margin) == (p_value < 0.05)


def test_non_inferiority_test_keeps_its_size_at_the_margin() -> None:
    # statistics of the decision procedure: simulated size .039 to .049; here n = 500, discordance 5 %, margin 2 points.
    margin, discordance = 0.02, 0.05
    shares = [(discordance + margin) / 2, (discordance - margin) / 2, 1 - discordance]
    drawn = np.random.default_rng(11).multinomial(500, shares, size=40_000)
    kinds, times = np.unique(drawn[:, :2], axis=0, return_counts=True)
    wrong = sum(
        t for (b, c), t in zip(kinds, times, strict=True) if tango_noninferiority_p(int(b), int(c), 500, margin) <= 0.05
    )
    assert 0.039 <= wrong / 40_000 <= 0.049


def test_margin_p_value_is_certain_far_from_the_margin() -> None:
    assert tango_noninferiority_p(0, 0, 5000, 0.02) < 1e-9
    assert tango_noninferiority_p(400, 0, 1000, 0.02) > 1 - 1e-9


@pytest.mark.parametrize("margin", [-1.0, 1.0, math.nan])
def test_impossible_margin_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="cannot be tested"):
        tango_noninferiority_p(3, 2, 100, margin)


@pytest.mark.parametrize(
    ("b", "c", "p_value"),
    [
        (12, 0, 1 / 4096),  # 12 losses of 12
        (4, 0, 0.0625),
        (9, 3, 0.072998046875),  # scipy.stats.binomtest(9, 12, 0.5, alternative="greater")
        (0, 0, 1.0),
        (0, 7, 1.0),
    ],
)
def test_exact_mcnemar_counts_regressions_against_improvements(b: int, c: int, p_value: float) -> None:
    assert mcnemar_p(b, c) == pytest.approx(p_value)


def test_clopper_pearson_is_the_exact_interval() -> None:
    # scipy.stats.binomtest(3, 50).proportion_ci(0.90, "exact")
    limits = clopper_pearson(3, 50, 0.05)
    assert [limits.lower, limits.upper] == pytest.approx([0.01655185918922988, 0.14783717636418414])


@pytest.mark.parametrize(("limit", "clean_trials"), [(0.01, 299), (0.005, 598), (0.001, 2995)])
def test_clean_trials_needed_to_show_an_error_limit(limit: float, clean_trials: int) -> None:
    assert clopper_pearson(0, clean_trials, 0.05).upper < limit < clopper_pearson(0, clean_trials - 1, 0.05).upper


def test_all_failing_is_not_below_one() -> None:
    assert clopper_pearson(5, 5, 0.05).upper == 1.0
    assert wilson(5, 5, 0.05).upper == 1.0
    assert clopper_pearson(0, 5, 0.05).lower == 0.0
    assert wilson(0, 5, 0.05).lower == 0.0


def test_wilson_is_the_score_interval() -> None:
    # scipy.stats.binomtest(3, 50).proportion_ci(0.90, "wilson")
    limits = wilson(3, 50, 0.05)
    assert [limits.lower, limits.upper] == pytest.approx([0.024231257031218402, 0.1409419464606993])


def test_newcombe_limits_of_published_data() -> None:
    # Newcombe, Statistics in Medicine 17 (1998) 873-890, table II (a): 56/70 against 48/80, method 10: 0.0524, 0.3339.
    limits = newcombe_difference(56, 70, 48, 80, 0.025)
    assert (round(limits.lower, 4), round(limits.upper, 4)) == (0.0524, 0.3339)


def test_two_clean_arms_still_leave_room_for_a_difference() -> None:
    limits = newcombe_difference(0, 50, 0, 50, 0.05)
    assert limits.upper == pytest.approx(Z_95**2 / (50 + Z_95**2))
    assert limits.lower == pytest.approx(-limits.upper)


def test_relative_errors_condition_on_the_total() -> None:
    # scipy.stats.binomtest(8, 10, 1000 / 1600, alternative="greater")
    assert poisson_rates_p(8, 1000, 2, 600) == pytest.approx(0.21100277081131935)
    assert poisson_rates_p(0, 1000, 0, 1000) == 1.0
    assert poisson_rates_p(0, 1000, 5, 1000) == 1.0
    assert poisson_rates_p(5, 1000, 0, 1000) == pytest.approx(2**-5)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_counts_that_cannot_be_are_refused(k: int, n: int) -> None:
    for call in (
        lambda: clopper_pearson(k, n, 0.05),
        lambda: wilson(k, n, 0.05),
        lambda: newcombe_difference(k, n, 1, 5, 0.05),
        lambda: poisson_rates_p(1, 5, k, n),
    ):
        with pytest.raises(ValueError, match="is not a share"):
            call()


@pytest.mark.parametrize(("b", "c", "n"), [(-1, 3, 10), (3, -1, 10), (6, 5, 10), (0, 0, 0), (11, 0, 10), (0, 11, 10)])
def test_pairs_that_cannot_be_are_refused(b: int, c: int, n: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        tango_limits(b, c, n, 0.05)
    with pytest.raises(ValueError, match="impossible"):
        tango_noninferiority_p(b, c, n, 0.02)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, math.nan])
def test_alpha_is_a_one_sided_error(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        clopper_pearson(1, 10, alpha)
    with pytest.raises(ValueError, match="alpha"):
        tango_limits(1, 1, 10, alpha)


def test_limits_are_one_sided_each() -> None:
    # The upper limit of no hits at alpha 5 % is where 95 % of samples of ten would show a hit: (1-p)^10 = 0.05.
    assert (1 - clopper_pearson(0, 10, 0.05).upper) ** 10 == pytest.approx(0.05)
    assert float(norm.ppf(0.95)) == pytest.approx(Z_95)
