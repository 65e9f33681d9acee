"""Capacity: what the looks of a search, as they were stored, show of each arm; and what that says of the candidate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from benchgate.gate.arm_search import search_of
from benchgate.gate.block_values import EACH_UNITS
from benchgate.gate.comparison import Comparison
from benchgate.gate.rule import Finding, Problem
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.probe import Standing
from benchgate.stats.search import SearchResult, SearchSettings, Stop, search_result
from benchgate.suite.capacity import level_of_stage
from benchgate.suite.schema import Suite

_METHOD = "brackets of a search: looks at each level with alpha spent over looks and levels, requests in stretches"
_RELIEVE = "give the load generator a machine, cores or workers of its own (`benchgate doctor`), or search less far"
_CUT = "the search did not come to its end"
_WHY = {
    Stop.UNMET_AT_MINIMUM: "even the lowest level missed the target",
    Stop.NEVER_BREACHED: "even the highest level met the target",
    Stop.UNRESOLVED: "levels in between stayed unresolved",
    Stop.PROBES_EXHAUSTED: "the search ran out of levels to look at",
    Stop.BUDGET_EXHAUSTED: "the search ran out of requests",
}


@dataclass(frozen=True, slots=True)
class Searched:
    """One arm's search, made again from its stored looks. `left_out`: why looks did not count, one by one."""

    arm: Arm
    settings: SearchSettings
    result: SearchResult
    left_out: tuple[str, ...]

    @property
    def top(self) -> float | None:
        """The most that the capacity may be: of whole numbers one less than what was shown to miss the target."""
        upper = self.result.upper
        if upper is None or self.settings.over == "rate" or upper <= 1:
            return upper
        return upper - 1

    @property
    def middle(self) -> float | None:
        """The fit's crossing where it lies inside the bracket, else the bracket's middle; None while an end is open."""
        lower, top = self.result.lower, self.top
        if lower is None or top is None:
            return None
        middle = self.result.estimate if self.result.estimate is not None else math.sqrt(lower * top)
        return middle if self.settings.over == "rate" else min(max(float(math.floor(middle)), lower), top)

    @property
    def value(self) -> float | None:
        """One number to show: the middle, or the end that is known; None when neither is."""
        return next((value for value in (self.middle, self.result.lower, self.top) if value is not None), None)


def searched(evidence: Evidence, arm: Arm, suite: Suite) -> Searched | Problem:
    """The search of one arm under the suite's slo, which may be another one than it was made under.

    INVALID where there was none, where it could not go on because the load generator set the pace again and again, or
    where a level was never in flight.
    """
    search = search_of(suite)
    if search is None:
        return Problem(Outcome.INVALID, "no capacity was searched for", "add `load.capacity` and an `slo` to the suite")
    for observation in looks_of(evidence, arm):
        level = level_of_stage(observation.stage)
        assert level is not None, "it is a look"
        search.take(level, observation.requests, observation.client, observation.ramp)
    if search.fault is not None:
        return Problem(Outcome.INVALID, f"the capacity of the {arm.value}: {search.fault}", _RELIEVE)
    if not search.looks:
        return Problem(Outcome.INVALID, f"the capacity of the {arm.value} was not searched for", "run the suite again")
    return Searched(arm, search.settings, search_result(search.settings, search.looks), tuple(search.left_out))


def looks_of(evidence: Evidence, arm: Arm) -> list[LoadObservation]:
    """The looks of one arm's search, in the order they were taken."""
    looks = [o for o in evidence.load if o.arm is arm and level_of_stage(o.stage) is not None]
    return sorted(looks, key=lambda o: o.position)


def relative(comparison: Comparison, suite: Suite, *, margin: float, breach: bool, each: bool = False) -> Finding:
    """Return the log ratio of both arms' capacities, with the worst and the best that their brackets leave open.

    With `each` both are divided by the accelerators of their deployments.
    """
    reference, arm = comparison.judged, Arm.BASELINE
    if comparison.reference is not None:
        reference, arm = comparison.reference, Arm.CANDIDATE
    finding = _finding(suite, Scale.LOG_RATIO, -math.log1p(-margin), breach=breach, each=each)
    shares = _shares(reference, arm, each=each), _shares(comparison.judged, Arm.CANDIDATE, each=each)
    theirs, ours = searched(reference, arm, suite), searched(comparison.judged, Arm.CANDIDATE, suite)
    for side in (theirs, ours):
        if isinstance(side, Problem):
            return replace(finding, problem=side)
    assert isinstance(theirs, Searched)
    assert isinstance(ours, Searched)
    finding = replace(
        finding, notes=(told(theirs, Arm.BASELINE), told(ours, Arm.CANDIDATE)), n=theirs.result.sent + ours.result.sent
    )
    fewer = math.log(shares[1] / shares[0])  # fewer accelerators are to carry less
    limits = Limits(
        lower=_log_ratio(theirs.result.lower, ours.top, nothing=-math.inf) + fewer,
        upper=_log_ratio(theirs.top, ours.result.lower, nothing=math.inf) + fewer,
    )
    # What missed the target at a level carries less than what met it there: equal ends are harm enough.
    shown = limits.lower >= (finding.margin if breach else 0.0)
    middles = _log_ratio(theirs.middle, ours.middle, nothing=math.inf) + fewer
    if not shown and math.isinf(limits.upper):
        return replace(finding, problem=_open(ours if ours.middle is None else theirs))
    return replace(
        finding,
        baseline=None if theirs.value is None else theirs.value / shares[0],
        candidate=None if ours.value is None else ours.value / shares[1],
        harm=next(h for h in (middles, limits.upper, limits.lower) if math.isfinite(h)),
        limits=limits,
        p_value=min(1.0, _end_p(theirs, Standing.PASS) + _end_p(ours, Standing.FAIL)) if shown else 1.0,
    )


