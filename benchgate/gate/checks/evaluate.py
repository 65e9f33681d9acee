"""Measuring the checks: each metric's own way to a finding, over the blocks that tell the servers' times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from benchgate.gate.checks import accuracy, capacity, divergence, flips, server, shadow, shares, timing
from benchgate.gate.checks.cost import miscounted, unpaid
from benchgate.gate.checks.margin import Terms
from benchgate.gate.checks.timing import Span, share_between_runs, timing_between_runs
from benchgate.gate.comparison import CAPACITY_APART, Comparison, beside, cannot_decide, stricter_look
from benchgate.gate.decision import Bound, Finding, Look, Problem, at_look
from benchgate.gate.evidence.blocks import Measure, in_other_pieces
from benchgate.gate.evidence.client_strain import Cleared, Tail, cleared, left_out_notes, usable
from benchgate.gate.evidence.costs import idles_more
from benchgate.gate.evidence.deployments import counts_other_tokens, sides_of
from benchgate.gate.evidence.shares import Tally, tally_of
from benchgate.gate.evidence.tokens import LogRatio, shown_inflation
from benchgate.gate.guards.base import SPEED_METRICS
from benchgate.gate.guards.load import commonest_failure
from benchgate.gate.policy import CheckSpec, judged_units
from benchgate.model.deployment import Arm
from benchgate.model.metric import (
    COST_METRICS,
    FAILURE_METRICS,
    METRICS,
    POINTS_METRICS,
    TASK_METRICS,
    TELEMETRY_METRICS,
)
from benchgate.model.verdict import Outcome, Scale, Step, Unit
from benchgate.suite.schema import Check, Suite


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
    why = commonest_failure(load)
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
    step = Step("accelerators that each value is divided by, as the suite declares them", "", told)
    return replace(
        finding,
        notes=(f"divided by the accelerators that the suite declares: {told}", *finding.notes),
        steps=(step, *finding.steps) if finding.steps else (),
        warning=finding.warning or miscounted(None if sides is None else sides[0], candidate),
    )


def _of_blocks(spec: CheckSpec, suite: Suite, comparison: Comparison, timed: Comparison) -> Measured:
    if not spec.stages or spec.check.metric not in SPEED_METRICS:
        return Measured(_in_one_vocabulary(_find(spec, suite, comparison), spec, suite, comparison))
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
    finding = _find(spec, suite, comparison)
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
    return replace(finding, warning=counts_other_tokens(comparison, suite))


def _all_of_it(finding: Finding, spec: CheckSpec, comparison: Comparison) -> Finding:
    """A cost of fewer accelerators than there are is not all of it, nor one at full use of what is used less."""
    candidate = comparison.judged.run.arms.get(Arm.CANDIDATE)
    if spec.check.metric not in COST_METRICS or candidate is None or finding.warning is not None:
        return finding
    sides = sides_of(comparison) if spec.check.margin is not None else None
    if sides is None:
        return replace(finding, warning=unpaid(None, candidate))
    return replace(finding, warning=unpaid(*sides) or idles_more(*sides))


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


def _find(spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
    """Measure one check."""
    if spec.check.metric in TASK_METRICS:
        return _of_tasks(spec, suite, comparison)
    if METRICS[spec.check.metric].family == "divergence":
        return divergence.divergence_estimate(spec.check, comparison, alpha=suite.gate.alpha)
    if METRICS[spec.check.metric].family == "shadow":
        return shadow.shadow_estimate(spec.check, comparison, alpha=suite.gate.alpha)
    if spec.check.metric == "capacity":
        if spec.check.margin is None:
            return capacity.capacity_against_bound(
                comparison, suite, slo=_bound(spec, suite).value, each=spec.measure.each
            )
        margin, breach = spec.check.margin, spec.check.block_when == "breach"
        found = capacity.capacity_against_baseline(
            comparison, suite, margin=margin, breach=breach, each=spec.measure.each
        )
        return replace(found, problem=found.problem or CAPACITY_APART) if comparison.apart else found
    if spec.check.metric == "cold_start":
        return server.cold_start_against_bound(comparison.judged, _bound(spec, suite), alpha=suite.gate.alpha)
    if spec.check.metric == "knee":
        return capacity.knee_against_bound(comparison.judged, spec.levels, _bound(spec, suite), alpha=suite.gate.alpha)
    return _at_stage(spec, suite, comparison)


def _of_tasks(spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
    """Accuracy, scores and flips: of one task or group, or of all that the check judges together."""
    check, alpha = spec.check, suite.gate.alpha
    units = judged_units(spec, suite, comparison)
    if not units:
        return _never_measured(check, "no eval task of this kind was run")
    breach = check.block_when == "breach"
    if check.margin is None:
        return accuracy.accuracy_against_bound(comparison, units, slo=_bound(spec, suite).value, alpha=alpha)
    if check.metric == "flips":
        allowed = suite.quality.max_empty_ratio if suite.quality else 0.0
        return flips.flips_against_baseline(
            comparison, units, margin=check.margin, breach=breach, alpha=alpha, allowed=allowed
        )
    if check.metric == "score":
        return accuracy.score_against_baseline(
            comparison, units, margin=check.margin, breach=breach, alpha=alpha, seed=suite.seed
        )
    return accuracy.accuracy_against_baseline(comparison, units, margin=check.margin, breach=breach, alpha=alpha)


def _at_stage(spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
    """Judge a check at its stage; by the tokens of the candidate's text where its usage is shown to count more."""
    assert spec.stage is not None, "a load check has a stage: the suite was validated"
    in_tokens = METRICS[spec.check.metric].restated
    in_tokens |= spec.check.metric == "goodput" and spec.slo is not None and spec.slo.tpot_s is not None
    if spec.check.over is not None or not in_tokens:
        return _found_at_stage(spec, suite, comparison, None)
    both = beside(comparison) if comparison.apart else comparison.judged
    inflation = shown_inflation(both, spec.stage, suite)
    found = _found_at_stage(spec, suite, comparison, inflation)
    if inflation is None:
        return found
    times, least = math.exp(inflation.estimate), math.exp(inflation.limits.lower)
    told = f"the candidate's usage counts {times:.2f} times the tokens that its text shows"
    note = f"{told} (at least {least:.2f}), so its {spec.check.metric} was computed from the tokens of the text"
    return replace(found, notes=(*found.notes, note), warning=found.warning or told)


