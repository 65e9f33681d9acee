"""How long an arm's server took to start, as far as its run started it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """So many starts, each from the server's process to its first good completion, in seconds."""

    count: int
    median_s: float
    worst_s: float


def cold_starts(evidence: Evidence, arm: Arm) -> ColdStarts | None:
    """Of this arm alone; None where the run started none, and where one of the times cannot be."""
    times_s = [start.to_answer_s for start in evidence.starts if start.arm is arm]
    if not times_s or not all(math.isfinite(time_s) and time_s > 0 for time_s in times_s):
        return None
    return ColdStarts(len(times_s), median(times_s), max(times_s))
