"""What a run takes, from the first look at its load to the last: requests, tokens, time, money.

What a run would ask, counted from its plan before anything is sent.

The longest request of a plan, for holding it against what a server says its context is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm
from benchgate.model.request import Ask
from benchgate.plan.client_demand import (
    StageDemand,
    beyond_the_client,
    beyond_the_curve,
    most_workers,
    searched_demands,
    stage_demands,
    workers_needed,
)
from benchgate.plan.model import PlannedClass, PlannedRequest, PlannedStage
from benchgate.plan.power import NOTHING_KNOWN, CheckPower, Earlier, JudgedCheck, Known, Promotion, foretell, shortfalls
from benchgate.plan.prompts import text_tokens
from benchgate.plan.salt import MARK_PIECES
from benchgate.plan.schedule import Plan
from benchgate.stats.capacity_search import SearchSettings
from benchgate.suite.schema import Load, Suite, measured_arms

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Amount:
    """A run that ends at one look. Requests are of the load, the least warm-up included, of evals and of the shadow
    comparison, at most; tokens of the load alone. The ramps of closed loops are in both, estimated. None where nobody
    knows.

    `usd` is what the measured deployments cost in that time, by their prices; judges and the load generator are not in
    it. Neither are starting and warming up, where the time is only that of the schedules.
    """

    blocks: int
    requests: int
    input_tokens: int
    output_tokens: int
    seconds: float | None
    usd: float | None


@dataclass(frozen=True, slots=True)
class Totals:
    """The least and the most that a run takes; both are one where the load has a fixed number of blocks.

    `seconds_from`: the earlier run that took so long, or "schedules": then it takes at least so long. None where the
    time is not known.
    """

    least: Amount
    most: Amount
    seconds_from: str | None


def totals(suite: Suite, plan: Plan, other_requests: int, earlier: Earlier | None) -> Totals:
    """Of the planned run. `other_requests`: of all that is not load."""
    looks = suite.load.looks if suite.load is not None else ()
    least, most = (looks[0], looks[-1]) if looks else (len(plan.blocks), len(plan.blocks))
    source = None
    if earlier is not None:
        source = f"run {earlier.run_id}"
    elif _is_scheduled(suite, plan):
        source = "schedules"
    amounts = [_amount(suite, plan, blocks, other_requests, earlier) for blocks in (least, most)]
    return Totals(amounts[0], amounts[1], source)


def input_tokens(suite: Suite, stages: Sequence[PlannedStage]) -> int:
    """About as many as the prompts hold: one short word each, or one letter for byte-level models."""
    levels = suite.load.levels() if suite.load is not None else ()
    byte_level = {level.name for level in levels if level.workload.text == "letters"}
    return _with_ramp(
        stages,
        lambda stage, group, ask: text_tokens(ask.content, letters=stage.observed_as(group) in byte_level),
    )


def output_tokens(stages: Sequence[PlannedStage]) -> int:
    """At most so many."""
    return _with_ramp(stages, lambda stage, group, ask: ask.output_tokens or 0)


def _with_ramp(stages: Sequence[PlannedStage], tokens: Callable[[PlannedStage, PlannedClass, Ask], int]) -> int:
    """Sum over the requests of all classes that send each once; a ramp request counts as the mean of its class."""
    total = 0.0
    for stage in stages:
        for group in stage.classes:
            if not group.background and group.requests:
                of_class = sum(tokens(stage, group, request.ask) for request in group.requests)
                total += of_class * (1 + (group.ramp.size if group.ramp is not None else 0) / len(group.requests))
    return round(total)


def schedule_s(stages: Sequence[PlannedStage]) -> float:
    """From the start of each to its last planned send; 0 for a closed loop, which has no schedule."""
    return sum(max((request.offset_ns or 0 for request in stage.requests), default=0) for stage in stages) * 1e-9


def _amount(suite: Suite, plan: Plan, blocks: int, other_requests: int, earlier: Earlier | None) -> Amount:
    stages = [*plan.warmup, *(stage for block in plan.blocks[:blocks] for stage in block.stages)]
    arms = len(measured_arms(suite))
    seconds = None
    if earlier is not None:
        seconds = earlier.took_s * (blocks / earlier.blocks if earlier.blocks else 1.0)
    elif _is_scheduled(suite, plan):
        seconds = schedule_s(stages) * arms
    return Amount(
        blocks=blocks,
        requests=sum(len(stage.foreground) + stage.ramp_requests for stage in stages) * arms + other_requests,
        input_tokens=input_tokens(suite, stages) * arms,
        output_tokens=output_tokens(stages) * arms,
        seconds=seconds,
        usd=_usd(suite, seconds),
    )


def _is_scheduled(suite: Suite, plan: Plan) -> bool:
    """Whether the run is nothing but open loops, whose time is known."""
    alone = suite.start is None and suite.quality is None and suite.divergence is None and suite.shadow is None
    searches = suite.load is not None and suite.load.capacity is not None
    closed = any(group.concurrency is not None for b in plan.blocks for s in b.stages for group in s.classes)
    return alone and not searches and bool(plan.blocks) and not closed


def _usd(suite: Suite, seconds: float | None) -> float | None:
    """Every measured deployment is there, and paid for, all the time. None where one has no price."""
    if seconds is None:
        return None
    names = {arm.value: getattr(suite, arm.value) for arm in measured_arms(suite)}
    cost = 0.0
    for name in set(names.values()):
        deployment = suite.deployments[name]
        if deployment.usd_per_hour is None:
            return None
        cost += deployment.usd_per_hour * deployment.accelerators * seconds / _SECONDS_PER_HOUR
    return cost


@dataclass(frozen=True, slots=True)
class StagePreview:
    """One stage of the sweep. `workers` is how many load generator processes it needs; None when that is not known."""

    demand: StageDemand
    offered: str  # as a person would say it
    workers: int | None


@dataclass(frozen=True, slots=True)
class Preview:
    """A run before it is made. Requests and tokens are of all arms over all blocks, the least warm-up included; tokens
    with those of the ramp.

    `load_s` is how long the load will take at least: the schedules of its open loops. Closed loops go as fast as their
    servers, so `load_s_known` is False where there are any; what answers take after the last send is not in it.
    """

    stages: tuple[StagePreview, ...]
    starts: int  # of all arms' servers, from nothing
    blocks: int  # at most
    fewest_blocks: int  # after which the load is looked at first
    arms: int
    load_requests: int
    warmup_requests: int
    warmup_goes_on: bool  # until TTFT no longer falls: then the requests of the warm-up are the least there are
    ramp_requests: int  # about, of closed loops, beside `load_requests`; those of open loops depend on the servers
    input_tokens: int
    output_tokens: int
    load_s: float
    load_s_known: bool
    capacity_requests: int  # of all arms at most: a search ends as soon as it knows; 0 without one
    eval_items: int
    to_fetch: tuple[str, ...]  # data sets of evals that are not on this machine, whose items are not counted
    text_positions: int  # of fixed texts, on each arm
    shadow_prompts: int
    shadow_requests: int
    judge_requests: int  # at most, for it is not asked about answers that are one
    similarity_requests: int  # to the embeddings endpoint, at most: likewise
    plan_sha256: str
    client_measured_at: str | None  # when the curve of this machine's load generator was measured; None: never
    problems: tuple[str, ...]  # why the load generator here cannot do it
    unknowns: tuple[str, ...]  # of what it is not known whether it can
    foregone: tuple[str, ...]  # required checks that cannot pass, whatever is answered, and are not allowed to try
    refused: tuple[str, ...]  # those, and required checks that by measured noise do not carry their margins
    underpowered: tuple[str, ...]  # others that may not carry theirs
    checks: tuple[CheckPower, ...]  # in the order of the policy; empty where nobody said what will be judged
    promotion: Promotion | None
    totals: Totals

    @property
    def blocks_told(self) -> str:
        """`10 blocks`, or `5 to 20 blocks` where the load may be settled before its end."""
        fewest = f"{self.fewest_blocks} to " if self.fewest_blocks < self.blocks else ""
        return f"{fewest}{self.blocks} blocks"

    @property
    def warmup_told(self) -> str:
        """`16 of them warm-up`, or `at least 16 of them warm-up`."""
        return f"{'at least ' if self.warmup_goes_on else ''}{self.warmup_requests:,} of them warm-up"


def preview(
    suite: Suite,
    plan: Plan,
    profile: ClientProfile | None,
    cpus: int,
    judged: Sequence[JudgedCheck] = (),
    known: Known = NOTHING_KNOWN,
) -> Preview:
    """Count a plan, and hold it against the curve of the machine, when there is one, with so many cores.

    `judged` are the policy's checks, `known` is how much the deployments are known to vary.
    """
    demands, arms = stage_demands(plan), len(measured_arms(suite))
    stages = [*plan.warmup, *(stage for block in plan.blocks for stage in block.stages)]
    foretold = foretell(suite, plan, judged, known)
    short = shortfalls(foretold.checks)
    eval_items = sum(len(task.rows) for task in plan.tasks) * _eval_askings(suite)
    shadow_requests = sum(2 if prompt.once else 3 for prompt in plan.shadow)
    return Preview(
        stages=tuple(
            StagePreview(demand, stage.offered, workers_needed(demand, profile) if profile else None)
            for demand, stage in zip(demands, suite.load.sweep if suite.load else (), strict=True)
        ),
        starts=(suite.start.times if suite.start is not None else 0) * arms,
        blocks=len(plan.blocks),
        fewest_blocks=_first_look(suite, len(plan.blocks)),
        arms=arms,
        load_requests=sum(len(stage.foreground) for stage in stages) * arms,
        warmup_requests=sum(len(stage.foreground) for stage in plan.warmup) * arms,
        warmup_goes_on=bool(plan.warmup) and suite.load is not None and suite.load.warmup == "auto",
        ramp_requests=sum(stage.ramp_requests for stage in stages) * arms,
        input_tokens=input_tokens(suite, stages) * arms,
        output_tokens=output_tokens(stages) * arms,
        load_s=schedule_s(stages) * arms,
        load_s_known=all(demand.concurrency is None for demand in demands),
        capacity_requests=_most_searched(suite) * arms,
        eval_items=eval_items,
        to_fetch=tuple(dict.fromkeys(task.needs for task in plan.tasks if task.needs is not None)),
        text_positions=sum(piece.positions for piece in plan.pieces),
        shadow_prompts=len(plan.shadow),
        shadow_requests=shadow_requests,
        judge_requests=_judge_requests(suite, plan),
        similarity_requests=_similarity_requests(suite, plan),
        plan_sha256=plan.sha256,
        client_measured_at=profile.measured_at if profile else None,
        problems=client_problems(suite, plan, profile, cpus),
        unknowns=_client_unknowns(suite, plan, profile, cpus),
        foregone=short.certain,
        refused=short.refused,
        underpowered=short.told,
        checks=foretold.checks,
        promotion=foretold.promotion,
        totals=totals(suite, plan, eval_items + shadow_requests, known.earlier),
    )


def _first_look(suite: Suite, blocks: int) -> int:
    return suite.load.looks[0] if suite.load is not None and suite.load.looks else blocks


def _eval_askings(suite: Suite) -> int:
    """How often an item of an eval is asked: once of each arm, and with `repeat_baseline` of the baseline again."""
    return len(Arm) + (suite.quality is not None and suite.quality.repeat_baseline)


def _judge_requests(suite: Suite, plan: Plan) -> int:
    """Of every pair of answers, in both positions; before them, with benchgate's own prompt, of one to try it out."""
    if suite.shadow is None or suite.shadow.judge is None or not plan.shadow:
        return 0
    tried = 2 if suite.shadow.judge.prompt is None else 0
    return tried + sum(2 if prompt.once else 4 for prompt in plan.shadow)


