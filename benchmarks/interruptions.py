"""How much does interrupting a run gain? The figures of docs/adr/14-one-resumption.md.

.venv/bin/python -m benchmarks.interruptions [--runs 40000]

The candidate is exactly as bad as its margin. Its blocks' differences are normal. Each is seen before it counts: one
above a threshold is thrown away and drawn again, as often as runs may be interrupted. Shown is the share of runs whose
upper 95 % t limit lies below the margin all the same, at the threshold that makes it largest.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import t

from benchgate.model.records import FloatArray
from benchmarks.tables import in_table

ALPHA = 0.05
BLOCKS = (6, 10, 20)
MOST = 3


def passed(draws: FloatArray, blocks: int, most: int, threshold: float) -> float:
    """The share of runs (rows of `draws`) that pass when up to `most` draws above the threshold are thrown away."""
    left, kept = np.full(len(draws), most), np.zeros(len(draws))
    total, squares = np.zeros(len(draws)), np.zeros(len(draws))
    for draw in draws.T[: blocks + most]:
        under_way = kept < blocks
        thrown = under_way & (draw > threshold) & (left > 0)
        counts = under_way & ~thrown
        left -= thrown
        kept += counts
        total += np.where(counts, draw, 0.0)
        squares += np.where(counts, draw**2, 0.0)
    mean = total / blocks
    error = np.sqrt((squares - blocks * mean**2) / (blocks - 1) / blocks)
    return float(np.mean(mean + t.ppf(1 - ALPHA, blocks - 1) * error < 0))


def main() -> None:
    """Simulate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40_000)
    runs = parser.parse_args().runs
    generator, thresholds = np.random.default_rng(1), np.arange(0.0, 2.6, 0.2)
    rows = []
    for blocks in BLOCKS:
        draws = generator.standard_normal((runs, blocks + MOST))
        shares = [max(passed(draws, blocks, most, at) for at in thresholds) for most in range(MOST + 1)]
        rows.append([str(blocks), *(f"{share:.0%}".replace("%", " %") for share in shares)])
    print("\n".join(in_table(("blocks", "never interrupted", "once", "twice", "three times"), rows)))


if __name__ == "__main__":
    main()
