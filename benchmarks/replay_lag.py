"""How late are the rows of a trace sent? 10,000 of them, at their own instants, one process.

    .venv/bin/python -m benchmarks.replay_lag [--repeats 5] [--trace FILE] [--speed 1] [--requests 10000]

Against `benchgate sim` on the same machine. Without `--trace`, a trace of the shape of Azure's is made up: rows in
clusters (gamma gaps, spread twice their mean), 200 a second on average, lengths with long tails. Every figure is the
median over the repeats. Exits 1 when the p99 of the send lag is above 2 ms.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings

_BAR_MS = 2.0
_RATE_RPS = 200.0
_NAMES = ("p50", "p99", "max")


def made_up(path: Path, rows: int) -> Path:
    """A trace in Azure's columns; the same one every time."""
    generator = np.random.default_rng(7)
    instants_s = np.cumsum(generator.gamma(0.25, 4 / _RATE_RPS, size=rows))
    prompts = np.clip(generator.lognormal(5.0, 0.8, size=rows), 8, 2000).astype(int)
    answers = np.clip(generator.lognormal(2.5, 0.7, size=rows), 1, 100).astype(int)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    with path.open("w", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for at_s, prompt, answer in zip(instants_s, prompts, answers, strict=True):
            at = began + timedelta(seconds=float(at_s))
            file.write(f"{at:%Y-%m-%d %H:%M:%S.%f}0,{prompt},{answer}\n")
    return path


def replayed_ms(trace: Path, speed: float, requests: int) -> list[float]:
    """Send lag of one replay: p50, p99 and the largest."""
    with serve_sim(sim_settings(ttft_s=0.02, itl_s=0.002)) as sim:
        options = LoadOptions.parse(
            url=sim.url, model="sim", engine="vllm", trace=str(trace), speed=speed, requests=requests, workers="1"
        )
        said = run_load_test(options)
    counted, lag = said["requests"], said["send_lag_s"]
    assert isinstance(counted, dict) and isinstance(lag, dict)
    if counted["ok"] != counted["scheduled"]:
        sys.exit(f"not every request was answered: {said['failures']}")
    print(f"{counted['ok']:,} requests in {said['window_s']:.1f} s", end="", flush=True)
    return [lag[name] * 1e3 for name in _NAMES]


def main() -> int:
    """Replay, and hold the median against the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trace", type=Path, help="a trace of any kind that `load.sweep[].trace` reads")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = options.trace or made_up(Path(folder) / "trace.csv", options.requests)
        print(f"{'':30}{'p50':>9}{'p99':>9}{'max':>9} ms")
        runs = []
        for _ in range(options.repeats):
            runs.append(replayed_ms(trace, options.speed, options.requests))
            print("  ".ljust(6) + "".join(f"{value:9.3f}" for value in runs[-1]), flush=True)
    p99_ms = statistics.median(run[1] for run in runs)
    print(f"{'holds' if p99_ms <= _BAR_MS else 'MISSED'}: p99 of the send lag {p99_ms:.3f} ms, at most {_BAR_MS:g}")
    return int(p99_ms > _BAR_MS)


if __name__ == "__main__":
    sys.exit(main())
