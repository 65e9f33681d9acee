"""What can be seen of an error budget's burn: one more required check of the candidate's own failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchgate.plan.power_load import Blocks
from benchgate.plan.power_row import CheckPower, Row
from benchgate.stats.share_power import chance_within, most_misses, share_shown, zero_misses_needed
from benchgate.suite.error_budget import BURN, BURN_ALARM, ErrorBudget, worst_share
from benchgate.suite.error_budget_rules import burn_places
from benchgate.suite.schema import Suite
from benchgate.units import show_percent


def budget_power(suite: Suite, blocks: Blocks | None) -> Iterator[Row]:
    """A row for each line on the burn that the gate will write; none for a suite without a budget."""
    budget = suite.error_budget
    if budget is None or blocks is None:
        return
    for place in burn_places(suite):
        row = CheckPower(
            id=f"{BURN}@{place.name}",
            metric=BURN,
            required=True,
            allowed=suite.gate.allow_underpowered,
            measure="share",
            n_unit="requests",
        )
        requests = blocks.requests.get(place.name)
        if place.requests is None or not requests or min(requests) == 0:
            yield Row(replace(row, note="not foretold: how many requests there will be is not known"))
        else:
            yield Row(_foretold(row, budget, requests, blocks.last_tail))


def _foretold(row: CheckPower, budget: ErrorBudget, requests: Sequence[int], tail: float) -> CheckPower:
    """With all blocks: how many may fail, and how often a candidate passes of which as many fail as the objective lets.

    Such a one burns at 1x, which warns now and then and promotes: a baseline that keeps its objective fails no more.
    """
    worst, total, allowed = worst_share(budget.objective_ratio), sum(requests), 1 - budget.objective_ratio
    most = most_misses(requests, worst, tail)
    needs = zero_misses_needed(worst, tail) if worst < 1 else None
    if most is None:
        why = f"even where none of {total:,} requests fails, a burn above {BURN_ALARM}x cannot be ruled out"
        remedy = "send more" if needs is None else f"send at least {needs:,}"
        return replace(row, has=total, needs=needs, passes=0.0, cannot=why, remedy=remedy)
    failed = "failed" if budget.metric == "error_rate" else "were not good"
    return replace(
        row,
        has=total,
        needs=needs,
        sees_80=share_shown(requests, worst, alpha=tail, power=0.8),
        sees_95=share_shown(requests, worst, alpha=tail, power=0.95),
        passes=chance_within(requests, worst, allowed, tail),
        note=f"rules out a burn of {BURN_ALARM}x with at most {most:,} of {total:,} that {failed}; passes as if "
        f"{show_percent(allowed)} did, as many as the objective lets",
    )
