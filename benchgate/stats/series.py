"""Series in time: change points (E-divisive), moving-block bootstrap errors, and the population stability index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import check_alpha

MIN_SEGMENT = 5  # least values on each side of a change; with fewer, hardly any order of values is unlikely
_FEWEST = 20  # least values for a block bootstrap; with fewer, there are hardly any different blocks to draw
_UNSEEN = 0.5  # added to every count, so that a category without counts on one side has no infinite weight
_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class Split:
    """Best cut of a segment: index of the first value after it, and the energy distance there."""

    at: int
    distance: float


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Change point: index of the first value after it, medians of the segments before and after, and p-value."""

    at: int
    before: float
    after: float
    p_value: float


def level_changes(series: Sequence[float], seed: int, alpha: float, among: int) -> tuple[ChangePoint, ...]:
    """Return every change of a series, oldest first, at `alpha` shared by the `among` series examined together."""
    each = alpha / among
    generator = np.random.default_rng([seed, len(series)])
    values = np.array(series, dtype=np.float64)
    return change_points(values, generator, each, permutations=max(199, math.ceil(2 / each)))


def change_points(
    values: FloatArray,
    generator: np.random.Generator,
    alpha: float,
    *,
    least: int = MIN_SEGMENT,
    permutations: int = 499,
) -> tuple[ChangePoint, ...]:
    """Find change points, oldest first, by E-divisive: cut the best segment again while the cut is significant.

    Matteson and James, "A nonparametric approach for multiple change point analysis of multivariate data", JASA 109
    (2014), 334-345, for one variable and exponent 1. It assumes no distribution. A cut's p-value is (1 + as large) / (1
    + permutations): it counts the series, with values permuted within every segment, whose best cut has as large a
    statistic. Values of one distribution are cut with probability `alpha`; autocorrelated values more often. A segment
    has `least` values or more. Raises ValueError for a value that is not finite, and for too few permutations to reach
    alpha.
    """
    check_alpha(alpha)
    if 1 / (1 + permutations) > alpha:
        raise ValueError(f"{permutations} permutations cannot show anything at {alpha:g}")
    series = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        raise ValueError("a value of the series is not finite")
    bounds, found = [0, len(series)], list[tuple[int, float]]()
    while (best := _best_of_segments(series, bounds, least)) is not None:
        p_value = _permutation_p(best.distance, series, bounds, generator, alpha, least, permutations)
        if p_value is None:
            break
        bounds = sorted([*bounds, best.at])
        found.append((best.at, p_value))
    changes = []
    for at, p_value in sorted(found):
        cut = bounds.index(at)
        before, after = series[bounds[cut - 1] : at], series[at : bounds[cut + 1]]
        changes.append(ChangePoint(at, float(np.median(before)), float(np.median(after)), p_value))
    return tuple(changes)


def best_split(values: FloatArray, least: int) -> Split | None:
    """Return the cut with the largest energy distance between the values before it and those that follow.

    The maximum is over every cut and every end of the following segment, n values before and m after: nm/(n+m) ·
    (2·mean |x - y| - mean |x - x'| - mean |y - y'|), the last two over different values. Return None when the series is
    too short for two segments or has no spread.
    """
    size = len(values)
    if size < 2 * least or np.ptp(values) == 0:
        return None
    sums = np.zeros((size + 1, size + 1))  # sums[i, j]: all distances of the first i values from the first j
    sums[1:, 1:] = np.abs(values[:, None] - values[None, :]).cumsum(axis=0).cumsum(axis=1)
    cut, end = np.meshgrid(np.arange(least, size - least + 1), np.arange(2 * least, size + 1), indexing="ij")
    before, after = cut.astype(np.float64), (end - cut).astype(np.float64)
    possible = after >= least
    after = np.where(possible, after, least)
    inside, whole, across = sums[cut, cut], sums[end, end], sums[cut, end]
    apart = 2 * (across - inside) / (before * after)
    apart -= inside / (before * (before - 1)) + (whole - 2 * across + inside) / (after * (after - 1))
    statistic = np.where(possible, before * after / (before + after) * apart, -np.inf)
    row, column = np.unravel_index(int(np.argmax(statistic)), statistic.shape)
    return Split(int(cut[row, column]), float(statistic[row, column]))


