"""Of the levels of load that a run measured, the one at which an arm carries most while its SLOs are shown to hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchgate.gate.places import Place, places
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

RATES = ("output_tokens_per_s", "requests_per_s")


@dataclass(frozen=True, slots=True)
class BestRow:
    """What the arm carries at one stage, all its classes with an SLO together, with the lower 95 % limits.

    `goodput_lower` is the lower limit of the share of requests that met the SLO, which is at or above `target_ratio`;
    of several classes those of the one that came nearest to its target. `is_highest`: no level was measured on which
    more came through, so it may carry more.
    """

    stage: str
    tokens_per_s: float
    tokens_lower: float | None
    requests_per_s: float
    requests_lower: float | None
    goodput_lower: float
    target_ratio: float
    e2e_mean_s: float | None
    is_highest: bool = False

    @property
    def holds(self) -> bool:
        """Whether its goodput is shown to reach its target."""
        return self.goodput_lower >= self.target_ratio

    @property
    def tokens_per_request(self) -> float:
        """Output tokens of an answer, on the mean."""
        return self.tokens_per_s / self.requests_per_s

    @property
    def in_flight(self) -> int | None:
        """Requests inside at once, on the mean (Little's law), rounded; None where their time is not known."""
        return None if self.e2e_mean_s is None else max(1, round(self.requests_per_s * self.e2e_mean_s))


def best_row(rows: Sequence[MetricRow], suite: Suite, arm: Arm) -> BestRow | str:
    """The stage with the most output tokens per second among those that hold; else why there is none.

    A stage holds where the suite has an SLO with a target for it and the lower limit of its goodput reaches that, for
    every class of it that has one. What only happened to reach it once is not counted on.
    """
    found = levels_of(rows, suite, arm)
    if isinstance(found, str):
        return found
    held = [row for row in found if row.holds]
    if not held:
        nearest = max(found, key=lambda row: row.goodput_lower - row.target_ratio)
        return (
            f"no stage is shown to hold its SLO on the {arm.value}: nearest is {nearest.stage}, whose goodput may be as"
            f" low as {show_percent(nearest.goodput_lower)} where {show_percent(nearest.target_ratio)} is the target;"
            " measure less load, or more requests of it"
        )
    best = max(held, key=lambda row: row.tokens_per_s)
    return replace(best, is_highest=best.tokens_per_s >= max(row.tokens_per_s for row in found))


def levels_of(rows: Sequence[MetricRow], suite: Suite, arm: Arm) -> list[BestRow] | str:
    """Every stage with an SLO that was measured, in the order of the sweep; else why there is none."""
    of_arm = {(row.stage, row.name, row.statistic): row for row in rows if row.arm is arm and row.task is None}
    if not of_arm:
        return f"the run has no numbers of a load on the {arm.value}"
    stages: dict[str, list[Place]] = {}
    for place in places(suite):
        if place.slo is not None and place.target_ratio is not None:
            stages.setdefault(place.stage, []).append(place)
    if not stages:
        return "the suite states no SLO with a target, so no level of load is known to be good enough; add `slo`"
    found = [_together(stage, [_row(of_arm, place) for place in of]) for stage, of in stages.items()]
    known = [row for row in found if row is not None]
    if not known:
        return "no level of load was measured on which to count: none has its tokens, requests and goodput kept"
    return known


def _row(of_arm: dict[tuple[str | None, str, str | None], MetricRow], place: Place) -> BestRow | None:
    tokens, requests = (of_arm.get((place.name, name, None)) for name in RATES)
    goodput = of_arm.get((place.name, "goodput_ratio", None))
    if tokens is None or requests is None or goodput is None or goodput.lower is None or place.target_ratio is None:
        return None
    if not (tokens.value > 0 and requests.value > 0):
        return None
    mean = of_arm.get((place.name, "e2e_s", "mean"))
    return BestRow(
        stage=place.stage,
        tokens_per_s=tokens.value,
        tokens_lower=tokens.lower or None,
        requests_per_s=requests.value,
        requests_lower=requests.lower or None,
        goodput_lower=goodput.lower,
        target_ratio=place.target_ratio,
        e2e_mean_s=None if mean is None else mean.value,
    )


def _together(stage: str, classes: Sequence[BestRow | None]) -> BestRow | None:
    """One level of load of all its classes; None where something of one of them is not known."""
    known = [row for row in classes if row is not None]
    if len(known) < len(classes):
        return None
    nearest = min(known, key=lambda row: row.goodput_lower - row.target_ratio)
    per_s = sum(row.requests_per_s for row in known)
    times = [row.e2e_mean_s * row.requests_per_s for row in known if row.e2e_mean_s is not None]
    return replace(
        nearest,
        stage=stage,
        tokens_per_s=sum(row.tokens_per_s for row in known),
        tokens_lower=_sum([row.tokens_lower for row in known]),
        requests_per_s=per_s,
        requests_lower=_sum([row.requests_lower for row in known]),
        e2e_mean_s=sum(times) / per_s if len(times) == len(known) else None,
    )


def _sum(limits: Sequence[float | None]) -> float | None:
    """Limits that each class reaches at least; None where one has none."""
    known = [limit for limit in limits if limit is not None]
    return sum(known) if len(known) == len(limits) else None