def _found_at_stage(spec: CheckSpec, suite: Suite, comparison: Comparison, inflation: LogRatio | None) -> Finding:
    assert spec.stage is not None, "a load check has a stage: the suite was validated"
    check, stage, alpha = spec.check, spec.stage, suite.gate.alpha
    measure = spec.measure if inflation is None else replace(spec.measure, inflation=inflation.by_block)
    if check.margin is not None and comparison.apart:
        return _apart(spec, suite, comparison, measure)
    breach = check.block_when == "breach"
    tally = tally_of(check.metric, spec.slo, check.of) if check.metric in POINTS_METRICS else None
    if tally is not None and inflation is not None:
        tally = _restated_tally(tally, spec, comparison, inflation)
    if check.margin is not None:
        if tally is not None:
            return shares.share_against_baseline(
                comparison, check.metric, stage, tally, margin=check.margin, breach=breach, alpha=alpha
            )
        terms = Terms(check.margin, breach, check.direction == "either", check.least_change)
        return timing.timing_against_baseline(comparison, stage, measure, terms, alpha=alpha)
    bound = _bound(spec, suite)
    if check.over is not None:
        span = Span(stage, check.over, bound.value, bound.at_least)
        if tally is not None:
            return timing.share_over_stage(comparison.judged, check.metric, span, tally, alpha=alpha)
        return timing.timing_over_stage(comparison.judged, check.metric, span, spec.q, alpha=alpha)
    if check.metric in TELEMETRY_METRICS:
        return server.telemetry_against_bound(comparison.judged, check.metric, stage, bound, alpha=alpha)
    if tally is not None:
        return shares.share_against_bound(comparison, check.metric, stage, tally, bound, alpha=alpha)
    return timing.timing_against_bound(comparison, measure, stage, slo=bound.value, alpha=alpha)


def _restated_tally(tally: Tally, spec: CheckSpec, comparison: Comparison, inflation: LogRatio) -> Tally:
    """Hold the judged candidate's requests to the TPOT that its SLO allows by the tokens of their text."""
    assert spec.slo is not None and spec.slo.tpot_s is not None, "it is asked of a goodput with a bound on TPOT"
    stricter = replace(spec.slo, tpot_s=spec.slo.tpot_s / math.exp(inflation.estimate))
    restated = tally_of(spec.check.metric, stricter)
    ours = {id(o) for o in comparison.judged.load if o.arm is Arm.CANDIDATE}
    return lambda o: restated(o) if id(o) in ours else tally(o)


def _apart(spec: CheckSpec, suite: Suite, comparison: Comparison, measure: Measure) -> Finding:
    """Without a live baseline: decided by the noise profile, and not at all where there is none that holds."""
    check, stage, alpha = spec.check, spec.stage, suite.gate.alpha
    assert stage is not None and check.margin is not None, "it is asked of a margin at a stage alone"
    breach = check.block_when == "breach"
    if check.metric in POINTS_METRICS:
        tally = tally_of(check.metric, spec.slo, check.of)
        name = check.metric if check.of is None else f"{check.metric} ({check.of})"
        falls = METRICS[check.metric].higher_is_better
        found = share_between_runs(comparison, name, tally, stage, check.margin, breach=breach, falls=falls)
    else:
        terms = Terms(check.margin, breach, check.direction == "either", check.least_change)
        found = timing_between_runs(comparison, stage, measure, terms, alpha=alpha)
    cannot = cannot_decide(comparison, suite.gate.noise_max_age_s)
    if cannot is None or (found.problem is not None and found.problem.outcome is Outcome.INVALID):
        return found
    return replace(found, limits=None, p_value=None, problem=cannot)


def _bound(spec: CheckSpec, suite: Suite) -> Bound:
    """The bound of an absolute check; goodput without one is held to the target of the slo it is judged by."""
    if spec.check.slo_value is not None:
        return Bound(spec.check.slo_value, at_least=spec.check.min is not None)
    assert spec.target_ratio is not None, "goodput needs an slo: the suite was validated"
    return Bound(spec.target_ratio, at_least=True)


def _never_measured(check: Check, reason: str) -> Finding:
    return Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE if check.margin is not None else Scale.ABSOLUTE,
        margin=check.margin if check.margin is not None else check.slo_value or 0.0,
        method="none",
        n=0,
        n_unit="items",
        problem=Problem(Outcome.INVALID, reason, "see the faults of the targets and run the suite again"),
    )
