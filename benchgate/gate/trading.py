"""What a check of a cost is allowed for a gain in speed that its policy is willing to pay for.

The gain must be shown as any margin is: by the limits of its own check at this look, with every guard that applies to
it. So a cost beyond the traded margin is promoted as seldom as beyond any other, and one between the two margins only
where the gain was shown to be there, which without a gain is as seldom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchgate.gate.rule import Finding
from benchgate.gate.specs import CheckSpec, concrete_checks
from benchgate.model.run import Evidence
from benchgate.model.verdict import Scale
from benchgate.suite.metric_kinds import KINDS, LATENCY_METRICS
from benchgate.units import as_written, show_percent

if TYPE_CHECKING:
    from benchgate.suite.schema import Suite
    from benchgate.suite.trade import Trade


@dataclass(frozen=True, slots=True)
class Traded:
    """Whether the gain was shown, and what is to be said of it. `open`: more blocks may show it yet."""

    shown: bool
    note: str
    open: bool = False


def gain_spec(spec: CheckSpec, trade: Trade, suite: Suite, evidence: Evidence) -> CheckSpec | None:
    """The check whose gain the cost of `spec` may be paid with; None where the policy has none there."""
    statistic = (trade.statistic or "p50") if trade.metric in LATENCY_METRICS else None
    for one in concrete_checks(suite, evidence):
        plain = one.check.margin is not None and one.check.min_abs is None and one.check.per is None
        plain = plain and one.check.direction == "worse"
        if plain and (one.check.metric, one.statistic, one.stage) == (trade.metric, statistic, spec.stage):
            return one
    return None


def traded(gain: Finding | None, trade: Trade) -> Traded:
    """Whether so much of a gain is shown. One whose numbers warn of anything is none."""
    name = " ".join(word for word in (trade.metric, trade.statistic) if word is not None)
    wanted = f"a gain in {name} of {as_written(show_percent(trade.gain_ratio))}"
    if gain is None or gain.problem is not None or gain.limits is None or gain.scale is not Scale.LOG_RATIO:
        return Traded(False, f"not traded: {wanted} could not be judged")
    if gain.warning is not None:
        return Traded(False, f"not traded: {wanted} is not sure, for {gain.warning}")
    rises = KINDS[trade.metric].rises
    needed = -math.log1p(trade.gain_ratio) if rises else math.log1p(-trade.gain_ratio)
    if not gain.limits.upper <= needed:
        return Traded(False, f"not traded: {wanted} is not shown", open=gain.limits.lower <= needed)
    margin = as_written(show_percent(trade.margin_ratio))
    return Traded(True, f"traded: {wanted} is shown, for which the policy pays up to {margin} more")
