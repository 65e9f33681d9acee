"""Arrival processes: the rate asked for, repeatable, on an absolute clock."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest

from benchgate.plan.arrivals import arrival_offsets_ns

Process = Literal["poisson", "constant", "gamma"]


def offsets(process: Process, rate_rps: float, count: int, *, seed: int = 1, cv: float = 1.0) -> tuple[int, ...]:
    return arrival_offsets_ns(process, rate_rps, count, np.random.default_rng(seed), cv=cv)


def gaps_s(process: Process, *, cv: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.diff(np.array((0, *offsets(process, 20.0, 20_000, cv=cv)))) / 1e9


def test_constant_gaps_are_one_over_the_rate() -> None:
    assert offsets("constant", 8.0, 3) == (125_000_000, 250_000_000, 375_000_000)


def test_constant_arrivals_do_not_drift() -> None:
    # A million requests at 3/s take 333,333.3 repeating seconds; a running sum of 1/3 would be off by then.
    assert offsets("constant", 3.0, 1_000_000)[-1] == 333_333_333_333_333
    assert offsets("constant", 0.3, 3) == (3_333_333_333, 6_666_666_667, 10_000_000_000)


@pytest.mark.parametrize("process", ["poisson", "gamma", "constant"])
def test_offsets_ascend_and_are_plain_integers(process: Process) -> None:
    made = offsets(process, 50.0, 500)
    assert all(type(ns) is int for ns in made)
    assert made[0] > 0
    assert all(a <= b for a, b in pairwise(made))


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("gamma", 0.5), ("gamma", 2.0)])
def test_gaps_have_the_mean_and_the_spread_asked_for(process: Process, cv: float) -> None:
    gaps = gaps_s(process, cv=cv)
    assert gaps.mean() == pytest.approx(0.05, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_poisson_gaps_forget_the_past() -> None:
    gaps = gaps_s("poisson")
    assert np.mean(gaps > 0.05) == pytest.approx(math.exp(-1), abs=0.01)
    assert np.mean(gaps[gaps > 0.05] > 0.10) == pytest.approx(math.exp(-1), abs=0.015)


@pytest.mark.parametrize("process", ["poisson", "gamma"])
def test_same_seed_gives_the_same_schedule(process: Process) -> None:
    assert offsets(process, 5.0, 50) == offsets(process, 5.0, 50)
    assert offsets(process, 5.0, 50) != offsets(process, 5.0, 50, seed=2)


def test_twice_the_rate_is_the_same_schedule_in_half_the_time() -> None:
    slow, fast = np.array(offsets("poisson", 5.0, 50)), np.array(offsets("poisson", 10.0, 50))
    assert np.abs(slow - 2 * fast).max() <= 2


def test_no_requests_have_no_arrivals() -> None:
    assert offsets("poisson", 5.0, 0) == ()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_rates_that_cannot_be_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="rate_rps"):
        offsets("poisson", bad, 3)
    with pytest.raises(ValueError, match="cv"):
        offsets("gamma", 1.0, 3, cv=bad)
