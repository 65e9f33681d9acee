"""Operating point: the load level at which a run shows the highest throughput with its SLOs held, and its token cost.

A replica's capacity is a rate of arrivals. Open loops measure one, as their requests arrive regardless of earlier ones.
In a closed loop the queue never exceeds its callers, so its throughput is not a sustainable arrival rate, and open
levels take precedence. A closed level that held is no operating point if the same requests at no higher a rate are
shown to miss. A level that held is not trusted if the same requests at a lower load of the same loop are shown to miss:
one of the two results is chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.gate.evidence.intervals import ALPHA
from benchgate.model.deployment import Arm
from benchgate.model.metric import IN_USE
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import e2e_s
from benchgate.model.run import Evidence, MetricRow
from benchgate.stats.capacity_search import MIN_RESIDENCE_TIMES, LookCounts, backlog_growth_p, look_counts
from benchgate.stats.distributions import Limits
from benchgate.stats.meta import EstimateWithLimits
from benchgate.stats.power import zero_miss_sample_size
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import as_written, beside, show_number, show_percent

RATES = ("output_throughput", "request_throughput")
GOOD, OUTPUT = "usd_per_million_good_tokens", "usd_per_million_output_tokens"
_EQUAL_LOADS = 0.05  # relative difference below which two loads count as equal


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """Throughput of one side at a load level: all classes with an SLO together, with 95% limits.

    `goodput_lower` is the lower limit of the share of requests that met the SLO, compared with `target_ratio`; of
    several classes that of the one closest to its target. `is_open`: its requests arrived at a rate; in a closed loop
    the rate is only the throughput. `misses`: the goodput of a class is shown to be below its target, or `piles_up`:
    the number in the system is shown to grow, which meets no SLO for long. `offered_load` is the offered rate, for a
    closed loop the number in flight; None if not stated. Levels of one `kind` differ only in their load, those of one
    `requests_kind` may also differ in their arrivals; None if classes without an SLO are part of the offered load.
    """

    stage: str
    tokens_per_s: float
    tokens_lower: float | None
    requests_per_s: float
    requests_lower: float | None
    goodput_lower: float
    target_ratio: float
    e2e_mean_s: float | None
    is_open: bool = False
    tokens_upper: float | None = None
    misses: bool = False
    piles_up: bool = False
    offered_load: float | None = None
    kind: int = 0
    requests_kind: int | None = 0
    goodput: float | None = None  # of the class that `goodput_lower` is of, with the requests it was counted from
    requests: int | None = None

    @property
    def holds(self) -> bool:
        """Return True if its goodput is shown to reach the target without a growing queue."""
        return self.goodput_lower >= self.target_ratio and not self.piles_up

    @property
    def only_piles_up(self) -> bool:
        """Return True if only a growing queue keeps it from holding."""
        return self.goodput_lower >= self.target_ratio and self.piles_up

    def has_less_load_than(self, other: LoadLevel) -> bool:
        """Return True if it has less load than another level of its kind, by more than random differences."""
        loads = _loads((self, other))
        return self.kind == other.kind and loads is not None and loads[0] < loads[1] * (1 - _EQUAL_LOADS)

    def has_rate_above(self, closed: LoadLevel) -> bool | None:
        """Compare an open level's offered rate with the throughput of a closed one; None if they are not comparable.

        A trace states no rate.
        """
        comparable = self.is_open and not closed.is_open and None is not self.requests_kind == closed.requests_kind
        return self.offered_load > closed.requests_per_s if comparable and self.offered_load is not None else None

    @property
    def not_held_because(self) -> str:
        """Say by what the SLO was shown not to hold, or what is missing to show that it does."""
        if self.only_piles_up:
            return "its requests piled up"
        target, counted = f"target {as_written(show_percent, self.target_ratio)}", ""
        if self.goodput is not None and self.requests is not None:
            good = round(self.goodput * self.requests)
            counted = f"{good:,} of {self.requests:,} requests good, "
            if good == self.requests and self.target_ratio < 1:
                needed = zero_miss_sample_size(1 - self.target_ratio, ALPHA)
                return f"{counted}{needed:,} needed without a miss; {target}"
        if self.misses:
            return f"{counted}shown to miss the {target}"
        return f"{counted}goodput {beside(show_percent, self.goodput_lower, self.target_ratio)} at least, {target}"

    @property
    def not_held(self) -> str:
        """Say that the SLO does not hold, or is not shown to hold, and why."""
        return f"{'does not hold' if self.misses else 'is not shown to hold'} its SLO ({self.not_held_because})"

    @property
    def tokens_per_request(self) -> float:
        """Return the mean output tokens of an answer."""
        return self.tokens_per_s / self.requests_per_s

    @property
    def in_flight(self) -> int | None:
        """Return the mean number of requests in flight (Little's law), rounded; None if unknown."""
        return None if self.inside is None else max(1, round(self.inside))

    @property
    def inside(self) -> float | None:
        """Return the mean number of requests in flight, not rounded; None if unknown."""
        return None if self.e2e_mean_s is None else self.requests_per_s * self.e2e_mean_s


def lightest_level(levels: Sequence[LoadLevel]) -> LoadLevel | None:
    """Return the level with the least load, else the first one if loads are unknown; None without levels."""
    loads = _loads(levels)
    if loads is None:
        return next(iter(levels), None)
    return levels[loads.index(min(loads))] if levels else None


def _loads(levels: Sequence[LoadLevel]) -> list[float] | None:
    """Return comparable loads of all levels in one unit; None without one.

    It is the offered load, or requests in flight if open and closed loops are mixed. It is never the throughput, which
    falls under overload.
    """
    alike = len({row.is_open for row in levels}) < 2
    for loads in ([row.offered_load if alike else None for row in levels], [row.inside for row in levels]):
        stated = [load for load in loads if load is not None]
        if len(stated) == len(levels):
            return stated
    return None


def best_level(rows: Sequence[MetricRow], suite: Suite, arm: Arm) -> LoadLevel | str:
    """Return the level with the most output tokens per second of those that hold, or why there is none.

    A level holds if the lower limit of its goodput reaches the SLO's target, in every class with an SLO.
    """
    levels = levels_of(rows, suite, arm)
    return levels if isinstance(levels, str) else best_of_levels(known_levels(levels), arm)


def best_of_levels(levels: Sequence[LoadLevel], arm: Arm) -> LoadLevel | str:
    """Return the best of at least one known level, or why none holds."""
    held = [row for row in levels if row.holds]
    if not held:
        nearest = max(levels, key=lambda row: row.goodput_lower - row.target_ratio)
        if nearest.only_piles_up:
            return (
                f"no stage is shown to hold its SLO on the {arm.value}: at {nearest.stage} {nearest.not_held_because};"
                " measure less load"
            )
        return (
            f"no stage is shown to hold its SLO on the {arm.value}: nearest is {nearest.stage}, whose goodput may be as"
            f" low as {beside(show_percent, nearest.goodput_lower, nearest.target_ratio)}"
            f" (target {as_written(show_percent, nearest.target_ratio)});"
            " measure less load, or more requests of it"
        )
    return max(held, key=lambda row: row.tokens_per_s)


def known_levels(levels: Mapping[str, LoadLevel | str]) -> list[LoadLevel]:
    """Return the levels with known throughput, in the order of the sweep."""
    return [row for row in levels.values() if not isinstance(row, str)]


def levels_of(
    rows: Sequence[MetricRow],
    suite: Suite,
    arm: Arm,
    stays_s: Mapping[str, float] = MappingProxyType({}),
    piling_up: Collection[str] = (),
) -> dict[str, LoadLevel | str] | str:
    """Return every stage's level by name, in the order of the sweep, or why it is unknown.

    `stays_s` is the mean residence time by stage or class; `piling_up` are the stages with a growing queue. A text
    replaces all if none is known.
    """
    of_arm = {(row.stage, row.name, row.statistic): row for row in rows if row.arm is arm and row.task is None}
    if not of_arm:
        return f"the run has no load metrics of the {arm.value}"
    stages = _by_stage(suite)
    if not stages:
        return "the suite has no stage of load whose rate could be read; add one to `load.sweep`"
    held_to = {stage: [place for place in of if place.target_ratio is not None] for stage, of in stages.items()}
    if not any(held_to.values()):
        return "the suite has no SLO, so no level of load is known to be good enough; add `slo`"
    kinds, requests_kinds = _kinds(suite), _kinds(suite, by_arrivals=False)
    found: dict[str, LoadLevel | str] = {}
    for stage, of in held_to.items():
        level = _level(stage, of, of_arm, stays_s)
        if not isinstance(level, str):
            piles_up = stage in piling_up
            misses = level.misses or piles_up
            load = _sum([traffic.mean_rps for traffic in stages[stage]])
            if load is None:
                load = _sum([traffic.schedule.concurrency for traffic in stages[stage]])
            level = replace(level, offered_load=load, piles_up=piles_up, misses=misses)
            level = replace(
                level,
                kind=kinds[stage],
                requests_kind=requests_kinds[stage] if len(of) == len(stages[stage]) else None,
            )
        found[stage] = level
    if not known_levels(found):
        return "no level of load is complete: none has stored tokens, requests and goodput"
    return found


def _by_stage(suite: Suite) -> dict[str, list[TrafficClass]]:
    stages: dict[str, list[TrafficClass]] = {}
    for traffic in traffic_classes(suite):
        stages.setdefault(traffic.stage, []).append(traffic)
    return stages


def _kinds(suite: Suite, *, by_arrivals: bool = True) -> dict[str, int]:
    """Number the kinds of stages; those of one kind differ in their load, and without `by_arrivals` in their arrivals.

    Their requests, SLOs and actions are the same.
    """
    features: dict[str, list[object]] = {}
    for stage in suite.load.sweep if suite.load is not None else ():
        features[stage.name] = [stage.actions]
    for stage_name, classes in _by_stage(suite).items():
        for one in classes:
            at = one.schedule
            arrivals = at.arrival, at.bursts, at.ramp_to_rps is None, at.steps is None, at.trace
            slo = one.slo_spec if one.has_own_slo else None
            requests = one.class_name, one.workload, slo, one.is_background
            features[stage_name].append((*requests, arrivals if by_arrivals else None))
    kinds: list[object] = []
    for of_stage in features.values():
        if of_stage not in kinds:
            kinds.append(of_stage)
    return {stage_name: kinds.index(of_stage) for stage_name, of_stage in features.items()}


_Kept = Mapping[tuple[str | None, str, str | None], MetricRow]


def _level(stage: str, classes: Sequence[TrafficClass], of_arm: _Kept, stays_s: Mapping[str, float]) -> LoadLevel | str:
    """Combine all classes of a level, or return why a value of one of them is unknown."""
    if not classes:
        return "it has no SLO"
    rows = [row for place in classes if (row := _row(of_arm, place, stays_s.get(place.name))) is not None]
    if len(rows) < len(classes):
        return "its tokens, requests and goodput were not all measured, with limits"
    nearest = min(rows, key=lambda row: row.goodput_lower - row.target_ratio)
    per_s = sum(row.requests_per_s for row in rows)
    times = [row.e2e_mean_s * row.requests_per_s for row in rows if row.e2e_mean_s is not None]
    return replace(
        nearest,
        stage=stage,
        tokens_per_s=sum(row.tokens_per_s for row in rows),
        tokens_lower=_sum([row.tokens_lower for row in rows]),
        requests_per_s=per_s,
        requests_lower=_sum([row.requests_lower for row in rows]),
        e2e_mean_s=sum(times) / per_s if len(times) == len(rows) else None,
        is_open=all(row.is_open for row in rows),
        tokens_upper=_sum([row.tokens_upper for row in rows]),
        misses=any(row.misses for row in rows),
    )


def _row(of_arm: _Kept, place: TrafficClass, stay_s: float | None) -> LoadLevel | None:
    tokens, requests = (of_arm.get((place.name, name, None)) for name in RATES)
    goodput = of_arm.get((place.name, "goodput", None))
    if tokens is None or requests is None or goodput is None or goodput.lower is None or place.target_ratio is None:
        return None
    if not (tokens.value > 0 and requests.value > 0):
        return None
    return LoadLevel(
        stage=place.stage,
        tokens_per_s=tokens.value,
        tokens_lower=tokens.lower or None,
        requests_per_s=requests.value,
        requests_lower=requests.lower or None,
        goodput_lower=goodput.lower,
        target_ratio=place.target_ratio,
        e2e_mean_s=stay_s,
        is_open=place.is_open,
        tokens_upper=tokens.upper,
        misses=goodput.upper is not None and goodput.upper < place.target_ratio,
        goodput=goodput.value,
        requests=goodput.n,
    )


def _sum(of_classes: Sequence[float | None]) -> float | None:
    """Sum over all classes (limits: of what they jointly reach at least); None if one has none."""
    stated = [one for one in of_classes if one is not None]
    return sum(stated) if len(stated) == len(of_classes) else None


@dataclass(frozen=True, slots=True)
class ExcludedLevel:
    """Level that is not the operating point, and why."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Operating point. `by_name`: chosen by name, not as the best.

    `missed_at` is the next known level of its kind with more load, if that is shown to miss its SLO: capacity lies
    between the two. None if nothing shows an upper limit. Beyond an open loop only open ones count, as a closed loop
    says nothing about rates. Beyond a closed loop, open ones with a higher rate than its throughput count too.
    """

    row: LoadLevel
    left_out: tuple[ExcludedLevel, ...] = ()
    by_name: bool = False
    missed_at: str | None = None


def choose_operating_point(
    levels: Mapping[str, LoadLevel | str], arm: Arm, stage: str | None = None
) -> OperatingPoint | str:
    """Choose the named level, else the best that holds, or return why there is none."""
    all_known = known_levels(levels)
    doubted = {row.stage: why for row in all_known if row.holds and (why := _contradiction(row, all_known))}
    consistent = [row for row in all_known if row.stage not in doubted]
    if stage is None:
        found = best_of_levels([row for row in consistent if row.is_open and row.holds] or consistent, arm)
        if isinstance(found, str):
            return ". ".join([found, *(f"Nothing is sized by stage {name}: it {why}" for name, why in doubted.items())])
    else:
        found = _named(levels, stage)
        if isinstance(found, str):
            return found
    left_out = [
        ExcludedLevel(name, _why_left_out(level, found, all_known))
        for name, level in levels.items()
        if name != found.stage
    ]
    beyond = [
        row
        for row in consistent
        if (row.holds or row.misses) and (row.is_open or not found.is_open) and _is_beyond(row, found)
    ]
    nearest = lightest_level(beyond)
    missed_at = nearest.stage if nearest is not None and nearest.misses else None
    return OperatingPoint(found, tuple(left_out), stage is not None, missed_at)


def _is_beyond(row: LoadLevel, chosen: LoadLevel) -> bool:
    above = row.has_rate_above(chosen)
    return chosen.has_less_load_than(row) if above is None else above


def _contradiction(row: LoadLevel, levels: Sequence[LoadLevel]) -> str | None:
    """Return by which miss a level that holds is no operating point; None without one."""
    for other in levels:
        if other.misses and other.has_rate_above(row) is False:
            return (
                f"holds in a closed loop at {show_number(row.requests_per_s)} requests/s, but {other.stage}, the same"
                " requests at no higher a rate, is shown to miss its SLO"
            )
        if other.misses and other.is_open == row.is_open and other.has_less_load_than(row):
            return (
                f"holds, but {other.stage}, the same requests with less load, is shown to miss its SLO: one result is"
                " chance"
            )
    return None


def _named(levels: Mapping[str, LoadLevel | str], stage: str) -> LoadLevel | str:
    row = levels.get(stage)
    if row is None:
        near = get_close_matches(stage, levels, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"--stage is {stage!r}, which its suite does not have{hint} It has {', '.join(levels)}"
    if isinstance(row, str):
        return f"nothing is sized by stage {stage}: {row}"
    if not row.holds:
        return (
            f"nothing is sized by stage {stage}: it {row.not_held}. Throughput beyond the SLO is no capacity; measure"
            " more requests of it, or name another stage"
        )
    if (why := _contradiction(row, known_levels(levels))) is not None:
        return f"nothing is sized by stage {stage}: it {why}; measure both again"
    return row


def _why_left_out(level: LoadLevel | str, chosen: LoadLevel, levels: Sequence[LoadLevel]) -> str:
    if isinstance(level, str):
        return level
    if not level.holds:
        less = ", though it has less load than this one" if level.has_less_load_than(chosen) else ""
        return f"{level.not_held}{less}"
    if (why := _contradiction(level, levels)) is not None:
        return why
    carried = f"holds, at {show_number(level.tokens_per_s)} output tokens/s"
    if chosen.is_open and not level.is_open:
        return f"{carried}, but is a closed loop, whose rate is no arrival rate"
    if level.kind != chosen.kind:
        otherwise = "with another workload, arrival process, action or SLO"
        return f"{carried}, {otherwise}; if that is your demand, select it with --stage"
    return carried


def mean_residence_s(evidence: Evidence, arm: Arm) -> dict[str, float]:
    """Return the mean residence time of successful requests in seconds, from due to end, by stage or class.

    It is the arithmetic mean over all blocks, as Little's law requires, not the geometric mean of a check.
    """
    by_place: dict[str, list[FloatArray]] = {}
    for seen in evidence.load:
        if seen.arm is arm:
            times_s = e2e_s(seen.requests)
            by_place.setdefault(seen.stage, []).append(times_s[np.isfinite(times_s)])
    return {place: float(np.concatenate(times).mean()) for place, times in by_place.items() if any(map(len, times))}


@dataclass(frozen=True, slots=True)
class QueueTrend:
    """Queue of a stage with a steady rate: mean window of its blocks, and mean residence time of their last requests.

    `piles_up`: the number in the system is shown to grow.
    """

    window_s: float
    stay_s: float
    piles_up: bool

    @property
    def is_brief(self) -> bool:
        """Return True if a growing queue could have gone unnoticed: no rate 10% too high is observed this long.

        At f times its capacity, residence times grow to (f - 1)t after t seconds.
        """
        return self.window_s < MIN_RESIDENCE_TIMES * self.stay_s


def queue_trends(evidence: Evidence, suite: Suite, arm: Arm) -> dict[str, QueueTrend]:
    """Return the queue of every stage with a steady rate, over all its classes of such a rate."""
    looks: dict[str, list[LookCounts]] = {}
    for traffic in traffic_classes(suite):
        looks.setdefault(traffic.stage, []).extend(_block_looks(evidence, traffic, arm))
    found: dict[str, QueueTrend] = {}
    for stage, of_stage in looks.items():
        stays_s = [look.backlog.residence_s for look in of_stage if look.backlog is not None]
        if stays_s:
            window_s = sum(look.window_s for look in of_stage) / len(of_stage)
            found[stage] = QueueTrend(window_s, sum(stays_s) / len(stays_s), backlog_growth_p(of_stage) <= ALPHA)
    return found


def _block_looks(evidence: Evidence, traffic: TrafficClass, arm: Arm) -> list[LookCounts]:
    """Return its blocks; empty without a steady rate, when the number in the system grows without a fault of a server.

    Conversations have no steady rate, as later turns add to the first ones.
    """
    slo = traffic.slo
    if not traffic.schedule.is_level_rate or traffic.workload.session is not None or slo is None:
        return []
    blocks = load_of(evidence, traffic.name, arm).values()
    found = (look_counts(seen.requests, slo, None, len(seen.requests), ramp=seen.ramp) for seen in blocks)
    return [look for look in found if look is not None]


@dataclass(frozen=True, slots=True)
class PricedLevel:
    """Stage with its dollars per million tokens, all classes together.

    `usd` is for good tokens if the suite has an SLO, else for output tokens; `usd_output` for output tokens.
    """

    stage: str
    usd: EstimateWithLimits
    usd_output: EstimateWithLimits


def cost_name(suite: Suite, *, in_use: bool = False) -> str:
    """Return the cost metric that runs of a suite are compared by: for good tokens if it defines them."""
    held_to = any(map(_held_to, traffic_classes(suite)))
    return f"{GOOD if held_to else OUTPUT}{IN_USE if in_use else ''}"


def priced_level(rows: Sequence[MetricRow], suite: Suite, arm: Arm, *, in_use: bool = False) -> PricedLevel | str:
    """Return the operating point with its cost, or the level with the most tokens without an SLO, or why there is none.

    A price per token is the same at any utilisation.
    """
    spec = suite.deployments.get(suite.baseline if arm is Arm.BASELINE else suite.candidate)
    by_token = spec is not None and spec.token_prices is not None
    name = cost_name(suite, in_use=in_use and not by_token)
    stages: dict[str, list[str]] = {}
    for place in traffic_classes(suite):
        if name.startswith(OUTPUT) or _held_to(place):
            stages.setdefault(place.stage, []).append(place.name)
    if not stages:
        return "the suite has no load whose tokens could be priced"
    kept = {(row.name, row.stage): row for row in rows if row.arm is arm and row.statistic is None}
    stage = _best_stage(rows, kept, suite, arm, stages, name)
    if stage not in stages:
        return stage
    if len(stages[stage]) > 1 and by_token:
        return (
            f"stage {stage} has no cost of its classes together: its deployment is paid by the token, and each class "
            "has a bill of its own"
        )
    of_output = f"{OUTPUT}{IN_USE if name.endswith(IN_USE) else ''}"
    found, output = (_pooled_levels(kept, stages[stage], metric) for metric in (name, of_output))
    if found is None or output is None:
        at_full_use = _pooled_levels(kept, stages[stage], name.removesuffix(IN_USE))
        if at_full_use is not None:
            why = "its deployment has no `price_terms`, which say how it is used"
        elif by_token:
            why = "a block has no tokens to price, or the server did not report all those that are paid for"
        else:
            why = "no price was stated for it, by the hour or by the token"
        return f"stage {stage} has no cost: {why}"
    return PricedLevel(stage, found, output)


def _held_to(place: TrafficClass) -> bool:
    return place.slo is not None and place.target_ratio is not None


_KeptLevel = dict[tuple[str, str | None], MetricRow]


def _best_stage(
    rows: Sequence[MetricRow], kept: _KeptLevel, suite: Suite, arm: Arm, stages: dict[str, list[str]], name: str
) -> str:
    if name.startswith(GOOD):
        best = best_level(rows, suite, arm)
        return best if isinstance(best, str) else best.stage
    paces = {
        stage: [kept[key].value for one in names if (key := ("output_throughput", one)) in kept]
        for stage, names in stages.items()
    }
    whole = {stage: sum(found) for stage, found in paces.items() if len(found) == len(stages[stage]) and sum(found) > 0}
    if not whole:
        return f"no level of load was measured whole on the {arm.value}"
    return max(whole, key=lambda stage: whole[stage])


def _pooled_levels(kept: _KeptLevel, names: Sequence[str], metric: str) -> EstimateWithLimits | None:
    """Combine the costs of all classes: each is the whole price over its own tokens, so inverses add up.

    Limits are those that all classes reach at once, which is conservative.
    """
    found = [kept[key] for name in names if (key := (metric, name)) in kept]
    if len(found) < len(names) or any(row.value <= 0 for row in found):
        return None
    value = _harmonic_total([row.value for row in found])
    ends = [(row.lower, row.upper) for row in found]
    lower = [low for low, _ in ends if low is not None and low > 0]
    upper = [high for _, high in ends if high is not None and high > 0]
    if len(lower) < len(ends) or len(upper) < len(ends):
        return EstimateWithLimits(value, None)
    return EstimateWithLimits(value, Limits(_harmonic_total(lower), _harmonic_total(upper)))


def _harmonic_total(costs: Sequence[float]) -> float:
    """Return the price over the tokens of all; of one class exactly its own."""
    return costs[0] if len(costs) == 1 else 1 / sum(1 / cost for cost in costs)
