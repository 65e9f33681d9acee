"""The load of a run: both arms warmed up, block after block, then the search for what each of them can carry.

Every execution of a stage is on disk, and marked in the run's journal as measured, before the next one is made; what
an earlier sitting of the run has measured is not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from benchgate.errors import TargetError
from benchgate.gate.checks.capacity import ArmSearch, alternate_looks, most_looks, search_of
from benchgate.load.cluster import ClusterFleet
from benchgate.load.results import StageResult
from benchgate.load.shards import Shard, stage_shard
from benchgate.load.warmup import MOST_ROUNDS, classes_of, mean_service_s, warm_up
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import MEASURED, DeploymentFault, LoadObservation
from benchgate.pipeline.actions import Acts, bring_back
from benchgate.pipeline.checkpoint import LoadDone
from benchgate.pipeline.deployments import Replicas, TargetDown, endpoints_of, require_alive
from benchgate.pipeline.interim_analysis import Looks
from benchgate.plan.model import PlannedBlock, PlannedStage
from benchgate.plan.schedule import Plan, look_stage, warmup_round
from benchgate.stats.capacity_search import PlannedLook
from benchgate.store.repository import RunWriter
from benchgate.suite.load import CAPACITY_STAGE, Capacity, Load, first_round, level_of_stage
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Action, traffic_name
from benchgate.targets.dialect import Target
from benchgate.telemetry.sampler import Sampler

_SEARCH_WARMUP = 2**31  # keeps the prompts of a search's warm-up apart from those of its looks


class Progress(Protocol):
    """What a run tells whoever watches it. `steps` is how many `step` calls will follow."""

    def begin(self, phase: str, steps: int) -> None:
        """A phase starts."""

    def step(self, done: str) -> None:
        """One step of the phase is done and stored."""

    def note(self, line: str) -> None:
        """Something takes long, and this is why."""


@dataclass(slots=True)
class LoadWork:
    """What the load is measured with, and how far it is: `position` is the number of the next execution.

    `sitting` is how often the run was cut short before, `salt` what changes the words of its prompts (0: as planned).
    `service_s` is the mean service time in seconds by stage, class and arm: of the last round of the warm-up, then of
    the latest execution.
    """

    suite: Suite
    load: Load
    plan: Plan
    targets: Mapping[Arm, Target]
    watches: Mapping[Arm, Sampler]
    writer: RunWriter
    progress: Progress
    fleet: Fleet | ClusterFleet
    looks: Looks
    log: Path  # where the words of commands go that stages run
    done: LoadDone
    position: int
    sitting: int
    salt: int
    replicas: Replicas
    warm: bool = False
    service_s: dict[tuple[str, str, Arm], float] = field(default_factory=dict)


def measure_load(work: LoadWork) -> None:
    """Block by block: each stage on one arm and at once on the other; then the search for both arms' capacities.

    After each look the load goes on with the blocks up to the next one, unless it is settled by then.
    """
    if not work.done.ended:
        _measure_blocks(work)
    _measure_capacity(work)


def _measure_blocks(work: LoadWork) -> None:
    load, done = work.load, work.done
    for first, end in pairwise((0, *(load.looks or (load.blocks,)))):
        start = max(first, done.blocks)
        if blocks := work.plan.blocks[start:end]:
            told = f"load, blocks {start + 1} to {end}" if load.looks or start else "load"
            again = _asked_again(work, blocks[0])
            stages = (0 if work.warm else len(work.plan.warmup)) + len(again) + sum(len(one.stages) for one in blocks)
            work.progress.begin(told, stages * len(work.targets))
            _warm_up(work, again)
        for block in blocks:
            work.replicas.record(work.writer, f"before block {block.number + 1}", block=block.number)
            work.looks.begin_block()
            _measure_block(work, block)
        if end not in done.gone_on and work.looks.end_after(end):
            return


def _asked_again(work: LoadWork, block: PlannedBlock) -> tuple[PlannedStage, ...]:
    """Return what the warm-up of a resumed run sends beside its own requests: the block that comes next.

    One arm may have seen some of it before the interruption, and have that in its caches now. Then both have.
    """
    return block.stages if work.sitting and not work.warm else ()


def _warm_up(work: LoadWork, again: Sequence[PlannedStage] = ()) -> None:
    """Warm up each stage on each arm, once in every session of a run, and learn the service times.

    Each arm is warmed up by its own answers, so one may be sent more requests than the other.
    """
    if work.warm or not (work.plan.warmup or again):
        return
    for stage in work.plan.warmup:
        later = partial(warmup_round, work.load, work.plan, stage.name)
        for arm in work.targets:
            _warm_up_stage(work, arm, stage, later)
    for stage in again:
        for arm in work.targets:
            _learn(work, stage.name, arm, work.fleet.run(_asked(work, arm, stage)))
            work.progress.step(f"warm-up {stage.name} on {arm}")
    work.warm = True


def _warm_up_stage(
    work: LoadWork, arm: Arm, first: PlannedStage, later: Callable[[int, Mapping[str, int]], PlannedStage]
) -> None:
    def send(number: int, requests: Mapping[str, int], service_s: Mapping[str, float]) -> StageResult:
        stage = first if number == 0 else later(number, requests)
        return work.fleet.run(_asked(work, arm, stage, service_s))

    warmed = warm_up(classes_of(first), send, MOST_ROUNDS if work.load.warmup == "auto" else 1)
    work.service_s |= {(first.name, group, arm): mean_s for group, mean_s in warmed.service_s.items()}
    work.progress.step(f"warm-up {first.name} on {arm}")
    if warmed.note is not None:
        work.progress.note(f"warm-up {first.name} on {arm}: {warmed.note}")


def _learn(work: LoadWork, stage: str, arm: Arm, result: StageResult) -> None:
    """Keep the mean service times of an execution; of a class in which nothing succeeded the earlier one stands."""
    for group in result.classes:
        if (mean_s := mean_service_s(group.requests)) is not None:
            work.service_s[stage, group.name, arm] = mean_s


def _known_service_s(work: LoadWork, stage: PlannedStage) -> dict[Arm, dict[str, float]]:
    """Return the service times that each arm's sender is given: by class, in seconds.

    In a closed loop it is the arm's own. An open loop's schedule must be the same on both arms, so it is the larger.
    """
    known: dict[Arm, dict[str, float]] = {arm: {} for arm in work.targets}
    for group in stage.classes:
        own = {arm: work.service_s.get((stage.name, group.name, arm)) for arm in work.targets}
        most = max((one for one in own.values() if one is not None), default=None)
        for arm in work.targets:
            mean_s = own[arm] if group.concurrency is not None else most
            if mean_s is not None:
                known[arm][group.name] = mean_s
    return known


def _measure_block(work: LoadWork, block: PlannedBlock) -> None:
    for stage in block.stages:
        service_s = _known_service_s(work, stage)  # before either arm is measured: one schedule for both
        actions = next((one.actions or () for one in work.load.sweep if one.name == stage.name), ())
        for arm in block.order:
            where = f"block {block.number + 1} of {work.load.blocks}, stage {stage.name}"
            acts = Acts(actions, work.targets[arm], stage.name, work.log)
            result = _execute(work, stage, arm, block.number, acts, service_s[arm])
            _learn(work, stage.name, arm, result)
            work.progress.step(f"{where} on {arm}")
            _journal(work.writer, acts, arm, block.number)
            if acts.actions:
                _bring_back(work.suite, work.targets[arm], acts.actions, f"after {where}")
                work.replicas.await_all(arm, work.suite.limits.ready_s)  # an action may have taken one away on purpose
                work.replicas.record(work.writer, f"after {where}", only=arm)
            elif _looks_dead(result):
                require_alive(work.suite, work.targets[arm], f"after {where}")
            _mark(work, stage, arm, block.number)


def _bring_back(suite: Suite, target: Target, actions: Sequence[Action], when: str) -> None:
    """Undo what was done to a deployment; raises TargetDown when it does not answer any more."""
    try:
        bring_back(actions, target, endpoints_of(suite)[0], suite.limits)
    except TargetError as fault:
        raise TargetDown(DeploymentFault(target.arm, when, str(fault))) from fault


def _journal(writer: RunWriter, acts: Acts, arm: Arm, block: int) -> None:
    """When what was done to the deployment was begun and done, and what became of it."""
    for act in acts.done:
        writer.event("action", {"stage": acts.stage, "arm": arm.value, "block": block, **act.document()})


def _measure_capacity(work: LoadWork) -> None:
    """Search for both arms' capacities, look by look in turn; every look is stored as a stage of its own."""
    load, capacity = work.load, work.load.capacity
    searches = _searches(work)
    if capacity is None or all(search.next is None for search in searches.values()):
        return
    looks = sum(most_looks(search.settings) for search in searches.values()) - len(work.done.searched)
    warmup = 0 if work.warm or load.warmup == 0 else max(1, len(work.plan.warmup))
    work.progress.begin("capacity (at most)", looks + warmup * len(work.targets))
    if work.plan.warmup or load.warmup == 0:
        _warm_up(work)
    elif not work.warm:
        _warm_up_search(work, capacity, searches)
    work.replicas.record(work.writer, "before the capacity search")
    for arm, look in alternate_looks(searches):
        block = searches[arm].executions(look.level)
        # Others than before: a look that was cut short may have left its prompts in a cache.
        drawn_by = [work.suite.seed, block, *([work.sitting] if work.sitting else [])]
        stage = look_stage(load, capacity, look, drawn_by, work.plan.material)
        acts = Acts((), work.targets[arm], stage.name, Path())  # nothing is done during a search
        mean_s = work.service_s.get((CAPACITY_STAGE, "", arm))
        result = _execute(work, stage, arm, block, acts, {} if mean_s is None else {"": mean_s})
        _learn(work, CAPACITY_STAGE, arm, result)
        searches[arm].take(look.level, result.requests, result.client, result.only.ramp)
        work.progress.step(f"{stage.name}, look {block + 1}, on {arm}")
        if _looks_dead(result):
            require_alive(work.suite, work.targets[arm], f"after {stage.name} of the capacity search")
        _mark(work, stage, arm, block)