def absolute(comparison: Comparison, suite: Suite, *, slo: float, each: bool = False) -> Finding:
    """The candidate's own bracket against a least capacity; with `each` that of one of its accelerators."""
    finding = _finding(suite, Scale.ABSOLUTE, slo, breach=True, each=each)
    share = _shares(comparison.judged, Arm.CANDIDATE, each=each)
    ours = searched(comparison.judged, Arm.CANDIDATE, suite)
    if isinstance(ours, Problem):
        return replace(finding, problem=ours)
    result = ours.result
    finding = replace(finding, notes=(told(ours, Arm.CANDIDATE),), n=result.sent)
    if ours.value is None:
        return replace(finding, problem=_open(ours))
    value, top = ours.value / share, ours.top if ours.top is not None else math.inf
    limits = Limits((result.lower or 0.0) / share, top / share)
    broken = result.upper is not None and result.upper / share <= slo
    p_value = _end_p(ours, Standing.FAIL) if broken else 1.0
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=p_value)


def told(searched: Searched, role: Arm) -> str:
    """`baseline: 17.5 to 19 requests/s, converged after 12,000 requests`."""
    result, top = searched.result, searched.top
    lower, upper = ("?" if end is None else f"{end:g}" for end in (result.lower, top))
    between = lower if lower == upper and searched.settings.over == "concurrency" else f"{lower} to {upper}"
    stop = result.stop.value.replace("_", " ") if result.stop is not None else "cut short"
    cliff = f"; a cliff from {result.cliff[0]:g} to {result.cliff[1]:g}" if result.cliff is not None else ""
    of = "requests/s" if searched.settings.over == "rate" else "in flight"
    ends = (result.lower, result.upper)
    brief = [p.level for p in result.probes if p.level in ends and p.finding.short]
    short = f"; {' and '.join(f'{level:g}' for level in brief)} watched for less than 10 s" if brief else ""
    unsteady = [f"{probe.level:g}" for probe in result.probes if probe.finding.unsteady]
    if unsteady:
        short += f"; good at {' and '.join(unsteady)}, but not shown to be steady"
    late = f"; {len(searched.left_out)} looks left out: {searched.left_out[0]}" if searched.left_out else ""
    return f"{role.value}: {between} {of}, {stop} after {result.sent:,} requests{cliff}{short}{late}"


def beside_the_sizing(evidence: Evidence, suite: Suite, arm: Arm) -> str | None:
    """What a search found where a fleet is sized by a level of the sweep, without its end; None where none counts."""
    found = searched(evidence, arm, suite)
    if isinstance(found, Problem):
        return None
    lower, by_hand = found.result.lower, ""
    if lower is not None and found.settings.over == "rate":
        by_hand = f"; to size by it say --replica-requests-per-s {lower:g} in place of the run"
    return f"its `load.capacity` found, and nothing here is sized by that: {told(found, arm)}{by_hand}"


def _shares(evidence: Evidence, arm: Arm, *, each: bool) -> int:
    """By how much an arm's capacity is divided."""
    deployment = evidence.run.arms.get(arm)
    return deployment.accelerators if each and deployment is not None else 1


def _finding(suite: Suite, scale: Scale, margin: float, *, breach: bool, each: bool) -> Finding:
    over = suite.load.capacity.over if suite.load is not None and suite.load.capacity is not None else "rate"
    unit = Unit.REQUESTS_PER_S if over == "rate" else Unit.COUNT
    return Finding(
        unit=EACH_UNITS[unit] if each else unit,
        scale=scale,
        margin=margin,
        method=_METHOD,
        n=0,
        n_unit="requests",
        breach=breach,
        lower_is_worse=scale is Scale.ABSOLUTE,
    )


def _log_ratio(baseline: float | None, candidate: float | None, *, nothing: float) -> float:
    """Positive = the candidate carries less."""
    return nothing if baseline is None or candidate is None else math.log(baseline / candidate)


def _end_p(side: Searched, standing: Standing) -> float:
    """p of "this end of the bracket is wrong": that of its level, for as many levels as the search may look at."""
    end = side.result.lower if standing is Standing.PASS else side.result.upper
    found = [p.finding.p_value for p in side.result.probes if p.level == end and p.finding.standing is standing]
    known = [p_value for p_value in found if p_value is not None]
    return min(1.0, side.settings.most_probes * known[0]) if known else 1.0


def _open(side: Searched) -> Problem:
    """Why a search says too little: an end of its bracket is open."""
    result = side.result
    why = _WHY.get(result.stop, _CUT) if result.stop is not None else _CUT
    reason = f"the capacity of the {side.arm.value} is open: {why}"
    if result.stop in (Stop.NEVER_BREACHED, Stop.UNMET_AT_MINIMUM):
        return Problem(Outcome.INCONCLUSIVE, reason, "let `from` and `to` enclose it")
    more = f"; about {result.needs:,} more at one level would" if result.needs is not None else ""
    return Problem(Outcome.INCONCLUSIVE, reason, f"raise `load.capacity.probe`{more}")
