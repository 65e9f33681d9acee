"""The results of workers that shared one start, as one result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from benchgate.load.result import ClassResult, StageResult, no_rows
from benchgate.model.columns import concatenate_columns
from benchgate.model.run import ClientUse

_NS = 1_000_000_000


def merged(results: Sequence[StageResult]) -> StageResult:
    """The results of workers that shared one start, as if one had done it all; rows in order of their index.

    Read delay and the busiest share are those of the worker that was worst off.
    """
    down_after_s = min((result.down_after_s for result in results if result.down_after_s is not None), default=None)
    if not results:
        return StageResult.of(no_rows(), 0.0, _use_of([]))
    classes = tuple(_class(group) for group in zip(*(result.classes for result in results), strict=True))
    return StageResult(classes, _use_of([result.client for result in results]), down_after_s)


def _class(shares: Sequence[ClassResult]) -> ClassResult:
    """The shares of one class, which stands in the same place with every worker."""
    return ClassResult(
        shares[0].name,
        concatenate_columns([share.requests for share in shares]),
        _window_s([share for share in shares if len(share.requests)]),
        concatenate_columns([share.left for share in shares]),
        concatenate_columns([share.ramp for share in shares]),
        any(share.in_steady_state for share in shares),
    )


def _window_s(shares: Sequence[ClassResult]) -> float:
    """The window of all shares; 0 without one.

    Each worker of a closed loop is in steady state for a time of its own, and the rate is the sum of theirs: the window
    is that in which all requests began at this rate.
    """
    if not shares:
        return 0.0
    if all(share.in_steady_state and share.window_s > 0 for share in shares):
        return sum(len(share.requests) for share in shares) / sum(len(s.requests) / s.window_s for s in shares)
    first_s = [int(share.requests.intended_ns.min()) / _NS for share in shares]
    return max(first + share.window_s for first, share in zip(first_s, shares, strict=True)) - min(first_s)


def _use_of(uses: Sequence[ClientUse]) -> ClientUse:
    by = {use.read_delay_by for use in uses if use.read_delay_by is not None}
    return ClientUse(
        cpu_s=sum(use.cpu_s for use in uses),
        wall_s=max((use.wall_s for use in uses), default=0.0),
        workers=len(uses),
        busiest_share=_worst(use.busiest_share for use in uses),
        read_delay_p50_s=_worst(use.read_delay_p50_s for use in uses),
        read_delay_p99_s=_worst(use.read_delay_p99_s for use in uses),
        read_delay_max_s=_worst(use.read_delay_max_s for use in uses),
        read_delay_by=None if not by else "kernel" if by == {"kernel"} else "canary",
        unasked=sum(use.unasked for use in uses),
        closed_early=sum(use.closed_early for use in uses),
        faults=tuple(chain.from_iterable(use.faults for use in uses)),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
