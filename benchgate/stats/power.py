"""How much evidence a margin needs, before it is paid for."""

from __future__ import annotations

import math

from scipy.stats import nct, norm, t

from benchgate.stats.limits import check_alpha

_MOST_PAIRS = 1_000_000


def pairs_needed(run_cv_ratio: float, change_ratio: float, *, alpha: float = 0.05, power: float = 0.95) -> int | None:
    """Paired blocks for a one-sided t-test to find a change of `change_ratio` with the given power.

    Each arm varies from run to run by `run_cv_ratio` on its own, so one difference has sd √2·cv; the power is that of
    the noncentral t with shift ln(1+change)·√n / (√2·cv). None when a million pairs are not enough.
    """
    _check(alpha, power)
    if not (run_cv_ratio > 0 and change_ratio > 0):
        raise ValueError(f"cv {run_cv_ratio!r} and change {change_ratio!r} must both be above 0")
    shift = math.log1p(change_ratio) / (math.sqrt(2) * run_cv_ratio)

    def reached(n: int) -> bool:
        # 1 - cdf: nct.sf is not a number for some large shifts where cdf is a clean 0.
        return bool(1 - nct.cdf(t.ppf(1 - alpha, n - 1), n - 1, shift * math.sqrt(n)) >= power)

    low, high = 1, 2
    while not reached(high):
        low, high = high, high * 2
        if high > _MOST_PAIRS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def items_needed(discordance_ratio: float, margin: float, *, alpha: float = 0.05, power: float = 0.95) -> int:
    """Paired items for a difference of `margin` (a share, 0.02 = 2 points) at discordance f = (b+c)/n.

    n = ((z(1-alpha)·√f + z(power)·√(f - margin²)) / margin)² (Connor 1987, Biometrics 43), rounded up. ValueError when
    the discordance is below the margin: then the difference cannot be that large.
    """
    _check(alpha, power)
    if not 0 < margin <= discordance_ratio <= 1:
        raise ValueError(f"margin {margin!r} and discordance {discordance_ratio!r}: expected 0 < margin <= f <= 1")
    spread = float(norm.ppf(1 - alpha)) * math.sqrt(discordance_ratio)
    spread += float(norm.ppf(power)) * math.sqrt(discordance_ratio - margin**2)
    return math.ceil((spread / margin) ** 2)


def _check(alpha: float, power: float) -> None:
    check_alpha(alpha)
    if not 0 < power < 1:
        raise ValueError(f"power is {power!r}; expected a probability above 0 and below 1")
