"""Harm that adds up over promotions: the sum of comparisons that follow one another, and one across two runs.

Each promotion's candidate is the next one's baseline, so on a scale where harms add (log ratios, differences of shares)
the last candidate's harm against the first baseline is the sum of the links between them. Each link was measured beside
its own live baseline, so what changed between runs is in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.stats.distributions import t_ppf, t_sf
from benchgate.stats.limits import Limits, check_alpha


@dataclass(frozen=True, slots=True)
class Link:
    """One comparison: harm with one-sided limits, each wrong with the probability `alpha`, from `n` observations."""

    harm: float
    limits: Limits
    alpha: float
    n: int


@dataclass(frozen=True, slots=True)
class Summed:
    """The harm of all links together; `errors` are its standard errors downwards and upwards."""

    harm: float
    errors: tuple[float, float]
    limits: Limits
    p_harm: float


def summed(links: Sequence[Link], alpha: float) -> Summed:
    """The sum of independent links, with limits by MOVER (Zou and Donner 2008, Statistics in Medicine 27, 1693-1702).

    The variance on each side of a link's harm is had from its own limit there, (limit - harm) / t(1-alpha, n-1), so a
    limit that is not symmetrical keeps its shape; variances add, and the degrees of freedom are Satterthwaite's
    (1946): (sum of v)² / sum of v²/(n-1). `p_harm` tests "the sum is at most 0".

    Where no link has any spread downwards, p_harm is 1 at or below 0 and 2**-n above, the least that signs can give.
    ValueError without links, or for a link of fewer than two observations.
    """
    check_alpha(alpha)
    if not links or min(link.n for link in links) < 2:
        raise ValueError("a sum needs links, each of two observations at least")
    harm = sum(link.harm for link in links)
    below, above = (_side(links, lower=side) for side in (True, False))
    limits = Limits(harm - t_ppf(1 - alpha, below[1]) * below[0], harm + t_ppf(1 - alpha, above[1]) * above[0])
    if below[0] > 0:
        p_harm = t_sf(harm / below[0], below[1])
    else:
        p_harm = 2.0 ** -min(link.n for link in links) if harm > 0 else 1.0
    return Summed(harm, (below[0], above[0]), limits, p_harm)


def across_runs(log_ratio: float, cv_run: float, n: int, alpha: float) -> Link:
    """A comparison of two values that were measured in two runs, as a link.

    Nothing cancels between runs, so each value brings the run-to-run variation: SE = √2·cv_run, where `cv_run` was had
    from `n` runs of one deployment (a small coefficient of variation is the standard deviation of the logarithm).
    """
    check_alpha(alpha)
    reach = t_ppf(1 - alpha, n - 1) * math.sqrt(2) * cv_run
    return Link(log_ratio, Limits(log_ratio - reach, log_ratio + reach), alpha, n)


def _side(links: Sequence[Link], *, lower: bool) -> tuple[float, float]:
    """Standard error and degrees of freedom of the sum, on one side of it."""
    variances = []
    for link in links:
        reach = link.harm - link.limits.lower if lower else link.limits.upper - link.harm
        variances.append((reach / t_ppf(1 - link.alpha, link.n - 1)) ** 2)
    total = sum(variances)
    if total == 0:
        return 0.0, 1.0
    freedom = total**2 / sum(v**2 / (link.n - 1) for v, link in zip(variances, links, strict=True))
    return math.sqrt(total), freedom
