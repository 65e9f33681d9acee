"""Of the levels of load that a run measured, the one at which an arm carries most while its SLOs are shown to hold.

By which of its levels a run sizes a fleet, and why not by the others.

What a replica carries is a rate of arrivals, and those of an open loop are one: they come whatever became of the
requests before them. In a closed loop nobody asks who still waits, so a queue is never longer than its callers, and
what comes through is no rate that a server withstands. So an open level stands before a closed one. And what held once
is not counted on where the same requests at a lower rate are shown not to hold: one of the two was chance.

How long requests stayed at the levels of a run, and whether more and more of them were inside: of its records.

What tokens cost at the level of load that counts, read from the numbers that the store keeps of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

import numpy as np

from benchgate.gate.comparison import Place, load_of, places
from benchgate.gate.evidence.intervals import ALPHA
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import e2e_s
from benchgate.model.run import Evidence, MetricRow
from benchgate.stats.distributions import Limits
from benchgate.stats.load_probe import RESIDENCES, LookCounts, growth_p, look_counts
from benchgate.stats.meta import Figure
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Level
from benchgate.units import show_number, show_percent

_ALIKE = 0.05  # of a load: two means of the same one are seldom further apart
RATES = ("output_tokens_per_s", "requests_per_s")


@dataclass(frozen=True, slots=True)
class BestRow:
    """What the arm carries at one stage, all its classes with an SLO together, with the 95 % limits.

    `goodput_lower` is the lower limit of the share of requests that met the SLO, which is at or above `target_ratio`;
    of several classes those of the one that came nearest to its target. `is_open`: its requests came by a rate,
    whatever became of those before them; in a closed loop each waits for an answer, so its rate is what came through.
    `misses`: the goodput of one of them is shown not to reach its target, which is more than not being shown to; or the
    stage `piles_up`: more and more of its requests are shown to be inside at once, which meets no SLO for long.
    `asked_load` is the rate by which they came, of a closed loop how many were in flight; None where none is stated.
    Levels of one `kind` differ in nothing but how much they ask for; no others are more or less of one load.
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
    asked_load: float | None = None
    kind: int = 0

    @property
    def holds(self) -> bool:
        """Whether its goodput is shown to reach its target, and may go on to."""
        return self.goodput_lower >= self.target_ratio and not self.piles_up

    @property
    def only_piles_up(self) -> bool:
        """Whether it would hold but for the requests that pile up."""
        return self.goodput_lower >= self.target_ratio and self.piles_up

    def has_less_load_than(self, other: BestRow) -> bool:
        """Whether it is the lighter one of two of a kind, by more than two means of the same load may differ."""
        loads = _loads((self, other))
        return self.kind == other.kind and loads is not None and loads[0] < loads[1] * (1 - _ALIKE)

    @property
    def held_by(self) -> str:
        """How far its goodput is shown, beside its target."""
        if self.only_piles_up:
            return "more and more of its requests were inside at once, which no replica withstands for long"
        return f"goodput {show_percent(self.goodput_lower)} at least, target {show_percent(self.target_ratio)}"

    @property
    def tokens_per_request(self) -> float:
        """Output tokens of an answer, on the mean."""
        return self.tokens_per_s / self.requests_per_s

    @property
    def in_flight(self) -> int | None:
        """Requests inside at once, on the mean (Little's law), rounded; None where their time is not known."""
        return None if self.inside is None else max(1, round(self.inside))

    @property
    def inside(self) -> float | None:
        """The same as it is."""
        return None if self.e2e_mean_s is None else self.requests_per_s * self.e2e_mean_s


def lightest(levels: Sequence[BestRow]) -> BestRow | None:
    """The one with the least load, the first one where that is not known; None of none."""
    loads = _loads(levels)
    if loads is None:
        return next(iter(levels), None)
    return levels[loads.index(min(loads))] if levels else None


def _loads(levels: Sequence[BestRow]) -> list[float] | None:
    """By what levels are ordered, in one unit for all of them; None where there is none.

    What was asked for; of an open loop beside a closed one the requests inside at once. Never what came through, of
    which a replica that has too much to do has less.
    """
    alike = len({row.is_open for row in levels}) < 2
    for loads in ([row.asked_load if alike else None for row in levels], [row.inside for row in levels]):
        stated = [load for load in loads if load is not None]
        if len(stated) == len(levels):
            return stated
    return None


