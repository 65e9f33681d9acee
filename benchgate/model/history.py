"""Earlier runs and promotions of the same measurement.

A candidate is never compared with earlier runs; they only add to its history. Each promotion is an immutable record;
the current state follows from reading them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from benchgate.model.deployment import Deployment, describe_hardware
from benchgate.model.metric import depends_on_slo
from benchgate.model.verdict import Outcome, Scale, Unit


@dataclass(frozen=True, slots=True)
class PastArm:
    """Deployment in an earlier run: its name, fingerprints with and without address, and hardware."""

    name: str
    fingerprint: str
    release: str
    hardware: str


@dataclass(frozen=True, slots=True)
class PastCheck:
    """Check of an earlier verdict that compared a candidate with its live baseline."""

    id: str
    unit: Unit
    scale: Scale
    baseline: float
    candidate: float
    harm: float  # on `scale`, like its limits; above 0 = the candidate was worse
    lower: float
    upper: float
    alpha: float  # error probability of each one-sided limit
    n: int  # blocks, items or requests
    freedom: tuple[float | None, float | None] = (None, None)  # degrees of freedom of each limit; None for n - 1


@dataclass(frozen=True, slots=True)
class PastRun:
    """Earlier complete run of the same measurement whose own verdict allowed promotion."""

    run_id: str
    started_at: str  # RFC 3339 UTC
    label: str | None
    baseline: PastArm
    candidate: PastArm
    checks: Mapping[str, PastCheck]  # those that compared both sides and have finite numbers, by id
    decided_at: str | None = None  # promotion, or verdict if no promotion of its suite is recorded
    slo: object = None  # of its suite, as that is stored; stages and classes may have their own

    def counts_as(self, metric: str, slo: object) -> bool:
        """Return True if its number of a metric counts requests by this `slo`, as a suite stores it, or by none."""
        return not depends_on_slo(metric) or self.slo in (None, slo)

    @property
    def promoted_at(self) -> str:
        """Return when its candidate may have gone into service: the time of the decision, else of the start."""
        return self.decided_at or self.started_at

    @property
    def title(self) -> str:
        """Return label or short id, with the day."""
        return f"{self.label or self.run_id[:13]} of {self.started_at[:10]}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Earlier run of the same measurement whose own first verdict did not allow promotion."""

    run_id: str
    started_at: str
    label: str | None
    baseline: PastArm
    candidate: PastArm
    outcome: Outcome | None  # None if the run was measured but never judged

    @property
    def title(self) -> str:
        """Return label or short id, with the day."""
        return f"{self.label or self.run_id[:13]} of {self.started_at[:10]}"


def past_arm(deployment: Deployment, environment: Mapping[str, object]) -> PastArm:
    """Describe a deployment of a run with this environment."""
    hardware = describe_hardware(deployment, environment)
    return PastArm(deployment.name, deployment.fingerprint, deployment.release, hardware)


class PromotionAction(StrEnum):
    """Recorded action on a run."""

    PROMOTED = "promoted"
    OVERRIDDEN = "overridden"  # promoted although its verdict says no
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class PromotionOrigin:
    """Person and place of a promotion."""

    by: str
    ref: str | None = None
    commit: str | None = None
    protected: bool = False  # by the code host, as a branch or tag
    ci: str | None = None  # CI job and its actor


@dataclass(frozen=True, slots=True)
class PromotionGrounds:
    """Verdict behind a promotion, and the hashes of its inputs."""

    outcome: Outcome
    verdict_sha256: str
    evidence_sha256: str
    suite_sha256: str
    policy_sha256: str
    measurement_sha256: str
    report_sha256: str  # of the HTML report at that time
    revision: str | None = None  # commit or digest of the measured weights; None if they are not pinned


@dataclass(frozen=True, slots=True)
class Promotion:
    """Record of a promotion, an override or a withdrawal."""

    id: str
    run_id: str
    promoted_at: str  # RFC 3339 UTC with milliseconds
    suite: str
    deed: PromotionAction
    origin: PromotionOrigin
    grounds: PromotionGrounds | None  # None for a withdrawal alone
    reason: str | None = None  # of an override or a withdrawal

    @property
    def in_series(self) -> bool:
        """Return True if later candidates are compared along it: promoted by its verdict, on a protected ref."""
        return self.deed is PromotionAction.PROMOTED and self.origin.protected

    @property
    def weight(self) -> int:
        """Return its rank: an override least, a promotion on a protected ref most."""
        return (self.deed is PromotionAction.PROMOTED) + self.in_series

    @property
    def status(self) -> str:
        """Return the label shown next to its run."""
        return "promoted, in the baseline series" if self.in_series else self.deed.value

    def may_withdraw(self, promotion: Promotion) -> bool:
        """Return True if this withdrawal may revert the promotion; from the series only on a protected ref."""
        return self.origin.protected or not promotion.in_series

    def to_json(self) -> dict[str, object]:
        """Return plain JSON, without `ci` and `revision` if there are none."""
        document = asdict(self)
        if self.origin.ci is None:
            del document["origin"]["ci"]
        if self.grounds is not None and self.grounds.revision is None:
            del document["grounds"]["revision"]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Promotion:
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        origin, grounds = PromotionOrigin(**document["origin"]), document["grounds"]
        if not isinstance(origin.protected, bool):
            raise ValueError(f"protected is {origin.protected!r}; expected true or false")
        grounds = grounds and PromotionGrounds(**{**grounds, "outcome": Outcome(grounds["outcome"])})
        deed = PromotionAction(document["deed"])
        if (grounds is None) != (deed is PromotionAction.WITHDRAWN):
            raise ValueError("only a withdrawal has no grounds")
        if deed is PromotionAction.PROMOTED and not grounds.outcome.promotes:
            raise ValueError(f"{grounds.outcome} does not promote without an override")
        return cls(**{**document, "deed": deed, "origin": origin, "grounds": grounds})


def current_promotions(promotions: Iterable[Promotion]) -> dict[str, Promotion]:
    """Return the current promotion of each run by id, from records in order of time.

    Of several records of a run, the first with the highest weight counts: promoting a run again changes nothing. A
    withdrawn promotion is removed, unless the withdrawal was not allowed. The result is in order of promotion.
    """
    current: dict[str, Promotion] = {}
    for one in promotions:
        known = current.get(one.run_id)
        if one.deed is PromotionAction.WITHDRAWN:
            if known is not None and one.may_withdraw(known):
                del current[one.run_id]
        elif known is None or one.weight > known.weight:
            current.pop(one.run_id, None)  # to the end
            current[one.run_id] = one
    return current


def baseline_series(promotions: Iterable[Promotion]) -> tuple[Promotion, ...]:
    """Return the promotions of the baseline series, oldest first, from records in order of time."""
    return tuple(one for one in current_promotions(promotions).values() if one.in_series)


def promotion_labels(promotions: Iterable[Promotion]) -> dict[str, str]:
    """Return a label for each run with records: its current promotion, or that it was withdrawn."""
    records = tuple(promotions)
    withdrawn = {one.run_id: one.status for one in records if one.deed is PromotionAction.WITHDRAWN}
    return withdrawn | {run_id: one.status for run_id, one in current_promotions(records).items()}
