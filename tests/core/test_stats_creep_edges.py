"""Harm that adds up over promotions: sums by hand, limits that are not symmetrical, and links without any spread."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t
from benchgate.stats.meta import ChainLink, link_across_runs, sum_chain
from benchgate.stats.trace import Trace


def link(harm: float, error: float, n: int = 6, alpha: float = 0.05, up: float | None = None) -> ChainLink:
    """A link whose limits are Student's of this standard error, another one upwards where said."""
    reach = float(scipy_stats.t.ppf(1 - alpha, n - 1))
    return ChainLink(harm, Limits(harm - reach * error, harm + reach * (error if up is None else up)), alpha, n)


def test_one_link_is_itself() -> None:
    values = np.array([0.02, -0.01, 0.03, 0.05, 0.00, 0.04])
    test = paired_t(values, 0.05)
    assert test is not None
    found = sum_chain([ChainLink(test.mean, test.limits, 0.05, 6)], 0.05)
    assert found.regression == test.mean
    assert (found.limits.lower, found.limits.upper) == pytest.approx((test.limits.lower, test.limits.upper))
    assert found.p_value == pytest.approx(test.p_value)


def test_harms_add_and_errors_add_as_squares() -> None:
    # Errors 3 and 4 hundredths with 5 and 9 degrees of freedom: 5, and Satterthwaite's (9+16)² / (81/5 + 256/9)
    found = sum_chain([link(0.01, 0.03), link(0.02, 0.04, n=10)], 0.05)
    freedom = 625 / (81 / 5 + 256 / 9)
    reach = float(scipy_stats.t.ppf(0.95, freedom)) * 0.05
    assert found.regression == pytest.approx(0.03)
    assert found.errors == pytest.approx((0.05, 0.05))
    assert (found.limits.lower, found.limits.upper) == pytest.approx((0.03 - reach, 0.03 + reach))
    assert found.p_value == pytest.approx(float(scipy_stats.t.sf(0.6, freedom)))


def test_limits_over_blocks_of_requests_have_the_freedom_of_the_blocks() -> None:
    """Six releases that lose 0.9 points each, in 5 blocks of 1,000 requests at the alpha of a first look."""
    apart = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    values = 0.009 + 0.006 * math.sqrt(5) * apart / np.std(apart, ddof=1)
    test = paired_t(values, 3.4e-4)
    assert test is not None
    links = [ChainLink(test.mean, test.limits, 3.4e-4, 5000, freedom=(4, 4))] * 6
    found = sum_chain(links, 0.05)
    assert found.errors == pytest.approx((math.sqrt(6) * test.sd / math.sqrt(5),) * 2)
    assert found.p_value == pytest.approx(float(scipy_stats.t.sf(found.regression / found.errors[0], 24)))
    assert found.p_value < 0.001 < sum_chain([replace(one, freedom=(None, None)) for one in links], 0.05).p_value


def test_links_of_one_sample_are_as_sure_as_their_sum_over_it() -> None:
    pieces = np.random.default_rng(5).normal(0.01, 0.02, 30)
    one, whole = paired_t(pieces, 0.05), paired_t(10 * pieces, 0.05)
    assert one is not None and whole is not None
    links = [ChainLink(one.mean, one.limits, 0.05, 30)] * 10
    shared, apart = sum_chain(links, 0.05, shared=True), sum_chain(links, 0.05)
    assert (shared.limits.lower, shared.limits.upper) == pytest.approx((whole.limits.lower, whole.limits.upper))
    assert shared.p_value == pytest.approx(paired_t(10 * pieces, 0.05, margin=0.0).p_value)  # type: ignore[union-attr]
    assert shared.limits.upper - shared.regression > 3 * (apart.limits.upper - apart.regression)


def test_limits_that_are_not_symmetrical_stay_so() -> None:
    found = sum_chain([link(0.02, 0.01, up=0.03), link(0.01, 0.01, up=0.04)], 0.05)
    assert found.errors == pytest.approx((0.01 * math.sqrt(2), 0.05))
    assert found.limits.upper - found.regression > 3 * (found.regression - found.limits.lower)


def test_a_links_own_error_rate_is_taken_out_of_its_limits() -> None:
    strict, loose = (sum_chain([link(0.02, 0.01, alpha=alpha)], 0.05) for alpha in (0.001, 0.2))
    assert strict.errors == pytest.approx(loose.errors)
    assert strict.p_value == pytest.approx(loose.p_value)


@pytest.mark.parametrize(("harm", "p_value"), [(0.01, 2**-4), (0.0, 1.0), (-0.01, 1.0)])
def test_links_without_spread_show_no_more_than_their_signs(harm: float, p_value: float) -> None:
    still = ChainLink(harm, Limits(harm, harm), 0.05, 4), ChainLink(0.0, Limits(0.0, 0.0), 0.05, 9)
    found = sum_chain(still, 0.05)
    assert (found.regression, found.errors, found.p_value) == (harm, (0.0, 0.0), p_value)
    assert found.limits == Limits(harm, harm)


def test_links_without_spread_downwards_may_have_some_upwards() -> None:
    found = sum_chain([link(0.02, 0.0, up=0.01, n=5)], 0.05)
    assert found.p_value == 2**-5
    assert found.limits.lower == 0.02 < found.limits.upper


@pytest.mark.parametrize("n", [1, 0])
def test_sums_of_nothing_or_of_one_observation_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="two observations"):
        sum_chain([], 0.05)
    with pytest.raises(ValueError, match="two observations"):
        sum_chain([link(0.02, 0.01), ChainLink(0.01, Limits(0.0, 0.02), 0.05, n)], 0.05)
    assert sum_chain([link(0.02, 0.01, n=2)], 0.05).regression == 0.02


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_error_rates_that_are_none_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        sum_chain([link(0.02, 0.01)], alpha)
    with pytest.raises(ValueError, match="alpha"):
        link_across_runs(0.02, 0.01, 5, alpha)


def test_across_runs_each_of_two_values_brings_its_variation() -> None:
    # t(0.95, 4) = 2.131847: 2.131847 · √2 · 0.03
    found = link_across_runs(0.05, 0.03, 5, 0.05)
    assert (found.regression, found.n, found.alpha) == (0.05, 5, 0.05)
    assert (found.limits.lower, found.limits.upper) == pytest.approx((0.05 - 0.0904466, 0.05 + 0.0904466))
    assert sum_chain([found], 0.01).errors == pytest.approx((0.03 * math.sqrt(2), 0.03 * math.sqrt(2)))


def test_ten_small_losses_are_found_where_none_alone_is() -> None:
    losses = [link(0.01, 0.01)] * 10
    assert sum_chain(losses[:1], 0.05).p_value > 0.1
    assert sum_chain(losses, 0.05).p_value < 0.01
    assert sum_chain(losses, 0.05).limits.lower > 0.04


def test_recorded_steps_lead_to_the_limits() -> None:
    trace = Trace()
    found = sum_chain([link(0.01, 0.03), link(0.02, 0.04, n=10, up=0.06)], 0.05, trace=trace)
    steps = {step.what: float(step.value) for step in trace.steps}
    assert steps["sum of the regressions"] == pytest.approx(found.regression)
    below = steps["t quantile downwards"] * steps["standard error downwards"]
    above = steps["t quantile upwards"] * steps["standard error upwards"]
    assert (steps["lower limit"], steps["upper limit"]) == pytest.approx((0.03 - below, 0.03 + above), rel=1e-6)
    assert steps["p-value of no regression"] == pytest.approx(found.p_value)
