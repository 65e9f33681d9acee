"""Probe of one load level: steady window, request counts, and a sequential test against the target.

A probe takes up to five looks (interim analyses) of growing size and ends as soon as the level is shown to meet its
target or to miss it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from benchgate.model.records import FloatArray, IntArray, RequestColumns
from benchgate.model.request_metrics import Slo, e2e_s, meets_slo, succeeded, tpot_s, ttft_s
from benchgate.stats.distributions import Limits, check_alpha, norm_sf
from benchgate.stats.overdispersed import effective_sample_size
from benchgate.stats.proportions import clopper_pearson, share_above_p, share_below_p

LOOK_SHARES = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Share of a probe's requests in each look."""
LOOK_ALPHAS = (1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 2)
"""Share of a probe's error probability at each look; the last look has most data and gets half."""
MIN_RESIDENCE_TIMES = 10
"""Least length of a look at a steady server, in mean residence times of a request."""
LEAD_IN_SHARE = 0.2  # of an open loop's requests: sent before the server is in a steady state
LEAD_OUT_SHARE = 0.1  # of an open loop's requests: answered while no new ones come
STRETCHES = 5  # of a look: few and long, so that a burst of misses lies within one
_DISPERSION = 4.0
_NO_SPREAD = 1e-12
_SHORT_S, _SHORT_SHARE = 10.0, 0.1
_UNSTABLE_SHARE = 0.01  # largest growth of a stable backlog, as a share of the scheduled requests
_LEANING_SHARE = 0.05  # largest rise in flight from the middle to the last third at a level that passes, likewise
_HELD_SHARE = 0.95  # of a concurrency: reached counts as held
_MOST_USED = 2.0
_NS = 1e-9


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests in flight in the measured window of an open loop.

    `before` and `after` are the counts at its ends, `middle` and `last` the means over its middle and last third.
    `residence_s` is the mean time in flight of the requests due in the last third.
    """

    before: int
    after: int
    middle: float
    last: float
    residence_s: float


@dataclass(frozen=True, slots=True)
class LookCounts:
    """Counts of one look in its measured window, by the time that requests were due.

    `good` and `scheduled` are counts of consecutive stretches. `cut` requests, cut off by the window's end or an
    interruption, count as scheduled and not good. `used` is each stretch's mean of `slo_usage`, and `used_squares` the
    sum of squares over all. `backlog` is None for a closed loop, where it cannot grow.
    """

    good: tuple[int, ...]
    scheduled: tuple[int, ...]
    cut: int
    used: tuple[float, ...]
    used_squares: float
    backlog: Backlog | None
    window_s: float = 0.0
    stage_s: float = 0.0  # the window with the time before and after it


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """First and last instant of a load at its level, in ns since the start of the stage, both included."""

    start_ns: int
    end_ns: int


def look_counts(
    columns: RequestColumns,
    slo: Slo,
    concurrency: int | None,
    planned: int,
    stretches: int = STRETCHES,
    *,
    ramp: RequestColumns | None = None,
) -> LookCounts | None:
    """Count one look's requests in its steady window; None if there is none.

    With a `ramp` before and after them, all requests are in the window, and the ramp counts as in flight. `planned` is
    the number of requests of the look: those without a record were cut, and count as scheduled and not good. The
    window's requests are split into up to `stretches` consecutive stretches of equal size.
    """
    if ramp is not None and len(ramp) and len(columns):
        window: SteadyWindow | None = SteadyWindow(int(columns.intended_ns.min()), int(columns.intended_ns.max()))
        all_rows = [columns, ramp]
    else:
        window, all_rows = steady_window(columns, concurrency), [columns]
    if window is None:
        return None
    order = np.argsort(columns.intended_ns, kind="stable")
    due_ns = columns.intended_ns[order]
    all_due_ns = np.concatenate([rows.intended_ns for rows in all_rows])
    all_over_ns = np.concatenate([_over_ns(rows) for rows in all_rows])
    inside = (due_ns >= window.start_ns) & (due_ns <= window.end_ns)
    count = max(1, min(stretches, int(inside.sum())))
    parts = np.array_split(meets_slo(columns, slo)[order][inside], count)
    used = slo_usage(columns, slo)[order][inside]
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


def steady_window(columns: RequestColumns, concurrency: int | None) -> SteadyWindow | None:
    """Find the steady part of a load without a ramp, by the times its requests were due; None if there is none.

    Loads without a ramp are open loops of unknown service time, and runs of earlier versions. Closed loop: after the
    number in flight first reached 95% of the concurrency, until it last fell below that; the initial burst does not
    count. Open loop: without the first 20% of the requests, sent to a server that is still filling up, and the last
    10%, answered while no new ones come.
    """
    if len(columns) == 0:
        return None
    due_ns = np.sort(columns.intended_ns)
    if concurrency is None:
        first = min(math.ceil(LEAD_IN_SHARE * len(due_ns)), len(due_ns) - 1)
        last = max(first, len(due_ns) - 1 - math.floor(LEAD_OUT_SHARE * len(due_ns)))
        return SteadyWindow(int(due_ns[first]), int(due_ns[last]))
    up, down = _held_between(columns, math.ceil(_HELD_SHARE * concurrency))
    if up is None or down is None:
        return None
    inside = due_ns[(due_ns > up) & (due_ns <= down)]
    return SteadyWindow(int(inside[0]), int(inside[-1])) if len(inside) else None


def _held_between(columns: RequestColumns, level: int) -> tuple[int | None, int | None]:
    """Return when the number in flight first reached the level, and when it last fell below it."""
    over_ns = _over_ns(columns)
    at_ns = np.concatenate([columns.intended_ns, over_ns])
    step = np.concatenate([np.ones(len(columns), dtype=np.int64), -np.ones(len(columns), dtype=np.int64)])
    order = np.lexsort((-step, at_ns))  # what begins at an instant is there before what ends at it is gone
    held = np.cumsum(step[order])
    reached = np.flatnonzero(held >= level)
    if len(reached) == 0:
        return None, None
    return int(at_ns[order][reached[0]]), int(at_ns[order][min(reached[-1] + 1, len(held) - 1)])


def slo_usage(columns: RequestColumns, slo: Slo) -> FloatArray:
    """Return the share of its tightest bound that each request used, at most 2: a miss is above 1, a failure 2."""
    shares = [np.zeros(len(columns))]
    for bound, values in ((slo.ttft_s, ttft_s), (slo.tpot_s, tpot_s), (slo.e2e_s, e2e_s)):
        if bound is not None:
            shares.append(np.nan_to_num(values(columns) / bound, nan=0.0, posinf=_MOST_USED))
    most: FloatArray = np.minimum(np.max(shares, axis=0), _MOST_USED)
    return most


def _over_ns(columns: RequestColumns) -> IntArray:
    """Return when each request left flight; failed ones leave at once, because they are misses and no backlog."""
    ended: IntArray = np.where(succeeded(columns), columns.end_ns, columns.intended_ns)
    return np.maximum(ended, columns.intended_ns)


def _backlog(due_ns: IntArray, over_ns: IntArray, window: SteadyWindow) -> Backlog:
    """Measure the requests in flight in an open loop's window; its ends stand for the thirds of a zero-length one."""
    _, middle, last, end = np.linspace(window.start_ns, window.end_ns, 4)
    late = (due_ns >= last) & (due_ns <= end)
    before, after = (
        int(np.count_nonzero((due_ns <= at_ns) & (over_ns > at_ns))) for at_ns in (window.start_ns, window.end_ns)
    )
    return Backlog(
        before=before,
        after=after,
        middle=_mean_in_flight(due_ns, over_ns, middle, last) if last > middle else before,
        last=_mean_in_flight(due_ns, over_ns, last, end) if end > last else after,
        residence_s=float((over_ns - due_ns)[late].mean()) * _NS,
    )


