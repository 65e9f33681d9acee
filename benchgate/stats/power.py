"""How much evidence a margin needs, and how little harm so much evidence shows, before it is paid for.

Of paired blocks: the power of Student's t is exact, by the noncentral t law. What several looks at them make of it is
in `look_power`; shares of requests are in `share_power`, items of evals in `item_power`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from benchgate.stats.distributions import norm_ppf, t_ppf
from benchgate.stats.limits import check_alpha

_MOST = 1_000_000
"""Pairs, or standard deviations of harm, beyond which no number is told."""
_HALVINGS = 60


def chance_shown(n: int, sd: float, harm: float, *, alpha: float = 0.05) -> float:
    """The chance that a one-sided t-test over `n` paired differences with this deviation shows a mean of `harm`.

    P(T > t(1-alpha, n-1)), T noncentral with shift harm·√n/sd (Johnson, Kotz and Balakrishnan 1995, chapter 31). By
    symmetry it is also the chance that an equal candidate's upper limit stays below a margin of `harm`. 0 below two
    differences. ValueError for a deviation that is not above 0.
    """
    from scipy.special import nctdtr

    check_alpha(alpha)
    if not sd > 0:
        raise ValueError(f"a standard deviation of {sd!r}; expected one above 0")
    if n < 2:
        return 0.0
    # 1 - cdf: the upper tail itself is not a number for some large shifts where the cdf is a clean 0.
    return float(1 - nctdtr(n - 1, harm * math.sqrt(n) / sd, t_ppf(1 - alpha, n - 1)))


def detectable_harm(n: int, sd: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest mean harm that `n` paired differences show with this chance. None below two of them."""
    _check(alpha, power)
    if n < 2:
        return None
    return _smallest(lambda harm: chance_shown(n, sd, harm, alpha=alpha) >= power, sd / math.sqrt(n))


def blocks_needed(sd: float, harm: float, *, alpha: float = 0.05, power: float = 0.95) -> int | None:
    """Paired differences for a t-test to show a mean of `harm` with the given power. None beyond a million."""
    _check(alpha, power)
    if not (sd > 0 and harm > 0):
        raise ValueError(f"deviation {sd!r} and harm {harm!r} must both be above 0")
    return fewest(lambda n: chance_shown(n, sd, harm, alpha=alpha) >= power, most=_MOST)


def items_needed(discordance_ratio: float, margin: float, *, alpha: float = 0.05, power: float = 0.95) -> int:
    """Paired items for a difference of `margin` (a share, 0.02 = 2 points) at discordance f = (b+c)/n.

    n = ((z(1-alpha)·√f + z(power)·√(f - margin²)) / margin)² (Connor 1987, Biometrics 43), rounded up. ValueError when
    the discordance is below the margin: then the difference cannot be that large.
    """
    _check(alpha, power)
    if not 0 < margin <= discordance_ratio <= 1:
        raise ValueError(f"margin {margin!r} and discordance {discordance_ratio!r}: expected 0 < margin <= f <= 1")
    spread = norm_ppf(1 - alpha) * math.sqrt(discordance_ratio)
    spread += norm_ppf(power) * math.sqrt(discordance_ratio - margin**2)
    return math.ceil((spread / margin) ** 2)


def detectable_difference(n: int, discordance_ratio: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest difference that `n` paired items show, by the same formula: at most 1, or None.

    Items that lose differ, so a difference above the discordance is looked for at a discordance as large as itself.
    """
    _check(alpha, power)
    if n < 1 or not 0 <= discordance_ratio <= 1:
        raise ValueError(f"{n} items, discordance {discordance_ratio!r}: expected items, and a share from 0 to 1")

    def enough(difference: float) -> bool:
        return items_needed(max(discordance_ratio, difference), difference, alpha=alpha, power=power) <= n

    if not enough(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def values_needed(sd: float, difference: float, *, alpha: float = 0.05, power: float = 0.95) -> int:
    """Independent paired values whose mean shows a difference: n = ((z(1-alpha) + z(power))·sd/difference)².

    Of the excess disagreement of a shadow comparison, sd is that of x - y over prompts.
    """
    _check(alpha, power)
    if not (sd >= 0 and difference > 0):
        raise ValueError(f"sd {sd!r} and difference {difference!r}: expected sd of 0 or more, difference above 0")
    return max(1, math.ceil(((norm_ppf(1 - alpha) + norm_ppf(power)) * sd / difference) ** 2))


def fewest(enough: Callable[[int], bool], *, most: int) -> int | None:
    """The fewest of which a rising condition holds, from 1 on; None where `most` are not enough."""
    low, high = 0, 1
    while not enough(high):
        low, high = high, high * 2
        if low >= most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _smallest(enough: Callable[[float], bool], scale: float) -> float | None:
    """The smallest value of which a rising condition holds, by `scale`; None where a million times it is too small."""
    high = scale
    while not enough(high):
        high *= 2
        if high > _MOST * scale:
            return None
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check(alpha: float, power: float) -> None:
    check_alpha(alpha)
    if not 0 < power < 1:
        raise ValueError(f"power is {power!r}; expected a probability above 0 and below 1")
