"""Arrival times of requests: drawn from a process, or replayed from a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchgate.model.arrivals import ArrivalKind, ArrivalProcess, RateProfile

_NS_PER_S = 1_000_000_000


def arrival_offsets_ns(
    process: ArrivalKind,
    rate_rps: float,
    count: int,
    generator: np.random.Generator,
    *,
    cv: float = 1.0,
) -> tuple[int, ...]:
    """Draw intended sends in ns since the start of the stage, ascending, the first one after one gap.

    Gaps have the mean 1/rate: exponential (poisson), constant, or gamma with the coefficient of variation `cv`,
    burstier than Poisson above 1 and steadier below. Offsets are absolute, so a late request does not shift later ones.
    Raises ValueError unless rate and cv are finite and above 0.
    """
    for name, value in (("rate_rps", rate_rps), ("cv", cv)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
    if process == "poisson":
        offsets_s = np.cumsum(generator.exponential(1.0 / rate_rps, size=count))
    elif process == "gamma":
        offsets_s = np.cumsum(generator.gamma(cv**-2, cv**2 / rate_rps, size=count))
    else:
        offsets_s = np.arange(1, count + 1) / rate_rps  # a running sum would accumulate rounding
    return tuple(int(ns) for ns in np.rint(offsets_s * _NS_PER_S))


def arrival_offsets_within_ns(
    arrival: ArrivalProcess, rate_rps: float, length_s: float, seeds: Sequence[int]
) -> tuple[int, ...]:
    """Draw intended sends within `length_s`, in ns, ascending, from the random stream of `seeds`."""
    end_ns = round(length_s * _NS_PER_S)
    count = 16 + math.ceil(2 * rate_rps * length_s)
    while True:
        generator = np.random.default_rng(seeds)
        offsets = arrival_offsets_ns(arrival.process, rate_rps, count, generator, cv=arrival.cv)
        if offsets[-1] > end_ns:
            return tuple(ns for ns in offsets if ns <= end_ns)
        count *= 2


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
    return tuple(int(ns) for ns in np.rint(profile.instants_s(shares * mass) * _NS_PER_S))


def mean_rps(offsets_ns: Sequence[int]) -> float:
    """Return requests over the time up to the last one, at least one second."""
    return len(offsets_ns) / max(1.0, max(offsets_ns, default=0) / _NS_PER_S)


def peak_rps(offsets_ns: Sequence[int]) -> float:
    """Return the largest number of requests due within any one second. The offsets ascend."""
    due_ns = np.array(offsets_ns, dtype=np.int64)
    after = np.searchsorted(due_ns, due_ns + _NS_PER_S, side="left")
    return float(np.max(after - np.arange(len(due_ns)), initial=0))


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """Row of a trace: arrival in ns since the first row, and lengths if the trace has them.

    `hash_ids` identify the blocks of its prompt in order: equal ones give equal text. `line` is its line in the file,
    from 1.
    """

    at_ns: int
    input_tokens: int | None
    output_tokens: int | None
    hash_ids: tuple[int, ...] = ()
    line: int | None = field(default=None, compare=False)


def replayed_rows(trace: Sequence[TracedRequest], count: int, block: int, blocks: int) -> Sequence[TracedRequest]:
    """Return the rows that a block sends: its own part of the trace if it is long enough, else the first rows.

    Different parts cover more of the traffic. With fewer rows, every block replays the same ones and covers only those.
    Raises ValueError when the trace has fewer rows than one block sends.
    """
    if len(trace) < count:
        raise ValueError(f"the trace has {len(trace):,} rows and a block sends {count:,}")
    first = block * count if len(trace) >= blocks * count else 0
    return trace[first : first + count]


def replayed_offsets_ns(rows: Sequence[TracedRequest], speed: float) -> tuple[int, ...]:
    """Return intended sends in ns since the start of the stage: first row at 0, recorded gaps over `speed`."""
    return tuple(round((row.at_ns - rows[0].at_ns) / speed) for row in rows)
