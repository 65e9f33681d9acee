"""Which of the two deployments to look at first, where blocks do not settle a comparison."""

from __future__ import annotations

import numpy as np

from benchgate.gate.comparison import Comparison, load_of
from benchgate.gate.shares import failures
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.units import show_percent

_TIMES = 2.0  # as much spread, or as many failures, as the other arm
_LEAST_SPREAD = 0.02  # below it, more blocks are the shorter way
_LEAST_FAILED = 3


def which_arm(comparison: Comparison, stage: str, baseline: FloatArray, candidate: FloatArray) -> str | None:
    """`look at the candidate first: …`; None where both are alike. The arrays are one value for each block.

    Of two stored runs the judged one's arms are looked at.
    """
    failed = {arm: _failed(comparison, stage, arm) for arm in Arm}
    for arm in Arm:
        (ours, of), theirs = failed[arm], failed[arm.other][0]
        if ours >= _LEAST_FAILED and ours >= _TIMES * theirs:
            return f"look at the {arm} first: {ours:,} of its {of:,} requests failed at {stage}"
    if len(baseline) < 2 or min(baseline.min(), candidate.min()) <= 0:
        return None
    spread = {
        arm: float(np.std(np.log(values), ddof=1)) for arm, values in zip(Arm, (baseline, candidate), strict=True)
    }
    restless = max(Arm, key=lambda arm: spread[arm])
    if spread[restless] < max(_LEAST_SPREAD, _TIMES * spread[restless.other]):
        return None
    own, other = (show_percent(spread[arm]) for arm in (restless, restless.other))
    return f"look at the {restless} first: from block to block it varies by {own}, the {restless.other} by {other}"


def _failed(comparison: Comparison, stage: str, arm: Arm) -> tuple[int, int]:
    blocks = load_of(comparison.judged, stage, arm).values()
    return sum(failures(block) for block in blocks), sum(len(rows) for block in blocks for rows in block.with_ramp)
