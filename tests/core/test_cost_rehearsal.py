"""Traffic simulated by the hour: what is drawn, what is told of it, and that a fleet that fits waits less."""

import numpy as np
import pytest

from benchgate.sizing.simulation import Balancer, Scaling, Service, simulate_hours, simulate_traffic

RNG_SEED = 20261121


def rng() -> np.random.Generator:
    return np.random.default_rng(RNG_SEED)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0])
def test_services_have_their_mean_and_their_variation(cv: float) -> None:
    drawn = Service(2.5, cv).draw(200_000, rng())
    assert drawn.mean() == pytest.approx(2.5, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, abs=0.03)


@pytest.mark.parametrize(
    ("mean", "cv"), [(0.0, 1.0), (float("inf"), 1.0), (1.0, -1.0), (1.0, float("nan")), (1.0, 10.1), (1e9, 1.0)]
)
def test_service_that_cannot_be_is_refused(mean: float, cv: float) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Service(mean, cv)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 10.0])
@pytest.mark.parametrize("count", [1, 100, 20_000])
def test_services_are_as_much_work_as_their_mean_says_however_much_they_vary(cv: float, count: int) -> None:
    assert Service(2.5, cv).draw(count, rng()).sum() == pytest.approx(2.5 * count)


def test_services_of_which_none_is_drawn_above_nothing_have_the_mean() -> None:
    drawn = [Service(2.5, 10.0).draw(1, np.random.default_rng(seed))[0] for seed in range(3000)]
    assert drawn == pytest.approx([2.5] * 3000)  # of a shape of 1/100 a variable in a thousand is 0 as a float
    assert Service(2.5, 10.0).draw(0, rng()).size == 0


def test_more_variation_makes_a_fleet_hardly_cheaper() -> None:
    paid = [
        simulate_hours([3.0], Service(2.0, cv), Scaling(2, 1, 6), wait_s=1.0, usd_per_hour=1.0, generator=rng()).usd
        for cv in (1.0, 10.0)
    ]
    assert None not in paid
    assert (paid[1] or 0) > 0.9 * (paid[0] or 0)


def test_request_without_end_counts_among_the_decisions() -> None:
    """The work is little for a thousand slots, but one request alone keeps its own for days."""
    scaling = Scaling(1000, 1, 2, interval_s=0.02)
    with pytest.raises(ValueError, match="a longer interval"):
        simulate_hours([0.001], Service(1e6), scaling, wait_s=1.0, usd_per_hour=None, generator=rng())


def test_worst_hour_is_the_one_in_which_most_wait() -> None:
    found = simulate_hours(
        [0.5, 3.0, 0.0, 0.5], Service(1.0), Scaling(2, 1, 1), wait_s=1.0, usd_per_hour=4.0, generator=rng()
    )
    assert (found.worst_hour, found.worst_per_s) == (2, 3.0)
    assert found.within_ratio is not None
    assert found.worst_within_ratio is not None
    assert found.worst_within_ratio < found.within_ratio < 1
    assert (found.replica_hours, found.usd) == pytest.approx((4, 16))
    assert found.highest == 1


def test_fleet_that_may_grow_lets_fewer_wait_and_is_paid_for() -> None:
    rates = [0.5, 3.0, 0.5]
    fixed, scaled = (
        simulate_hours(rates, Service(1.0), Scaling(2, 1, most), wait_s=1.0, usd_per_hour=None, generator=rng())
        for most in (1, 4)
    )
    assert fixed.requests == scaled.requests
    assert (fixed.within_ratio or 0) + 0.2 < (scaled.within_ratio or 0)
    assert fixed.replica_hours < scaled.replica_hours < 12
    assert scaled.usd is None
    assert scaled.scaled_up > 0 < scaled.scaled_down


def test_no_traffic_has_no_waits() -> None:
    found = simulate_hours([0.0, 0.0], Service(1.0), Scaling(1, 2, 2), wait_s=1.0, usd_per_hour=1.0, generator=rng())
    assert (found.requests, found.within_ratio, found.wait_mean_s, found.wait_p99_s) == (0, None, None, None)
    assert (found.worst_hour, found.worst_per_s, found.worst_within_ratio) == (None, None, None)
    assert found.usd == pytest.approx(4)


