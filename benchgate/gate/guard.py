"""How a guard says what it found, and the kinds of checks it can spoil."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from benchgate.model.verdict import GuardResult
from benchgate.suite.metric_kinds import COST_METRICS, LATENCY_METRICS, THROUGHPUT_METRICS

TO_ITS_END = "run the suite again to its end"

SPEED = "speed"
"""Latencies, throughputs and goodput: what a late client changes although the servers' answers stay the same."""

TOKENS = "tokens"
"""What is divided by, or adds up, a server's own count of output tokens."""

SPEED_METRICS = frozenset({*LATENCY_METRICS, *THROUGHPUT_METRICS, *COST_METRICS, "goodput", "capacity", "knee"})
TOKEN_METRICS = frozenset(
    {"tpot", "output_throughput", "output_length", *COST_METRICS, "goodput", "capacity", "knee"}
)  # goodput: by the TPOT bound of its SLO


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


def kinds_of(metric: str, family: str) -> frozenset[str]:
    """Every kind that a check of this metric belongs to: its family (load, quality, shadow), speed, tokens."""
    kinds = {family}
    if metric in SPEED_METRICS:
        kinds.add(SPEED)
    if metric in TOKEN_METRICS:
        kinds.add(TOKENS)
    return frozenset(kinds)


def spoiling(guards: Iterable[GuardResult], kinds: Collection[str]) -> GuardResult | None:
    """The first tripped guard that spoils checks of one of these kinds."""
    return next((guard for guard in guards if guard.tripped and not set(guard.spoils).isdisjoint(kinds)), None)