def _warm_up_search(work: LoadWork, capacity: Capacity, searches: Mapping[Arm, ArmSearch]) -> None:
    """Warm up both arms at the level of their search's first look, where there is no sweep that did it before."""
    load = work.load
    concurrency = capacity.over == "concurrency"
    for arm, search in searches.items():
        look = search.next
        if look is None:
            continue
        requests = load.warmup if load.warmup != "auto" else first_round(int(look.level) if concurrency else None)

        def planned(number: int, requests: Mapping[str, int], look: PlannedLook = look) -> PlannedStage:
            drawn_by = [work.suite.seed, _SEARCH_WARMUP, number]
            round_ = look_stage(load, capacity, replace(look, requests=requests[""]), drawn_by, work.plan.material)
            classes = tuple(replace(group, ramp=None) for group in round_.classes)
            return replace(round_, name=CAPACITY_STAGE, classes=classes)

        _warm_up_stage(work, arm, planned(0, {"": requests}), planned)
    work.warm = True


def _searches(work: LoadWork) -> dict[Arm, ArmSearch]:
    """Each arm's search with the looks taken so far, that arm first whose turn it is."""
    searches = {arm: search for arm in work.targets if (search := search_of(work.suite)) is not None}
    for seen in work.done.searched:
        level = level_of_stage(seen.stage)
        assert level is not None, "it is a look"
        searches[seen.arm].take(level, seen.requests, seen.client, seen.ramp)
    last = work.done.searched[-1].arm if work.done.searched else None
    return dict(sorted(searches.items(), key=lambda one: one[0] is last))


