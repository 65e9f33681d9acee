"""How many machines does a load of 10,000, 100,000 and 1,000,000 streams take, and what is scarce first?

    .venv/bin/python -m benchmarks.scale_sizes [--streams 500] [--seconds 10] [--update]

Measured here: the CPU time of a streamed token against `benchgate sim` (benchmarks/client_cost.py), the bytes that an
answer takes in a spool, the time of merging a record (benchmarks/merge.py), and what `plan` takes for 200,000 streams.
Computed from that: everything else, for machines of 16 cores with 10 Gbit/s, 500 MB/s of disk and the usual 28,232
ports to one address of a server. Each stream delivers 50 tokens/s in answers of 128 tokens. `--update` writes the
tables to docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchgate.load.spool import Spool, SpoolEntry
from benchgate.load.standalone.merge import merge_shards
from benchgate.suite.schema import ClientBounds
from benchgate.units import show_number
from benchmarks import client_cost
from benchmarks.merge import Made
from benchmarks.million_records import answer, event
from benchmarks.tables import in_table, write_table

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
_LEVELS = (10_000, 100_000, 1_000_000)
_TOKENS_PER_S, _TOKENS, _MINUTES = 50, 128, 10
_CORES, _GBIT_PER_S, _DISK_MB_PER_S, _PORTS = 16, 10.0, 500.0, 28_232
_CPU_SHARE = ClientBounds().cpu_share
_RECORDS, _ANSWERS = 2_000_000, 2_000


@dataclass(frozen=True)
class Measured:
    """Costs measured on this machine."""

    cpu_us_per_token: float
    spool_bytes_per_token: float
    wire_bytes_per_token: float
    merge_ns_per_record: float


def measure(streams: int, seconds: float) -> Measured:
    """Measure every cost once."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "answers"
        with Spool(spool) as file:
            for number in range(_ANSWERS):
                file.append(SpoolEntry(number, 0, 0, answer(number, _TOKENS, 0)))
        spool_bytes = spool.stat().st_size / _ANSWERS / _TOKENS
    with tempfile.TemporaryDirectory() as folder:
        Made.write(Path(folder), _RECORDS, 10, _TOKENS, 10)
        began_s = time.perf_counter()
        merge_shards([folder], exact=0)
        merged_s = time.perf_counter() - began_s
    cost = client_cost.measure("benchgate", streams, seconds)
    return Measured(cost.cpu_us, spool_bytes, len(event(0, '{"content":" word"}')), merged_s / _RECORDS * 1e9)


def row(streams: int, found: Measured) -> list[str]:
    """Return the needs of a level, the machines that each resource takes, and the one that takes the most."""
    tokens_per_s = streams * _TOKENS_PER_S
    cores = tokens_per_s * found.cpu_us_per_token * 1e-6
    workers = math.ceil(cores / _CPU_SHARE)
    gbit_per_s = tokens_per_s * found.wire_bytes_per_token * 8e-9
    disk_mb_per_s = tokens_per_s * found.spool_bytes_per_token * 1e-6
    records = tokens_per_s / _TOKENS * _MINUTES * 60
    machines = {
        "processors": workers / _CORES,
        "ports": streams / _PORTS,
        "network": gbit_per_s / _GBIT_PER_S,
        "disk": disk_mb_per_s / _DISK_MB_PER_S,
    }
    scarce = max(machines, key=lambda name: machines[name])
    return [
        f"{streams:,}",
        f"{tokens_per_s / 1e6:g} M",
        f"{workers:,}",
        f"{gbit_per_s:.3g} Gbit/s",
        f"{disk_mb_per_s:,.0f} MB/s",
        f"{records / 1e6:.3g} M in {show_number(records * found.merge_ns_per_record * 1e-9)} s",
        *(f"{math.ceil(number):,}" for number in machines.values()),
        scarce,
    ]


def planned() -> str:
    """Plan 200,000 streams on 512 workers with `benchgate plan`, and return what it took and found."""
    suite = {
        "suite": "scale",
        "deployments": {name: {"url": f"http://{name}.invalid", "model": "m"} for name in ("base", "new")},
        "baseline": "base",
        "candidate": "new",
        "load": {
            "workload": {"input": 100, "output": _TOKENS},
            "workers": 512,
            "sweep": [{"stage": "streams", "concurrency": 200_000, "requests": 2_000_000}],
        },
        "gate": {"checks": [{"metric": "ttft", "margin": "5%"}, {"metric": "error_rate", "max": "1%"}]},
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "suite.yaml").write_text(yaml.safe_dump(suite))
        command = [sys.executable, "-m", "benchgate", "plan", "suite.yaml", "--format", "json"]
        began_s = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        took_s = time.perf_counter() - began_s
    cost = json.loads(done.stdout)["totals"]["most"]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return (
        f"200,000 streams on 512 workers, 20 blocks of 2,000,000 requests on each arm: {took_s:.1f} s, {peak:.0f} MB; "
        f"{cost['requests'] / 1e6:,.0f} M requests, {cost['output_tokens'] / 1e9:,.1f} G output tokens"
    )


def main() -> int:
    """Plan, measure, compute, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500, help="streams of the measurement")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--update", action="store_true", help="write the tables to docs/scale.md")
    options = parser.parse_args()
    plan = planned()
    found = measure(options.streams, options.seconds)
    costs = in_table(
        ["measured here", "result"],
        [
            [
                f"CPU of a token, {options.streams} streams of {_TOKENS_PER_S} tokens/s",
                f"{found.cpu_us_per_token:.1f} µs",
            ],
            ["spool of a token", f"{found.spool_bytes_per_token:.0f} bytes"],
            [f"merge of a record with {_TOKENS} tokens", f"{found.merge_ns_per_record / 1e3:.2f} µs"],
            ["`benchgate plan`", plan],
        ],
    )
    head = [
        "streams",
        "tokens/s",
        f"workers at {_CPU_SHARE:.0%} CPU",
        "network",
        "spools",
        f"records of {_MINUTES} min, merged",
    ]
    head += [f"machines by {name}" for name in ("processors", "ports", "network", "disk")] + ["bottleneck"]
    tables = {"measured": "\n".join(costs), "computed": "\n".join(in_table(head, [row(n, found) for n in _LEVELS]))}
    for key, table in tables.items():
        print(f"\n{key}\n{table}")
        if options.update:
            write_table(key, table, PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
