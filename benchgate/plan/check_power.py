"""Power of a single check: its data model, and the noise that is known or assumed of a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from benchgate.model.metric import METRICS, noise_metric
from benchgate.model.noise import NoiseProfile, NoiseSpread
from benchgate.stats.power import LookDecisions
from benchgate.suite.checks import Check
from benchgate.suite.quality import Shadow
from benchgate.suite.schema import Suite

UNKNOWN_VALUE = "the deployment's own distance from the bound is not known"
Measure = Literal["ratio", "difference", "share"]
_MEASURES: Mapping[str | None, Measure] = MappingProxyType({"percent": "ratio", "points": "difference"})
ASSUMED_RUN_CV: Mapping[str | None, float] = MappingProxyType(
    {None: 0.03, "mean": 0.03, "p50": 0.03, "p90": 0.06, "p95": 0.06, "p99": 0.10}
)
"""Assumed variation between blocks by statistic, None for a rate. The throughput of a quiet GPU varies by 1 to 3%; a
p95 of some hundred requests by twice a median's spread, a p99 by three times and more. Shared machines vary more
(Laaber, Scheuner and Leitner 2019 saw 0.03% to more than 100% in clouds)."""
ASSUMED_FLIPS = 0.05  # assumed share of flipped items: greedy decoding flips 2 to 5% of its answers against itself
ASSUMED_FREE_TEXT_DIFFERENCES = 0.30
"""Assumed share of prompts whose free-form answers differ, word by word, when repeated."""
ASSUMED_FORM_DIFFERENCES = 0.05
"""Assumed share of prompts whose answers differ when compared by JSON, tool calls or structure."""
ASSUMED_JUDGE_DIFFERENCES = 0.136
"""Assumed share of equal pairs of which a judge prefers one; that share of verdicts changes when repeated."""
ASSUMED_CLUSTER_CORRELATION = 0.3  # assumed intra-class correlation of the differences of items in one cluster
ASSUMED_MISSES = 0.01  # assumed share of requests that fail or are not valid
_COMPARED_BY_FORM = ("json", "tool_calls", "structure")


@dataclass(frozen=True, slots=True)
class JudgedCheck:
    """Check as the gate will judge it, under the gate's own id.

    `stage` is its stage or class of the load, `tasks` the names of tasks judged together; `target_ratio` is the bound
    of a goodput check without its own.
    """

    id: str
    check: Check
    statistic: str | None = None
    stage: str | None = None
    tasks: tuple[str, ...] = ()
    target_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class CheckPower:
    """Power of one check: what it has, needs and detects.

    `measure` is the kind of `margin`, `sees_80` and `sees_95`: a ratio to the baseline's value (or the SLO), a
    difference of two shares, or a share of missed requests or items. `sees_80` is the smallest true regression shown in
    80 of 100 runs with the whole measurement (its last look). `has` and `needs` count `n_unit`; `needs` is for the
    margin at 95%. `passes` is the probability that this check alone promotes an equal candidate, over all looks.

    These rest on `spread`: the deviation of a block's paired difference, or the share of answers that differ between
    equals, from `source`. `cannot` is the reason why the check can never pass, None if it can. `short` is the evidence
    that it is underpowered. None everywhere means "not known before the run".
    """

    id: str
    metric: str
    required: bool
    allowed: bool  # by `allow_underpowered`
    margin: float | None = None
    measure: Measure | None = None
    n_unit: str | None = None
    has: int | None = None
    needs: int | None = None
    sees_80: float | None = None
    sees_95: float | None = None
    passes: float | None = None
    spread: float | None = None
    source: str | None = None
    measured: bool = False
    cannot: str | None = None
    remedy: str | None = None
    note: str | None = None

    @property
    def short(self) -> Literal["certain", "measured", "assumed"] | None:
        """Return the evidence that the check is underpowered; None without any."""
        if self.cannot is not None:
            return "certain"
        if self.margin is None or self.sees_80 is None or self.sees_80 <= self.margin:
            return None
        return "measured" if self.measured else "assumed"


@dataclass(frozen=True, slots=True, eq=False)
class PowerRow:
    """Power of a check, with its simulated decisions for an equal candidate at each look, if simulated."""

    power: CheckPower
    seen: LookDecisions | None = None


def unknown_power(one: JudgedCheck, suite: Suite) -> CheckPower:
    """Return a check of which nothing else is known."""
    return CheckPower(
        id=one.id,
        metric=one.check.metric,
        required=one.check.required,
        allowed=one.check.allow_underpowered or suite.gate.allow_underpowered,
        margin=one.check.margin,
        measure=_MEASURES.get(METRICS[one.check.metric].margin) if one.check.margin is not None else None,
    )


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Complete earlier run of the same measurement: its blocks of load and its duration."""

    run_id: str
    finished_at: str
    blocks: int
    took_s: float


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """Known noise of the baseline and known duration of such a run.

    `noise` comes from a calibration, or from a `run` of both sides, whose pairs vary like the next one's. Only a recent
    calibration may refuse a plan.
    """

    noise: NoiseProfile | None = None
    noise_from: Literal["calibration", "stale calibration", "run"] = "calibration"
    earlier: EarlierRun | None = None

    @property
    def noise_source(self) -> str:
        """Return the source of the spreads in words; empty without any."""
        if self.noise is None:
            return ""
        day = self.noise.measured_at[:10]
        if self.noise_from == "run":
            return f"run {self.noise.run_id} of {day}"
        return f"{'stale ' if self.noise_from == 'stale calibration' else ''}noise profile of {day}"

    @property
    def calibrated(self) -> bool:
        """Return True if the spreads come from a valid calibration."""
        return self.noise is not None and self.noise_from == "calibration"

    def spread(self, metric: str, statistic: str | None, stage: str | None) -> NoiseSpread | None:
        """Return the spread of a metric per block; None if it was never measured."""
        return (
            None if self.noise is None or stage is None else self.noise.spread(noise_metric(metric), statistic, stage)
        )


NO_KNOWN_NOISE = KnownNoise()


def assumed_cv(statistic: str | None) -> float:
    """Return the assumed variation of a statistic between blocks."""
    return ASSUMED_RUN_CV.get(statistic, ASSUMED_RUN_CV["p99"])


def assumed_shadow_differences(shadow: Shadow) -> float:
    """Return the assumed share of answers that differ when one deployment repeats them."""
    return ASSUMED_FORM_DIFFERENCES if shadow.compare.by in _COMPARED_BY_FORM else ASSUMED_FREE_TEXT_DIFFERENCES
