"""What so many items can show: chances of each outcome and sizes, before an eval is paid for.

Shares throughout: 0.02 is two points. `flips` is the share of items on which the arms differ, (b + c)/n.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from benchgate.stats.distributions import binom_cdf, binom_pmf, norm_ppf
from benchgate.stats.limits import check_alpha
from benchgate.stats.proportions import score_statistic, tango_p_margin

_TAILS = 8
"""Standard deviations of the number of differing items that are looked at."""
_SELF_WEIGHT = 0.5
"""What a prompt takes off the excess when the baseline differs from itself (`excess`)."""
_MOST_ODD = 2 / 3
"""Of prompts with an odd one among three answers, those where it is one of the baseline's two."""


def chance_of_pass(n: int, flips: float, margin: float, alpha: float = 0.05, *, harm: float = 0.0) -> float:
    """How often Tango's upper limit stays below the margin: of an equal candidate, or of one that loses `harm`."""
    _check(n, flips, harm, alpha)

    def shown(b: int, c: int) -> bool:
        return tango_p_margin(b, c, n, margin) < alpha

    if flips in (0, 1) and flips == abs(harm):  # every item, or none, is lost (or gained)
        return float(shown(n if harm > 0 else 0, n if harm < 0 else 0))
    return _over_differing(n, flips, (flips + harm) / (2 * flips), shown)


def chance_of_excess_pass(n: int, itself: float, margin: float, alpha: float = 0.05) -> float:
    """How often the excess disagreement of an equal candidate is shown to be below the margin.

    `itself` is the share of prompts on which the baseline differs from itself. Of three answers of equals that differ
    at all, each is the odd one as often: half as many prompts as `itself` are a candidate against two that agree (+1),
    `itself` a baseline at odds with itself (-1/2), and the limits are those of `excess_disagreement`.
    """
    check_alpha(alpha)
    if n < 1 or not 0 <= itself < _MOST_ODD or not 0 < margin < 1:
        raise ValueError(f"n={n}, itself={itself!r}, margin={margin!r}: expected prompts, itself < 2/3, 0 < margin < 1")
    z = norm_ppf(1 - alpha)

    def shown(b: int, c: int) -> bool:
        return score_statistic(b, c, n, margin, weight=_SELF_WEIGHT) < -z

    if itself == 0:
        return float(shown(0, 0))
    return _over_differing(n, itself / _MOST_ODD, 1 / 3, shown)


def excess_sd(itself: float) -> float:
    """Deviation of one prompt's excess x - y for an equal candidate: √(itself/2 + itself/4), by the same law."""
    return math.sqrt(0.75 * itself)


def independent_items(n: int, clusters: int, alike: float) -> int:
    """How many independent items tell as much as n in so many clusters (Kish 1965): n / (1 + (n/clusters - 1)·alike).

    `alike` is the intra-class correlation of their differences, from 0 to 1. At least 1.
    """
    if not (0 < clusters <= n and 0 <= alike <= 1):
        raise ValueError(f"n={n}, {clusters} clusters, alike={alike!r}: expected 0 < clusters <= n, 0 <= alike <= 1")
    return max(1, math.floor(n / (1 + (n / clusters - 1) * alike)))


def _over_differing(n: int, differ: float, loss: float, shown: Callable[[int, int], bool]) -> float:
    """Return the chance of what is shown up to some number of losses.

    Each of `n` items differs with the probability `differ`, and is then a loss with the probability `loss`.
    """
    spread = _TAILS * math.sqrt(n * differ * (1 - differ)) + 1
    numbers = np.arange(max(0, math.floor(n * differ - spread)), min(n, math.ceil(n * differ + spread)) + 1)
    total = 0.0
    for m, weight in zip(numbers.tolist(), binom_pmf(numbers, n, differ), strict=True):
        edge = _first_not_shown(m, shown)
        total += weight * (binom_cdf(edge - 1, m, loss) if loss < 1 else float(m <= edge - 1))
    return float(min(1.0, max(0.0, total)))


def _first_not_shown(m: int, shown: Callable[[int, int], bool]) -> int:
    """Return the fewest losses among m of which the claim is no longer shown."""
    low, high = 0, m + 1
    while low < high:
        middle = (low + high) // 2
        if shown(middle, m - middle):
            low = middle + 1
        else:
            high = middle
    return low


def _check(n: int, flips: float, harm: float, alpha: float) -> None:
    check_alpha(alpha)
    if n < 1 or not (abs(harm) <= flips < 1 or abs(harm) == flips == 1):
        raise ValueError(f"n={n}, flips={flips!r}, harm={harm!r}: expected items, and |harm| <= flips < 1")
