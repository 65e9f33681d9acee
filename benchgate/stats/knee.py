"""The knee of a sweep: the concurrency beyond which a server does no more at once, and what is added only waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from benchgate.model.records import FloatArray

LEAST_LEVELS = 5
_TAIL_SHARE = 0.25  # of the slope before the knee: what the slope after it may be at most
_LEAST_GAIN = 0.5  # of the squared error of one line: what a bend must explain
_NEAR_PEAK = 0.85  # of the highest throughput: what is reached at the knee
_LATENCY_GROWS = 1.2  # from the knee to the last level
_IN_PROPORTION = (
    0.75  # power of the level with which tokens/s grew, so that a bend of theirs comes before places run out
)
_STRAIGHT = 1e-6  # mean squared error of one line in ln(throughput) below which there is nothing to explain


@dataclass(frozen=True, slots=True)
class Knee:
    """One of the levels that were looked at, with the slopes of ln(throughput) over ln(level) on either side of it.

    A slope of 1 is throughput that doubles with the level, 0 one that stays as it is. `gain`: how much of the squared
    error of one straight line the bend explains.
    """

    level: float
    slope_before: float
    slope_after: float
    gain: float
    share_of_peak: float


@dataclass(frozen=True, slots=True)
class NoKnee:
    """Why a curve has none."""

    reason: str


class Curve(StrEnum):
    """What was seen to bend."""

    DECODING = "requests decoding at once"
    TOKENS = "output tokens per second"


@dataclass(frozen=True, slots=True)
class ServerKnee:
    """A knee, and the curve that has it."""

    curve: Curve
    knee: Knee

    @property
    def level(self) -> float:
        """The concurrency at the knee."""
        return self.knee.level


def find_server_knee(
    levels: Sequence[float],
    tokens_per_s: Sequence[float],
    decoding: Sequence[float] | None,
    latencies_s: Sequence[float],
) -> ServerKnee | NoKnee:
    """The knee of a server, by the two curves that may show it, each bent as `find_knee` wants it.

    `decoding` (how many requests were decoded at once, None where it is not known) bends where the server's places are
    all taken. Tokens per second bend there too where a larger batch costs little; where its cost grows with it, they
    hardly grow at all and their bend says nothing. So it is the bend of `decoding`, but that of tokens per second

    - where it comes before and they had grown at least as the power 0.75 of the concurrency: places were left, but the
      machine was spent;
    - where `decoding` does not bend: the levels ended before the places did.
    """
    done = find_knee(levels, tokens_per_s, latencies_s)
    held = None if decoding is None else find_knee(levels, decoding, latencies_s)
    if not isinstance(held, Knee):
        return ServerKnee(Curve.TOKENS, done) if isinstance(done, Knee) else held or done
    if isinstance(done, Knee) and done.level < held.level and done.slope_before >= _IN_PROPORTION:
        return ServerKnee(Curve.TOKENS, done)
    return ServerKnee(Curve.DECODING, held)


def find_knee(
    levels: Sequence[float], throughputs: Sequence[float], latencies_s: Sequence[float] | None = None
) -> Knee | NoKnee:
    """Two straight lines that meet at one of the inner levels, by least squares of ln(throughput) over ln(level).

    Logarithms, so that a doubling counts the same at every level and equal noise in percent weighs alike. The best bend
    counts as a knee when throughput grew before it, grows at most a quarter as fast after it, is at 85 % of its peak
    there, explains half of what one line leaves unexplained, and (where latencies are given) latency at the last level
    is at least 1.2 times that at the knee. The bounds but for the last are those of GuideLLM's knee analysis.
    ValueError when the sequences differ in length or a value is not finite and above 0.
    """
    complaint = _complaint(levels, throughputs, latencies_s)
    if complaint is not None:
        raise ValueError(complaint)
    if len(set(levels)) < len(levels):
        raise ValueError(f"levels {list(levels)} repeat; pool what was measured at one level")
    if len(levels) < LEAST_LEVELS:
        return NoKnee(f"{len(levels)} levels are too few to tell a bend from noise; sweep at least {LEAST_LEVELS}")
    order = np.argsort(levels)
    x, y = np.log(np.asarray(levels, dtype=np.float64)[order]), np.log(np.asarray(throughputs)[order])
    line = _error(_line(x), y)
    if line <= _STRAIGHT * len(x):
        return NoKnee("throughput grows evenly over all levels" if y[-1] - y[0] > 0.05 else "throughput never grows")
    bends = [bend for at in range(1, len(x) - 1) if (bend := _bend(x, y, at, line)) is not None]
    if not bends:
        return NoKnee("throughput has no bend after which it grows at most a quarter as fast as before, near its peak")
    best, at = max(bends, key=lambda found: found[0].gain)
    if best.gain < _LEAST_GAIN:
        return NoKnee(f"a bend explains {best.gain:.0%} of what a straight line leaves, which may be noise")
    if latencies_s is not None:
        ordered = np.asarray(latencies_s)[order]
        if ordered[-1] < _LATENCY_GROWS * ordered[at]:
            return NoKnee("throughput stops growing and latency does not grow: the load was not what the levels say")
    return best


def _complaint(
    levels: Sequence[float], throughputs: Sequence[float], latencies_s: Sequence[float] | None
) -> str | None:
    columns = [levels, throughputs] + ([] if latencies_s is None else [latencies_s])
    if len({len(column) for column in columns}) != 1:
        return f"{' and '.join(str(len(column)) for column in columns)} values; expected one of each per level"
    if any(not 0 < value < math.inf for column in columns for value in column):
        return "levels, throughputs and latencies must be finite and above 0"
    return None


def _bend(x: FloatArray, y: FloatArray, at: int, line_error: float) -> tuple[Knee, int] | None:
    """The two lines that meet over level `at`; None where they are no knee, however well they fit."""
    design = np.column_stack([_line(x), np.maximum(x - x[at], 0.0)])
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    before, after = float(solution[1]), float(solution[1] + solution[2])
    share = float(np.exp(y[at] - y.max()))
    if before <= 0 or after > _TAIL_SHARE * before or share < _NEAR_PEAK:
        return None
    gain = 1 - _error(design, y) / line_error
    return Knee(float(round(math.exp(x[at]), 9)), before, after, gain, share), at


def _line(x: FloatArray) -> FloatArray:
    return np.column_stack([np.ones_like(x), x])


def _error(design: FloatArray, y: FloatArray) -> float:
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    return float(((y - design @ solution) ** 2).sum())