def best_row(rows: Sequence[MetricRow], suite: Suite, arm: Arm) -> BestRow | str:
    """The stage with the most output tokens per second among those that hold; else why there is none.

    A stage holds where the suite has an SLO with a target for it and the lower limit of its goodput reaches that, for
    every class of it that has one. What only happened to reach it once is not counted on.
    """
    levels = levels_of(rows, suite, arm)
    return levels if isinstance(levels, str) else best_of(known(levels), arm)


def best_of(levels: Sequence[BestRow], arm: Arm) -> BestRow | str:
    """The same of levels that are known, at least one."""
    held = [row for row in levels if row.holds]
    if not held:
        nearest = max(levels, key=lambda row: row.goodput_lower - row.target_ratio)
        if nearest.only_piles_up:
            return (
                f"no stage is shown to hold its SLO on the {arm.value}: at {nearest.stage} {nearest.held_by}; measure"
                " less load"
            )
        return (
            f"no stage is shown to hold its SLO on the {arm.value}: nearest is {nearest.stage}, whose goodput may be as"
            f" low as {show_percent(nearest.goodput_lower)} where {show_percent(nearest.target_ratio)} is the target;"
            " measure less load, or more requests of it"
        )
    return max(held, key=lambda row: row.tokens_per_s)


def known(levels: Mapping[str, BestRow | str]) -> list[BestRow]:
    """Those of which it is known what they carried, in the order of the sweep."""
    return [row for row in levels.values() if not isinstance(row, str)]


def levels_of(
    rows: Sequence[MetricRow],
    suite: Suite,
    arm: Arm,
    stays_s: Mapping[str, float] = MappingProxyType({}),
    piling_up: Collection[str] = (),
) -> dict[str, BestRow | str] | str:
    """Every stage by its name, in the order of the sweep: what it carried, or why that is not known.

    `stays_s` is how long a request stayed on the mean, by place; `piling_up` are stages in which more and more of them
    did. A text in place of all where none is known.
    """
    of_arm = {(row.stage, row.name, row.statistic): row for row in rows if row.arm is arm and row.task is None}
    if not of_arm:
        return f"the run has no numbers of a load on the {arm.value}"
    stages: dict[str, list[Place]] = {}
    for place in places(suite):
        stages.setdefault(place.stage, []).append(place)
    if not stages:
        return "the suite has no stage of load whose rate could be read; add one to `load.sweep`"
    held_to = {stage: [place for place in of if place.target_ratio is not None] for stage, of in stages.items()}
    if not any(held_to.values()):
        return "the suite states no SLO with a target, so no level of load is known to be good enough; add `slo`"
    kinds, asked = _kinds(suite), _asked_loads(suite)
    found: dict[str, BestRow | str] = {}
    for stage, of in held_to.items():
        level = _level(stage, of, of_arm, stays_s)
        if not isinstance(level, str):
            piles_up = stage in piling_up
            misses = level.misses or piles_up
            level = replace(level, kind=kinds[stage], asked_load=asked[stage], piles_up=piles_up, misses=misses)
        found[stage] = level
    if not known(found):
        return "no level of load was measured on which to count: none has its tokens, requests and goodput kept"
    return found


def _levels_by_stage(suite: Suite) -> dict[str, list[Level]]:
    stages: dict[str, list[Level]] = {}
    for level in suite.load.levels() if suite.load is not None else ():
        stages.setdefault(level.stage, []).append(level)
    return stages


def _kinds(suite: Suite) -> dict[str, int]:
    """Every stage's kind: one number for those that differ in nothing but how much they ask for.

    Their requests ask for the same, come in the same way, and are held to the same SLO, and the same is done meanwhile.
    """
    done = {stage.name: stage.actions for stage in (suite.load.sweep if suite.load is not None else ())}
    asked = {
        stage: [done[stage], *((level.group, level.workload, level.slo, level.background, _way(level)) for level in of)]
        for stage, of in _levels_by_stage(suite).items()
    }
    kinds: list[object] = []
    for of_stage in asked.values():
        if of_stage not in kinds:
            kinds.append(of_stage)
    return {stage: kinds.index(of_stage) for stage, of_stage in asked.items()}


def _way(level: Level) -> object:
    """How its requests come, whatever their rate."""
    course = level.course
    return course.arrival, course.bursts, course.ramp_to_rps is None, course.steps is None, course.trace


