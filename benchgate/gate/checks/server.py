"""What the server says of itself, held to a bound: the candidate's own value of every block.

How long the candidate's server takes from nothing to its first good completion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchgate.gate.checks.base import bound_of
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Bound, Finding, Problem
from benchgate.gate.evidence.blocks import too_few
from benchgate.gate.evidence.telemetry import block_telemetry, windows_of
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, TELEMETRY_METRICS
from benchgate.model.run import Evidence
from benchgate.model.telemetry import FIRST_SAMPLE_S, Gauge, TelemetryWindow
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t
from benchgate.suite.schema import Suite
from benchgate.units import show_duration


def telemetry_against_bound(evidence: Evidence, metric: str, stage: str, bound: Bound, *, alpha: float) -> Finding:
    """Mean over blocks with t-limits. What one block does not tell leaves the check without a value."""
    told = block_telemetry(evidence, metric, stage, Arm.CANDIDATE)
    finding = Finding(
        unit=METRICS[metric].unit,
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
        windows = windows_of(evidence, stage, Arm.CANDIDATE)
        if not windows and evidence.target_faults:
            problem = Problem(Outcome.INVALID, f"stage {stage} was not measured", "see the faults of the targets")
            return replace(finding, problem=problem)
        return replace(finding, problem=_untold(metric, stage, windows, untold[0] if untold else None))
    values = np.array([value for value in told.values() if value is not None], dtype=np.float64)
    sign = -1 if bound.at_least else 1
    test = paired_t(sign * values, alpha, margin=sign * bound.value)
    if test is None:
        return replace(finding, problem=too_few(len(values)))
    lower, upper = sorted((sign * test.limits.lower, sign * test.limits.upper))
    # Neither a count nor a share is ever below 0, nor a share above 1, whatever t makes of a few blocks.
    limits = Limits(max(0.0, lower), min(1.0, upper) if finding.unit is Unit.RATIO else upper)
    value = sign * test.mean
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=test.p_value)


def _untold(metric: str, stage: str, windows: Mapping[int, TelemetryWindow], block: int | None) -> Problem:
    """Why a block has no value: the server said nothing, or there was no moment at which to ask it."""
    window = windows.get(block) if block is not None else None
    where = f"stage {stage}" + (f" in block {block + 1}" if block is not None else "")
    if window is not None and metric == "queue_depth" and not window.busy and window.tells(Gauge.WAITING):
        reason = f"{where} was over after {show_duration(window.ended_s)}: too short for a look at how many wait"
        longer = (
            f"make it last well over {show_duration(FIRST_SAMPLE_S)} in every block: a stage is looked at first then"
        )
        return Problem(Outcome.INVALID, reason, longer)
    if window is not None and metric == "kv_usage_after" and not window.drained and window.tells(Gauge.KV_USAGE):
        reason = f"the candidate's server was not seen idle after {where}, so nothing is known of its rest"
        return Problem(Outcome.INVALID, reason, "see whether it goes on with requests that nobody waits for any more")
    return Problem(Outcome.INVALID, f"the candidate's server did not tell {metric} of {where}", _LET_IT_TELL)


_LET_IT_TELL = "see whether the server serves `/metrics` and its engine tells this; or remove the check"


def cold_start_against_bound(evidence: Evidence, bound: Bound, *, alpha: float) -> Finding:
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
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=test.p_value)


class Telemetry:
    """What a server reports of itself over a stage: cache, queue and preemptions."""

    metrics = TELEMETRY_METRICS

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Hold the candidate's mean over blocks to its bound."""
        assert spec.stage is not None, "a load check has a stage: the suite was validated"
        check, bound = spec.check, bound_of(spec)
        return telemetry_against_bound(comparison.judged, check.metric, spec.stage, bound, alpha=suite.gate.alpha)


class ColdStart:
    """Time from start-up to the first good completion."""

    metrics = ("cold_start",)

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Hold the candidate's starts to their bound."""
        return cold_start_against_bound(comparison.judged, bound_of(spec), alpha=suite.gate.alpha)
