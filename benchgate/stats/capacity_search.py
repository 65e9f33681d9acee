"""Search for the capacity, the highest load level that meets its target, and the sequential test of one level.

`next_look` and `search_result` are pure functions of the settings and of all looks so far, in order. So a real server,
a model of one, or stored results can drive the same search. A probe of one level takes up to five looks (interim
analyses) of growing size and ends as soon as the level is shown to meet its target or to miss it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Literal

import numpy as np

from benchgate.model.metric import Slo
from benchgate.model.records import FloatArray, IntArray, RequestColumns
from benchgate.model.request_metrics import e2e_s, meets_slo, succeeded, tpot_s, ttft_s
from benchgate.stats.clusters import effective_sample_size
from benchgate.stats.distributions import Limits, check_alpha, norm_sf
from benchgate.stats.proportions import clopper_pearson, share_above_p, share_below_p

LOOK_SHARES = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # share of a probe's requests in each look
LOOK_ALPHAS = (1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 2)
"""Share of a probe's error probability at each look; the last look has most data and gets half."""
MIN_RESIDENCE_TIMES = 10  # least length of a look at a steady server, in mean residence times of a request
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
    """Requests in flight in the measured window of an open loop."""

    before: int  # at the start of the window
    after: int  # at its end
    middle: float  # mean over its middle third
    last: float  # mean over its last third
    residence_s: float  # mean time in flight of the requests due in the last third


@dataclass(frozen=True, slots=True)
class LookCounts:
    """Counts of one look in its measured window, by the time that requests were due."""

    good: tuple[int, ...]  # of consecutive stretches, like `scheduled`
    scheduled: tuple[int, ...]
    cut: int  # by the window's end or an interruption: scheduled and not good
    used: tuple[float, ...]  # mean of `slo_usage` in each stretch
    used_squares: float  # sum over all requests
    backlog: Backlog | None  # None for a closed loop, where it cannot grow
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
    at_ns = np.concatenate([columns.intended_ns, _over_ns(columns)])
    step = np.repeat(np.array([1, -1], dtype=np.int64), len(columns))
    order = np.lexsort((-step, at_ns))  # what begins at an instant is there before what ends at it is gone
    held = np.cumsum(step[order])
    reached = np.flatnonzero(held >= math.ceil(_HELD_SHARE * concurrency))
    if len(reached) == 0:
        return None
    up, down = at_ns[order][reached[0]], at_ns[order][min(reached[-1] + 1, len(held) - 1)]
    inside = due_ns[(due_ns > up) & (due_ns <= down)]
    return SteadyWindow(int(inside[0]), int(inside[-1])) if len(inside) else None


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
    ends_ns = (window.start_ns, window.end_ns)
    before, after = (int(np.count_nonzero((due_ns <= at_ns) & (over_ns > at_ns))) for at_ns in ends_ns)
    return Backlog(
        before=before,
        after=after,
        middle=_mean_in_flight(due_ns, over_ns, middle, last) if last > middle else before,
        last=_mean_in_flight(due_ns, over_ns, last, end) if end > last else after,
        residence_s=float((over_ns - due_ns)[late].mean()) * _NS,
    )


def _mean_in_flight(due_ns: IntArray, over_ns: IntArray, from_ns: float, to_ns: float) -> float:
    inside = np.minimum(over_ns, to_ns) - np.maximum(due_ns, from_ns)
    return float(np.maximum(inside, 0).sum() / (to_ns - from_ns))


class LevelStatus(StrEnum):
    """Status of a load level against its target; OPEN is unresolved with looks to come."""

    PASS = "pass"
    FAIL = "fail"
    OPEN = "open"
    UNRESOLVED = "unresolved"

    @property
    def words(self) -> str:
        """Return the status in words for people."""
        return _STATUS_WORDS[self]


