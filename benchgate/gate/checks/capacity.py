"""Capacity search of each arm, from live or stored looks, and the checks of its result; and the knee of a sweep.

A run takes looks (one level of load each) as `ArmSearch` plans them, and verdicts replay the same search from the
stored looks. `capacity` judges the brackets, `knee` the concurrency beyond which a server does no more at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

import numpy as np

from benchgate.gate.comparison import MEASURE_TOGETHER, Comparison, TiedRuns, UntiedRuns, load_of
from benchgate.gate.decision import CannotJudge, Estimate, inconclusive, invalid
from benchgate.gate.evidence.blocks import block_value
from benchgate.gate.evidence.client_saturation import saturation_reasons
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import PER_ACCELERATOR_UNITS, Slo
from benchgate.model.records import RequestColumns
from benchgate.model.request_metrics import mean_decoding_requests, miscounted
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import Unit
from benchgate.stats.capacity_search import (
    LOOK_SHARES,
    FinishedLook,
    LevelStatus,
    PlannedLook,
    SearchResult,
    SearchSettings,
    StopReason,
    look_counts,
    next_look,
    search_result,
)
from benchgate.stats.distributions import Limits, binom_sf
from benchgate.stats.knee import Curve, NoKnee, ServerKnee, find_server_knee
from benchgate.stats.quantiles import min_n_for_upper_limit, order_statistic_limits
from benchgate.suite.load import level_of_stage
from benchgate.suite.schema import ClientBounds, Suite
from benchgate.units import show_percent

_ALPHA = 0.025  # of one arm's bracket: a comparison of two is wrong if either is
_ROUNDING = 1e-9  # of a log ratio that equals the margin
_MOST_SATURATED = 3  # looks in a row in which the load generator was the bottleneck, before the search is given up
_MORE_CLIENT = "give the load generator a machine, cores or workers of its own (`benchgate doctor`), or search less far"


@dataclass(slots=True)
class ArmSearch:
    """Capacity search of one arm. A look in which the load generator was the bottleneck is left out and repeated.

    `output_tokens` is the length of every answer, if all requests ask for the same. `looks` are all that were sent,
    without interrupted ones; those left out have no counts, and `left_out` has their reasons. `fault` says why the
    search cannot continue, None while it can and when it has ended; `remedy` says what to do about a fault.
    """

    settings: SearchSettings
    slo: Slo
    bounds: ClientBounds
    output_tokens: int | None = None
    looks: list[FinishedLook] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    fault: str | None = None
    remedy: str = ""
    _executions: dict[float, int] = field(default_factory=dict)
    _saturated_in_a_row: int = 0

    @property
    def next(self) -> PlannedLook | None:
        """Return the look to take; None when the search is over."""
        step = next_look(self.settings, self.looks)
        return None if self.fault is not None or isinstance(step, StopReason) else step

    def executions(self, level: float) -> int:
        """Return how often a level was measured, including looks that do not count."""
        return self._executions.get(level, 0)

    @property
    def result(self) -> SearchResult:
        """Return the result of the looks so far."""
        return search_result(self.settings, self.looks)

    def take(
        self,
        level: float,
        columns: RequestColumns,
        client: ClientUse,
        ramp: RequestColumns | None = None,
        left: RequestColumns | None = None,
    ) -> None:
        """Take one execution of a level: its requests by use, as in LoadObservation, and the client's own load."""
        # Judged by another slo than it was measured under, the search might not have planned this look. Nor by a budget
        # that earlier versions did not spend on ramps.
        step = next_look(replace(self.settings, budget_requests=None), self.looks)
        planned = step.requests if isinstance(step, PlannedLook) and step.level == level else len(columns)
        ramped = 0 if ramp is None else len(ramp)
        look = FinishedLook(level, len(columns) + ramped + (0 if left is None else len(left)), None, ramped)
        self.looks.append(look)
        self._executions[level] = self.executions(level) + 1
        concurrency = int(level) if self.settings.over == "concurrency" else None
        saturated = saturation_reasons(client, columns, level if concurrency is None else None, self.bounds)
        if saturated:
            self.left_out.append(saturated[0])
            self._saturated_in_a_row += 1
            if self._saturated_in_a_row >= _MOST_SATURATED:
                self.fault = f"the load generator was the bottleneck at {level:g}: {saturated[0]}"
                self.remedy = _MORE_CLIENT
            return
        self._saturated_in_a_row = 0
        if self.slo.tpot_s is not None and (doubt := miscounted(columns, self.output_tokens)) is not None:
            self.fault = f"at {level:g} {doubt}: no TPOT can be judged by it"
            self.remedy = "see what this server's usage counts"
            return
        counts = look_counts(columns, self.slo, concurrency, planned, ramp=ramp)
        if counts is None:
            self.fault = f"{level:g} requests were never in flight"
            self.remedy = "search less far, or with more requests in each probe"
        else:
            self.looks[-1] = replace(look, counts=counts)


