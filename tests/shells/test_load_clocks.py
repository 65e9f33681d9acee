"""Clocks of machines by their own time services, and where a round trip says more."""

import pytest

from benchgate.load.clocks import Clock, ClockError, HostClock, chrony_error, host_clock

TRACKING = "C0A80001,ntp.example,3,1714557600.123456789,-0.000250,0.000001,0.00001,-5.1,0.002,0.03,0.004,0.001,64.2,"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (TRACKING + "Normal\n", ClockError(250_000 + 1_000_000 + 2_000_000, -250_000)),
        (TRACKING + "Not synchronised\n", None),
        (TRACKING.replace(",3,", ",0,") + "Normal\n", None),
        ("506 Cannot talk to daemon\n", None),
    ],
)
def test_chrony_bounds_the_error_of_a_clock(line: str, error: ClockError | None) -> None:
    assert chrony_error(line) == error


def test_state_of_this_machine_is_read() -> None:
    found = host_clock()
    assert found.kernel == host_clock().kernel != ""
    assert (found.source is None) == (found.bound_ns is None) == (found.offset_ns is None)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (HostClock("a", "chrony", 100_000), HostClock("b", "kernel", 300_000), Clock(0, 400_000)),
        (HostClock("a", "chrony", 100_000), HostClock("b"), Clock(9_000_000, 30_000_000)),
        (HostClock("a", "kernel", 20_000_000), HostClock("b", "kernel", 20_000_000), Clock(9_000_000, 30_000_000)),
    ],
)
def test_time_services_are_used_where_they_bound_more_tightly(
    ours: HostClock, theirs: HostClock, expected: Clock
) -> None:
    assert Clock(9_000_000, 30_000_000).refined(ours, theirs) == expected


def test_time_service_that_the_round_trip_contradicts_is_not_believed() -> None:
    away = Clock(80_000_000, 30_000_000)
    assert away.refined(HostClock("a", "chrony", 100_000), HostClock("b", "chrony", 100_000)) == away
