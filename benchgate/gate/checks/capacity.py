"""One arm's capacity search, fed with what was measured: while it runs, and again from the store.

Capacity: what the looks of a search, as they were stored, show of each arm; and what that says of the candidate.

Where the candidate does no more at once, however many requests are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

import numpy as np

from benchgate.gate.checks.base import bound_of
from benchgate.gate.comparison import CAPACITY_APART, Comparison, load_of
from benchgate.gate.decision import Bound, Finding, Problem
from benchgate.gate.evidence.blocks import block_value
from benchgate.gate.evidence.client_strain import saturation_reasons
from benchgate.gate.evidence.tokens import miscounted
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import PER_ACCELERATOR_UNITS
from benchgate.model.records import RequestColumns
from benchgate.model.request_metrics import Slo, mean_decoding_requests
from benchgate.model.run import ClientUse, Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.capacity_search import (
    FinishedLook,
    PlannedLook,
    SearchResult,
    SearchSettings,
    StopReason,
    next_look,
    search_result,
)
from benchgate.stats.distributions import Limits, binom_sf
from benchgate.stats.knee import Curve, NoKnee, ServerKnee, find_server_knee
from benchgate.stats.load_probe import LOOK_SHARES, LevelStatus, look_counts
from benchgate.stats.quantiles import min_n_for_upper_limit, order_statistic_limits
from benchgate.suite.capacity import Capacity, level_of_stage
from benchgate.suite.schema import ClientBounds, Suite

_ALPHA = 0.025  # of one arm's bracket: a comparison of two is wrong when either is
_MOST_IN_A_ROW = 3  # looks that measured their client, before it is given up


@dataclass(slots=True)
class ArmSearch:
    """A search under way. A look that measured its own client does not count, and is taken again.

    `fault` says why it cannot go on; None while it can, and when it came to its end.
    """

    settings: SearchSettings
    slo: Slo
    bounds: ClientBounds
    asked: int | None = None  # output tokens of every request, where all ask for as many
    looks: list[FinishedLook] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # why, look by look
    fault: str | None = None
    _executions: dict[float, int] = field(default_factory=dict)
    _in_a_row: int = 0

    @property
    def next(self) -> PlannedLook | None:
        """The look to take; None when the search is over."""
        step = next_look(self.settings, self.looks)
        return None if self.fault is not None or isinstance(step, StopReason) else step

    def executions(self, level: float) -> int:
        """How often a level has been looked at, whether or not that counted."""
        return self._executions.get(level, 0)

    def take(
        self, level: float, columns: RequestColumns, client: ClientUse, ramp: RequestColumns | None = None
    ) -> None:
        """Take one execution of a level: its measured requests, those of its ramp, and what client sent them."""
        planned = self._planned(level, len(columns))
        self._executions[level] = self.executions(level) + 1
        concurrency = int(level) if self.settings.over == "concurrency" else None
        strained = saturation_reasons(client, columns, level if concurrency is None else None, self.bounds)
        if strained:
            self.left_out.append(strained[0])
            self._in_a_row += 1
            if self._in_a_row >= _MOST_IN_A_ROW:
                self.fault = f"the load generator was the bottleneck at {level:g}: {strained[0]}"
            return
        self._in_a_row = 0
        if self.slo.tpot_s is not None and (doubt := miscounted(columns, self.asked)) is not None:
            self.fault = f"at {level:g} {doubt}: no TPOT can be judged by it"
            return
        counts = look_counts(columns, self.slo, concurrency, planned, ramp=ramp)
        if counts is None:
            self.fault = f"{level:g} requests were never in flight"
        else:
            self.looks.append(FinishedLook(level, len(columns), counts))

    def _planned(self, level: float, sent: int) -> int:
        """How many requests the look was to send.

        Judged by another slo than it was made under, the search might not have taken this look: then it is as it was.
        """
        step = next_look(self.settings, self.looks)
        return step.requests if isinstance(step, PlannedLook) and step.level == level else sent


def search_settings(capacity: Capacity, slo_target_ratio: float) -> SearchSettings:
    """What is searched for on each arm. The policy's alpha has no part in it: a run can be judged by another one."""
    return SearchSettings(
        over=capacity.over,
        lowest=capacity.lowest,
        highest=capacity.highest,
        target_ratio=capacity.target_ratio if capacity.target_ratio is not None else slo_target_ratio,
        resolution_ratio=capacity.resolution_ratio,
        probe_requests=capacity.probe_requests,
        budget_requests=capacity.budget_requests,
        alpha=_ALPHA,
    )


