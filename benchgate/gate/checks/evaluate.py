"""Measuring the checks: each metric's own way to a finding, over the blocks that tell the servers' times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from benchgate.gate.checks import timing
from benchgate.gate.checks.cost import miscounted, unpaid
from benchgate.gate.checks.registry import FAMILIES
from benchgate.gate.comparison import Comparison, beside, stricter_look
from benchgate.gate.decision import Finding, Look, Problem, at_look
from benchgate.gate.evidence.blocks import in_other_pieces
from benchgate.gate.evidence.client_strain import Cleared, Tail, cleared, left_out_notes, usable
from benchgate.gate.evidence.costs import idle_cost_warning
from benchgate.gate.evidence.deployments import sides_of, vocabulary_warning
from benchgate.gate.guards.base import SPEED_METRICS
from benchgate.gate.guards.load import most_common_failure
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import (
    COST_METRICS,
    FAILURE_METRICS,
    METRICS,
)
from benchgate.model.verdict import ArithmeticStep
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Measured:
    """What a check found, and what it would have found with the blocks that were left out; None when none was."""

    finding: Finding
    over_all: Finding | None = None


def measured(specs: tuple[CheckSpec, ...], suite: Suite, comparison: Comparison) -> list[Measured]:
    """Every check, in order: times and rates in the usable blocks, whatever else in all of them.

    What rests on the load's blocks is held to the error that this look at them may spend.
    """
    timed = usable(comparison, suite)
    look = stricter_look(suite, comparison)
    if look is None:
        return [_measured(spec, suite, comparison, timed) for spec in specs]
    stricter = suite.model_copy(update={"gate": suite.gate.model_copy(update={"alpha": look.alpha})})
    return [
        _at_look(_measured(spec, stricter, comparison, timed), look)
        if spec.stages
        else _measured(spec, suite, comparison, timed)
        for spec in specs
    ]


def _at_look(found: Measured, look: Look) -> Measured:
    over_all = None if found.over_all is None else at_look(found.over_all, look)
    return Measured(at_look(found.finding, look), over_all)


def _measured(spec: CheckSpec, suite: Suite, comparison: Comparison, timed: Comparison) -> Measured:
    found = _of_blocks(spec, suite, comparison, timed)
    over_all = None if found.over_all is None else _with_failures(found.over_all, spec, comparison)
    found = Measured(_with_failures(found.finding, spec, comparison), over_all)
    if spec.check.per is None:
        return found
    each = [None if one is None else _of_each(one, spec, comparison) for one in (found.finding, found.over_all)]
    return Measured(each[0] or found.finding, each[1])


def _with_failures(finding: Finding, spec: CheckSpec, comparison: Comparison) -> Finding:
    """Add why the candidate's requests failed, where failures decide the check."""
    if finding.harm is None or not (math.isinf(finding.harm) or spec.check.metric in FAILURE_METRICS):
        return finding
    load = (o for o in comparison.judged.load if o.arm is Arm.CANDIDATE and o.stage in spec.stages)
    why = most_common_failure(load)
    return finding if why is None else replace(finding, notes=(*finding.notes, f"of the candidate's {why}"))


def _of_each(finding: Finding, spec: CheckSpec, comparison: Comparison) -> Finding:
    """The finding with the accelerators that its values are divided by; a number that the server denies warns."""
    candidate = comparison.judged.run.arms.get(Arm.CANDIDATE)
    sides = sides_of(comparison) if spec.check.margin is not None else None
    if candidate is None:
        return finding
    told = f"{candidate.accelerators} of {candidate.name}"
    if sides is not None:
        told = f"{sides[0].accelerators} of {sides[0].name}, {sides[1].accelerators} of {sides[1].name}"
    step = ArithmeticStep("accelerators that each value is divided by, as the suite declares them", "", told)
    return replace(
        finding,
        notes=(f"divided by the accelerators that the suite declares: {told}", *finding.notes),
        steps=(step, *finding.steps) if finding.steps else (),
        warning=finding.warning or miscounted(None if sides is None else sides[0], candidate),
    )


def _of_blocks(spec: CheckSpec, suite: Suite, comparison: Comparison, timed: Comparison) -> Measured:
    if not spec.stages or spec.check.metric not in SPEED_METRICS:
        return Measured(
            _in_one_vocabulary(FAMILIES[spec.check.metric].estimate(spec, suite, comparison), spec, suite, comparison)
        )
    arms = tuple(Arm) if spec.check.margin is not None else (Arm.CANDIDATE,)
    clear = Cleared(timed)
    for stage in spec.stages:
        clear = cleared(clear, Tail(spec.check.metric, spec.q, stage), arms)
    finding = _of_speed(spec, suite, clear.comparison)
    strained = (note for stage in spec.stages for note in left_out_notes(comparison, stage, suite))
    finding = replace(
        finding, problem=finding.problem or clear.problem, notes=(*finding.notes, *strained, *clear.notes)
    )
    if _executions(clear.comparison, spec.stages) == _executions(comparison, spec.stages):
        return Measured(finding)
    return Measured(finding, _of_speed(spec, suite, comparison))


def _executions(comparison: Comparison, stages: tuple[str, ...]) -> int:
    runs = (comparison.judged, comparison.reference)
    return sum(o.stage in stages for run in runs if run is not None for o in run.load)


def _of_speed(spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
    """What was measured on answers of unlike lengths or in unlike pieces says so, whatever its numbers are."""
    finding = FAMILIES[spec.check.metric].estimate(spec, suite, comparison)
    if spec.stage is None or spec.check.over is not None:
        return finding
    finding = _in_one_vocabulary(finding, spec, suite, comparison)
    finding = _all_of_it(finding, spec, comparison)
    if comparison.apart:
        comparison = Comparison(beside(comparison))
    return replace(
        finding,
        problem=finding.problem or _in_other_pieces(spec, comparison),
        warning=finding.warning or timing.length_warning(comparison, spec.stage),
    )


def _in_one_vocabulary(finding: Finding, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
    """What is compared in tokens warns where a token is another unit on either side."""
    if spec.check.margin is None or not METRICS[spec.check.metric].per_token or finding.warning is not None:
        return finding
    return replace(finding, warning=vocabulary_warning(comparison, suite))


def _all_of_it(finding: Finding, spec: CheckSpec, comparison: Comparison) -> Finding:
    """A cost of fewer accelerators than there are is not all of it, nor one at full use of what is used less."""
    candidate = comparison.judged.run.arms.get(Arm.CANDIDATE)
    if spec.check.metric not in COST_METRICS or candidate is None or finding.warning is not None:
        return finding
    sides = sides_of(comparison) if spec.check.margin is not None else None
    if sides is None:
        return replace(finding, warning=unpaid(None, candidate))
    return replace(finding, warning=unpaid(*sides) or idle_cost_warning(*sides))


def _in_other_pieces(spec: CheckSpec, comparison: Comparison) -> Problem | None:
    """A pace is compared with a pace of answers that came in like pieces, in either run; a bound with none."""
    if spec.check.metric not in ("tpot", "itl") or spec.stage is None:
        return None
    if spec.check.margin is None:
        return in_other_pieces(comparison.judged, spec.stage, of_candidate=True)
    problem = in_other_pieces(comparison.judged, spec.stage)
    if problem is None and comparison.reference is not None:
        problem = in_other_pieces(comparison.reference, spec.stage)
    return problem
