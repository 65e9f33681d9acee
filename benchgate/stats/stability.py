"""Whether counts of the same categories at two times come from one distribution: the population stability index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