def search_of(suite: Suite) -> ArmSearch | None:
    """Return an arm's search before its first look; None if the suite has no search.

    Its settings do not depend on the gate's alpha, which may change after the run.
    """
    if suite.load is None or suite.load.capacity is None or suite.slo is None:
        return None
    capacity = suite.load.capacity
    settings = SearchSettings(
        over=capacity.over,
        lowest=capacity.lowest,
        highest=capacity.highest,
        target_ratio=capacity.target_ratio if capacity.target_ratio is not None else suite.slo.target_ratio,
        resolution_ratio=capacity.resolution_ratio,
        probe_requests=capacity.probe_requests,
        budget_requests=capacity.budget_requests,
        alpha=_ALPHA,
    )
    workload = suite.load.workloads.get(capacity.workload or "", suite.load.workload)
    output_tokens = workload.output_tokens if isinstance(workload.output_tokens, int) else None
    return ArmSearch(settings, suite.slo.per_request, suite.gate.client, output_tokens)


def most_looks(settings: SearchSettings) -> int:
    """Return the largest number of looks that count."""
    return settings.most_probes * len(LOOK_SHARES)


def alternate_looks(searches: Mapping[Arm, ArmSearch]) -> Iterator[tuple[Arm, PlannedLook]]:
    """Yield looks of the arms in turn until all searches are over, so that drift of the machine meets every arm.

    Each look must be taken before the next one is requested.
    """
    idle = 0
    for arm in cycle(searches):
        look = searches[arm].next
        idle = 0 if look is not None else idle + 1
        if idle == len(searches):
            return
        if look is not None:
            yield arm, look


_INTERRUPTED = "the search did not come to its end"
_OPEN_BECAUSE = {
    StopReason.UNMET_AT_MINIMUM: "even the lowest level missed the target",
    StopReason.NEVER_BREACHED: "even the highest level met the target",
    StopReason.UNRESOLVED: "levels in between stayed unresolved",
    StopReason.PROBES_EXHAUSTED: "the search ran out of levels to measure",
    StopReason.BUDGET_EXHAUSTED: "the search ran out of requests",
}


@dataclass(frozen=True, slots=True)
class ReplayedSearch:
    """Search of one arm, repeated from its stored looks. `left_out` has the reasons of looks that do not count."""

    arm: Arm
    settings: SearchSettings
    result: SearchResult
    left_out: tuple[str, ...]

    @property
    def top(self) -> float | None:
        """Largest possible capacity. Of whole numbers it is one less than the level that missed the target."""
        upper = self.result.upper
        if upper is None or self.settings.over == "rate" or upper <= 1:
            return upper
        return upper - 1

    @property
    def middle(self) -> float | None:
        """Fitted capacity inside the bracket, else the bracket's middle; None while an end is open."""
        lower, top = self.result.lower, self.top
        if lower is None or top is None:
            return None
        middle = self.result.estimate if self.result.estimate is not None else math.sqrt(lower * top)
        return middle if self.settings.over == "rate" else min(max(float(math.floor(middle)), lower), top)

    @property
    def value(self) -> float | None:
        """Return the middle, else the known end; None if neither is known."""
        return next((value for value in (self.middle, self.result.lower, self.top) if value is not None), None)

    def describe(self, role: Arm) -> str:
        """Return `baseline: 17.5 to 19 requests/s, converged after 12,000 requests`."""
        result = self.result
        lower, upper = ("?" if end is None else f"{end:g}" for end in (result.lower, self.top))
        interval = lower if lower == upper and self.settings.over == "concurrency" else f"{lower} to {upper}"
        unit = "requests/s" if self.settings.over == "rate" else "in flight"
        stop = result.stop.value.replace("_", " ") if result.stop is not None else "interrupted"
        parts = [f"{role.value}: {interval} {unit}, {stop} after {result.sent:,} requests"]
        if result.cliff is not None:
            parts.append(f"a cliff from {result.cliff[0]:g} to {result.cliff[1]:g}")
        ends = (result.lower, result.upper)
        short = [f"{probe.level:g}" for probe in result.probes if probe.level in ends and probe.finding.short]
        if short:
            parts.append(f"{' and '.join(short)} watched for less than 10 s")
        unsteady = [f"{probe.level:g}" for probe in result.probes if probe.finding.unsteady]
        if unsteady:
            parts.append(f"good at {' and '.join(unsteady)}, but not shown to be steady")
        if self.left_out:
            parts.append(f"{len(self.left_out)} looks left out: {self.left_out[0]}")
        return "; ".join(parts)


