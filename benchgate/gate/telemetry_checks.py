"""What the server says of itself, held to a bound: the candidate's own value of every block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchgate.gate.block_values import too_few
from benchgate.gate.rule import Bound, Finding, Problem
from benchgate.gate.telemetry_values import block_telemetry
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t
from benchgate.suite.metric_kinds import KINDS


def absolute(evidence: Evidence, metric: str, stage: str, bound: Bound, *, alpha: float) -> Finding:
    """Mean over blocks with t-limits. What one block does not tell leaves the check without a value."""
    told = block_telemetry(evidence, metric, stage, Arm.CANDIDATE)
    finding = Finding(
        unit=Unit.RATIO if KINDS[metric].bound == "percentage" else Unit.COUNT,
        scale=Scale.ABSOLUTE,
        margin=bound.value,
        method="t-limits over blocks of what the server said of itself",
        n=len(told),
        n_unit="blocks",
        breach=True,
        lower_is_worse=bound.at_least,
        nears=False,
    )
    untold = [block for block, value in told.items() if value is None]
    if untold or not told:
        where = f"in block {untold[0] + 1} " if untold else ""
        reason = f"the candidate's server did not tell {metric} of stage {stage} {where}".rstrip()
        return replace(finding, problem=Problem(Outcome.INVALID, reason, _LET_IT_TELL))
    values = np.array([value for value in told.values() if value is not None], dtype=np.float64)
    sign = -1 if bound.at_least else 1
    test = paired_t(sign * values, alpha, margin=sign * bound.value)
    if test is None:
        return replace(finding, problem=too_few(len(values)))
    ends = sorted((sign * test.limits.lower, sign * test.limits.upper))
    value = sign * test.mean
    return replace(finding, candidate=value, harm=value, limits=Limits(*ends), p_value=test.p_harm)


_LET_IT_TELL = "see whether the server serves `/metrics` and its engine tells this; or remove the check"