def _mean_in_flight(due_ns: IntArray, over_ns: IntArray, from_ns: float, to_ns: float) -> float:
    """Return the mean number in flight between two instants."""
    inside = np.minimum(over_ns, to_ns) - np.maximum(due_ns, from_ns)
    return float(np.maximum(inside, 0).sum() / (to_ns - from_ns))


class LevelStatus(StrEnum):
    """Status of a load level against its target; OPEN is unresolved with looks to come."""

    PASS = "pass"
    FAIL = "fail"
    OPEN = "open"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of all looks at one level; `limits` are those of the share of good requests at the look's own alpha.

    `unstable`: the backlog is shown to grow. `unsteady`: the level would pass, but the look is too short to exclude a
    growing backlog, or the backlog seems to grow. `needs` estimates the additional requests that would resolve an
    UNRESOLVED level at its present share; None when no number would. `p_value` is that of "it is the other way round"
    over all looks, at most the alpha spent; None unless the level is resolved.
    """

    standing: LevelStatus
    good: int
    scheduled: int
    cut: int
    limits: Limits | None
    unstable: bool
    unsteady: bool
    needs: int | None
    p_value: float | None
    window_s: float
    stage_s: float

    @property
    def short(self) -> bool:
        """Return True if all windows together last under 10 s, or under 10% of their stages."""
        return self.window_s < max(_SHORT_S, _SHORT_SHARE * self.stage_s)

    @property
    def share(self) -> float | None:
        """Return the share of good requests; None when none were scheduled."""
        return self.good / self.scheduled if self.scheduled else None


def evaluate_probe(looks: Sequence[LookCounts], target: float, alpha: float) -> ProbeResult:
    """Test a level against its target after the looks so far, each direction wrong with probability at most `alpha`.

    PASS when the lower limit of the share of good requests is at least the target. FAIL when the upper limit is below
    it or the backlog is shown to grow: a queue that grows without end meets no target for long. A look begins on an
    empty server, which answers well at first under any load, so PASS also requires `_is_steady`. Each look spends its
    own part of alpha (`LOOK_ALPHAS`), so repeated looks do not raise the error.

    Limits are Clopper-Pearson's on an effective number of requests: that by how misses cluster in the stretches
    (`stats.overdispersed`), and at most that by how latencies correlate in them. Misses come in bursts, and a burst not
    yet seen has no spread. But whatever lengthens a queue raises latencies together long before one of them breaks its
    bound. Raises ValueError for an alpha or a target out of range.
    """
    check_alpha(alpha)
    if not 0 < target < 1:
        raise ValueError(f"target is {target!r}; expected a share above 0 and below 1")
    good, scheduled = sum(sum(look.good) for look in looks), sum(sum(look.scheduled) for look in looks)
    part = LOOK_ALPHAS[min(max(len(looks), 1), len(LOOK_ALPHAS)) - 1]
    spent = alpha * part
    trials, grows_p = _effective_requests(looks, spent), backlog_growth_p(looks)
    limits = None if trials is None else clopper_pearson(good / scheduled * trials, trials, spent)
    unsteady, standing = False, LevelStatus.OPEN
    if grows_p <= spent or (limits is not None and limits.upper < target):
        standing = LevelStatus.FAIL
    elif limits is not None and limits.lower >= target:
        unsteady = not _is_steady(looks)
        standing = LevelStatus.OPEN if unsteady else LevelStatus.PASS
    if standing is LevelStatus.OPEN and len(looks) >= len(LOOK_SHARES):
        standing = LevelStatus.UNRESOLVED
    return ProbeResult(
        standing=standing,
        good=good,
        scheduled=scheduled,
        cut=sum(look.cut for look in looks),
        limits=limits,
        unstable=grows_p <= spent,
        unsteady=unsteady,
        needs=_requests_needed(looks, limits, target, unsteady=unsteady)
        if standing is LevelStatus.UNRESOLVED
        else None,
        p_value=_p_value(standing, good, scheduled, trials, grows_p, target, part),
        window_s=sum(look.window_s for look in looks),
        stage_s=sum(look.stage_s for look in looks),
    )


def _effective_requests(looks: Sequence[LookCounts], alpha: float) -> float | None:
    """Return the effective number of requests of the looks; None without two stretches that hold one."""
    stretches = [(k, n) for look in looks for k, n in zip(look.good, look.scheduled, strict=True) if n]
    effective = effective_sample_size([k for k, _ in stretches], [n for _, n in stretches], alpha)
    if effective is None:
        return None
    return min(effective, sum(n for _, n in stretches) / _latency_design_effect(looks))


def _latency_design_effect(looks: Sequence[LookCounts]) -> float:
    """Return the design effect of latencies: the variance of stretch means over that of independent requests.

    G/(G-1) · Σ n_g²(m_g - m)² / Σ(x - m)², over all G stretches of all looks; at least 1, and 1 where nothing varies.
    """
    means = [mean for look in looks for mean in look.used]
    counts = [count for look in looks for count in look.scheduled]
    requests = sum(counts)
    mean = sum(n * m for n, m in zip(counts, means, strict=True)) / requests
    spread = sum(look.used_squares for look in looks) - requests * mean * mean
    between = sum((n * (m - mean)) ** 2 for n, m in zip(counts, means, strict=True))
    if spread <= _NO_SPREAD * requests:
        return 1.0
    return max(1.0, between / spread * len(means) / (len(means) - 1))


def backlog_growth_p(looks: Sequence[LookCounts]) -> float:
    """Return the p-value of "the backlog grows by at most 1% of the scheduled requests"; 1 for a closed loop.

    Numbers in flight vary like Poisson counts while requests do not slow each other, and with up to four times that
    variance in a batching engine below its capacity. A difference of two has the sum of their variances. At capacity
    itself a backlog follows a random walk and no slope shows it, but the share of good requests does. This test finds
    the loads whose SLO is too loose to notice the queue within a window.
    """
    backlogs = [look.backlog for look in looks if look.backlog is not None]
    if not backlogs:
        return 1.0
    before, after = sum(backlog.before for backlog in backlogs), sum(backlog.after for backlog in backlogs)
    came = sum(sum(look.scheduled) for look in looks)
    noise = math.sqrt(_DISPERSION * max(1, after + before))
    return norm_sf((after - before - _UNSTABLE_SHARE * came) / noise)


def _is_steady(looks: Sequence[LookCounts]) -> bool:
    """Return True if an open loop may be in a steady state; a closed loop always is.

    A server at f times its capacity lets requests wait (f - 1)t after t seconds. So the last look must last ten times
    the residence time of its last requests, which is impossible from f = 1.1 on. And requests in flight may rise from
    the middle to the last third of the windows by at most 5% of the arrivals in a third, which f = 1.05 exceeds. The
    first third is left out because the server starts empty.
    """
    open_looks = [(look, look.backlog) for look in looks if look.backlog is not None]
    if not open_looks:
        return True
    if _relative_length(looks[-1]) < 1:
        return False
    risen = sum(backlog.last - backlog.middle for _, backlog in open_looks)
    return risen <= _LEANING_SHARE * sum(sum(look.scheduled) for look, _ in open_looks) / 3


def _relative_length(look: LookCounts) -> float:
    """Return the window's length over the least length of a look at a steady server."""
    stayed_s = look.backlog.residence_s if look.backlog is not None else 0.0
    return look.window_s / (MIN_RESIDENCE_TIMES * stayed_s) if stayed_s > 0 else math.inf


