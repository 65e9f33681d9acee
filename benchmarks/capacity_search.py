"""Does the capacity search find what is there, and what does it cost? Against the practice engine, in virtual time.

The engine of `benchgate.sim` is driven without sockets and clocks: requests come as a Poisson process, each look of the
search meets an engine that is empty at first, and instants are exact. Two servers: one whose token pace is the SLO that
breaks first, one whose queue is. The true capacity is found by bisection over runs of 400,000 requests.

Prints, for each server: the share of the seeds whose bracket holds the truth, how the searches stopped, the requests
they sent, and what a fixed grid of the same resolution with as many requests at every level would send.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchgate.model.metric import Slo
from benchgate.model.records import RequestColumns, RequestRecord, TokenSource
from benchgate.model.request_metrics import meets_slo
from benchgate.sim.engine import Due, Engine, Job
from benchgate.sim.settings import sim_settings
from benchgate.stats.capacity_search import (
    FinishedLook,
    SearchResult,
    SearchSettings,
    StopReason,
    look_counts,
    next_look,
    search_result,
)
from benchgate.suite.simulator import SimSettings

_NS = 1_000_000_000
_LONG = 400_000  # requests of one run that looks for the truth
_SETTLED = 4_000  # of them at its beginning, which do not count
_TARGET = 0.95


@dataclass(frozen=True, slots=True)
class Server:
    """A server with an SLO, and the capacity that `--truth` found for it."""

    name: str
    costs: SimSettings
    input_tokens: int
    output_tokens: int
    slo: Slo
    true_rps: float


SERVERS = (
    Server(
        "token pace breaks first",
        sim_settings(prefill_s=0.0001, decode_s=0.008, decode_per_sequence_s=0.0008, batch=64),
        input_tokens=50,
        output_tokens=32,
        slo=Slo(ttft_s=1.0, tpot_s=0.025),
        true_rps=16.91,
    ),
    Server(
        "queue breaks first",
        sim_settings(prefill_s=0.0001, decode_s=0.008, decode_per_sequence_s=0.0003, batch=8),
        input_tokens=50,
        output_tokens=32,
        slo=Slo(ttft_s=0.5, tpot_s=0.1),
        true_rps=19.03,
    ),
)


def ask(server: Server, rate_rps: float, requests: int, seed: tuple[int, ...]) -> RequestColumns:
    """So many requests to an empty engine, and what a client without any delay of its own would have seen."""
    generator = np.random.default_rng(seed)
    due_ns = np.rint(np.cumsum(generator.exponential(1 / rate_rps, size=requests)) * _NS).astype(int).tolist()
    engine = Engine(server.costs, random.Random(str(seed)))
    first_ns, last_ns = [0] * requests, [0] * requests

    def note(dues: list[Due]) -> None:
        for due in dues:
            first_ns[due.job.order] = first_ns[due.job.order] or due.at_ns
            last_ns[due.job.order] = due.at_ns

    room = server.input_tokens + server.output_tokens
    for order, at_ns in enumerate(due_ns):
        note(list(engine.take(at_ns)))
        job = Job(order, at_ns, server.input_tokens, server.output_tokens, room, lambda tokens, due_ns: None)
        engine.admit(job, at_ns)
    while (next_ns := engine.due_ns()) is not None:
        note(list(engine.take(next_ns)))
    return RequestColumns.pack(
        [answered(server, order, due_ns[order], first_ns[order], last_ns[order]) for order in range(requests)]
    )


def answered(server: Server, order: int, due_ns: int, first_ns: int, last_ns: int) -> RequestRecord:
    """What a client without any delay of its own keeps of one request."""
    return RequestRecord(
        index=order,
        intended_ns=due_ns,
        sent_ns=due_ns,
        chunk_ns=(first_ns, last_ns),
        end_ns=last_ns,
        input_tokens=server.input_tokens,
        output_tokens=server.output_tokens,
        token_source=TokenSource.USAGE,
        finish_reason="length",
        http_status=200,
        error=None,
        error_detail=None,
    )


def search(server: Server, settings: SearchSettings, seed: int) -> SearchResult:
    """One whole search."""
    looks: list[FinishedLook] = []
    while not isinstance(step := next_look(settings, looks), StopReason):
        columns = ask(server, step.level, step.requests, (seed, len(looks)))
        counts = look_counts(columns, server.slo, None, step.requests)
        assert counts is not None, "an open loop with requests has a window"
        looks.append(FinishedLook(step.level, step.requests, counts))
    return search_result(settings, looks)


def holds(result: SearchResult, true_rps: float) -> bool:
    """Whether the capacity is inside the bracket; an end that was not found is no bound."""
    return (result.lower or 0.0) <= true_rps <= (result.upper or math.inf)


def grid_levels(settings: SearchSettings) -> int:
    """The levels of a fixed grid that is as fine as the search's resolution."""
    return math.ceil(math.log(settings.highest / settings.lowest) / math.log1p(settings.resolution_ratio)) + 1


def true_capacity(server: Server, low_rps: float, high_rps: float) -> float:
    """By bisection until the bracket is narrower than half a per cent."""
    while high_rps / low_rps > 1.005:
        middle = math.sqrt(low_rps * high_rps)
        settled = meets_slo(ask(server, middle, _LONG, (7, 7)), server.slo)[_SETTLED:]
        low_rps, high_rps = (middle, high_rps) if settled.mean() >= _TARGET else (low_rps, middle)
    return math.sqrt(low_rps * high_rps)


def _report(server: Server, settings: SearchSettings, seeds: int) -> None:
    results = [search(server, settings, seed) for seed in range(seeds)]
    held = sum(holds(result, server.true_rps) for result in results)
    sent = [result.sent for result in results]
    widths = [result.upper / result.lower for result in results if result.upper and result.lower]
    grid = grid_levels(settings) * settings.probe_requests
    print(f"{server.name}: true capacity {server.true_rps:g}/s")
    print(f"  bracket holds it in {held} of {seeds} seeds; its ends are a factor {np.median(widths):.2f} apart")
    print(f"  stopped: {dict(Counter(str(result.stop) for result in results))}")
    print(f"  requests: {np.mean(sent):,.0f} on average, at most {max(sent):,}")
    print(f"  fixed grid: {grid_levels(settings)} levels x {settings.probe_requests:,} = {grid:,}; ", end="")
    print(f"the search takes {np.mean(sent) / grid:.0%} of that")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--probe", type=int, default=4000, help="most requests at one level")
    parser.add_argument("--resolution", type=float, default=0.1)
    parser.add_argument("--truth", action="store_true", help="find the true capacities again; takes minutes")
    chosen = parser.parse_args()
    if chosen.truth:
        for server in SERVERS:
            print(f"{server.name}: {true_capacity(server, server.true_rps * 0.9, server.true_rps * 1.1):.2f}/s")
        return
    settings = SearchSettings("rate", 1.0, 64.0, _TARGET, chosen.resolution, chosen.probe)
    for server in SERVERS:
        _report(server, settings, chosen.seeds)


if __name__ == "__main__":
    main()
