"""Checks of goodput, errors, refusals and validity: shares of *scheduled* requests, so that no failure is left out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchgate.gate.checks.timing import length_warning, stage_pairs, trace_widest
from benchgate.gate.comparison import MEASURE_TOGETHER, Comparison, UntiedRuns, load_of, paired_load
from benchgate.gate.decision import Estimate, inconclusive, invalid
from benchgate.gate.evidence.blocks import too_few
from benchgate.gate.evidence.shares import Counts, Tally, differences_of, tally_of, unmeasured
from benchgate.gate.evidence.tokens import LogRatio, demonstrated_inflation, note_inflation
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, names_of
from benchgate.model.run import Evidence
from benchgate.stats.clusters import miss_share_limits, miss_share_p, sample_size_to_decide
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import difference_limits, newcombe_difference, poisson_rates_p
from benchgate.stats.trace import Trace, digits
from benchgate.suite.schema import Suite

_ROUNDING = 1e-9  # of a share: 1 - 0.95 is more than 0.05


class Shares:
    """Checks of goodput, errors, refusals and valid answers."""

    metrics = names_of(lambda metric: metric.kind == "share")

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Measure one check; goodput by tokens of the candidate's text where its usage is shown to count more."""
        assert spec.stage is not None, "a load check has a stage: the suite was validated"
        check, stage = spec.check, spec.stage
        tally, rises = tally_of(check.metric, spec.slo, check.of), METRICS[check.metric].higher_is_better
        estimate.n_unit = "sessions" if check.metric == "session_success" else "requests"
        if check.over is not None:
            over_stage(estimate, comparison.judged, spec, tally, rises=rises, alpha=alpha)
            return
        inflation = None
        if check.metric == "goodput" and spec.slo is not None and spec.slo.tpot_s is not None:
            inflation = demonstrated_inflation(comparison.request_pairs, stage, suite)
        if inflation is not None and not (check.margin is not None and isinstance(comparison, UntiedRuns)):
            tally = _restated_tally(tally, spec, comparison, inflation)
        with estimate.keeping_problems():
            if check.margin is None:
                against_bound(estimate, comparison, check.metric, stage, tally, alpha=alpha)
            elif isinstance(comparison, UntiedRuns):
                with estimate.keeping_problems():
                    between_runs(estimate, comparison, spec, tally)
                comparison.hold_to_noise_profile(estimate, suite)
            else:
                against_baseline(estimate, comparison, check.metric, stage, tally, alpha=alpha)
        if inflation is not None:
            note_inflation(estimate, check.metric, inflation)
        if check.metric == "goodput":
            estimate.warn(length_warning(comparison.request_pairs, stage))


def _restated_tally(tally: Tally, spec: CheckSpec, comparison: Comparison, inflation: LogRatio) -> Tally:
    assert spec.slo is not None and spec.stage is not None, "only goodput of a stage with an SLO is restated"
    restated = tally_of(spec.check.metric, spec.slo.restated(inflation.estimate))
    ours = {id(o) for o in load_of(comparison.judged, spec.stage, Arm.CANDIDATE).values()}
    return lambda o: restated(o) if id(o) in ours else tally(o)


def against_bound(
    estimate: Estimate, comparison: Comparison, metric: str, stage: str, tally: Tally, *, alpha: float
) -> None:
    """Hold the candidate's share to its bound: Clopper-Pearson on the effective number of requests."""
    counts = Counts.of(load_of(comparison.judged, stage, Arm.CANDIDATE).values(), tally)
    rises, at_least, bound = METRICS[metric].higher_is_better, estimate.rule.lower_is_worse, estimate.margin
    estimate.rule = replace(estimate.rule, nears=rises or not at_least)  # a least share of refusals is not approached
    estimate.method, estimate.n = "Clopper-Pearson on the effective number of requests", counts.scheduled
    trace_counts(estimate.trace, "candidate", counts)
    limits = miss_share_limits(counts.kept, counts.totals, alpha, estimate.trace)
    if limits is None:
        raise unmeasured(metric, stage, counts)
    if rises == at_least:  # too many misses break it: good answers must be many, failures few
        estimate.p_value = miss_share_p(counts.kept, counts.totals, 1 - bound if rises else bound, alpha)
    else:
        estimate.p_value = miss_share_p(counts.misses, counts.totals, bound if rises else 1 - bound, alpha)
    estimate.limits = limits
    if rises:
        estimate.limits = Limits(lower=1 - limits.upper, upper=1 - limits.lower)
        estimate.trace.limits(estimate.limits, f"1 - {digits(limits.upper)}", f"1 - {digits(limits.lower)}")
    estimate.candidate = estimate.value = 1 - counts.share if rises else counts.share
    target = bound if rises else 1 - bound
    estimate.needed_at = partial(sample_size_to_decide, counts.kept, counts.totals, target)


