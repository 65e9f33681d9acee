"""Mergeable histogram of times: quantiles of any number of values within a stated relative error, in little memory.

A bucket is known by the exponent and the first 8 bits of the mantissa of an IEEE 754 double, so 256 buckets divide each
power of two. Two histograms add up bucket by bucket: the result does not depend on how values were divided. Finding a
bucket is a shift of the value's own bits, 2 ns a value; DDSketch and HdrHistogram for Python take 500 ns or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchgate.model.records import FloatArray, IntArray

_SUB_BITS = 8
RELATIVE_ERROR = 2.0 ** -(_SUB_BITS + 1)
"""Largest relative error of a quantile of at least 1 ns: half the width of a bucket."""
_LEAST_EXPONENT, _EXPONENTS = -30, 64  # from 1 ns to 2**34 s, beyond what int64 nanoseconds can hold
_LEAST_S = 2.0**_LEAST_EXPONENT
_SHIFT = 52 - _SUB_BITS
_FIRST = (1023 + _LEAST_EXPONENT) << _SUB_BITS
_BUCKETS = _EXPONENTS << _SUB_BITS
_BLOCK = 1 << 17  # values at once, so that they stay in the processor's cache
_NS = 1_000_000_000


class ValueBounds(NamedTuple):
    """Interval that holds one order statistic."""

    lower: float
    upper: float

    @property
    def middle(self) -> float:
        """Return the value with the least relative error; an infinite one where the value is."""
        return self.lower if math.isinf(self.lower) else (self.lower + self.upper) / 2


@dataclass(slots=True, eq=False)
class TimeHistogram:
    """Counts of times in seconds. A value of +inf (a failure) counts as the largest; NaN (does not apply) is left out.

    Values below 1 ns share one bucket. Least, largest and mean are exact, the mean to 1 ns a value.
    """

    counts: IntArray = field(default_factory=lambda: np.zeros(_BUCKETS, dtype=np.int64))
    below: int = 0  # values under 1 ns
    infinite: int = 0
    least_s: float = math.inf  # of the finite values
    most_s: float = -math.inf
    total_ns: int = 0  # an integer, so that the order of additions does not matter

    @property
    def finite(self) -> int:
        """Return the number of finite values."""
        return self.below + int(self.counts.sum())

    def __len__(self) -> int:
        return self.finite + self.infinite

    def add(self, values: FloatArray) -> None:
        """Count values."""
        for first in range(0, len(values), _BLOCK):
            self._add_block(values[first : first + _BLOCK])

    def _add_block(self, values: FloatArray) -> None:
        finite = np.isfinite(values)
        if not finite.all():
            self.infinite += int(np.count_nonzero(values == np.inf))
            values = values[finite]
        if not len(values):
            return
        least_s = float(values.min())
        self.least_s, self.most_s = min(self.least_s, least_s), max(self.most_s, float(values.max()))
        self.total_ns += int(np.rint(values * _NS).astype(np.int64).sum())
        if least_s < _LEAST_S:
            enough = values >= _LEAST_S
            self.below += int(np.count_nonzero(~enough))
            values = values[enough]
        buckets = np.ascontiguousarray(values).view(np.int64) >> _SHIFT
        buckets -= _FIRST
        self.counts += np.bincount(buckets, minlength=_BUCKETS)

    def equals(self, other: TimeHistogram) -> bool:
        """Return True if both have the same counts in every bucket and the same sum."""
        mine, others = ((one.below, one.infinite, one.total_ns) for one in (self, other))
        return mine == others and np.array_equal(self.counts, other.counts)

    def merge(self, other: TimeHistogram) -> None:
        """Add the values of another histogram."""
        self.counts += other.counts
        self.below += other.below
        self.infinite += other.infinite
        self.least_s, self.most_s = min(self.least_s, other.least_s), max(self.most_s, other.most_s)
        self.total_ns += other.total_ns

    @property
    def mean_s(self) -> float | None:
        """Return the mean; None without values, and where one is infinite."""
        return self.total_ns / _NS / self.finite if self.finite and not self.infinite else None

    def at_rank(self, rank: int) -> ValueBounds:
        """Return an interval that holds the value of a rank (0 is the least). Raises IndexError beyond the values."""
        if not 0 <= rank < len(self):
            raise IndexError(f"rank {rank} of {len(self)} values")
        if rank >= self.finite:
            return ValueBounds(math.inf, math.inf)
        if rank in (0, self.finite - 1):
            exact_s = self.most_s if rank else self.least_s
            return ValueBounds(exact_s, exact_s)
        if rank < self.below:
            return ValueBounds(self.least_s, min(_LEAST_S, self.most_s))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank - self.below, side="right"))
        lower, upper = _edge_s(bucket), _edge_s(bucket + 1)
        return ValueBounds(max(lower, self.least_s), min(upper, self.most_s))

    def quantile(self, q: float) -> ValueBounds | None:
        """Return an interval that holds the quantile as `request_metrics.quantile` defines it; None without values."""
        n = len(self)
        return self.at_rank(max(math.ceil(n * q - 1), 0)) if n else None


def _edge_s(bucket: int) -> float:
    return float(np.int64((bucket + _FIRST) << _SHIFT).view(np.float64))