def test_more_than_is_worth_waiting_for_is_refused() -> None:
    with pytest.raises(ValueError, match="give fewer hours"):
        simulate_hours([1e6], Service(1.0), Scaling(1, 1, 1), wait_s=1.0, usd_per_hour=None, generator=rng())


def test_autoscaler_that_decides_all_the_time_is_refused() -> None:
    scaling = Scaling(1, 1, 2, interval_s=1e-4)
    with pytest.raises(ValueError, match="a longer interval"):
        simulate_hours([1.0], Service(1.0), scaling, wait_s=1.0, usd_per_hour=None, generator=rng())
    with pytest.raises(ValueError, match="wait_s cannot be nan"):
        simulate_hours([1.0], Service(1.0), Scaling(1, 1, 1), wait_s=float("nan"), usd_per_hour=None, generator=rng())


def test_backlog_is_told_and_paid_and_counts_as_late() -> None:
    """Half of what comes in the last hour is left at its end: 3,600 requests, an hour's work of the one replica."""
    found = simulate_hours(
        [0.1, 2.0], Service(1.0, 0.0), Scaling(1, 1, 1), wait_s=1.0, usd_per_hour=2.0, generator=rng()
    )
    assert found.left_waiting == pytest.approx(3600, rel=0.05)
    assert found.over_s == pytest.approx(3600, rel=0.05)
    assert found.usd == pytest.approx(2 * (7200 + found.over_s) / 3600)
    assert found.worst_within_ratio is not None
    assert found.worst_within_ratio < 0.01
    assert found.slots_per_s == 1.0


def test_variation_next_to_nothing_is_none() -> None:
    assert Service(2.0, 1e-200).draw(3, rng()).tolist() == [2.0, 2.0, 2.0]


def test_line_of_its_own_makes_a_request_wait_while_others_are_free() -> None:
    arrivals, services = np.array([0.0, 0.0, 0.1, 0.2]), np.array([10.0, 1.0, 1.0, 1.0])
    in_turn, least, shared_queue = (
        simulate_traffic(arrivals, services, Scaling(1, 2, 2, balancer=balancer), 20.0).waits_s
        for balancer in (Balancer.ROUND_ROBIN, Balancer.LEAST_LOADED, Balancer.SHARED_QUEUE)
    )
    # the third stands behind the long one: its turn again, and as few inside there as with the other
    assert in_turn.tolist() == pytest.approx([0, 0, 9.9, 0.8])
    assert least.tolist() == pytest.approx([0, 0, 9.9, 0.8])
    assert shared_queue.tolist() == pytest.approx([0, 0, 0.9, 1.8])


@pytest.mark.parametrize("balancer", [Balancer.ROUND_ROBIN, Balancer.LEAST_LOADED])
def test_replica_that_is_let_go_ends_what_it_has_and_is_paid_for_so_long(balancer: Balancer) -> None:
    # a second one is wanted at 10 s, and is given the fourth; let go at 20 s, it has that one until 61 s
    scaling = Scaling(2, 1, 2, target_ratio=1.0, interval_s=10.0, cooldown_s=0.0, cold_start_s=0.0, balancer=balancer)
    arrivals, services = np.array([0.0, 0.0, 0.0, 11.0, 30.0]), np.array([20.0, 15.0, 50.0, 50.0, 1.0])
    found = simulate_traffic(arrivals, services, scaling, 200.0)
    assert found.waits_s.tolist() == pytest.approx([0, 0, 15, 0, 0])
    assert found.replica_hours * 3600 == pytest.approx(255)
    assert (found.highest, found.scaled_up, found.scaled_down) == (2, 1, 1)


def test_every_request_is_served_whoever_it_was_given_to() -> None:
    generator = rng()
    arrivals = np.cumsum(generator.exponential(0.05, 3000))
    services = generator.exponential(1.0, 3000)
    for balancer in Balancer:
        scaling = Scaling(4, 1, 10, interval_s=2.0, cooldown_s=4.0, cold_start_s=3.0, balancer=balancer)
        found = simulate_traffic(arrivals, services, scaling, float(arrivals[-1]) + 60)
        assert np.all(found.waits_s >= 0)
        assert found.scaled_up > 3 < found.scaled_down
        assert 0 < found.replica_hours < 10 * (arrivals[-1] + 60) / 3600
