"""How a guard says what it found, and the kinds of checks it can spoil."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, names_of
from benchgate.model.verdict import GuardResult
from benchgate.suite.checks import Check

TO_ITS_END = "run the suite again to its end"

SPEED = "speed"
"""Latencies, throughputs and goodput: what a late client changes although the servers' answers stay the same."""

TOKENS = "tokens"
"""What is divided by, or adds up, a server's own count of output tokens."""

_COMPARED = "compared-"


def compared(*kinds: str) -> tuple[str, ...]:
    """Name the checks of these kinds that hold the candidate against the baseline: `speed` gives `compared-speed`.

    A guard that spoils only these leaves a check with a bound of its own alone, because that rests on the candidate's
    numbers and on no others.
    """
    return tuple(f"{_COMPARED}{kind}" for kind in kinds)


def spoils_of(arm: Arm, *kinds: str) -> tuple[str, ...]:
    """Name what a fault of one arm alone spoils: of the baseline what is compared, of the candidate everything."""
    return kinds if arm is Arm.CANDIDATE else compared(*kinds)


COMPARED_SPEED = compared(SPEED)
OF_OWN_LOAD = frozenset({"load", SPEED, TOKENS})
ALL_OF_LOAD = OF_OWN_LOAD | {*compared(*OF_OWN_LOAD)}
"""Every kind of a check of the load, of the candidate's own values and of those that are compared."""

SPEED_METRICS = frozenset(names_of(lambda metric: metric.timed))
TOKEN_METRICS = frozenset(names_of(lambda metric: metric.counts_tokens))


def held(name: str, reason: str) -> GuardResult:
    """A guard that found nothing."""
    return GuardResult(id=name, tripped=False, reason=reason, remedy=None)


def unknown(name: str, reason: str) -> GuardResult:
    """A guard that had nothing to look at, or nothing to look for."""
    return GuardResult(id=name, tripped=False, reason=reason, remedy=None, known=False)


def looked_at(guards: Iterable[GuardResult], missing: str | None) -> list[GuardResult]:
    """The guards as they are; where what they look at is `missing`, one that found nothing did not look."""
    return [one if missing is None or one.tripped or one.warns else unknown(one.id, missing) for one in guards]


def tripped(name: str, reason: str, remedy: str, spoils: tuple[str, ...] = ()) -> GuardResult:
    """A guard that found something, what to do about it, and which kinds of checks it makes INVALID."""
    return GuardResult(id=name, tripped=True, reason=reason, remedy=remedy, spoils=spoils)


def warned(name: str, reason: str, remedy: str) -> GuardResult:
    """Return a guard that makes a PASS a WARN and takes no check away."""
    return GuardResult(id=name, tripped=False, reason=reason, remedy=remedy, warns=True)


def kinds_of(check: Check) -> frozenset[str]:
    """Return every kind that a check belongs to: its family (load, quality, shadow), speed, tokens.

    Of a check with a margin also each of these as `compared`.
    """
    kinds = kinds_of_metric(check.metric)
    return kinds if check.margin is None else kinds | {*compared(*kinds)}


def kinds_of_metric(metric: str) -> frozenset[str]:
    """Return the kinds of a check that bounds the candidate's own value of this metric."""
    kinds: set[str] = {METRICS[metric].family}
    if metric in SPEED_METRICS:
        kinds.add(SPEED)
    if metric in TOKEN_METRICS:
        kinds.add(TOKENS)
    return frozenset(kinds)


def gravest(found: Sequence[GuardResult]) -> GuardResult | None:
    """Return the first finding that speaks against the candidate's own numbers, else the first one; None of none."""
    return next((one for one in found if not spoils_comparisons_alone(one)), next(iter(found), None))


def spoils_comparisons_alone(guard: GuardResult) -> bool:
    """Return True where a tripped guard speaks against comparisons, and against no number of the candidate's own."""
    return guard.tripped and bool(guard.spoils) and all(kind.startswith(_COMPARED) for kind in guard.spoils)


def spoiling(guards: Iterable[GuardResult], kinds: Collection[str]) -> GuardResult | None:
    """The first tripped guard that spoils checks of one of these kinds."""
    return next((guard for guard in guards if guard.tripped and not set(guard.spoils).isdisjoint(kinds)), None)
