"""What earlier runs of the same measurement concluded: never what a candidate is held against, only what it adds to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.model.deployment import Deployment
from benchgate.model.noise import hardware_of
from benchgate.model.verdict import Outcome, Scale, Unit


@dataclass(frozen=True, slots=True)
class PastArm:
    """A deployment as one run saw it: its name then, its fingerprint, the same whatever its address, its hardware."""

    name: str
    fingerprint: str
    release: str
    hardware: str


@dataclass(frozen=True, slots=True)
class PastCheck:
    """What an earlier run's own verdict says of one comparison of its candidate with its live baseline.

    `harm`, `lower` and `upper` are on `scale`, positive = the candidate was worse; the limits are one-sided, each wrong
    with the probability `alpha`. `n` is how many blocks, items or requests they rest on.
    """

    id: str
    unit: Unit
    scale: Scale
    baseline: float
    candidate: float
    harm: float
    lower: float
    upper: float
    alpha: float
    n: int


@dataclass(frozen=True, slots=True)
class PastRun:
    """An earlier complete run of the same measurement, whose own verdict let its candidate be promoted.

    `checks` are those that compared both arms and have finite numbers, by id. `decided_at` is when it was promoted, or
    where no promotion of its suite is recorded, when that verdict was stored; RFC 3339 UTC like `started_at`, None
    where its store kept no instant.
    """

    run_id: str
    started_at: str
    label: str | None
    baseline: PastArm
    candidate: PastArm
    checks: Mapping[str, PastCheck]
    decided_at: str | None = None

    @property
    def promoted_at(self) -> str:
        """From when on its candidate may have been in service: a waiver promotes long after the run. Else its start."""
        return self.decided_at or self.started_at

    @property
    def told(self) -> str:
        """How a reader knows it: its label, or its id, and its day."""
        return f"{self.label or self.run_id[:13]} of {self.started_at[:10]}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An earlier run of the same measurement whose own first verdict did not let its candidate be promoted.

    `outcome` is None of one that had no verdict: something was measured, and nobody has said what it came to.
    """

    run_id: str
    started_at: str
    label: str | None
    baseline: PastArm
    candidate: PastArm
    outcome: Outcome | None

    @property
    def told(self) -> str:
        """How a reader knows it: its label, or its id, and its day."""
        return f"{self.label or self.run_id[:13]} of {self.started_at[:10]}"


def past_arm(deployment: Deployment, environment: Mapping[str, object]) -> PastArm:
    """A deployment of a run with that environment."""
    hardware = hardware_of(deployment, environment)
    return PastArm(deployment.name, deployment.fingerprint, deployment.release, hardware)
