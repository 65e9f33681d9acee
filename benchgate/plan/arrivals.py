"""Arrival times of open loops in ns, drawn from an arrival process and a rate profile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from benchgate.model.arrivals import ArrivalKind, ArrivalProcess, RateProfile
from benchgate.model.records import FloatArray, IntArray

_NS_PER_S = 1_000_000_000


def instants_s(profile: RateProfile, expected: FloatArray) -> FloatArray:
    """Return the times at which these numbers of requests are expected: the inverse of the cumulative rate.

    `expected` holds values from 0 to the profile's `mass`; the results are seconds from 0 to its `duration_s`, in the
    same order. Inside a segment the cumulative rate is a*t + b*t**2/2. Its inverse 2x / (a + sqrt(a**2 + 2bx)) also
    covers a constant rate (b = 0) and is accurate for a falling one.
    """
    duration_s, start_rps, end_rps = (
        np.array([getattr(segment, name) for segment in profile.segments])
        for name in ("duration_s", "start_rps", "end_rps")
    )
    begins_s = np.concatenate([[0.0], np.cumsum(duration_s)])
    begins_at = np.concatenate([[0.0], np.cumsum(duration_s * (start_rps + end_rps) / 2)])
    segment = np.clip(np.searchsorted(begins_at, expected, side="right") - 1, 0, len(profile.segments) - 1)
    x, a = expected - begins_at[segment], start_rps[segment]
    b = ((end_rps - start_rps) / duration_s)[segment]
    inside_s = 2 * x / (a + np.sqrt(np.maximum(a**2 + 2 * b * x, 0.0)))
    instants: FloatArray = np.minimum(begins_s[segment] + inside_s, begins_s[segment + 1])
    return instants


def arrival_offsets_ns(
    process: ArrivalKind, rate_rps: float, count: int, generator: np.random.Generator, *, cv: float = 1.0
) -> tuple[int, ...]:
    """Draw intended sends in ns since the start of the stage, ascending, the first one after one gap.

    Gaps have the mean 1/rate: exponential (poisson), constant, or gamma with the coefficient of variation `cv`,
    burstier than Poisson above 1 and steadier below. Offsets are absolute, so a late request does not shift later ones.
    Raises ValueError unless rate and cv are finite and above 0.
    """
    blocks = arrival_blocks_ns(process, rate_rps, count, generator, cv=cv)
    return tuple(ns for block in blocks for ns in block.tolist())


_ARRIVALS_AT_ONCE = 1 << 20


def arrival_blocks_ns(
    process: ArrivalKind,
    rate_rps: float,
    count: int | None,
    generator: np.random.Generator,
    *,
    cv: float = 1.0,
    at_once: int = _ARRIVALS_AT_ONCE,
) -> Iterator[IntArray]:
    """Yield what `arrival_offsets_ns` draws, so many sends `at_once`; without end where `count` is None."""
    for name, value in (("rate_rps", rate_rps), ("cv", cv)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
    last_s = 0.0
    for first in itertools.count(0, at_once) if count is None else range(0, count, at_once):
        size = at_once if count is None else min(at_once, count - first)
        if process == "constant":  # a running sum would accumulate rounding
            offsets_s = np.arange(first + 1, first + size + 1) / rate_rps
        else:
            if process == "poisson":
                gaps_s = generator.exponential(1.0 / rate_rps, size=size)
            else:
                gaps_s = generator.gamma(cv**-2, cv**2 / rate_rps, size=size)
            gaps_s[0] += last_s
            offsets_s = np.cumsum(gaps_s)
            last_s = offsets_s[-1]
        yield np.rint(offsets_s * _NS_PER_S).astype(np.int64)


def arrival_offsets_within_ns(
    arrival: ArrivalProcess, rate_rps: float, length_s: float, seeds: Sequence[int]
) -> tuple[int, ...]:
    """Draw intended sends within `length_s`, in ns, ascending, from the random stream of `seeds`."""
    return tuple(ns for block in arrival_blocks_within_ns(arrival, rate_rps, length_s, seeds) for ns in block.tolist())


def arrival_blocks_within_ns(
    arrival: ArrivalProcess, rate_rps: float, length_s: float, seeds: Sequence[int]
) -> Iterator[IntArray]:
    """Yield what `arrival_offsets_within_ns` draws, a million sends at a time."""
    end_ns, at_once = round(length_s * _NS_PER_S), min(_ARRIVALS_AT_ONCE, 16 + math.ceil(2 * rate_rps * length_s))
    generator = np.random.default_rng(seeds)
    for block in arrival_blocks_ns(arrival.process, rate_rps, None, generator, cv=arrival.cv, at_once=at_once):
        yield block[: np.searchsorted(block, end_ns, side="right")]
        if block[-1] > end_ns:
            return


def ramp_offsets_ns(
    arrival: ArrivalProcess, rate_rps: float, lead_s: float, tail_s: float, last_ns: int, seeds: Sequence[int]
) -> tuple[int, ...]:
    """Draw intended sends of an open loop's ramp in ns since the start of the stage, ascending.

    The measured schedule begins after `lead_s` and has its last send `last_ns` later. The ramp continues the same
    process in both directions: backwards from the start of that schedule, and forwards from its last send for `tail_s`.
    """
    lead_ns = round(lead_s * _NS_PER_S)
    before, after = (
        arrival_offsets_within_ns(arrival, rate_rps, length_s, [*seeds, number])
        for number, length_s in enumerate((lead_s, tail_s))
    )
    lead = sorted([lead_ns, *(lead_ns - ns for ns in before)])
    return (*lead, *(lead_ns + last_ns + ns for ns in after))


def profile_offsets_ns(
    arrival: ArrivalProcess, profile: RateProfile, generator: np.random.Generator
) -> tuple[int, ...]:
    """Draw intended sends of a varying rate in ns, ascending: `profile.requests` of them, within its duration.

    The process is laid out in operational time, in which the rate is 1, and mapped through the inverse of the
    cumulative rate (Cinlar, Introduction to Stochastic Processes, 1975, chapter 4). The number of requests is fixed, so
    that blocks have equally many, and the process is conditioned on it:

    - poisson: given n requests, the instants of an inhomogeneous Poisson process are n independent draws from its
      normalised rate, in order. That law is exact.
    - gamma: gaps of an ordinary gamma renewal process, scaled so that arrival n + 1 would fall on the end. By Lukacs's
      theorem their proportions do not depend on their sum: they are Dirichlet with weight cv**-2 each. For cv = 1 that
      is the Poisson case, so one draw serves both.
    - constant: n equal gaps that end with the profile.
    """
    count, mass = profile.requests, profile.mass
    if arrival.process == "constant":
        shares = np.arange(1, count + 1) / count
    else:
        weight = 1.0 if arrival.process == "poisson" else arrival.cv**-2
        shares = np.minimum(np.cumsum(generator.dirichlet(np.full(count + 1, weight))[:count]), 1.0)
    return tuple(int(ns) for ns in np.rint(instants_s(profile, shares * mass) * _NS_PER_S))


def peak_rps(offsets_ns: Sequence[int] | IntArray) -> float:
    """Return the largest number of requests due within any one second. The offsets ascend."""
    due_ns = np.array(offsets_ns, dtype=np.int64)
    after = np.searchsorted(due_ns, due_ns + _NS_PER_S, side="left")
    return float(np.max(after - np.arange(len(due_ns)), initial=0))
