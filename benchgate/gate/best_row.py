"""Of the levels of load that a run measured, the one at which an arm carries most while its SLOs are shown to hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchgate.gate.places import Place, places
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.suite.levels import Level
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

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