def _best_of_segments(series: FloatArray, bounds: list[int], least: int) -> Split | None:
    best: Split | None = None
    for start, end in pairwise(bounds):
        split = best_split(series[start:end], least)
        if split is not None and (best is None or split.distance > best.distance):
            best = Split(start + split.at, split.distance)
    return best


def _permutation_p(
    distance: float,
    series: FloatArray,
    bounds: list[int],
    generator: np.random.Generator,
    alpha: float,
    least: int,
    permutations: int,
) -> float | None:
    """Return the p-value of the best cut if it is at most `alpha`; None as soon as it cannot be."""
    at_least = distance * (1 - 1e-9)  # rounding depends on the order of summation
    larger = 0
    for _ in range(permutations):
        shuffled = np.concatenate([generator.permutation(series[start:end]) for start, end in pairwise(bounds)])
        other = _best_of_segments(shuffled, bounds, least)
        larger += other is not None and other.distance >= at_least
        if 1 + larger > alpha * (1 + permutations):
            return None
    return (1 + larger) / (1 + permutations)


def bootstrap_block_length(n: int) -> int:
    """Return the block length n^(1/3), the rate with the least error of the bootstrap variance (Künsch 1989)."""
    return max(1, math.ceil(round(math.cbrt(n), 9)))


def moving_block_error(
    values: FloatArray, statistic: Callable[[FloatArray], float], generator: np.random.Generator, *, draws: int = 200
) -> float | None:
    """Estimate the standard error of a statistic of a stationary series (Künsch 1989; Liu and Singh 1992).

    Each draw joins random blocks of `bootstrap_block_length` neighbours to a series of the same length, which keeps
    dependence within a block. Dependence beyond it is lost, and the error is then too small. Return None below 20
    values, or when a draw has no finite value (a quantile among failures).
    """
    n = len(values)
    if n < _FEWEST:
        return None
    length = bootstrap_block_length(n)
    found = np.empty(draws)
    for draw in range(draws):
        begun = generator.integers(0, n - length + 1, size=math.ceil(n / length))
        rows = (begun[:, None] + np.arange(length)).reshape(-1)[:n]
        found[draw] = statistic(values[rows])
    return float(np.std(found, ddof=1)) if np.isfinite(found).all() else None


@dataclass(frozen=True, slots=True)
class StabilityIndex:
    """Population stability index, and its 99th percentile by chance for samples of these sizes."""

    index: float
    chance: float


def population_stability_index(expected: Sequence[int], found: Sequence[int]) -> StabilityIndex | None:
    """Return PSI = Σ (q - p) ln(q / p) over the categories, p and q their shares among `expected` and `found`.

    Under equal distributions it is about χ² with B - 1 degrees of freedom times 1/n + 1/m, B the number of categories
    (Yurdakul and Naranjo 2020, "Statistical properties of the population stability index", Journal of Risk Model
    Validation 14(4)). Return None when one side has no counts, and 0 of 0 for a single category. Raises ValueError for
    different categories.
    """
    if len(expected) != len(found):
        raise ValueError(f"{len(expected)} and {len(found)} categories; expected the same ones")
    n, m, categories = sum(expected), sum(found), len(expected)
    if n == 0 or m == 0:
        return None
    if categories < 2:
        return StabilityIndex(0.0, 0.0)
    index = 0.0
    for was, now in zip(expected, found, strict=True):
        p, q = (was + _UNSEEN) / (n + _UNSEEN * categories), (now + _UNSEEN) / (m + _UNSEEN * categories)
        index += (q - p) * math.log(q / p)
    from scipy.special import chdtri  # slow to import

    return StabilityIndex(index, float(chdtri(categories - 1, _CHANCE)) * (1 / n + 1 / m))