def replay_search(evidence: Evidence, arm: Arm, suite: Suite) -> ReplayedSearch:
    """Repeat the search of one arm from its stored looks, under the suite's slo, which may differ from the run's.

    Raises CannotJudge if there was no search, or if it could not continue (`ArmSearch.fault`).
    """
    search = search_of(suite)
    if search is None:
        raise invalid("no capacity was searched for", "add `load.capacity` and an `slo` to the suite")
    for observation in sorted((o for o in evidence.load if o.arm is arm), key=lambda o: o.position):
        level = level_of_stage(observation.stage)
        if level is not None:
            search.take(level, observation.requests, observation.client, observation.ramp, observation.left)
    if search.fault is not None:
        raise invalid(f"the capacity of the {arm.value}: {search.fault}", search.remedy)
    result = search.result
    if not result.probes:
        raise invalid(f"the capacity of the {arm.value} was not searched for", "run the suite again")
    return ReplayedSearch(arm, search.settings, result, tuple(search.left_out))


def unused_search_note(evidence: Evidence, suite: Suite, arm: Arm) -> str | None:
    """Return the search's result where a fleet is sized by a level of the sweep instead; None without a search."""
    try:
        search = replay_search(evidence, arm, suite)
    except CannotJudge:
        return None
    lower, advice = search.result.lower, ""
    if lower is not None and search.settings.over == "rate":
        advice = f"; to size by it, set `replica.requests_per_s: {lower:g}` in the demand file and leave out the run"
    return f"its `load.capacity` search is not used for sizing; it found {search.describe(arm)}{advice}"


class CapacityChecks:
    """The highest load that meets the SLO."""

    metrics = ("capacity",)

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Compare the brackets of both searches, or the candidate's with its bound."""
        each = spec.measure.each
        estimate.method = (
            "brackets of a search: looks at each level with alpha spent over looks and levels, requests in stretches"
        )
        estimate.n_unit = "requests"
        if suite.load is not None and suite.load.capacity is not None and suite.load.capacity.over == "concurrency":
            unit = PER_ACCELERATOR_UNITS[Unit.COUNT] if each else Unit.COUNT
            estimate.rule = replace(estimate.rule, unit=unit)
        if spec.check.margin is None:
            compare_with_bound(estimate, comparison, suite, alpha=alpha, each=each)
            return
        compare_with_baseline(estimate, comparison, suite, alpha=alpha, each=each)
        if isinstance(comparison, UntiedRuns):
            raise inconclusive(
                "a capacity without a live baseline has no noise that a calibration measures", MEASURE_TOGETHER
            )


def compare_with_baseline(
    estimate: Estimate, comparison: Comparison, suite: Suite, *, alpha: float, each: bool = False
) -> None:
    """Estimate the log ratio of both arms' capacities; its limits are the worst and the best that the brackets allow.

    Of two runs with one baseline, the ratio of the baseline's own capacities, the machine's, is subtracted. With `each`
    both are divided by the accelerators of their deployments.
    """
    reference, arm = comparison.baseline_run, comparison.baseline_arm
    theirs, ours = replay_search(reference, arm, suite), replay_search(comparison.judged, Arm.CANDIDATE, suite)
    shared = [replay_search(run, Arm.BASELINE, suite) for run in _runs_of_one_baseline(comparison)]
    named = zip(("reference", "judged"), shared, strict=False)
    estimate.n = sum(search.result.measured for search in (theirs, ours, *shared))
    estimate.notes = [theirs.describe(Arm.BASELINE), ours.describe(Arm.CANDIDATE)]
    estimate.notes += [f"the {name} run's {search.describe(Arm.BASELINE)}" for name, search in named]
    divisors = _divisor(reference, arm, each=each), _divisor(comparison.judged, Arm.CANDIDATE, each=each)
    fewer = math.log(divisors[1] / divisors[0])  # fewer accelerators have to carry less
    limits, middle = _brackets_ratio(theirs, ours)
    if shared:
        machine, middle_of_machine = _brackets_ratio(*shared)
        limits, middle = Limits(limits.lower - machine.upper, limits.upper - machine.lower), middle - middle_of_machine
    limits, middle = Limits(limits.lower + fewer, limits.upper + fewer), middle + fewer
    # Equal ends are enough where the candidate's is a level that it missed. One less than that it may still carry.
    tested, missed = estimate.margin if estimate.rule.breach else 0.0, ours.top == ours.result.upper
    regressed = limits.lower >= tested if missed else limits.lower > tested + _ROUNDING
    if not regressed and math.isinf(limits.upper):
        raise _open_bracket(next(search for search in (ours, theirs, *shared) if search.middle is None))
    estimate.baseline = None if theirs.value is None else theirs.value / divisors[0]
    estimate.candidate = None if ours.value is None else ours.value / divisors[1]
    estimate.value = next(one for one in (middle, limits.upper, limits.lower) if math.isfinite(one))
    estimate.limits, estimate.p_value = limits, 1.0
    high, low = LevelStatus.FAIL, LevelStatus.PASS
    if regressed:
        ends = [(theirs, low), (ours, high), *zip(shared, (high, low), strict=False)]
        estimate.p_value = min(1.0, sum(_end_p(search, end) for search, end in ends))
    if limits.upper < estimate.margin:
        _require_sure_ends([(theirs, high), (ours, low), *zip(shared, (low, high), strict=False)], alpha)


