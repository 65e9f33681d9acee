"""A level's standing and its p-value against exact ones, and backlogs that only look as if they grew."""

from __future__ import annotations

import math

import pytest
from scipy import stats as scipy_stats

from benchgate.stats.capacity_search import Backlog, LevelStatus, LookCounts, ProbeResult, evaluate_probe
from benchgate.stats.clusters import effective_sample_size
from benchgate.stats.divergence import exact_kld, kld_lower_bound


def closed(good: int, *, stretches: int = 10, scheduled: int = 100) -> LookCounts:
    """A closed loop with latencies that do not move together."""
    each = (scheduled,) * stretches
    return LookCounts((good,) * stretches, each, 0, (0.5,) * stretches, 0.26 * sum(each), None, 60.0, 70.0)


def with_backlog(backlog: Backlog) -> ProbeResult:
    each = (100,) * 10
    return evaluate_probe([LookCounts(each, each, 0, (0.5,) * 10, 260.0, backlog, 60.0)], 0.95, 0.05)


@pytest.mark.parametrize(("good", "standing"), [(91, LevelStatus.FAIL), (99, LevelStatus.PASS)])
def test_limits_and_p_are_exact_on_the_effective_number_of_requests(good: int, standing: LevelStatus) -> None:
    found, spent = evaluate_probe([closed(good)], 0.95, 0.05), 0.05 / 8
    trials = effective_sample_size([good] * 10, [100] * 10, spent)
    assert trials is not None and found.limits is not None
    hits = trials * good / 100
    assert found.standing is standing
    assert found.limits.lower == pytest.approx(float(scipy_stats.beta.ppf(spent, hits, trials - hits + 1)))
    assert found.limits.upper == pytest.approx(float(scipy_stats.beta.ppf(1 - spent, hits + 1, trials - hits)))
    below, above = (
        float(scipy_stats.beta.cdf(0.95, hits, trials - hits + 1)),
        float(scipy_stats.beta.sf(0.95, hits + 1, trials - hits)),
    )
    assert found.p_value == pytest.approx((below if standing is LevelStatus.PASS else above) * 8)
    assert (found.window_s, found.stage_s) == (60.0, 70.0)


def test_nothing_but_good_requests_leave_no_room_above() -> None:
    found = evaluate_probe([closed(100)], 0.95, 0.05)
    assert found.limits is not None and found.limits.upper == 1.0


@pytest.mark.parametrize(("before", "after"), [(100, 100), (100, 150), (150, 100)])
def test_a_queue_that_stands_or_sways_does_not_grow(before: int, after: int) -> None:
    found = with_backlog(Backlog(before, after, 100.0, 100.0, residence_s=1.0))
    assert (found.unstable, found.standing) == (False, LevelStatus.PASS)


@pytest.mark.parametrize(
    ("residence_s", "standing"), [(0.0, LevelStatus.PASS), (6.0, LevelStatus.PASS), (6.1, LevelStatus.OPEN)]
)
def test_a_window_lasts_ten_times_as_long_as_its_requests_stay(residence_s: float, standing: LevelStatus) -> None:
    found = with_backlog(Backlog(1, 1, 1.0, 1.0, residence_s=residence_s))
    assert (found.standing, found.unsteady) == (standing, standing is LevelStatus.OPEN)


def ln(**probabilities: float) -> dict[str, float]:
    return {token: math.log(p) for token, p in probabilities.items()}


def test_of_listings_of_unlike_lengths_the_most_probable_of_both_are_used() -> None:
    short = kld_lower_bound(ln(z=0.6, b=0.2), ln(z=0.3, e=0.3))
    assert kld_lower_bound(ln(a=0.05, z=0.6, c=0.1, b=0.2), ln(z=0.3, e=0.3)) == pytest.approx(short)
    assert kld_lower_bound(ln(z=0.6, b=0.2), ln(a=0.05, c=0.1, z=0.3, e=0.29)) == pytest.approx(
        kld_lower_bound(ln(z=0.6, b=0.2), ln(z=0.3, e=0.29))
    )


def test_whole_vocabularies_are_scaled_to_one_before_they_are_compared() -> None:
    found = exact_kld(ln(a=0.4996, b=0.4996), ln(a=0.25, b=0.75))
    assert found == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-9)
