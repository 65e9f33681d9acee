"""A curve that can only fall, fitted to shares that were counted at several levels of load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FallingFit:
    """The fitted share at each level, both in order of rising level; shares never rise."""

    levels: tuple[float, ...]
    shares: tuple[float, ...]

    def crossing(self, target: float) -> float | None:
        """The level at which the fit comes down through the target, on a straight line over ln(level) between two.

        None where the fit stays on one side of it: nothing is said beyond the levels that were looked at.
        """
        above = [at for at, share in enumerate(self.shares) if share >= target]
        if not above or above[-1] == len(self.levels) - 1:
            return None
        low = above[-1]
        share, lower = self.shares[low], self.shares[low + 1]
        part = (share - target) / (share - lower)
        return math.exp((1 - part) * math.log(self.levels[low]) + part * math.log(self.levels[low + 1]))


def falling_fit(levels: Sequence[float], good: Sequence[int], totals: Sequence[int]) -> FallingFit | None:
    """Least squares among all curves that never rise, each share weighted by its number of requests.

    Pool adjacent violators (Ayer et al. 1955; Barlow et al., Statistical Inference under Order Restrictions, 1972); for
    counts it is the most likely such curve. Counts at one level are pooled first. None without any request. ValueError
    for counts that cannot be or a level that is not finite and above 0.
    """
    if not len(levels) == len(good) == len(totals):
        raise ValueError(f"{len(levels)} levels, {len(good)} and {len(totals)} counts; expected as many of each")
    pooled: dict[float, tuple[int, int]] = {}
    for level, hits, total in zip(levels, good, totals, strict=True):
        if not (0 < level < math.inf and 0 <= hits <= total):
            raise ValueError(f"{hits} of {total} at level {level!r}; expected 0 <= good <= total at a level above 0")
        if total:
            before = pooled.get(level, (0, 0))
            pooled[level] = before[0] + hits, before[1] + total
    if not pooled:
        return None
    ordered = sorted(pooled)
    return FallingFit(tuple(ordered), tuple(_fallen([pooled[level] for level in ordered])))


def _fallen(counts: Sequence[tuple[int, int]]) -> list[float]:
    """The shares after neighbours that rise were pooled, again and again, until none does."""
    pools: list[tuple[int, int, int]] = []  # good, total, levels
    for good, total in counts:
        pools.append((good, total, 1))
        while len(pools) > 1 and pools[-1][0] * pools[-2][1] > pools[-2][0] * pools[-1][1]:
            last, before = pools.pop(), pools.pop()
            pools.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    return [good / total for good, total, levels in pools for _ in range(levels)]
