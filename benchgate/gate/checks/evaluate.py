"""Evaluation of the policy's checks: each by its family, over the blocks in which the load generator kept up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from benchgate.gate.checks.accuracy import Accuracy
from benchgate.gate.checks.capacity import CapacityChecks, Knee
from benchgate.gate.checks.divergence import Divergence
from benchgate.gate.checks.flips import FlipsCheck
from benchgate.gate.checks.server import ColdStart, Telemetry
from benchgate.gate.checks.shadow import ShadowChecks
from benchgate.gate.checks.shares import Shares
from benchgate.gate.checks.timing import Timing
from benchgate.gate.comparison import Comparison, load_of, stricter_look
from benchgate.gate.decision import Estimate, Rule, adjust_for_looks, decide, log_margin
from benchgate.gate.evidence.client_strain import left_out_notes, usable, without_clouded_blocks
from benchgate.gate.evidence.costs import accelerator_count_warning
from benchgate.gate.evidence.deployments import sides_of
from benchgate.gate.guards.load import most_common_failure
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import FAILURE_METRICS, METRICS, PER_ACCELERATOR_UNITS
from benchgate.model.verdict import ArithmeticStep, Outcome, Scale, Unit
from benchgate.suite.schema import Gate, Suite


class CheckFamily(Protocol):
    """Checks of metrics that are measured alike. It knows no guard, no other check and no outcome."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that it measures."""
        ...

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Fill in the estimate of one check, with limits at `alpha`: the suite's, or that of an interim analysis.

        Raises CannotJudge for evidence that cannot carry it.
        """
        ...


CHECKS: tuple[CheckFamily, ...] = (
    Timing(), Shares(), Telemetry(), CapacityChecks(), Knee(), ColdStart(), Accuracy(), FlipsCheck(), Divergence(),
    ShadowChecks(),
)  # fmt: skip

FAMILIES: Mapping[str, CheckFamily] = MappingProxyType(
    {metric: family for family in CHECKS for metric in family.metrics}
)
"""Family of each metric, by the metric's name."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A check on its way to an outcome.

    `all_blocks` is its estimate with the blocks that were excluded because the load generator was late; None if none
    was. `p_holm` and `p_holm_all_blocks` are the p-values of the two after Holm.
    """

    spec: CheckSpec
    estimate: Estimate
    all_blocks: Estimate | None = None
    p_holm: float | None = None
    p_holm_all_blocks: float | None = None

    def outcome(self, gate: Gate) -> Outcome:
        """Decide the check."""
        return decide(self.estimate, self.p_holm, gate.alpha, gate.warn_fraction)


def evaluate(specs: Sequence[CheckSpec], suite: Suite, comparison: Comparison) -> list[Judgement]:
    """Estimate every check, in order: times and rates over the usable blocks, everything else over all blocks.

    With interim looks, limits of load checks have the alpha of this look, and their p-values are adjusted to it.
    """
    timed = usable(comparison, suite)
    look = stricter_look(suite, comparison)
    judgements = []
    for spec in specs:
        alpha = look.alpha if look is not None and spec.stages else suite.gate.alpha
        judgement = _judgement(spec, suite, comparison, timed, alpha)
        for estimate in (judgement.estimate, judgement.all_blocks):
            if estimate is not None:
                _add_notes(estimate, spec, comparison)
                if look is not None and spec.stages:
                    adjust_for_looks(estimate, look)
                estimate.clear_undefined()
        judgements.append(judgement)
    return judgements


def _judgement(spec: CheckSpec, suite: Suite, comparison: Comparison, timed: Comparison, alpha: float) -> Judgement:
    """Measure a check; if blocks had to be excluded for the client's sake, also over all blocks."""
    if not spec.stages or not METRICS[spec.check.metric].timed:
        return Judgement(spec, _measure(spec, suite, comparison, alpha))
    arms = tuple(Arm) if spec.check.margin is not None else (Arm.CANDIDATE,)
    clear = without_clouded_blocks(timed, spec.check.metric, spec.q, spec.stages, arms)
    estimate = _measure(spec, suite, clear.comparison, alpha)
    estimate.problem = estimate.problem or clear.problem
    estimate.notes += [note for stage in spec.stages for note in left_out_notes(comparison, stage, suite)]
    estimate.notes += clear.notes
    used, measured = (
        sum(o.stage in spec.stages for run in runs.runs for o in run.load) for runs in (clear.comparison, comparison)
    )
    if used == measured:
        return Judgement(spec, estimate)
    return Judgement(spec, estimate, _measure(spec, suite, comparison, alpha))


