"""Preview of a run before anything is sent: requests, tokens, duration, cost, power and client capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS, ModelRequest
from benchgate.plan.check_power import NO_KNOWN_NOISE, CheckPower, EarlierRun, JudgedCheck, KnownNoise
from benchgate.plan.client_demand import (
    StageDemand,
    client_overload,
    client_uncertainty,
    max_workers,
    search_demands,
    stage_demands,
    workers_needed,
)
from benchgate.plan.model import PlannedClass, PlannedStage, VerifiedItem
from benchgate.plan.power import PromotionChance, forecast_power, shortfalls
from benchgate.plan.prompts import prompt_pieces, text_tokens
from benchgate.plan.salt import MARK_PIECES
from benchgate.plan.schedule import Plan
from benchgate.stats.capacity_search import SearchSettings
from benchgate.suite.load import Load
from benchgate.suite.schema import Suite, measured_arms, measured_usd_per_hour, traffic_classes

ASSUMED_TOKENS_PER_S = 30.0  # speed of one answer before any run measured it
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class RunCost:
    """Cost of a run that ends at one look; None where unknown."""

    blocks: int
    requests: int  # at most, of load with minimal warm-up and ramps, evals and shadow comparison
    input_tokens: int  # of the load with ramps, like `output_tokens`
    output_tokens: int
    seconds: float | None
    usd: float | None  # price of the measured deployments in that time, without judges and load generator


@dataclass(frozen=True, slots=True)
class RunCostRange:
    """Least and most cost of a run, equal for a fixed number of blocks; a capacity search counts in `most.requests`."""

    least: RunCost
    most: RunCost
    seconds_from: str | None  # the earlier run, or "schedules" for a lower bound; None if unknown


def estimate_run_cost(suite: Suite, plan: Plan, other_requests: int, earlier: EarlierRun | None) -> RunCostRange:
    """Estimate the cost of a planned run. `other_requests` are those outside of the load."""
    looks = suite.load.looks if suite.load is not None else ()
    least, most = (looks[0], looks[-1]) if looks else (len(plan.blocks), len(plan.blocks))
    alone = suite.start is None and suite.quality is None and suite.divergence is None and suite.shadow is None
    searches = suite.load is not None and suite.load.capacity is not None
    closed = any(group.concurrency is not None for b in plan.blocks for s in b.stages for group in s.classes)
    source = None
    if earlier is not None:
        source = f"run {earlier.run_id}"
    elif alone and not searches and plan.blocks and not closed:  # only open loops, whose time is known
        source = "schedules"
    arms, amounts, hourly_usd = len(measured_arms(suite)), list[RunCost](), measured_usd_per_hour(suite)
    for blocks in dict.fromkeys((least, most)):
        stages = [*plan.warmup, *(stage for block in plan.blocks[:blocks] for stage in block.stages)]
        seconds = None
        if earlier is not None:
            seconds = earlier.seconds(blocks)
        elif source is not None:
            seconds = schedule_s(stages) * arms
        amount = RunCost(
            blocks=blocks,
            requests=sum(stage.foreground + stage.ramp_requests for stage in stages) * arms + other_requests,
            input_tokens=(input_tokens(suite, stages) + _verified_tokens(plan, stages)) * arms,
            output_tokens=output_tokens(stages) * arms,
            seconds=seconds,
            usd=None if seconds is None or hourly_usd is None else hourly_usd * seconds / _SECONDS_PER_HOUR,
        )
        amounts.append(amount)
    most_requests = amounts[-1].requests + _most_searched(suite) * arms
    return RunCostRange(amounts[0], replace(amounts[-1], requests=most_requests), source)


def input_tokens(suite: Suite, stages: Sequence[PlannedStage]) -> int:
    """Estimate the tokens of the prompts: one per short word, or per letter for byte-level models."""
    byte_level = {traffic.name for traffic in traffic_classes(suite) if traffic.workload.text == "letters"}
    return _with_ramp(
        stages, lambda stage, group, ask: text_tokens(ask.content, letters=stage.observed_as(group) in byte_level)
    )


def _verified_tokens(plan: Plan, stages: Sequence[PlannedStage]) -> int:
    """Estimate the tokens of the prompts of eval items, by the words of their rows and of as many examples."""
    sent = {item for stage in stages for item in stage.verified_items}
    total = 0
    for task in plan.tasks if sent else ():
        shots = task.config.get("num_fewshot")
        repeated = 1 + (shots if isinstance(shots, int) else 0)
        total += sum(
            text_tokens(row) * repeated
            for item_id, row in zip(task.item_ids, task.rows, strict=True)
            if VerifiedItem(task.name, item_id) in sent
        )
    return total


def output_tokens(stages: Sequence[PlannedStage]) -> int:
    """Return the largest possible number of output tokens."""
    return _with_ramp(stages, lambda stage, group, ask: ask.output_tokens or 0)


def _with_ramp(
    stages: Sequence[PlannedStage], tokens: Callable[[PlannedStage, PlannedClass, ModelRequest], int]
) -> int:
    """Sum over the requests of foreground classes; a ramp request counts as the mean of its class."""
    total = 0.0
    for stage in stages:
        for group in stage.classes:
            if not group.background and group.requests:
                of_class = sum(tokens(stage, group, request.ask) for request in group.sample) * group.per_sampled
                total += of_class * (1 + (group.ramp.size if group.ramp is not None else 0) / len(group.requests))
    return round(total)


def schedule_s(stages: Sequence[PlannedStage]) -> float:
    """Sum the times from each stage's start to its last planned send; 0 for a closed loop."""
    return sum(max((group.last_send_ns for group in stage.classes), default=0) for stage in stages) * 1e-9


