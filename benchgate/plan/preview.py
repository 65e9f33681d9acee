"""What a run would ask, counted from its plan before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm
from benchgate.plan.demand import (
    StageDemand,
    beyond_the_client,
    beyond_the_curve,
    most_workers,
    searched_demands,
    stage_demands,
    workers_needed,
)
from benchgate.plan.judged import NOTHING_KNOWN, JudgedCheck, Known
from benchgate.plan.power import Promotion, foretell
from benchgate.plan.power_row import CheckPower
from benchgate.plan.refusals import shortfalls
from benchgate.plan.schedule import Plan
from benchgate.plan.totals import Totals, input_tokens, output_tokens, schedule_s, totals
from benchgate.stats.search import SearchSettings
from benchgate.suite.arms import measured_arms
from benchgate.suite.schema import Suite


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
