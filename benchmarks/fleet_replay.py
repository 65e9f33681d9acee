"""Does a replayed fleet wait as real ones do? Against queueing theory, and against replicas behind a router.

    .venv/bin/python -m benchmarks.fleet_replay [--requests 2000] [--repeats 3]

First `cost.replay` beside the mean wait of the M/M/c queue (Erlang), two million requests each. Then it replays what
`benchgate sim` was asked: three replicas of four places each behind a router that gives requests out in turn, open
Poisson load at 85 % of what they carry; the same arrivals, and the time that each answer took once it had its place.
Exits 1 when a mean wait of the first differs by more than 3 %, or the median of the second by more than 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import numpy as np

from benchgate.load.shards import stage_shard
from benchgate.load.workers import run_shard
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT
from benchgate.model.request import text_request
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.sizing.simulation import Balancer, Scaling, simulate_traffic
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target
from benchmarks.queueing import erlang_c_wait_s

_REPLICAS, _PLACES = 3, 4
_TOKENS, _STEP_S = (50, 200), 0.004
_LOAD = 0.85
_MOST_OFF_FORMULA, _MOST_OFF_SIM = 0.03, 0.10


def against_formula(requests: int) -> bool:
    """One row a queue; whether all agree."""
    held = True
    for per_s, places in ((0.5, 1), (6.4, 8), (25.6, 32)):
        generator = np.random.default_rng(places)
        arrivals = np.cumsum(generator.exponential(1 / per_s, requests))
        found = simulate_traffic(
            arrivals, generator.exponential(1.0, requests), Scaling(places, 1, 1), float(arrivals[-1])
        )
        expected, seen = erlang_c_wait_s(per_s, 1.0, places), float(found.waits_s.mean())
        off = seen / expected - 1
        held &= abs(off) <= _MOST_OFF_FORMULA
        said = f"formula {expected:8.4f} s  replayed {seen:8.4f} s  {off:+6.1%}"
        print(f"M/M/{places:<3} load {per_s / places:4.0%}  {said}")
    return held


def asked(requests: int, seed: int) -> tuple[float, float]:
    """Mean wait for a place, in seconds, of requests to the practice server and of the same replayed."""
    generator = np.random.default_rng(seed)
    per_s = _LOAD * _REPLICAS * _PLACES / (sum(_TOKENS) / 2 * _STEP_S)
    due_ns = np.cumsum(generator.exponential(1e9 / per_s, requests)).astype(np.int64)
    costs = {"prefill_s": 1e-6, "decode_s": _STEP_S, "decode_per_sequence_s": 0.0}
    with serve_sim(sim_settings(**costs, batch=_PLACES, replicas=_REPLICAS)) as sim:
        each = [
            PlannedRequest(i, int(at), text_request("chat", f"prompt {i}", int(generator.integers(*_TOKENS))), i)
            for i, at in enumerate(due_ns)
        ]
        stage = PlannedStage.of("open", None, per_s, tuple(each))
        target = Target(Arm.CANDIDATE, sim.url, "sim", DIALECTS["vllm"], None)
        columns = run_shard(stage_shard(target, stage, limits=Limits())).requests
    if np.any(columns.sent_ns == ABSENT) or np.any(columns.output_tokens < _TOKENS[0]):
        sys.exit("not every request was answered")
    first_ns = columns.chunk_ns[columns.chunk_start[:-1]]
    last_ns = columns.chunk_ns[columns.chunk_start[1:] - 1]
    ttft_s = (first_ns - columns.sent_ns) / 1e9
    order = np.argsort(columns.sent_ns)
    arrivals = ((columns.sent_ns - columns.sent_ns.min()) / 1e9)[order]
    # Who has its place gets its first token with the end of a step of all that are inside. What the quickest got it in
    # is no measure of that: the few who came to an empty replica had no step to wait for.
    services = ((last_ns - first_ns) / 1e9 + _STEP_S)[order]
    fleet = Scaling(_PLACES, _REPLICAS, _REPLICAS, balancer=Balancer.ROUND_ROBIN)
    found = simulate_traffic(arrivals, services, fleet, float(arrivals[-1]))
    return float(np.maximum(ttft_s - _STEP_S, 0).mean()), float(found.waits_s.mean())


def main() -> int:
    """Both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="to the practice server, each time")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    held = against_formula(2_000_000)
    off = []
    for seed in range(options.repeats):
        seen_s, replayed_s = asked(options.requests, seed)
        off.append(replayed_s / seen_s - 1)
        said = f"measured {seen_s:7.4f} s  replayed {replayed_s:8.4f} s  {off[-1]:+6.1%}"
        print(f"{_REPLICAS} x {_PLACES}   load {_LOAD:4.0%}  {said}")
    middle = statistics.median(off)
    held &= abs(middle) <= _MOST_OFF_SIM
    print(f"median of {options.repeats}: {middle:+.1%}; {'held' if held else 'MISSED'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
