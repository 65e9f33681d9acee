"""The noise profile: how much a deployment differs from itself, as `calibrate` measured it.

It serves four things: planning (how many pairs a margin needs), floors (how much disagreement is none), the honest
width of a comparison without a live baseline, and the rate at which a policy would block what has not changed. It never
takes the place of the baseline that is measured beside a candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from benchgate.model.deployment import Deployment, sha256_of


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """What must be the same for a profile to hold.

    `measurement_sha256` is that of the suite that was calibrated, as it would run: not of the calibration itself, which
    may have more pairs.
    """

    hardware: str
    engine: str
    model: str
    measurement_sha256: str


@dataclass(frozen=True, slots=True)
class Spread:
    """How one number of a block varies on an unchanged deployment, as standard deviations of natural logarithms.

    `cv_run` is that of one arm's values from block to block (as a share of the value: 0.04 is 4 %), drift and all, over
    both arms pooled. `sd_paired` is that of ln(one arm / the other) within a block, which is what a live baseline
    leaves. `n` blocks gave both. `statistic` is None for a rate.
    """

    metric: str
    statistic: str | None
    stage: str
    cv_run: float
    sd_paired: float
    n: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The share of `n` items or prompts that the same deployment answered in another way when it was asked again."""

    kind: Literal["task", "shadow"]
    name: str
    share: float
    n: int

    @property
    def differing(self) -> int:
        """How many."""
        return round(self.share * self.n)


@dataclass(frozen=True, slots=True)
class FalseBlocks:
    """What the suite's own policy said of the unchanged deployment, over `of` orders of what was measured.

    In each order the two arms of every pair are exchanged or not, by chance, and the pairs come in another order; then
    the gate decides as it decides a run. The rest of `of` was promoted. `invalid_by` names what made draws INVALID, a
    guard (or a check, where no guard did), with how many draws each; one draw may have several.
    """

    of: int
    blocked: int
    inconclusive: int
    invalid: int
    invalid_by: tuple[tuple[str, int], ...] = ()

    @property
    def shares(self) -> str:
        """All four, for a person: `promotes 129, blocks 0, finds 0 inconclusive and 71 invalid (sent-once 71)`."""
        return f"promotes {self.promoted:,}, blocks {self.blocked:,}, {self.undecided}"

    @property
    def undecided(self) -> str:
        """Those that are neither promoted nor blocked, and what made draws invalid."""
        by = ", ".join(f"{name} {number:,}" for name, number in self.invalid_by)
        told = f"finds {self.inconclusive:,} inconclusive and {self.invalid:,} invalid"
        return f"{told} ({by})" if by else told

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FalseBlocks:
        """From plain JSON values; those of an earlier version name no guards."""
        by = tuple((str(name), int(number)) for name, number in data.get("invalid_by", ()))
        return cls(**{**data, "invalid_by": by})

    @property
    def promoted(self) -> int:
        """How many were PASS or WARN."""
        return self.of - self.blocked - self.inconclusive - self.invalid


@dataclass(frozen=True, slots=True)
class NoiseProfile:
    """What one calibration found. `measured_at` is when it ended (RFC 3339, UTC), `run_id` where its evidence is.

    `engine_version` is what the server told; None where it told none. `blocks` is the number of pairs. `false_block` is
    None where the policy has no check of load, which alone is measured in pairs that can be exchanged.
    """

    key: NoiseKey
    measured_at: str
    run_id: str
    blocks: int
    spreads: tuple[Spread, ...]
    disagreement: tuple[Disagreement, ...] = ()
    false_block: FalseBlocks | None = None
    engine_version: str | None = None

    def spread(self, metric: str, statistic: str | None, stage: str) -> Spread | None:
        """The spread of one number; None where it was not measured."""
        wanted = (metric, statistic, stage)
        return next((one for one in self.spreads if (one.metric, one.statistic, one.stage) == wanted), None)

    def age_at(self, instant: str) -> timedelta:
        """How old it is at an instant (RFC 3339)."""
        return datetime.fromisoformat(instant) - datetime.fromisoformat(self.measured_at)

    def to_json(self) -> dict[str, object]:
        """Plain JSON values, for the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NoiseProfile:
        """The inverse of `to_json`. Raises KeyError or TypeError for another shape."""
        false_block = data["false_block"]
        return cls(
            key=NoiseKey(**data["key"]),
            measured_at=data["measured_at"],
            run_id=data["run_id"],
            blocks=data["blocks"],
            spreads=tuple(Spread(**one) for one in data["spreads"]),
            disagreement=tuple(Disagreement(**one) for one in data["disagreement"]),
            false_block=None if false_block is None else FalseBlocks.from_json(false_block),
            engine_version=data["engine_version"],
        )


def stale_because(profile: NoiseProfile, *, at: str, engine_version: str | None, max_age_s: float) -> tuple[str, ...]:
    """Why a profile says little at an instant (RFC 3339) of a deployment of this engine's version; empty where not.

    A version that nobody told (None) is not known to be the same, not even where it was told on neither side.
    """
    found = []
    age = profile.age_at(at)
    if age.total_seconds() > max_age_s:
        found.append(f"it is {show_age(age)} old, and more than {show_age(timedelta(seconds=max_age_s))} is stale")
    if profile.engine_version is None and engine_version is None:
        found.append("nobody told the engine's version, neither then nor now, so it is not known to be the same")
    elif profile.engine_version != engine_version:
        told = [version or "a version that was not told" for version in (profile.engine_version, engine_version)]
        found.append(f"it was measured on {told[0]} of the engine, and this is {told[1]}")
    return tuple(found)


def show_age(age: timedelta) -> str:
    """`12 days`, `1 day`, `5 hours`, or `less than an hour`."""
    number, unit = (age.days, "day") if age.days > 0 else (int(age.total_seconds() // 3600), "hour")
    if number < 1:
        return "less than an hour"
    return f"{number} {unit}{'' if number == 1 else 's'}"


def noise_key(deployment: Deployment, environment: Mapping[str, object], measurement_sha256: str) -> NoiseKey:
    """The key of a deployment as a run knows it; `environment` is the run's own.

    What benchgate serves itself has one model name for all that it may be, so its settings are part of the name.
    """
    model = deployment.model
    if deployment.url is None:
        model = f"{model} {sha256_of(deployment.settings)[:12]}"
    return NoiseKey(hardware_of(deployment, environment), deployment.engine, model, measurement_sha256)


def hardware_of(deployment: Deployment, environment: Mapping[str, object]) -> str:
    """What a deployment runs on, as far as that is known, in words that are equal where it is the same.

    Its accelerators' names where they are told; this machine where benchgate itself serves it; else no more than the
    address is known, by a digest, for an address may say more than a report should.
    """
    names = deployment.facts.get("accelerator_names")
    if isinstance(names, list) and names:
        counts = {str(name): names.count(name) for name in names}
        return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    if deployment.url is None:
        return f"this machine: {environment.get('cpu')}, {environment.get('cpus')} processors"
    return f"not told: address {sha256_of(deployment.url)[:12]}, accelerators {deployment.accelerators}"


def version_of(deployment: Deployment) -> str | None:
    """The engine's version, as the server told it; None where it told none."""
    told = deployment.facts.get("engine_version", deployment.settings.get("engine_version"))
    return None if told is None else str(told)
