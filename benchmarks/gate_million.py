"""How long does judging a stored run of a million requests take, and how much memory?

    .venv/bin/python -m benchmarks.gate_million [--requests 1000000] [--chunks 8] [--repeats 3]

Makes two runs of one suite in a store: 10 blocks of two stages on both arms, with latencies, failures and answers that
miss the SLO. Then `benchgate gate` judges each, and `benchgate compare` the one against the other, every time in a
fresh process: the whole command, start of the interpreter included. Exits 1 when a command takes more than 5 s (the
median over the repeats) or 1.5 GB.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns, TextColumn
from benchgate.model.run import ClientUse, LoadObservation, RunStatus
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite
from benchmarks.made_runs import run_of

_MOST_MB, _MOST_S = 1500, 5.0
_BLOCKS = 10
_STAGES = ("steady", "busy")
_MS = 1_000_000
_PLAN = b"{}"
_IDS = ("0190b2c4-7d1e-7a3b-9c5f-2e8d6a4b1f01", "0190b2c4-7d1e-7a3b-9c5f-2e8d6a4b1f02")
_CHECKS: tuple[dict[str, object], ...] = (
    {"metric": "ttft", "margin": "5%"},
    {"metric": "ttft", "statistic": "p95", "margin": "10%"},
    {"metric": "tpot", "margin": "5%"},
    {"metric": "e2e", "statistic": "p99", "max": "2s"},
    {"metric": "output_throughput", "margin": "5%"},
    {"metric": "goodput"},
    {"metric": "goodput", "margin": "1 points"},
    {"metric": "error_rate", "max": "1%"},
)


def a_suite(requests: int, chunks: int) -> Suite:
    """What both runs measured: so many requests in all."""
    each = requests // (_BLOCKS * len(_STAGES) * len(Arm))
    sweep = [{"stage": stage, "concurrency": 64, "requests": each} for stage in _STAGES]
    return Suite.model_validate(
        {
            "suite": "million",
            "deployments": {name: {"url": f"http://{name}.invalid", "model": "m"} for name in ("base", "new")},
            "baseline": "base",
            "candidate": "new",
            "slo": {"ttft": "400ms", "tpot": "40ms", "target": "95%"},
            "load": {"workload": {"input": 100, "output": chunks}, "sweep": sweep, "blocks": _BLOCKS},
            "gate": {"checks": list(_CHECKS)},
        }
    )


def answered(requests: int, chunks: int, slower: float, generator: np.random.Generator) -> RequestColumns:
    """So many requests of one execution, of which one in a thousand fails."""
    intended_ns = np.arange(requests, dtype=np.int64) * _MS
    first_ns = intended_ns + np.rint(generator.lognormal(np.log(0.15 * slower), 0.35, requests) * 1e9).astype(np.int64)
    pace_s = generator.lognormal(np.log(0.02 * slower), 0.2, requests)
    gaps_s = pace_s[:, None] * generator.lognormal(0, 0.3, (requests, chunks - 1))
    chunk_ns = first_ns[:, None] + np.rint(np.cumsum(gaps_s, axis=1) * 1e9).astype(np.int64)
    chunk_ns = np.concatenate([first_ns[:, None], chunk_ns], axis=1)
    failed = generator.random(requests) < 0.001
    none = np.full(requests, ABSENT, dtype=np.int64)
    told = TextColumn(("length", None), failed.astype(np.int32))
    return RequestColumns(
        index=np.arange(requests, dtype=np.int64),
        intended_ns=intended_ns,
        sent_ns=intended_ns + 50_000,
        end_ns=np.where(failed, ABSENT, chunk_ns[:, -1] + 100_000),
        input_tokens=np.where(failed, ABSENT, 100),
        output_tokens=np.where(failed, ABSENT, chunks),
        http_status=np.where(failed, 500, 200),
        reconnects=np.zeros(requests, dtype=np.int64),
        chunk_start=np.concatenate([[0], np.cumsum(np.where(failed, 0, chunks))]),
        chunk_ns=chunk_ns[~failed].ravel(),
        first_answer_ns=np.where(failed, ABSENT, first_ns),
        reasoning_tokens=none,
        cached_tokens=none,
        valid=np.full(requests, ABSENT, dtype=np.int8),
        left=np.zeros(requests, dtype=np.int8),
        tokenless=np.zeros(requests, dtype=np.int8),
        connecting_ns=none,
        answer_chars=np.where(failed, 0, 4 * chunks).astype(np.int32),
        reasoning_chars=np.zeros(requests, dtype=np.int32),
        redundancy_percent=np.full(requests, 30, dtype=np.int8),
        tool_calls=np.zeros(requests, dtype=np.int16),
        ramp=np.zeros(requests, dtype=np.int8),
        first_visible=np.ones(requests, dtype=np.int8),
        session=none,
        token_source=TextColumn(("usage", None), failed.astype(np.int32)),
        finish_reason=told,
        error=TextColumn((None, "http_5xx"), failed.astype(np.int32)),
        error_detail=TextColumn((None, "HTTP 500: out of memory"), failed.astype(np.int32)),
        answer_model=TextColumn(("m", None), failed.astype(np.int32)),
        region=TextColumn((None,), np.zeros(requests, dtype=np.int32)),
    )


def fill(database: Path, requests: int, chunks: int) -> None:
    """Both runs; every execution is a little faster or slower than the one before."""
    suite = a_suite(requests, chunks)
    assert suite.load is not None, "a suite of load"
    client = ClientUse(cpu_s=1.0, wall_s=10.0, workers=1)
    with Store.open(str(database)) as store:
        for seed, run_id in enumerate(_IDS):
            generator = np.random.default_rng(seed)
            plan_sha256 = hashlib.sha256(_PLAN).hexdigest()
            run = replace(run_of(suite), id=run_id, plan_sha256=plan_sha256, status=RunStatus.RUNNING, finished_at=None)
            writer = store.begin_run(run, _PLAN)
            position = 0
            for block in range(_BLOCKS):
                for stage in suite.load.sweep:
                    for arm in tuple(Arm) if block % 2 == 0 else tuple(Arm)[::-1]:
                        columns = answered(stage.requests, chunks, float(generator.lognormal(0, 0.02)), generator)
                        window_s = float(columns.end_ns.max() - columns.sent_ns.min()) * 1e-9
                        writer.add(LoadObservation(stage.name, arm, block, position, columns, window_s, client))
                        position += 1
            writer.finish(RunStatus.COMPLETE, "2026-01-01T01:00:00Z")


def timed(words: Sequence[str], database: Path) -> tuple[float, float, int]:
    """Seconds, peak resident MB and exit code of one command in a process of its own."""
    command = [sys.executable, "-m", "benchgate", *words, "--store", str(database), "--format", "json"]
    began_s = time.perf_counter()
    with database.with_name("verdict.json").open("wb") as out:
        process = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)])
        _, status, used = os.wait4(process, 0)
    return time.perf_counter() - began_s, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def main() -> int:
    """Fill the store, run the commands, hold them against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="of each run")
    parser.add_argument("--chunks", type=int, default=8, help="chunks with output in an answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the store here, and use the one that is there")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        database = (options.folder or Path(scratch)) / f"million-{options.requests}-{options.chunks}.db"
        if not database.exists():
            fill(database, options.requests, options.chunks)
        print(f"{options.requests:,} requests in each run, {database.stat().st_size / 1e6:,.0f} MB in the store")
        for words in (("gate", _IDS[0]), ("gate", _IDS[1]), ("compare", *_IDS)):
            runs = [timed(words, database) for _ in range(options.repeats)]
            took_s, used_mb = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
            held = took_s <= _MOST_S and used_mb <= _MOST_MB and all(run[2] in (0, 10, 11) for run in runs)
            missed += not held
            codes = sorted({run[2] for run in runs})
            name = f"benchgate {words[0]}" + (" of both" if words[0] == "compare" else "")
            print(
                f"{name:26} {took_s:6.2f} s {used_mb:6.0f} MB, exit {codes}: {'held' if held else 'MISSED'}", flush=True
            )
    print(f"bars: {_MOST_S:g} s, {_MOST_MB:,} MB")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
