"""How fast does `load merge` merge the records of many shards, in how much memory, and how far off are its quantiles?

    .venv/bin/python -m benchmarks.merge [--records 100000000] [--shards 512] [--chunks 8] [--made 16]

The records are made, not sent: so many shards write their files as `load --shard` does, and the others are links to
them, under numbers of their own. The merge reads every file. Afterwards the made shards are read once more, to find the
exact order statistics: the values inside a quantile's bucket are collected and sorted, those below it counted. Prints
the seconds of the merge, its peak resident memory, and the largest relative error of any quantile of any time. Exits 1
when a bar is missed: 120 s, 2 GB, the stated error.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchgate import __version__
from benchgate.load.results import StageResult
from benchgate.load.shard_files import ShardBegin, ShardedStage, ShardFiles
from benchgate.load.spool_folder import spool_folder
from benchgate.load.standalone.merge import merge_shards
from benchgate.model.histogram import RELATIVE_ERROR
from benchgate.model.records import FloatArray
from benchgate.model.request_summary import TIMES
from benchgate.model.run import ClientUse
from benchmarks.gate_million import answered
from benchmarks.tables import in_table

LOAD = {
    "url": "http://made:8000", "model": "m", "engine": "openai", "output_tokens": 8, "slo": "ttft=300ms,tpot=30ms",
    "salt": 7,
}  # fmt: skip
_MOST_S, _MOST_GB = 120.0, 2.0
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_BRACKET = 4  # stated errors to each side of an estimate, in which the exact value is looked for


@dataclass(frozen=True)
class Made:
    """Files of a stage of made records: `shards` of them with `each` records, of which `made` differ."""

    folder: Path
    shards: int
    each: int
    made: int

    @classmethod
    def write(cls, folder: Path, records: int, shards: int, chunks: int, made: int) -> Self:
        """Write the files of every shard. The number of shards must be a multiple of those made."""
        each = records // shards
        stage = ShardedStage(
            __version__, shards, 0, {**LOAD, "rate": f"{shards * 1000}/s", "requests": each * shards}, None
        )
        use = ClientUse(cpu_s=1.0, wall_s=10.0, workers=1)
        with spool_folder(str(folder)) as opened:
            for shard in range(shards):
                files = ShardFiles(opened, shard, shards)
                files.begin(ShardBegin.here(stage, shard, ()))
                if shard >= made:
                    for kind in ("columns", "end.json"):
                        source = folder / f"shard-{shard % made}-of-{shards}.{kind}"
                        os.link(source, folder / f"shard-{shard}-of-{shards}.{kind}")
                    continue
                columns = answered(each, chunks, 1 + shard / shards, np.random.default_rng([1, shard]))
                files.end(StageResult.of(replace(columns, index=columns.index * shards + shard), each / 1000, use))
        return cls(folder, shards, each, made)

    def __iter__(self) -> Iterator[StageResult]:
        """Read one made shard after another."""
        with spool_folder(str(self.folder)) as opened:
            for shard in range(self.made):
                result = ShardFiles(opened, shard, self.shards).read_end()
                assert isinstance(result, StageResult), result
                yield result

    @property
    def copies(self) -> int:
        """Return how often each made shard is in the stage."""
        return self.shards // self.made


class OrderStatistic:
    """Search for the exact value of one rank: counts what is below the bounds of its bucket, keeps what is in it."""

    def __init__(self, rank: int, estimate: float) -> None:
        self._rank, self.estimate = rank, estimate
        self._lower, self._upper = (estimate * (1 + sign * _BRACKET * RELATIVE_ERROR) for sign in (-1, 1))
        self._below = 0
        self._inside: list[FloatArray] = []

    def add(self, values: FloatArray) -> None:
        """Look through the values of a shard."""
        self._below += int(np.count_nonzero(values < self._lower))
        self._inside.append(values[(values >= self._lower) & (values <= self._upper)])

    def exact(self, copies: int) -> float:
        """Return the value of the rank, each value `copies` times. Raises IndexError unless the bounds hold it."""
        return float(np.sort(np.concatenate(self._inside))[self._rank // copies - self._below])


def errors(stage: Made, document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the relative error of every finite quantile of every time of a merged document, by name and share."""
    searches: dict[str, dict[str, OrderStatistic]] = {}
    for name in TIMES:
        found = document[f"{name}_s"]
        shares = {key: q for key, q in _QUANTILES.items() if found["n"] and found[key]}
        searches[name] = {
            key: OrderStatistic(max(math.ceil(found["n"] * q - 1), 0), found[key]) for key, q in shares.items()
        }
    for share in stage:
        for name, of_name in searches.items():
            values = TIMES[name](share.requests) if of_name else np.empty(0)
            for search in of_name.values():
                search.add(values)
    return {
        name: {key: abs(search.estimate / search.exact(stage.copies) - 1) for key, search in of_name.items()}
        for name, of_name in searches.items()
        if of_name
    }


def main() -> int:
    """Write, merge once, look the exact quantiles up, hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--shards", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=8, help="chunks with output in an answer")
    parser.add_argument("--made", type=int, default=16, help="shards that differ; a divisor of their number")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stage = Made.write(Path(folder), options.records, options.shards, options.chunks, options.made)
        gb = sum(file.stat().st_size for file in Path(folder).glob("*.columns")) / 1e9
        began_s = time.perf_counter()
        document: dict[str, Any] = merge_shards([folder], exact=0)
        merged_s = time.perf_counter() - began_s
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        scheduled, gaps = document["requests"]["scheduled"], document["itl_s"]["n"]
        assert scheduled == stage.each * options.shards, "no record is lost"
        print(f"{scheduled:,} records of {options.shards} shards in {gb:.1f} GB of files, {gaps:,} gaps between chunks")
        print(f"merged in {merged_s:.1f} s, peak resident memory {peak_gb:.2f} GB")
        found = errors(stage, document)
    rows = [
        [name, *(f"{of_name[key]:.4%}" if key in of_name else "-" for key in _QUANTILES)]
        for name, of_name in found.items()
    ]
    print("\n".join(in_table(["relative error", *_QUANTILES], rows)))
    worst = max(error for of_name in found.values() for error in of_name.values())
    held = (merged_s <= _MOST_S, peak_gb <= _MOST_GB, worst <= RELATIVE_ERROR)
    print(f"{'holds' if held[0] else 'MISSED'}: merged in {merged_s:.1f} s, at most {_MOST_S:g}")
    print(f"{'holds' if held[1] else 'MISSED'}: {peak_gb:.2f} GB, at most {_MOST_GB:g}")
    print(f"{'holds' if held[2] else 'MISSED'}: largest error {worst:.4%}, at most {RELATIVE_ERROR:.4%}")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
