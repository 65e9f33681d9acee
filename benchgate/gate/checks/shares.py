"""Goodput, errors and validity: shares of *scheduled* requests, so that nothing that failed leaves the denominator."""

from __future__ import annotations

import math
from dataclasses import replace

from benchgate.gate.checks.base import (
    Span,
    bound_of,
    by_tokens_of_text,
    held_to_noise_profile,
    over_stage_finding,
    stage_pairs,
)
from benchgate.gate.comparison import TOGETHER, Comparison, beside, load_of, paired_load
from benchgate.gate.decision import Bound, Finding, Problem
from benchgate.gate.derivation import own_share_steps, share_steps
from benchgate.gate.evidence.blocks import too_few
from benchgate.gate.evidence.shares import Counts, Tally, differences_of, tally_of, unmeasured, widened
from benchgate.gate.evidence.tokens import LogRatio
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, names_of
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t, two_sample_t
from benchgate.stats.overdispersed import miss_share_limits, miss_share_p, sample_size_to_decide
from benchgate.stats.proportions import poisson_rates_p
from benchgate.suite.schema import Suite


def share_against_bound(
    comparison: Comparison, metric: str, stage: str, tally: Tally, bound: Bound, *, alpha: float
) -> Finding:
    """The candidate's share against its target; Clopper-Pearson on the effective number of requests."""
    counts = Counts.of(load_of(comparison.judged, stage, Arm.CANDIDATE).values(), tally)
    rises = METRICS[metric].higher_is_better
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.ABSOLUTE,
        margin=bound.value,
        method="Clopper-Pearson on the effective number of requests",
        n=counts.scheduled,
        n_unit="requests",
        breach=True,
        lower_is_worse=bound.at_least,
        nears=rises or not bound.at_least,  # a least share of refusals is nothing to come close to
    )
    limits = miss_share_limits(counts.kept, counts.totals, alpha)
    if limits is None:
        return replace(finding, problem=unmeasured(metric, stage, counts))
    if rises == bound.at_least:  # too many misses break it: good answers must be many, failures few
        p_value = miss_share_p(counts.kept, counts.totals, 1 - bound.value if rises else bound.value, alpha)
    else:
        p_value = miss_share_p(counts.misses, counts.totals, bound.value if rises else 1 - bound.value, alpha)
    if rises:
        limits = Limits(lower=1 - limits.upper, upper=1 - limits.lower)
    value = 1 - counts.share if rises else counts.share
    needs = sample_size_to_decide(counts.kept, counts.totals, bound.value if rises else 1 - bound.value, alpha)
    steps = own_share_steps(counts, limits, alpha)
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=p_value, needs=needs, steps=steps)


def share_against_baseline(
    comparison: Comparison, metric: str, stage: str, tally: Tally, *, margin: float, breach: bool, alpha: float
) -> Finding:
    """Difference of miss shares in points; the widest of three intervals (`shares.widened`)."""
    baseline_run = comparison.reference if comparison.reference is not None else comparison.judged
    baseline_arm = Arm.CANDIDATE if comparison.stored else Arm.BASELINE
    theirs = Counts.of(load_of(baseline_run, stage, baseline_arm).values(), tally)
    ours = Counts.of(load_of(comparison.judged, stage, Arm.CANDIDATE).values(), tally)
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="difference of shares: t over blocks, widened to Newcombe over requests and effective requests",
        n=ours.scheduled,
        n_unit="requests",
        breach=breach,
        falls=METRICS[metric].higher_is_better,
    )
    if theirs.empty or ours.empty:
        return replace(finding, problem=unmeasured(metric, stage, theirs, ours))
    differences = differences_of(paired_load(comparison.judged, stage), tally)
    tested = margin if breach else 0.0
    if comparison.reference is not None:
        before = differences_of(paired_load(comparison.reference, stage), tally)
        test = two_sample_t(before, differences, alpha, margin=tested)
    else:
        test = paired_t(differences, alpha, margin=tested)
    found = widened(test.limits, ours, theirs, alpha) if test is not None else None
    if test is None or found is None:
        return replace(finding, problem=unmeasured(metric, stage, theirs, ours))
    limits, pooled = found
    counts = (ours.missed, ours.scheduled, theirs.missed, theirs.scheduled)
    p_value = max(float(pooled.lower <= margin) if breach else poisson_rates_p(*counts), test.p_value)
    return replace(
        finding,
        baseline=1 - theirs.share if finding.falls else theirs.share,
        candidate=1 - ours.share if finding.falls else ours.share,
        harm=ours.share - theirs.share,
        limits=limits,
        p_value=p_value,
        steps=share_steps(ours, theirs, differences, limits, p_value, alpha) if comparison.reference is None else (),
    )


