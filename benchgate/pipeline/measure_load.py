"""The load of a run: warm-up, then block after block on both arms until it is settled, then the capacity search.

Every execution of a stage is on disk, and marked in the run's journal as measured, before the next one begins. What an
earlier session of the run measured is not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from benchgate.errors import TargetError
from benchgate.gate.checks.capacity import ArmSearch, alternate_looks, most_looks, search_of
from benchgate.gate.interim import ContinueLoad, StopLoad, limit_passed, next_step
from benchgate.gate.reasons import show_numbers
from benchgate.load.cluster import ClusterFleet
from benchgate.load.results import StageResult
from benchgate.load.shards import Shard, stage_shard
from benchgate.load.warmup import MOST_ROUNDS, classes_of, mean_service_s, warm_up
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import LOAD_ENDED, LOOK, MEASURED, DeploymentFault, LoadEnd, LoadObservation
from benchgate.model.verdict import Outcome, Waivers
from benchgate.pipeline.actions import ActionRunner, undo_actions
from benchgate.pipeline.checkpoint import CompletedLoad
from benchgate.pipeline.deployments import Replicas, TargetDown, endpoints_of, require_alive
from benchgate.plan.model import PlannedBlock, PlannedStage
from benchgate.plan.schedule import Plan, look_stage, warmup_round
from benchgate.stats.capacity_search import PlannedLook
from benchgate.store.repository import RunWriter
from benchgate.suite.load import CAPACITY_STAGE, Capacity, Load, first_round, level_of_stage
from benchgate.suite.schema import Suite
from benchgate.suite.stages import traffic_name
from benchgate.targets.dialect import Target
from benchgate.telemetry.sampler import Sampler

_SEARCH_WARMUP = 2**31  # keeps the prompts of a search's warm-up apart from those of its looks


class Progress(Protocol):
    """Progress reports of a run."""

    def begin(self, phase: str, steps: int) -> None:
        """Report the start of a phase of `steps` steps."""

    def step(self, done: str) -> None:
        """Report that one step of the phase is done and stored."""

    def note(self, line: str) -> None:
        """Report a warning, or the reason for a delay."""


class InterimLooks:
    """Interim analyses of one run's load: each judges the evidence on disk and decides if the load goes on.

    The clock starts with the object, before the load. `earlier_s` is the time that earlier sessions spent on the load,
    which counts against the suite's limit.
    """

    def __init__(
        self,
        suite: Suite,
        load: Load,
        waivers: Waivers | None,
        writer: RunWriter,
        note: Callable[[str], None],
        earlier_s: float = 0.0,
    ) -> None:
        self._suite = suite
        self._load = load
        self._waivers = waivers
        self._writer = writer
        self._note = note
        self._begun_s = time.monotonic() - earlier_s
        self._first_block_s = self._begun_s if earlier_s else None

    def begin_block(self) -> None:
        """Start the clock of the first block: the mean duration of blocks predicts when the next look will end."""
        if self._first_block_s is None:
            self._first_block_s = time.monotonic()

    def end_after(self, blocks: int) -> bool:
        """Return True if the load ends after so many blocks; only a look can end it early."""
        step = next_step(self._suite, self._writer.evidence(), self._waivers) if blocks in self._load.looks else None
        if step is None:
            return False
        end = (
            LoadEnd(blocks, self._load.blocks, step.reason)
            if isinstance(step, StopLoad)
            else self._over_limit(step, blocks)
        )
        document = {
            "blocks": blocks,
            "of": self._load.blocks,
            "after_s": round(time.monotonic() - self._begun_s, 3),
            "checks": [
                {"id": check.id, "required": check.required, "outcome": check.shown, "reason": check.reason}
                for check in step.checks
            ],
            "then": f"on to {step.blocks}" if isinstance(step, ContinueLoad) and end is None else "ended",
        }
        self._writer.event(LOOK, document)
        if end is not None:
            self._writer.event(LOAD_ENDED, asdict(end))
        self._note(f"after {blocks} block{'s' if blocks > 1 else ''}: {_describe_look(step, end)}")
        return end is not None

    def _over_limit(self, step: ContinueLoad, blocks: int) -> LoadEnd | None:
        """Return the end of the load if the next look would pass the suite's limit at the pace so far."""
        now_s = time.monotonic()
        first_s = self._first_block_s if self._first_block_s is not None else self._begun_s
        next_s = (now_s - first_s) / blocks * (step.blocks - blocks)
        passed = limit_passed(self._suite, now_s - self._begun_s, next_s)
        return LoadEnd(blocks, self._load.blocks, passed) if passed is not None else None


