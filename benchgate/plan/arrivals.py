"""When requests are meant to be sent: an arrival process, a rate and a generator give instants."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

_NS_PER_S = 1_000_000_000


def arrival_offsets_ns(
    process: Literal["poisson", "constant", "gamma"],
    rate_rps: float,
    count: int,
    generator: np.random.Generator,
    *,
    cv: float = 1.0,
) -> tuple[int, ...]:
    """Intended sends in ns since the start of the stage, ascending, the first one after one gap.

    Gaps of mean 1/rate: exponential (poisson), all the same (constant), or gamma with the coefficient of variation
    `cv`, burstier than Poisson above 1 and steadier below. Offsets are absolute, so lateness never shifts later
    requests. ValueError unless rate and cv are finite and above 0.
    """
    for name, value in (("rate_rps", rate_rps), ("cv", cv)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
    if process == "poisson":
        offsets_s = np.cumsum(generator.exponential(1.0 / rate_rps, size=count))
    elif process == "gamma":
        offsets_s = np.cumsum(generator.gamma(cv**-2, cv**2 / rate_rps, size=count))
    else:
        offsets_s = np.arange(1, count + 1) / rate_rps  # not a running sum, which gathers rounding
    return tuple(int(ns) for ns in np.rint(offsets_s * _NS_PER_S))
