"""A simulated fleet waits as queueing theory says where that applies, and grows, shrinks and is paid for as stated."""

import math

import numpy as np
import pytest

from benchgate.sizing.simulation import Balancer, Scaling, hourly_arrivals, simulate_traffic
from benchmarks.queueing import erlang_c_wait_s

RNG_SEED = 20261121


@pytest.mark.slow
@pytest.mark.parametrize(("per_s", "slots"), [(0.5, 1), (6.0, 8), (27.0, 32)])
def test_fixed_fleet_waits_as_long_as_the_formula_of_mmc_says(per_s: float, slots: int) -> None:
    generator = np.random.default_rng(RNG_SEED)
    n = 500_000
    arrivals = np.cumsum(generator.exponential(1 / per_s, n))
    fleet = Scaling(slots=slots, min_replicas=1, max_replicas=1)
    found = simulate_traffic(arrivals, generator.exponential(1.0, n), fleet, float(arrivals[-1]))
    assert found.waits_s.mean() == pytest.approx(erlang_c_wait_s(per_s, 1.0, slots), rel=0.03)


def test_places_of_several_replicas_are_one_fleet() -> None:
    generator = np.random.default_rng(RNG_SEED)
    arrivals, services = np.cumsum(generator.exponential(0.2, 5000)), generator.exponential(1.0, 5000)
    one, four = (simulate_traffic(arrivals, services, Scaling(8 // n, n, n), 1000.0 + arrivals[-1]) for n in (1, 4))
    assert np.array_equal(one.waits_s, four.waits_s)
    assert four.replica_hours == pytest.approx(4 * one.replica_hours)


def test_those_who_wait_are_served_in_the_order_they_came() -> None:
    found = simulate_traffic(np.array([0.0, 0.0, 1.0, 1.5]), np.array([2.0, 4.0, 1.0, 1.0]), Scaling(2, 1, 1), 3.0)
    assert found.waits_s.tolist() == [0, 0, 1, 1.5]
    assert found.replica_hours == pytest.approx(4 / 3600)  # the last but one and the last end there
    assert found.share_within(1.0) == pytest.approx(0.75)


def test_fleet_goes_on_and_is_paid_until_the_last_is_answered() -> None:
    """Ten come at once to one place, for 100 s each: at the end, at 250 s, one is inside and seven wait."""
    found = simulate_traffic(np.zeros(10), np.full(10, 100.0), Scaling(1, 1, 1), 250.0)
    assert (found.left_inside, found.left_waiting, found.over_s) == (8, 7, 750)
    assert found.replica_hours * 3600 == pytest.approx(1000)
    assert found.waits_s.max() == 900
    assert found.share_within(250.0) == pytest.approx(0.3)
    empty = simulate_traffic(np.zeros(10), np.full(10, 100.0), Scaling(1, 1, 1), 1000.0)
    assert (empty.left_inside, empty.left_waiting, empty.over_s) == (0, 0, 0)
    assert empty.replica_hours * 3600 == pytest.approx(1000)


@pytest.mark.parametrize("balancer", list(Balancer))
def test_request_that_keeps_its_place_beyond_the_end_is_paid_for(balancer: Balancer) -> None:
    found = simulate_traffic(np.array([10.0]), np.array([7200.0]), Scaling(1, 1, 1, balancer=balancer), 3600.0)
    assert (found.left_inside, found.left_waiting, found.over_s) == (1, 0, 3610)
    assert found.replica_hours * 3600 == pytest.approx(7210)


def test_fleet_goes_on_growing_after_the_end_and_is_paid_for_it() -> None:
    # a second one is wanted from the look at 10 s on and there at 40 s: both work until the last, with a place at 90 s
    scaling = Scaling(1, 1, 2, target_ratio=1.0, interval_s=10.0, cooldown_s=1e6, cold_start_s=30.0)
    found = simulate_traffic(np.zeros(4), np.full(4, 50.0), scaling, 20.0)
    assert (found.waits_s.tolist(), found.left_waiting, found.over_s) == ([0, 40, 50, 90], 3, 120)
    assert found.replica_hours * 3600 == pytest.approx(10 + 2 * 130)


def test_fleet_grows_after_its_cold_start_and_shrinks_after_its_cooldown() -> None:
    # 3 slots are wanted from the look at 10 s on, and are there at 40 s; nothing is inside after 100 s
    scaling = Scaling(
        slots=1, min_replicas=1, max_replicas=5, target_ratio=1.0, interval_s=10.0, cooldown_s=60.0, cold_start_s=30.0
    )
    found = simulate_traffic(np.zeros(3), np.full(3, 50.0), scaling, 1000.0)
    assert found.waits_s.tolist() == [0, 40, 40]
    assert (found.highest, found.scaled_up, found.scaled_down) == (3, 1, 1)
    # three wanted at 10 s; fewer (two inside) at every look from 50 s on: two are kept from 110 s, one would be wanted
    # by then, so 110 s is when it goes to one
    assert found.replica_hours * 3600 == pytest.approx(10 + 3 * 100 + (1000 - 110))


def test_fleet_that_shrinks_keeps_a_place_for_everyone_inside() -> None:
    generator = np.random.default_rng(RNG_SEED)
    rates = np.array([0.2, 1.5, 0.1, 1.0])
    arrivals = hourly_arrivals(rates, generator)
    scaling = Scaling(
        slots=4, min_replicas=1, max_replicas=20, target_ratio=1.0, interval_s=5.0, cooldown_s=0.0, cold_start_s=0.0
    )
    found = simulate_traffic(arrivals, generator.exponential(20.0, arrivals.size), scaling, 4 * 3600.0)
    assert found.scaled_down > 50
    # nobody waits longer than to the next look: what is wanted is there at once, for all who are inside or wait
    assert found.waits_s.max() <= 5.0


def test_one_that_is_starting_is_let_go_first_and_was_paid_for() -> None:
    scaling = Scaling(
        slots=1, min_replicas=1, max_replicas=3, target_ratio=1.0, interval_s=10.0, cooldown_s=10.0, cold_start_s=1000.0
    )
    found = simulate_traffic(np.zeros(3), np.array([12.0, 6.0, 6.0]), scaling, 200.0)
    assert found.waits_s.tolist() == [0, 12, 18]
    assert (found.scaled_up, found.scaled_down, found.highest) == (1, 1, 3)
    # one all the time, and two that never took a request, from the look at 10 s to the one at 30 s
    assert found.replica_hours * 3600 == pytest.approx(200 + 2 * 20)


def test_one_that_is_leaving_counts_among_those_that_are_paid_at_once() -> None:
    """One of three is let go at 40 s with a request inside, and another is asked for at 50 s."""
    scaling = Scaling(2, 1, 3, target_ratio=1.0, interval_s=10.0, cooldown_s=20.0, balancer=Balancer.LEAST_LOADED)
    arrivals = np.array([1.0] * 5 + [32.0] * 3 + [45.0] * 3)
    found = simulate_traffic(arrivals, np.array([10.0] * 5 + [1000.0] * 6), scaling, 60.0)
    assert (found.scaled_up, found.scaled_down, found.highest) == (2, 2, 4)


def test_traffic_of_an_hour_has_its_rate_and_no_other() -> None:
    found = hourly_arrivals(np.array([0.5, 0.0, 2.0]), np.random.default_rng(RNG_SEED))
    hours = np.histogram(found, bins=[0, 3600, 7200, 10800])[0]
    assert np.all(np.diff(found) >= 0)
    assert abs(hours[0] - 1800) < 4 * math.sqrt(1800)
    assert hours[1] == 0
    assert abs(hours[2] - 7200) < 4 * math.sqrt(7200)
    assert hourly_arrivals(np.empty(0), np.random.default_rng(1)).size == 0
    with pytest.raises(ValueError, match="rate of an hour"):
        hourly_arrivals(np.array([-1.0]), np.random.default_rng(1))


def test_no_request_has_no_share() -> None:
    found = simulate_traffic(np.empty(0), np.empty(0), Scaling(1, 2, 2), 3600.0)
    assert found.share_within(1.0) is None
    assert found.replica_hours == pytest.approx(2)


@pytest.mark.parametrize(
    ("arrivals", "services"), [([0.0], [1.0, 1.0]), ([1.0, 0.0], [1.0, 1.0]), ([-1.0], [1.0]), ([11.0], [1.0])]
)
def test_arrivals_that_run_backwards_or_have_no_service_are_refused(
    arrivals: list[float], services: list[float]
) -> None:
    with pytest.raises(ValueError, match="arrivals"):
        simulate_traffic(np.array(arrivals), np.array(services), Scaling(1, 1, 1), 10.0)


@pytest.mark.parametrize(("slots", "least", "most"), [(0, 1, 2), (10**7, 1, 2), (1, 0, 2), (1, 1, 0), (1, 1, 10_001)])
def test_fleet_that_cannot_be_is_refused(slots: int, least: int, most: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Scaling(slots, least, most)


@pytest.mark.parametrize(
    ("target_ratio", "interval_s", "cooldown_s", "cold_start_s"),
    [(0.0, 1, 1, 1), (1e-302, 1, 1, 1), (1.1, 1, 1, 1), (1.0, 0.0, 1, 1), (1.0, 1, -1.0, 1), (1.0, 1, 1, -1.0)],
)
def test_scaling_that_cannot_be_is_refused(
    target_ratio: float, interval_s: float, cooldown_s: float, cold_start_s: float
) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Scaling(1, 1, 2, target_ratio, interval_s, cooldown_s, cold_start_s)
