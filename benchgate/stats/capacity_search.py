"""Does a load level meet its target? Looked at a few times while it is sampled, and said only when it is shown.

A curve that can only fall, fitted to shares that were counted at several levels of load.

Where to look next for the highest load that meets its target: a search that follows from what was seen alone.

`next_look` and `search_result` are functions of the settings and of every look so far, in order. So a search can be
driven by a real server, by a model of one, or by a store, and says the same.

The part of a look that counts: its measured requests, or where it has no ramp, a window found by rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Literal

import numpy as np

from benchgate.model.records import FloatArray, IntArray, RequestColumns
from benchgate.model.request_metrics import Slo, e2e_s, good, succeeded, tpot_s, ttft_s
from benchgate.stats.distributions import Limits, beta_cdf, beta_ppf, check_alpha, norm_sf
from benchgate.stats.overdispersed import effective_requests

LOOK_SHARES = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""The fixed grid of looks: shares of a probe's requests, one look after the other."""
LOOK_ALPHAS = (1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 2)
"""How a probe's error probability is spent over its looks: half of it on the last, which has most to go on."""

_DISPERSION = 4.0
_NOTHING = 1e-12
_SHORT_S, _SHORT_SHARE = 10.0, 0.1
_UNSTABLE_SHARE = 0.01  # of the requests that came: what may be left over without counting as a backlog that grows
RESIDENCES = 10  # times as long as a request stays: what a look lasts at least to speak of a steady server
_LEANING_SHARE = 0.05  # of the requests that came: what more in flight a third later leaves a level that may pass