def _execute(
    work: LoadWork, stage: PlannedStage, arm: Arm, block: int, acts: Acts, service_s: Mapping[str, float]
) -> StageResult:
    """Run a stage on one arm, with what is done to it meanwhile and what is read of it, and store both."""
    place = partial(_observations, stage.name, arm, block, work.position)
    with work.watches[arm].stage() as readings:
        result = _sent(work.fleet, _asked(work, arm, stage, service_s), place, work.writer, acts)
    window = work.watches[arm].window(readings, stage.name, arm, block, work.position)
    if window is not None:
        work.writer.add_telemetry(window)
    return result


def _mark(work: LoadWork, stage: PlannedStage, arm: Arm, block: int) -> None:
    """This execution is whole: without this line it was only begun, whatever there is of it."""
    place = {"stage": stage.name, "arm": arm.value, "block": block, "position": work.position}
    work.writer.event(MEASURED, place)
    work.position += 1


def _asked(work: LoadWork, arm: Arm, stage: PlannedStage, service_s: Mapping[str, float] | None = None) -> Shard:
    return stage_shard(
        work.targets[arm],
        stage,
        limits=work.suite.limits,
        audit=work.load.audit,
        salt=work.salt,
        service_s=service_s,
    )


def _observations(stage: str, arm: Arm, block: int, position: int, result: StageResult) -> list[LoadObservation]:
    """One for each class of traffic, as `stage/class`; they share the client, which was one for all of them."""
    return [
        LoadObservation(
            stage=traffic_name(stage, group.name),
            arm=arm,
            block=block,
            position=position,
            requests=group.requests,
            window_s=group.window_s,
            client=result.client,
            left=group.left,
            ramp=group.ramp,
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


def _looks_dead(result: StageResult) -> bool:
    """No request came through, or the address refused connections: worth a look before the next stage."""
    sent = [columns for group in result.classes for columns in (group.requests, group.ramp)]
    refused = any(columns.error.are((ErrorClass.CONNECT,)).any() for columns in sent)
    return refused or not any(succeeded(columns).any() for columns in sent)
