"""Waivers: accepted regressions of one check of one candidate, up to a ceiling and until a day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

EXPIRY_NOTICE_DAYS = 14
"""Days before expiry from which a waiver is reported."""
MAX_WAIVER_DAYS = 180
"""Longest validity of a waiver; a permanent one is policy and belongs in the suite."""
RELEASE_CHARACTERS = 12
"""Length of a fingerprint prefix that identifies a release."""
WAIVED = "WAIVED"
"""Displayed outcome of a waived check, never PASS."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """Entry of a waiver file, for one check of one suite on one candidate.

    `ceiling` is the largest tolerated regression, in the check's own unit as written: `8%`, `3 points`, `600ms`.
    `expires` is the last valid day, to its end, in UTC. `release` is a prefix of the candidate's fingerprint; without
    it, the waiver covers every deployment of the candidate's name.
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
        """Return True if it is for this suite and a candidate of this name."""
        return (self.suite, self.deployment) == (suite, deployment)

    def fits(self, fingerprint: str) -> bool:
        """Return True if the candidate with this fingerprint is its release."""
        return self.release is None or fingerprint.startswith(self.release)

    def days_left(self, as_of: date) -> int:
        """Return the valid days after this one; 0 on its last day, negative once it has expired."""
        return (self.expires - as_of).days


@dataclass(frozen=True, slots=True)
class Waivers:
    """All waivers given for a verdict, and the day (in UTC) of their use."""

    entries: tuple[Waiver, ...]
    as_of: date


class WaiverUse(StrEnum):
    """Use of a waiver in one verdict."""

    USED = "used"
    UNUSED = "unused"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class WaiverState:
    """Waiver of the judged suite and candidate, with its use and the reason."""

    waiver: Waiver
    use: WaiverUse
    why: str
    days_left: int

    @property
    def expires_soon(self) -> bool:
        """Return True if it is valid and about to expire."""
        return 0 <= self.days_left <= EXPIRY_NOTICE_DAYS
