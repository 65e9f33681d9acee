"""The part of a look that counts: its measured requests, or where it has no ramp, a window found by rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchgate.model.metrics import Slo, e2e_s, good, succeeded, tpot_s, ttft_s
from benchgate.model.records import FloatArray, IntArray, RequestColumns
from benchgate.stats.probe import Backlog, LookCounts

LEAD_IN_SHARE = 0.2  # of an open loop's requests: those that meet a server which is not yet under this load
LEAD_OUT_SHARE = 0.1  # those that are answered while nothing new comes
STRETCHES = 5  # of a look: few and long, so that a burst of misses lies within one
_HELD_SHARE = 0.95  # of a concurrency: what counts as holding it
_MOST_USED = 2.0
_NS = 1e-9


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """From when to when a load was at its level, in ns since the start of the stage, both ends included."""

    start_ns: int
    end_ns: int


def steady_window(columns: RequestColumns, concurrency: int | None) -> SteadyWindow | None:
    """Find the steady part of a load that has no ramp, by the instants its requests were due; None where it has none.

    Loads without a ramp are open loops whose service time was not known, and runs of earlier versions.

    Closed loop: after the number in flight first reached 95 % of the concurrency, up to when it last fell below that.
    What brought it there left in one burst and is no steady state, so it does not count. Open loop: without the first
    20 % of the requests, which meet a server that is still filling up, and the last 10 %, which are answered while
    nothing new comes.
    """
    if len(columns) == 0:
        return None
    due_ns = np.sort(columns.intended_ns)
    if concurrency is None:
        first = min(math.ceil(LEAD_IN_SHARE * len(due_ns)), len(due_ns) - 1)
        last = max(first, len(due_ns) - 1 - math.floor(LEAD_OUT_SHARE * len(due_ns)))
        return SteadyWindow(int(due_ns[first]), int(due_ns[last]))
    up, down = _crossings(columns, math.ceil(_HELD_SHARE * concurrency))
    if up is None or down is None:
        return None
    inside = due_ns[(due_ns > up) & (due_ns <= down)]
    return SteadyWindow(int(inside[0]), int(inside[-1])) if len(inside) else None


def look_counts(
    columns: RequestColumns,
    slo: Slo,
    concurrency: int | None,
    planned: int,
    stretches: int = STRETCHES,
    *,
    ramp: RequestColumns | None = None,
) -> LookCounts | None:
    """Count what one look saw in its steady window; None where there is none.

    With a `ramp` around them all requests are in the window, and what was in flight beside them is known. `planned` is
    how many requests the look was to send: those without a record were cut, and count as scheduled and not good. The
    window's requests are dealt into as many as `stretches` consecutive stretches of equal size.
    """
    if ramp is not None and len(ramp) and len(columns):
        window: SteadyWindow | None = SteadyWindow(int(columns.intended_ns.min()), int(columns.intended_ns.max()))
        beside = [columns, ramp]
    else:
        window, beside = steady_window(columns, concurrency), [columns]
    if window is None:
        return None
    order = np.argsort(columns.intended_ns, kind="stable")
    due_ns = columns.intended_ns[order]
    all_due_ns = np.concatenate([rows.intended_ns for rows in beside])
    all_over_ns = np.concatenate([_over_ns(rows) for rows in beside])
    inside = (due_ns >= window.start_ns) & (due_ns <= window.end_ns)
    count = max(1, min(stretches, int(inside.sum())))
    parts = np.array_split(good(columns, slo)[order][inside], count)
    used = used_share(columns, slo)[order][inside]
    cut = max(0, planned - len(columns))
    hits, totals = [int(part.sum()) for part in parts], [len(part) for part in parts]
    totals[-1] += cut
    return LookCounts(
        good=tuple(hits),
        scheduled=tuple(totals),
        cut=cut,
        used=tuple(float(part.mean()) for part in np.array_split(used, count)),
        used_squares=float((used**2).sum()),
        backlog=_backlog(all_due_ns, all_over_ns, window) if concurrency is None else None,
        window_s=(window.end_ns - window.start_ns) * _NS,
        stage_s=float(all_over_ns.max() - all_due_ns.min()) * _NS,
    )


def used_share(columns: RequestColumns, slo: Slo) -> FloatArray:
    """How much of its tightest bound each request took: above 1 it missed it. At most 2, which a failure takes."""
    shares = [np.zeros(len(columns))]
    for bound, values in ((slo.ttft_s, ttft_s), (slo.tpot_s, tpot_s), (slo.e2e_s, e2e_s)):
        if bound is not None:
            shares.append(np.nan_to_num(values(columns) / bound, nan=0.0, posinf=_MOST_USED))
    most: FloatArray = np.minimum(np.max(shares, axis=0), _MOST_USED)
    return most


def _over_ns(columns: RequestColumns) -> IntArray:
    """When each request was no longer in flight. A failed one counts as gone at once: it is a miss, no backlog."""
    ended: IntArray = np.where(succeeded(columns), columns.end_ns, columns.intended_ns)
    return np.maximum(ended, columns.intended_ns)


def _crossings(columns: RequestColumns, level: int) -> tuple[int | None, int | None]:
    """When the number in flight first came up to the level, and when it last fell below it."""
    over_ns = _over_ns(columns)
    at_ns = np.concatenate([columns.intended_ns, over_ns])
    step = np.concatenate([np.ones(len(columns), dtype=np.int64), -np.ones(len(columns), dtype=np.int64)])
    order = np.lexsort((-step, at_ns))  # what begins at an instant is there before what ends at it is gone
    held = np.cumsum(step[order])
    reached = np.flatnonzero(held >= level)
    if len(reached) == 0:
        return None, None
    return int(at_ns[order][reached[0]]), int(at_ns[order][min(reached[-1] + 1, len(held) - 1)])


def _backlog(due_ns: IntArray, over_ns: IntArray, window: SteadyWindow) -> Backlog:
    """What was in flight in the window of an open loop; of one without length its ends stand for its thirds."""
    _, middle, last, end = np.linspace(window.start_ns, window.end_ns, 4)
    late = (due_ns >= last) & (due_ns <= end)
    before, after = (_in_flight(due_ns, over_ns, at_ns) for at_ns in (window.start_ns, window.end_ns))
    return Backlog(
        before=before,
        after=after,
        middle=_mean_in_flight(due_ns, over_ns, middle, last) if last > middle else before,
        last=_mean_in_flight(due_ns, over_ns, last, end) if end > last else after,
        residence_s=float((over_ns - due_ns)[late].mean()) * _NS,
    )


def _mean_in_flight(due_ns: IntArray, over_ns: IntArray, from_ns: float, to_ns: float) -> float:
    """The time that all requests spent in flight between two instants, over the time between them."""
    inside = np.minimum(over_ns, to_ns) - np.maximum(due_ns, from_ns)
    return float(np.maximum(inside, 0).sum() / (to_ns - from_ns))


def _in_flight(due_ns: IntArray, over_ns: IntArray, at_ns: int) -> int:
    """Requests that were due by then and not yet over."""
    return int(np.count_nonzero((due_ns <= at_ns) & (over_ns > at_ns)))
