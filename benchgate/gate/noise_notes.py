"""What a verdict says of the noise profile that was known when its run ended. It changes no outcome."""

from __future__ import annotations

from dataclasses import replace

from benchgate.gate.comparison import Comparison
from benchgate.model.deployment import Arm
from benchgate.model.noise import show_age, stale_because, version_of
from benchgate.model.run import Evidence
from benchgate.suite.schema import Suite


def noise_notes(comparison: Comparison, suite: Suite) -> tuple[str, ...]:
    """That there was no live baseline; which profile there is, how old it was when the run ended, and why it is stale.

    Nothing without a profile, where there was a live baseline.
    """
    evidence = comparison.judged
    if not comparison.apart:
        return _of_profile(evidence, suite)
    apart = "no live baseline: two runs are compared across whatever lay between them"
    profile = evidence.noise or (comparison.reference.noise if comparison.reference is not None else None)
    return (apart, *_of_profile(replace(evidence, noise=profile), suite))


def _of_profile(evidence: Evidence, suite: Suite) -> tuple[str, ...]:
    profile, run = evidence.noise, evidence.run
    if profile is None or Arm.BASELINE not in run.arms:
        return ()
    at = run.finished_at or run.started_at
    told = f"noise profile of run {profile.run_id}, {show_age(profile.age_at(at))} old"
    if profile.false_block is not None:
        found = profile.false_block
        told += f": of the unchanged baseline the policy it was made with {found.shares}, of {found.of:,} draws from it"
    stale = stale_because(
        profile, at=at, engine_version=version_of(run.arms[Arm.BASELINE]), max_age_s=suite.gate.noise_max_age_s
    )
    return (told, *(f"the noise profile is stale: {why}; run `benchgate calibrate` again" for why in stale))
