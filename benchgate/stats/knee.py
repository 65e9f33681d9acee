"""Knee of a concurrency sweep: the level beyond which throughput hardly grows and latency does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from benchgate.model.records import FloatArray

MIN_LEVELS = 5
_TAIL_SHARE = 0.25  # largest slope after the knee, as a share of the slope before it
_LEAST_GAIN = 0.5  # least share of a straight line's squared error that the bend removes
_NEAR_PEAK = 0.85  # least throughput at the knee, as a share of the highest
_LATENCY_GROWS = 1.2  # least growth of latency from the knee to the last level
_PROPORTIONAL = 0.75  # least slope of ln(tokens/s) before a bend that comes before the server's slots are full
_STRAIGHT = 1e-6  # mean squared error of a straight line in ln(throughput) that counts as a perfect fit


@dataclass(frozen=True, slots=True)
class Knee:
    """Knee at one of the measured levels, with the slopes of ln(throughput) over ln(level) on both sides."""

    level: float
    slope_before: float  # 1: throughput doubles with the level; 0: it stays constant
    slope_after: float
    gain: float  # share of a straight line's squared error that the bend removes


@dataclass(frozen=True, slots=True)
class NoKnee:
    """Reason why a curve has no knee."""

    reason: str


class Curve(StrEnum):
    """Curve that has the knee."""

    DECODING = "requests decoding at once"
    TOKENS = "output tokens per second"


@dataclass(frozen=True, slots=True)
class ServerKnee:
    """Knee of a server, and the curve that has it."""

    curve: Curve
    knee: Knee

    @property
    def level(self) -> float:
        """Concurrency at the knee."""
        return self.knee.level


def find_server_knee(
    levels: Sequence[float],
    tokens_per_s: Sequence[float],
    decoding: Sequence[float] | None,
    latencies_s: Sequence[float],
) -> ServerKnee | NoKnee:
    """Find a server's knee from the number of requests that decode at once and from tokens per second.

    `decoding` (None if unknown) bends where all slots of the server are taken. Tokens per second bend there too if a
    larger batch costs little; if its cost grows with its size, they hardly grow at all and their bend means nothing. So
    the knee is that of `decoding`, except that it is that of tokens per second

    - when it comes first and tokens had grown at least as the power 0.75 of the concurrency: slots were free but the
      hardware was saturated;
    - when `decoding` has no bend: the sweep ended before all slots were taken.
    """
    tokens_knee = find_knee(levels, tokens_per_s, latencies_s)
    decoding_knee = None if decoding is None else find_knee(levels, decoding, latencies_s)
    if not isinstance(decoding_knee, Knee):
        return ServerKnee(Curve.TOKENS, tokens_knee) if isinstance(tokens_knee, Knee) else decoding_knee or tokens_knee
    if (
        isinstance(tokens_knee, Knee)
        and tokens_knee.level < decoding_knee.level
        and tokens_knee.slope_before >= _PROPORTIONAL
    ):
        return ServerKnee(Curve.TOKENS, tokens_knee)
    return ServerKnee(Curve.DECODING, decoding_knee)


def find_knee(
    levels: Sequence[float], throughputs: Sequence[float], latencies_s: Sequence[float] | None = None
) -> Knee | NoKnee:
    """Fit two straight lines that meet at an inner level, by least squares of ln(throughput) over ln(level).

    On logarithms a doubling counts the same at every level, and so does noise in percent. The best bend is a knee when
    throughput grows before it, grows at most a quarter as fast after it, is at 85% of its peak there, and the bend
    removes half of a straight line's squared error. Where latencies are given, the last must be at least 1.2 times that
    at the knee. All bounds but this last are those of GuideLLM's knee analysis. Raises ValueError when the sequences
    differ in length, a level repeats, or a value is not finite and above 0.
    """
    columns = [levels, throughputs] + ([] if latencies_s is None else [latencies_s])
    if len({len(column) for column in columns}) != 1:
        counts = " and ".join(str(len(column)) for column in columns)
        raise ValueError(f"{counts} values; expected one of each per level")
    if any(not 0 < value < math.inf for column in columns for value in column):
        raise ValueError("levels, throughputs and latencies must be finite and above 0")
    if len(set(levels)) < len(levels):
        raise ValueError(f"levels {list(levels)} repeat; pool what was measured at one level")
    if len(levels) < MIN_LEVELS:
        return NoKnee(f"{len(levels)} levels are too few to tell a bend from noise; sweep at least {MIN_LEVELS}")
    order = np.argsort(levels)
    x, y = np.log(np.asarray(levels, dtype=np.float64)[order]), np.log(np.asarray(throughputs)[order])
    line = _squared_error(_line_design(x), y)
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


def _bend(x: FloatArray, y: FloatArray, at: int, line_error: float) -> tuple[Knee, int] | None:
    """Fit the two lines that meet at level `at`; None where they are no knee, however well they fit."""
    design = np.column_stack([_line_design(x), np.maximum(x - x[at], 0.0)])
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    before, after = float(solution[1]), float(solution[1] + solution[2])
    if before <= 0 or after > _TAIL_SHARE * before or float(np.exp(y[at] - y.max())) < _NEAR_PEAK:
        return None
    gain = 1 - _squared_error(design, y) / line_error
    return Knee(float(round(math.exp(x[at]), 9)), before, after, gain), at


def _line_design(x: FloatArray) -> FloatArray:
    return np.column_stack([np.ones_like(x), x])


def _squared_error(design: FloatArray, y: FloatArray) -> float:
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    return float(((y - design @ solution) ** 2).sum())