def _similarity_requests(suite: Suite, plan: Plan) -> int:
    """All answers to a prompt in one request, and one to see whether it tells unlike texts apart."""
    if suite.shadow is None or suite.shadow.similarity is None or not plan.shadow:
        return 0
    return len(plan.shadow) + 1


def _most_searched(suite: Suite) -> int:
    """The requests of one arm's capacity search, did it look at every level it may as long as it may."""
    capacity = suite.load.capacity if suite.load is not None else None
    if capacity is None:
        return 0
    return SearchSettings(
        over=capacity.over,
        lowest=capacity.lowest,
        highest=capacity.highest,
        target_ratio=0.5,  # has no part in it
        resolution_ratio=capacity.resolution_ratio,
        probe_requests=capacity.probe_requests,
        budget_requests=capacity.budget_requests,
    ).most_requests


def client_problems(suite: Suite, plan: Plan, profile: ClientProfile | None, cpus: int) -> tuple[str, ...]:
    """Every stage that asks for more than the load generator delivers here; none where that was never measured."""
    if profile is None:
        return ()
    workers = most_workers(suite, cpus)
    found = (beyond_the_client(demand, profile, workers) for demand in stage_demands(plan))
    return tuple(problem for problem in found if problem is not None)


def _client_unknowns(suite: Suite, plan: Plan, profile: ClientProfile | None, cpus: int) -> tuple[str, ...]:
    """Every stage beyond the largest load that was tried; none where the load generator was never measured.

    A search that may come to more than can be delivered is no problem: mostly it ends before, else it says so itself.
    """
    if profile is None:
        return ()
    workers = most_workers(suite, cpus)
    found = [beyond_the_curve(demand, profile, workers) for demand in stage_demands(plan)]
    for demand in searched_demands(suite):
        found += [beyond_the_client(demand, profile, workers) or beyond_the_curve(demand, profile, workers)]
    return tuple(unknown for unknown in found if unknown is not None)