def _require_sure_ends(ends: Sequence[tuple[ReplayedSearch, LevelStatus]], alpha: float) -> None:
    """Raise CannotJudge if the ends of brackets that hold a check are together wrong with more than alpha.

    A search allows each of them `_ALPHA`, whatever the gate's alpha is.
    """
    wrong = sum(_end_p(search, end) for search, end in ends)
    if wrong <= alpha:
        return
    whose = {1: "the bracket is", 2: "the two brackets are together"}.get(len(ends), "the four brackets are together")
    advice = (
        MEASURE_TOGETHER
        if len(ends) > 2
        else f"the search allows each end {show_percent(_ALPHA)}: judge by an `alpha` of {len(ends) * _ALPHA:g}"
    )
    shown = f"{whose} wrong with up to {show_percent(min(1.0, wrong))}"
    raise inconclusive(f"{shown}, and alpha is {show_percent(alpha)}", advice)


def _runs_of_one_baseline(comparison: Comparison) -> tuple[Evidence, ...]:
    """Return the runs whose candidates are compared, if they share a baseline; else ()."""
    if not isinstance(comparison, TiedRuns) or isinstance(comparison, UntiedRuns):
        return ()
    return comparison.reference, comparison.judged


def _brackets_ratio(theirs: ReplayedSearch, ours: ReplayedSearch) -> tuple[Limits, float]:
    """Return the limits of the log ratio of two capacities that their brackets allow, and that of their middles."""
    lower = _log_ratio(theirs.result.lower, ours.top, unknown=-math.inf)
    upper = _log_ratio(theirs.top, ours.result.lower, unknown=math.inf)
    return Limits(lower, upper), _log_ratio(theirs.middle, ours.middle, unknown=math.inf)


def compare_with_bound(
    estimate: Estimate, comparison: Comparison, suite: Suite, *, alpha: float, each: bool = False
) -> None:
    """Compare the candidate's own bracket with a least capacity; with `each`, that of one of its accelerators."""
    search = replay_search(comparison.judged, Arm.CANDIDATE, suite)
    result, divisor = search.result, _divisor(comparison.judged, Arm.CANDIDATE, each=each)
    estimate.n, estimate.notes = result.measured, [search.describe(Arm.CANDIDATE)]
    if search.value is None:
        raise _open_bracket(search)
    estimate.candidate = estimate.value = search.value / divisor
    top = search.top if search.top is not None else math.inf
    estimate.limits = Limits((result.lower or 0.0) / divisor, top / divisor)
    broken = result.upper is not None and result.upper / divisor <= estimate.margin
    estimate.p_value = _end_p(search, LevelStatus.FAIL) if broken else 1.0
    if estimate.limits.lower >= estimate.margin:
        _require_sure_ends([(search, LevelStatus.PASS)], alpha)


def _divisor(evidence: Evidence, arm: Arm, *, each: bool) -> int:
    deployment = evidence.run.arms.get(arm)
    return deployment.accelerators if each and deployment is not None else 1


def _log_ratio(baseline: float | None, candidate: float | None, *, unknown: float) -> float:
    """Return ln(baseline / candidate), above 0 if the candidate carries less; `unknown` if one of them is None."""
    return unknown if baseline is None or candidate is None else math.log(baseline / candidate)