def _describe_look(step: StopLoad | ContinueLoad, end: LoadEnd | None) -> str:
    """Describe a look: `ttft-p50@c4 still open (+1.2 %, -3.0 to +5.4, margin 5 %); measuring up to 10`."""
    if isinstance(step, ContinueLoad):
        first, more = step.undecided[0], len(step.undecided) - 1
        others = f" and {more} more" if more else ""
        what = f"{first.id} still open ({show_numbers(first)}){others}"
        if end is None:
            return f"{what}; measuring up to {step.blocks}"
        return f"{what}; up to {step.blocks} would pass the limit of {end.why}, so the load ends here"
    blocked = [check.id for check in step.checks if check.required and check.counted is Outcome.BLOCK]
    return _ENDS[step.reason] + (f" ({', '.join(blocked)} blocked)" if blocked else "")


_ENDS = {
    "decided": "settled, so the load ends here",
    "invalid": "what is not settled is INVALID as it was at the look before, so the load ends here",
    "last": "that was the last look",
}


@dataclass(slots=True)
class LoadWork:
    """Everything needed to measure the load, and its progress: `position` is the number of the next execution.

    `session` counts earlier interruptions of the run. `salt` varies the words of its prompts (0: as planned).
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
    looks: InterimLooks
    log: Path  # output of the commands that stages run
    completed: CompletedLoad
    position: int
    session: int
    salt: int
    replicas: Replicas
    warm: bool = False
    service_s: dict[tuple[str, str, Arm], float] = field(default_factory=dict)


def measure_load(work: LoadWork) -> None:
    """Measure block by block, each stage on one arm and at once on the other, then search for both arms' capacities.

    The load ends at the first look that finds it settled.
    """
    if not work.completed.ended:
        _measure_blocks(work)
    _measure_capacity(work)


def _measure_blocks(work: LoadWork) -> None:
    load, completed = work.load, work.completed
    for first, end in pairwise((0, *(load.looks or (load.blocks,)))):
        start = max(first, completed.blocks)
        if blocks := work.plan.blocks[start:end]:
            phase = f"load, blocks {start + 1} to {end}" if load.looks or start else "load"
            # One arm may have cached some of the interrupted block's prompts. Sent in the warm-up, both have.
            again = blocks[0].stages if work.session and not work.warm else ()
            stages = (0 if work.warm else len(work.plan.warmup)) + len(again) + sum(len(one.stages) for one in blocks)
            work.progress.begin(phase, stages * len(work.targets))
            _warm_up(work, again)
        for block in blocks:
            work.replicas.record(work.writer, f"before block {block.number + 1}", block=block.number)
            work.looks.begin_block()
            _measure_block(work, block)
        if end not in completed.continued_after and work.looks.end_after(end):
            return


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
            _learn(work, stage.name, arm, work.fleet.run(_shard(work, arm, stage)))
            work.progress.step(f"warm-up {stage.name} on {arm}")
    work.warm = True


def _warm_up_stage(
    work: LoadWork, arm: Arm, first: PlannedStage, later: Callable[[int, Mapping[str, int]], PlannedStage]
) -> None:
    def send(number: int, requests: Mapping[str, int], service_s: Mapping[str, float]) -> StageResult:
        stage = first if number == 0 else later(number, requests)
        return work.fleet.run(_shard(work, arm, stage, service_s))

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
            runner = ActionRunner(actions, work.targets[arm], stage.name, work.log)
            result = _execute(work, stage, arm, block.number, runner, service_s[arm])
            _learn(work, stage.name, arm, result)
            work.progress.step(f"{where} on {arm}")
            for action in runner.results:
                event = {"stage": stage.name, "arm": arm.value, "block": block.number, **action.document()}
                work.writer.event("action", event)
            if actions:
                try:
                    undo_actions(actions, work.targets[arm], endpoints_of(work.suite)[0], work.suite.limits)
                except TargetError as fault:
                    raise TargetDown(DeploymentFault(arm, f"after {where}", str(fault))) from fault
                work.replicas.await_all(arm, work.suite.limits.ready_s)  # an action may have taken one away on purpose
                work.replicas.record(work.writer, f"after {where}", only=arm)
            elif _looks_dead(result):
                require_alive(work.suite, work.targets[arm], f"after {where}")
            _mark(work, stage, arm, block.number)


def _measure_capacity(work: LoadWork) -> None:
    """Search for both arms' capacities, look by look in turn; every look is stored as a stage of its own."""
    load, capacity = work.load, work.load.capacity
    searches = _searches(work)
    if capacity is None or all(search.next is None for search in searches.values()):
        return
    looks = sum(most_looks(search.settings) for search in searches.values()) - len(work.completed.searched)
    warmup = 0 if work.warm or load.warmup == 0 else max(1, len(work.plan.warmup))
    work.progress.begin("capacity (at most)", looks + warmup * len(work.targets))
    if work.plan.warmup or load.warmup == 0:
        _warm_up(work)
    elif not work.warm:
        _warm_up_search(work, capacity, searches)
    work.replicas.record(work.writer, "before the capacity search")
    for arm, look in alternate_looks(searches):
        block = searches[arm].executions(look.level)
        # A resumed search draws other prompts: those of an interrupted look may be in a cache.
        drawn_by = [work.suite.seed, block, *([work.session] if work.session else [])]
        stage = look_stage(load, capacity, look, drawn_by, work.plan.material)
        runner = ActionRunner((), work.targets[arm], stage.name, Path())  # a search has no actions
        mean_s = work.service_s.get((CAPACITY_STAGE, "", arm))
        result = _execute(work, stage, arm, block, runner, {} if mean_s is None else {"": mean_s})
        _learn(work, CAPACITY_STAGE, arm, result)
        searches[arm].take(look.level, result.requests, result.client, result.only.ramp)
        work.progress.step(f"{stage.name}, look {block + 1}, on {arm}")
        if _looks_dead(result):
            require_alive(work.suite, work.targets[arm], f"after {stage.name} of the capacity search")
        _mark(work, stage, arm, block)


