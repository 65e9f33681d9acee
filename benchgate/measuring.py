"""Drives the shells through the plan: both arms brought up, load in interleaved blocks, evals, the shadow comparison.

Every observation is handed to the run's writer, and is on disk, before the next one is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from benchgate.acting import Acts, bring_back
from benchgate.deploying import (
    TargetDown,
    bring_up,
    endpoints_of,
    measure_starts,
    require_alive,
    require_two,
    require_unchanged,
    said_by,
)
from benchgate.errors import TargetError
from benchgate.gate.arm_search import alternating, most_looks, search_of
from benchgate.gate.quality_early import shows_harm
from benchgate.load.cluster import ClusterFleet
from benchgate.load.fleet import Fleet
from benchgate.load.worker import Shard, StageResult, stage_shard
from benchgate.looking import Looks
from benchgate.model.deployment import Arm
from benchgate.model.metrics import succeeded
from benchgate.model.records import ErrorClass
from benchgate.model.run import Evidence, LoadObservation, TargetFault
from benchgate.model.waiver import Waivers
from benchgate.plan.capacity import look_stage
from benchgate.plan.material import Material
from benchgate.plan.schedule import Plan, PlannedBlock, PlannedStage
from benchgate.quality.divergence import diverge
from benchgate.quality.harness import evaluate
from benchgate.quality.probing import probe_scoring
from benchgate.shadow.helpers import helpers_of
from benchgate.shadow.mirror import mirror
from benchgate.store.repository import RunWriter
from benchgate.suite.action import Action
from benchgate.suite.arms import measured_arms
from benchgate.suite.schema import Load, Suite
from benchgate.targets.dialect import Target
from benchgate.telemetry.sources import sources_of
from benchgate.telemetry.watch import Watch


class Progress(Protocol):
    """What a run tells whoever watches it. `steps` is how many `step` calls will follow."""

    def begin(self, phase: str, steps: int) -> None:
        """A phase starts."""

    def step(self, done: str) -> None:
        """One step of the phase is done and stored."""

    def note(self, line: str) -> None:
        """Something takes long, and this is why."""


def measure(
    suite: Suite,
    suite_dir: Path,
    plan: Plan,
    writer: RunWriter,
    log_dir: Path,
    weights_dir: Path,
    progress: Progress,
    workers: int = 1,
    cluster: str | None = None,
    *,
    so_far: Callable[[], Evidence],
    waivers: Waivers | None = None,
) -> bool:
    """Measure all that the plan holds; True when it was all measured, False when a deployment was not there.

    Of the load as many blocks as it takes to settle it: `so_far` gives what the store has of the run by then, `waivers`
    are those it will be judged with.

    Paths of certificates in the suite are relative to `suite_dir`. The load comes from `workers` processes of this
    machine, or from the workers of a cluster whose dask scheduler has the address `cluster`.
    """
    with ExitStack() as stack:
        try:
            arms = measured_arms(suite)
            if suite.start is not None:
                progress.begin("starts", suite.start.times * len(arms))
                measure_starts(suite, suite.start, arms, writer, log_dir, weights_dir, progress.step)
            progress.begin("deployments", len(arms))
            told, note = progress.step, progress.note
            targets = {
                arm: bring_up(stack, suite, plan, arm, writer, log_dir, weights_dir, suite_dir, told, note)
                for arm in arms
            }
            require_two(suite, targets)
            said = said_by(suite, targets)
            _require_scoring(suite, plan, targets)
            if suite.load is not None:
                with _fleet(suite.load, log_dir / "load", workers, cluster) as fleet:
                    watches = {arm: stack.enter_context(_watch(suite, arm, targets[arm])) for arm in arms}
                    log = log_dir / "actions.log"
                    looks = Looks(suite, suite.load, so_far, waivers, writer, progress.note)
                    position = _measure_load(
                        suite, suite.load, plan, targets, watches, writer, progress, fleet, log, looks
                    )
                    material = plan.material
                    _measure_capacity(suite, suite.load, targets, watches, writer, progress, fleet, position, material)
            _measure_quality(suite, plan, targets, writer, log_dir, progress)
            _measure_divergence(suite, plan, targets, writer, progress)
            _measure_shadow(suite, suite_dir, plan, targets, writer, progress)
            require_unchanged(suite, targets, said)
        except TargetDown as down:
            writer.add_target_fault(down.fault)
            return False
    return True


def _require_scoring(suite: Suite, plan: Plan, targets: dict[Arm, Target]) -> None:
    """Raises TargetDown where a task needs the log-probabilities of given texts and a deployment cannot tell them."""
    for arm, fault in probe_scoring(targets, plan.tasks, suite.limits).items():
        raise TargetDown(TargetFault(arm, "at the start", fault))


def _fleet(load: Load, folder: Path, workers: int, cluster: str | None) -> Fleet | ClusterFleet:
    if cluster is not None:
        return ClusterFleet(cluster, None if load.workers == "auto" else load.workers)
    return Fleet(workers, folder)


def _watch(suite: Suite, arm: Arm, target: Target) -> Watch:
    spec = suite.deployments[suite.baseline if arm is Arm.BASELINE else suite.candidate]
    return Watch(sources_of(spec, target, os.environ), target)


def _measure_load(
    suite: Suite,
    load: Load,
    plan: Plan,
    targets: dict[Arm, Target],
    watches: dict[Arm, Watch],
    writer: RunWriter,
    progress: Progress,
    fleet: Fleet | ClusterFleet,
    log: Path,
    looks: Looks,
) -> int:
    """Warm both arms up, then block by block: each stage on one arm and at once on the other. Returns the executions.

    After each look the load goes on with the blocks up to the next one, unless it is settled by then.
    """
    phases = list(pairwise((0, *(load.looks or (load.blocks,)))))
    warmup = len(plan.warmup) * len(targets)
    position = 0
    for first, end in phases:
        blocks = plan.blocks[first:end]
        steps = sum(len(block.stages) for block in blocks) * len(targets)
        progress.begin(f"load, blocks {first + 1} to {end}" if load.looks else "load", steps + (0 if first else warmup))
        if first == 0:
            _warm_up(suite, load, plan, targets, progress, fleet)
        for block in blocks:
            looks.begin_block()
            position = _measure_block(suite, load, block, targets, watches, writer, progress, fleet, log, position)
        if looks.end_after(end):
            break
    return position


def _warm_up(
    suite: Suite,
    load: Load,
    plan: Plan,
    targets: dict[Arm, Target],
    progress: Progress,
    fleet: Fleet | ClusterFleet,
) -> None:
    for stage in plan.warmup:
        for arm in targets:
            fleet.run(_asked(suite, load, targets[arm], stage))
            progress.step(f"warm-up {stage.name} on {arm}")


def _measure_block(
    suite: Suite,
    load: Load,
    block: PlannedBlock,
    targets: dict[Arm, Target],
    watches: dict[Arm, Watch],
    writer: RunWriter,
    progress: Progress,
    fleet: Fleet | ClusterFleet,
    log: Path,
    position: int,
) -> int:
    """Each stage of a block on one arm and at once on the other; returns the position of what comes next."""
    for stage in block.stages:
        for arm in block.order:
            place = partial(_observations, stage.name, arm, block.number, position)
            acts = Acts(_actions(load, stage.name), targets[arm], stage.name, log)
            with watches[arm].stage() as looks:
                result = _sent(fleet, _asked(suite, load, targets[arm], stage), place, writer, acts)
            window = watches[arm].window(looks, stage.name, arm, block.number, position)
            if window is not None:
                writer.add_telemetry(window)
            position += 1
            where = f"block {block.number + 1} of {load.blocks}, stage {stage.name}"
            progress.step(f"{where} on {arm}")
            _journal(writer, acts, arm, block.number)
            if acts.actions:
                _bring_back(suite, targets[arm], acts.actions, f"after {where}")
            elif _looks_dead(result):
                require_alive(suite, targets[arm], f"after {where}")
    return position


def _actions(load: Load, stage: str) -> tuple[Action, ...]:
    return next((one.actions or () for one in load.sweep if one.name == stage), ())


def _bring_back(suite: Suite, target: Target, actions: Sequence[Action], when: str) -> None:
    """Undo what was done to a deployment; raises TargetDown when it does not answer any more."""
    try:
        bring_back(actions, target, endpoints_of(suite)[0], suite.limits)
    except TargetError as fault:
        raise TargetDown(TargetFault(target.arm, when, str(fault))) from fault


def _journal(writer: RunWriter, acts: Acts, arm: Arm, block: int) -> None:
    """When what was done to the deployment was begun and done, and what became of it."""
    for act in acts.done:
        writer.event("action", {"stage": acts.stage, "arm": arm.value, "block": block, **act.document()})


def _measure_capacity(
    suite: Suite,
    load: Load,
    targets: dict[Arm, Target],
    watches: dict[Arm, Watch],
    writer: RunWriter,
    progress: Progress,
    fleet: Fleet | ClusterFleet,
    position: int,
    material: Material,
) -> None:
    """Search for both arms' capacities, look by look in turn; every look is stored as a stage of its own."""
    searches = {arm: search for arm in targets if (search := search_of(suite)) is not None}
    if load.capacity is None or not searches:
        return
    progress.begin("capacity (at most)", sum(most_looks(search.settings) for search in searches.values()))
    for arm, look in alternating(searches):
        block = searches[arm].executions(look.level)
        stage = look_stage(load, load.capacity, look, [suite.seed, block], material)
        place = partial(_observations, stage.name, arm, block, position)
        with watches[arm].stage() as readings:
            acts = Acts((), targets[arm], stage.name, Path())  # nothing is done during a search
            result = _sent(fleet, _asked(suite, load, targets[arm], stage), place, writer, acts)
        window = watches[arm].window(readings, stage.name, arm, block, position)
        if window is not None:
            writer.add_telemetry(window)
        position += 1
        searches[arm].take(look.level, result.requests, result.client)
        progress.step(f"{stage.name}, look {block + 1}, on {arm}")
        if _looks_dead(result):
            require_alive(suite, targets[arm], f"after {stage.name} of the capacity search")


