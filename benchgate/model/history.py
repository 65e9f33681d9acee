"""What earlier runs of the same measurement concluded: never what a candidate is held against, only what it adds to.

Promotions: who let which run's candidate into service, when and on what grounds, and who took that back.

Each is a record of its own that never changes. What stands is had by reading them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

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


class Deed(StrEnum):
    """What was recorded of a run."""

    PROMOTED = "promoted"
    OVERRIDDEN = "overridden"  # promoted although its verdict says no
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Origin:
    """Who promotes, and from where: `protected` is whether the host of the code protects that branch or tag.

    `ci` is what the CI around it, where there is one, says of itself and of whom it works for.
    """

    by: str
    ref: str | None = None
    commit: str | None = None
    protected: bool = False
    ci: str | None = None


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a promotion rests on: the verdict, and the hashes of all that led to it.

    `verdict_sha256` is that of the stored verdict, `report_sha256` of the HTML report as the store gave it then.
    `revision` is the commit or digest that the candidate's weights were measured at; None where nothing pins them.
    """

    outcome: Outcome
    verdict_sha256: str
    evidence_sha256: str
    suite_sha256: str
    policy_sha256: str
    measurement_sha256: str
    report_sha256: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """One record. `promoted_at` is RFC 3339 UTC with milliseconds; `reason` is of an override or a withdrawal.

    A withdrawal has no `grounds`; everything else has.
    """

    id: str
    run_id: str
    promoted_at: str
    suite: str
    deed: Deed
    origin: Origin
    grounds: Grounds | None
    reason: str | None = None

    @property
    def in_series(self) -> bool:
        """Whether later candidates are held beside it: its verdict let it through, on a ref that is protected."""
        return self.deed is Deed.PROMOTED and self.origin.protected

    @property
    def weight(self) -> int:
        """How much it says: an override least, a promotion on a protected ref most."""
        return (self.deed is Deed.PROMOTED) + self.in_series

    @property
    def told(self) -> str:
        """What a reader is told of it beside its run."""
        return "promoted, in the baseline series" if self.in_series else self.deed.value

    def may_withdraw(self, stands: Promotion) -> bool:
        """Whether this withdrawal takes back what stands: out of the series that is for a protected ref alone."""
        return self.origin.protected or not stands.in_series

    def to_json(self) -> dict[str, object]:
        """Everything of it, as plain JSON. CI and revision came later, and are left out where there was none."""
        document = asdict(self)
        if self.origin.ci is None:
            del document["origin"]["ci"]
        if self.grounds is not None and self.grounds.revision is None:
            del document["grounds"]["revision"]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Promotion:
        """The record again. Raises KeyError, TypeError or ValueError for what is none."""
        promotion = cls(**{**document, "deed": Deed(document["deed"]), **_parts(document)})
        if (promotion.grounds is None) != (promotion.deed is Deed.WITHDRAWN):
            raise ValueError("only a withdrawal has no grounds")
        if promotion.deed is Deed.PROMOTED and promotion.grounds is not None and not promotion.grounds.outcome.promotes:
            raise ValueError(f"{promotion.grounds.outcome} promotes nobody without an override")
        return promotion


def _parts(document: Mapping[str, Any]) -> dict[str, object]:
    origin, said = Origin(**document["origin"]), document["grounds"]
    if not isinstance(origin.protected, bool):
        raise ValueError(f"protected is {origin.protected!r}; expected true or false")
    return {"origin": origin, "grounds": said and Grounds(**{**said, "outcome": Outcome(said["outcome"])})}


def standing(promotions: Iterable[Promotion]) -> dict[str, Promotion]:
    """What stands of each run, by its id, from records in order of time: nothing of one whose promotion was withdrawn.

    Of several, the first that says most: promoting a run once more moves it nowhere. In the order in which they came
    to stand. A withdrawal that had no right to be one counts for nothing, however it came in.
    """
    stands: dict[str, Promotion] = {}
    for one in promotions:
        known = stands.get(one.run_id)
        if one.deed is Deed.WITHDRAWN:
            if known is not None and one.may_withdraw(known):
                del stands[one.run_id]
        elif known is None or one.weight > known.weight:
            stands.pop(one.run_id, None)  # to the end
            stands[one.run_id] = one
    return stands


def series(promotions: Iterable[Promotion]) -> tuple[Promotion, ...]:
    """The promotions that later candidates are held beside, oldest first, from records in order of time."""
    return tuple(one for one in standing(promotions).values() if one.in_series)


def told(promotions: Iterable[Promotion]) -> dict[str, str]:
    """What a reader is told beside each run of which something was recorded: what stands, or that it was withdrawn."""
    records = tuple(promotions)
    withdrawn = {one.run_id: one.told for one in records if one.deed is Deed.WITHDRAWN}
    return withdrawn | {run_id: one.told for run_id, one in standing(records).items()}
