"""Drives the shells through the plan: both arms brought up, load in interleaved blocks, evals, the shadow comparison.

Every observation is handed to the run's writer, and is on disk, before the next one is made. What an earlier sitting of
the run has measured whole is not measured again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchgate.gate.checks.accuracy import Items, certain_regression
from benchgate.load.cluster import ClusterFleet
from benchgate.load.http.library import missing_warning
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import AT_THE_END, AT_THE_START, SERVER_PROCESSES, DeploymentFault, Evidence
from benchgate.model.verdict import Waivers
from benchgate.pipeline.checkpoint import NOTHING, Done
from benchgate.pipeline.deployments import (
    Replicas,
    TargetDown,
    bring_all_up,
    measure_starts,
    require_alive,
    require_two,
    require_unchanged,
    said_by,
)
from benchgate.pipeline.interim_analysis import Looks
from benchgate.pipeline.measure_load import LoadWork, Progress, measure_load
from benchgate.plan.schedule import Plan
from benchgate.quality.divergence import diverge
from benchgate.quality.loglikelihood import probe_scoring
from benchgate.quality.runner import evaluate
from benchgate.shadow.assessors import assessors_of
from benchgate.shadow.mirror import mirror
from benchgate.store.repository import RunWriter
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.load import Load
from benchgate.suite.schema import Suite, measured_arms
from benchgate.targets.dialect import Target
from benchgate.telemetry.sampler import Sampler
from benchgate.telemetry.sources import process_marker, sources_of


class Sitting:
    """A stretch in which a run is measured, from its beginning; `done` is what earlier ones have measured whole.

    `number` is how many there were before.
    """

    number = 0

    def __init__(self, writer: RunWriter, done: Done = NOTHING) -> None:
        self.writer = writer
        self.done = done

    def keep(self, arm: Arm, deployment: Deployment) -> None:
        """What a deployment says it is, as it was brought up for this sitting."""
        self.writer.set_arm(arm, deployment)

    def answered(self, processes: Mapping[Arm, str | None]) -> None:
        """Which process answers for each arm that is not ours to start, by its metrics; None where they do not say."""
        self.writer.event(SERVER_PROCESSES, {arm.value: marker for arm, marker in processes.items()})

    def begin(self) -> None:
        """The first thing is about to be measured. May be told more than once."""

    def end_without(self, faults: tuple[DeploymentFault, ...]) -> None:
        """Deployments were not there, by which the run ends."""
        for fault in faults:
            self.writer.add_target_fault(fault)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run is measured with. Paths in the suite are relative to `suite_dir`.

    The load comes from `workers` processes of this machine, or from the workers of a cluster whose dask scheduler has
    the address `cluster`. Of the load as many blocks are measured as it takes to settle it: `so_far` gives what the
    store has of the run by then, `waivers` are those it will be judged with. `salt` changes the words of the load's
    prompts; 0 sends them as planned.
    """

    suite: Suite
    suite_dir: Path
    plan: Plan
    sitting: Sitting
    log_dir: Path
    weights_dir: Path
    progress: Progress
    so_far: Callable[[], Evidence]
    waivers: Waivers | None = None
    workers: int = 1
    cluster: str | None = None
    salt: int = 0


def measure(work: Work) -> bool:
    """Measure all that the plan holds; True when it was all measured, False when a deployment was not there."""
    with ExitStack() as stack:
        try:
            _measure_starts(work)
            replicas = Replicas(work.log_dir / "replicas.log", work.progress.note)
            targets = _brought_up(work, stack, replicas)
            said = said_by(work.suite, targets)
            _require_scoring(work.suite, work.plan, targets)
            work.sitting.answered(_processes(work.suite, targets))
            work.sitting.begin()
            replicas.record(work.sitting.writer, AT_THE_START)
            _measure_load(work, stack, targets, replicas)
            _measure_quality(work, targets)
            _measure_divergence(work, targets)
            _measure_shadow(work, targets)
            replicas.record(work.sitting.writer, AT_THE_END)
            require_unchanged(work.suite, targets, said)
        except TargetDown as down:
            work.sitting.end_without(down.faults)
            return False
    return True


def _measure_starts(work: Work) -> None:
    suite, first = work.suite, work.sitting.done.starts
    if suite.start is None or first >= suite.start.times:
        return
    work.sitting.begin()
    arms, told = measured_arms(suite), work.progress.step
    work.progress.begin("starts", (suite.start.times - first) * len(arms))
    writer = work.sitting.writer
    measure_starts(suite, suite.start, arms, writer, work.log_dir, work.weights_dir, told, first)


def _brought_up(work: Work, stack: ExitStack, replicas: Replicas) -> dict[Arm, Target]:
    suite, arms = work.suite, measured_arms(work.suite)
    work.progress.begin("deployments", len(arms))
    targets = bring_all_up(
        stack,
        suite,
        work.plan,
        arms,
        work.sitting.keep,
        work.log_dir,
        work.weights_dir,
        work.suite_dir,
        work.progress.step,
        work.progress.note,
        replicas,
    )
    require_two(suite, targets)
    return targets


def _processes(suite: Suite, targets: Mapping[Arm, Target]) -> dict[Arm, str | None]:
    """Which process serves each arm that benchgate did not start itself."""
    found: dict[Arm, str | None] = {}
    for arm, target in targets.items():
        spec = _spec(suite, arm)
        if spec.url is not None:
            found[arm] = process_marker(sources_of(spec, target, os.environ), target)
    return found


