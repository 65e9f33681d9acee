"""What so many requests can show of a share that misses: errors, answers that are late or not valid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchgate.stats.attainment import attainment_limits
from benchgate.stats.distributions import binom_cdf, binom_sf
from benchgate.stats.limits import Limits, check_alpha

_HALVINGS = 50


def zero_misses_needed(share: float, alpha: float = 0.05) -> int:
    """Requests of which none may miss to show that less than `share` do: the least n with (1 - share)^n <= alpha.

    Clopper and Pearson's limit of 0 in n. At 5 %: 299 for 1 %, 598 for 0.5 %, 2,995 for 0.1 %.
    """
    check_alpha(alpha)
    if not 0 < share < 1:
        raise ValueError(f"a share of {share!r}; expected one above 0 and below 1")
    return math.ceil(math.log(alpha) / math.log1p(-share))


def most_misses(requests: Sequence[int], allowed: float, alpha: float = 0.05) -> int | None:
    """How many of the requests of these blocks may miss for the upper limit of their share to be at most `allowed`.

    The misses are taken to fall evenly over the blocks, which is the kindest they can. None where not even none is few
    enough. ValueError for blocks of which there are no limits.
    """
    if _evenly(requests, 0, alpha).upper > allowed:
        return None
    return _last(lambda misses: _evenly(requests, misses, alpha).upper <= allowed, sum(requests))


def least_shown(requests: Sequence[int], allowed: float, alpha: float = 0.05) -> int | None:
    """How many must miss, evenly, for the share to be shown above `allowed`; None where not even all are enough."""
    if _evenly(requests, sum(requests), alpha).lower <= allowed:
        return None
    return _last(lambda misses: _evenly(requests, misses, alpha).lower <= allowed, sum(requests)) + 1


def share_shown(requests: Sequence[int], allowed: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest true share that is shown to be above `allowed` with this chance; None where none is."""
    least = least_shown(requests, allowed, alpha)
    if least is None:
        return None
    low, high = allowed, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if binom_sf(least - 1, sum(requests), middle) >= power else (middle, high)
    return high


def chance_within(requests: Sequence[int], allowed: float, share: float, alpha: float = 0.05) -> float:
    """The chance that the upper limit is at most `allowed`, when each request misses with probability `share`."""
    most = most_misses(requests, allowed, alpha)
    return 0.0 if most is None else binom_cdf(most, sum(requests), share)


def _evenly(requests: Sequence[int], misses: int, alpha: float) -> Limits:
    """Limits of the share that misses, when the misses fall on the blocks as evenly as whole numbers can."""
    done, had, kept = 0, 0, []
    total = sum(requests)
    for count in requests:
        had += count
        upto = misses * had // total if total else 0
        kept.append(count - (upto - done))
        done = upto
    limits = attainment_limits(kept, list(requests), alpha)
    if limits is None:
        raise ValueError(f"blocks of {list(requests)} requests have no limits; expected two blocks, each with requests")
    return limits


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last number up to which a condition that holds at 0 still does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
