"""How fast are the records of many shards merged, in how much memory, and how far off are their quantiles?

    .venv/bin/python -m benchmarks.merge [--records 100000000] [--shards 512] [--chunks 8]

The records are made, not sent: each shard's columns are drawn from its own seed when the merge takes them. Afterwards
every shard is made once more, to find the exact order statistics: the values inside a quantile's bucket are collected
and sorted, those below it counted. Prints the seconds of making and merging, the peak resident memory of both, and the
largest relative error of any quantile of any time. Exits 1 when a bar is missed: 120 s, 2 GB, the stated error.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from benchgate.load.results import StageResult
from benchgate.load.stage_summary import Offered, StageSummary, merge_shares
from benchgate.model.histogram import RELATIVE_ERROR, TimeHistogram, ValueBounds
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import Slo
from benchgate.model.request_summary import TIMES
from benchgate.model.run import ClientUse
from benchmarks.gate_million import answered
from benchmarks.tables import in_table

_MOST_S, _MOST_GB = 120.0, 2.0
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_SLO = Slo(ttft_s=0.3, tpot_s=0.03)


@dataclass
class Stage:
    """Stage of made records, dealt to shards."""

    records: int
    shards: int
    chunks: int
    made_s: float = field(default=0.0, init=False)

    def __iter__(self) -> Iterator[StageResult]:
        """Make the result of one shard after another."""
        for shard in range(self.shards):
            began_s = time.perf_counter()
            requests = len(range(shard, self.records, self.shards))
            columns = answered(requests, self.chunks, 1 + shard / self.shards, np.random.default_rng([1, shard]))
            columns = replace(columns, index=columns.index * self.shards + shard)
            result = StageResult.of(columns, requests / 1000, ClientUse(cpu_s=1.0, wall_s=10.0, workers=1))
            self.made_s += time.perf_counter() - began_s
            yield result


class OrderStatistic:
    """Search for the exact value of one rank in a second pass: counts what is below its bucket, keeps what is in it."""

    def __init__(self, histogram: TimeHistogram, q: float) -> None:
        self.rank = max(math.ceil(len(histogram) * q - 1), 0)
        self.bounds: ValueBounds = histogram.at_rank(self.rank)
        self._below = 0
        self._inside: list[FloatArray] = []

    def add(self, values: FloatArray) -> None:
        """Look through the values of a shard."""
        self._below += int(np.count_nonzero(values < self.bounds.lower))
        self._inside.append(values[(values >= self.bounds.lower) & (values <= self.bounds.upper)])

    def exact(self) -> float:
        """Return the value of the rank. Raises IndexError where the bounds do not hold it."""
        return float(np.sort(np.concatenate(self._inside))[self.rank - self._below])


def errors(stage: Stage, summary: StageSummary) -> dict[str, dict[float, float]]:
    """Return the relative error of every finite quantile of every time, by name and share."""
    histograms = {name: one for name, one in summary.only.requests.times.items() if len(one)}
    searches = {name: {q: OrderStatistic(one, q) for q in _QUANTILES} for name, one in histograms.items()}
    for share in stage:
        for name, of_name in searches.items():
            values = TIMES[name](share.requests)
            for search in of_name.values():
                search.add(values)
    return {
        name: {
            q: abs(search.bounds.middle / search.exact() - 1)
            for q, search in of_name.items()
            if math.isfinite(search.bounds.lower) and search.bounds.lower > 0
        }
        for name, of_name in searches.items()
    }


def main() -> int:
    """Merge once, look the exact quantiles up, hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--shards", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=8, help="chunks with output in an answer")
    options = parser.parse_args()
    stage = Stage(options.records, options.shards, options.chunks)
    began_s = time.perf_counter()
    summary = merge_shares(stage, options.records, Offered(_SLO), exact=0).whole
    assert isinstance(summary, StageSummary), "no record is kept one by one"
    merged_s = time.perf_counter() - began_s - stage.made_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    requests = summary.only.requests
    assert requests.scheduled == options.records, "no record is lost"
    print(
        f"{requests.scheduled:,} records of {options.shards} shards, {len(requests.times['itl']):,} gaps between chunks"
    )
    print(f"made in {stage.made_s:.1f} s, merged in {merged_s:.1f} s, peak resident memory {peak_gb:.2f} GB")
    found = errors(stage, summary)
    rows = [
        [name, *(f"{of_name[q]:.4%}" if q in of_name else "-" for q in _QUANTILES)] for name, of_name in found.items()
    ]
    print("\n".join(in_table(["relative error", *(f"p{q * 100:g}" for q in _QUANTILES)], rows)))
    worst = max(error for of_name in found.values() for error in of_name.values())
    held = (merged_s <= _MOST_S, peak_gb <= _MOST_GB, worst <= RELATIVE_ERROR)
    print(f"{'holds' if held[0] else 'MISSED'}: merged in {merged_s:.1f} s, at most {_MOST_S:g}")
    print(f"{'holds' if held[1] else 'MISSED'}: {peak_gb:.2f} GB, at most {_MOST_GB:g}")
    print(f"{'holds' if held[2] else 'MISSED'}: largest error {worst:.4%}, at most {RELATIVE_ERROR:.4%}")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