def search_of(suite: Suite) -> ArmSearch | None:
    """The search of either arm, at its beginning; None where the suite has none."""
    if suite.load is None or suite.load.capacity is None or suite.slo is None:
        return None
    settings = search_settings(suite.load.capacity, suite.slo.target_ratio)
    return ArmSearch(settings, suite.slo.per_request, suite.gate.client)


def most_looks(settings: SearchSettings) -> int:
    """How many looks count at most."""
    return settings.most_probes * len(LOOK_SHARES)


def alternating(searches: Mapping[Arm, ArmSearch]) -> Iterator[tuple[Arm, PlannedLook]]:
    """One look of one arm, then one of the other, until both are over; so a drift of the machine meets both.

    Every look must have been taken before the next one is asked for.
    """
    idle = 0
    for arm in cycle(searches):
        look = searches[arm].next
        idle = 0 if look is not None else idle + 1
        if idle == len(searches):
            return
        if look is not None:
            yield arm, look


_METHOD = "brackets of a search: looks at each level with alpha spent over looks and levels, requests in stretches"
_RELIEVE = "give the load generator a machine, cores or workers of its own (`benchgate doctor`), or search less far"
_CUT = "the search did not come to its end"
_WHY = {
    StopReason.UNMET_AT_MINIMUM: "even the lowest level missed the target",
    StopReason.NEVER_BREACHED: "even the highest level met the target",
    StopReason.UNRESOLVED: "levels in between stayed unresolved",
    StopReason.PROBES_EXHAUSTED: "the search ran out of levels to look at",
    StopReason.BUDGET_EXHAUSTED: "the search ran out of requests",
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


def capacity_against_baseline(
    comparison: Comparison, suite: Suite, *, margin: float, breach: bool, each: bool = False
) -> Finding:
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
        p_value=min(1.0, _end_p(theirs, LevelStatus.PASS) + _end_p(ours, LevelStatus.FAIL)) if shown else 1.0,
    )


def capacity_against_bound(comparison: Comparison, suite: Suite, *, slo: float, each: bool = False) -> Finding:
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
    p_value = _end_p(ours, LevelStatus.FAIL) if broken else 1.0
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
        unit=PER_ACCELERATOR_UNITS[unit] if each else unit,
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


def _end_p(side: Searched, standing: LevelStatus) -> float:
    """p of "this end of the bracket is wrong": that of its level, for as many levels as the search may look at."""
    end = side.result.lower if standing is LevelStatus.PASS else side.result.upper
    found = [p.finding.p_value for p in side.result.probes if p.level == end and p.finding.standing is standing]
    known = [p_value for p_value in found if p_value is not None]
    return min(1.0, side.settings.most_probes * known[0]) if known else 1.0


def _open(side: Searched) -> Problem:
    """Why a search says too little: an end of its bracket is open."""
    result = side.result
    why = _WHY.get(result.stop, _CUT) if result.stop is not None else _CUT
    reason = f"the capacity of the {side.arm.value} is open: {why}"
    if result.stop in (StopReason.NEVER_BREACHED, StopReason.UNMET_AT_MINIMUM):
        return Problem(Outcome.INCONCLUSIVE, reason, "let `from` and `to` enclose it")
    more = f"; about {result.needs:,} more at one level would" if result.needs is not None else ""
    return Problem(Outcome.INCONCLUSIVE, reason, f"raise `load.capacity.probe`{more}")


