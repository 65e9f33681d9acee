"""A pair of one-sided confidence limits, the currency of every decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """One-sided (1-alpha) limits: below `lower` with probability at most alpha, above `upper` likewise.

    Together they are a (1-2*alpha) interval. A side without a bound is infinite.
    """

    lower: float
    upper: float


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless 0 < alpha < 0.5: an error probability, one-sided."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha!r}; expected a one-sided error probability above 0 and below 0.5")
