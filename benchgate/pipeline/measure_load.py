"""The load of a run: warm-up, then block after block on both arms until it is settled, then the capacity search.

Every execution of a stage is on disk, and marked in the run's journal as measured, before the next one begins. What an
earlier session of the run measured is not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchgate.errors import TargetError
from benchgate.gate.checks.capacity import ArmSearch, alternate_looks, most_looks, search_of
from benchgate.gate.evidence.costs import billed_usd
from benchgate.gate.interim import ContinueLoad, StopLoad, limit_passed, next_step
from benchgate.gate.policy import specs_over
from benchgate.gate.reasons import show_numbers
from benchgate.load.cluster import ClusterFleet
from benchgate.load.live import LiveFigures
from benchgate.load.results import StageResult
from benchgate.load.shards import Shard, stage_shard
from benchgate.load.warmup import MOST_ROUNDS, classes_of, mean_service_s, ramp_service_s, warm_up
from benchgate.load.workers import Begins, Fleet
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, VerifiedAnswer
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import ANSWERS, LOAD_ENDED, LOOK, MEASURED, DeploymentFault, LoadEnd, LoadObservation
from benchgate.model.verdict import Outcome
from benchgate.pipeline.actions import ActionRunner, undo_actions
from benchgate.pipeline.checkpoint import VerifiedAnswers
from benchgate.pipeline.deployments import Deployed, TargetDown, endpoints_of, require_alive
from benchgate.pipeline.progress import Phase
from benchgate.pipeline.work import Work
from benchgate.plan.model import PlannedBlock, PlannedStage
from benchgate.plan.salt import other_salt
from benchgate.plan.schedule import look_stage, warmup_round
from benchgate.plan.verification import Prompts, with_prompts
from benchgate.stats.capacity_search import LOOK_SHARES, PlannedLook
from benchgate.store.repository import RunWriter
from benchgate.suite.load import CAPACITY_STAGE, Capacity, Load, first_round, level_of_stage
from benchgate.suite.stages import traffic_name
from benchgate.telemetry.sampler import Sampler

_SEARCH_WARMUP = 2**31  # keeps the prompts of a search's warm-up apart from those of its looks


class LoadMeasurement:
    """Load of one session of a run: warm-up, blocks until they are settled, then the search for both arms' capacities.

    `_position` is the number of the next execution of a stage. `_service_s` is the mean service time in seconds by
    stage, class and arm: of the last round of the warm-up, then of the latest execution (`ramp_service_s`).
    """

    def __init__(
        self,
        work: Work,
        load: Load,
        writer: RunWriter,
        servers: Deployed,
        samplers: Mapping[Arm, Sampler],
        fleet: Fleet | ClusterFleet,
        prompts: Prompts,
    ) -> None:
        self._prompts = prompts
        self._verified = list(work.completed.load.verified)
        self._suite = work.suite
        self._plan = work.plan
        self._load = load
        self._writer = writer
        self._progress = work.progress
        self._targets = servers.targets
        self._replicas = servers.replicas
        self._samplers = samplers
        self._fleet = fleet
        self._waivers = work.waivers
        self._action_log = work.log_dir / "actions.log"
        self._awaiting_idle = {s.stage for s in specs_over(work.suite, {}) if s.check.metric == "kv_usage_after"}
        self._completed = work.completed.load
        self._position = work.completed.position
        self._session = work.session
        # One server for both arms would have answered the second arm's prompts before.
        is_one = work.suite.baseline == work.suite.candidate
        self._salts = {Arm.BASELINE: work.salt, Arm.CANDIDATE: other_salt(work.salt) if is_one else work.salt}
        # What earlier sessions spent on the load counts against the suite's limit.
        self._begun_s = time.monotonic() - self._completed.spent_s
        self._first_block_s = self._begun_s if self._completed.spent_s else None
        self._warm = False
        self._service_s: dict[tuple[str, str, Arm], float] = {}
        self._least_service_s: dict[tuple[str, str, Arm], float] = {}

    def measure(self) -> tuple[VerifiedAnswers, ...]:
        """Measure each stage of a block on one arm and at once on the other; then search for the capacities.

        The blocks end at the first look that finds them settled. Return the answers to the eval items among the load,
        also those of earlier sessions.
        """
        if not self._completed.ended:
            self._measure_blocks()
        self._measure_capacity()
        return tuple(self._verified)

    def _measure_blocks(self) -> None:
        load, completed = self._load, self._completed
        last = load.looks[-1] if load.looks else load.blocks
        rest = self._plan.blocks[completed.blocks : last]
        for first, end in pairwise((0, *(load.looks or (load.blocks,)))):
            for block in self._plan.blocks[max(first, completed.blocks) : end]:
                if block is rest[0]:
                    # One arm may have cached some of the interrupted block's prompts. Sent in the warm-up, both have.
                    self._warm_up(block.stages if self._session else ())
                    executions = [len(one.stages) * len(self._targets) for one in rest]
                    self._progress.begin(Phase("load", sum(executions), cycle=executions[0], at_most=bool(load.looks)))
                self._replicas.record(self._writer, f"before block {block.number + 1}", block=block.number)
                if self._first_block_s is None:
                    self._first_block_s = time.monotonic()
                for stage in block.stages:
                    self._measure_stage(stage, block)
            if end not in completed.continued_after and self._ends_after(end):
                return

    def _ends_after(self, blocks: int) -> bool:
        """Make the interim analysis due after so many blocks, if any: return True if it ends the load."""
        step = next_step(self._suite, self._writer.evidence(), self._waivers) if blocks in self._load.looks else None
        if step is None:
            return False
        reason: str | None
        if isinstance(step, StopLoad):
            reason = step.reason
        else:  # the load ends if the next look would pass the suite's limit at the pace so far
            now_s = time.monotonic()
            first_s = self._first_block_s if self._first_block_s is not None else self._begun_s
            next_s = (now_s - first_s) / blocks * (step.blocks - blocks)
            reason = limit_passed(self._suite, now_s - self._begun_s, next_s)
        end = LoadEnd(blocks, self._load.blocks, reason) if reason is not None else None
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
        after = f"after {blocks} block{'s' if blocks > 1 else ''}"
        self._progress.look(f"{after}: {_count_settled(step)}")
        self._progress.note(f"{after}: {_describe_look(step, end)}")
        return end is not None

    def _warm_up(self, again: Sequence[PlannedStage] = ()) -> None:
        """Warm up each stage on each arm, once in every session of a run, and learn the service times.

        Each arm is warmed up by its own answers, so one may be sent more requests than the other.
        """
        if self._warm or not (self._plan.warmup or again):
            return
        self._progress.begin(Phase("warm-up", (len(self._plan.warmup) + len(again)) * len(self._targets)))
        for stage in self._plan.warmup:
            for arm in self._targets:
                self._warm_up_stage(arm, stage, partial(warmup_round, self._load, self._plan, stage.name))
        for stage in again:
            for arm in self._targets:
                self._learn(stage.name, arm, self._send(arm, stage.name, "", self._shard(arm, stage)))
                self._progress.step(f"warm-up {stage.name} on {arm}")
        self._warm = True

    def _warm_up_stage(
        self, arm: Arm, first: PlannedStage, later: Callable[[int, Mapping[str, int]], PlannedStage]
    ) -> None:
        def send(number: int, requests: Mapping[str, int], service_s: Mapping[str, float]) -> StageResult:
            stage = first if number == 0 else later(number, requests)
            return self._send(arm, first.name, "", self._shard(arm, stage, service_s))

        warmed = warm_up(classes_of(first), send, MOST_ROUNDS if self._load.warmup == "auto" else 1)
        warm_s = {(first.name, group, arm): mean_s for group, mean_s in warmed.service_s.items()}
        self._service_s |= warm_s
        self._least_service_s |= warm_s
        self._progress.step(f"warm-up {first.name} on {arm}")
        if warmed.note is not None:
            self._progress.note(f"warm-up {first.name} on {arm}: {warmed.note}")

    def _measure_stage(self, stage: PlannedStage, block: PlannedBlock) -> None:
        """Measure a stage on both arms, one right after the other, and undo its actions."""
        # Known before either arm is measured. An open loop's schedule must be the same on both arms: `longest_s`.
        service_s: dict[Arm, dict[str, float]] = {arm: {} for arm in self._targets}
        longest_s: dict[str, float] = {}
        for group in stage.classes:
            for arm, own_s in service_s.items():
                if (mean_s := self._service_s.get((stage.name, group.name, arm))) is not None:
                    own_s[group.name] = mean_s
                    longest_s[group.name] = max(mean_s, longest_s.get(group.name, mean_s))
        actions = next((one.actions or () for one in self._load.sweep if one.name == stage.name), ())
        for arm in block.order:
            place = f"block {block.number + 1} of {self._load.blocks}"
            where = f"{place}, stage {stage.name}"
            runner = ActionRunner(actions, self._targets[arm], stage.name, self._action_log)
            shard = self._shard(arm, stage, service_s[arm], longest_s)
            result = self._execute(place, stage, arm, block.number, runner, shard)
            self._learn(stage.name, arm, result)
            self._progress.step(f"{where} on {arm}")
            for action in runner.results:
                event = {"stage": stage.name, "arm": arm.value, "block": block.number, **action.document()}
                self._writer.event("action", event)
            if actions:
                limits = self._suite.limits
                try:
                    undo_actions(actions, self._targets[arm], endpoints_of(self._suite)[0], limits)
                except TargetError as fault:
                    raise TargetDown(DeploymentFault(arm, f"after {where}", str(fault))) from fault
                self._replicas.await_all(arm, limits.ready_s)  # an action may have taken one away on purpose
                self._replicas.record(self._writer, f"after {where}", only=arm)
            elif _looks_dead(result, arm):
                require_alive(self._suite, self._targets[arm], f"after {where}")
            answers = tuple(answer for group in result.classes for answer in group.answers)
            self._mark(stage, arm, block.number, answers)
            self._verified.append(VerifiedAnswers(stage.name, arm, answers))

    def _measure_capacity(self) -> None:
        """Search for both arms' capacities, look by look in turn; every look is stored as a stage of its own."""
        load, capacity = self._load, self._load.capacity
        searches = {arm: search for arm in self._targets if (search := search_of(self._suite)) is not None}
        for done in self._completed.searched:
            level = level_of_stage(done.stage)
            assert level is not None, "it is a look"
            searches[done.arm].take(level, done.requests, done.client, done.ramp, done.left)
        if capacity is None or all(search.next is None for search in searches.values()):
            return
        if self._completed.searched:  # the arm whose turn it is comes first
            last = self._completed.searched[-1].arm
            searches = dict(sorted(searches.items(), key=lambda one: one[0] is last))
        looks = sum(most_looks(search.settings) for search in searches.values()) - len(self._completed.searched)
        if self._plan.warmup or load.warmup == 0:
            self._warm_up()
        elif not self._warm:
            self._warm_up_search(capacity, searches)
        self._progress.begin(Phase("capacity", looks, at_most=True))
        self._replicas.record(self._writer, "before the capacity search")
        used = {arm: sum(len(one.requests) for one in self._completed.searched if one.arm is arm) for arm in searches}
        for arm, search in searches.items():
            # Prompts of a look that was interrupted may be in a cache; no look is larger than this.
            used[arm] += self._session * search.settings.look_requests(search.settings.highest, len(LOOK_SHARES) - 1)
        for arm, look in alternate_looks(searches):
            block = searches[arm].executions(look.level)
            drawn_by = [self._suite.seed, block, *([self._session] if self._session else [])]
            stage = look_stage(load, capacity, look, drawn_by, self._plan.material, used=used[arm])
            used[arm] += look.requests
            runner = ActionRunner((), self._targets[arm], stage.name, Path())  # a search has no actions
            mean_s = self._service_s.get((CAPACITY_STAGE, "", arm))
            shard = self._shard(arm, stage, {} if mean_s is None else {"": mean_s})
            result = self._execute(f"look {block + 1}", stage, arm, block, runner, shard)
            self._learn(CAPACITY_STAGE, arm, result)
            searches[arm].take(look.level, result.requests, result.client, result.only.ramp, result.only.left)
            self._progress.step(f"{stage.name}, look {block + 1}, on {arm}")
            if _looks_dead(result, arm):
                require_alive(self._suite, self._targets[arm], f"after {stage.name} of the capacity search")
            self._mark(stage, arm, block)

    def _warm_up_search(self, capacity: Capacity, searches: Mapping[Arm, ArmSearch]) -> None:
        """Warm up both arms at the level of their search's first look, if no sweep did it before."""
        load = self._load
        self._progress.begin(Phase("warm-up", len(searches)))
        for arm, search in searches.items():
            look = search.next
            if look is None:
                continue
            streams = int(look.level) if capacity.over == "concurrency" else None
            requests = load.warmup if load.warmup != "auto" else first_round(streams)

            def planned(number: int, requests: Mapping[str, int], look: PlannedLook = look) -> PlannedStage:
                drawn_by = [self._suite.seed, _SEARCH_WARMUP, number]
                look, used = replace(look, requests=requests[""]), -sum(requests.values()) * (number + 1)
                round_ = look_stage(load, capacity, look, drawn_by, self._plan.material, used=used)
                classes = tuple(replace(group, ramp=None) for group in round_.classes)
                return replace(round_, name=CAPACITY_STAGE, classes=classes)

            self._warm_up_stage(arm, planned(0, {"": requests}), planned)
        self._warm = True

    def _execute(
        self,
        place: str,
        stage: PlannedStage,
        arm: Arm,
        block: int,
        runner: ActionRunner,
        shard: Shard,
    ) -> StageResult:
        """Run a stage on one arm with its actions, and store its requests and telemetry."""
        with self._samplers[arm].stage(awaits_idle=stage.name in self._awaiting_idle) as readings:

            def begin(start_ns: int) -> None:
                readings.begin(start_ns)
                if runner.begin is not None:
                    runner.begin(start_ns)

            try:
                with runner:
                    result = self._send(arm, stage.name, place, shard, begin)
                    readings.end(result.last_answer_s)
            except KeyboardInterrupt:
                for observation in _observations(stage.name, arm, block, self._position, self._fleet.salvage()):
                    if observation.recorded:
                        self._writer.add(observation)
                raise
            result = runner.add_faults(result)
            for observation in _observations(stage.name, arm, block, self._position, result):
                self._writer.add(observation)
        window = self._samplers[arm].window(readings, stage.name, arm, block, self._position)
        if window is not None:
            self._writer.add(window)
        return result

    def _send(self, arm: Arm, stage: str, place: str, shard: Shard, begins: Begins | None = None) -> StageResult:
        """Send a stage's requests to one arm, and report the figures of it."""
        self._progress.stage(arm, stage, place)
        began_s = time.monotonic()
        result = self._fleet.run(shard, begins)
        prices = self._suite.deployments[self._suite.arm_names[arm]].token_prices
        usd = 0.0
        if prices is not None:
            parts = [part for group in result.classes for part in (group.requests, group.ramp)]
            usd = sum(billed_usd(prices.to_stored(), part) or 0.0 for part in parts)
        self._progress.executed(LiveFigures.of(result, time.monotonic() - began_s), usd)
        return result

    def _learn(self, stage: str, arm: Arm, result: StageResult) -> None:
        """Keep the mean service times of an execution; a class without a success keeps its earlier one."""
        for group in result.classes:
            if (mean_s := mean_service_s(group.requests)) is not None:
                key = stage, group.name, arm
                least_s = self._least_service_s[key] = min(mean_s, self._least_service_s.get(key, mean_s))
                self._service_s[key] = ramp_service_s(mean_s, least_s)

    def _mark(self, stage: PlannedStage, arm: Arm, block: int, answers: Sequence[VerifiedAnswer] = ()) -> None:
        """Mark an execution as complete. Without its mark, a resumed run repeats it."""
        place: dict[str, object] = {"stage": stage.name, "arm": arm.value, "block": block, "position": self._position}
        if answers:
            place[ANSWERS] = [asdict(answer) for answer in answers]
        self._writer.event(MEASURED, place)
        self._position += 1

    def _shard(
        self,
        arm: Arm,
        stage: PlannedStage,
        service_s: Mapping[str, float] | None = None,
        longest_s: Mapping[str, float] | None = None,
    ) -> Shard:
        return stage_shard(
            self._targets[arm],
            with_prompts(stage, self._prompts),
            limits=self._suite.limits,
            audit=self._load.audit,
            salt=self._salts[arm],
            service_s=service_s,
            longest_s=longest_s,
        )


