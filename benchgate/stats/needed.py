"""How many more observations would make a t-limit as narrow as it must be."""

from __future__ import annotations

import math

from benchgate.stats.distributions import t_ppf

_MOST_TIMES = 100  # as many observations as there were are no plan any more


def observations_needed(n: int, width: float, room: float, alpha: float) -> int | None:
    """The least number of observations whose t-limit would lie within `room` of their mean, the spread as it was seen.

    `width` is how far the limit of `n` observations lies from theirs: t(1-alpha, n-1)·s/√n. More of them narrow it by
    the root of their number and by the quantile, which is large for few. None below two observations, for a limit that
    is not finite, where there is no room, and above a hundred times as many.
    """
    if n < 2 or room <= 0 or not math.isfinite(width):
        return None
    spread = width * math.sqrt(n) / t_ppf(1 - alpha, n - 1)

    def enough(more: int) -> bool:
        return t_ppf(1 - alpha, more - 1) * spread / math.sqrt(more) < room

    low, high = n, n * _MOST_TIMES
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
