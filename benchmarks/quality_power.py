"""What margin can an eval of n items carry? The figures in suites/quality-promotion.yaml and docs/guides/evals.md.

    .venv/bin/python -m benchmarks.quality_power [--simulations 20000]

First the paired items that a margin needs, by discordance (the share of items that one arm alone gets right). Then,
for the sizes of the shipped suites, how often an equal candidate is promoted (PASS or WARN): simulated, with the gate's
own test.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchgate.stats.power import items_for_power
from benchgate.stats.proportions import tango_limits

DISCORDANCES = (0.02, 0.05, 0.08, 0.10, 0.15)
MARGINS = (0.01, 0.02, 0.03, 0.05)
ALPHA = 0.05
SIZES = {
    "mmlu_pro, 200 of each subject": (2800, 0.02),
    "gsm8k_cot": (1319, 0.02),
    "ifeval": (541, 0.05),
    "humaneval_instruct": (164, 0.05),
    "quality-smoke, all tasks": (250, 0.05),
    "quality-smoke, one task": (50, 0.15),
}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=20_000)
    simulations = parser.parse_args().simulations
    print("Paired items needed to find a loss as large as the margin, power 95 % / 80 %:")
    print("| discordance | " + " | ".join(f"{margin:.0%}" for margin in MARGINS) + " |")
    for discordance in DISCORDANCES:
        print(f"| {discordance:.0%} | " + " | ".join(_needed(discordance, margin) for margin in MARGINS) + " |")
    print("\nShare of equal candidates that are promoted:")
    print("| eval | items | margin | " + " | ".join(f"f = {f:.0%}" for f in DISCORDANCES) + " |")
    for name, (items, margin) in SIZES.items():
        shares = (promoted(items, margin, discordance, simulations) for discordance in DISCORDANCES)
        print(f"| {name} | {items:,} | {margin * 100:g} points | " + " | ".join(f"{one:.0%}" for one in shares) + " |")


def _needed(discordance: float, margin: float) -> str:
    if margin >= discordance:
        return ""
    return " / ".join(f"{items_for_power(discordance, margin, power=power):,}" for power in (0.95, 0.80))


def promoted(items: int, margin: float, discordance: float, simulations: int) -> float:
    """How often the upper limit of the harm of an equal candidate stays below the margin."""
    generator = np.random.default_rng(1)
    drawn = generator.multinomial(items, [discordance / 2, discordance / 2, 1 - discordance], size=simulations)
    pairs, counts = np.unique(drawn[:, :2], axis=0, return_counts=True)
    inside = [tango_limits(int(lost), int(gained), items, ALPHA).upper < margin for lost, gained in pairs]
    return float(np.average(inside, weights=counts))


if __name__ == "__main__":
    main()
