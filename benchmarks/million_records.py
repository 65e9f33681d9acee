"""A million requests: how much memory does the process that measures them take, and how fast are they read again?

    .venv/bin/python -m benchmarks.million_records [--records 1000000] [--chunks 8] [--repeats 5]

One process keeps the raw answers in a spool as they end, reads them into columns and stores them, as a load stage does:
its peak resident memory is what counts. A fresh process then reads the stage from the store and computes every
percentile of every metric; beside it, in the same process, the time that numpy takes to sort as many bytes of integers.
Seconds are the median over the repeats. Exits 1 when a bar is missed: 400 MB, and 3 s.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchgate.load.decode.body import Read
from benchgate.load.http.exchange import Response
from benchgate.load.http.parser import Head
from benchgate.load.results import read_result
from benchgate.load.shards import Level, PlannedRequests, Shard
from benchgate.load.spool import Spool, SpoolEntry
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import Slo
from benchgate.model.records import FloatArray, RequestColumns
from benchgate.model.run import ClientUse, LoadObservation, Run, RunStatus
from benchgate.store.repository import Store
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target

_MOST_MB, _MOST_S = 400, 3.0
_RUN_ID = "00000000-0000-7000-8000-000000000001"
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)
_PLAN = b"{}"


def event(answer: int, delta: str, finish: str = "null") -> bytes:
    """One event of a chat stream, as long as servers make them."""
    choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}'
    text = f'{{"id":"chatcmpl-{answer:016x}","object":"chat.completion.chunk","model":"m","choices":[{choice}]}}'
    return f"data: {text}\n\n".encode()


def answer(at_ns: int, chunks: int, jitter_ns: int) -> Response:
    """A whole answer that began at an instant: role, chunks 10 ms apart, finish, usage, `[DONE]`."""
    usage = f'{{"prompt_tokens":100,"completion_tokens":{chunks},"total_tokens":{100 + chunks}}}'
    events = [event(at_ns, '{"role":"assistant","content":""}')]
    events += [event(at_ns, '{"content":" word"}')] * chunks
    events += [
        event(at_ns, "{}", '"length"'),
        f'data: {{"choices":[],"usage":{usage}}}\n\n'.encode(),
        b"data: [DONE]\n\n",
    ]
    first_ns = at_ns + 50_000_000 + jitter_ns
    body: list[Read] = [(first_ns + 10_000_000 * max(0, k - 1), data) for k, data in enumerate(events)]
    head = Head("HTTP/1.1", 200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    return Response(sent_ns=at_ns, over_ns=body[-1][0], head=head, body=body, whole=True)


def peak_mb() -> float:
    """The most memory this process ever had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fill(database: Path, records: int, chunks: int) -> None:
    """The life of a stage without its server: answers to the spool, the spool to columns, the columns to the store."""
    generator = np.random.default_rng(1)
    spool = database.with_name("answers")
    with Spool(spool) as file:
        for first in range(0, records, 1000):
            jitter_ns = generator.integers(0, 40_000_000, min(1000, records - first)).tolist()
            for k, late_ns in enumerate(jitter_ns, start=first):
                at_ns = k * 1_000_000
                file.append(SpoolEntry(k, at_ns, 0, answer(at_ns, chunks, late_ns)))
    said = {"after sending": peak_mb()}
    target = Target(Arm.CANDIDATE, "http://127.0.0.1", "m", DIALECTS["vllm"])
    shard = Shard.of(target, PlannedRequests(()), Level(None, 1000.0), Limits())
    result = read_result(shard, spool, ClientUse(cpu_s=1.0, wall_s=1.0, workers=1))
    spool.unlink()
    said["after reading the answers"] = peak_mb()
    with Store.open(str(database)) as store:
        writer = store.begin_run(a_run(), _PLAN)
        stage = LoadObservation("r1000", Arm.CANDIDATE, 0, 0, result.requests, result.window_s, result.client)
        writer.add(stage)
        writer.finish(RunStatus.COMPLETE, "2026-01-01T01:00:00Z")
    said["after storing"] = peak_mb()
    print(json.dumps(said))