def _asked(suite: Suite, load: Load, target: Target, stage: PlannedStage) -> Shard:
    return stage_shard(
        target,
        stage,
        limits=suite.limits,
        audit=load.audit,
    )


def _observations(stage: str, arm: Arm, block: int, position: int, result: StageResult) -> list[LoadObservation]:
    """One for each class of traffic, as `stage/class`; they share the client, which was one for all of them."""
    return [
        LoadObservation(
            stage=f"{stage}/{group.name}" if group.name else stage,
            arm=arm,
            block=block,
            position=position,
            requests=group.requests,
            window_s=group.window_s,
            client=result.client,
            left=group.left,
        )
        for group in result.classes
    ]


def _sent(
    fleet: Fleet | ClusterFleet,
    asked: Shard,
    place: Callable[[StageResult], list[LoadObservation]],
    writer: RunWriter,
    acts: Acts,
) -> StageResult:
    """Run a stage, with what is done meanwhile, and store it; when that is interrupted, what was answered by then."""
    try:
        with acts:
            result = fleet.run(asked, acts.begin)
    except KeyboardInterrupt:
        for observation in place(fleet.salvage()):
            if observation.recorded:
                writer.add_load(observation)
        raise
    result = acts.told(result)
    for observation in place(result):
        writer.add_load(observation)
    return result