_STATUS_WORDS = {
    LevelStatus.PASS: "shown to meet the target",
    LevelStatus.FAIL: "shown to miss the target",
    LevelStatus.OPEN: "not settled yet",
    LevelStatus.UNRESOLVED: "shown neither to meet nor to miss the target",
}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of all looks at one level."""

    standing: LevelStatus
    good: int
    scheduled: int
    cut: int
    limits: Limits | None  # of the share of good requests, at the look's own alpha
    unstable: bool  # the backlog is shown to grow
    unsteady: bool  # it would pass, but a growing backlog cannot be excluded, or seems so
    needs: int | None  # further requests that would resolve an UNRESOLVED level at its share
    p_value: float | None  # of "it is the other way round" over all looks; None unless resolved
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
    unsteady, standing, needs = False, LevelStatus.OPEN, None
    if grows_p <= spent or (limits is not None and limits.upper < target):
        standing = LevelStatus.FAIL
    elif limits is not None and limits.lower >= target:
        unsteady = not _is_steady(looks)
        standing = LevelStatus.OPEN if unsteady else LevelStatus.PASS
    if standing is LevelStatus.OPEN and len(looks) >= len(LOOK_SHARES):
        standing = LevelStatus.UNRESOLVED
        needs = _requests_needed(looks, limits, target, unsteady=unsteady)
    return ProbeResult(
        standing=standing,
        good=good,
        scheduled=scheduled,
        cut=sum(look.cut for look in looks),
        limits=limits,
        unstable=grows_p <= spent,
        unsteady=unsteady,
        needs=needs,
        p_value=_p_value(standing, good, scheduled, trials, grows_p, target, part),
        window_s=sum(look.window_s for look in looks),
        stage_s=sum(look.stage_s for look in looks),
    )


def _effective_requests(looks: Sequence[LookCounts], alpha: float) -> float | None:
    """Return the effective number of requests of the looks; None without two stretches that hold one.

    The design effect of latencies is the variance of stretch means over that of independent requests, G/(G-1) · Σ
    n_g²(m_g - m)² / Σ(x - m)², over all G stretches of all looks; at least 1, and 1 where nothing varies.
    """
    stretches = [(k, n) for look in looks for k, n in zip(look.good, look.scheduled, strict=True) if n]
    effective = effective_sample_size([k for k, _ in stretches], [n for _, n in stretches], alpha)
    if effective is None:
        return None
    means = [mean for look in looks for mean in look.used]
    counts = [count for look in looks for count in look.scheduled]
    requests, design_effect = sum(counts), 1.0
    mean = sum(n * m for n, m in zip(counts, means, strict=True)) / requests
    spread = sum(look.used_squares for look in looks) - requests * mean * mean
    if spread > _NO_SPREAD * requests:
        between = sum((n * (m - mean)) ** 2 for n, m in zip(counts, means, strict=True))
        design_effect = max(1.0, between / spread * len(means) / (len(means) - 1))
    return min(effective, requests / design_effect)


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


SPARE_PROBES = 3  # beyond those of a search without unresolved levels
_CLIFF_FROM, _CLIFF_TO = 0.95, 0.5
_DIGITS = 4  # of a level between two others, for readable names


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Range, target and precision of a capacity search. Raises ValueError when a value is out of range."""

    over: Literal["rate", "concurrency"]
    lowest: float  # requests per second, or a whole number of requests in flight
    highest: float
    target_ratio: float
    resolution_ratio: float  # most that the bracket's upper end is above its lower one
    probe_requests: int  # most that one level may take, without ramps
    budget_requests: int | None = None  # most of the whole search with its ramps (`next_look`); None: no such limit
    alpha: float = 0.05  # probability that the bracket does not hold the capacity

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.highest < math.inf:
            raise ValueError(f"levels from {self.lowest:g} to {self.highest:g}; expected 0 < from <= to")
        if self.over == "concurrency" and (self.lowest % 1 or self.highest % 1):
            raise ValueError("concurrencies are whole numbers")
        if not 0 < self.resolution_ratio <= 1:
            raise ValueError(f"a resolution of {self.resolution_ratio:g}; expected above 0 and at most 1")

    @property
    def most_probes(self) -> int:
        """Return the probes to double past the highest level, to bisect to the resolution, and a few spare."""
        doublings = math.ceil(math.log2(self.highest / self.lowest) - 1e-9) + 1
        halvings = math.ceil(math.log2(math.log(2) / math.log1p(self.resolution_ratio)) - 1e-9)
        return doublings + max(0, halvings) + SPARE_PROBES

    @property
    def most_requests(self) -> int:
        """Return the most requests that a search may measure: every probe with every look at the highest level."""
        every = self.most_probes * sum(self.look_requests(self.highest, look) for look in range(len(LOOK_SHARES)))
        return every if self.budget_requests is None else min(every, self.budget_requests)

    def look_requests(self, level: float, look: int) -> int:
        """Return the requests of a look, enough that filling and emptying a concurrency is not most of it."""
        requests = max(1, math.ceil(self.probe_requests * LOOK_SHARES[look]))
        return max(requests, 4 * int(level)) if self.over == "concurrency" else requests

    @property
    def probe_alpha(self) -> float:
        """Return the error probability of one probe (Bonferroni): a search is wrong when any of its probes is."""
        return self.alpha / self.most_probes


@dataclass(frozen=True, slots=True)
class PlannedLook:
    """Planned look at a level, with its number and its requests."""

    level: float
    number: int
    requests: int

    @property
    def name(self) -> str:
        """Return the level as written in stage names, which `float` reads back: `2.5`."""
        return f"{self.level:.12g}"


@dataclass(frozen=True, slots=True)
class FinishedLook:
    """Finished look; `sent` counts every request, also those of its ramp and outside of the measured window.

    A look without `counts` was sent, but says nothing of the server.
    """

    level: float
    sent: int
    counts: LookCounts | None
    ramp: int = 0  # of `sent`: those that brought the load to its level and held it there


