"""How often are the limits of goodput wrong? Simulates blocks whose requests share their fate; prints shares.

    .venv/bin/python -m benchmarks.goodput_limits [--runs 4000] [--seed 1]

Every row draws that many sweeps of beta-binomial blocks of 50 requests with the given share of misses and intra-class
correlation, and counts how often the true share lies above an upper limit that is promised to be wrong 5 % of the time:
benchgate's own, Clopper-Pearson on all requests as if they were independent, and Student's t over the blocks' shares.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import t

from benchgate.model.records import IntArray
from benchgate.stats.clusters import miss_share_limits
from benchgate.stats.proportions import clopper_pearson

ALPHA = 0.05
PER_BLOCK = 50
ROWS = ((0.10, 0.05, 10), (0.05, 0.30, 10), (0.05, 0.30, 20))  # misses, correlation, blocks


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    error = 2 * (ALPHA * (1 - ALPHA) / options.runs) ** 0.5
    print(f"{options.runs:,} sweeps a row; two standard errors at {ALPHA:.0%} are {100 * error:.1f} points")
    print("misses  correlation  blocks   benchgate  independent  t over blocks")
    for share, correlation, blocks in ROWS:
        missed = drawn(share, correlation, (options.runs, blocks), np.random.default_rng(options.seed))
        wrong = [np.mean([upper(row) < share for row in missed]) for upper in (own, independent, over_blocks)]
        shown = "  ".join(f"{value:11.1%}" for value in wrong)
        print(f"{share:6.0%}  {correlation:11.2f}  {blocks:6}{shown}")


def drawn(share: float, correlation: float, shape: tuple[int, int], generator: np.random.Generator) -> IntArray:
    """Misses per block: every block has a share of its own, beta-distributed around the true one."""
    concentration = 1 / correlation - 1
    shares = generator.beta(share * concentration, (1 - share) * concentration, size=shape)
    return generator.binomial(PER_BLOCK, shares)


def own(missed: IntArray) -> float:
    """The limit that the gate uses."""
    limits = miss_share_limits([PER_BLOCK - int(count) for count in missed], [PER_BLOCK] * len(missed), ALPHA)
    assert limits is not None, "there are two blocks and more"
    return limits.upper


def independent(missed: IntArray) -> float:
    """Clopper-Pearson on all requests."""
    return clopper_pearson(int(missed.sum()), PER_BLOCK * len(missed), ALPHA).upper


def over_blocks(missed: IntArray) -> float:
    """Student's t over the shares of the blocks."""
    shares = missed / PER_BLOCK
    return float(shares.mean() + t.ppf(1 - ALPHA, len(shares) - 1) * shares.std(ddof=1) / len(shares) ** 0.5)


if __name__ == "__main__":
    main()
