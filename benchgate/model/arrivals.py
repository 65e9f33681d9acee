"""Arrival processes and rate profiles of open loops, and the rows of a replayed trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

ArrivalKind = Literal["poisson", "constant", "gamma"]

_LARGEST_CV = 100.0


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """Arrival process; `cv` is the coefficient of variation of the gaps of "gamma"."""

    process: ArrivalKind = "poisson"
    cv: float = 1.0


POISSON = ArrivalProcess()


def parse_arrival(text: str) -> ArrivalProcess:
    """Parse `poisson`, `constant` or `gamma:2`. Raises ValueError with the accepted forms for anything else."""
    process, _, cv = text.partition(":")
    if process == "poisson" and not cv:
        return ArrivalProcess("poisson")
    if process == "constant" and not cv:
        return ArrivalProcess("constant")
    try:
        value = float(cv) if process == "gamma" else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < _LARGEST_CV:
        raise ValueError(f'{text!r} is not an arrival process; write "poisson", "constant" or "gamma:2"')
    return ArrivalProcess("gamma", value)


@dataclass(frozen=True, slots=True)
class Segment:
    """Time span with a linear rate. All three values are finite and above 0."""

    duration_s: float
    start_rps: float
    end_rps: float

    @property
    def requests(self) -> float:
        """Return the integral of the rate."""
        return self.duration_s * (self.start_rps + self.end_rps) / 2


@dataclass(frozen=True, slots=True)
class RateProfile:
    """Rate of an open loop over time, from 0 to the end of its last segment."""

    segments: tuple[Segment, ...]

    @property
    def duration_s(self) -> float:
        """Return the total duration."""
        return sum(segment.duration_s for segment in self.segments)

    @property
    def peak_rps(self) -> float:
        """Return the highest rate."""
        return max(max(segment.start_rps, segment.end_rps) for segment in self.segments)

    @property
    def mass(self) -> float:
        """Return the expected number of requests, a fraction: the integral of the rate."""
        return sum(segment.requests for segment in self.segments)

    @property
    def requests(self) -> int:
        """Return the number of requests sent, the rounded integral of the rate; equal for every draw."""
        return round(min(self.mass, 1e18))  # more than any stage may have; an infinite one has no integer


def linear_ramp(start_rps: float, end_rps: float, duration_s: float) -> RateProfile:
    """Return a rate that changes linearly from one value to the other."""
    return RateProfile((Segment(duration_s, start_rps, end_rps),))


def rate_steps(levels: Iterable[tuple[float, float]]) -> RateProfile:
    """Return constant rates one after the other, each given as `(rate_rps, duration_s)`."""
    return RateProfile(tuple(Segment(duration_s, rate_rps, rate_rps) for rate_rps, duration_s in levels))


def rate_bursts(
    rate_rps: float, factors: tuple[float, ...], every_s: float, burst_s: float, duration_s: float
) -> RateProfile:
    """Return a constant rate, multiplied by the next factor in the last `burst_s` of every `every_s`.

    The base rate comes first, so that each burst meets a server at its usual load. `duration_s` ends the last period
    wherever it falls. `burst_s` must be below `every_s`.
    """
    found: list[Segment] = []
    for period in range(int(duration_s // every_s) + 1):
        left_s = duration_s - period * every_s
        burst_rps = rate_rps * factors[period % len(factors)]
        for length_s, at_rps in ((every_s - burst_s, rate_rps), (burst_s, burst_rps)):
            if (held_s := min(length_s, left_s)) > 0:
                found.append(Segment(held_s, at_rps, at_rps))
            left_s -= length_s
    return RateProfile(tuple(found))


_NS_PER_S = 1_000_000_000


def mean_rps(offsets_ns: Sequence[int]) -> float:
    """Return requests over the time up to the last one, at least one second."""
    return len(offsets_ns) / max(1.0, max(offsets_ns, default=0) / _NS_PER_S)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """Row of a trace."""

    at_ns: int  # arrival since the first row
    input_tokens: int | None
    output_tokens: int | None
    hash_ids: tuple[int, ...] = ()  # blocks of its prompt in order: equal ones give equal text
    line: int | None = field(default=None, compare=False)  # in the file, from 1


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