def _describe_look(step: StopLoad | ContinueLoad, end: LoadEnd | None) -> str:
    """Describe a look: `ttft-p50@c4 still open (+1.2 %, -3.0 to +5.4, margin 5 %); measuring up to 10`."""
    if isinstance(step, ContinueLoad):
        first, more = step.undecided[0], len(step.undecided) - 1
        others = f" and {more} more" if more else ""
        unsettled = f"{first.id} still open ({show_numbers(first)}){others}"
        if end is None:
            return f"{unsettled}; measuring up to {step.blocks}"
        return f"{unsettled}; up to {step.blocks} would pass the limit of {end.why}, so the load ends here"
    blocked = [check.id for check in step.checks if check.required and check.counted is Outcome.BLOCK]
    return _ENDS[step.reason] + (f" ({', '.join(blocked)} blocked)" if blocked else "")


def _count_settled(step: StopLoad | ContinueLoad) -> str:
    """Count the checks that a look settled: `5 of 7 checks settled; open: ttft-p50@c4 and 1 more`."""
    total, still_open = len(step.checks), step.undecided if isinstance(step, ContinueLoad) else ()
    more = f" and {len(still_open) - 1} more" if len(still_open) > 1 else ""
    names = f"; open: {still_open[0].id}{more}" if still_open else ""
    return f"{total - len(still_open)} of {total} checks settled{names}"


_ENDS = {
    "decided": "settled, so the load ends here",
    "invalid": "what is not settled is INVALID as it was at the look before, so the load ends here",
    "last": "that was the last look",
}


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


def _looks_dead(result: StageResult, arm: Arm) -> bool:
    """Return True if connections were refused or no request succeeded: the server needs a health check first.

    A candidate that breaks off every answer is up, and its errors count against it. A baseline's would excuse the
    candidate's, so it is checked.
    """
    sent = [columns for group in result.classes for columns in (group.requests, group.ramp)]
    refused = any(columns.error.are((ErrorClass.CONNECT,)).any() for columns in sent)
    if refused or any(succeeded(columns).any() for columns in sent):
        return refused
    return arm is Arm.BASELINE or not any(columns.chunk_start[-1] > 0 for columns in sent)