def _asked_loads(suite: Suite) -> dict[str, float | None]:
    """Every stage's rate, or how many it keeps in flight, of all its classes; None where one has none, or has both."""
    found = {}
    for stage, of in _levels_by_stage(suite).items():
        courses = [level.course for level in of]
        rates = _sum([course.mean_rps for course in courses])
        found[stage] = rates if rates is not None else _sum([course.concurrency for course in courses])
    return found


_Kept = Mapping[tuple[str | None, str, str | None], MetricRow]


def _level(stage: str, classes: Sequence[Place], of_arm: _Kept, stays_s: Mapping[str, float]) -> BestRow | str:
    if not classes:
        return "no SLO with a target is stated for it"
    found = _together(stage, [_row(of_arm, place, stays_s.get(place.name)) for place in classes])
    return "its tokens, requests and goodput were not all measured, with limits" if found is None else found


def _row(of_arm: _Kept, place: Place, stay_s: float | None) -> BestRow | None:
    tokens, requests = (of_arm.get((place.name, name, None)) for name in RATES)
    goodput = of_arm.get((place.name, "goodput_ratio", None))
    if tokens is None or requests is None or goodput is None or goodput.lower is None or place.target_ratio is None:
        return None
    if not (tokens.value > 0 and requests.value > 0):
        return None
    return BestRow(
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
    )


def _together(stage: str, classes: Sequence[BestRow | None]) -> BestRow | None:
    """One level of load of all its classes; None where something of one of them is not known."""
    all_of_it = [row for row in classes if row is not None]
    if len(all_of_it) < len(classes):
        return None
    nearest = min(all_of_it, key=lambda row: row.goodput_lower - row.target_ratio)
    per_s = sum(row.requests_per_s for row in all_of_it)
    times = [row.e2e_mean_s * row.requests_per_s for row in all_of_it if row.e2e_mean_s is not None]
    return replace(
        nearest,
        stage=stage,
        tokens_per_s=sum(row.tokens_per_s for row in all_of_it),
        tokens_lower=_sum([row.tokens_lower for row in all_of_it]),
        requests_per_s=per_s,
        requests_lower=_sum([row.requests_lower for row in all_of_it]),
        e2e_mean_s=sum(times) / per_s if len(times) == len(all_of_it) else None,
        is_open=all(row.is_open for row in all_of_it),
        tokens_upper=_sum([row.tokens_upper for row in all_of_it]),
        misses=any(row.misses for row in all_of_it),
    )


