"""A difference of two runs that nothing ties together: what each may be off by itself, and what lies between runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.stats.distributions import t_ppf, t_sf
from benchgate.stats.limits import Limits, check_alpha

_ROUNDING = 1e-12
"""A standard error of log ratios or shares below this is floating point's, not the deployments'."""


@dataclass(frozen=True, slots=True)
class Part:
    """One independent part of a variance, and the degrees of freedom that it was estimated with."""

    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Combined:
    """An estimate with its standard error, one-sided limits, and the p-value of "it is at most the margin"."""

    estimate: float
    error: float
    freedom: float
    limits: Limits
    p_harm: float


def combined_t(estimate: float, parts: Sequence[Part], alpha: float, *, margin: float = 0.0) -> Combined | None:
    """t limits of an estimate whose variance is a sum of independent parts.

    SE² = Σ vᵢ, with (Σ vᵢ)² / Σ(vᵢ²/fᵢ) degrees of freedom (Satterthwaite 1946; Welch 1947). None without any variance:
    then there is nothing to tell noise from harm by. ValueError for a part without degrees of freedom.
    """
    check_alpha(alpha)
    if any(part.freedom < 1 for part in parts):
        raise ValueError("a part of a variance has no degrees of freedom; expected one at least")
    total = sum(part.variance for part in parts)
    error = math.sqrt(total)
    if not (math.isfinite(estimate) and _ROUNDING < error < math.inf):
        return None
    freedom = total**2 / sum(part.variance**2 / part.freedom for part in parts)
    reach = t_ppf(1 - alpha, freedom) * error
    limits = Limits(estimate - reach, estimate + reach)
    return Combined(estimate, error, freedom, limits, t_sf((estimate - margin) / error, freedom))