def trace_counts(trace: Trace, arm: str, counts: Counts) -> None:
    """Record one arm's misses, block by block, and their share."""
    misses = ", ".join(map("{}/{}".format, counts.misses, counts.totals))
    trace.text(f"{arm}: misses of requests, in each block", "", misses)
    if not counts.empty:
        trace.made(f"{arm}: share of misses", f"{counts.missed} / {counts.scheduled}", counts.share)


def widened(
    limits: Limits, ours: Counts, theirs: Counts, alpha: float, trace: Trace | None = None
) -> tuple[Limits, Limits] | None:
    """Widen limits over blocks to those over requests and effective requests. Return both, and those over requests.

    Newcombe's over requests are too narrow, because requests of a block share its bad moments; t over a few blocks
    without a miss is too narrow; and rare bursts need each side's own limits on its effective number of requests.
    Return None if a side has no such limits.
    """
    misses = f"{ours.missed} of {ours.scheduled}, {theirs.missed} of {theirs.scheduled}"
    if trace is not None:
        trace.text("2. over requests (Newcombe, from Wilson's limits)", "candidate, baseline", misses)
    pooled = newcombe_difference(ours.missed, ours.scheduled, theirs.missed, theirs.scheduled, alpha, trace)
    traces = Trace(), Trace()
    mine, other = (
        miss_share_limits(side.kept, side.totals, alpha, own) for side, own in zip((ours, theirs), traces, strict=True)
    )
    if trace is not None:
        trace.text(
            "3. over effective requests (Newcombe, from Clopper-Pearson's limits)", "candidate, baseline", misses
        )
        for arm, own in zip(("candidate", "baseline"), traces, strict=True):
            trace.add(own.steps, of=f" of the {arm}")
    if mine is None or other is None:
        return None
    bursty = difference_limits(ours.share, mine, theirs.share, other, trace)
    return limits.widened(pooled).widened(bursty), pooled


def against_baseline(
    estimate: Estimate, comparison: Comparison, metric: str, stage: str, tally: Tally, *, alpha: float
) -> None:
    """Estimate the difference of miss shares in points, with the widest of three intervals (`widened`).

    Raises CannotJudge if the baseline misses, or may miss, so much that a candidate cannot miss more than the margin
    allows.
    """
    theirs = Counts.of(load_of(comparison.baseline_run, stage, comparison.baseline_arm).values(), tally)
    ours = Counts.of(load_of(comparison.judged, stage, Arm.CANDIDATE).values(), tally)
    estimate.method = "difference of shares: t over blocks, widened to Newcombe over requests and effective requests"
    estimate.n = ours.scheduled
    if theirs.empty or ours.empty:
        raise unmeasured(metric, stage, theirs, ours)
    trace, margin, breach = estimate.trace, estimate.margin, estimate.rule.breach
    trace_counts(trace, "baseline", theirs)
    trace_counts(trace, "candidate", ours)
    harm = ours.share - theirs.share
    trace.made("regression: the difference of both shares", f"{digits(ours.share)} - {digits(theirs.share)}", harm)
    pairs = [paired_load(run, stage) for run in comparison.runs]
    if any(Counts.of((pair[side] for pair in found), tally).empty for found in pairs for side in (0, 1)):
        raise unmeasured(metric, stage, theirs, ours)
    differences = [differences_of(found, tally) for found in pairs]
    trace.observed("1. over blocks: the difference in each", differences[0])
    for reference in differences[1:]:
        trace.observed("the same in the reference run", reference)
    test = comparison.mean_test(differences, alpha, margin=margin if breach else 0.0, trace=trace)
    intervals = widened(test.limits, ours, theirs, alpha, trace) if test is not None else None
    if test is None or intervals is None:
        raise unmeasured(metric, stage, theirs, ours)
    limits, pooled = intervals
    counts = (ours.missed, ours.scheduled, theirs.missed, theirs.scheduled)
    p_value = max(float(pooled.lower <= margin) if breach else poisson_rates_p(*counts, trace), test.p_value)
    _take_shares(estimate, theirs, ours)
    shown = f"{theirs.missed} of {theirs.scheduled} requests of the baseline miss already"
    if p_value > alpha and theirs.scheduled - theirs.missed <= margin * theirs.scheduled * (1 + _ROUNDING):
        reason = f"{shown}: a candidate of which all miss would stay inside the margin"
        raise invalid(reason, "see why the baseline's miss; for goodput, whether it can meet the `slo`")
    trace_widest(trace, "the widest of the three intervals on each side; the larger p-value", limits, p_value)
    estimate.limits, estimate.p_value = limits, p_value
    estimate.freedom = None if limits == pooled else test.freedom
    estimate.freedom_by_side = (
        test.freedom if limits.lower == test.limits.lower else None,
        test.freedom if limits.upper == test.limits.upper else None,
    )
    most = miss_share_limits(theirs.kept, theirs.totals, alpha)
    if p_value > alpha and (most is None or 1 - most.upper <= margin):
        reason = f"{shown}; their true share may be so high that a candidate of which all miss stays inside the margin"
        raise inconclusive(reason, "measure more blocks")


