"""The measurements of a plan in order: starts, deployments brought up, load, evals, fixed texts, shadow comparison.

Every observation is handed to the run's writer, and is on disk, before the next one is made. What an earlier session of
the run completed is not repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchgate.gate.checks.accuracy import Items, certain_regression
from benchgate.load.cluster import ClusterFleet
from benchgate.load.http.library import missing_warning
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import AT_THE_END, AT_THE_START, SERVER_PROCESSES, DeploymentFault
from benchgate.model.verdict import Waivers
from benchgate.pipeline.checkpoint import NOTHING_COMPLETED, Completed
from benchgate.pipeline.deployments import (
    Replicas,
    TargetDown,
    bring_all_up,
    measure_starts,
    reported_facts,
    require_alive,
    require_distinct_servers,
    require_same_servers,
)
from benchgate.pipeline.measure_load import InterimLooks, LoadWork, Progress, measure_load
from benchgate.plan.schedule import Plan
from benchgate.quality.divergence import diverge
from benchgate.quality.logprobs import probe_scoring
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


@dataclass(frozen=True, slots=True)
class Work:
    """Everything needed to measure a run. Paths in the suite are relative to `suite_dir`.

    The load comes from `workers` processes of this machine, or from the workers of a cluster whose dask scheduler has
    the address `cluster`. Interim looks judge it with `waivers`. `salt` varies the words of the load's prompts; 0 sends
    them as planned. `completed` is what earlier sessions of the run measured, and `session` counts them.
    """

    suite: Suite
    suite_dir: Path
    plan: Plan
    log_dir: Path
    weights_dir: Path
    progress: Progress
    waivers: Waivers | None = None
    workers: int = 1
    cluster: str | None = None
    salt: int = 0
    completed: Completed = NOTHING_COMPLETED
    session: int = 0


@dataclass(frozen=True, slots=True)
class Deployed:
    """Deployments that answer, with what those that benchgate did not start reported: their facts and processes."""

    targets: dict[Arm, Target]
    facts: Mapping[Arm, Mapping[str, object]]
    processes: Mapping[Arm, str | None]
    replicas: Replicas


def measure(work: Work, writer: RunWriter) -> bool:
    """Measure everything in the plan; return False if a deployment was down, which ends the run."""
    try:
        if starts_left(work):
            measure_starts_left(work, writer)
        with deployed(work, writer.set_arm) as servers:
            measure_deployed(work, writer, servers)
    except TargetDown as down:
        record_faults(writer, down)
        return False
    return True


def record_faults(writer: RunWriter, down: TargetDown) -> None:
    """Store the faults of deployments that ended the run."""
    for fault in down.faults:
        writer.add_target_fault(fault)


def starts_left(work: Work) -> bool:
    """Return True if starts of the servers remain to be measured: they come before anything else."""
    return work.suite.start is not None and work.completed.starts < work.suite.start.times


def measure_starts_left(work: Work, writer: RunWriter) -> None:
    """Measure the starts that no earlier session completed. Raises TargetDown."""
    start, first, arms = work.suite.start, work.completed.starts, measured_arms(work.suite)
    assert start is not None, "starts are left"
    work.progress.begin("starts", (start.times - first) * len(arms))
    measure_starts(work.suite, start, arms, writer, work.log_dir, work.weights_dir, work.progress.step, first)


@contextmanager
def deployed(work: Work, keep: Callable[[Arm, Deployment], None]) -> Iterator[Deployed]:
    """Bring all deployments up for the length of the block, and pass what each of them is to `keep`.

    Raises TargetDown for a deployment that is not there, or that cannot compute log-probabilities that a task needs.
    """
    suite, arms, replicas = (
        work.suite,
        measured_arms(work.suite),
        Replicas(work.log_dir / "replicas.log", work.progress.note),
    )
    with ExitStack() as stack:
        work.progress.begin("deployments", len(arms))
        targets = bring_all_up(
            stack,
            suite,
            work.plan,
            arms,
            keep,
            work.log_dir,
            work.weights_dir,
            work.suite_dir,
            work.progress.step,
            work.progress.note,
            replicas,
        )
        require_distinct_servers(suite, targets)
        facts = reported_facts(suite, targets)
        for arm, fault in probe_scoring(targets, work.plan.tasks, suite.limits).items():
            raise TargetDown(DeploymentFault(arm, "at the start", fault))
        processes: dict[Arm, str | None] = {}
        for arm, target in targets.items():
            spec = _spec(suite, arm)
            if spec.url is not None:
                processes[arm] = process_marker(sources_of(spec, target, os.environ), target)
        yield Deployed(targets, facts, processes, replicas)


def measure_deployed(work: Work, writer: RunWriter, servers: Deployed) -> None:
    """Measure everything but the starts. Raises TargetDown for a deployment that is down, or that changed."""
    writer.event(SERVER_PROCESSES, {arm.value: marker for arm, marker in servers.processes.items()})
    servers.replicas.record(writer, AT_THE_START)
    _measure_load(work, writer, servers)
    _measure_quality(work, writer, servers.targets)
    _measure_divergence(work, writer, servers.targets)
    _measure_shadow(work, writer, servers.targets)
    servers.replicas.record(writer, AT_THE_END)
    require_same_servers(work.suite, servers.targets, servers.facts)


def _measure_load(work: Work, writer: RunWriter, servers: Deployed) -> None:
    suite, load, completed, progress = work.suite, work.suite.load, work.completed, work.progress
    if load is None:
        return
    with _fleet(load, work) as fleet, ExitStack() as stack:
        if work.cluster is None and (warning := missing_warning()) is not None:
            progress.note(warning)
        watches = {
            arm: stack.enter_context(Sampler(sources_of(_spec(suite, arm), target, os.environ), target))
            for arm, target in servers.targets.items()
        }
        measure_load(
            LoadWork(
                suite=suite,
                load=load,
                plan=work.plan,
                targets=servers.targets,
                watches=watches,
                writer=writer,
                progress=progress,
                fleet=fleet,
                looks=InterimLooks(suite, load, work.waivers, writer, progress.note, completed.load.spent_s),
                log=work.log_dir / "actions.log",
                completed=completed.load,
                position=completed.position,
                session=work.session,
                salt=work.salt,
                replicas=servers.replicas,
            )
        )


def _fleet(load: Load, work: Work) -> Fleet | ClusterFleet:
    if work.cluster is not None:
        return ClusterFleet(work.cluster, None if load.workers == "auto" else load.workers)
    folder = work.log_dir / "load"
    shutil.rmtree(folder, ignore_errors=True)  # a killed session leaves its incomplete files there
    return Fleet(work.workers, folder)


def _spec(suite: Suite, arm: Arm) -> DeploymentSpec:
    return suite.deployments[suite.baseline if arm is Arm.BASELINE else suite.candidate]


def _measure_quality(work: Work, writer: RunWriter, targets: dict[Arm, Target]) -> None:
    """Run every eval task on both arms; the harness runs in processes of its own."""
    suite, quality, completed = work.suite, work.suite.quality, work.completed
    tasks = [task for task in work.plan.tasks if task.name not in completed.tasks]
    if quality is None or not tasks:
        return
    work.progress.begin("quality", len(tasks) * (len(targets) + quality.repeat_baseline))
    faulted: set[Arm] = set()
    stop = partial(_regression, suite, completed.items()) if quality.stop_early else None
    for observation in evaluate(targets, tasks, quality, work.log_dir, limits=suite.limits, stop=stop):
        writer.add_quality(observation)
        work.progress.step(f"{observation.task} on {observation.arm}{' again' if observation.repeat else ''}")
        if observation.fault is not None:
            faulted.add(observation.arm)
    for arm in sorted(faulted):
        require_alive(suite, targets[arm], "after the evals")


def _regression(suite: Suite, earlier: Items, items: Items) -> str | None:
    """Return the certain regression in the items so far, those of earlier sessions included."""
    return certain_regression(suite, {**earlier, **items})


def _measure_divergence(work: Work, writer: RunWriter, targets: dict[Arm, Target]) -> None:
    """Compare the token probabilities of both arms on the fixed texts."""
    suite, progress = work.suite, work.progress
    if suite.divergence is None or work.completed.divergence:
        return
    progress.begin("divergence", len(work.plan.pieces))
    observations = diverge(
        targets,
        work.plan.pieces,
        suite.divergence,
        suite.seed,
        suite.limits,
        on_progress=lambda done: progress.step(f"{done} pieces of text"),
    )
    faulted = False
    for observation in observations:
        writer.add_divergence(observation)
        faulted = observation.fault is not None
    for target in targets.values() if faulted else ():
        require_alive(suite, target, "after the fixed texts")


def _measure_shadow(work: Work, writer: RunWriter, targets: dict[Arm, Target]) -> None:
    """Send every recorded prompt to the baseline, the baseline again and the candidate; then assess the answers."""
    suite, progress, plan = work.suite, work.progress, work.plan
    if suite.shadow is None or work.completed.shadow:
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
        writer.add_shadow(observation)
        faulted = observation.fault is not None
    for target in (baseline, candidate) if faulted else ():
        require_alive(suite, target, "after the shadow comparison")
