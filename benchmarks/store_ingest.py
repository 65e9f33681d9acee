"""How fast does a run of a million requests go into a store, and how much room does it take there?

    .venv/bin/python -m benchmarks.store_ingest [--records 1000000] [--chunks 8] [--repeats 3] [--database sqlite]

The records are in memory as a stage leaves them, 50,000 a stage, with the instants of all their chunks. Measured is
from there to all of them being on the disk and the run sealed. Beside it, in the same process, what zlib takes to
deflate as many bytes of the same numbers by itself. The room is that of a second store without chunk times, whose
number is the traffic's own. Exits 1 when a bar is missed: 300,000 records/s, and 40 bytes a record.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import text

from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns
from benchgate.model.run import ClientUse, LoadObservation, RunStatus, new_run_id
from benchgate.store.database import Address, Database
from benchgate.store.repository import Store
from benchmarks.gate_million import answered
from benchmarks.made_runs import load_suite, run_of
from benchmarks.stores import DATABASES, empty_store

_LEAST_PER_S, _MOST_BYTES = 300_000, 40.0
_STAGE = 50_000
_PLAN = b"{}"


def stages(records: int, chunks: int) -> list[RequestColumns]:
    """The columns of a run's executions, drawn."""
    generator = np.random.default_rng(1)
    sizes = [min(_STAGE, records - first) for first in range(0, records, _STAGE)]
    made = (answered(size, chunks, float(generator.lognormal(0, 0.02)), generator) for size in sizes)
    return [as_drawn(columns, generator) for columns in made]


def as_drawn(columns: RequestColumns, generator: np.random.Generator) -> RequestColumns:
    """The same with what real loads draw: Poisson arrivals, a client that is late by chance, prompts of any length."""
    n, answered_too = len(columns), columns.end_ns != ABSENT
    later_ns = np.cumsum(generator.exponential(1e6, n)).astype(np.int64) - columns.intended_ns
    lag_ns = generator.lognormal(np.log(5e4), 0.5, n).astype(np.int64)
    return replace(
        columns,
        intended_ns=columns.intended_ns + later_ns,
        sent_ns=columns.intended_ns + later_ns + lag_ns,
        end_ns=np.where(answered_too, columns.end_ns + later_ns + generator.integers(0, 100_000, n), ABSENT),
        first_answer_ns=np.where(answered_too, columns.first_answer_ns + later_ns, ABSENT),
        chunk_ns=columns.chunk_ns + np.repeat(later_ns, np.diff(columns.chunk_start)),
        input_tokens=np.where(answered_too, generator.integers(50, 2000, n), ABSENT),
    )


def without_chunks(columns: RequestColumns) -> RequestColumns:
    """The same without the instants of chunks; how many there were stays."""
    return replace(columns, chunk_ns=np.empty(0, dtype=np.int64))


def store_run(store: Store, parts: Sequence[RequestColumns], number: int) -> float:
    """Seconds until a whole run is on the disk."""
    suite = load_suite([{"metric": "ttft", "margin": "5%"}], ["steady"], [5])
    run_id = new_run_id(1_767_225_600_000 + number, bytes(10))
    plan_sha256 = hashlib.sha256(_PLAN).hexdigest()
    run = replace(run_of(suite), id=run_id, plan_sha256=plan_sha256, status=RunStatus.RUNNING, finished_at=None)
    client = ClientUse(1.0, 1.0, 1)
    began_s = time.perf_counter()
    writer = store.begin_run(run, _PLAN)
    for position, columns in enumerate(parts):
        arm = tuple(Arm)[position % 2]
        writer.add(LoadObservation("steady", arm, position // 2, position, columns, 10.0, client))
    writer.finish(RunStatus.COMPLETE, "2026-01-01T01:00:00Z")
    return time.perf_counter() - began_s


def bytes_of(address: str) -> int:
    """What a store takes on the disk, its log taken in."""
    found = Address.parse(address)
    database = Database.connect(found)
    try:
        if found.path is None:
            with database.reading() as connection:
                return int(connection.scalar(text("SELECT pg_total_relation_size('observation')")) or 0)
        with database.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")  # the log is taken in outside of any transaction
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.exec_driver_sql("BEGIN")
        return Path(found.path).stat().st_size
    finally:
        database.close()


def measure(database: str, parts: Sequence[RequestColumns], repeats: int) -> bool:
    """Time and room in one database; whether both bars hold."""
    records = sum(map(len, parts))
    with empty_store(database) as address, Store.open(address) as store:
        took_s = [store_run(store, parts, number) for number in range(repeats)]
        whole = bytes_of(address) / repeats / records
    with empty_store(database) as address, Store.open(address) as store:
        store_run(store, [without_chunks(part) for part in parts], 0)
        bare = bytes_of(address) / records
    per_s = records / statistics.median(took_s)
    fast, small = per_s >= _LEAST_PER_S, bare <= _MOST_BYTES
    print(f"{database:9} {per_s:9,.0f} records/s (median of {repeats}): {'held' if fast else 'MISSED'}", flush=True)
    told = "held" if small else "MISSED"
    print(f"{database:9} {bare:9.1f} bytes a record without chunk times: {told}; {whole:.1f} with them")
    times = statistics.median(took_s) / yardstick_s(parts)
    print(f"{database:9} {times:9.2f} times what zlib takes for the same numbers")
    return fast and small


def yardstick_s(parts: Sequence[RequestColumns]) -> float:
    """What zlib takes, at the level it has by itself, for the plain columns."""
    plain = [
        values.tobytes() for part in parts for values in part.to_columns().values() if isinstance(values, np.ndarray)
    ]
    began_s = time.perf_counter()
    for one in plain:
        zlib.compress(one)
    return time.perf_counter() - began_s


def main() -> int:
    """Each database in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--chunks", type=int, default=8, help="chunks with output in an answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--database", action="append", choices=DATABASES, help="both unless said")
    options = parser.parse_args()
    parts = stages(options.records, options.chunks)
    held = [measure(database, parts, options.repeats) for database in options.database or DATABASES]
    print(f"bars: {_LEAST_PER_S:,} records/s, {_MOST_BYTES:g} bytes a record without chunk times")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