@dataclass(frozen=True, slots=True)
class Longest:
    """One request: at least `input_tokens` and at most `output_tokens`; of a conversation, with its earlier answers."""

    level: str
    index: int
    input_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """What its context must hold, the few tokens of a chat template aside."""
        return self.input_tokens + self.output_tokens


def longest_request(load: Load, plan: Plan) -> Longest | None:
    """The longest of all blocks, by the words of its texts; None without a request that generates or embeds text."""
    return max(_all(load, plan), key=lambda one: one.tokens, default=None)


def _all(load: Load, plan: Plan) -> Iterator[Longest]:
    letters = {level.name: level.workload.text == "letters" for level in load.levels()}
    for block in plan.blocks:
        for stage in block.stages:
            for group in stage.classes:
                level, answered = stage.observed_as(group), 0
                for request in group.requests:
                    answered = _answered(request, answered)
                    asked = text_tokens(request.ask.content, letters=letters.get(level, False))
                    asked += _marks(request) if load.salt else 0
                    yield Longest(level, request.index, asked + answered, request.ask.output_tokens or 0)
                    answered += request.ask.output_tokens or 0


def _marks(request: PlannedRequest) -> int:
    """The tokens that salting puts in front of recorded texts: once, or in a conversation before each of its turns."""
    turns = 1 if request.turn is None else request.turn.turn + 1
    return turns * MARK_PIECES if request.ask.recorded else 0


def _answered(request: PlannedRequest, so_far: int) -> int:
    """The tokens of the earlier answers that a turn carries on."""
    return so_far if request.turn is not None and request.turn.carries else 0
