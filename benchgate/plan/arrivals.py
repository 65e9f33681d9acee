"""When requests are meant to be sent: an arrival process, a rate and a generator give instants."""

from __future__ import annotations

from typing import Literal

import numpy as np

_NS_PER_S = 1_000_000_000


def arrival_offsets_ns(
    process: Literal["poisson", "constant"], rate_rps: float, count: int, generator: np.random.Generator
) -> tuple[int, ...]:
    """Intended sends in ns since the start of the stage, ascending, the first one after one gap.

    Poisson: exponential gaps of mean 1/rate. Constant: gaps of exactly 1/rate. Offsets are absolute, so lateness
    never shifts later requests.
    """
    if process == "poisson":
        gaps_s = generator.exponential(1.0 / rate_rps, size=count)
    else:
        gaps_s = np.full(count, 1.0 / rate_rps)
    return tuple(int(ns) for ns in np.rint(np.cumsum(gaps_s) * _NS_PER_S))
