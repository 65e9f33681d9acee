"""The knee of servers whose slots are known: the practice engine in virtual time, the embedded one over sockets."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.embedded.server import serve
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import fleet_of, send_load, target_of
from benchgate.model import request_metrics
from benchgate.model.records import RequestColumns
from benchgate.sim.engine import Engine, Job
from benchgate.sim.settings import sim_settings
from benchgate.stats.knee import Curve, NoKnee, ServerKnee, find_server_knee
from benchgate.suite.deployment import Embedded
from benchmarks.capacity_search import SERVERS, Server, answered

Stage = tuple[RequestColumns, float]


def knee_of(levels: Sequence[int], stages: Sequence[Stage]) -> ServerKnee | NoKnee:
    """Of one sweep."""
    rates = [request_metrics.output_tokens_per_s(columns, window_s) or 0.0 for columns, window_s in stages]
    decoding = [request_metrics.mean_decoding_requests(columns, window_s) or 0.0 for columns, window_s in stages]
    waits = [request_metrics.quantile(request_metrics.e2e_s(columns), 0.5) or 0.0 for columns, _ in stages]
    return find_server_knee(levels, rates, decoding, waits)


def closed_loop(server: Server, clients: int, requests: int) -> Stage:
    """Clients that ask again at the instant they are answered, in virtual time."""
    engine = Engine(server.costs, random.Random(0))
    due_ns: list[int] = []
    first_ns: dict[int, int] = {}
    last_ns: dict[int, int] = {}
    tokens: Counter[int] = Counter()

    def ask(at_ns: int) -> None:
        room = server.input_tokens + server.output_tokens
        job = Job(len(due_ns), at_ns, server.input_tokens, server.output_tokens, room, lambda tokens, due_ns: None)
        due_ns.append(at_ns)
        engine.admit(job, at_ns)

    for _ in range(clients):
        ask(0)
    while (next_ns := engine.due_ns()) is not None:
        for due in list(engine.take(next_ns)):
            order = due.job.order
            first_ns.setdefault(order, due.at_ns)
            last_ns[order] = due.at_ns
            tokens[order] += 1
            if tokens[order] == server.output_tokens and len(due_ns) < requests:
                ask(due.at_ns)
    rows = [answered(server, order, at_ns, first_ns[order], last_ns[order]) for order, at_ns in enumerate(due_ns)]
    return RequestColumns.pack(rows), max(last_ns.values()) / 1e9


@pytest.mark.parametrize("slots", [2, 4, 8])
@pytest.mark.parametrize(
    ("decode_s", "each_s"),
    [(0.01, 0.0001), (0.001, 0.01), (0.01, 0.005)],
    ids=["a batch is nearly free", "a batch costs what it brings", "in between"],
)
def test_the_practice_engines_knee_is_its_batch(slots: int, decode_s: float, each_s: float) -> None:
    costs = sim_settings(prefill_s=0.00001, decode_s=decode_s, decode_per_sequence_s=each_s, batch=slots)
    server = replace(SERVERS[0], costs=costs)
    levels = (1, 2, 4, 8, 16, 32)
    knee = knee_of(levels, [closed_loop(server, level, 6 * level) for level in levels])
    assert isinstance(knee, ServerKnee), knee
    assert knee.level == slots
    assert knee.curve is Curve.DECODING


def swept(url: str, model: str, engine: str, slots: int, levels: Sequence[int], tokens: int) -> ServerKnee | NoKnee:
    """One sweep; beyond the slots as many requests as it takes to fill them a few times."""
    stages = []
    for level in levels:
        options = LoadOptions(
            url=url,
            model=model,
            engine=engine,
            concurrency=level,
            requests=max(level, 3 * min(level, 2 * slots)),
            input_tokens=2,
            output_tokens=tokens,
            endpoint="completions",
        )
        with fleet_of(options) as fleet:
            result = send_load(fleet, options, target_of(options)[0])
        stages.append((result.requests, result.window_s))
    return knee_of(levels, stages)


@pytest.mark.alone
@pytest.mark.slow
def test_the_embedded_engines_knee_is_its_slots_though_its_tokens_per_second_hardly_grow(tmp_path: Path) -> None:
    """Three sweeps, since this machine is busy with other tests too; a policy takes the median of five blocks."""
    with serve(Embedded(weights="f16", extra_layers=1, slots=2), name="tiny", cache_dir=tmp_path) as server:
        found = [swept(server.url, server.model, "llamacpp", 2, (1, 2, 4, 6, 8), tokens=120) for _ in range(3)]
    knees = [knee for knee in found if isinstance(knee, ServerKnee) and knee.curve is Curve.DECODING]
    assert statistics.median_low([knee.level for knee in knees]) == 2, found
