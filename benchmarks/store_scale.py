"""How long do `trend`, and `compare` of two runs without raw data, take in a store of years of runs?

    .venv/bin/python -m benchmarks.store_scale [--runs 10000] [--repeats 7] [--database sqlite] [--database postgres]

Makes a store of so many runs of 200 metrics each, with suites, environments, deployments, verdicts of twelve checks
and their rows, in bulk, as a store of two years has them. Then it asks for a trend of all runs and compares two of
them whose raw records were removed, in one process. Beside each, in the same process, the time that numpy takes to
sort eight million integers. Exits 1 when a bar is missed: 100 ms, and 300 ms (the median over the repeats).
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
from sqlalchemy import Table, bindparam, insert, text, update

from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run, new_run_id
from benchgate.pipeline.judge import stored_numbers
from benchgate.report.stored_numbers import numbers_document, numbers_text
from benchgate.store import results, rows, tables
from benchgate.store.database import Address, Database
from benchgate.store.merge import insert_rows
from benchgate.store.repository import Store
from benchmarks.gate_million import a_suite
from benchmarks.made_runs import run_of
from benchmarks.stores import DATABASES, empty_store

_MOST_TREND_S, _MOST_COMPARE_S = 0.1, 0.3
_STAGES = ("c1", "c4", "c16", "c64")
_QUANTILES = ("p50", "p90", "p95", "p99")
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_RATES = (
    "output_throughput", "request_throughput", "goodput", "error_rate", "usd_per_million_output_tokens",
    "usd_per_million_good_tokens",
)  # fmt: skip
_PLACES: tuple[tuple[str, str | None], ...] = (
    *((name, statistic) for name in _LATENCIES for statistic in _QUANTILES),
    *((name, "mean") for name in ("ttft", "tpot", "e2e")),
    *((name, None) for name in _RATES),
)
_CHECKS = 12
_AT_ONCE = 500
_REASON = "benchgate store gc --raw-older-than 90d"


@cache
def base_run() -> Run:
    """What all runs have in common."""
    return run_of(a_suite(4000, 64))


def made_run(number: int) -> Run:
    """One complete run of one of four suites, a quarter of an hour after the one before."""
    started = np.datetime64("2024-11-20T12:00:00.000") + np.timedelta64(15 * number, "m")
    made = base_run()
    return replace(
        made,
        id=new_run_id(1_732_104_000_000 + 900_000 * number, number.to_bytes(10, "big")),
        suite_name=f"suite-{number % 4}",
        label=f"pr-{number}",
        plan_sha256="p" * 64,
        started_at=f"{started}Z",
        finished_at=f"{started + np.timedelta64(10, 'm')}Z",
        environment={"os": "Linux 6.8", "cpu": "a processor", "cpus": 32, "libraries": {"numpy": "2.3"}},
        arms={arm: replace(of, facts={"version": "0.11.0", "flags": ["--x"] * 20}) for arm, of in made.arms.items()},
    )


def verdict_of(generator: np.random.Generator) -> dict[str, object]:
    """A document of twelve checks, as long as real ones are."""
    harms = generator.normal(0, 0.01, _CHECKS)
    checks = [
        {
            "id": f"ttft-{number}", "title": "time to first token, median", "family": "load", "metric": "ttft",
            "statistic": "p50", "stage": "c4", "over": None, "task": None, "required": True, "outcome": "PASS",
            "reason": "the upper limit is below the margin", "advice": None, "unit": "s", "scale": "log ratio",
            "baseline": 0.1, "candidate": 0.1 * (1 + harm), "harm": harm, "lower": harm - 0.01, "upper": harm + 0.01,
            "margin": 0.05, "at_least": None, "p_value": 0.5, "p_holm": 0.9, "n": 20, "n_unit": "blocks",
            "method": "t-limits over blocks of ln(candidate/baseline)",
            "notes": ["pairing was worth three times the blocks"] * 4,
        }
        for number, harm in enumerate(harms.tolist())
    ]  # fmt: skip
    guards = [{"id": f"guard-{n}", "tripped": False, "reason": "nothing is wrong", "spoils": []} for n in range(30)]
    said = {"outcome": "PASS", "reason": "all hold", "policy_replaced": False, "alpha": 0.05}
    return {**said, "checks": checks, "guards": guards}


def metrics_of(generator: np.random.Generator) -> list[MetricRow]:
    """200 numbers with their intervals."""
    values = generator.lognormal(0, 0.1, 2 * len(_STAGES) * len(_PLACES)).tolist()
    keys = itertools.product(Arm, _STAGES, _PLACES)
    return [
        MetricRow(arm, name, statistic, stage, None, value, 20, value * 0.95, value * 1.05)
        for value, (arm, stage, (name, statistic)) in zip(values, keys, strict=True)
    ]


def made_rows(numbers: Iterable[int], removed: Sequence[int]) -> dict[Table, list[rows.Row]]:
    """All rows of some runs; of those `removed` with what stands for their raw records."""
    found: dict[Table, list[rows.Row]] = {
        table: [] for table in (tables.run, tables.arm, tables.metric, tables.tombstone)
    }
    names = [one.name for one in fields(MetricRow)]
    for number in numbers:
        generator, run = np.random.default_rng(number), made_run(number)
        found[tables.run].append(rows.run_row(run) | {"evidence_sha256": "e" * 64})
        found[tables.arm] += [rows.arm_row(run.id, arm, of) for arm, of in run.arms.items()]
        found[tables.metric] += [
            {"run_id": run.id, "seq": seq, **{name: getattr(row, name) for name in names}}
            for seq, row in enumerate(metrics_of(generator))
        ]
        if number in removed:
            stone = {"run_id": run.id, "seq": 0, "of_table": "observation", "sealed": "[]", "sha256": "0" * 64}
            found[tables.tombstone].append(stone | {"n_bytes": 1, "removed_at": run.finished_at, "reason": _REASON})
    return found


def fill(address: str, runs: int, removed: Sequence[int]) -> None:
    """The whole store, as fast as the database takes it."""
    Store.open(address).close()
    database = Database.connect(Address.parse(address))
    with database.writing() as connection:
        connection.execute(insert(tables.plan).values(sha256="p" * 64, data=b""))
    said = verdict_of(np.random.default_rng(0))
    for first in range(0, runs, _AT_ONCE):
        made = made_rows(range(first, min(runs, first + _AT_ONCE)), removed)
        with database.writing() as connection:
            # As runs are written: nothing may be added to one that is over.
            unfinished = {"status": "running", "finished_at": None, "evidence_sha256": None}
            insert_rows(connection, tables.run, [run | unfinished for run in made[tables.run]])
            insert_rows(connection, tables.arm, made[tables.arm])
            end = update(tables.run).where(tables.run.c.id == bindparam("of"))
            end = end.values({name: bindparam(f"to_{name}") for name in unfinished})
            ends = [{"of": run["id"], **{f"to_{name}": run[name] for name in unfinished}} for run in made[tables.run]]
            connection.execute(end, ends)
            insert_rows(connection, tables.metric, made[tables.metric])
            insert_rows(connection, tables.tombstone, made[tables.tombstone])
            for run in made[tables.run]:
                document = said | {"run": {"id": run["id"]}}
                results.save_verdict(connection, run["id"], document, None, run["finished_at"])
    if database.address.path is None:  # as its own daemon does within a minute
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    database.close()


def timed(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The median seconds and the least, after once to warm up."""
    took_s = []
    for _ in range(repeats + 1):
        began_s = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s[1:]), min(took_s[1:])


