"""What lies between two runs that nothing live ties together, by the noise profile; or why nobody knows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchgate.gate.comparison import Comparison
from benchgate.gate.rule import Problem
from benchgate.model.deployment import Arm
from benchgate.model.noise import NoiseProfile, Spread, hardware_of, show_age, stale_because, version_of
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from benchgate.stats.unpaired import Part
from benchgate.suite.metric_kinds import COST_METRICS, spread_of

_CALIBRATE = "measure baseline and candidate in one run, or run `benchgate calibrate` with this suite before the first"
TOGETHER = "measure baseline and candidate in one run"
CAPACITY_APART = Problem(
    Outcome.INCONCLUSIVE, "a capacity without a live baseline has no noise that a calibration measures", TOGETHER
)
"""Of a capacity nothing is known of what lies between two runs."""


def beside(comparison: Comparison) -> Evidence:
    """The judged run with the reference run's candidate in the place of its baseline: same plan, so same prompts."""
    assert comparison.reference is not None, "two runs are compared"
    judged, theirs = comparison.judged, comparison.reference
    ours = [o for o in judged.load if o.arm is Arm.CANDIDATE]
    load = [replace(o, arm=Arm.BASELINE) for o in theirs.load if o.arm is Arm.CANDIDATE]
    arms = {Arm.BASELINE: theirs.run.arms[Arm.CANDIDATE], Arm.CANDIDATE: judged.run.arms[Arm.CANDIDATE]}
    faults = (*theirs.target_faults, *judged.target_faults)
    return replace(judged, load=(*load, *ours), run=replace(judged.run, arms=arms), target_faults=faults)


def cannot_decide(comparison: Comparison, max_age_s: float) -> Problem | None:
    """Why the noise profile carries no decision between these runs: other machines, no profile, or a stale one."""
    assert comparison.reference is not None, "two runs are compared"
    runs = (comparison.judged, comparison.reference)
    places = [hardware_of(one.run.arms[Arm.CANDIDATE], one.run.environment) for one in runs]
    if places[0] != places[1]:
        reason = (
            f"without a live baseline, runs on what is not known to be the same say nothing: {' and '.join(places)}"
        )
        return Problem(Outcome.INCONCLUSIVE, reason, TOGETHER)
    known = _profiles(comparison)
    if not known:
        reason = "without a live baseline and without a noise profile, nobody knows what lies between two runs"
        return Problem(Outcome.INCONCLUSIVE, reason, _CALIBRATE)
    judged_at = comparison.judged.run.finished_at or comparison.judged.run.started_at
    for profile in known:
        version = version_of(comparison.reference.run.arms[Arm.CANDIDATE])
        stale = stale_because(profile, at=judged_at, engine_version=version, max_age_s=max_age_s)
        if stale:
            reason = f"the noise profile that would stand in for a live baseline is stale: {'; '.join(stale)}"
            return Problem(Outcome.INCONCLUSIVE, reason, "run `benchgate calibrate` with this suite again")
    return None


def between_runs(comparison: Comparison, metric: str, statistic: str | None, stage: str) -> tuple[Part, ...] | Problem:
    """The variance between runs, once for each run: of its own deployment where that was calibrated."""
    if metric in COST_METRICS and any(
        run is not None and run.run.arms[Arm.CANDIDATE].token_prices
        for run in (comparison.judged, comparison.reference)
    ):  # a pace says nothing of how much input is cached, or how long answers are, on another day
        reason = f"no noise profile says how much {metric} differs between runs where tokens are what is paid for"
        return Problem(Outcome.INCONCLUSIVE, reason, TOGETHER)
    spreads = [profile.spread(spread_of(metric), statistic, stage) for profile in _profiles(comparison)]
    if not spreads or any(spread is None or spread.n < 2 for spread in spreads):
        reason = f"no noise profile says how much {metric} at {stage} differs between runs without a live baseline"
        return Problem(Outcome.INCONCLUSIVE, reason, _CALIBRATE)
    known: Sequence[Spread] = [spread for spread in spreads if spread is not None]
    return tuple(Part(2 / len(known) * spread.cv_run**2, spread.n - 1) for spread in known)


def apart_notes(comparison: Comparison, between: Sequence[Part]) -> tuple[str, ...]:
    """That there was no live baseline, and what was added in its place."""
    added = math.sqrt(sum(part.variance for part in between))
    profiles = _profiles(comparison)
    judged_at = comparison.judged.run.finished_at or comparison.judged.run.started_at
    ages = " and ".join(f"{one.run_id[:13]}, {show_age(one.age_at(judged_at))} old" for one in profiles)
    return (f"no live baseline: the spread between two runs, {added:.1%}, is added from the noise profile ({ages})",)


def _profiles(comparison: Comparison) -> tuple[NoiseProfile, ...]:
    """Those of the reference run's deployment and of the judged run's; one where only one is known."""
    runs = (comparison.reference, comparison.judged)
    found = {run.noise.run_id: run.noise for run in runs if run is not None and run.noise is not None}
    return tuple(found.values())
