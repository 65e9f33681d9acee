"""Where to look next for the highest load that meets its target: a search that follows from what was seen alone.

`next_look` and `search_result` are functions of the settings and of every look so far, in order. So a search can be
driven by a real server, by a model of one, or by a store, and says the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Literal

from benchgate.stats.isotonic import FallingFit, falling_fit
from benchgate.stats.probe import LOOK_SHARES, LookCounts, ProbeFinding, Standing, judge_probe

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