def _warm_up_search(work: LoadWork, capacity: Capacity, searches: Mapping[Arm, ArmSearch]) -> None:
    """Warm up both arms at the level of their search's first look, if no sweep did it before."""
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
    """Return each arm's search with its looks so far; the arm whose turn it is comes first."""
    searches = {arm: search for arm in work.targets if (search := search_of(work.suite)) is not None}
    looks = work.completed.searched
    for look in looks:
        level = level_of_stage(look.stage)
        assert level is not None, "it is a look"
        searches[look.arm].take(level, look.requests, look.client, look.ramp)
    last = looks[-1].arm if looks else None
    return dict(sorted(searches.items(), key=lambda one: one[0] is last))


def _execute(
    work: LoadWork, stage: PlannedStage, arm: Arm, block: int, runner: ActionRunner, service_s: Mapping[str, float]
) -> StageResult:
    """Run a stage on one arm with its actions, and store its requests and telemetry."""
    with work.watches[arm].stage() as readings:
        try:
            with runner:
                result = work.fleet.run(_shard(work, arm, stage, service_s), runner.begin)
        except KeyboardInterrupt:
            for observation in _observations(stage.name, arm, block, work.position, work.fleet.salvage()):
                if observation.recorded:
                    work.writer.add(observation)
            raise
        result = runner.add_faults(result)
        for observation in _observations(stage.name, arm, block, work.position, result):
            work.writer.add(observation)
    window = work.watches[arm].window(readings, stage.name, arm, block, work.position)
    if window is not None:
        work.writer.add(window)
    return result


def _mark(work: LoadWork, stage: PlannedStage, arm: Arm, block: int) -> None:
    """Mark an execution as complete. Without its mark, a resumed run repeats it."""
    place = {"stage": stage.name, "arm": arm.value, "block": block, "position": work.position}
    work.writer.event(MEASURED, place)
    work.position += 1


def _shard(work: LoadWork, arm: Arm, stage: PlannedStage, service_s: Mapping[str, float] | None = None) -> Shard:
    return stage_shard(
        work.targets[arm],
        stage,
        limits=work.suite.limits,
        audit=work.load.audit,
        salt=work.salt,
        service_s=service_s,
    )


def _observations(stage: str, arm: Arm, block: int, position: int, result: StageResult) -> list[LoadObservation]:
    """Return an observation for each class of traffic, named `stage/class`; all share the statistics of the client."""
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


def _looks_dead(result: StageResult) -> bool:
    """Return True if no request succeeded, or connections were refused: the next stage needs a health check first."""
    sent = [columns for group in result.classes for columns in (group.requests, group.ramp)]
    refused = any(columns.error.are((ErrorClass.CONNECT,)).any() for columns in sent)
    return refused or not any(succeeded(columns).any() for columns in sent)
