"""The moving-block bootstrap: how far a statistic of one series would be off, where neighbours are alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from benchgate.model.records import FloatArray

_FEWEST = 20
"""Below it there are hardly any different blocks to draw."""


def block_length(n: int) -> int:
    """Values in a block: n^(1/3), the rate at which the error of the bootstrap's variance is least (Künsch 1989)."""
    return max(1, math.ceil(round(math.cbrt(n), 9)))


def moving_block_error(
    values: FloatArray,
    statistic: Callable[[FloatArray], float],
    generator: np.random.Generator,
    *,
    draws: int = 200,
) -> float | None:
    """Standard error of a statistic of a stationary series, in order of time (Künsch 1989; Liu and Singh 1992).

    Each draw strings together blocks of `block_length` neighbours, begun anywhere, to a series of the same length, so
    that what goes together in time stays together. Dependence over more than a block is not seen: the error is then too
    small. None below 20 values, or where a draw has no finite value (a quantile among failures).
    """
    n = len(values)
    if n < _FEWEST:
        return None
    length = block_length(n)
    found = np.empty(draws)
    for draw in range(draws):
        begun = generator.integers(0, n - length + 1, size=math.ceil(n / length))
        rows = (begun[:, None] + np.arange(length)).reshape(-1)[:n]
        found[draw] = statistic(values[rows])
    return float(np.std(found, ddof=1)) if np.isfinite(found).all() else None
