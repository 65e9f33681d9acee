"""Whole answers from a cache, and an arm that gains by being asked second: where the guards begin to trip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from scipy import stats as scipy_stats

from benchgate.gate.guards.base import SPEED
from benchgate.gate.guards.caches import load_not_cached, order_does_not_matter
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse, Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from tests.fakes.measured import SuiteText, measured

SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}], blocks=2, requests=2).suite()
NOTHING = replace(measured(SUITE), load=())
CLIENT = ClientUse(cpu_s=0.05, wall_s=1.0, workers=1)
Times = Sequence[float | None]


def answer(index: int, took_ms: float | None) -> RequestRecord:
    """A whole answer of ten tokens after so long; None failed."""
    at = index * 1_000_000_000
    if took_ms is None:
        return RequestRecord(index, at, at, (), None, None, None, None, None, 500, ErrorClass.HTTP_5XX, "broken")
    end = at + round(took_ms * 1e6)
    return RequestRecord(index, at, at, (end,), end, 8, 10, TokenSource.USAGE, "length", 200, None, None)


def execution(arm: Arm, number: int, position: int, took_ms: Times, first: int = 0) -> LoadObservation:
    records = [answer(first + i, one) for i, one in enumerate(took_ms)]
    return LoadObservation("c4", arm, number, position, RequestColumns.pack(records), 1.0, CLIENT)


def loaded(*blocks: tuple[Times, Times]) -> Evidence:
    """Blocks of both arms' times, the baseline asked first in every other one."""
    load = []
    for number, both in enumerate(blocks):
        for arm, times in zip(Arm, both, strict=True):
            load.append(execution(arm, number, 2 * number + ((arm is Arm.CANDIDATE) ^ (number % 2)), times))
    return replace(NOTHING, load=tuple(load))


def cached(evidence: Evidence) -> GuardResult:
    return load_not_cached(evidence, SUITE)


# Answers from a cache


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(
    ("quick", "answered", "slow_ms", "trips"),
    [
        (9, 20, 90.0, False),
        (10, 199, 90.0, True),
        (10, 201, 90.0, False),  # less than a twentieth
        (20, 40, 79.9, False),
        (20, 40, 80.1, True),  # more than twenty times 4 ms
    ],
)
def test_a_twentieth_of_the_answers_at_a_twentieth_of_the_time_are_from_a_cache(
    arm: Arm, quick: int, answered: int, slow_ms: float, trips: bool
) -> None:
    fast: Times = [4.0] * quick + [slow_ms] * (answered - quick)
    slow: Times = [slow_ms] * answered
    found = cached(loaded((slow, fast) if arm is Arm.CANDIDATE else (fast, slow)))
    assert found.tripped is trips
    assert not trips or f"{quick} of {answered} answers of the {arm.value} came from a cache" in found.reason


@pytest.mark.parametrize("arm", Arm)
def test_answers_are_held_against_the_same_requests_and_only_where_both_came(arm: Arm) -> None:
    """Of requests 10 to 39 on both arms, in other rows on either, one failed on each; 12 others came at once on one."""
    early = execution(arm.other, 0, 0, [4.0] * 10 + [200.0] * 13 + [None] + [200.0] * 16)
    late = execution(arm, 0, 1, [4.0] * 12 + [None] + [200.0] * 17 + [4.0] * 5 + [200.0] * 5, first=10)
    found = cached(replace(NOTHING, load=(early, late)))
    assert found.tripped
    assert f"12 of 28 answers of the {arm.value} came from a cache" in found.reason


def test_answers_of_one_block_count_over_all_of_them() -> None:
    slow: Times = [200.0] * 40
    blocks = [(slow, slow)] * 7
    for quick, trips in ((16, False), (17, True)):
        found = cached(loaded((slow, [4.0] * quick + [200.0] * (40 - quick)), *blocks))
        assert found.tripped is trips
        assert not trips or "17 of 320 answers of the candidate" in found.reason


# Who is asked second

GAINS = [0.5, 0.505, 0.495, 0.5, 0.505, 0.495, 0.5, 0.5]


def seconds(gains: Sequence[float], *others: tuple[Times, Times]) -> Evidence:
    """Blocks in which whoever was asked second took these parts of the 100 ms of the first."""
    times = [([100.0], [100.0 * gain]) if k % 2 == 0 else ([100.0 * gain], [100.0]) for k, gain in enumerate(gains)]
    return loaded(*times, *others)


def test_a_gain_of_the_second_invalidates_every_speed() -> None:
    found = order_does_not_matter(seconds(GAINS), SUITE)
    assert (found.tripped, found.invalidates) == (True, (SPEED,))
    assert "took 0.50 times as long as otherwise" in found.reason


@pytest.mark.parametrize("odd", [[None], [], [0.0]])
def test_a_block_without_a_time_on_either_arm_takes_no_gain_away(odd: Times) -> None:
    for others in ([(odd, [100.0])] * 2, [([100.0], odd)] * 2, [(odd, odd)] * 2):
        assert order_does_not_matter(seconds(GAINS, *others), SUITE).tripped


@pytest.mark.parametrize(("beyond", "trips"), [(-0.01, True), (0.01, False)])
def test_a_gain_is_told_where_it_is_shown_at_a_tenth_of_alpha(beyond: float, trips: bool) -> None:
    """By Student's t: the limit of twice the gain, from four blocks of either order, just beside twice ln 0.8."""
    spread = 0.05
    error = math.sqrt(2 * spread**2 * 4 / 3 / 4)
    reach = float(scipy_stats.t.ppf(1 - 0.005, 6)) * error
    gain = (2 * math.log(0.8) - reach + beyond) / 2
    gains = [math.exp(gain + sign * spread) for sign in (1, 1, -1, -1, 1, 1, -1, -1)]
    assert order_does_not_matter(seconds(gains), SUITE).tripped is trips
