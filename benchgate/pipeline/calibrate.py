"""Calibration: measure the baseline against itself and store a noise profile of the differences.

The run is stored like any other, and never judges a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from benchgate.errors import StoreError, UsageError
from benchgate.gate.calibration import disagreements, false_blocks, spreads
from benchgate.model.deployment import Arm, engine_version_of
from benchgate.model.noise import NoiseProfile, noise_key
from benchgate.model.run import Evidence, RunStatus
from benchgate.pipeline.forecast import read_plan
from benchgate.pipeline.progress import Phase, Progress
from benchgate.pipeline.run import RunOptions, measure_run, require_runnable
from benchgate.plan.schedule import measurement_sha256
from benchgate.store.repository import Store
from benchgate.suite.checks import Check
from benchgate.suite.load import Blocks
from benchgate.suite.schema import Suite, measured_arms

FEWEST_PAIRS = 10
"""With fewer pairs a standard deviation is too uncertain: of 10 the true one may be 1.7 times it, of 5 over twice."""


_DRAWS, _FEWEST_DRAWS = 200, 40
_REQUESTS_DRAWN = 10_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Evidence of a calibration and its noise profile; None if a deployment was down before the end."""

    evidence: Evidence
    profile: NoiseProfile | None


def calibrate(
    suite: Suite,
    suite_dir: Path,
    options: RunOptions,
    progress: Progress,
    *,
    times: int | None = None,
    only: str | None = None,
) -> Calibration:
    """Measure the suite's baseline against itself, `times` pairs of blocks, and keep its noise profile in the store.

    `only` is load, quality or shadow: the part of the suite that is calibrated alone. Raises UsageError for what cannot
    be calibrated. The profile holds for runs of the suite as it stands.
    """
    own, options = calibration_of(suite, times, only), replace(options, calibration=True)
    require_runnable(own, suite_dir, options)
    full_plan = read_plan(suite, suite_dir, fetch=True, allow_code=options.allow_code)
    plan = read_plan(own, suite_dir, fetch=True, allow_code=options.allow_code)
    with Store.open(options.store) as store:
        measured = measure_run(store, own, suite_dir, plan, options, progress)
        if (fault := measured.fault) is not None:
            raise StoreError(f"no noise profile was made: {fault.message}", remedies=fault.remedies)
        evidence = measured.evidence
        if evidence.run.status is not RunStatus.COMPLETE or evidence.target_faults:
            return Calibration(evidence, None)
        profile = profile_of(suite, evidence, measurement_sha256(suite, full_plan), progress)
        store.save_noise_profile(profile)
        return Calibration(store.evidence(evidence.run.id), profile)


def calibration_of(suite: Suite, times: int | None, only: str | None) -> Suite:
    """Return the suite to measure: both arms the baseline, a fixed number of pairs, no early end.

    Starts, capacity searches, fixed texts and a judge of answers are left out: a profile has no figures of them.
    """
    try:
        TypeAdapter(Blocks | None).validate_python(times)
    except ValidationError:
        raise UsageError(f"--times {times} is not a number of pairs; expected 2 to 200") from None
    load = suite.load if only in (None, "load") and suite.load is not None and suite.load.sweep else None
    if load is not None:
        blocks = times if times is not None else max(load.blocks, FEWEST_PAIRS)
        load = load.model_copy(update={"blocks": blocks, "looks": (), "limit": None, "capacity": None})
    quality = suite.quality if only in (None, "quality") else None
    if quality is not None:
        quality = quality.model_copy(update={"repeat_baseline": False, "stop_early": False})
    shadow = suite.shadow if only in (None, "shadow") else None
    if shadow is not None:
        shadow = shadow.model_copy(update={"secondary_ratio": 1.0, "judge": None})
    if load is None and quality is None and shadow is None:
        what = "a `load` with a `sweep`, `quality` or `shadow`" if only is None else f"`{only}`"
        raise UsageError(f"there is nothing to calibrate in {suite.suite}: it has no {what}")
    if times is not None and load is None:
        raise UsageError("--times counts pairs of blocks of a load, and none is measured here; leave it out")
    own = suite.model_copy(
        update={
            "candidate": suite.baseline,
            "candidates": (),
            "start": None,
            "error_budget": None,
            "load": load,
            "quality": quality,
            "divergence": None,
            "shadow": shadow,
        }
    )
    if len(measured_arms(own)) == len(Arm):
        return own
    # With bounds alone, one deployment would be measured once: add a check that compares.
    check = Check(metric="request_throughput", margin="5%", required=False)  # type: ignore[arg-type]  # as it is written
    gate = own.gate.model_copy(update={"checks": (*own.gate.checks, check)})
    return own.model_copy(update={"gate": gate})


def profile_of(suite: Suite, calibration: Evidence, measurement: str, progress: Progress) -> NoiseProfile:
    """Return the noise profile of a calibration; `suite` is the calibrated one, with its own policy."""
    run = calibration.run
    # Fewer random orders of the pairs with many requests, which each order reads.
    requests = sum(execution.recorded for execution in calibration.load)
    draws = max(_FEWEST_DRAWS, min(_DRAWS, _REQUESTS_DRAWN // max(requests, 1)))
    if calibration.load:
        progress.begin(Phase("orders of the pairs, decided", draws))
    deployment = run.arms[Arm.BASELINE]
    return NoiseProfile(
        key=noise_key(deployment, run.environment, measurement),
        measured_at=run.finished_at or run.started_at,
        run_id=run.id,
        blocks=len({execution.block for execution in calibration.load}),
        spreads=spreads(calibration, suite),
        disagreement=disagreements(calibration),
        false_block=false_blocks(
            suite, calibration, np.random.default_rng([suite.seed, 0]), draws=draws, progress=progress.step
        ),
        engine_version=engine_version_of(deployment),
    )
