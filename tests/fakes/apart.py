"""Runs of one deployment each, measured alone and held against each other, with and without a noise profile."""

from __future__ import annotations

from dataclasses import replace

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.noise import NoiseProfile, NoiseSpread, noise_key
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult
from benchgate.suite.schema import Suite
from tests.fakes.measured import HEALTHY, Effect, Noise, SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
TOLD: dict[str, object] = {"engine_version": "0.11.0"}
MADE_AT = "2025-12-20T00:00:00Z"  # twelve days before the runs of `measured`


def suite(*checks: Line, requests: int = 60, gate: Line | None = None) -> Suite:
    """A load alone; with a margin it is a policy for runs that were measured by another one."""
    asked = SuiteText(list(checks), blocks=6, requests=requests, gate=gate or {}).suite()
    return asked.model_copy(update={"candidate": "baseline", "quality": None, "shadow": None})


def alone(effect: Effect = HEALTHY, *, seed: int = 1, cv: float = 0.02, requests: int = 60) -> Evidence:
    """One deployment at one address, measured alone."""
    own = suite({"metric": "ttft", "max": "10s"}, requests=requests)
    effect = replace(effect, facts=effect.facts or TOLD)
    seen = measured(own, effect, effect, noise=Noise(cv=cv, seed=seed))
    arms = {arm: replace(seen.run.arms[Arm.CANDIDATE], url="http://prod") for arm in Arm}
    load = tuple(o for o in seen.load if o.arm is Arm.CANDIDATE)
    return replace(seen, run=replace(seen.run, arms=arms), load=load)


def profile(of: Evidence, cv: float = 0.02, n: int = 10, **changes: object) -> NoiseProfile:
    """Of the baseline of a run: this spread in every number that it knows, over so many pairs."""
    numbers: list[tuple[str, str | None]] = [("ttft", "p50"), ("output_throughput", None), ("error_rate", None)]
    spreads = tuple(NoiseSpread(metric, statistic, "c4", cv, cv, n) for metric, statistic in numbers)
    run = of.run
    key = noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256)
    made = NoiseProfile(key, MADE_AT, "calibration", n, spreads, engine_version="0.11.0")
    return replace(made, **changes)  # type: ignore[arg-type]  # fields of the profile by name


def known(evidence: Evidence, cv: float = 0.02, n: int = 10, **changes: object) -> Evidence:
    """The same run with such a profile."""
    return replace(evidence, noise=profile(evidence, cv, n, **changes))


def check_of(judged: Evidence, reference: Evidence, *lines: Line, **gate: object) -> CheckResult:
    """The first check of a policy of these lines."""
    verdict = judge(suite(*(lines or (TTFT,)), gate=gate), judged, reference)
    return verdict.checks[0]
