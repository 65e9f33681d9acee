"""How often is an unchanged candidate blocked on a real machine's noise? Replays series of repeated runs.

    .venv/bin/python -m benchmarks.noise_series FOLDER [--every 1] [--keep FILE] [--write]

FOLDER holds CSV files of `starttime,value`: runs of one unchanged benchmark on one machine in time order, more being
better. Those of docs/background/error-rates.md are of the AzurePublicDataset (vm-noise-data, 2024, CC-BY): per
benchmark the first machine of type D8s_v5, its first 3,000 runs.

From every start, blocks are taken in time order as a run would measure them: baseline, candidate, candidate, baseline
and so on, with a margin of 5 % and looks after 5, 10 and 20 blocks. Beside it the very same values as if all of the
baseline had been measured first. Nothing was changed, so every BLOCK is false. Exits 1 when more than 2 % of the
default's are.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchgate.model.records import FloatArray
from benchmarks.gate_cells import Made, Tally, shown_looks, simulated, usual_processes
from benchmarks.made_runs import Judged, abba, load_suite, one_after_the_other, run_of
from benchmarks.tables import in_table, shown, write_table

MOST_FALSE = 0.02
_CHECK: dict[str, object] = {"metric": "output_throughput", "margin": "5%"}
_DEFAULT = (5, 10, 20)
_FIXED = ((5,), (10,), (20,))


@dataclass(frozen=True, slots=True)
class SeriesCell:
    """One series, from every so many starts."""

    file: Path
    looks: tuple[int, ...]
    interleaved: bool
    every: int

    @property
    def name(self) -> str:
        """All that it is."""
        order = "interleaved" if self.interleaved else "apart"
        return f"{self.file.name}, {shown_looks(self.looks)} blocks, {order}, every {self.every}"

    @property
    def starts(self) -> int:
        """How many windows of the plan's length there are."""
        return len(range(0, len(series(self.file)) - 2 * self.looks[-1] + 1, self.every))

    def gates(self) -> Callable[[int], Judged]:
        """The gate of each start, by number."""
        values = series(self.file)
        suite = load_suite([_CHECK], ["s"], self.looks)
        made = Made(suite, run_of(suite), rate=True)
        turns = abba(self.looks[-1]) if self.interleaved else one_after_the_other(self.looks[-1])
        return lambda number: made.decided(values[number * self.every :][turns][None])


def series(file: Path) -> FloatArray:
    """Its values in time order. Raises ValueError for one that is not a number above 0."""
    with file.open(encoding="utf-8", newline="") as rows:
        values = np.array([float(row["value"]) for row in csv.DictReader(rows)])
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"{file.name}: a run without a value above 0")
    return values


def cells(folder: Path, every: int) -> Iterator[tuple[str, SeriesCell]]:
    """Every series by name, interleaved as the default has it, and in both orders with fixed numbers of blocks."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        sys.exit(f"there are no CSV files in {folder}; see the head of this file for where they are from")
    for file in files:
        yield file.stem, SeriesCell(file, _DEFAULT, True, every)
        for looks in _FIXED:
            for interleaved in (True, False):
                yield file.stem, SeriesCell(file, looks, interleaved, every)


def main() -> int:
    """Replay, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take every so many starts")
    parser.add_argument("--keep", type=Path, help="keep finished cells in this file, and do not simulate them again")
    parser.add_argument("--processes", type=int, default=usual_processes())
    parser.add_argument("--write", action="store_true", help="write the table into docs/background/error-rates.md")
    chosen = parser.parse_args()
    named = list(cells(chosen.folder, chosen.every))
    sizes = [(cell, cell.starts) for _, cell in named]
    found = {
        (name, cell.looks, cell.interleaved): tally
        for (name, cell), (_, tally) in zip(named, simulated(sizes, chosen.keep, chosen.processes), strict=True)
    }
    table = "\n".join(lines(found))
    print(table)
    if chosen.write:
        write_table("series", table)
    missed = [name for (name, looks, _), tally in found.items() if looks == _DEFAULT and tally.blocked > MOST_FALSE]
    print(f"bar: at most {MOST_FALSE:.0%} blocked, interleaved, at the default: ", end="")
    print(f"MISSED by {', '.join(missed)}" if missed else "held")
    return int(bool(missed))


def lines(found: dict[tuple[str, tuple[int, ...], bool], Tally]) -> Iterator[str]:
    """A line for each series and number of blocks, the two orders side by side."""
    head = ("series", "blocks", "starts", "A B B A", "all A, then all B")
    rows = []
    for (name, looks, interleaved), tally in found.items():
        if interleaved:
            apart = found.get((name, looks, False))
            rows.append(
                (name, shown_looks(looks), f"{tally.gates:,}", shown(tally), shown(apart) if apart is not None else "-")
            )
    yield from in_table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
