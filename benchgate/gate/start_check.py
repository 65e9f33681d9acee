"""How long the candidate's server takes from nothing to its first good completion."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchgate.gate.rule import Bound, Finding, Problem
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t


def absolute(evidence: Evidence, bound: Bound, *, alpha: float) -> Finding:
    """Geometric mean over starts, with t-limits on the log scale."""
    times_s = [start.to_answer_s for start in evidence.starts if start.arm is Arm.CANDIDATE]
    finding = Finding(
        unit=Unit.SECONDS,
        scale=Scale.ABSOLUTE,
        margin=bound.value,
        method="t-limits over starts of ln(time)",
        n=len(times_s),
        n_unit="starts",
        breach=True,
    )
    if not times_s or min(times_s) <= 0:
        reason = "the candidate was never started"
        return replace(finding, problem=Problem(Outcome.INVALID, reason, "see the faults of the targets"))
    test = paired_t(np.log(np.array(times_s)), alpha, margin=math.log(bound.value))
    if test is None:
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, "one start gives no interval", "start it again"))
    value = math.exp(test.mean)
    limits = Limits(math.exp(test.limits.lower), math.exp(test.limits.upper))
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=test.p_harm)
