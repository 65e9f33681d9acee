"""Do several processes write runs into one store at once without a failure and without losing any?

    .venv/bin/python -m benchmarks.store_writers [--processes 8] [--runs 200] [--database sqlite] [--database postgres]

Every process writes its runs one after another, each with two load stages, a journal line, a verdict and metrics, as a
run of one's own does: every call is a transaction that is on the disk when it returns. Afterwards the whole store is
checked (`benchgate store check`). Exits 1 where a write failed, a run is missing, or anything does not hash.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import statistics
import sys
import time
from dataclasses import replace

import numpy as np

from benchgate.errors import BenchgateError
from benchgate.model.deployment import Arm
from benchgate.model.run import ClientUse, LoadObservation, MetricRow, RunStatus, new_run_id
from benchgate.store.repository import Store
from benchmarks.gate_million import answered
from benchmarks.made_runs import load_suite, run_of
from benchmarks.stores import DATABASES, empty_store

_PLAN = b"{}"
_REQUESTS, _CHUNKS = 200, 8
_ENDED = "2026-01-01T01:00:00Z"


def write(address: str, process: int, runs: int) -> tuple[list[float], list[str]]:
    """What one process does: seconds of each run, and every failure."""
    took_s, failures = list[float](), list[str]()
    suite = load_suite([{"metric": "ttft", "margin": "5%"}], ["steady"], [5])
    made = run_of(suite)
    columns = answered(_REQUESTS, _CHUNKS, 1.0, np.random.default_rng(process))
    stage = LoadObservation("steady", Arm.BASELINE, 0, 0, columns, 1.0, ClientUse(1.0, 1.0, 1))
    for number in range(runs):
        run_id = new_run_id(1_767_225_600_000 + number, bytes([process]) * 10)
        run = replace(
            made,
            id=run_id,
            plan_sha256=hashlib.sha256(_PLAN).hexdigest(),
            status=RunStatus.RUNNING,
            finished_at=None,
        )
        began_s = time.perf_counter()
        try:
            with Store.open(address) as store:
                writer = store.begin_run(run, _PLAN)
                writer.add(stage)
                writer.add(replace(stage, arm=Arm.CANDIDATE, position=1))
                writer.event("ended", {})
                writer.finish(RunStatus.COMPLETE, _ENDED)
                store.save_verdict(run_id, {"outcome": "BLOCK"}, decided_at=_ENDED)
                store.save_metrics(run_id, [MetricRow(Arm.CANDIDATE, "ttft", "p50", "steady", None, 0.1, 200)])
        except BenchgateError as error:
            failures.append(str(error))
        took_s.append(time.perf_counter() - began_s)
    return took_s, failures


def measure(database: str, processes: int, runs: int) -> bool:
    """Write and look; whether everything held."""
    with empty_store(database) as address:
        Store.open(address).close()
        began_s = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            done = pool.starmap(write, [(address, process, runs) for process in range(processes)])
        wall_s = time.perf_counter() - began_s
        with Store.open(address, create=False) as store:
            whole = sum(run.status is RunStatus.COMPLETE for run in store.runs())
            checked = store.check()
    took_s = [seconds for times, _ in done for seconds in times]
    failures = [failure for _, failed in done for failure in failed]
    wanted = processes * runs
    held = not failures and whole == wanted and not checked.findings
    wrong = f"{len(failures)} failures, {wanted - whole} lost, {len(checked.findings)} findings"
    times = f"a run took {statistics.median(took_s):.3f} s, at most {max(took_s):.2f} s"
    print(
        f"{database:9} {processes} processes x {runs} runs in {wall_s:.1f} s: {wrong}; {times}: "
        f"{'held' if held else 'MISSED'}",
        flush=True,
    )
    for failure in sorted(set(failures))[:5]:
        print(f"  {failures.count(failure)} x {failure}")
    return held


def main() -> int:
    """Each database in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--runs", type=int, default=200, help="of each process")
    parser.add_argument("--database", action="append", choices=DATABASES, help="both unless said")
    options = parser.parse_args()
    held = [measure(database, options.processes, options.runs) for database in options.database or DATABASES]
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
