"""Where a series changed: E-divisive, which asks for no law of the values.

Matteson and James, "A nonparametric approach for multiple change point analysis of multivariate data", JASA 109 (2014),
334-345, for one variable and with the exponent 1.

The moving-block bootstrap: how far a statistic of one series would be off, where neighbours are alike.

Whether counts of the same categories at two times come from one distribution: the population stability index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import check_alpha

LEAST_VALUES = 5
"""On each side of a change: with fewer, hardly any order of the values is unlikely."""


@dataclass(frozen=True, slots=True)
class Split:
    """The best place to cut a stretch: `at` is the first value after it, and `distance` the statistic there."""

    at: int
    distance: float


@dataclass(frozen=True, slots=True)
class Change:
    """A change: the first value after it, the medians of the stretches on both sides of it, and its p-value."""

    at: int
    before: float
    after: float
    p_value: float


def level_changes(series: Sequence[float], seed: int, alpha: float, among: int) -> tuple[Change, ...]:
    """Return every change of a series, oldest first, at `alpha` shared by the `among` series examined together.

    The same seed gives the same changes.
    """
    each = alpha / among
    generator = np.random.default_rng([seed, len(series)])
    values = np.array(series, dtype=np.float64)
    return change_points(values, generator, each, permutations=max(199, math.ceil(2 / each)))


def change_points(
    values: FloatArray,
    generator: np.random.Generator,
    alpha: float,
    *,
    least: int = LEAST_VALUES,
    permutations: int = 499,
) -> tuple[Change, ...]:
    """Every change of a series, in order: the best cut of any stretch, then of the stretches it leaves, while it holds.

    A cut holds when the statistic of the best one, over all stretches, is reached by few enough of `permutations`
    series in which every stretch's values stand in another order: its p-value is (1 + as large) / (1 + permutations),
    and holds up to `alpha`. So values of one law are cut with the probability `alpha`; values that hang together from
    one to the next are cut more often. A stretch has `least` values or more. ValueError for a value that is not finite,
    and for so few permutations that no p-value could hold.
    """
    check_alpha(alpha)
    if 1 / (1 + permutations) > alpha:
        raise ValueError(f"{permutations} permutations cannot show anything at {alpha:g}")
    series = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        raise ValueError("a value of the series is not finite")
    bounds, found = [0, len(series)], list[tuple[int, float]]()
    while (best := _best(series, bounds, least)) is not None:
        p_value = _permutation_p(best.distance, series, bounds, generator, alpha, least, permutations)
        if p_value is None:
            break
        bounds = sorted([*bounds, best.at])
        found.append((best.at, p_value))
    return tuple(_change(series, bounds, at, p_value) for at, p_value in sorted(found))


def best_split(values: FloatArray, least: int) -> Split | None:
    """The cut with the largest energy distance between what is before it and the stretch that follows it.

    Over every cut and every end k of what follows, n values before and m after it: nm/(n+m) · (2·mean |x - y| - mean
    |x - x'| - mean |y - y'|), the last two over different values. None where there is no room for two stretches, or no
    spread at all.
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


def _best(series: FloatArray, bounds: list[int], least: int) -> Split | None:
    """The best cut of any of the stretches."""
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
    """The p-value where it is at most `alpha`; None as soon as it cannot be."""
    at_least = distance * (1 - 1e-9)  # the same values in another order add up a little differently
    larger = 0
    for _ in range(permutations):
        other = _best(_shuffled(series, bounds, generator), bounds, least)
        larger += other is not None and other.distance >= at_least
        if 1 + larger > alpha * (1 + permutations):
            return None
    return (1 + larger) / (1 + permutations)


def _shuffled(series: FloatArray, bounds: list[int], generator: np.random.Generator) -> FloatArray:
    stretches = pairwise(bounds)
    return np.concatenate([generator.permutation(series[start:end]) for start, end in stretches])


def _change(series: FloatArray, bounds: list[int], at: int, p_value: float) -> Change:
    place = bounds.index(at)
    before, after = series[bounds[place - 1] : at], series[at : bounds[place + 1]]
    return Change(at, float(np.median(before)), float(np.median(after)), p_value)


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


_UNSEEN = 0.5  # added to every count: a category that one side lacks has no infinite weight
_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class Stability:
    """`index`, and the most of it that chance makes of samples of these sizes (in 99 of 100 of them)."""

    index: float
    chance: float


def stability(expected: Sequence[int], found: Sequence[int]) -> Stability | None:
    """PSI = Σ (q - p) ln(q / p) over the categories, p and q their shares among `expected` and `found`.

    Under equal distributions it is about χ² with B - 1 degrees of freedom times 1/n + 1/m, B the number of categories
    (Yurdakul and Naranjo 2020, "Statistical properties of the population stability index", Journal of Risk Model
    Validation 14(4)). None where one side has no counts; 0 of 0 with a single category, of which nothing can differ.
    """
    if len(expected) != len(found):
        raise ValueError("counts of different categories")
    n, m, categories = sum(expected), sum(found), len(expected)
    if n == 0 or m == 0:
        return None
    if categories < 2:
        return Stability(0.0, 0.0)
    index = 0.0
    for was, now in zip(expected, found, strict=True):
        p, q = (was + _UNSEEN) / (n + _UNSEEN * categories), (now + _UNSEEN) / (m + _UNSEEN * categories)
        index += (q - p) * math.log(q / p)
    from scipy.special import chdtri  # takes a while to load

    return Stability(index, float(chdtri(categories - 1, _CHANCE)) * (1 / n + 1 / m))
