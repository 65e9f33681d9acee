"""Which release came from which: the promotions behind the baseline that a run measured.

A promoted candidate is the next baseline. Where a baseline is no candidate that an earlier run promoted, it came about
in another way; the release in service before it is then known only by what another run measured of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.model.history import PastArm, PastRun


@dataclass(frozen=True, slots=True)
class Place:
    """A release on the way back, and how many of the history's oldest runs may still be gone through.

    `by` is when a run measured it in service, so what was promoted later is not how it came there; None where the whole
    history is from before.
    """

    release: str
    until: int
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """A run that measured the release as its candidate beside the one before it."""

    run: PastRun
    then: Place


@dataclass(frozen=True, slots=True)
class Gap:
    """A release that no run promoted: `before` measured the one in service before it, `after` itself as a baseline.

    `after` is None where only the run that is judged did.
    """

    before: PastRun
    after: PastRun | None
    then: Place


Hop = Promotion | Gap


def start(history: tuple[PastRun, ...], baseline: PastArm, candidate: PastArm) -> Place:
    """Where the way back of a run begins: at its baseline."""
    return Place(_names(baseline, candidate)[0], len(history))


def hops(history: tuple[PastRun, ...], place: Place) -> tuple[Hop, ...]:
    """Every step back from a place, the newest first: each run that promoted the release, whatever it stood beside.

    Where none did, a gap to each other release that was a baseline before, by the newest run in which it was.
    """
    names = [_names(run.baseline, run.candidate) for run in history]
    before = [i for i in range(place.until - 1, -1, -1) if place.by is None or history[i].promoted_at <= place.by]
    promoted = [i for i in before if names[i][1] == place.release != names[i][0]]
    if promoted:
        return tuple(Promotion(history[i], Place(names[i][0], i, history[i].started_at)) for i in promoted)
    newest = {names[i][0]: i for i in reversed(before) if names[i][0] != place.release}
    ways = sorted(newest.items(), key=lambda one: -one[1])
    return tuple(
        Gap(history[i], _first(history, names, place.release, i + 1), Place(old, i + 1, history[i].started_at))
        for old, i in ways
    )


def _first(history: tuple[PastRun, ...], names: list[tuple[str, str]], baseline: str, since: int) -> PastRun | None:
    """The oldest run from `since` on with that baseline."""
    return next((history[i] for i in range(since, len(history)) if names[i][0] == baseline), None)


def same_pair(one: tuple[PastArm, PastArm], other: tuple[PastArm, PastArm]) -> bool:
    """Whether two runs compared the same two releases (each: baseline, candidate)."""
    return _names(*one) == _names(*other)


def _names(baseline: PastArm, candidate: PastArm) -> tuple[str, str]:
    """What tells the two releases of a run from others: not the address, unless nothing else differs between them."""
    if baseline.release != candidate.release:
        return baseline.release, candidate.release
    return baseline.fingerprint, candidate.fingerprint