def read(database: Path, records: int) -> None:
    """The stage from the store, and every percentile of it."""
    with Store.open(str(database), create=False) as store:
        began_s = time.perf_counter()
        columns = store.evidence(_RUN_ID).load[0].requests
        fetched_s = time.perf_counter() - began_s
    assert len(columns) == records
    began_s = time.perf_counter()
    found = percentiles(columns)
    computed_s = time.perf_counter() - began_s
    assert all(value is not None and np.isfinite(value) for value in found), "every request was answered"
    data = [values for values in columns.to_columns().values() if isinstance(values, np.ndarray)]
    yardstick = np.random.default_rng(2).integers(0, 2**62, sum(values.nbytes for values in data) // 8)
    began_s = time.perf_counter()
    yardstick.sort()
    print(json.dumps([fetched_s, computed_s, time.perf_counter() - began_s, yardstick.nbytes / 1e6]))


def percentiles(columns: RequestColumns) -> list[float | None]:
    """What a report says of a stage."""
    measures: tuple[Callable[[RequestColumns], FloatArray], ...] = (
        request_metrics.ttft_s, request_metrics.ttft_sent_s, request_metrics.tpot_s, request_metrics.itl_s,
        request_metrics.e2e_s, request_metrics.send_lag_s,
    )  # fmt: skip
    found: list[float | None] = []
    for measure in measures:
        values = measure(columns)
        found += [request_metrics.quantile(values, q) for q in _QUANTILES]
    return [*found, request_metrics.goodput_ratio(columns, Slo(ttft_s=0.08, tpot_s=0.02))]


def a_run() -> Run:
    """A run to store the stage under."""
    arms = {arm: Deployment(str(arm), "m", "vllm", "http://127.0.0.1") for arm in Arm}
    plan_sha256 = hashlib.sha256(_PLAN).hexdigest()
    return Run(
        id=_RUN_ID,
        suite_name="million",
        suite={},
        suite_sha256="0" * 64,
        measurement_sha256="0" * 64,
        plan_sha256=plan_sha256,
        seed=0,
        tool_version="0",
        label=None,
        status=RunStatus.RUNNING,
        started_at="2026-01-01T00:00:00Z",
        finished_at=None,
        environment={},
        arms=arms,
    )


def child(*words: str) -> str:
    """This script in a fresh process: what it printed."""
    command = [sys.executable, "-m", "benchmarks.million_records", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> int:
    """Fill once, read several times, hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--chunks", type=int, default=8, help="chunks with output in an answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--phase", choices=["fill", "read"], help=argparse.SUPPRESS)
    parser.add_argument("--database", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase == "fill":
        fill(options.database, options.records, options.chunks)
    elif options.phase == "read":
        read(options.database, options.records)
    else:
        return measure(options.records, options.chunks, options.repeats)
    return 0


def measure(records: int, chunks: int, repeats: int) -> int:
    """Run both phases in fresh processes and print what they took."""
    with tempfile.TemporaryDirectory() as folder:
        shared = ["--database", str(Path(folder) / "million.db"), "--records", str(records)]
        said: dict[str, float] = json.loads(child("--phase", "fill", "--chunks", str(chunks), *shared))
        for when, used_mb in said.items():
            print(f"peak resident memory {when:26} {used_mb:6.0f} MB")
        runs = [json.loads(child("--phase", "read", *shared)) for _ in range(repeats)]
    fetched_s, computed_s, sorted_s, sorted_mb = (statistics.median(values) for values in zip(*runs, strict=True))
    total_s, most_mb = fetched_s + computed_s, max(said.values())
    print(f"read from the store {fetched_s:.2f} s, every percentile {computed_s:.2f} s; median of {repeats}")
    print(f"{total_s / sorted_s:.2f} times what numpy takes to sort {sorted_mb:.0f} MB of integers ({sorted_s:.2f} s)")
    fine_mb, fine_s = most_mb <= _MOST_MB, total_s <= _MOST_S
    print(f"{'holds' if fine_mb else 'MISSED'}: {most_mb:.0f} MB for {records:,} records, at most {_MOST_MB}")
    print(f"{'holds' if fine_s else 'MISSED'}: {total_s:.2f} s to read and compute, at most {_MOST_S:g}")
    return int(not (fine_mb and fine_s))


if __name__ == "__main__":
    sys.exit(main())