def begin(spec: CheckSpec) -> Estimate:
    """Return the empty estimate of a check: unit, scale, direction and margin, by the metric and the policy."""
    check, metric = spec.check, METRICS[spec.check.metric]
    if check.over is not None:
        unit = Unit.POINTS if metric.kind == "share" else Unit.MULTIPLE
        rule = Rule(unit, Scale.ABSOLUTE, breach=True, lower_is_worse=check.min is not None, nears=False)
        return Estimate(rule, _bound(spec))
    unit = PER_ACCELERATOR_UNITS[metric.unit] if check.per is not None else metric.unit
    if check.margin is None:
        at_least = check.slo_value is None or check.min is not None
        nears = metric.kind != "telemetry" and metric.scope != "sweep"
        rule = Rule(unit, Scale.ABSOLUTE, breach=True, lower_is_worse=at_least, nears=nears)
        return Estimate(rule, _bound(spec))
    breach, two_sided = check.block_when == "breach", check.direction == "either"
    if metric.margin == "points":
        rule = Rule(unit, Scale.DIFFERENCE, breach=breach, falls=metric.higher_is_better, two_sided=two_sided)
        return Estimate(rule, check.margin)
    rule = Rule(unit, Scale.LOG_RATIO, breach=breach, two_sided=two_sided)
    return Estimate(rule, log_margin(check.margin, falling=metric.higher_is_better and not two_sided))


def _bound(spec: CheckSpec) -> float:
    """Return the bound on the candidate's own value; without one it is the target of goodput's SLO."""
    bound = spec.check.slo_value if spec.check.slo_value is not None else spec.target_ratio
    assert bound is not None, "goodput needs an slo: the suite was validated"
    return bound


def _measure(spec: CheckSpec, suite: Suite, comparison: Comparison, alpha: float) -> Estimate:
    estimate = begin(spec)
    with estimate.keeping_problems():
        FAMILIES[spec.check.metric].measure(estimate, spec, suite, comparison, alpha=alpha)
    return estimate


def _add_notes(estimate: Estimate, spec: CheckSpec, comparison: Comparison) -> None:
    """Note why the candidate's requests failed, if failures decide the check, and the accelerators it is divided by.

    Warns if the server contradicts the number of accelerators.
    """
    if estimate.value is not None and (math.isinf(estimate.value) or spec.check.metric in FAILURE_METRICS):
        places = spec.stages if spec.stage is None else (spec.stage,)
        why = most_common_failure(
            execution for place in places for execution in load_of(comparison.judged, place, Arm.CANDIDATE).values()
        )
        if why is not None:
            estimate.notes.append(f"of the candidate's {why}")
    if spec.check.per is None:
        return
    candidate = comparison.judged.run.arms[Arm.CANDIDATE]
    sides = sides_of(comparison) if spec.check.margin is not None else None
    divisors = f"{candidate.accelerators} of {candidate.name}"
    if sides is not None:
        divisors = f"{sides[0].accelerators} of {sides[0].name}, {sides[1].accelerators} of {sides[1].name}"
    estimate.notes.insert(0, f"divided by the accelerators that the suite declares: {divisors}")
    if estimate.trace.steps:
        what = "accelerators that each value is divided by, as the suite declares them"
        estimate.trace.steps.insert(0, ArithmeticStep(what, "", divisors))
    estimate.warn(accelerator_count_warning(None if sides is None else sides[0], candidate))
