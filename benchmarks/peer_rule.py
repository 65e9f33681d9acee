"""The rule that inference-doctor's README describes, made again from its words, to see that the noise is the same.

Throughput of repeated runs on each side, not interleaved and not paired; Welch's t limits on the log ratio of the means
at 5 % on each side, against a threshold of 10 %: FAIL where the whole interval is beyond it, PASS where none of it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchgate.model.verdict import Outcome
from benchgate.stats.means import two_sample_t
from benchmarks.gate_cells import seeded
from benchmarks.made_runs import Judged

_THRESHOLD = -math.log1p(-0.10)
_CV = 0.04


@dataclass(frozen=True, slots=True)
class PeerCell:
    """So many runs of each arm, the candidate slower by so many thresholds of 10 %."""

    runs: int
    effect: float

    @property
    def name(self) -> str:
        """All that it is."""
        return f"{self.runs} runs, {self.effect:g} thresholds"

    def gates(self) -> Callable[[int], Judged]:
        """One comparison."""
        return self._compared

    def _compared(self, number: int) -> Judged:
        baseline, candidate = seeded(self.name, number).normal(0, _CV, size=(2, self.runs))
        harm = -math.log1p(-0.10 * self.effect)
        test = two_sample_t(baseline, candidate + harm, 0.05)
        assert test is not None, "three runs give an interval"
        if test.limits.lower >= _THRESHOLD:
            return Judged(Outcome.BLOCK, self.runs)
        return Judged(Outcome.PASS if test.limits.upper < _THRESHOLD else Outcome.INCONCLUSIVE, self.runs)