def assumed_load_s(stages: Sequence[PlannedStage]) -> float:
    """Estimate how long the stages take on one arm: schedules, and closed loops at ASSUMED_TOKENS_PER_S a stream."""
    total_s = 0.0
    for stage in stages:
        closed = [
            sum(request.ask.output_tokens or 0 for request in group.sample) * group.per_sampled / group.concurrency
            for group in stage.classes
            if group.concurrency is not None
        ]
        total_s += max([schedule_s([stage]), *(tokens / ASSUMED_TOKENS_PER_S for tokens in closed)])
    return total_s


@dataclass(frozen=True, slots=True)
class StagePreview:
    """Stage of the sweep. `workers` is the number of load generator processes it needs; None if unknown."""

    demand: StageDemand
    offered: str  # formatted
    workers: int | None
    shared_prefix_ratio: float = 0.0  # of its prompts' tokens (`shared_prefix_ratios`)


@dataclass(frozen=True, slots=True)
class Preview:
    """Preview of a run. Requests and tokens are of both sides over all blocks, with the minimal warm-up."""

    stages: tuple[StagePreview, ...]
    starts: int  # server starts on all sides
    blocks: int  # at most
    fewest_blocks: int  # at the first interim look
    arms: int
    load_requests: int
    warmup_requests: int
    warmup_goes_on: bool  # until TTFT no longer falls; `warmup_requests` is then the minimum
    ramp_requests: int  # approximate, of closed loops, not in `load_requests`; open loops' depend on the servers
    input_tokens: int  # with ramps, like `output_tokens`
    output_tokens: int
    load_s: float  # the least: schedules of its open loops, without answers after the last send
    assumed_load_s: float  # at ASSUMED_TOKENS_PER_S a stream, on all sides
    usd_per_hour: float | None  # of all measured deployments; None without a price by the hour
    load_s_known: bool  # False with closed loops, whose speed depends on the servers
    capacity_requests: int  # of all sides at most; 0 without a search
    eval_items: int
    verified_items: int  # of evals, sent among the requests of the load and counted there
    to_fetch: tuple[str, ...]  # eval data sets not on this machine, whose items are not counted
    text_positions: int  # of fixed texts, on each side
    shadow_prompts: int
    shadow_requests: int
    judge_requests: int  # at most: equal answers are not judged
    similarity_requests: int  # to the embeddings endpoint, at most, likewise
    plan_sha256: str
    client_measured_at: str | None  # date of this machine's client profile; None without one
    problems: tuple[str, ...]  # loads beyond this machine's load generator
    unknowns: tuple[str, ...]  # loads that may be beyond it
    foregone: tuple[str, ...]  # required checks that can never pass and may not be underpowered
    refused: tuple[str, ...]  # those, and required checks that measured noise leaves underpowered
    underpowered: tuple[str, ...]  # other checks that may be underpowered
    checks: tuple[CheckPower, ...]  # in the order of the policy; empty without known checks
    promotion: PromotionChance | None
    totals: RunCostRange

    @property
    def block_range(self) -> str:
        """Format the blocks: `10 blocks`, or `5 to 20 blocks` with interim looks."""
        fewest = f"{self.fewest_blocks} to " if self.fewest_blocks < self.blocks else ""
        return f"{fewest}{self.blocks} blocks"


