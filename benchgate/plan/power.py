"""What each check can show, before anything is sent: the smallest harm it sees, what its margin takes, and how often it
promotes a candidate that is the baseline's equal.

The arithmetic is that of the gate (`stats`), the checks are those that it will judge (`JudgedCheck`). How much the
deployments vary is known from a calibration or an earlier run; where it is not, it is assumed, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.plan.judged import JudgedCheck, Known
from benchgate.plan.power_budget import budget_power
from benchgate.plan.power_items import item_power
from benchgate.plan.power_load import Blocks, blocks_of, load_power
from benchgate.plan.power_row import CheckPower, Row
from benchgate.plan.schedule import Plan
from benchgate.stats.look_power import Ends, ends
from benchgate.suite.metric_kinds import STAGE_METRICS
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Promotion:
    """How often an equal candidate is promoted by all required checks of which that can be foretold, `checks` of `of`.

    They are taken for independent, which latencies of the same requests are not: together they hold more often, so the
    chance is a guide on the low side. `blocks`: how many it takes on average; None without checks at several looks.
    """

    chance: float | None
    checks: int
    of: int
    blocks: float | None


@dataclass(frozen=True, slots=True)
class Foretold:
    """Every check in the order of the policy, what is added to them, and all of them together."""

    checks: tuple[CheckPower, ...] = ()
    promotion: Promotion | None = None


def foretell(suite: Suite, plan: Plan, judged: Sequence[JudgedCheck], known: Known) -> Foretold:
    """What a planned run's checks can show, and the burn of an error budget. Empty where no check is told."""
    if not judged:
        return Foretold()
    blocks = blocks_of(suite, plan)
    rows = [_row(number, one, suite, plan, blocks, known) for number, one in enumerate(judged)]
    rows += budget_power(suite, blocks)
    return Foretold(tuple(row.power for row in rows), _promotion(rows, blocks))


def _row(number: int, one: JudgedCheck, suite: Suite, plan: Plan, blocks: Blocks | None, known: Known) -> Row:
    if one.check.metric in STAGE_METRICS and blocks is not None:
        return load_power(number, one, suite, blocks, known)
    return Row(item_power(one, suite, plan, known))


def _promotion(rows: Sequence[Row], blocks: Blocks | None) -> Promotion:
    required = [row for row in rows if row.power.required]
    seen = [row.seen for row in required if row.seen is not None]
    together: Ends | None = ends(seen, blocks.looks) if seen and blocks is not None else None
    alone = [row.power.passes for row in required if row.seen is None and row.power.passes is not None]
    counted = len(seen) + len(alone)
    chance = math.prod(alone) * (together.promoted if together is not None else 1.0)
    several = blocks is not None and len(blocks.looks.blocks) > 1
    return Promotion(
        chance=chance if counted else None,
        checks=counted,
        of=len(required),
        blocks=together.mean_blocks if together is not None and several else None,
    )