def _p_value(
    standing: LevelStatus, good: int, scheduled: int, trials: float | None, grows_p: float, target: float, part: float
) -> float | None:
    """Return the p-value of a level that passed or failed, valid over all looks by weighted Bonferroni.

    It is P(as good or better | share is the target) for PASS and P(as bad or worse) for FAIL, over the look's part of
    alpha.
    """
    if standing not in (LevelStatus.PASS, LevelStatus.FAIL):
        return None
    p_value = grows_p if standing is LevelStatus.FAIL else 1.0
    if trials is not None:
        hits = trials * good / scheduled
        if standing is LevelStatus.PASS:
            p_value = share_above_p(hits, trials, target)
        else:
            p_value = min(p_value, share_below_p(hits, trials, target))
    return min(1.0, p_value / part)


def _requests_needed(
    looks: Sequence[LookCounts], limits: Limits | None, target: float, *, unsteady: bool
) -> int | None:
    """Estimate the requests that bring the nearer limit to the target (limits narrow with √n) or make looks long."""
    good, scheduled = sum(sum(look.good) for look in looks), sum(sum(look.scheduled) for look in looks)
    if limits is None or scheduled == 0:
        return None
    if unsteady:
        lasted = _relative_length(looks[-1])
        return math.ceil(scheduled * (1 / lasted - 1)) if 0 < lasted < 1 else None
    share = good / scheduled
    distance = abs(share - target)
    width = share - limits.lower if share >= target else limits.upper - share
    if distance <= 1e-9:
        return None
    return max(1, math.ceil(scheduled * ((width / distance) ** 2 - 1)))
