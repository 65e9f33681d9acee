"""Rates that change: how many requests they come to, when those are due, and how they are spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model.arrivals import (
    ArrivalProcess,
    RateProfile,
    Segment,
    linear_ramp,
    parse_arrival,
    rate_bursts,
    rate_steps,
)
from benchgate.plan.arrivals import instants_s, profile_offsets_ns

POISSON, CONSTANT = ArrivalProcess("poisson"), ArrivalProcess("constant")
CLIMB = linear_ramp(2, 20, 60)  # cumulative rate 2t + 0.15t², in all 660
SPIKES = rate_bursts(4, (1, 2, 5), every_s=20, burst_s=5, duration_s=60)

Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def offsets_s(profile: RateProfile, arrival: ArrivalProcess = POISSON, seed: int = 1) -> Array:
    return np.array(profile_offsets_ns(arrival, profile, np.random.default_rng(seed))) * 1e-9


def counts(
    profile: RateProfile, arrival: ArrivalProcess, edges_s: list[float], draws: int
) -> np.ndarray[tuple[int, int], Any]:
    """Requests between the edges: one row a draw."""
    found = [np.histogram(offsets_s(profile, arrival, seed), edges_s)[0] for seed in range(draws)]
    return np.array(found)


@pytest.mark.parametrize(
    ("profile", "requests"),
    [
        (linear_ramp(8, 8, 60), 480),
        (linear_ramp(0.3, 0.3, 5), 2),  # 1.5, to even
        (CLIMB, 660),
        (linear_ramp(20, 2, 60), 660),
        (rate_steps([(2, 20), (4, 20), (8, 10)]), 200),
        (SPIKES, 340),  # 45 s at 4/s, 5 s at 4/s, 8/s and 20/s
        (rate_bursts(10, (3,), every_s=10, burst_s=1, duration_s=25), 290),  # 23 s at 10/s, two bursts of 30
    ],
)
def test_requests_are_the_integral_of_the_rate(profile: RateProfile, requests: int) -> None:
    assert profile.requests == requests
    for arrival in (POISSON, CONSTANT, ArrivalProcess("gamma", 3)):
        assert len(offsets_s(profile, arrival)) == requests


def test_inverse_of_a_ramp_is_the_root_of_its_quadratic() -> None:
    # 2t + 0.15 t² = 0, 35, 165, 399, 660 at t = 0, 10, 27.1..., 45.2..., 60
    instants = instants_s(CLIMB, np.array([0.0, 35.0, 165.0, 399.0, 660.0]))
    roots = [max(np.roots([0.15, 2.0, -mass])) for mass in (35.0, 165.0, 399.0)]
    assert instants.tolist() == pytest.approx([0, *roots, 60])
    assert instants[1] == pytest.approx(10)


def test_inverse_of_a_ramp_down_is_that_of_the_ramp_up_seen_from_the_end() -> None:
    mass = np.linspace(0, 660, 12)
    down = instants_s(linear_ramp(20, 2, 60), mass)
    assert down.tolist() == pytest.approx((60 - instants_s(CLIMB, 660 - mass)).tolist())


def test_inverse_of_steps_goes_by_each_step_in_turn() -> None:
    profile = rate_steps([(2, 20), (4, 20), (10, 1)])
    # 40 requests by 20 s, 120 by 40 s, 130 by 41 s
    assert instants_s(profile, np.array([1.0, 40.0, 41.0, 120.0, 125.0, 130.0])).tolist() == pytest.approx(
        [0.5, 20, 20.25, 40, 40.5, 41]
    )


def test_constant_arrivals_of_a_level_rate_are_evenly_spaced_to_the_end() -> None:
    assert offsets_s(linear_ramp(8, 8, 1), CONSTANT).tolist() == pytest.approx([k / 8 for k in range(1, 9)])


def test_constant_arrivals_on_a_ramp_come_closer_together() -> None:
    gaps = np.diff(offsets_s(CLIMB, CONSTANT))
    assert np.all(np.diff(gaps) < 0)
    assert gaps[0] == pytest.approx(1 / 2, rel=0.1)
    assert gaps[-1] == pytest.approx(1 / 20, rel=0.01)


def test_constant_bursts_hold_the_rate_times_each_factor_in_turn() -> None:
    edges_s = [0, 15, 20, 35, 40, 55, 60]
    found = np.histogram(offsets_s(SPIKES, CONSTANT), edges_s)[0]
    assert np.abs(found - np.array([60, 20, 60, 40, 60, 100])).max() <= 1  # at an edge, one may fall on either side


def test_poisson_counts_follow_the_rate_and_vary_as_a_multinomial_draw_does() -> None:
    # Given their sum n, counts of a Poisson process are multinomial: mean n p, variance n p (1 - p).
    draws, edges_s = 400, [0.0, 15, 20, 35, 40, 55, 60]
    found = counts(SPIKES, POISSON, edges_s, draws)
    expected = np.array([60, 20, 60, 40, 60, 100])
    variance = expected * (1 - expected / 340)
    assert found.sum(axis=1).tolist() == [340] * draws
    assert np.all(np.abs(found.mean(axis=0) - expected) < 4 * np.sqrt(variance / draws))
    # The variance of a sample variance of near-normal counts is 2 sigma**4 / (draws - 1).
    assert np.all(np.abs(found.var(axis=0, ddof=1) / variance - 1) < 4 * math.sqrt(2 / (draws - 1)))


@pytest.mark.parametrize(("cv", "low", "high"), [(0.5, 0.2, 0.4), (1.0, 0.8, 1.2), (2.0, 3.0, 5.0)])
def test_index_of_dispersion_is_the_square_of_the_cv(cv: float, low: float, high: float) -> None:
    # Counts of a renewal process over a long window have variance / mean → cv² (Cox 1962); a window of a 20th of the
    # stage keeps the fixed total from mattering much.
    found = counts(linear_ramp(20, 20, 100), ArrivalProcess("gamma", cv), [50.0, 55.0], 400)
    assert low < found.var(ddof=1) / found.mean() < high


def test_gamma_of_cv_one_is_poisson() -> None:
    assert offsets_s(CLIMB, ArrivalProcess("gamma", 1.0)).tolist() == offsets_s(CLIMB, POISSON).tolist()


def test_gaps_of_gamma_have_the_spread_asked_for() -> None:
    for cv in (0.25, 0.5, 2.0):
        gaps = np.diff(offsets_s(linear_ramp(20, 20, 1000), ArrivalProcess("gamma", cv)))
        assert gaps.mean() == pytest.approx(0.05, rel=0.01)  # the total is fixed
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_same_seed_gives_the_same_instants_and_another_seed_others() -> None:
    assert offsets_s(SPIKES).tolist() == offsets_s(SPIKES).tolist()
    assert set(offsets_s(SPIKES).tolist()).isdisjoint(offsets_s(SPIKES, seed=2).tolist())


@pytest.mark.parametrize("cv", [20.0, 99.0])
def test_the_wildest_gamma_still_gives_every_instant(cv: float) -> None:
    for seed in range(20):
        found = offsets_s(linear_ramp(1, 1, 3), ArrivalProcess("gamma", cv), seed)
        assert len(found) == 3
        assert np.all((found >= 0) & (found <= 3))


_RATES = st.floats(0.01, 300)
_SEGMENTS = st.builds(Segment, duration_s=st.floats(0.01, 20), start_rps=_RATES, end_rps=_RATES)
_PROCESSES = st.one_of(
    st.just(POISSON), st.just(CONSTANT), st.builds(ArrivalProcess, st.just("gamma"), st.floats(0.05, 20))
)


@given(segments=st.lists(_SEGMENTS, min_size=1, max_size=5), arrival=_PROCESSES, seed=st.integers(0, 2**32))
def test_offsets_ascend_within_the_profile_whatever_it_is(
    segments: list[Segment], arrival: ArrivalProcess, seed: int
) -> None:
    profile = RateProfile(tuple(segments))
    found = profile_offsets_ns(arrival, profile, np.random.default_rng(seed))
    assert len(found) == round(sum(s.duration_s * (s.start_rps + s.end_rps) / 2 for s in segments))
    assert list(found) == sorted(found)
    assert all(0 <= at <= round(profile.duration_s * 1e9) for at in found)


@given(segments=st.lists(_SEGMENTS, min_size=1, max_size=5), share=st.floats(0, 1))
def test_integral_up_to_an_instant_is_what_the_instant_was_asked_for(segments: list[Segment], share: float) -> None:
    profile = RateProfile(tuple(segments))
    (at_s,) = instants_s(profile, np.array([share * profile.mass]))
    # By the trapezoid rule, which is exact on straight lines, one segment after the other.
    integral, begin_s = 0.0, 0.0
    for segment in segments:
        inside_s = min(max(at_s - begin_s, 0.0), segment.duration_s)
        here_rps = segment.start_rps + (segment.end_rps - segment.start_rps) * inside_s / segment.duration_s
        integral += inside_s * (segment.start_rps + here_rps) / 2
        begin_s += segment.duration_s
    assert integral == pytest.approx(share * profile.mass, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("text", ["poisson", "constant", "gamma:2", "gamma:0.5"])
def test_known_processes_are_read(text: str) -> None:
    assert parse_arrival(text).process == text.partition(":")[0]


def test_gamma_carries_its_cv() -> None:
    assert parse_arrival("gamma:2.5") == ArrivalProcess("gamma", 2.5)


@pytest.mark.parametrize(
    "text", ["posson", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:nan", "gamma:100", "poisson:2", ""]
)
def test_other_processes_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match='write "poisson", "constant" or "gamma:2"'):
        parse_arrival(text)