def knee_against_bound(evidence: Evidence, levels: Sequence[tuple[str, int]], bound: Bound, *, alpha: float) -> Finding:
    """The median over blocks of each block's own knee, with order-statistic limits.

    A block without a knee may have it below the first level or beyond the last one, so it counts as on the wrong side
    of the bound, whichever that is.
    """
    finding = Finding(
        unit=Unit.COUNT,
        scale=Scale.ABSOLUTE,
        margin=bound.value,
        method="order-statistic limits of the median over the blocks' own knees",
        n=0,
        n_unit="blocks",
        breach=True,
        lower_is_worse=bound.at_least,
        nears=False,
    )
    found = knees_by_block(evidence, levels)
    if isinstance(found, Problem):
        return replace(finding, problem=found)
    finding = replace(finding, n=len(found))
    without = [knee for knee in found if isinstance(knee, NoKnee)]
    if len(without) == len(found):
        return replace(finding, problem=Problem(Outcome.INVALID, f"there is no knee: {without[0].reason}", _WIDER))
    lost = -math.inf if bound.at_least else math.inf
    values = np.array([knee.level if isinstance(knee, ServerKnee) else lost for knee in found], dtype=np.float64)
    limits = order_statistic_limits(values, 0.5, alpha)
    if limits is None:
        reason = f"the median of {len(values)} blocks has no limits"
        advice = f"measure at least {min_n_for_upper_limit(0.5, alpha)} blocks"
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, advice))
    beyond = values < bound.value if bound.at_least else values > bound.value
    value = float(np.quantile(values, 0.5, method="inverted_cdf"))
    return replace(
        finding,
        candidate=value,
        harm=value,
        limits=Limits(limits.lower, limits.upper),
        p_value=binom_sf(int(beyond.sum()) - 1, len(values), 0.5),
        notes=_notes(found),
    )


def _notes(found: Sequence[ServerKnee | NoKnee]) -> tuple[str, ...]:
    """Which curves bent, and why some did not."""
    notes = [
        f"{count} of {len(found)} blocks by {curve.value}"
        for curve in Curve
        if (count := sum(1 for knee in found if isinstance(knee, ServerKnee) and knee.curve is curve))
    ]
    without = [knee for knee in found if isinstance(knee, NoKnee)]
    if without:
        notes.append(f"in {len(without)} of {len(found)} blocks there is no knee: {without[0].reason}")
    return tuple(notes)


def knees_by_block(
    evidence: Evidence, levels: Sequence[tuple[str, int]], arm: Arm = Arm.CANDIDATE
) -> list[ServerKnee | NoKnee] | Problem:
    """Of every block in which each level was measured and answered."""
    stages = [load_of(evidence, name, arm) for name, _ in levels]
    blocks = sorted(set.intersection(*(set(stage) for stage in stages))) if stages else []
    if not blocks:
        return Problem(Outcome.INVALID, "no block has every closed-loop stage of the sweep", _WIDER)
    throughput, latency = block_value("output_throughput", 0.5), block_value("e2e", 0.5)
    found: list[ServerKnee | NoKnee] = []
    for block in blocks:
        rates, waits = ([of(stage[block]) for stage in stages] for of in (throughput, latency))
        known = [value for value in (*rates, *waits) if value is not None and 0 < value < math.inf]
        if len(known) < 2 * len(levels):
            reason = f"in block {block + 1} a stage has no throughput or latency: too many of its requests failed"
            return Problem(Outcome.INVALID, reason, "see the errors by class in the load table")
        concurrency = [float(level) for _, level in levels]
        decoding = [mean_decoding_requests(stage[block].requests, stage[block].window_s) for stage in stages]
        spans = [value for value in decoding if value is not None]
        at_once = spans if len(spans) == len(levels) else None
        found.append(find_server_knee(concurrency, known[: len(levels)], at_once, known[len(levels) :]))
    return found


_WIDER = "sweep over at least five numbers of requests in flight, from few to well beyond what the server does at once"


class CapacityChecks:
    """The highest load that meets the SLO."""

    metrics = ("capacity",)

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Compare the ends of both searches, or hold the candidate's to its bound."""
        check, each = spec.check, spec.measure.each
        if check.margin is None:
            return capacity_against_bound(comparison, suite, slo=bound_of(spec).value, each=each)
        breach = check.block_when == "breach"
        found = capacity_against_baseline(comparison, suite, margin=check.margin, breach=breach, each=each)
        return replace(found, problem=found.problem or CAPACITY_APART) if comparison.apart else found


class Knee:
    """The concurrency beyond which a server does no more at once."""

    metrics = ("knee",)

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Hold the knee of the candidate's sweep to its bound."""
        return knee_against_bound(comparison.judged, spec.levels, bound_of(spec), alpha=suite.gate.alpha)
