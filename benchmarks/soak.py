"""Does a load worker grow or slow down over time? Its memory, descriptors and send lag under streams that come and go.

    .venv/bin/python -m benchmarks.soak [--streams 2000] [--minutes 15]

One worker holds so many streams open against `benchgate sim`: answers of 16 to 64 tokens, 4 tokens a second, and one in
twenty is reset in the middle, so connections come and go too. Every second its resident memory and open descriptors are
read; the send lag of each request is by the records. Of each figure a line is fitted to the means of equal pieces of
time, after the first two fifths, in which the load builds up and streams that began together drift apart. Exits with 1
if the 99 % interval of a slope lies above zero, or the worker could not hold the streams.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchgate.load.results import StageResult
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import fleet_of, send_load
from benchgate.model.columns import concatenate_columns
from benchgate.model.deployment import Arm
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.targets.dialect import DIALECTS, Target

PIECES = 20
# Share of the time that is left out. While many streams send in the same millisecond the client wakes once for all of
# them and the median lag is 0.16 ms; it rises to 0.33 ms in the first six of 15 minutes, until nearly each has its own
# wake-up, and then stays. Within that time a slope is one of the load, not of the client.
WARM_UP = 0.4
CONFIDENCE = 0.99
_NS = 1_000_000_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
Series = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slope:
    """Change of a figure per minute with its confidence interval, and the figure's mean."""

    per_minute: float
    lower: float
    upper: float
    mean: float

    @property
    def rises(self) -> bool:
        """Return True if the interval lies above zero, or is undefined."""
        return not self.lower <= 0


def slope_of(at_s: Series, values: Series) -> Slope:
    """Fit a line to the means of pieces of equal length. Neighbouring values depend on each other, means hardly do."""
    edges = np.linspace(at_s[0], at_s[-1], PIECES + 1)
    piece = np.clip(np.searchsorted(edges, at_s, side="right") - 1, 0, PIECES - 1)
    known = np.unique(piece)
    means = np.array([values[piece == one].mean() for one in known])
    minutes = (edges[known] + (edges[1] - edges[0]) / 2) / 60
    if np.ptp(means) == 0:  # memory that does not change at all: scipy's error of such a line is NaN
        return Slope(0.0, 0.0, 0.0, float(values.mean()))
    fitted = stats.linregress(minutes, means)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 2)) * float(fitted.stderr)
    per_minute = float(fitted.slope)
    return Slope(per_minute, per_minute - reach, per_minute + reach, float(values.mean()))


class Watch:
    """Samples of the descendant of this process that has the most descriptors, once a second."""

    def __init__(self, least_descriptors: int) -> None:
        self.samples: list[tuple[float, float, float]] = []  # ns, MiB, descriptors
        self._least = least_descriptors
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            found = [one for one in map(_sample, _descendants(os.getpid())) if one is not None]
            mib, descriptors = max(found, key=lambda one: one[1], default=(0.0, 0))
            if descriptors >= self._least:
                self.samples.append((time.monotonic_ns(), mib, descriptors))


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, listed.read_text().split())
        except OSError:  # the thread has ended
            continue
    return children + [deeper for child in children for deeper in _descendants(child)]


def _sample(pid: int) -> tuple[float, int] | None:
    """Return resident memory in MiB and the number of descriptors; None for a process that has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * _PAGE_BYTES / 2**20, len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, IndexError):
        return None


def soak(streams: int, minutes: float) -> tuple[StageResult, Watch, float]:
    """Run the load; return its result, the samples, and the server's own lag (p99, s)."""
    settings = sim_settings(
        ttft_s=0.25, itl_s=0.25, jitter_ratio=0.3, output_tokens=(16, 64), faults=("reset-after:8@5%",)
    )
    with serve_sim(settings) as sim:
        options = LoadOptions(
            sim.url, "sim", "vllm", concurrency=streams, duration_s=minutes * 60, output_tokens=64, input_tokens=32
        )
        target = Target(Arm.CANDIDATE, sim.url, "sim", DIALECTS["vllm"])
        with Watch(streams // 2) as watch, fleet_of(options) as fleet:
            result = send_load(fleet, options, target)
        lag_s = float(sim.truth()["schedule_lag_s"]["p99"])
    return result, watch, lag_s


def main() -> int:
    """Run the load and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=15.0)
    options = parser.parse_args()
    result, watch, server_lag_s = soak(options.streams, options.minutes)
    columns = concatenate_columns([result.requests, result.only.ramp])
    sent = columns.sent_ns >= 0
    at_s = (columns.sent_ns[sent] - columns.sent_ns[sent].min()) / _NS
    lag_ms = (columns.sent_ns[sent] - columns.intended_ns[sent]) / 1e6
    order = np.argsort(at_s, kind="stable")
    samples = np.array(watch.samples)
    if len(samples) < PIECES or len(at_s) < PIECES:
        print("MISSED: the worker never held the streams")
        return 1
    sampled_s = (samples[:, 0] - samples[0, 0]) / _NS
    print(
        f"{options.streams:,} streams for {options.minutes:g} min: {len(columns):,} requests, "
        f"{(columns.connecting_ns >= 0).sum():,} connections, send lag p99 {np.quantile(lag_ms, 0.99):.2f} ms, "
        f"server's lag p99 {server_lag_s * 1e3:.2f} ms"
    )
    figures: dict[str, tuple[Series, Series]] = {
        "memory, MiB": (sampled_s, samples[:, 1]),
        "descriptors": (sampled_s, samples[:, 2]),
        "send lag, ms": (at_s[order], lag_ms[order]),
    }
    missed = 0
    for name, (seconds, values) in figures.items():
        steady = seconds >= WARM_UP * seconds[-1]
        found = slope_of(seconds[steady], values[steady])
        missed += found.rises
        print(
            f"{'MISSED' if found.rises else 'holds'}: {name:13} mean {found.mean:10.3f}, slope {found.per_minute:+.4f} "
            f"per minute, 99 % interval {found.lower:+.4f} to {found.upper:+.4f}"
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