def _end_p(search: ReplayedSearch, status: LevelStatus) -> float:
    """Return the p-value of "this end of the bracket is wrong", corrected for all levels that may be probed."""
    end = search.result.lower if status is LevelStatus.PASS else search.result.upper
    found = [p.finding.p_value for p in search.result.probes if p.level == end and p.finding.standing is status]
    known = [p_value for p_value in found if p_value is not None]
    return min(1.0, search.settings.most_probes * known[0]) if known else 1.0


def _open_bracket(search: ReplayedSearch) -> CannotJudge:
    result = search.result
    why = _INTERRUPTED if result.stop is None else _OPEN_BECAUSE.get(result.stop, _INTERRUPTED)
    reason = f"the capacity of the {search.arm.value} is open: {why}"
    if result.stop in (StopReason.NEVER_BREACHED, StopReason.UNMET_AT_MINIMUM):
        return inconclusive(reason, "let `from` and `to` enclose it")
    more = f"; about {result.needs:,} more at one level would" if result.needs is not None else ""
    return inconclusive(reason, f"raise `load.capacity.probe`{more}")


_WIDER_SWEEP = (
    "sweep over at least five numbers of requests in flight, from few to well beyond what the server does at once"
)


class Knee:
    """The concurrency beyond which a server does no more at once."""

    metrics = ("knee",)

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Compare the median over blocks of each block's own knee with its bound, with order-statistic limits.

        A block without a knee may have it below the first level or beyond the last one. So it counts as on the wrong
        side of the bound in the limits, and is no evidence that the bound is broken.
        """
        rule, bound = estimate.rule, estimate.margin
        estimate.method = "order-statistic limits of the median over the blocks' own knees"
        knees = knees_by_block(comparison.judged, spec.levels)
        estimate.n = len(knees)
        without = [knee for knee in knees if isinstance(knee, NoKnee)]
        if len(without) == len(knees):
            raise invalid(f"there is no knee: {without[0].reason}", _WIDER_SWEEP)
        wrong_side = -math.inf if rule.lower_is_worse else math.inf
        levels = [knee.level if isinstance(knee, ServerKnee) else wrong_side for knee in knees]
        values = np.array(levels, dtype=np.float64)
        limits = order_statistic_limits(values, 0.5, alpha)
        if limits is None:
            reason = f"the median of {len(values)} blocks has no limits"
            raise inconclusive(reason, f"measure at least {min_n_for_upper_limit(0.5, alpha)} blocks")
        beyond = np.isfinite(values) & (values < bound if rule.lower_is_worse else values > bound)
        estimate.candidate = estimate.value = float(np.quantile(values, 0.5, method="inverted_cdf"))
        estimate.limits = Limits(limits.lower, limits.upper)
        estimate.p_value = binom_sf(int(beyond.sum()) - 1, len(values), 0.5)
        for curve in Curve:
            count = sum(1 for knee in knees if isinstance(knee, ServerKnee) and knee.curve is curve)
            if count:
                estimate.notes.append(f"{count} of {len(knees)} blocks by {curve.value}")
        if without:
            reason = f"in {len(without)} of {len(knees)} blocks there is no knee: {without[0].reason}"
            estimate.notes.append(reason)


def knees_by_block(evidence: Evidence, levels: Sequence[tuple[str, int]]) -> list[ServerKnee | NoKnee]:
    """Find the knee of every block that measured all levels. Raises CannotJudge without such a block."""
    stages = [load_of(evidence, name, Arm.CANDIDATE) for name, _ in levels]
    blocks = sorted(set.intersection(*(set(stage) for stage in stages))) if stages else []
    if not blocks:
        raise invalid("no block has every closed-loop stage of the sweep", _WIDER_SWEEP)
    knees: list[ServerKnee | NoKnee] = []
    for block in blocks:
        executions = [stage[block] for stage in stages]
        rates = [block_value(one, "output_throughput", 0.5) for one in executions]
        latencies = [block_value(one, "e2e", 0.5) for one in executions]
        known = [value for value in (*rates, *latencies) if value is not None and 0 < value < math.inf]
        if len(known) < 2 * len(levels):
            reason = f"in block {block + 1} a stage has no throughput or latency: too many of its requests failed"
            raise invalid(reason, "see the errors by class in the load table")
        decoding = [mean_decoding_requests(one.requests, one.window_s) for one in executions]
        at_once = [value for value in decoding if value is not None]
        knees.append(
            find_server_knee(
                [float(level) for _, level in levels],
                known[: len(levels)],
                at_once if len(at_once) == len(levels) else None,
                known[len(levels) :],
            )
        )
    return knees
