"""Arrival processes and rate profiles of open loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchgate.model.records import FloatArray

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
    def mass(self) -> float:
        """Return the expected number of requests, a fraction: the integral of the rate."""
        return sum(segment.requests for segment in self.segments)

    @property
    def requests(self) -> int:
        """Return the number of requests sent, the rounded integral of the rate; equal for every draw."""
        return round(self.mass)

    def instants_s(self, expected: FloatArray) -> FloatArray:
        """Return the times at which these numbers of requests are expected: the inverse of the cumulative rate.

        `expected` holds values from 0 to `mass`; the results are seconds from 0 to `duration_s`, in the same order.
        Inside a segment the cumulative rate is a*t + b*t**2/2. Its inverse 2x / (a + sqrt(a**2 + 2bx)) also covers a
        constant rate (b = 0) and is accurate for a falling one.
        """
        duration_s, start_rps, end_rps = (
            np.array([getattr(segment, name) for segment in self.segments])
            for name in ("duration_s", "start_rps", "end_rps")
        )
        begins_s = np.concatenate([[0.0], np.cumsum(duration_s)])
        begins_at = np.concatenate([[0.0], np.cumsum(duration_s * (start_rps + end_rps) / 2)])
        segment = np.clip(np.searchsorted(begins_at, expected, side="right") - 1, 0, len(self.segments) - 1)
        x, a = expected - begins_at[segment], start_rps[segment]
        b = ((end_rps - start_rps) / duration_s)[segment]
        inside_s = 2 * x / (a + np.sqrt(np.maximum(a**2 + 2 * b * x, 0.0)))
        instants: FloatArray = np.minimum(begins_s[segment] + inside_s, begins_s[segment + 1])
        return instants


def constant_rate(rate_rps: float, duration_s: float) -> RateProfile:
    """Return a constant rate."""
    return linear_ramp(rate_rps, rate_rps, duration_s)


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