def _sum(of_classes: Sequence[float | None]) -> float | None:
    """Of all classes together (of limits, what they reach at least); None where one has none."""
    stated = [one for one in of_classes if one is not None]
    return sum(stated) if len(stated) == len(of_classes) else None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A level that the fleet is not sized by."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The level that the fleet is sized by. `asked_for`: by its name, and not because it is the best.

    `missed_at` is the next level of the same requests beyond it of which anything is known, where that is shown to miss
    its SLO: what a replica carries lies between the two. None where nothing shows that it carries no more. Beyond an
    open loop only open ones count: a closed loop says nothing of rates.
    """

    row: BestRow
    left_out: tuple[LeftOut, ...] = ()
    asked_for: bool = False
    missed_at: str | None = None


def choose(levels: Mapping[str, BestRow | str], arm: Arm, stage: str | None = None) -> Choice | str:
    """Of the levels of `levels_of`, the named one, else the best that is shown to hold; else why there is none."""
    all_known = known(levels)
    found = _best(all_known, arm) if stage is None else _named(levels, stage)
    if isinstance(found, str):
        return found
    left_out = [LeftOut(name, _why(level, found, all_known)) for name, level in levels.items() if name != found.stage]
    return Choice(found, tuple(left_out), stage is not None, _missed_at(all_known, found))


def _missed_at(levels: Sequence[BestRow], chosen: BestRow) -> str | None:
    beyond = [
        row
        for row in levels
        if (row.holds or row.misses) and (row.is_open or not chosen.is_open) and chosen.has_less_load_than(row)
    ]
    nearest = lightest(beyond)
    return nearest.stage if nearest is not None and nearest.misses else None


def _belied_by(row: BestRow, levels: Sequence[BestRow]) -> BestRow | None:
    """A level of the same requests, open as it is or closed, that has less load and is shown to miss its SLO."""
    lighter = (other for other in levels if other.misses and other.is_open == row.is_open)
    return next((other for other in lighter if other.has_less_load_than(row)), None)


def _belied(lighter: BestRow) -> str:
    return f"holds, but {lighter.stage}, the same requests with less load, is shown to miss its SLO: one was chance"


def _best(levels: Sequence[BestRow], arm: Arm) -> BestRow | str:
    sound = [row for row in levels if not (row.holds and _belied_by(row, levels))]
    opened = [row for row in sound if row.is_open and row.holds]
    return best_of(opened or sound, arm)


def _named(levels: Mapping[str, BestRow | str], stage: str) -> BestRow | str:
    row = levels.get(stage)
    if row is None:
        near = get_close_matches(stage, levels, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"--stage is {stage!r}, which its suite does not have{hint} It has {', '.join(levels)}"
    if isinstance(row, str):
        return f"nothing is sized by stage {stage}: {row}"
    if not row.holds:
        return (
            f"nothing is sized by stage {stage}, which is not shown to hold its SLO ({row.held_by}): what comes through"
            " beyond the SLO is no capacity; measure more requests of it, or name another stage"
        )
    if (lighter := _belied_by(row, known(levels))) is not None:
        return f"nothing is sized by stage {stage}: it {_belied(lighter)}; measure both again"
    return row


def _why(level: BestRow | str, chosen: BestRow, levels: Sequence[BestRow]) -> str:
    if isinstance(level, str):
        return level
    if not level.holds:
        less = ", though it has less load than this one" if level.has_less_load_than(chosen) else ""
        return f"not shown to hold its SLO ({level.held_by}){less}"
    if (lighter := _belied_by(level, levels)) is not None:
        return _belied(lighter)
    carried = f"holds, at {show_number(level.tokens_per_s)} output tokens/s"
    if chosen.is_open and not level.is_open:
        return f"{carried}, but is a closed loop, whose rate is no rate of arrivals"
    if level.kind != chosen.kind:
        otherwise = "asked otherwise (workload, way of arrival, actions or SLO)"
        return f"{carried}, {otherwise}; is that your demand, name it by --stage"
    return carried


def mean_stays_s(evidence: Evidence, arm: Arm) -> dict[str, float]:
    """Seconds from when a successful request was due to its end, on the mean over all blocks, by place.

    Little's law takes this mean, the arithmetic one: the geometric one of a check is that of a ratio, and less.
    """
    stays: dict[str, list[FloatArray]] = {}
    for seen in evidence.load:
        if seen.arm is arm:
            times_s = e2e_s(seen.requests)
            stays.setdefault(seen.stage, []).append(times_s[np.isfinite(times_s)])
    return {place: float(np.concatenate(of).mean()) for place, of in stays.items() if any(map(len, of))}


@dataclass(frozen=True, slots=True)
class Watched:
    """What a stage of a steady rate shows of a queue: how long a block was watched, how long its last requests stayed.

    Both are means over the measured windows of its blocks (`stats.window`). `piles_up`: more and more requests are
    shown to be inside at once.
    """

    window_s: float
    stay_s: float
    piles_up: bool

    @property
    def is_brief(self) -> bool:
        """Whether a queue that grows could have gone unseen: of a rate 10 % too high none is watched as long as this.

        Sent f times what it can do, a server lets requests stay (f - 1)t after t seconds.
        """
        return self.window_s < RESIDENCES * self.stay_s


def watched_stages(evidence: Evidence, suite: Suite, arm: Arm) -> dict[str, Watched]:
    """Every stage with a steady rate, by its name, all its classes of such a rate together."""
    looks: dict[str, list[LookCounts]] = {}
    for level in suite.load.levels() if suite.load is not None else ():
        looks.setdefault(level.stage, []).extend(_looks(evidence, suite, level, arm))
    return {stage: found for stage, of in looks.items() if (found := _watched(of)) is not None}


def _looks(evidence: Evidence, suite: Suite, level: Level, arm: Arm) -> list[LookCounts]:
    """Its blocks; none of what has no steady rate, by which more requests come to be inside with no fault of a server.

    Conversations have none either: their later turns come on top of the first ones.
    """
    course, slo = level.course, level.slo or suite.slo
    if not course.is_level_rate or level.workload.session is not None or slo is None:
        return []
    blocks = load_of(evidence, level.name, arm).values()
    found = (look_counts(seen.requests, slo.per_request, None, len(seen.requests), ramp=seen.ramp) for seen in blocks)
    return [look for look in found if look is not None]


def _watched(looks: Sequence[LookCounts]) -> Watched | None:
    stays_s = [look.backlog.residence_s for look in looks if look.backlog is not None]
    if not stays_s:
        return None
    window_s = sum(look.window_s for look in looks) / len(looks)
    return Watched(window_s, sum(stays_s) / len(stays_s), growth_p(looks) <= ALPHA)


GOOD, OUTPUT = "usd_per_million_good_tokens", "usd_per_million_output_tokens"
IN_USE = "_in_use"
"""What the names above end with where a price is counted as it is used: with its overhead, and while it idles."""


@dataclass(frozen=True, slots=True)
class PricedLevel:
    """A stage, and dollars per million tokens of it: all its classes together.

    `usd` is of good tokens where the suite has an SLO, else of output tokens; `usd_output` of output tokens.
    """

    stage: str
    usd: Figure
    usd_output: Figure


def cost_name(suite: Suite, *, in_use: bool = False) -> str:
    """The metric that runs of a suite are compared by: good tokens count where it says what a good one is."""
    held_to = any(map(_held_to, places(suite)))
    return f"{GOOD if held_to else OUTPUT}{IN_USE if in_use else ''}"


def priced_level(rows: Sequence[MetricRow], suite: Suite, arm: Arm, *, in_use: bool = False) -> PricedLevel | str:
    """The level with most output tokens of those shown to hold their SLO, or of all without one; else why none is.

    What is paid by the token costs the same however it is used: nobody pays for it while it idles.
    """
    by_token = _is_paid_by_the_token(suite, arm)
    name = cost_name(suite, in_use=in_use and not by_token)
    stages: dict[str, list[str]] = {}
    for place in places(suite):
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
        return f"stage {stage} has no cost: " + (
            "no price was stated for it, by the hour or by the token"
            if at_full_use is None
            else "its deployment has no `price_terms`, which say how it is used"
        )
    return PricedLevel(stage, found, output)


def _held_to(place: Place) -> bool:
    return place.slo is not None and place.target_ratio is not None


def _is_paid_by_the_token(suite: Suite, arm: Arm) -> bool:
    """Then classes do not share one price, which is what is added up here."""
    spec = suite.deployments.get(suite.baseline if arm is Arm.BASELINE else suite.candidate)
    return spec is not None and spec.token_prices is not None


_KeptLevel = dict[tuple[str, str | None], MetricRow]


def _best_stage(
    rows: Sequence[MetricRow], kept: _KeptLevel, suite: Suite, arm: Arm, stages: dict[str, list[str]], name: str
) -> str:
    """The stage that counts, or why there is none: a sentence, which no name of a stage is."""
    if name.startswith(GOOD):
        best = best_row(rows, suite, arm)
        return best if isinstance(best, str) else best.stage
    paces = {
        stage: [kept[key].value for one in names if (key := ("output_tokens_per_s", one)) in kept]
        for stage, names in stages.items()
    }
    whole = {stage: sum(found) for stage, found in paces.items() if len(found) == len(stages[stage]) and sum(found) > 0}
    if not whole:
        return f"no level of load was measured whole on the {arm.value}"
    return max(whole, key=lambda stage: whole[stage])


def _pooled_levels(kept: _KeptLevel, names: Sequence[str], metric: str) -> Figure | None:
    """The cost of all classes' tokens: each class's is the whole price over its own, so their inverses add up.

    Each limit is of what all classes reach at once, which is further out than it need be.
    """
    found = [kept[key] for name in names if (key := (metric, name)) in kept]
    if len(found) < len(names) or any(row.value <= 0 for row in found):
        return None
    value = _shared([row.value for row in found])
    ends = [(row.lower, row.upper) for row in found]
    lower = [low for low, _ in ends if low is not None and low > 0]
    upper = [high for _, high in ends if high is not None and high > 0]
    if len(lower) < len(ends) or len(upper) < len(ends):
        return Figure(value, None)
    return Figure(value, Limits(_shared(lower), _shared(upper)))


def _shared(costs: Sequence[float]) -> float:
    """One price over the tokens of all; of one class it is the number itself, to the last bit."""
    return costs[0] if len(costs) == 1 else 1 / sum(1 / cost for cost in costs)
