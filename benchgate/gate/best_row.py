"""Of the levels of load that a run measured, the one at which an arm carries most while its SLOs are shown to hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.gate.places import Place, places
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

RATES = ("output_tokens_per_s", "requests_per_s")


@dataclass(frozen=True, slots=True)
class BestRow:
    """What the arm carries at one stage, with the lower 95 % limits, and how it is there.

    `goodput_lower` is the lower limit of the share of requests that met the SLO, which is at or above `target_ratio`.
    """

    stage: str
    tokens_per_s: float
    tokens_lower: float | None
    requests_per_s: float
    requests_lower: float | None
    goodput_lower: float
    target_ratio: float
    e2e_mean_s: float | None
    ttft_p95_s: float | None

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

    A stage holds where the suite has an SLO with a target for it and the lower limit of its goodput reaches that. What
    only happened to reach it once is not counted on.
    """
    of_arm = {(row.stage, row.name, row.statistic): row for row in rows if row.arm is arm and row.task is None}
    if not of_arm:
        return f"the run has no numbers of a load on the {arm.value}"
    bound = [place for place in places(suite) if place.slo is not None and place.target_ratio is not None]
    if not bound:
        return "the suite states no SLO with a target, so no level of load is known to be good enough; add `slo`"
    found = [row for place in bound if (row := _row(of_arm, place)) is not None]
    if not found:
        return "no level of load was measured on which to count: none has its tokens, requests and goodput kept"
    held = [row for row in found if row.goodput_lower >= row.target_ratio]
    if not held:
        nearest = max(found, key=lambda row: row.goodput_lower - row.target_ratio)
        return (
            f"no stage is shown to hold its SLO on the {arm.value}: nearest is {nearest.stage}, whose goodput may be as"
            f" low as {show_percent(nearest.goodput_lower)} where {show_percent(nearest.target_ratio)} is the target;"
            " measure less load, or more requests of it"
        )
    return max(held, key=lambda row: row.tokens_per_s)


def _row(of_arm: dict[tuple[str | None, str, str | None], MetricRow], place: Place) -> BestRow | None:
    tokens, requests = (of_arm.get((place.name, name, None)) for name in RATES)
    goodput = of_arm.get((place.name, "goodput_ratio", None))
    if tokens is None or requests is None or goodput is None or goodput.lower is None or place.target_ratio is None:
        return None
    if not (tokens.value > 0 and requests.value > 0):
        return None
    mean, p95 = of_arm.get((place.name, "e2e_s", "mean")), of_arm.get((place.name, "ttft_s", "p95"))
    return BestRow(
        stage=place.name,
        tokens_per_s=tokens.value,
        tokens_lower=tokens.lower or None,
        requests_per_s=requests.value,
        requests_lower=requests.lower or None,
        goodput_lower=goodput.lower,
        target_ratio=place.target_ratio,
        e2e_mean_s=None if mean is None else mean.value,
        ttft_p95_s=None if p95 is None else p95.value,
    )
