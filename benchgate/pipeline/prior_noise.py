"""What a plan is told beside itself: the checks as the gate will judge them, and what is known of earlier runs."""

from __future__ import annotations

from datetime import datetime

from benchgate.errors import StoreError
from benchgate.gate.calibration import disagreements, spreads
from benchgate.gate.policy import CheckSpec, judged_by, specs_over
from benchgate.model.deployment import Arm
from benchgate.model.metric import TASK_METRICS
from benchgate.model.noise import NoiseProfile, noise_key
from benchgate.model.run import LOAD_ENDED, Run, RunStatus
from benchgate.pipeline.deployments import declared
from benchgate.pipeline.environment import environment_facts, utc_now
from benchgate.plan.check_power import NO_KNOWN_NOISE, EarlierRun, JudgedCheck, KnownNoise
from benchgate.plan.schedule import Plan, measurement_sha256
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite

_RUNS_LOOKED_AT = 50


def judged_checks(suite: Suite, plan: Plan) -> tuple[JudgedCheck, ...]:
    """The policy's checks over what the plan will measure, under the gate's own names for them."""
    scales = {task.name: task.scale == "continuous" for task in plan.tasks}
    return tuple(_judged(spec, suite, scales) for spec in specs_over(suite, scales))


def known_at(store_address: str, suite: Suite, plan: Plan) -> KnownNoise:
    """What a store knows of such a run, writing nothing: one not yet there, old or unreadable knows nothing."""
    try:
        store = Store.open_as_is(store_address)
        if store is None:
            return NO_KNOWN_NOISE
        with store:
            return known_in(store, suite, plan, reading=True)
    except StoreError:
        return NO_KNOWN_NOISE


def known_in(store: Store, suite: Suite, plan: Plan, *, reading: bool) -> KnownNoise:
    """The newest noise profile of the suite's baseline, and how long such a run took.

    With `reading`, and without a profile, what the newest complete run of the same measurement observed stands in for
    one: its requests have to be read for that, so it is the newest that still has them.
    """
    measurement = measurement_sha256(suite, plan)
    runs = [
        run
        for run in store.runs(suite.suite, limit=_RUNS_LOOKED_AT)
        if Arm.BASELINE in run.arms and run.arms[Arm.BASELINE].name == suite.baseline
    ]
    same = [run for run in runs if run.status is RunStatus.COMPLETE and run.measurement_sha256 == measurement]
    earlier = _took(store, same[0]) if same else None
    profile = _profile(store, suite, runs, measurement)
    if profile is not None:
        stale = profile.age_at(utc_now()).total_seconds() > suite.gate.noise_max_age_s
        return KnownNoise(profile, "stale calibration" if stale else "calibration", earlier)
    readable = next((run for run in same if store.removal(run.id) is None), None) if reading else None
    if readable is not None:
        return KnownNoise(_observed(store, readable, suite), "run", earlier)
    return KnownNoise(earlier=earlier)


def _judged(spec: CheckSpec, suite: Suite, scales: dict[str, bool]) -> JudgedCheck:
    check, tasks = spec.check, tuple[str, ...]()
    if check.metric in TASK_METRICS:
        names = {suite.unit_name(task): scored for task, scored in scales.items()}
        own = spec.task is not None and spec.task != "each"
        tasks = (str(spec.task),) if own else tuple(judged_by(check, suite.gate.checks, names))
    return JudgedCheck(spec.id, check, spec.statistic, spec.stage, tasks, spec.target_ratio)


def _profile(store: Store, suite: Suite, runs: list[Run], measurement: str) -> NoiseProfile | None:
    """The newest one of this measurement, on whatever hardware the baseline was seen to run, or is known to."""
    keys = {noise_key(declared(suite, suite.baseline), environment_facts(), measurement)}
    keys |= {noise_key(run.arms[Arm.BASELINE], run.environment, measurement) for run in runs}
    found = [profile for key in keys if (profile := store.noise_profile(key)) is not None]
    return max(found, key=lambda profile: (profile.measured_at, profile.run_id), default=None)


def _observed(store: Store, run: Run, suite: Suite) -> NoiseProfile:
    """The figures of a run of two deployments, in the form of a profile: their pairs vary as the next run's will."""
    evidence = store.evidence(run.id)
    return NoiseProfile(
        key=noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256),
        measured_at=run.finished_at or run.started_at,
        run_id=run.id,
        blocks=len({execution.block for execution in evidence.load}),
        spreads=spreads(evidence, suite),
        disagreement=tuple(
            one for one in disagreements(evidence) if one.kind == "shadow"
        ),  # with itself; tasks are not
    )


def _took(store: Store, run: Run) -> EarlierRun | None:
    """How long a run took, and for how many blocks: as many as its load had when it ended."""
    if run.finished_at is None:
        return None
    took_s = (datetime.fromisoformat(run.finished_at) - datetime.fromisoformat(run.started_at)).total_seconds()
    ends = [data.get("blocks") for kind, data in store.events(run.id) if kind == LOAD_ENDED]
    load = Suite.from_stored(run.suite).load
    blocks = ends[-1] if ends and isinstance(ends[-1], int) else (load.blocks if load is not None else 0)
    return EarlierRun(run.id, run.finished_at, blocks, took_s)
