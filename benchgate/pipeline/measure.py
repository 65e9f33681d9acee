"""The measurements of a plan in order: starts, deployments brought up, load, evals, fixed texts, shadow comparison.

Every observation is handed to the run's writer, and is on disk, before the next one is made. What an earlier session of
the run completed is not repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchgate.gate.checks.accuracy import Items, certain_regression
from benchgate.load.cluster import ClusterFleet
from benchgate.load.http.library import missing_warning
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm
from benchgate.model.records import VerifiedAnswer
from benchgate.model.run import AT_THE_END, AT_THE_START, SERVER_PROCESSES
from benchgate.pipeline.checkpoint import VerifiedAnswers
from benchgate.pipeline.deployments import (
    Deployed,
    TargetDown,
    deployed,
    measure_starts,
    require_alive,
    require_same_servers,
)
from benchgate.pipeline.measure_load import LoadMeasurement
from benchgate.pipeline.progress import Phase
from benchgate.pipeline.work import Work
from benchgate.plan.schedule import Plan
from benchgate.plan.verification import Prompts, verifiable_tasks
from benchgate.quality.divergence import diverge
from benchgate.quality.runner import evaluate
from benchgate.quality.verification import make_prompts, score_answers
from benchgate.shadow.assessors import assessors_of
from benchgate.shadow.mirror import mirror
from benchgate.store.repository import RunWriter
from benchgate.suite.quality import stage_of_task, verified_name
from benchgate.suite.schema import Suite, measured_arms
from benchgate.targets.dialect import Target
from benchgate.telemetry.sampler import Sampler
from benchgate.telemetry.sources import sources_of


def measure(work: Work, writer: RunWriter) -> bool:
    """Measure everything in the plan; return False if a deployment was down, which ends the run."""
    try:
        if work.starts_left:
            measure_starts(work, writer)
        with deployed(work, writer.set_arm) as servers:
            measure_deployed(work, writer, servers)
    except TargetDown as down:
        for fault in down.faults:
            writer.add(fault)
        return False
    return True


def measure_deployed(work: Work, writer: RunWriter, servers: Deployed) -> None:
    """Measure everything but the starts. Raises TargetDown for a deployment that is down, or that changed."""
    writer.event(SERVER_PROCESSES, {arm.value: marker for arm, marker in servers.processes.items()})
    servers.replicas.record(writer, AT_THE_START)
    work.progress.price(_usd_per_hour(work.suite))
    work.progress.follow(_after_load(work, len(servers.targets)))
    _score_verified(work, writer, servers.targets, _measure_load(work, writer, servers))
    _measure_quality(work, writer, servers.targets)
    _measure_divergence(work, writer, servers.targets)
    _measure_shadow(work, writer, servers.targets)
    servers.replicas.record(writer, AT_THE_END)
    require_same_servers(work.suite, servers.targets, servers.facts)


def _after_load(work: Work, arms: int) -> list[str]:
    """Return what is measured after the load, in this session, with its size."""
    suite, parts = work.suite, list[str]()
    items = sum(len(task.rows) for task in work.plan.tasks if task.name not in work.completed.tasks)
    if suite.quality is not None and items:
        parts.append(f"{items * (arms + suite.quality.repeat_baseline):,} eval items")
    if suite.divergence is not None and not work.completed.divergence:
        parts.append(f"{len(work.plan.pieces):,} fixed texts")
    if suite.shadow is not None and not work.completed.shadow:
        parts.append(f"{len(work.plan.shadow):,} shadow prompts")
    return parts


def _usd_per_hour(suite: Suite) -> float:
    """Return the price of the measured deployments that are paid by the hour."""
    specs = [suite.deployments[name] for name in {suite.arm_names[arm] for arm in measured_arms(suite)}]
    return sum(spec.usd_per_hour * spec.accelerators for spec in specs if spec.usd_per_hour is not None)


def _measure_load(work: Work, writer: RunWriter, servers: Deployed) -> Sequence[VerifiedAnswers]:
    suite, load = work.suite, work.suite.load
    if load is None:
        return ()
    prompts: Prompts = {}
    if work.plan.verified and suite.quality is not None:
        work.progress.note("makes the prompts of the eval items that are sent among the load")
        tasks = verifiable_tasks(work.plan.tasks)
        prompts = make_prompts(servers.targets[Arm.BASELINE], tasks, suite.quality, suite.limits, work.log_dir)
    fleet: Fleet | ClusterFleet
    if work.clusters is not None:
        fleet = ClusterFleet(work.clusters, None if load.workers == "auto" else load.workers)
    else:
        folder = work.log_dir / "load"
        shutil.rmtree(folder, ignore_errors=True)  # a killed session leaves its incomplete files there
        watch = work.progress.figures if work.progress.watches_requests else None
        fleet = Fleet(work.workers, folder, watch=watch)
    with fleet, ExitStack() as stack:
        if work.clusters is None and (warning := missing_warning()) is not None:
            work.progress.note(warning)
        samplers: dict[Arm, Sampler] = {}
        for arm, target in servers.targets.items():
            spec = suite.deployments[suite.arm_names[arm]]
            samplers[arm] = stack.enter_context(Sampler(sources_of(spec, target, os.environ), target))
        return LoadMeasurement(work, load, writer, servers, samplers, fleet, prompts).measure()


def _score_verified(
    work: Work, writer: RunWriter, targets: dict[Arm, Target], found: Sequence[VerifiedAnswers]
) -> None:
    """Score the answers to the eval items that were sent among the load, once it is over."""
    quality = work.suite.quality
    stages = [
        name for name in work.suite.stage_names if any(stage_of_task(task) == name for task in work.plan.verified)
    ]
    tasks = verifiable_tasks(work.plan.tasks)
    if quality is None or all(verified_name(t.name, name) in work.completed.tasks for name in stages for t in tasks):
        return
    answers = {arm: {name: list(_answers_of(work.plan, found, arm, name)) for name in stages} for arm in targets}
    work.progress.begin(Phase("answers under load", len(work.plan.verified) * len(targets)))
    for observation in score_answers(targets, tasks, answers, quality, work.suite.limits, work.log_dir):
        if observation.task not in work.completed.tasks:  # an earlier session stored its scores
            writer.add(observation)
        work.progress.step(f"{observation.task} on {observation.arm}")


def _answers_of(plan: Plan, found: Sequence[VerifiedAnswers], arm: Arm, stage: str) -> Iterator[VerifiedAnswer]:
    """Yield the answer to every eval item that was due in the measured blocks, with an error for one without."""
    executions = [part for part in found if (part.arm, part.stage) == (arm, stage)]
    known = {(one.task, one.item_id): one for part in executions for one in part.answers}
    for block in plan.blocks[: len(executions)]:
        for request in (one for planned in block.stages if planned.name == stage for one in planned.requests):
            if (item := request.item) is not None:
                lost = VerifiedAnswer(item.task, item.item_id, error="it was not sent, or its answer was lost")
                yield known.get((item.task, item.item_id), lost)


def _measure_quality(work: Work, writer: RunWriter, targets: dict[Arm, Target]) -> None:
    """Run every eval task on both arms; the harness runs in processes of its own."""
    suite, quality, completed = work.suite, work.suite.quality, work.completed
    tasks = [task for task in work.plan.tasks if task.name not in completed.tasks]
    if quality is None or not tasks:
        return
    earlier = completed.items()
    by_degrees = {task.name for task in work.plan.tasks if task.scale == "continuous"}

    def regression(items: Items) -> str | None:
        return certain_regression(suite, {**earlier, **items}, by_degrees)

    work.progress.begin(Phase("quality", len(tasks) * (len(targets) + quality.repeat_baseline)))
    items = sum(len(task.rows) for task in tasks) * len(targets)
    work.progress.items(0, items)
    answered: dict[tuple[Arm, str], int] = {}

    def count(arm: Arm, task: str, done: int) -> None:
        answered[arm, task] = done
        work.progress.items(sum(answered.values()), items)

    faulted: set[Arm] = set()
    stop = regression if quality.stop_early else None
    for observation in evaluate(
        targets, tasks, quality, work.log_dir, limits=suite.limits, on_progress=count, stop=stop
    ):
        writer.add(observation)
        work.progress.step(f"{observation.task} on {observation.arm}{' again' if observation.repeat else ''}")
        if observation.fault is not None:
            faulted.add(observation.arm)
    for arm in sorted(faulted):
        require_alive(suite, targets[arm], "after the evals")


def _measure_divergence(work: Work, writer: RunWriter, targets: dict[Arm, Target]) -> None:
    """Compare the token probabilities of both arms on the fixed texts."""
    suite, progress = work.suite, work.progress
    if suite.divergence is None or work.completed.divergence:
        return
    progress.begin(Phase("divergence", len(work.plan.pieces)))
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
        writer.add(observation)
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
            progress.begin(Phase("shadow answers compared", len(plan.shadow)))
        progress.step(f"{done} prompts")

    progress.begin(Phase("shadow", len(plan.shadow)))
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
        writer.add(observation)
        faulted = observation.fault is not None
    for target in (baseline, candidate) if faulted else ():
        require_alive(suite, target, "after the shadow comparison")