def preview(
    suite: Suite,
    plan: Plan,
    profile: ClientProfile | None,
    cpus: int,
    judged: Sequence[JudgedCheck] = (),
    known: KnownNoise = NO_KNOWN_NOISE,
) -> Preview:
    """Count a plan, forecast the power of the `judged` checks, and compare it with the client profile of a machine."""
    demands, arms = stage_demands(plan), len(measured_arms(suite))
    stages = [*plan.warmup, *(stage for block in plan.blocks for stage in block.stages)]
    foretold = forecast_power(suite, plan, judged, known)
    short = shortfalls(foretold.checks)
    repeats = suite.quality is not None and suite.quality.repeat_baseline
    eval_items = sum(len(task.rows) for task in plan.tasks) * (len(Arm) + repeats)
    shadow_requests = sum(2 if prompt.once else 3 for prompt in plan.shadow)
    judge_requests = similarity_requests = 0
    if suite.shadow is not None and suite.shadow.judge is not None and plan.shadow:
        # Both positions of every pair of answers, and a trial pair for benchgate's own prompt.
        trial = 2 if suite.shadow.judge.prompt is None else 0
        judge_requests = trial + sum(2 if prompt.once else 4 for prompt in plan.shadow)
    if suite.shadow is not None and suite.shadow.similarity is not None and plan.shadow:
        similarity_requests = len(plan.shadow) + 1  # one for all answers to a prompt, one to test unlike texts
    shared = shared_prefix_ratios(plan)
    totals = estimate_run_cost(suite, plan, eval_items + shadow_requests, known.earlier)
    return Preview(
        stages=tuple(
            StagePreview(
                demand,
                stage.offered,
                workers_needed(demand, profile) if profile else None,
                shared.get(stage.name, 0.0),
            )
            for demand, stage in zip(demands, suite.load.sweep if suite.load else (), strict=True)
        ),
        starts=(suite.start.times if suite.start is not None else 0) * arms,
        blocks=len(plan.blocks),
        fewest_blocks=suite.load.looks[0] if suite.load is not None and suite.load.looks else len(plan.blocks),
        arms=arms,
        load_requests=sum(stage.foreground for stage in stages) * arms,
        warmup_requests=sum(stage.foreground for stage in plan.warmup) * arms,
        warmup_goes_on=bool(plan.warmup) and suite.load is not None and suite.load.warmup == "auto",
        ramp_requests=sum(stage.ramp_requests for stage in stages) * arms,
        input_tokens=totals.most.input_tokens,
        output_tokens=totals.most.output_tokens,
        load_s=schedule_s(stages) * arms,
        assumed_load_s=assumed_load_s(stages) * arms,
        usd_per_hour=measured_usd_per_hour(suite),
        load_s_known=all(demand.concurrency is None for demand in demands),
        capacity_requests=_most_searched(suite) * arms,
        eval_items=eval_items,
        verified_items=sum(plan.verified.values()) * arms,
        to_fetch=tuple(dict.fromkeys(task.needs for task in plan.tasks if task.needs is not None)),
        text_positions=sum(piece.positions for piece in plan.pieces),
        shadow_prompts=len(plan.shadow),
        shadow_requests=shadow_requests,
        judge_requests=judge_requests,
        similarity_requests=similarity_requests,
        plan_sha256=plan.sha256,
        client_measured_at=profile.measured_at if profile else None,
        problems=client_problems(suite, plan, profile, cpus),
        unknowns=_client_unknowns(suite, plan, profile, cpus),
        foregone=short.certain,
        refused=short.refused,
        underpowered=short.warnings,
        checks=foretold.checks,
        promotion=foretold.promotion,
        totals=totals,
    )


_CACHE_BLOCK_PIECES = 16  # of a prefix cache, as in vLLM
_ENOUGH_PIECES = 500_000  # of prompts that are read for an estimate


