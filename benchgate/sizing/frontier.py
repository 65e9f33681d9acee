"""Which of several deployments are worth their price: quality against cost, as far as intervals tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchgate.stats.distributions import Limits
from benchgate.stats.meta import Figure


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment to choose from. What is not known of it is None, and so is what may not be counted on.

    `quality`: more is better, on one scale for all. `usd`: dollars above 0 for the same work. `share`: the same over
    what the deployment costs that was measured beside it and beside every other option. `passes`: its own verdict lets
    it be promoted. Names are unique.
    """

    name: str
    quality: Figure | None
    usd: Figure | None
    share: Figure | None
    passes: bool


class Standing(StrEnum):
    """Where an option stands among the others, at the level of their limits."""

    ON = "yes"
    """On the frontier: against every other one it is shown to be better, or cheaper."""
    NOT_SHOWN = "not shown"
    """Nobody is shown to beat it, and somebody may."""
    OFF = "no"
    """Another one is shown to be both at least as good and cheaper."""
    NOT_COUNTED = "not counted"
    """Its quality or its cost is not known."""


@dataclass(frozen=True, slots=True)
class Stand:
    """An option's standing; `others` are those that beat it (OFF) or may (NOT_SHOWN)."""

    standing: Standing
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The option that passes for the fewest dollars; `unsure` are others that pass and are not shown to be dearer."""

    name: str
    unsure: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contested:
    """No option is the cheapest: one is by its dollars, and another by its share."""

    by_usd: str
    by_share: str


def stands(options: Sequence[Option]) -> dict[str, Stand]:
    """Each option against all the others, by name.

    Limits are each option's own, so what is shown holds with less error than theirs; where two overlap, nothing is
    shown, whichever estimate is better. A difference of costs is shown only where dollars and shares both show it: two
    that were measured apart differ in more than themselves, of which dollars know nothing, and shares only what came
    upon both of a pair alike.
    """
    return {one.name: _stand(one, [other for other in options if other is not one]) for one in options}


def _stand(one: Option, others: Sequence[Option]) -> Stand:
    if one.quality is None or one.usd is None:
        return Stand(Standing.NOT_COUNTED)
    beaten = tuple(other.name for other in others if _beats(other, one))
    if beaten:
        return Stand(Standing.OFF, beaten)
    open_with = tuple(other.name for other in others if not _safe(one, other))
    return Stand(Standing.NOT_SHOWN, open_with) if open_with else Stand(Standing.ON)


def _beats(one: Option, other: Option) -> bool:
    """Whether `one` is shown to be both at least as good and cheaper."""
    return _at_least(one.quality, other.quality) and _cheaper(one, other)


def _safe(one: Option, other: Option) -> bool:
    """Whether `one` is shown to be better or no dearer, so that `other` cannot beat it; one not counted never does."""
    if other.quality is None or other.usd is None:
        return True
    return _below(other.quality, one.quality) or (_at_least(other.usd, one.usd) and _at_least(other.share, one.share))


def _cheaper(one: Option, other: Option) -> bool:
    return _below(one.usd, other.usd) and _below(one.share, other.share)


def _at_least(one: Figure | None, other: Figure | None) -> bool:
    ours, theirs = _limits(one), _limits(other)
    return ours is not None and theirs is not None and ours.lower >= theirs.upper


def _below(one: Figure | None, other: Figure | None) -> bool:
    ours, theirs = _limits(one), _limits(other)
    return ours is not None and theirs is not None and ours.upper < theirs.lower


def _limits(one: Figure | None) -> Limits | None:
    return None if one is None else one.limits


def cheapest(options: Sequence[Option]) -> Cheapest | Contested | None:
    """Of those that pass and have a cost, that with the lowest estimate; None where none has both.

    Contested where another one has the lower share, as far as shares are known.
    """
    usd = {one.name: one.usd.value for one in options if one.passes and one.usd is not None}
    if not usd:
        return None
    able = {one.name: one for one in options if one.name in usd}
    shares = {name: one.share.value for name, one in able.items() if one.share is not None}
    least = min(usd, key=lambda name: (usd[name], shares.get(name, math.inf)))
    if least in shares and shares[least] > min(shares.values()):
        return Contested(least, min(shares, key=lambda name: shares[name]))
    return Cheapest(
        least, tuple(name for name, one in able.items() if name != least and not _cheaper(able[least], one))
    )


def saving(share: Figure) -> Figure:
    """What is not paid of the whole where `share` of it is: below 0 where it costs more."""
    limits = share.limits
    return Figure(1 - share.value, None if limits is None else Limits(1 - limits.upper, 1 - limits.lower))
