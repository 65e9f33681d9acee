"""Noise profile of a deployment: its difference from itself, measured by `calibrate`.

It is used to plan blocks, to set floors of disagreement, to widen a comparison without a live baseline, and to estimate
false blocks. It never replaces the live baseline of a candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from benchgate.model.deployment import Deployment, describe_hardware, sha256_of


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Conditions under which a profile holds."""

    hardware: str
    engine: str
    model: str
    measurement_sha256: str  # of the suite as it would run; the calibration may have more pairs


@dataclass(frozen=True, slots=True)
class NoiseSpread:
    """Variation of a metric's block values on an unchanged deployment, as deviations of natural logarithms."""

    metric: str
    statistic: str | None  # None for a rate
    stage: str
    cv_run: float  # between blocks of one side, drift included, pooled over both sides (0.04 is 4%)
    sd_paired: float  # of ln(one side / the other) within a block, which remains with a live baseline
    n: int  # blocks of both


@dataclass(frozen=True, slots=True)
class SelfDisagreement:
    """Share of `n` items or prompts that the same deployment answered differently when repeated."""

    kind: Literal["task", "shadow"]
    name: str
    share: float
    n: int

    @property
    def differing(self) -> int:
        """Return the number of differing items."""
        return round(self.share * self.n)


@dataclass(frozen=True, slots=True)
class FalseBlocks:
    """Decisions of the suite's own policy on the unchanged deployment, over random exchanges of sides within pairs."""

    of: int  # permutations, which also shuffle the pairs
    blocked: int
    inconclusive: int
    invalid: int
    invalid_by: tuple[tuple[str, int], ...] = ()  # by guard, or by check if no guard tripped; one may count for several

    @property
    def shares(self) -> str:
        """Format all four counts: `promotes 129, blocks 0, finds 0 inconclusive and 71 invalid (sent-once 71)`."""
        return f"promotes {self.promoted:,}, blocks {self.blocked:,}, {self.undecided}"

    @property
    def undecided(self) -> str:
        """Format the counts that neither promote nor block, with the causes of INVALID."""
        by = ", ".join(f"{name} {number:,}" for name, number in self.invalid_by)
        counts = f"finds {self.inconclusive:,} inconclusive and {self.invalid:,} invalid"
        return f"{counts} ({by})" if by else counts

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FalseBlocks:
        """Read plain JSON values; earlier versions have no `invalid_by`."""
        by = tuple((str(name), int(number)) for name, number in data.get("invalid_by", ()))
        return cls(**{**data, "invalid_by": by})

    @property
    def promoted(self) -> int:
        """Return the number of PASS and WARN."""
        return self.of - self.blocked - self.inconclusive - self.invalid


@dataclass(frozen=True, slots=True)
class NoiseProfile:
    """Result of one calibration."""

    key: NoiseKey
    measured_at: str  # its end, RFC 3339 UTC
    run_id: str  # the run with its evidence
    blocks: int  # pairs
    spreads: tuple[NoiseSpread, ...]
    disagreement: tuple[SelfDisagreement, ...] = ()
    false_block: FalseBlocks | None = None  # None without load checks: only they have exchangeable pairs
    engine_version: str | None = None  # None if the server did not report one

    def spread(self, metric: str, statistic: str | None, stage: str) -> NoiseSpread | None:
        """Return the spread of a metric; None if it was not measured."""
        key = (metric, statistic, stage)
        return next((one for one in self.spreads if (one.metric, one.statistic, one.stage) == key), None)

    def age_at(self, instant: str) -> timedelta:
        """Return its age at an instant (RFC 3339)."""
        return datetime.fromisoformat(instant) - datetime.fromisoformat(self.measured_at)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values for the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NoiseProfile:
        """Read what `to_json` wrote. Raises KeyError or TypeError for another shape."""
        false_block = data["false_block"]
        return cls(
            key=NoiseKey(**data["key"]),
            measured_at=data["measured_at"],
            run_id=data["run_id"],
            blocks=data["blocks"],
            spreads=tuple(NoiseSpread(**one) for one in data["spreads"]),
            disagreement=tuple(SelfDisagreement(**one) for one in data["disagreement"]),
            false_block=None if false_block is None else FalseBlocks.from_json(false_block),
            engine_version=data["engine_version"],
        )


def staleness_reasons(
    profile: NoiseProfile, *, at: str, engine_version: str | None, max_age_s: float
) -> tuple[str, ...]:
    """Return the reasons why a profile is stale at an instant (RFC 3339) for an engine version; empty if it is not."""
    found = []
    age = profile.age_at(at)
    if age.total_seconds() > max_age_s:
        found.append(f"it is {format_age(age)} old, and more than {format_age(timedelta(seconds=max_age_s))} is stale")
    if profile.engine_version is None and engine_version is None:
        found.append("the engine's version was reported neither then nor now, so it is not known to be the same")
    elif profile.engine_version != engine_version:
        before, now = (version or "an unreported version" for version in (profile.engine_version, engine_version))
        found.append(f"it was measured on {before} of the engine, and this is {now}")
    return tuple(found)


def format_age(age: timedelta) -> str:
    """Format an age: `12 days`, `1 day`, `5 hours`, or `less than an hour`."""
    number, unit = (age.days, "day") if age.days > 0 else (int(age.total_seconds() // 3600), "hour")
    if number < 1:
        return "less than an hour"
    return f"{number} {unit}{'' if number == 1 else 's'}"


def noise_key(deployment: Deployment, environment: Mapping[str, object], measurement_sha256: str) -> NoiseKey:
    """Return the key of a deployment in a run. An embedded one has one model name, so settings are part of it."""
    model = deployment.model
    if deployment.url is None:
        model = f"{model} {sha256_of(deployment.settings)[:12]}"
    return NoiseKey(describe_hardware(deployment, environment), deployment.engine, model, measurement_sha256)
