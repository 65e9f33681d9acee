"""Pareto frontier of deployments: quality against cost, as far as confidence limits show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchgate.stats.distributions import Limits
from benchgate.stats.meta import EstimateWithLimits


@dataclass(frozen=True, slots=True)
class Option:
    """Deployment to choose from. None is an unknown value, or one that may not count.

    `quality`: higher is better, on one scale for all. `usd`: dollars above 0 for the same work. `share`: ratio of that
    cost to the deployment measured beside it and beside every other option. `passes`: its own verdict allows promotion.
    Names are unique.
    """

    name: str
    quality: EstimateWithLimits | None
    usd: EstimateWithLimits | None
    share: EstimateWithLimits | None
    passes: bool


class FrontierStatus(StrEnum):
    """Position relative to the Pareto frontier, at the level of the limits."""

    ON = "yes"  # shown to be better or cheaper than every other option
    NOT_SHOWN = "not shown"  # no option is shown to dominate it, but one may
    OFF = "no"  # another option is shown to be at least as good and cheaper
    NOT_COUNTED = "not counted"  # quality or cost is unknown


@dataclass(frozen=True, slots=True)
class FrontierPosition:
    """Position of an option; `others` are those that dominate it (OFF) or may (NOT_SHOWN)."""

    standing: FrontierStatus
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheapestOption:
    """Passing option with the lowest cost; `unsure` are passing ones not shown to be more expensive."""

    name: str
    unsure: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContestedCheapest:
    """Undecided cheapest option: one is cheapest in dollars, another relative to its baseline."""

    by_usd: str
    by_share: str


def frontier_positions(options: Sequence[Option]) -> dict[str, FrontierPosition]:
    """Compare each option with all others, by name.

    Limits are each option's own, so conclusions hold with less error than theirs; where two overlap, nothing is shown.
    A cost difference must show in both dollars and shares: runs measured at different times differ in more than their
    deployments, which affects dollars, while shares only cancel what affected both sides of a run.
    """
    positions = {}
    for one in options:
        others = [
            other for other in options if other is not one and other.quality is not None and other.usd is not None
        ]
        dominating = tuple(o.name for o in others if _at_least(o.quality, one.quality) and _cheaper(o, one))
        # neither shown to be worse than `one` nor at least as expensive: it may dominate
        undecided = tuple(
            o.name
            for o in others
            if not _below(o.quality, one.quality) and not (_at_least(o.usd, one.usd) and _at_least(o.share, one.share))
        )
        if one.quality is None or one.usd is None:
            positions[one.name] = FrontierPosition(FrontierStatus.NOT_COUNTED)
        elif dominating:
            positions[one.name] = FrontierPosition(FrontierStatus.OFF, dominating)
        elif undecided:
            positions[one.name] = FrontierPosition(FrontierStatus.NOT_SHOWN, undecided)
        else:
            positions[one.name] = FrontierPosition(FrontierStatus.ON)
    return positions


def _cheaper(one: Option, other: Option) -> bool:
    return _below(one.usd, other.usd) and _below(one.share, other.share)


def _at_least(one: EstimateWithLimits | None, other: EstimateWithLimits | None) -> bool:
    if one is None or other is None or one.limits is None or other.limits is None:
        return False
    return one.limits.lower >= other.limits.upper


def _below(one: EstimateWithLimits | None, other: EstimateWithLimits | None) -> bool:
    if one is None or other is None or one.limits is None or other.limits is None:
        return False
    return one.limits.upper < other.limits.lower


def cheapest_option(options: Sequence[Option]) -> CheapestOption | ContestedCheapest | None:
    """Return the passing option with the lowest estimated cost; None if none passes with a cost.

    Contested if another one has a lower share, as far as shares are known.
    """
    usd = {one.name: one.usd.value for one in options if one.passes and one.usd is not None}
    if not usd:
        return None
    priced = {one.name: one for one in options if one.name in usd}
    shares = {name: one.share.value for name, one in priced.items() if one.share is not None}
    least = min(usd, key=lambda name: (usd[name], shares.get(name, math.inf)))
    if least in shares and shares[least] > min(shares.values()):
        return ContestedCheapest(least, min(shares, key=lambda name: shares[name]))
    return CheapestOption(
        least, tuple(name for name, one in priced.items() if name != least and not _cheaper(priced[least], one))
    )


def saving(share: EstimateWithLimits) -> EstimateWithLimits:
    """Return the share saved: 1 - share of the cost, below 0 if it is more expensive."""
    limits = share.limits
    return EstimateWithLimits(1 - share.value, None if limits is None else Limits(1 - limits.upper, 1 - limits.lower))
