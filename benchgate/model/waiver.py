"""Waivers: harm in one check of one candidate that somebody answers for, up to a ceiling and until a day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

SOON_DAYS = 14
"""A waiver with at most so many days left is told of: whoever answers for it has to act now."""

LONGEST_DAYS = 180
"""How far ahead a waiver may end: one that never ends is a policy, and belongs into the suite."""

RELEASE_CHARACTERS = 12
"""How much of a fingerprint tells one release from all others."""

WAIVED = "WAIVED"
"""What is shown in place of the outcome of a check that a waiver covers; it is never PASS."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """One entry of a file of waivers. It covers one check of one suite on one candidate, and nothing else.

    `ceiling` is the most harm that is tolerated, as its author wrote it in the check's own unit: `8%`, `3 points`,
    `600ms`. `expires` is the last day on which it holds, to its end, in UTC. `release` is how the fingerprint of the
    candidate begins; without it, it covers whatever is served under the candidate's name.
    """

    check: str
    suite: str
    deployment: str
    ceiling: str
    expires: date
    owner: str
    issue: str
    reason: str
    approved_by: str
    release: str | None = None

    def names(self, suite: str, deployment: str) -> bool:
        """Whether it is of this suite and of the candidate of this name."""
        return (self.suite, self.deployment) == (suite, deployment)

    def fits(self, fingerprint: str) -> bool:
        """Whether the candidate with this fingerprint is the release that it is for."""
        return self.release is None or fingerprint.startswith(self.release)

    def days_left(self, as_of: date) -> int:
        """How many days it holds after this one; 0 on its last day, negative once it has expired."""
        return (self.expires - as_of).days


@dataclass(frozen=True, slots=True)
class Waivers:
    """All waivers that a verdict was asked for with, and the day (in UTC) on which they are looked at."""

    entries: tuple[Waiver, ...]
    as_of: date


class WaiverUse(StrEnum):
    """What became of a waiver in one verdict."""

    USED = "used"
    UNUSED = "unused"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class WaiverState:
    """A waiver of the suite and candidate that were judged, what became of it, and why."""

    waiver: Waiver
    use: WaiverUse
    why: str
    days_left: int

    @property
    def expires_soon(self) -> bool:
        """Whether it holds now and will not for long."""
        return 0 <= self.days_left <= SOON_DAYS
