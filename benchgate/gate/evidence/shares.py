"""Counts of requests that missed: failed, not good, refused or not valid, per block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from benchgate.gate.decision import CannotJudge, invalid
from benchgate.model import request_metrics
from benchgate.model.metric import Slo
from benchgate.model.records import BoolArray, ErrorClass, FloatArray, RequestColumns
from benchgate.model.run import LoadObservation

Tally = Callable[[LoadObservation], tuple[int, int]]
"""Returns of one execution how many requests missed, and of how many."""


def tally_of(metric: str, slo: Slo | None, failure: str | None = None) -> Tally:
    """Return the tally of a metric: requests that are not good (goodput), failed (error_rate), got a 429 (rejected).

    `failure` counts one error class alone. Failures count wherever they happen, so error_rate and rejected include the
    ramp. Validity counts invalid and failed answers of the requests with a schema or tools. Raises ValueError for
    goodput without an SLO.
    """
    if metric == "goodput":
        if slo is None:
            raise ValueError("goodput needs an slo")
        return lambda o: (len(o.requests) - int(request_metrics.meets_slo(o.requests, slo).sum()), len(o.requests))
    if metric == "validity":
        return _invalid_answers
    if metric == "session_success":
        return _failed_sessions
    error = ErrorClass.HTTP_429.value if metric == "rejected" else failure
    if error is not None:
        return lambda o: (_count(o, lambda rows: rows.error.are((error,))), sum(map(len, o.with_ramp)))
    return lambda o: (request_metrics.count_failed(*o.with_ramp), sum(map(len, o.with_ramp)))


def _count(execution: LoadObservation, marked: Callable[[RequestColumns], BoolArray]) -> int:
    return sum(int(np.count_nonzero(marked(rows))) for rows in execution.with_ramp)


def _invalid_answers(execution: LoadObservation) -> tuple[int, int]:
    counted = request_metrics.counted_in_validity(execution.requests)
    return int(np.count_nonzero(counted & (execution.requests.valid != 1))), int(np.count_nonzero(counted))


def _failed_sessions(execution: LoadObservation) -> tuple[int, int]:
    succeeded = request_metrics.session_succeeded(execution.requests)
    return int(np.count_nonzero(~succeeded)), len(succeeded)


@dataclass(frozen=True, slots=True)
class Counts:
    """Per-block counts of one arm at one place."""

    misses: tuple[int, ...]
    totals: tuple[int, ...]

    @classmethod
    def of(cls, blocks: Iterable[LoadObservation], tally: Tally) -> Counts:
        """Count executions."""
        counted = [tally(block) for block in blocks]
        return cls(tuple(missed for missed, _ in counted), tuple(total for _, total in counted))

    @property
    def kept(self) -> tuple[int, ...]:
        """Return the requests that did not miss, per block."""
        return tuple(total - missed for missed, total in zip(self.misses, self.totals, strict=True))

    @property
    def scheduled(self) -> int:
        """Return the number of requests."""
        return sum(self.totals)

    @property
    def missed(self) -> int:
        """Return the number of misses."""
        return sum(self.misses)

    @property
    def share(self) -> float:
        """Return misses over requests. Raises ZeroDivisionError without requests."""
        return self.missed / self.scheduled

    @property
    def empty(self) -> bool:
        """Return True if a block has no requests, or there is no block."""
        return not self.totals or min(self.totals) == 0


def differences_of(pairs: Iterable[tuple[LoadObservation, LoadObservation]], tally: Tally) -> FloatArray:
    """Return the second's miss share minus the first's, one per pair. Every execution must have requests."""
    counted = [(tally(first), tally(second)) for first, second in pairs]
    return np.array([ours[0] / ours[1] - theirs[0] / theirs[1] for theirs, ours in counted], dtype=np.float64)


def unmeasured(metric: str, stage: str, *sides: Counts) -> CannotJudge:
    """Return the refusal of a share that has no requests: nothing was measured, or nothing that it counts."""
    if (
        metric not in ("validity", "session_success")
        and all(len(side.totals) > 1 for side in sides)
        and any(side.empty for side in sides)
    ):
        reason = f"in a block of stage {stage} no request came to an end, so there is no share of those that failed"
        return invalid(reason, "make the stage longer, or what runs in its background shorter")
    if metric == "session_success" and all(side.totals for side in sides) and any(side.empty for side in sides):
        return invalid(f"in a block of stage {stage} no request belongs to a session", "give the workload `sessions`")
    if all(side.totals for side in sides) and any(side.empty for side in sides):
        reason = f"at stage {stage} no answer was held to a schema or to tools, so none can be valid"
        return invalid(reason, "give the workload a `schema` or `tools`")
    return invalid(f"stage {stage} was not measured in two blocks", "see the faults of the targets")
