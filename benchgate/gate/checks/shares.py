"""Goodput, errors and validity: shares of *scheduled* requests, so that nothing that failed leaves the denominator."""

from __future__ import annotations

from dataclasses import replace

from benchgate.gate.comparison import Comparison, load_of, paired_load
from benchgate.gate.decision import Bound, Finding
from benchgate.gate.derivation import own_share_steps, share_steps
from benchgate.gate.evidence.shares import Counts, Tally, differences_of, unmeasured, widened
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS
from benchgate.model.verdict import Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t, two_sample_t
from benchgate.stats.overdispersed import attainment_limits, attainment_p, requests_needed
from benchgate.stats.proportions import relative_errors_p


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
    limits = attainment_limits(counts.kept, counts.totals, alpha)
    if limits is None:
        return replace(finding, problem=unmeasured(metric, stage, counts))
    if rises == bound.at_least:  # too many misses break it: good answers must be many, failures few
        p_value = attainment_p(counts.kept, counts.totals, 1 - bound.value if rises else bound.value, alpha)
    else:
        p_value = attainment_p(counts.misses, counts.totals, bound.value if rises else 1 - bound.value, alpha)
    if rises:
        limits = Limits(lower=1 - limits.upper, upper=1 - limits.lower)
    value = 1 - counts.share if rises else counts.share
    needs = requests_needed(counts.kept, counts.totals, bound.value if rises else 1 - bound.value, alpha)
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
    p_value = max(float(pooled.lower <= margin) if breach else relative_errors_p(*counts), test.p_harm)
    return replace(
        finding,
        baseline=1 - theirs.share if finding.falls else theirs.share,
        candidate=1 - ours.share if finding.falls else ours.share,
        harm=ours.share - theirs.share,
        limits=limits,
        p_value=p_value,
        steps=share_steps(ours, theirs, differences, limits, p_value, alpha) if comparison.reference is None else (),
    )