def _take_shares(estimate: Estimate, theirs: Counts, ours: Counts) -> None:
    falls = estimate.rule.falls
    estimate.baseline, estimate.candidate = (1 - side.share if falls else side.share for side in (theirs, ours))
    estimate.value = ours.share - theirs.share


def over_stage(
    estimate: Estimate, evidence: Evidence, spec: CheckSpec, tally: Tally, *, rises: bool, alpha: float
) -> None:
    """Estimate the share at the stage minus the share at `over`, in points; limits as against a baseline."""
    pairs = stage_pairs(evidence, spec)
    theirs, ours = (Counts.of((pair[at] for pair in pairs), tally) for at in (0, 1))
    estimate.method = "difference of shares: t over blocks, widened to Newcombe over requests"
    estimate.n = ours.scheduled
    if theirs.empty or ours.empty:
        raise unmeasured(spec.check.metric, f"{spec.over} or {spec.stage}", theirs, ours)
    turn = -1 if estimate.rule.lower_is_worse else 1  # the p-value is of passing the bound on its wrong side
    sign = -turn if rises else turn  # misses were counted
    edge = turn * estimate.margin
    test = paired_t(sign * differences_of(pairs, tally), alpha, margin=edge)
    sides = (ours, theirs) if sign > 0 else (theirs, ours)
    intervals = widened(test.limits, *sides, alpha) if test is not None else None
    if test is None or intervals is None:
        raise too_few(len(pairs))
    limits, pooled = intervals
    estimate.candidate = estimate.value = turn * (sides[0].share - sides[1].share)
    estimate.limits = Limits(*sorted((turn * limits.lower, turn * limits.upper)))
    estimate.freedom = None if limits == pooled else test.freedom
    estimate.p_value = max(test.p_value, float(pooled.lower <= edge))


def between_runs(estimate: Estimate, comparison: UntiedRuns, spec: CheckSpec, tally: Tally) -> None:
    """Estimate the difference in points between two untied runs, which decides nothing: always raises CannotJudge.

    The spread of a share between runs depends on its level and on what is missed: near none or all it hardly moves, and
    half-way it moves most. A calibration saw it at one level, by one SLO.
    """
    assert spec.stage is not None, "a load check has a stage: the suite was validated"
    both, check = comparison.interleaved, spec.check
    name = check.metric if check.of is None else f"{check.metric} ({check.of})"
    theirs, ours = (Counts.of(load_of(both, spec.stage, arm).values(), tally) for arm in Arm)
    estimate.method, estimate.n = "difference of two runs without a live baseline", ours.scheduled
    if theirs.empty or ours.empty:
        raise unmeasured(name, spec.stage, theirs, ours)
    _take_shares(estimate, theirs, ours)
    reason = (
        f"without a live baseline, nobody knows how far {name} at {spec.stage} differs between runs: that depends on "
        "its level and on what counts as a miss, and a noise profile has seen one of each"
    )
    raise inconclusive(reason, MEASURE_TOGETHER)
