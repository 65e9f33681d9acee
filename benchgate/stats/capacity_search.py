"""Search for the capacity: the highest load level that meets its target.

`next_look` and `search_result` are pure functions of the settings and of all looks so far, in order. So a real server,
a model of one, or stored results can drive the same search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Literal

from benchgate.stats.load_probe import LOOK_SHARES, LevelStatus, LookCounts, ProbeResult, evaluate_probe

SPARE_PROBES = 3  # beyond those of a search without unresolved levels
_CLIFF_FROM, _CLIFF_TO = 0.95, 0.5
_DIGITS = 4  # of a level between two others, for readable names


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Range, target and precision of a capacity search.

    Levels are rates in requests per second, or concurrencies (integers). The bracket's upper end is at most
    `resolution_ratio` above its lower one. `probe_requests` is the most that one level may take, `budget_requests` the
    most that the whole search may take (None: no other limit than that of its probes). `alpha` is the probability that
    the bracket does not hold the capacity. Raises ValueError when a value is out of range.
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
        """Return the probes to double past the highest level, to bisect to the resolution, and a few spare."""
        doublings = math.ceil(math.log2(self.highest / self.lowest) - 1e-9) + 1
        halvings = math.ceil(math.log2(math.log(2) / math.log1p(self.resolution_ratio)) - 1e-9)
        return doublings + max(0, halvings) + SPARE_PROBES

    @property
    def most_requests(self) -> int:
        """Return the most requests that a search may send: every probe with every look at the highest level."""
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
        """Return the level as written in stage names: `2.5`."""
        return level_name(self.level)


@dataclass(frozen=True, slots=True)
class FinishedLook:
    """Finished look; `sent` counts every request, also those outside of the measured window."""

    level: float
    sent: int
    counts: LookCounts


@dataclass(frozen=True, slots=True)
class Probe:
    """All looks at one level."""

    level: float
    sent: int
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
    """Result of a search; `stop` is None while it continues.

    The capacity lies between `lower`, the highest level shown to meet the target, and `upper`, the lowest shown to miss
    it; each None if there is no such level. `estimate` is where the monotone fit over all probes crosses the target,
    None if it does not or crosses outside of the bracket. `cliff` is a step from more than 95% to less than 50% between
    adjacent levels. `needs` is the least number of further requests that would resolve an unresolved probe.
    """

    stop: StopReason | None
    lower: float | None
    upper: float | None
    estimate: float | None
    fit: IsotonicFit | None
    cliff: tuple[float, float] | None
    probes: tuple[Probe, ...]
    sent: int
    needs: int | None


def next_look(settings: SearchSettings, looks: Sequence[FinishedLook]) -> PlannedLook | StopReason:
    """Return the next look to take, or the reason why there is none."""
    probes = _probes(settings, looks)
    if probes and probes[-1].finding.standing is LevelStatus.OPEN:
        number = sum(1 for look in looks if look.level == probes[-1].level)
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
    return SearchResult(
        stop=step if isinstance(step, StopReason) else None,
        lower=lower,
        upper=upper,
        estimate=estimate,
        fit=fit,
        cliff=_cliff(ordered),
        probes=tuple(ordered),
        sent=sum(look.sent for look in looks),
        needs=min(needs, default=None),
    )


def _probes(settings: SearchSettings, looks: Sequence[FinishedLook]) -> list[Probe]:
    """Group the looks by level, in the order in which levels were probed."""
    found = []
    for level, group in groupby(looks, key=lambda look: look.level):
        taken = list(group)
        finding = evaluate_probe([look.counts for look in taken], settings.target_ratio, settings.probe_alpha)
        found.append(Probe(level, sum(look.sent for look in taken), finding))
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
    return _between(settings, probes, lower, upper)


def _between(
    settings: SearchSettings, probes: Sequence[Probe], lower: float | None, upper: float | None
) -> float | StopReason:
    """Return the geometric middle of the bracket, or of the wider gap between its ends and the unresolved levels."""
    unresolved = sorted(
        probe.level
        for probe in probes
        if probe.finding.standing is LevelStatus.UNRESOLVED
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
    if settings.budget_requests is not None and sent + requests > settings.budget_requests:
        return StopReason.BUDGET_EXHAUSTED
    return PlannedLook(level, number, requests)


def _cliff(ordered: Sequence[Probe]) -> tuple[float, float] | None:
    shares = [(probe.level, share) for probe in ordered if (share := probe.finding.share) is not None]
    for (level, share), (above, share_above) in pairwise(shares):
        if share > _CLIFF_FROM and share_above < _CLIFF_TO:
            return level, above
    return None


def level_name(level: float) -> str:
    """Format a level as text that `float` reads back; equal levels give equal text."""
    return f"{level:.12g}"


@dataclass(frozen=True, slots=True)
class IsotonicFit:
    """Fitted share at each level, levels rising and shares never rising."""

    levels: tuple[float, ...]
    shares: tuple[float, ...]

    def crossing(self, target: float) -> float | None:
        """Return the level where the fit falls through the target, interpolated over ln(level).

        Return None where the fit stays on one side: it is not extrapolated.
        """
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