class Standing(StrEnum):
    """What is known of a level. OPEN is unresolved with looks to come."""

    PASS = "pass"
    FAIL = "fail"
    OPEN = "open"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many requests an open loop had in flight in the measured window.

    At its two ends, `before` and `after`; on average in its `middle` third and in its `last` one. `residence_s`: how
    long the requests that were due in the last third stayed, on average.
    """

    before: int
    after: int
    middle: float
    last: float
    residence_s: float


@dataclass(frozen=True, slots=True)
class LookCounts:
    """What one look saw in its measured window, requests by the instant they were due.

    `good` and `scheduled` are counts of consecutive stretches. Requests that the window's end or an interruption cut
    are among the scheduled and not among the good; `cut` says how many. `used` is, for each stretch, the mean share of
    its tightest bound that a request took (`window.used_share`), and `used_squares` the sum of squares over all of
    them. `backlog` is None for a closed loop, in which it cannot grow.
    """

    good: tuple[int, ...]
    scheduled: tuple[int, ...]
    cut: int
    used: tuple[float, ...]
    used_squares: float
    backlog: Backlog | None
    window_s: float = 0.0
    stage_s: float = 0.0  # with what came before the window and after it


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """All looks at one level together. `limits` are those of the share of good requests at the look's own alpha.

    `unstable` is set when the backlog is shown to grow, `unsteady` when a level would pass but for a look too short to
    tell whether it does, or for a backlog that seems to. `needs` is about how many more requests would resolve a level
    that is UNRESOLVED, were its share what it seems to be; None when no number of them would. `p_value` is that of
    "it is the other way round" over all looks, at most the alpha that was spent; None unless the level is resolved.
    """

    standing: Standing
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
        """Whether all windows together are too short to speak of a steady state: under 10 s, or 10 % of the stages."""
        return self.window_s < max(_SHORT_S, _SHORT_SHARE * self.stage_s)

    @property
    def share(self) -> float | None:
        """Good requests of those scheduled; None when there were none."""
        return self.good / self.scheduled if self.scheduled else None


def judge_probe(looks: Sequence[LookCounts], target: float, alpha: float) -> ProbeFinding:
    """What the looks so far say of one level, each direction wrong with probability at most `alpha` over all looks.

    PASS when the lower limit of the share of good requests is at least the target, FAIL when the upper one is below it
    or the backlog is shown to grow: what grows without end meets no target for long. A look begins on an empty server,
    which answers well for a while whatever comes, so a level passes only when `_is_steady` too. Every look has its own
    part of alpha (`LOOK_ALPHAS`), so that looking again is no second chance.

    The limits are Clopper-Pearson's on an effective number of requests: Korn and Graubard's by how misses cluster in
    the stretches (`stats.attainment`), and at most the one by how latencies move together in them. Misses come in
    bursts, and a burst that was never seen has no spread of its own; but what makes a queue long for a while makes
    latencies rise together long before one of them breaks its bound.
    ValueError for an alpha or a target out of range.
    """
    check_alpha(alpha)
    if not 0 < target < 1:
        raise ValueError(f"target is {target!r}; expected a share above 0 and below 1")
    good, scheduled = sum(sum(look.good) for look in looks), sum(sum(look.scheduled) for look in looks)
    part = LOOK_ALPHAS[min(max(len(looks), 1), len(LOOK_ALPHAS)) - 1]
    spent = alpha * part
    trials, grows_p = _trials(looks, spent), growth_p(looks)
    limits = None if trials is None else _limits(good / scheduled, trials, spent)
    standing = _standing(limits, grows_p <= spent, target)
    unsteady = standing is Standing.PASS and not _is_steady(looks)
    if unsteady:
        standing = Standing.OPEN
    if standing is Standing.OPEN and len(looks) >= len(LOOK_SHARES):
        standing = Standing.UNRESOLVED
    return ProbeFinding(
        standing=standing,
        good=good,
        scheduled=scheduled,
        cut=sum(look.cut for look in looks),
        limits=limits,
        unstable=grows_p <= spent,
        unsteady=unsteady,
        needs=_needed(looks, limits, target, unsteady=unsteady) if standing is Standing.UNRESOLVED else None,
        p_value=_p_value(standing, good, scheduled, trials, grows_p, target, part),
        window_s=sum(look.window_s for look in looks),
        stage_s=sum(look.stage_s for look in looks),
    )


def _standing(limits: Limits | None, unstable: bool, target: float) -> Standing:
    if unstable:
        return Standing.FAIL
    if limits is None:
        return Standing.OPEN
    if limits.lower >= target:
        return Standing.PASS
    return Standing.FAIL if limits.upper < target else Standing.OPEN


def _trials(looks: Sequence[LookCounts], alpha: float) -> float | None:
    """How many independent requests tell as much as those of the looks; None without two stretches that hold one."""
    stretches = [(k, n) for look in looks for k, n in zip(look.good, look.scheduled, strict=True) if n]
    effective = effective_requests([k for k, _ in stretches], [n for _, n in stretches], alpha)
    if effective is None:
        return None
    return min(effective, sum(n for _, n in stretches) / _moving_together(looks))


def _moving_together(looks: Sequence[LookCounts]) -> float:
    """The design effect of latencies: the variance of the stretches' means against that of as many independent ones.

    G/(G-1) · Σ n_g²(m_g - m)² / Σ(x - m)², over all G stretches of all looks; at least 1, and 1 where nothing varies.
    """
    means = [mean for look in looks for mean in look.used]
    counts = [count for look in looks for count in look.scheduled]
    requests = sum(counts)
    mean = sum(n * m for n, m in zip(counts, means, strict=True)) / requests
    spread = sum(look.used_squares for look in looks) - requests * mean * mean
    between = sum((n * (m - mean)) ** 2 for n, m in zip(counts, means, strict=True))
    if spread <= _NOTHING * requests:
        return 1.0
    return max(1.0, between / spread * len(means) / (len(means) - 1))


def _limits(share: float, trials: float, alpha: float) -> Limits:
    """Clopper-Pearson of a share of so many trials, which need not be a whole number."""
    hits = share * trials
    return Limits(
        lower=beta_ppf(alpha, hits, trials - hits + 1) if share > 0 else 0.0,
        upper=beta_ppf(1 - alpha, hits + 1, trials - hits) if share < 1 else 1.0,
    )


def _p_value(
    standing: Standing, good: int, scheduled: int, trials: float | None, grows_p: float, target: float, part: float
) -> float | None:
    """P(as good or better | at the target) of a level that passed, P(as bad or worse) of one that failed.

    Over the look's part of alpha (Bonferroni's with weights), so that it holds for all looks together.
    """
    if standing not in (Standing.PASS, Standing.FAIL):
        return None
    p_value = grows_p if standing is Standing.FAIL else 1.0
    if trials is not None:
        hits = trials * good / scheduled
        if standing is Standing.PASS:
            p_value = beta_cdf(target, hits, trials - hits + 1) if hits > 0 else 1.0
        elif trials > hits:
            p_value = min(p_value, 1 - beta_cdf(target, hits + 1, trials - hits))
    return min(1.0, p_value / part)


def growth_p(looks: Sequence[LookCounts]) -> float:
    """p-value of "no more than 1 % of the requests that came are left over": whether a backlog grows beyond noise.

    Numbers in flight vary like Poisson counts where no request slows another, and with up to four times that variance
    in a batching engine below its capacity; a difference of two has the variance of their sum. At capacity itself a
    backlog wanders like the root of time and no slope shows it, but the share of good requests does; this finds the
    loads whose SLO is too loose to notice within a window. 1 for a closed loop, which has no backlog.
    """
    backlogs = [look.backlog for look in looks if look.backlog is not None]
    if not backlogs:
        return 1.0
    before, after = sum(backlog.before for backlog in backlogs), sum(backlog.after for backlog in backlogs)
    came = sum(sum(look.scheduled) for look in looks)
    noise = math.sqrt(_DISPERSION * max(1, after + before))
    return norm_sf((after - before - _UNSTABLE_SHARE * came) / noise)


def _is_steady(looks: Sequence[LookCounts]) -> bool:
    """Whether what was seen of an open loop may stand for a load that goes on; a closed loop always may.

    Of a server that is sent f times what it can do, requests stay ever longer: after t seconds (f - 1)t. So the last
    look must have lasted ten times as long as its last requests stayed, which no look does from f = 1.1 on, however
    long it lasts. And what was in flight may not have risen from the middle third of the windows to the last one by
    more than 5 % of what came between them, which f = 1.05 exceeds; one third follows another, so that the empty
    server at the start of a look is no part of it.
    """
    open_looks = [(look, look.backlog) for look in looks if look.backlog is not None]
    if not open_looks:
        return True
    if _lasted(looks[-1]) < 1:
        return False
    risen = sum(backlog.last - backlog.middle for _, backlog in open_looks)
    return risen <= _LEANING_SHARE * sum(sum(look.scheduled) for look, _ in open_looks) / 3


def _lasted(look: LookCounts) -> float:
    """The window over the shortest that may speak of a steady server."""
    stayed_s = look.backlog.residence_s if look.backlog is not None else 0.0
    return look.window_s / (RESIDENCES * stayed_s) if stayed_s > 0 else math.inf


def _needed(looks: Sequence[LookCounts], limits: Limits | None, target: float, *, unsteady: bool) -> int | None:
    """More requests until the nearer limit reaches the target (limits narrow with the root of n), or looks are long."""
    good, scheduled = sum(sum(look.good) for look in looks), sum(sum(look.scheduled) for look in looks)
    if limits is None or scheduled == 0:
        return None
    if unsteady:
        lasted = _lasted(looks[-1])
        return math.ceil(scheduled * (1 / lasted - 1)) if 0 < lasted < 1 else None
    share = good / scheduled
    distance = abs(share - target)
    width = share - limits.lower if share >= target else limits.upper - share
    if distance <= 1e-9:
        return None
    return max(1, math.ceil(scheduled * ((width / distance) ** 2 - 1)))


@dataclass(frozen=True, slots=True)
class FallingFit:
    """The fitted share at each level, both in order of rising level; shares never rise."""

    levels: tuple[float, ...]
    shares: tuple[float, ...]

    def crossing(self, target: float) -> float | None:
        """The level at which the fit comes down through the target, on a straight line over ln(level) between two.

        None where the fit stays on one side of it: nothing is said beyond the levels that were looked at.
        """
        above = [at for at, share in enumerate(self.shares) if share >= target]
        if not above or above[-1] == len(self.levels) - 1:
            return None
        low = above[-1]
        share, lower = self.shares[low], self.shares[low + 1]
        part = (share - target) / (share - lower)
        return math.exp((1 - part) * math.log(self.levels[low]) + part * math.log(self.levels[low + 1]))


def falling_fit(levels: Sequence[float], good: Sequence[int], totals: Sequence[int]) -> FallingFit | None:
    """Least squares among all curves that never rise, each share weighted by its number of requests.

    Pool adjacent violators (Ayer et al. 1955; Barlow et al., Statistical Inference under Order Restrictions, 1972); for
    counts it is the most likely such curve. Counts at one level are pooled first. None without any request. ValueError
    for counts that cannot be or a level that is not finite and above 0.
    """
    if not len(levels) == len(good) == len(totals):
        raise ValueError(f"{len(levels)} levels, {len(good)} and {len(totals)} counts; expected as many of each")
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
    return FallingFit(tuple(ordered), tuple(_fallen([pooled[level] for level in ordered])))


def _fallen(counts: Sequence[tuple[int, int]]) -> list[float]:
    """The shares after neighbours that rise were pooled, again and again, until none does."""
    pools: list[tuple[int, int, int]] = []  # good, total, levels
    for kept, total in counts:
        pools.append((kept, total, 1))
        while len(pools) > 1 and pools[-1][0] * pools[-2][1] > pools[-2][0] * pools[-1][1]:
            last, before = pools.pop(), pools.pop()
            pools.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    return [kept / total for kept, total, levels in pools for _ in range(levels)]


SPARE_PROBES = 3  # beyond those that a search without an unresolved level needs
_CLIFF_FROM, _CLIFF_TO = 0.95, 0.5
_DIGITS = 4  # of a level in the middle of two: what a person can read


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What is searched, and how well it must be known.

    Levels are rates in requests per second, or concurrencies (whole numbers). `resolution_ratio`: the bracket's upper
    end is at most so much above its lower one. `probe_requests`: the most that one level may take.
    `budget_requests`: the most that the whole search may take, None for no bound but that of its probes. `alpha`: the
    probability that the bracket does not hold the capacity. ValueError when a value is out of range.
    """

    over: Literal["rate", "concurrency"]
    lowest: float
    highest: float
    target_ratio: float
    resolution_ratio: float
    probe_requests: int
    budget_requests: int | None = None
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.highest < math.inf:
            raise ValueError(f"levels from {self.lowest:g} to {self.highest:g}; expected 0 < from <= to")
        if self.over == "concurrency" and (self.lowest % 1 or self.highest % 1):
            raise ValueError("concurrencies are whole numbers")
        if not 0 < self.resolution_ratio <= 1:
            raise ValueError(f"a resolution of {self.resolution_ratio:g}; expected above 0 and at most 1")

    @property
    def most_probes(self) -> int:
        """Probes until it has doubled past the highest level, halved one doubling to the resolution, and some spare."""
        doublings = math.ceil(math.log2(self.highest / self.lowest) - 1e-9) + 1
        halvings = math.ceil(math.log2(math.log(2) / math.log1p(self.resolution_ratio)) - 1e-9)
        return doublings + max(0, halvings) + SPARE_PROBES

    @property
    def most_requests(self) -> int:
        """What a search sends that looks at every level it may for as long as it may, all of them the highest."""
        every = self.most_probes * sum(self.look_requests(self.highest, look) for look in range(len(LOOK_SHARES)))
        return every if self.budget_requests is None else min(every, self.budget_requests)

    def look_requests(self, level: float, look: int) -> int:
        """How many requests a look sends. What fills a concurrency and what empties it must not be most of them."""
        requests = max(1, math.ceil(self.probe_requests * LOOK_SHARES[look]))
        return max(requests, 4 * int(level)) if self.over == "concurrency" else requests

    @property
    def probe_alpha(self) -> float:
        """What one probe may spend: a search is wrong when any of its probes is."""
        return self.alpha / self.most_probes


