"""What a plan asks of the load generator, and whether the machine it runs on can deliver that.

Nothing is sent to find out: the schedule of an open loop is known, and so is the curve that `benchgate doctor --client`
measured. How fast a closed loop will go is the servers' to say; of it only the streams in flight are known before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchgate.model.client import ClientProfile
from benchgate.model.records import FloatArray
from benchgate.plan.schedule import Plan, PlannedStage
from benchgate.suite.schema import Suite
from benchgate.units import show_number

_NS = 1e-9
_WINDOW_S = (1.0, 5.0)  # least and most: over as long a time as the client's CPU is judged by


@dataclass(frozen=True, slots=True)
class StageDemand:
    """One stage as it will be asked of each arm in each block; of blocks that differ, the most demanding.

    `offered_rps` is the stated rate, or the mean where it changes; the peaks are over the busiest 5 s of the schedule
    (over all of it where it is shorter, and at least a second). None where a closed loop leaves them to the servers.
    """

    name: str
    requests: int
    concurrency: int | None
    offered_rps: float | None
    peak_rps: float | None
    peak_tokens_per_s: float | None
    duration_s: float | None  # from the start to the last planned send


def stage_demands(plan: Plan) -> tuple[StageDemand, ...]:
    """Every stage of the sweep, in order; empty without a load."""
    if not plan.blocks:
        return ()
    return tuple(_most_demanding(stages) for stages in zip(*(block.stages for block in plan.blocks), strict=True))


def workers_needed(demand: StageDemand, profile: ClientProfile) -> int | None:
    """How many load generator processes a stage needs by the curve; None when no number of them is known to do it.

    Tokens and requests cost the same processor, so what each takes of one worker adds up.
    """
    if demand.concurrency is not None:
        return math.ceil(demand.concurrency / profile.streams) if profile.streams else None
    if not profile.tokens_per_s or not profile.requests_per_s:
        return None
    assert demand.peak_tokens_per_s is not None and demand.peak_rps is not None, "an open loop has rates"
    share = demand.peak_tokens_per_s / profile.tokens_per_s + demand.peak_rps / profile.requests_per_s
    return max(1, math.ceil(share))


def beyond_the_client(demand: StageDemand, profile: ClientProfile, workers: int) -> str | None:
    """Why a stage asks for more than `workers` processes can deliver here, and what to do; None when they can."""
    needed = workers_needed(demand, profile)
    if needed is not None and needed <= workers:
        return None
    can = f"{workers} load generator process{'es' if workers > 1 else ''} on this machine"
    found = f"{_delivers(demand, profile, workers)} (measured {profile.measured_at[:10]})"
    return f"stage {demand.name} asks for {_asked(demand)}, and {can} {found}; {_REMEDY}"


def most_workers(suite: Suite, cpus: int) -> int:
    """How many load generator processes a suite may use: as many as it says, or half the cores.

    A server may live on the others.
    """
    if suite.load is not None and suite.load.workers != "auto":
        return suite.load.workers
    return max(1, cpus // 2)


def chosen_workers(suite: Suite, plan: Plan, profile: ClientProfile, cpus: int) -> int:
    """How many are started for a suite: as many as it says, or what its most demanding stage needs by the curve."""
    most = most_workers(suite, cpus)
    if suite.load is not None and suite.load.workers != "auto":
        return most
    return min(most, max((workers_needed(demand, profile) or most for demand in stage_demands(plan)), default=1))


def _most_demanding(stages: tuple[PlannedStage, ...]) -> StageDemand:
    """The same stage over all blocks, which differ only by chance or by the rows of a trace: the most of each."""
    first, offered = stages[0], [_offered(stage) for stage in stages if stage.concurrency is None]
    rps, tokens, last_s = ([*column] for column in zip(*offered, strict=True)) if offered else ([], [], [])
    return StageDemand(
        name=first.name,
        requests=len(first.requests),
        concurrency=first.concurrency,
        offered_rps=max((stage.rate_rps for stage in stages if stage.rate_rps is not None), default=None),
        peak_rps=max(rps, default=None),
        peak_tokens_per_s=max(tokens, default=None),
        duration_s=max(last_s, default=None),
    )


def _offered(stage: PlannedStage) -> tuple[float, float, float]:
    """Peak requests/s, peak tokens/s and the last planned send in s of an open loop; never below its stated rate."""
    offsets_s = np.array([(request.offset_ns or 0) * _NS for request in stage.requests])
    tokens = np.array([float(request.output_tokens) for request in stage.requests])
    mean_rps = stage.rate_rps or 0.0
    rps, tokens_per_s = max(_peak(offsets_s, np.ones(len(tokens))), mean_rps), _peak(offsets_s, tokens)
    return rps, max(tokens_per_s, mean_rps * float(tokens.mean())), float(offsets_s.max())


def _peak(offsets_s: FloatArray, weights: FloatArray) -> float:
    """The most weight per second in any window; offsets ascend."""
    window_s = float(np.clip(np.ptp(offsets_s), *_WINDOW_S))
    before = np.concatenate([[0.0], np.cumsum(weights)])
    ends = np.searchsorted(offsets_s, offsets_s + window_s, side="left")
    return float((before[ends] - before[np.arange(len(offsets_s))]).max()) / window_s


def _asked(demand: StageDemand) -> str:
    if demand.concurrency is not None:
        return f"{demand.concurrency:,} streams in flight"
    tokens, requests = demand.peak_tokens_per_s or 0.0, demand.peak_rps or 0.0
    return f"up to {show_number(tokens)} tokens/s in {show_number(requests)} requests/s"


def _delivers(demand: StageDemand, profile: ClientProfile, workers: int) -> str:
    if demand.concurrency is not None:
        if profile.streams is None:
            return "cannot serve any number of streams without being the bottleneck"
        return f"can serve {workers * profile.streams:,} and no more"
    if not profile.tokens_per_s or not profile.requests_per_s:
        return "cannot keep up with any rate"
    tokens, requests = workers * profile.tokens_per_s, workers * profile.requests_per_s
    return f"can deliver at most {show_number(tokens)} tokens/s, or {show_number(requests)} requests/s of one token"


_REMEDY = (
    "lower the load, use a machine with more cores, or measure this one again while nothing else runs on it "
    "(`benchgate doctor --client`)"
)
