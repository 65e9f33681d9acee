"""What does one streamed token cost the load engine, and how near is what it reports to what really happened?

    .venv/bin/python -m benchmarks.client_cost [--repeats 5] [--seconds 10] [--streams 500 1000] [--clients benchgate …]

The server is `benchgate sim`, paced: 50 tokens/s a stream, first token after 100 ms, every time spread by ±30 %, 128
tokens an answer. It keeps its own clock, and what a client reports is held against that. The same closed loop is run
by benchgate, by benchgate under the live view of `load`, by benchgate while it polls the server's telemetry, by
benchgate without what is compiled of it, by httpx, httpx2 and aiohttp, and by a bare protocol, the least that Python
can do, one after another, each in a fresh process (benchmarks/stream_clients.py). Every figure is the median over the
repeats. The machine should be otherwise idle: what the bare protocol and the server itself missed tells whether it was.
Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchmarks.stream_clients import CLIENTS

Document = dict[str, Any]

SERVER = sim_settings(ttft_s=0.1, itl_s=0.02, jitter_ratio=0.3)
_TOKENS = 128


@dataclass(frozen=True)
class Row:
    """One run of one client: µs of CPU per token, and what it reports minus the truth, in ms."""

    cpu_us: float
    tokens_per_s: float
    cpu_share: float  # of one core
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p99_ms: float
    server_share: float  # of one core
    server_lag_p99_ms: float  # how late the server itself was
    bound: float  # 1 when the client says that it was the bottleneck


def measure(client: str, streams: int, seconds: float) -> Row:
    """One run against a fresh server."""
    with serve_sim(SERVER) as sim:
        command = [sys.executable, "-m", "benchmarks.stream_clients", client, sim.url, SERVER.model]
        options = ["--streams", str(streams), "--seconds", str(seconds), "--tokens", str(_TOKENS)]
        child = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=True)
        truth: Document = sim.truth()
    seen: Document = json.loads(child.stdout)
    return Row(
        cpu_us=seen["cpu_s"] / seen["tokens"] * 1e6,
        tokens_per_s=seen["tokens"] / seen["wall_s"],
        cpu_share=seen["cpu_s"] / seen["wall_s"],
        ttft_p50_ms=(seen["ttft_p50_s"] - truth["ttft_s"]["p50"]) * 1e3,
        ttft_p99_ms=(seen["ttft_p99_s"] - truth["ttft_s"]["p99"]) * 1e3,
        itl_p99_ms=(seen["itl_p99_s"] - truth["itl_s"]["p99"]) * 1e3,
        server_share=truth["cpu_s"] / seen["wall_s"],
        server_lag_p99_ms=truth["schedule_lag_s"]["p99"] * 1e3,
        bound=float(bool(seen.get("client_bound"))),
    )


def median(rows: list[Row]) -> Row:
    """The median of every figure by itself."""
    return Row(*(statistics.median(getattr(row, name) for row in rows) for name in Row.__dataclass_fields__))


def bars(streams: int, rows: dict[str, Row]) -> list[tuple[str, bool]]:
    """What is promised at a level, in words, and whether it holds."""
    own = rows["benchgate"]
    found: list[tuple[str, bool]] = []
    if streams == 500:
        found += [
            (f"{own.cpu_us:.1f} µs of CPU per token, at most 12", own.cpu_us <= 12),
            (f"TTFT p50 {own.ttft_p50_ms:+.2f} ms from the truth, at most 1", abs(own.ttft_p50_ms) <= 1),
            (f"TTFT p99 {own.ttft_p99_ms:+.2f} ms from the truth, at most 5", abs(own.ttft_p99_ms) <= 5),
            (f"ITL p99 {own.itl_p99_ms:+.2f} ms from the truth, at most 1.5", abs(own.itl_p99_ms) <= 1.5),
        ]
        if "watched" in rows:
            view = rows["watched"]
            ratio = view.cpu_us / own.cpu_us
            found += [
                (f"{ratio:.2f} times the CPU per token with the live view, at most 1.05", ratio <= 1.05),
                (f"TTFT p50 {view.ttft_p50_ms:+.2f} ms from the truth with it, at most 1", abs(view.ttft_p50_ms) <= 1),
                (f"TTFT p99 {view.ttft_p99_ms:+.2f} ms from the truth with it, at most 5", abs(view.ttft_p99_ms) <= 5),
            ]
        for other, least in (("httpx", 8), ("aiohttp", 2)):
            if other in rows:
                ratio = rows[other].cpu_us / own.cpu_us
                found.append((f"{ratio:.1f} times less CPU per token than {other}, at least {least}", ratio >= least))
    if "uncompiled" in rows:
        print(f"without what is compiled: {rows['uncompiled'].cpu_us / own.cpu_us:.2f} times as much CPU per token")
    if "bare" in rows:
        print(
            f"the bare protocol took {rows['bare'].cpu_us:.1f} µs: {own.cpu_us / rows['bare'].cpu_us:.2f} times as much"
        )
    if streams == 1000:
        said = "marked client-bound" if own.bound else "not marked client-bound"
        fine = bool(own.bound) or abs(own.ttft_p99_ms) <= 40
        found.append((f"TTFT p99 {own.ttft_p99_ms:+.1f} ms from the truth, at most 40, or {said}", fine))
    return found


def show(name: str, row: Row) -> str:
    """One line of the table."""
    bound = "yes" if row.bound else "no"
    return (
        f"{name:10} {row.cpu_us:7.1f} {row.tokens_per_s:8.0f} {row.cpu_share:6.0%} {row.ttft_p50_ms:+10.2f} "
        f"{row.ttft_p99_ms:+10.2f} {row.itl_p99_ms:+9.2f} "
        f"{row.server_share:7.0%} {row.server_lag_p99_ms:9.2f}   {bound}"
    )


_COLUMNS = """\
                                  reported minus the truth, ms    the server itself
client      µs/tok    tok/s   core   TTFT p50   TTFT p99   ITL p99    core  late p99   client-bound"""


def main() -> int:
    """Measure every client at every level, repeat by repeat, and hold the medians against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each client keeps asking")
    parser.add_argument("--streams", type=int, nargs="+", default=[500, 1000])
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    options = parser.parse_args()
    missed = 0
    for streams in options.streams:
        print(f"\n{streams} streams of 50 tokens/s")
        print(_COLUMNS)
        seen: dict[str, list[Row]] = {client: [] for client in options.clients}
        for _ in range(options.repeats):
            for client in options.clients:
                seen[client].append(measure(client, streams, options.seconds))
                print(show(client, seen[client][-1]), flush=True)
        rows = {client: median(runs) for client, runs in seen.items()}
        print(f"median of {options.repeats}")
        for client, row in rows.items():
            print(show(client, row))
        for said, holds in bars(streams, rows) if "benchgate" in rows else []:
            missed += not holds
            print(f"{'holds' if holds else 'MISSED'}: {said}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