@dataclass(frozen=True, slots=True)
class Look:
    """One look to take, or taken: which look at which level, and how many requests it sends."""

    level: float
    number: int
    requests: int

    @property
    def name(self) -> str:
        """The level as it is written in the name of a stage: `2.5`."""
        return level_name(self.level)


@dataclass(frozen=True, slots=True)
class TakenLook:
    """A look with what it saw. `sent` counts every request, those outside of the measured window too."""

    level: float
    sent: int
    counts: LookCounts


@dataclass(frozen=True, slots=True)
class Probe:
    """All looks at one level."""

    level: float
    sent: int
    finding: ProbeFinding


class Stop(StrEnum):
    """Why a search ended."""

    CONVERGED = "converged"
    PROBES_EXHAUSTED = "probes_exhausted"
    BUDGET_EXHAUSTED = "budget_exhausted"
    UNMET_AT_MINIMUM = "unmet_at_minimum"
    NEVER_BREACHED = "never_breached"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found; `stop` is None while it goes on.

    The capacity lies from `lower`, the highest level shown to meet the target, to `upper`, the lowest shown to miss
    it; None where no level was shown to. `estimate` is where the monotone fit over all probes crosses the target, None
    where it does not or where it falls outside of the bracket. `cliff` is a step from more than 95 % to less than 50 %
    between neighbouring levels. `needs`: more requests that the unresolved probe nearest to its resolution needs.
    """

    stop: Stop | None
    lower: float | None
    upper: float | None
    estimate: float | None
    fit: FallingFit | None
    cliff: tuple[float, float] | None
    probes: tuple[Probe, ...]
    sent: int
    needs: int | None


def level_name(level: float) -> str:
    """A level as text, the same text for the same level; `float` reads it back."""
    return f"{level:.12g}"


def next_look(settings: SearchSettings, looks: Sequence[TakenLook]) -> Look | Stop:
    """The look to take after these, or why there is none."""
    probes = _probes(settings, looks)
    if probes and probes[-1].finding.standing is Standing.OPEN:
        number = sum(1 for look in looks if look.level == probes[-1].level)
        return _within_budget(settings, looks, probes[-1].level, number)
    level = _next_level(settings, probes)
    if isinstance(level, Stop):
        return level
    if len(probes) >= settings.most_probes:
        return Stop.PROBES_EXHAUSTED
    return _within_budget(settings, looks, level, 0)


def search_result(settings: SearchSettings, looks: Sequence[TakenLook]) -> SearchResult:
    """What the looks so far say of the capacity."""
    probes = _probes(settings, looks)
    step = next_look(settings, looks)
    lower, upper = _bracket(probes)
    ordered = sorted(probes, key=lambda probe: probe.level)
    fit = falling_fit(
        [probe.level for probe in ordered],
        [probe.finding.good for probe in ordered],
        [probe.finding.scheduled for probe in ordered],
    )
    estimate = fit.crossing(settings.target_ratio) if fit is not None else None
    if estimate is not None and not (lower or 0.0) <= estimate <= (upper or math.inf):
        estimate = None
    needs = [probe.finding.needs for probe in probes if probe.finding.needs is not None]
    return SearchResult(
        stop=step if isinstance(step, Stop) else None,
        lower=lower,
        upper=upper,
        estimate=estimate,
        fit=fit,
        cliff=_cliff(ordered),
        probes=tuple(ordered),
        sent=sum(look.sent for look in looks),
        needs=min(needs, default=None),
    )


def _probes(settings: SearchSettings, looks: Sequence[TakenLook]) -> list[Probe]:
    """The looks at each level together, in the order the levels were looked at."""
    found = []
    for level, group in groupby(looks, key=lambda look: look.level):
        taken = list(group)
        finding = judge_probe([look.counts for look in taken], settings.target_ratio, settings.probe_alpha)
        found.append(Probe(level, sum(look.sent for look in taken), finding))
    return found


def _bracket(probes: Sequence[Probe]) -> tuple[float | None, float | None]:
    """Largest level that passed, smallest that failed.

    A level that passed above one that failed, as looks that were taken for another SLO may show, contradicts it: then
    neither is an end, and both lie inside the bracket.
    """
    passed = [probe.level for probe in probes if probe.finding.standing is Standing.PASS]
    failed = [probe.level for probe in probes if probe.finding.standing is Standing.FAIL]
    below = [level for level in passed if level < min(failed, default=math.inf)]
    above = [level for level in failed if level > max(passed, default=0.0)]
    return max(below, default=None), min(above, default=None)


def _next_level(settings: SearchSettings, probes: Sequence[Probe]) -> float | Stop:
    """Double from the lowest level until one fails; then halve what is left between pass and fail, over ln(level)."""
    if not probes:
        return settings.lowest
    lower, upper = _bracket(probes)
    highest = max(probe.level for probe in probes)
    if upper is None and highest < settings.highest:
        return min(2 * highest, settings.highest)
    if upper is None and lower == settings.highest:
        return Stop.NEVER_BREACHED
    if lower is None and upper == settings.lowest:
        return Stop.UNMET_AT_MINIMUM
    if lower is not None and upper is not None and _is_narrow(settings, lower, upper):
        return Stop.CONVERGED
    return _between(settings, probes, lower, upper)


def _between(
    settings: SearchSettings, probes: Sequence[Probe], lower: float | None, upper: float | None
) -> float | Stop:
    """The middle of the wider gap beside the levels that stayed unresolved, or of the whole bracket without any."""
    unresolved = sorted(
        probe.level
        for probe in probes
        if probe.finding.standing is Standing.UNRESOLVED
        and (lower is None or probe.level > lower)
        and (upper is None or probe.level < upper)
    )
    edges = [lower, *unresolved[:1]], [*unresolved[-1:], upper]
    gaps = [(lower, upper)] if not unresolved else [(edge[0], edge[-1]) for edge in edges]
    wide = [
        (low, high)
        for low, high in gaps
        if low is not None and high is not None and not _is_narrow(settings, low, high)
    ]
    if not wide:
        return Stop.UNRESOLVED
    low, high = max(wide, key=lambda gap: gap[1] / gap[0])
    return _middle(settings, low, high)


def _middle(settings: SearchSettings, low: float, high: float) -> float:
    """The geometric mean; of concurrencies a whole number between them."""
    middle = _named(settings, math.sqrt(low * high))
    if settings.over == "concurrency":
        return min(max(middle, low + 1), high - 1)
    return middle


def _named(settings: SearchSettings, level: float) -> float:
    """The nearest level that a person can read."""
    return float(round(level)) if settings.over == "concurrency" else float(f"{level:.{_DIGITS}g}")


def _is_narrow(settings: SearchSettings, low: float, high: float) -> bool:
    if settings.over == "concurrency" and high - low <= 1:
        return True
    return high / low <= (1 + settings.resolution_ratio) * (1 + 1e-3)  # levels are rounded to their names


def _within_budget(settings: SearchSettings, looks: Sequence[TakenLook], level: float, number: int) -> Look | Stop:
    requests = settings.look_requests(level, number)
    sent = sum(look.sent for look in looks)
    if settings.budget_requests is not None and sent + requests > settings.budget_requests:
        return Stop.BUDGET_EXHAUSTED
    return Look(level, number, requests)


def _cliff(ordered: Sequence[Probe]) -> tuple[float, float] | None:
    shares = [(probe.level, share) for probe in ordered if (share := probe.finding.share) is not None]
    for (level, share), (above, share_above) in pairwise(shares):
        if share > _CLIFF_FROM and share_above < _CLIFF_TO:
            return level, above
    return None


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
