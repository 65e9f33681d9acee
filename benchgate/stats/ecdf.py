"""The empirical distribution of latencies, some of which never came: what a curve of it needs, and no more points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray

MOST_POINTS = 200
"""More are not to be told apart on any screen: each step is half a percent of the observations."""


@dataclass(frozen=True, slots=True)
class Ecdf:
    """`shares[i]` of all `n` observations lie at or below `values[i]`; both ascend.

    `never` of them are infinite: they lie at no value, so the last share is 1 only where there is none. Where every one
    is, there are no values.
    """

    values: tuple[float, ...]
    shares: tuple[float, ...]
    n: int
    never: int

    @property
    def arrived(self) -> float:
        """The share that came at all: where the curve ends."""
        return (self.n - self.never) / self.n


def ecdf(values: FloatArray, most: int = MOST_POINTS) -> Ecdf | None:
    """The curve through at most `most` of the observations, at ranks as far apart as can be; both extremes are kept.

    +inf (a failure) counts in `n` like any other; NaN ("does not apply") is dropped, as in `metrics.quantile`. A share
    is that of the whole sample: leaving points out moves none of those that stay. None without any observation.
    ValueError for fewer than two points.
    """
    if most < 2:
        raise ValueError(f"most is {most!r}; a curve has two points at least")
    applicable = values[~np.isnan(values)]
    n = len(applicable)
    if n == 0:
        return None
    arrived = np.sort(applicable[np.isfinite(applicable)])
    if len(arrived) == 0:
        return Ecdf((), (), n, n)
    ranks = np.unique(np.rint(np.linspace(0, len(arrived) - 1, min(most, len(arrived)))).astype(np.int64))
    kept = np.unique(arrived[ranks])
    at_or_below = np.searchsorted(arrived, kept, side="right")
    return Ecdf(tuple(kept.tolist()), tuple((at_or_below / n).tolist()), n, n - len(arrived))
