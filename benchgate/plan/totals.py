"""What a run takes, from the first look at its load to the last: requests, tokens, time, money."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchgate.model.ask import Ask
from benchgate.plan.asks import text_tokens
from benchgate.plan.judged import Earlier
from benchgate.plan.planned import PlannedClass, PlannedStage
from benchgate.plan.schedule import Plan
from benchgate.suite.arms import measured_arms
from benchgate.suite.schema import Suite

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