def yardstick_s() -> float:
    """What this machine takes for something known."""
    values = np.random.default_rng(2).integers(0, 2**62, 8_000_000)
    return timed(lambda: np.sort(values), 3)[0]


def questions(store: Store, runs: Sequence[str]) -> Iterator[tuple[str, Callable[[], object], float | None]]:
    """What is asked, and the bar where there is one."""

    def trend(**where: str) -> Callable[[], object]:
        return lambda: store.trend("ttft", statistic="p95", arm=Arm.CANDIDATE, **where)

    def compare() -> object:
        judged, against = store.resolve(runs[1]), store.resolve(runs[0])
        numbers = stored_numbers(store, judged, against)
        assert numbers is not None and len(numbers.pairs) == len(_STAGES) * len(_PLACES), "all numbers of both"
        out = io.StringIO()
        json.dump(numbers_document(numbers), out)
        return numbers_text(numbers)

    yield "trend of one stage, all runs", trend(stage="c4"), _MOST_TREND_S
    yield "trend of one stage, one suite", trend(stage="c4", suite="suite-1"), _MOST_TREND_S
    yield "trend of four stages, all runs", trend(), None
    yield "compare without raw records", compare, _MOST_COMPARE_S


def measure(database: str, runs: int, repeats: int, folder: Path | None) -> bool:
    """Whether every bar holds in one database."""
    held = True
    pair = (runs // 4, runs // 2)
    kept = folder / f"scale-{runs}.db" if folder is not None and database == "sqlite" else None
    with empty_store(database) if kept is None else nullcontext(str(kept)) as address:
        began_s = time.perf_counter()
        if kept is None or not kept.exists():
            fill(address, runs, pair)
        n = len(metrics_of(np.random.default_rng(0)))
        print(f"{database:9} {runs:,} runs of {n} metrics, made in {time.perf_counter() - began_s:.0f} s", flush=True)
        with Store.open(address, create=False) as store:
            sorted_s = yardstick_s()
            for name, ask, bar_s in questions(store, [made_run(number).id for number in pair]):
                median_s, best_s = timed(ask, repeats)
                fine = bar_s is None or median_s <= bar_s
                held &= fine
                told = "" if bar_s is None else f": {'held' if fine else 'MISSED'}, at most {bar_s * 1e3:g} ms"
                times = median_s / sorted_s
                took = f"{median_s * 1e3:6.1f} ms, at best {best_s * 1e3:6.1f} ms; {times:5.2f} times the sort"
                print(f"{database:9} {name:32} {took}{told}", flush=True)
    return held


def main() -> int:
    """Each database in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--database", action="append", choices=DATABASES, help="both unless said")
    parser.add_argument("--folder", type=Path, help="keep the SQLite store here, and use the one that is there")
    options = parser.parse_args()
    databases = options.database or DATABASES
    held = [measure(database, options.runs, options.repeats, options.folder) for database in databases]
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
