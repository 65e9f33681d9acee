"""Counting what share of the requests scheduled went wrong, and limits of the difference of two such shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from benchgate.gate.decision import Problem
from benchgate.model import request_metrics
from benchgate.model.records import ABSENT, BoolArray, ErrorClass, FloatArray, RequestColumns
from benchgate.model.request_metrics import Slo
from benchgate.model.run import LoadObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.distributions import Limits
from benchgate.stats.overdispersed import miss_share_limits
from benchgate.stats.proportions import newcombe_difference

Tally = Callable[[LoadObservation], tuple[int, int]]
"""Of one execution: how many requests missed, and of how many."""


def tally_of(metric: str, slo: Slo | None, failure: str | None = None) -> Tally:
    """What a miss is: not good (goodput), not successful, or failed in one way (error_rate), refused by 429 (rejected).

    Failures count wherever they happen, so error_rate and rejected are of the measured requests and of the ramp. Of
    validity, of those that were held to something: an answer that is not what it was to be, or none at all.
    ValueError for goodput without an SLO.
    """
    if metric == "goodput":
        if slo is None:
            raise ValueError("goodput needs an slo")
        return lambda o: (len(o.requests) - int(request_metrics.meets_slo(o.requests, slo).sum()), len(o.requests))
    if metric == "validity":
        return _invalid_answers
    wanted = ErrorClass.HTTP_429.value if metric == "rejected" else failure
    if wanted is not None:
        return lambda o: (_count(o, lambda rows: rows.error.are((wanted,))), sum(map(len, o.with_ramp)))
    return lambda o: (failures(o), sum(map(len, o.with_ramp)))


def failures(execution: LoadObservation) -> int:
    """Number of requests of an execution that did not succeed, measured or of the ramp."""
    return _count(execution, lambda rows: ~request_metrics.succeeded(rows))


def _count(execution: LoadObservation, marked: Callable[[RequestColumns], BoolArray]) -> int:
    return sum(int(np.count_nonzero(marked(rows))) for rows in execution.with_ramp)


def _invalid_answers(execution: LoadObservation) -> tuple[int, int]:
    """A request that failed brought no valid answer, whether or not anybody noted that it was asked for one."""
    valid = execution.requests.valid
    asked = valid != ABSENT
    if asked.any():
        asked |= ~request_metrics.succeeded(execution.requests)
    return int(np.count_nonzero(asked & (valid != 1))), int(np.count_nonzero(asked))


@dataclass(frozen=True, slots=True)
class Counts:
    """Per-block counts of one arm at one place."""

    misses: tuple[int, ...]
    totals: tuple[int, ...]

    @classmethod
    def of(cls, blocks: Iterable[LoadObservation], tally: Tally) -> Counts:
        """Those of some executions."""
        counted = [tally(block) for block in blocks]
        return cls(tuple(missed for missed, _ in counted), tuple(total for _, total in counted))

    @property
    def kept(self) -> tuple[int, ...]:
        """What did not miss, per block."""
        return tuple(total - missed for missed, total in zip(self.misses, self.totals, strict=True))

    @property
    def scheduled(self) -> int:
        """All of them."""
        return sum(self.totals)

    @property
    def missed(self) -> int:
        """All that missed."""
        return sum(self.misses)

    @property
    def share(self) -> float:
        """Missed of scheduled. ZeroDivisionError when nothing was."""
        return self.missed / self.scheduled

    @property
    def empty(self) -> bool:
        """Whether a block, or all of them, has nothing that could have missed."""
        return not self.totals or min(self.totals) == 0


def differences_of(pairs: Iterable[tuple[LoadObservation, LoadObservation]], tally: Tally) -> FloatArray:
    """The second's miss share minus the first's, one per pair. Every execution must have something to count."""
    counted = [(tally(first), tally(second)) for first, second in pairs]
    return np.array([ours[0] / ours[1] - theirs[0] / theirs[1] for theirs, ours in counted], dtype=np.float64)


def widened(limits: Limits, ours: Counts, theirs: Counts, alpha: float) -> tuple[Limits, Limits] | None:
    """Limits over blocks, widened to what requests and effective requests allow; and those over requests alone.

    Newcombe's over requests are too narrow, because requests of a block share its bad moments; those of t over a few
    blocks without a miss are; and rare bursts need each side's own limits on its effective number of requests.
    None where one side has none.
    """
    bursty = _bursty_difference(ours, theirs, alpha)
    if bursty is None:
        return None
    pooled = newcombe_difference(ours.missed, ours.scheduled, theirs.missed, theirs.scheduled, alpha)
    widest = Limits(
        lower=min(limits.lower, pooled.lower, bursty.lower), upper=max(limits.upper, pooled.upper, bursty.upper)
    )
    return widest, pooled


def _bursty_difference(ours: Counts, theirs: Counts, alpha: float) -> Limits | None:
    """Newcombe's combination (MOVER) of both sides' limits on their effective numbers of requests."""
    mine, other = (miss_share_limits(side.kept, side.totals, alpha) for side in (ours, theirs))
    if mine is None or other is None:
        return None
    difference = ours.share - theirs.share
    return Limits(
        lower=difference - math.hypot(ours.share - mine.lower, other.upper - theirs.share),
        upper=difference + math.hypot(mine.upper - ours.share, theirs.share - other.lower),
    )


def unmeasured(metric: str, stage: str, *sides: Counts) -> Problem:
    """Why there is no share: nothing was measured, or what was has none."""
    if metric != "validity" and all(len(side.totals) > 1 for side in sides) and any(side.empty for side in sides):
        reason = f"in a block of stage {stage} no request came to an end, so there is no share of those that failed"
        return Problem(Outcome.INVALID, reason, "make the stage longer, or what runs in its background shorter")
    if all(side.totals for side in sides) and any(side.empty for side in sides):
        reason = f"at stage {stage} no answer was held to a schema or to tools, so none can be valid"
        return Problem(Outcome.INVALID, reason, "give the workload a `schema` or `tools`")
    return Problem(Outcome.INVALID, f"stage {stage} was not measured in two blocks", "see the faults of the targets")
