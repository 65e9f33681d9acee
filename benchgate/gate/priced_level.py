"""What tokens cost at the level of load that counts, read from the numbers that the store keeps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.gate.best_row import best_row
from benchgate.gate.places import Place, places
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.stats.limits import Limits
from benchgate.stats.recovered import Figure
from benchgate.suite.schema import Suite

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
    found, output = (_together(kept, stages[stage], metric) for metric in (name, of_output))
    if found is None or output is None:
        at_full_use = _together(kept, stages[stage], name.removesuffix(IN_USE))
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


_Kept = dict[tuple[str, str | None], MetricRow]


def _best_stage(
    rows: Sequence[MetricRow], kept: _Kept, suite: Suite, arm: Arm, stages: dict[str, list[str]], name: str
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


def _together(kept: _Kept, names: Sequence[str], metric: str) -> Figure | None:
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