@dataclass(frozen=True, slots=True)
class Probe:
    """All looks at one level; `measured` are the requests of those that count, without their ramps."""

    level: float
    sent: int
    measured: int
    finding: ProbeResult


class StopReason(StrEnum):
    """Reason why a search ended."""

    CONVERGED = "converged"
    PROBES_EXHAUSTED = "probes_exhausted"
    BUDGET_EXHAUSTED = "budget_exhausted"
    UNMET_AT_MINIMUM = "unmet_at_minimum"
    NEVER_BREACHED = "never_breached"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search."""

    stop: StopReason | None  # None while it continues
    lower: float | None  # highest level shown to meet the target
    upper: float | None  # lowest level shown to miss it
    estimate: float | None  # where the monotone fit crosses the target, inside the bracket
    fit: IsotonicFit | None
    cliff: tuple[float, float] | None  # step from above 95% to below 50% between adjacent levels
    probes: tuple[Probe, ...]
    sent: int
    needs: int | None  # least further requests that would resolve an unresolved probe

    @property
    def measured(self) -> int:
        """Return the requests of the looks that count, without their ramps."""
        return sum(probe.measured for probe in self.probes)


def next_look(settings: SearchSettings, looks: Sequence[FinishedLook]) -> PlannedLook | StopReason:
    """Return the next look to take, or the reason why there is none.

    The budget has room for the look's requests and its ramp. A ramp lasts as long as the server makes it, so it is
    estimated as the largest so far, in proportion to the level. The first look's ramp, and what a later one sends
    beyond its estimate, come on top of the budget.
    """
    probes = _probes(settings, looks)
    if probes and probes[-1].finding.standing is LevelStatus.OPEN:
        number = sum(1 for look in looks if look.level == probes[-1].level and look.counts is not None)
        return _within_budget(settings, looks, probes[-1].level, number)
    level = _next_level(settings, probes)
    if isinstance(level, StopReason):
        return level
    if len(probes) >= settings.most_probes:
        return StopReason.PROBES_EXHAUSTED
    return _within_budget(settings, looks, level, 0)


def search_result(settings: SearchSettings, looks: Sequence[FinishedLook]) -> SearchResult:
    """Summarise the looks so far as a bracket and an estimate of the capacity."""
    probes = _probes(settings, looks)
    step = next_look(settings, looks)
    lower, upper = _bracket(probes)
    ordered = sorted(probes, key=lambda probe: probe.level)
    fit = isotonic_fit(
        [probe.level for probe in ordered],
        [probe.finding.good for probe in ordered],
        [probe.finding.scheduled for probe in ordered],
    )
    estimate = fit.crossing(settings.target_ratio) if fit is not None else None
    if estimate is not None and not (lower or 0.0) <= estimate <= (upper or math.inf):
        estimate = None
    needs = [probe.finding.needs for probe in probes if probe.finding.needs is not None]
    cliff = None
    shares = [(probe.level, share) for probe in ordered if (share := probe.finding.share) is not None]
    for (level, share), (above, share_above) in pairwise(shares):
        if cliff is None and share > _CLIFF_FROM and share_above < _CLIFF_TO:
            cliff = level, above
    return SearchResult(
        stop=step if isinstance(step, StopReason) else None,
        lower=lower,
        upper=upper,
        estimate=estimate,
        fit=fit,
        cliff=cliff,
        probes=tuple(ordered),
        sent=sum(look.sent for look in looks),
        needs=min(needs, default=None),
    )


def _probes(settings: SearchSettings, looks: Sequence[FinishedLook]) -> list[Probe]:
    """Group the looks by level, in the order in which levels were probed; without levels of which none counts."""
    found = []
    for level, group in groupby(looks, key=lambda look: look.level):
        taken = list(group)
        counts = [look.counts for look in taken if look.counts is not None]
        if counts:
            finding = evaluate_probe(counts, settings.target_ratio, settings.probe_alpha)
            measured = sum(look.sent - look.ramp for look in taken if look.counts is not None)
            found.append(Probe(level, sum(look.sent for look in taken), measured, finding))
    return found


def _bracket(probes: Sequence[Probe]) -> tuple[float | None, float | None]:
    """Return the highest level that passed and the lowest that failed.

    Looks taken for another SLO may show a level that passed above one that failed. The two contradict each other, so
    neither is an end and both lie inside the bracket.
    """
    passed = [probe.level for probe in probes if probe.finding.standing is LevelStatus.PASS]
    failed = [probe.level for probe in probes if probe.finding.standing is LevelStatus.FAIL]
    below = [level for level in passed if level < min(failed, default=math.inf)]
    above = [level for level in failed if level > max(passed, default=0.0)]
    return max(below, default=None), min(above, default=None)


def _next_level(settings: SearchSettings, probes: Sequence[Probe]) -> float | StopReason:
    """Double from the lowest level until one fails, then bisect between pass and fail on the log scale."""
    if not probes:
        return settings.lowest
    lower, upper = _bracket(probes)
    highest = max(probe.level for probe in probes)
    if upper is None and highest < settings.highest:
        return min(2 * highest, settings.highest)
    if upper is None and lower == settings.highest:
        return StopReason.NEVER_BREACHED
    if lower is None and upper == settings.lowest:
        return StopReason.UNMET_AT_MINIMUM
    if lower is not None and upper is not None and _is_narrow(settings, lower, upper):
        return StopReason.CONVERGED
    # The geometric middle of the bracket, or of the wider gap between its ends and the unresolved levels.
    unresolved = sorted(
        probe.level
        for probe in probes
        if probe.finding.standing is LevelStatus.UNRESOLVED
        and (lower is None or probe.level > lower)
        and (upper is None or probe.level < upper)
    )
    gaps = [(lower, unresolved[0]), (unresolved[-1], upper)] if unresolved else [(lower, upper)]
    known = [(low, high) for low, high in gaps if low is not None and high is not None]
    wide = [gap for gap in known if not _is_narrow(settings, *gap)]
    if not wide:
        return StopReason.UNRESOLVED
    low, high = max(wide, key=lambda gap: gap[1] / gap[0])
    middle = math.sqrt(low * high)
    if settings.over == "concurrency":
        return min(max(float(round(middle)), low + 1), high - 1)
    return float(f"{middle:.{_DIGITS}g}")


def _is_narrow(settings: SearchSettings, low: float, high: float) -> bool:
    if settings.over == "concurrency" and high - low <= 1:
        return True
    return high / low <= (1 + settings.resolution_ratio) * (1 + 1e-3)  # levels are rounded to their names


def _within_budget(
    settings: SearchSettings, looks: Sequence[FinishedLook], level: float, number: int
) -> PlannedLook | StopReason:
    requests = settings.look_requests(level, number)
    sent = sum(look.sent for look in looks)
    ramp = math.ceil(level * max((look.ramp / look.level for look in looks), default=0.0))
    if settings.budget_requests is not None and sent + requests + ramp > settings.budget_requests:
        return StopReason.BUDGET_EXHAUSTED
    return PlannedLook(level, number, requests)


@dataclass(frozen=True, slots=True)
class IsotonicFit:
    """Fitted share at each level, levels rising and shares never rising."""

    levels: tuple[float, ...]
    shares: tuple[float, ...]

    def crossing(self, target: float) -> float | None:
        """Return the level where the fit falls through the target, interpolated over ln(level); None without one."""
        above = [at for at, share in enumerate(self.shares) if share >= target]
        if not above or above[-1] == len(self.levels) - 1:
            return None
        low = above[-1]
        share, lower = self.shares[low], self.shares[low + 1]
        part = (share - target) / (share - lower)
        return math.exp((1 - part) * math.log(self.levels[low]) + part * math.log(self.levels[low + 1]))


def isotonic_fit(levels: Sequence[float], good: Sequence[int], totals: Sequence[int]) -> IsotonicFit | None:
    """Fit a non-increasing curve by least squares, each share weighted by its number of requests.

    Pool adjacent violators (Ayer et al. 1955; Barlow et al., Statistical Inference under Order Restrictions, 1972); for
    counts it is the maximum likelihood fit. Counts at one level are pooled first. Return None without any request.
    Raises ValueError for impossible counts or a level that is not finite and above 0.
    """
    if not len(levels) == len(good) == len(totals):
        raise ValueError(f"{len(levels)} levels, {len(good)} and {len(totals)} counts; expected equal numbers")
    pooled: dict[float, tuple[int, int]] = {}
    for level, hits, total in zip(levels, good, totals, strict=True):
        if not (0 < level < math.inf and 0 <= hits <= total):
            raise ValueError(f"{hits} of {total} at level {level!r}; expected 0 <= good <= total at a level above 0")
        if total:
            before = pooled.get(level, (0, 0))
            pooled[level] = before[0] + hits, before[1] + total
    if not pooled:
        return None
    ordered = sorted(pooled)
    pools: list[tuple[int, int, int]] = []  # good, total, levels
    for level in ordered:
        pools.append((*pooled[level], 1))
        while len(pools) > 1 and pools[-1][0] * pools[-2][1] > pools[-2][0] * pools[-1][1]:
            last, before_last = pools.pop(), pools.pop()
            pools.append((before_last[0] + last[0], before_last[1] + last[1], before_last[2] + last[2]))
    shares = (hits / total for hits, total, count in pools for _ in range(count))
    return IsotonicFit(tuple(ordered), tuple(shares))
