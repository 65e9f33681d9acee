"""What a plan asks of the load generator, and whether the machine it runs on can deliver that.

Nothing is sent to find out: the schedule of an open loop is known, and so is the curve that `benchgate doctor --client`
measured. How fast a closed loop will go is the servers' to say; of it only the streams in flight are known before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    return _whole(share for share, _ in _shares(demand, profile))


def beyond_the_client(demand: StageDemand, profile: ClientProfile, workers: int) -> str | None:
    """Why a stage asks for more than `workers` processes can deliver here, and what to do; None when that is not known.

    Only a series that ended with the client as the bottleneck says what is too much.
    """
    least = _whole(share for share, limited in _shares(demand, profile) if limited)
    if least is not None and least <= workers:
        return None
    reached = _reached(demand, profile, workers)
    able = f"can deliver {reached}, beyond which the client" if reached else "cannot deliver any load: the client"
    found = f"{_processes(workers)} {able} was the bottleneck"
    return f"stage {demand.name} asks for {_asked(demand)}, and {found}{_measured(profile)}; {_REMEDY}"


def beyond_the_curve(demand: StageDemand, profile: ClientProfile, workers: int) -> str | None:
    """Why it is not known whether `workers` processes here can deliver a stage; None when it is."""
    needed = workers_needed(demand, profile)
    if (needed is not None and needed <= workers) or beyond_the_client(demand, profile, workers) is not None:
        return None
    reached = _reached(demand, profile, workers)
    known = f"what {_processes(workers)} can deliver is not known" + (f" beyond {reached}" if reached else "")
    return f"stage {demand.name} asks for {_asked(demand)}, and {known}{_measured(profile)}; {_UNKNOWN_REMEDY}"


def most_workers(suite: Suite, cpus: int) -> int:
    """How many load generator processes can work at a time: as many as the suite says and there are cores.

    Without a word of the suite half the cores: a server may live on the others.
    """
    if suite.load is not None and suite.load.workers != "auto":
        return min(suite.load.workers, cpus)
    return max(1, cpus // 2)


def chosen_workers(suite: Suite, plan: Plan, profile: ClientProfile, cpus: int) -> int:
    """How many are started for a suite: as many as it says, or what its most demanding stage needs by the curve."""
    if suite.load is not None and suite.load.workers != "auto":
        return suite.load.workers
    most = most_workers(suite, cpus)
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


def _shares(demand: StageDemand, profile: ClientProfile) -> list[tuple[float, bool]]:
    """What tokens (or streams) and requests take of one worker, each with whether the curve knows its limit."""
    if demand.concurrency is not None:
        return [(_part(demand.concurrency, profile.streams), profile.streams_limited)]
    assert demand.peak_tokens_per_s is not None and demand.peak_rps is not None, "an open loop has rates"
    return [
        (_part(demand.peak_tokens_per_s, profile.tokens_per_s), profile.streams_limited),
        (_part(demand.peak_rps, profile.requests_per_s), profile.requests_limited),
    ]


def _part(asked: float, possible: float | None) -> float:
    return asked / possible if possible else math.inf


def _whole(shares: Iterable[float]) -> int | None:
    """Shares of a worker as workers; None when no number of them is enough."""
    share = sum(shares)
    return None if math.isinf(share) else max(1, math.ceil(share))


def _processes(workers: int) -> str:
    return f"{workers} load generator process{'es' if workers > 1 else ''} on this machine"


def _measured(profile: ClientProfile) -> str:
    return f" (measured {profile.measured_at[:10]})"


def _reached(demand: StageDemand, profile: ClientProfile, workers: int) -> str | None:
    """What so many workers deliver by the largest sound steps; None where there is none."""
    if demand.concurrency is not None:
        streams = workers * (profile.streams or 0)
        return f"{streams:,} stream{'s' if streams > 1 else ''}" if streams else None
    able = []
    if profile.tokens_per_s:
        able.append(f"{show_number(workers * profile.tokens_per_s)} tokens/s")
    if profile.requests_per_s:
        able.append(f"{show_number(workers * profile.requests_per_s)} requests/s of one token")
    return ", or ".join(able) or None


_REMEDY = (
    "lower the load, give it more processes where there are cores for them (`load.workers`) or other machines "
    "(`--cluster`), or measure this one again while nothing else runs on it (`benchgate doctor --client`)"
)
_UNKNOWN_REMEDY = "the run itself will say whether the client was the bottleneck; other machines help (`--cluster`)"
