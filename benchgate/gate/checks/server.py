"""Checks of what the candidate's server reports of itself, and of how long it takes to start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import CannotJudge, Estimate, inconclusive, invalid
from benchgate.gate.evidence.blocks import LOOK_AT_ERRORS, too_few
from benchgate.gate.evidence.telemetry import block_joules_per_token, block_telemetry, windows_of
from benchgate.gate.evidence.tokens import demonstrated_inflation, note_inflation
from benchgate.gate.policy import CheckSpec
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import TELEMETRY_METRICS
from benchgate.model.run import LoadObservation
from benchgate.model.telemetry import FIRST_SAMPLE_S, Gauge, TelemetryWindow
from benchgate.model.verdict import Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import show_duration


class Telemetry:
    """Checks of what the server reports of its own work over a stage."""

    metrics = TELEMETRY_METRICS

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Hold the candidate's mean over blocks to its bound. Raises CannotJudge if a block has no value."""
        assert spec.stage is not None, "a load check has a stage: the suite was validated"
        evidence, metric, stage = comparison.judged, spec.check.metric, spec.stage
        if metric == "joules_per_token":
            tokens_of = _good_tokens(estimate, comparison, stage, suite)
            reported = block_joules_per_token(evidence, stage, Arm.CANDIDATE, tokens_of)
        else:
            reported = block_telemetry(evidence, metric, stage, Arm.CANDIDATE)
        estimate.method, estimate.n = "t-limits over blocks of what the server said of itself", len(reported)
        missing = [block for block, value in reported.items() if value is None]
        if missing or not reported:
            windows = windows_of(evidence, stage, Arm.CANDIDATE)
            if not windows and evidence.target_faults:
                raise invalid(f"stage {stage} was not measured", "see the faults of the targets")
            raise _not_reported(metric, stage, windows, missing[0] if missing else None)
        values = np.array([value for value in reported.values() if value is not None], dtype=np.float64)
        sign = -1 if estimate.rule.lower_is_worse else 1
        test = paired_t(sign * values, alpha, margin=sign * estimate.margin)
        if test is None:
            raise too_few(len(values))
        lower, upper = sorted((sign * test.limits.lower, sign * test.limits.upper))
        # Neither a count nor a share is ever below 0, nor a share above 1, whatever t makes of a few blocks.
        estimate.limits = Limits(max(0.0, lower), min(1.0, upper) if estimate.rule.unit is Unit.RATIO else upper)
        estimate.candidate = estimate.value = sign * test.mean
        estimate.p_value = test.p_value


def _good_tokens(
    estimate: Estimate, comparison: Comparison, stage: str, suite: Suite
) -> Callable[[LoadObservation], float]:
    """Return a count of output tokens of good answers, ramp included, as far as the text shows them.

    The energy is that of the whole stage, so its ramp counts. Without an SLO every success is good.
    """
    slos = {traffic.name: traffic.slo for traffic in traffic_classes(suite) if traffic.stage == stage}
    inflations = {name: demonstrated_inflation(comparison.request_pairs, name, suite) for name in slos}
    for inflation in inflations.values():
        if inflation is not None:
            note_inflation(estimate, "joules_per_token", inflation)

    def count(execution: LoadObservation) -> float:
        slo, inflation = slos.get(execution.stage), inflations.get(execution.stage)
        if slo is not None and inflation is not None:
            slo = slo.restated(inflation.estimate)
        by_usage = sum(request_metrics.output_tokens(rows, slo=slo) for rows in execution.with_ramp)
        return by_usage if inflation is None else by_usage * math.exp(-inflation.by_block.get(execution.block, 0.0))

    return count


_PEAKS = {"queue_depth": (Gauge.WAITING, "how many wait"), "kv_usage": (Gauge.KV_USAGE, "the KV cache")}
"""Metrics that are the peak of a gauge, which a short stage may never show."""


def _not_reported(metric: str, stage: str, windows: Mapping[int, TelemetryWindow], block: int | None) -> CannotJudge:
    """Return why a block has no value: the server reported none, or there was no moment at which to sample it."""
    window = windows.get(block) if block is not None else None
    where = f"stage {stage}" + (f" in block {block + 1}" if block is not None else "")
    gauge, found = _PEAKS.get(metric, (None, ""))
    if window is not None and gauge is not None and not window.busy and window.reports(gauge):
        reason = f"{where} was over after {show_duration(window.ended_s)}: too short for a look at {found}"
        first = show_duration(FIRST_SAMPLE_S)
        return invalid(reason, f"make it last well over {first} in every block: a stage is looked at first then")
    if window is not None and metric == "kv_usage_after" and not window.drained and window.reports(Gauge.KV_USAGE):
        reason = f"the candidate's server was not seen idle after {where}, so nothing is known of its rest"
        remedy = "see whether it goes on with requests that nobody waits for any more; TensorRT-LLM never reports rest"
        return invalid(reason, remedy)
    if window is not None and metric == "joules_per_token" and window.energy_j:
        reason = f"the candidate has no good answer in {where}, so its energy is for no token"
        return invalid(reason, LOOK_AT_ERRORS)
    if window is not None and metric == "joules_per_token" and window.problems:
        reason = f"the energy of {where} is unknown. Its telemetry has these problems: {'; '.join(window.problems)}"
        return invalid(reason, "correct what the reason names, or remove the check")
    reason = f"the candidate's server did not tell {metric} of {where}"
    return invalid(reason, "see whether the server serves `/metrics` and its engine tells this; or remove the check")


class ColdStart:
    """Check of the time from start-up to the first good completion."""

    metrics = ("cold_start",)

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Hold the geometric mean over starts to its bound, with t-limits on the log scale."""
        times_s = [start.to_answer_s for start in comparison.judged.starts if start.arm is Arm.CANDIDATE]
        estimate.method, estimate.n, estimate.n_unit = "t-limits over starts of ln(time)", len(times_s), "starts"
        if not times_s or min(times_s) <= 0:
            raise invalid("the candidate was never started", "see the faults of the targets")
        test = paired_t(np.log(np.array(times_s)), alpha, margin=math.log(estimate.margin))
        if test is None:
            raise inconclusive("one start gives no interval", "start it again")
        estimate.candidate = estimate.value = math.exp(test.mean)
        estimate.limits, estimate.p_value = test.limits.mapped(math.exp), test.p_value
