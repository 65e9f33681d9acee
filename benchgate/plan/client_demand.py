"""Demand of a plan on the load generator, compared with the profile of this machine.

The schedule of an open loop is known, and so is the client profile measured by `benchgate doctor --client`, or else a
usual one. The rate of a closed loop depends on the servers; only its streams in flight are known in advance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchgate.model.client import ClientProfile, ClientStep
from benchgate.model.records import FloatArray
from benchgate.plan.model import GeneratedRequests, PlannedRequest
from benchgate.suite.load import CAPACITY_STAGE
from benchgate.units import show_number

if TYPE_CHECKING:
    from benchgate.plan.model import PlannedStage
    from benchgate.plan.schedule import Plan
    from benchgate.suite.schema import Suite

_NS = 1e-9
_COST_FALLS = 4.0  # tolerated fall of CPU cost per token with load; a third was seen from 50 to 1,000 streams
_WINDOW_S = (1.0, 5.0)  # least and most, as for the client's CPU share
_REMEDY = (
    "lower the load, give it more processes where there are cores for them (`load.workers`) or other machines "
    "(`--cluster`), or measure this one again while nothing else runs on it (`benchgate doctor --client`)"
)
_UNKNOWN_REMEDY = "the run itself will say whether the client was the bottleneck; other machines help (`--cluster`)"


@dataclass(frozen=True, slots=True)
class StageDemand:
    """Demand of one stage on each side, all classes together, in the most demanding block."""

    name: str
    requests: int
    concurrency: int | None
    offered_rps: float | None  # the stated rate, or its mean if it varies
    peak_rps: float | None  # in the busiest 5 s, or all of a shorter schedule; None for a closed loop
    peak_tokens_per_s: float | None  # likewise
    duration_s: float | None  # from the start to the last planned send


def stage_demands(plan: Plan) -> tuple[StageDemand, ...]:
    """Return the demand of every stage of the sweep, in order; empty without a load."""
    demands = []
    # The blocks differ only by chance or by trace rows: the maximum of each value counts.
    for stages in zip(*(block.stages for block in plan.blocks), strict=True):
        first = stages[0]
        offered = [_offered(stage) for stage in stages if any(group.concurrency is None for group in stage.classes)]
        rps, tokens, last_s = ([*column] for column in zip(*offered, strict=True)) if offered else ([], [], [])
        demand = StageDemand(
            name=first.name,
            requests=first.foreground,
            concurrency=sum(group.concurrency or 0 for group in first.classes) or None,
            offered_rps=max((_stated_rps(stage) for stage in stages), default=0.0) or None,
            peak_rps=max(rps, default=None),
            peak_tokens_per_s=max(tokens, default=None),
            duration_s=max(last_s, default=None),
        )
        demands.append(demand)
    return tuple(demands)


def workers_needed(demand: StageDemand, profile: ClientProfile) -> int | None:
    """Return the processes that a stage needs by the profile; None if no number is known to suffice."""
    return _workers_for(share for share, _ in _shares(demand, profile))


def client_overload(demand: StageDemand, profile: ClientProfile, workers: int) -> str | None:
    """Explain why a stage is shown to exceed `workers` processes on this machine, with a remedy; None if it is not."""
    # A measured series shows it that ended with the client as the bottleneck; otherwise the measured CPU costs decide,
    # as no process has more than one core.
    least = _workers_for(share for share, limited in _shares(demand, profile) if limited)
    if least is not None and least <= workers:
        costs = ((demand.peak_tokens_per_s, profile.least_cpu_us_per_token, "a token"),
                 (demand.peak_rps, profile.least_cpu_us_per_request, "an answer of one token"))  # fmt: skip
        for per_s, cost_us, of in costs:
            cores = (per_s or 0.0) * (cost_us or 0.0) * 1e-6
            if cores > _COST_FALLS * workers:
                took = f"{of} took {show_number(cost_us or 0.0)} µs of processor time at least{_measured(profile)}"
                need = f"this is the work of {show_number(cores)} cores, and {_processes(workers)} can have {workers}"
                return f"stage {demand.name} asks for {_requested(demand)}: {took}, so {need}; {_REMEDY}"
        return None
    reached = _reached(demand, profile, workers)
    able = f"can deliver {reached}, beyond which the client" if reached else "cannot deliver any load: the client"
    found = f"{_processes(workers)} {able} was the bottleneck"
    return f"stage {demand.name} asks for {_requested(demand)}, and {found}{_measured(profile)}; {_REMEDY}"


def client_uncertainty(demand: StageDemand, profile: ClientProfile, workers: int) -> str | None:
    """Explain why it is unknown if `workers` processes suffice for a stage; None if it is known."""
    needed = workers_needed(demand, profile)
    if (needed is not None and needed <= workers) or client_overload(demand, profile, workers) is not None:
        return None
    reached = _reached(demand, profile, workers)
    known = f"what {_processes(workers)} can deliver is not known" + (f" beyond {reached}" if reached else "")
    return f"stage {demand.name} asks for {_requested(demand)}, and {known}{_measured(profile)}; {_UNKNOWN_REMEDY}"


def max_workers(suite: Suite, cpus: int) -> int:
    """Return the most load generator processes that can run at a time: those of the suite, at most the cores."""
    if suite.load is not None and suite.load.workers != "auto":
        return min(suite.load.workers, cpus)
    return default_workers(cpus)


def default_workers(cpus: int) -> int:
    """Return the default limit of processes: half the cores, because a server may run on the others."""
    return max(1, cpus // 2)


def chosen_workers(suite: Suite, plan: Plan, profile: ClientProfile | None, cpus: int) -> int:
    """Return the processes started for a suite: its own number, or what its stages need."""
    if suite.load is not None and suite.load.workers != "auto":
        return suite.load.workers
    return workers_to_start([*stage_demands(plan), *search_demands(suite)], profile, max_workers(suite, cpus))


def search_demands(suite: Suite) -> list[StageDemand]:
    """Return the demand of a capacity search at its highest level."""
    capacity = suite.load.capacity if suite.load is not None else None
    if suite.load is None or capacity is None:
        return []
    workload, requests = suite.load.workloads.get(capacity.workload or "", suite.load.workload), capacity.probe_requests
    if capacity.over == "concurrency":
        return [StageDemand(CAPACITY_STAGE, requests, int(capacity.highest), None, None, None, None)]
    tokens_per_s = capacity.highest * (workload.most_output_tokens or 1)
    rps = capacity.highest
    return [StageDemand(CAPACITY_STAGE, requests, None, rps, rps, tokens_per_s, requests / rps)]


def workers_to_start(demands: Sequence[StageDemand], profile: ClientProfile | None, most: int) -> int:
    """Return the processes of the most demanding stage, from 1 to `most`; without a profile by the usual cost."""
    curve = USUAL_CLIENT if profile is None else profile
    return max(1, min(most, max((workers_needed(demand, curve) or most for demand in demands), default=1)))


def _stated_rps(stage: PlannedStage) -> float:
    return sum(group.rate_rps or 0.0 for group in stage.classes)


def _offered(stage: PlannedStage) -> tuple[float, float, float]:
    """Return peak requests/s, peak tokens/s and last planned send (s) of open loops, at least the stated rate.

    Later turns of a conversation have no schedule and count at the time of the first one. An answer in one piece costs
    the client as much as one token.
    """
    sends: list[tuple[float, float]] = []
    last_s = 0.0
    for group in stage.classes:
        if isinstance(group.requests, GeneratedRequests) and group.concurrency is None:  # by its first million sends
            last_s = max(last_s, group.last_send_ns * _NS)
            each = float(np.mean([_tokens(request) for request in group.sample]))
            sends += [(ns * _NS, each) for ns in next(group.requests.offset_blocks_ns()).tolist()]
            continue
        begun_ns = 0
        for request in group.requests if group.concurrency is None else ():
            begun_ns = begun_ns if request.offset_ns is None else request.offset_ns
            sends.append((begun_ns * _NS, _tokens(request)))
    offsets_s, tokens = np.array(sorted(sends)).T
    mean_rps = _stated_rps(stage)
    rps, tokens_per_s = max(_peak(offsets_s, np.ones(len(tokens))), mean_rps), _peak(offsets_s, tokens)
    return rps, max(tokens_per_s, mean_rps * float(tokens.mean())), max(last_s, float(offsets_s.max()))


def _tokens(request: PlannedRequest) -> float:
    return float((request.ask.output_tokens or 1) if request.ask.stream else 1)


def _peak(offsets_s: FloatArray, weights: FloatArray) -> float:
    """Return the most weight per second in any window; offsets ascend."""
    window_s = float(np.clip(np.ptp(offsets_s), *_WINDOW_S))
    before = np.concatenate([[0.0], np.cumsum(weights)])
    ends = np.searchsorted(offsets_s, offsets_s + window_s, side="left")
    return float((before[ends] - before[np.arange(len(offsets_s))]).max()) / window_s


def _requested(demand: StageDemand) -> str:
    load = [] if demand.concurrency is None else [f"{demand.concurrency:,} streams in flight"]
    if demand.peak_tokens_per_s is not None and demand.peak_rps is not None:
        tokens_per_s = show_number(demand.peak_tokens_per_s)
        load.append(f"up to {tokens_per_s} tokens/s in {show_number(demand.peak_rps)} requests/s")
    return " and ".join(load)


def _shares(demand: StageDemand, profile: ClientProfile) -> list[tuple[float, bool]]:
    """Return what share of a worker tokens (or streams) and requests take, each with True if its limit is known."""
    shares: list[tuple[float, bool]] = []
    if demand.concurrency is not None:
        shares.append((_load_share(demand.concurrency, profile.streams), profile.streams_limited))
    if demand.peak_tokens_per_s is not None and demand.peak_rps is not None:
        shares.append((_load_share(demand.peak_tokens_per_s, profile.tokens_per_s), profile.streams_limited))
        shares.append((_load_share(demand.peak_rps, profile.requests_per_s), profile.requests_limited))
    assert shares, "a closed loop has streams, an open one rates"
    return shares


def _load_share(demand: float, possible: float | None) -> float:
    return demand / possible if possible else math.inf


def _workers_for(shares: Iterable[float]) -> int | None:
    """Sum shares of a worker to whole workers; None when no number is enough."""
    share = sum(shares)
    return None if math.isinf(share) else max(1, math.ceil(share))


# Profile of an unmeasured machine: about half of what one process handles on an average machine without delay.
_USUAL_STEPS = (
    ClientStep(256, 256, 25_000, None, None, None, None, ()),
    ClientStep(None, 1_000, 1_000, None, None, None, None, ()),
)
USUAL_CLIENT = ClientProfile("", {}, _USUAL_STEPS)


def _processes(workers: int) -> str:
    return f"{workers} load generator process{'es' if workers > 1 else ''} on this machine"


def _measured(profile: ClientProfile) -> str:
    return f" (measured {profile.measured_at[:10]})"


def _reached(demand: StageDemand, profile: ClientProfile, workers: int) -> str | None:
    """Format the load that `workers` processes deliver by the largest sound steps; None without one."""
    able = []
    if demand.concurrency is not None and (streams := workers * (profile.streams or 0)):
        able.append(f"{streams:,} stream{'s' if streams > 1 else ''}")
    if demand.peak_rps is None:
        return able[0] if able else None
    if profile.tokens_per_s:
        able.append(f"{show_number(workers * profile.tokens_per_s)} tokens/s")
    if profile.requests_per_s:
        able.append(f"{show_number(workers * profile.requests_per_s)} requests/s of one token")
    return ", or ".join(able) or None