def share_over_stage(evidence: Evidence, metric: str, span: Span, tally: Tally, *, alpha: float) -> Finding:
    """Share at the stage minus share at the other one, in points; limits as against a baseline."""
    pairs = stage_pairs(evidence, span)
    theirs, ours = (Counts.of((pair[at] for pair in pairs), tally) for at in (0, 1))
    finding = over_stage_finding(
        span, Unit.POINTS, "difference of shares: t over blocks, widened to Newcombe over requests"
    )
    finding = replace(finding, n=ours.scheduled, n_unit="requests")
    if theirs.empty or ours.empty:
        return replace(finding, problem=unmeasured(metric, f"{span.over} or {span.stage}", theirs, ours))
    turn = -1 if span.at_least else 1  # what is tested is that the difference passes the bound on its wrong side
    sign = -turn if METRICS[metric].higher_is_better else turn  # and what was counted is misses
    test = paired_t(sign * differences_of(pairs, tally), alpha, margin=turn * span.bound)
    sides = (ours, theirs) if sign > 0 else (theirs, ours)
    found = widened(test.limits, *sides, alpha) if test is not None else None
    if test is None or found is None:
        return replace(finding, problem=too_few(len(pairs)))
    limits, pooled = found
    value = turn * (sides[0].share - sides[1].share)
    ends = sorted((turn * limits.lower, turn * limits.upper))
    p_value = max(test.p_value, float(pooled.lower <= turn * span.bound))
    return replace(finding, candidate=value, harm=value, limits=Limits(*ends), p_value=p_value)


def share_between_runs(
    comparison: Comparison, name: str, tally: Tally, stage: str, margin: float, *, breach: bool, falls: bool
) -> Finding:
    """Goodput, errors and what else is a share: the difference in points, which decides nothing.

    How far a share differs from run to run depends on where it lies and on what is missed by it: near none or all it
    hardly moves, and half-way it moves most. A calibration saw it at one level, by one SLO, and knows no other.
    """
    both = beside(comparison)
    theirs, ours = (Counts.of(load_of(both, stage, arm).values(), tally) for arm in Arm)
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="difference of two runs without a live baseline",
        n=ours.scheduled,
        n_unit="requests",
        breach=breach,
        falls=falls,
    )
    if theirs.empty or ours.empty:
        return replace(finding, problem=unmeasured(name, stage, theirs, ours))
    baseline, candidate = (1 - side.share if falls else side.share for side in (theirs, ours))
    reason = (
        f"without a live baseline, nobody knows how far {name} at {stage} differs between runs: that depends on its "
        "level and on what counts as a miss, and a noise profile has seen one of each"
    )
    problem = Problem(Outcome.INCONCLUSIVE, reason, TOGETHER)
    return replace(finding, harm=ours.share - theirs.share, baseline=baseline, candidate=candidate, problem=problem)


class Shares:
    """Goodput, errors, refusals and valid answers."""

    metrics = names_of(lambda metric: metric.kind == "share")

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Measure one check; goodput by tokens of the candidate's text where its usage is shown to count more."""
        by_pace = spec.check.metric == "goodput" and spec.slo is not None and spec.slo.tpot_s is not None
        if spec.check.over is not None or not by_pace:
            return self._at_stage(spec, suite, comparison, None)
        return by_tokens_of_text(
            spec, suite, comparison, lambda inflation: self._at_stage(spec, suite, comparison, inflation)
        )

    def _at_stage(self, spec: CheckSpec, suite: Suite, comparison: Comparison, inflation: LogRatio | None) -> Finding:
        assert spec.stage is not None, "a load check has a stage: the suite was validated"
        check, stage, alpha = spec.check, spec.stage, suite.gate.alpha
        tally = tally_of(check.metric, spec.slo, check.of)
        if check.over is not None:
            return share_over_stage(comparison.judged, check.metric, Span.of(spec), tally, alpha=alpha)
        breach = check.block_when == "breach"
        if check.margin is not None and comparison.apart:
            name = check.metric if check.of is None else f"{check.metric} ({check.of})"
            falls = METRICS[check.metric].higher_is_better
            found = share_between_runs(comparison, name, tally, stage, check.margin, breach=breach, falls=falls)
            return held_to_noise_profile(found, suite, comparison)
        if inflation is not None:
            tally = _restated_tally(tally, spec, comparison, inflation)
        if check.margin is None:
            return share_against_bound(comparison, check.metric, stage, tally, bound_of(spec), alpha=alpha)
        return share_against_baseline(
            comparison, check.metric, stage, tally, margin=check.margin, breach=breach, alpha=alpha
        )


def _restated_tally(tally: Tally, spec: CheckSpec, comparison: Comparison, inflation: LogRatio) -> Tally:
    """Hold the judged candidate's requests to the TPOT that its SLO allows by the tokens of their text."""
    assert spec.slo is not None and spec.slo.tpot_s is not None, "only goodput with a bound on TPOT is restated"
    restated = tally_of(spec.check.metric, replace(spec.slo, tpot_s=spec.slo.tpot_s / math.exp(inflation.estimate)))
    ours = {id(o) for o in comparison.judged.load if o.arm is Arm.CANDIDATE}
    return lambda o: restated(o) if id(o) in ours else tally(o)