def _measure_quality(
    suite: Suite, plan: Plan, targets: dict[Arm, Target], writer: RunWriter, log_dir: Path, progress: Progress
) -> None:
    """Every eval task on both arms; the harness runs in processes of its own."""
    if suite.quality is None:
        return
    progress.begin("quality", len(plan.tasks) * (len(targets) + suite.quality.repeat_baseline))
    faulted: set[Arm] = set()
    stop = partial(shows_harm, suite) if suite.quality.stop_early else None
    for observation in evaluate(targets, plan.tasks, suite.quality, log_dir, limits=suite.limits, stop=stop):
        writer.add_quality(observation)
        progress.step(f"{observation.task} on {observation.arm}{' again' if observation.repeat else ''}")
        if observation.fault is not None:
            faulted.add(observation.arm)
    for arm in sorted(faulted):
        require_alive(suite, targets[arm], "after the evals")


def _measure_divergence(
    suite: Suite, plan: Plan, targets: dict[Arm, Target], writer: RunWriter, progress: Progress
) -> None:
    """The fixed texts, read by both arms."""
    if suite.divergence is None:
        return
    progress.begin("divergence", len(plan.pieces))
    told = diverge(
        targets,
        plan.pieces,
        suite.divergence,
        suite.seed,
        suite.limits,
        on_progress=lambda done: progress.step(f"{done} pieces of text"),
    )
    faulted = False
    for observation in told:
        writer.add_divergence(observation)
        faulted = observation.fault is not None
    for target in targets.values() if faulted else ():
        require_alive(suite, target, "after the fixed texts")


def _measure_shadow(
    suite: Suite, suite_dir: Path, plan: Plan, targets: dict[Arm, Target], writer: RunWriter, progress: Progress
) -> None:
    """Every recorded prompt to the baseline, the baseline again, and the candidate; then what others say of them."""
    if suite.shadow is None:
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
        helpers=helpers_of(suite.shadow, os.environ, suite_dir, plan.judge_prompt),
        on_progress=lambda done: progress.step(f"{done} prompts"),
        on_assessed=assessed,
    )
    faulted = False
    for observation in compared:
        writer.add_shadow(observation)
        faulted = observation.fault is not None
    for target in (baseline, candidate) if faulted else ():
        require_alive(suite, target, "after the shadow comparison")


def _looks_dead(result: StageResult) -> bool:
    """No request came through, or the address refused connections: worth a look before the next stage."""
    refused = any(error == ErrorClass.CONNECT for group in result.classes for error in group.requests.error)
    return refused or not any(succeeded(group.requests).any() for group in result.classes)