def shared_prefix_ratios(plan: Plan) -> dict[str, float]:
    """Return for each stage the share of its prompts' tokens with which an earlier prompt of the run began.

    A prefix cache without a limit finds as many, in whole blocks of 16 tokens, and those of earlier answers besides.
    """
    known: set[int] = set()
    found: dict[str, list[int]] = {}
    read = 0
    for stages in (plan.warmup, *(block.stages for block in plan.blocks)):
        for stage in stages:
            tally = found.setdefault(stage.name, [0, 0])
            for group in stage.classes:
                for request in group.sample:
                    if ENDPOINTS[request.ask.endpoint].generates:
                        pieces = prompt_pieces(request.ask.content, group.vocabulary)
                        tally[0] += _known_pieces(pieces, hash(request.ask.model), known)
                        tally[1] += len(pieces)
                        read += len(pieces)
        if read > _ENOUGH_PIECES:
            break
    return {name: shared / total if total else 0.0 for name, (shared, total) in found.items()}


def _known_pieces(pieces: Sequence[str], before: int, known: set[int]) -> int:
    """Return with how many pieces an earlier text begins, and remember all beginnings of this one."""
    shared, matches = 0, True
    for end in range(_CACHE_BLOCK_PIECES, len(pieces) + 1, _CACHE_BLOCK_PIECES):
        before = hash((before, *pieces[end - _CACHE_BLOCK_PIECES : end]))
        matches = matches and before in known
        shared += _CACHE_BLOCK_PIECES if matches else 0
        known.add(before)
    return shared


def _most_searched(suite: Suite) -> int:
    capacity = suite.load.capacity if suite.load is not None else None
    if capacity is None:
        return 0
    return SearchSettings(
        over=capacity.over,
        lowest=capacity.lowest,
        highest=capacity.highest,
        target_ratio=0.5,  # irrelevant here
        resolution_ratio=capacity.resolution_ratio,
        probe_requests=capacity.probe_requests,
        budget_requests=capacity.budget_requests,
    ).most_requests


def client_problems(suite: Suite, plan: Plan, profile: ClientProfile | None, cpus: int) -> tuple[str, ...]:
    """Explain every stage beyond this machine's load generator; empty without a profile, and if regions send."""
    if profile is None or suite.regions:
        return ()
    workers = max_workers(suite, cpus)
    found = (client_overload(demand, profile, workers) for demand in stage_demands(plan))
    return tuple(problem for problem in found if problem is not None)


def _client_unknowns(suite: Suite, plan: Plan, profile: ClientProfile | None, cpus: int) -> tuple[str, ...]:
    """Explain every stage that may be beyond this machine's load generator; empty without a profile, or with regions.

    A search with such levels is no problem: usually it ends before, else it reports it.
    """
    if profile is None or suite.regions:
        return ()
    workers = max_workers(suite, cpus)
    found = [client_uncertainty(demand, profile, workers) for demand in stage_demands(plan)]
    for demand in search_demands(suite):
        found += [client_overload(demand, profile, workers) or client_uncertainty(demand, profile, workers)]
    return tuple(unknown for unknown in found if unknown is not None)


@dataclass(frozen=True, slots=True)
class LongestRequest:
    """Longest request: at least `input_tokens` with earlier answers, at most `output_tokens`."""

    level: str
    index: int
    input_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """Return the context length that it needs, without the few tokens of a chat template."""
        return self.input_tokens + self.output_tokens


def longest_request(load: Load, plan: Plan) -> LongestRequest | None:
    """Return the longest request of all blocks by words; None if none generates or embeds text."""
    longest: LongestRequest | None = None
    letters = {traffic.name: traffic.workload.text == "letters" for traffic in load.classes()}
    for block in plan.blocks:
        for stage in block.stages:
            for group in stage.classes:
                level, answered = stage.observed_as(group), 0
                for request in group.sample:
                    if request.turn is None or not request.turn.carries:
                        answered = 0
                    prompt = text_tokens(request.ask.content, letters=letters.get(level, False))
                    if load.salt and request.ask.recorded:  # in a conversation, each turn is marked
                        prompt += MARK_PIECES * (1 if request.turn is None else request.turn.turn + 1)
                    one = LongestRequest(level, request.index, prompt + answered, request.ask.output_tokens or 0)
                    if longest is None or one.tokens > longest.tokens:
                        longest = one
                    answered += one.output_tokens
    return longest