def _require_scoring(suite: Suite, plan: Plan, targets: dict[Arm, Target]) -> None:
    """Raises TargetDown where a task needs the log-probabilities of given texts and a deployment cannot tell them."""
    for arm, fault in probe_scoring(targets, plan.tasks, suite.limits).items():
        raise TargetDown(DeploymentFault(arm, "at the start", fault))


def _measure_load(work: Work, stack: ExitStack, targets: Mapping[Arm, Target], replicas: Replicas) -> None:
    suite, load, done = work.suite, work.suite.load, work.sitting.done
    if load is None:
        return
    with _fleet(load, work) as fleet:
        writer, progress = work.sitting.writer, work.progress
        if work.cluster is None and (warning := missing_warning()) is not None:
            progress.note(warning)
        measure_load(
            LoadWork(
                suite=suite,
                load=load,
                plan=work.plan,
                targets=targets,
                watches={arm: stack.enter_context(_watch(suite, arm, target)) for arm, target in targets.items()},
                writer=writer,
                progress=progress,
                fleet=fleet,
                looks=Looks(suite, load, work.so_far, work.waivers, writer, progress.note, done.load.spent_s),
                log=work.log_dir / "actions.log",
                done=done.load,
                position=done.position,
                sitting=work.sitting.number,
                salt=work.salt,
                replicas=replicas,
            )
        )


def _fleet(load: Load, work: Work) -> Fleet | ClusterFleet:
    if work.cluster is not None:
        return ClusterFleet(work.cluster, None if load.workers == "auto" else load.workers)
    folder = work.log_dir / "load"
    shutil.rmtree(folder, ignore_errors=True)  # a sitting that was killed left there what it had only begun
    return Fleet(work.workers, folder)


def _watch(suite: Suite, arm: Arm, target: Target) -> Sampler:
    return Sampler(sources_of(_spec(suite, arm), target, os.environ), target)


def _spec(suite: Suite, arm: Arm) -> DeploymentSpec:
    return suite.deployments[suite.baseline if arm is Arm.BASELINE else suite.candidate]


def _measure_quality(work: Work, targets: dict[Arm, Target]) -> None:
    """Every eval task on both arms; the harness runs in processes of its own."""
    suite, quality, done = work.suite, work.suite.quality, work.sitting.done
    tasks = [task for task in work.plan.tasks if task.name not in done.tasks]
    if quality is None or not tasks:
        return
    work.progress.begin("quality", len(tasks) * (len(targets) + quality.repeat_baseline))
    faulted: set[Arm] = set()
    stop = partial(_shows_harm, suite, done.items()) if quality.stop_early else None
    for observation in evaluate(targets, tasks, quality, work.log_dir, limits=suite.limits, stop=stop):
        work.sitting.writer.add_quality(observation)
        work.progress.step(f"{observation.task} on {observation.arm}{' again' if observation.repeat else ''}")
        if observation.fault is not None:
            faulted.add(observation.arm)
    for arm in sorted(faulted):
        require_alive(suite, targets[arm], "after the evals")


def _shows_harm(suite: Suite, before: Items, items: Items) -> str | None:
    """By the items so far, with those of tasks that were measured in an earlier sitting."""
    return certain_regression(suite, {**before, **items})


def _measure_divergence(work: Work, targets: dict[Arm, Target]) -> None:
    """The fixed texts, read by both arms."""
    suite, progress = work.suite, work.progress
    if suite.divergence is None or work.sitting.done.divergence:
        return
    progress.begin("divergence", len(work.plan.pieces))
    told = diverge(
        targets,
        work.plan.pieces,
        suite.divergence,
        suite.seed,
        suite.limits,
        on_progress=lambda done: progress.step(f"{done} pieces of text"),
    )
    faulted = False
    for observation in told:
        work.sitting.writer.add_divergence(observation)
        faulted = observation.fault is not None
    for target in targets.values() if faulted else ():
        require_alive(suite, target, "after the fixed texts")


def _measure_shadow(work: Work, targets: dict[Arm, Target]) -> None:
    """Every recorded prompt to the baseline, the baseline again, and the candidate; then what others say of them."""
    suite, progress, plan = work.suite, work.progress, work.plan
    if suite.shadow is None or work.sitting.done.shadow:
        return

    def assessed(done: int) -> None:
        if done == 1:
            progress.begin("shadow answers compared", len(plan.shadow))
        progress.step(f"{done} prompts")

    progress.begin("shadow", len(plan.shadow))
    baseline, candidate = targets[Arm.BASELINE], targets[Arm.CANDIDATE]
    compared = mirror(
        baseline,
        candidate,
        plan.shadow,
        suite.shadow,
        suite.limits,
        assessors=assessors_of(suite.shadow, os.environ, work.suite_dir, plan.judge_prompt),
        on_progress=lambda done: progress.step(f"{done} prompts"),
        on_assessed=assessed,
    )
    faulted = False
    for observation in compared:
        work.sitting.writer.add_shadow(observation)
        faulted = observation.fault is not None
    for target in (baseline, candidate) if faulted else ():
        require_alive(suite, target, "after the shadow comparison")
