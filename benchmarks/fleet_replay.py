"""Waits in the fleet simulation against queueing theory, and against replicas behind a router.

    .venv/bin/python -m benchmarks.fleet_replay [--requests 2000] [--repeats 3]

First the mean wait of the M/M/c queue (Erlang), two million requests each. Then `benchgate sim`: three replicas of four
slots each behind a round-robin router, open Poisson load at 85 % of their capacity. The simulation gets the same
arrivals, and the time that each response took once it had its slot.
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

_REPLICAS, _SLOTS = 3, 4
_TOKENS, _STEP_S = (50, 200), 0.004
_LOAD = 0.85
_MOST_OFF_FORMULA, _MOST_OFF_SIM = 0.03, 0.10


def against_formula(requests: int) -> bool:
    """Print a row for each queue and return True if all agree."""
    held = True
    for per_s, slots in ((0.5, 1), (6.4, 8), (25.6, 32)):
        generator = np.random.default_rng(slots)
        arrivals = np.cumsum(generator.exponential(1 / per_s, requests))
        found = simulate_traffic(
            arrivals, generator.exponential(1.0, requests), Scaling(slots, 1, 1), float(arrivals[-1])
        )
        expected, seen = erlang_c_wait_s(per_s, 1.0, slots), float(found.waits_s.mean())
        off = seen / expected - 1
        held &= abs(off) <= _MOST_OFF_FORMULA
        said = f"formula {expected:8.4f} s  simulated {seen:8.4f} s  {off:+6.1%}"
        print(f"M/M/{slots:<3} load {per_s / slots:4.0%}  {said}")
    return held


def asked(requests: int, seed: int) -> tuple[float, float]:
    """Return the mean wait for a slot in seconds, on the simulated server and in the fleet simulation."""
    generator = np.random.default_rng(seed)
    per_s = _LOAD * _REPLICAS * _SLOTS / (sum(_TOKENS) / 2 * _STEP_S)
    due_ns = np.cumsum(generator.exponential(1e9 / per_s, requests)).astype(np.int64)
    costs = {"prefill_s": 1e-6, "decode_s": _STEP_S, "decode_per_sequence_s": 0.0}
    with serve_sim(sim_settings(**costs, batch=_SLOTS, replicas=_REPLICAS)) as sim:
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
    # A request with a slot gets its first token at the end of a step of the whole batch. The fastest TTFT does not
    # measure that: the few requests at an empty replica had no step to wait for.
    services = ((last_ns - first_ns) / 1e9 + _STEP_S)[order]
    fleet = Scaling(_SLOTS, _REPLICAS, _REPLICAS, balancer=Balancer.ROUND_ROBIN)
    found = simulate_traffic(arrivals, services, fleet, float(arrivals[-1]))
    return float(np.maximum(ttft_s - _STEP_S, 0).mean()), float(found.waits_s.mean())


def main() -> int:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="to the simulated server, each time")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    held = against_formula(2_000_000)
    off = []
    for seed in range(options.repeats):
        seen_s, simulated_s = asked(options.requests, seed)
        off.append(simulated_s / seen_s - 1)
        said = f"measured {seen_s:7.4f} s  simulated {simulated_s:8.4f} s  {off[-1]:+6.1%}"
        print(f"{_REPLICAS} x {_SLOTS}   load {_LOAD:4.0%}  {said}")
    middle = statistics.median(off)
    held &= abs(middle) <= _MOST_OFF_SIM
    print(f"median of {options.repeats}: {middle:+.1%}; {'held' if held else 'MISSED'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
