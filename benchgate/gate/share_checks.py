"""Goodput and error rate: shares of *scheduled* requests, so that nothing that failed leaves the denominator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Comparison, load_of, paired_load
from benchgate.gate.rule import Finding, Problem
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.metrics import Slo
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.attainment import attainment_limits, attainment_p
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t, two_sample_t
from benchgate.stats.proportions import newcombe_difference, relative_errors_p

Misses = Callable[[LoadObservation], int]


def misses_of(metric: str, slo: Slo | None) -> Misses:
    """Counts the requests that missed: not good (goodput) or not successful (error_rate)."""
    if metric == "goodput":
        if slo is None:
            raise ValueError("goodput needs an slo")
        return lambda o: len(o.requests) - int(metrics.good(o.requests, slo).sum())
    return lambda o: len(o.requests) - int(metrics.succeeded(o.requests).sum())


def absolute(comparison: Comparison, metric: str, stage: str, misses: Misses, *, slo: float, alpha: float) -> Finding:
    """The candidate's share against its target; Clopper-Pearson on the effective number of requests."""
    blocks = list(load_of(comparison.judged, stage, Arm.CANDIDATE).values())
    counts = _Counts.of(blocks, misses)
    goodput = metric == "goodput"
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.ABSOLUTE,
        margin=slo,
        method="Clopper-Pearson on the effective number of requests",
        n=counts.scheduled,
        n_unit="requests",
        breach=True,
        lower_is_worse=goodput,
    )
    limits = attainment_limits(counts.kept, counts.totals, alpha)
    if limits is None:
        return replace(finding, problem=_unmeasured(stage))
    allowed = 1 - slo if goodput else slo
    missed = counts.missed / counts.scheduled
    p_value = attainment_p(counts.kept, counts.totals, allowed, alpha)
    if goodput:
        value, limits = 1 - missed, Limits(lower=1 - limits.upper, upper=1 - limits.lower)
    else:
        value = missed
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=p_value)


def relative(
    comparison: Comparison, stage: str, misses: Misses, *, flip: bool, margin: float, breach: bool, alpha: float
) -> Finding:
    """Difference of miss shares in points; the widest of three intervals.

    Over requests (Newcombe) it is too narrow, because requests of a block share its bad moments; over a few blocks
    without a miss t is; and rare bursts need each arm's own limits on its
    effective number of requests. `flip` shows shares kept instead of shares missed (goodput).
    """
    baseline_run = comparison.reference if comparison.reference is not None else comparison.judged
    baseline_arm = Arm.CANDIDATE if comparison.stored else Arm.BASELINE
    baseline = _Counts.of(list(load_of(baseline_run, stage, baseline_arm).values()), misses)
    candidate = _Counts.of(list(load_of(comparison.judged, stage, Arm.CANDIDATE).values()), misses)
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="difference of shares: t over blocks, widened to Newcombe over requests and effective requests",
        n=candidate.scheduled,
        n_unit="requests",
        breach=breach,
        falls=flip,
    )
    differences = _differences(comparison.judged, stage, misses)
    tested = margin if breach else 0.0
    if comparison.reference is not None:
        test = two_sample_t(_differences(comparison.reference, stage, misses), differences, alpha, margin=tested)
    else:
        test = paired_t(differences, alpha, margin=tested)
    if test is None or baseline.scheduled == 0 or candidate.scheduled == 0:
        return replace(finding, problem=_unmeasured(stage))
    counts = (candidate.missed, candidate.scheduled, baseline.missed, baseline.scheduled)
    pooled, bursty = newcombe_difference(*counts, alpha), _bursty_difference(candidate, baseline, alpha)
    if bursty is None:
        return replace(finding, problem=_unmeasured(stage))
    limits = Limits(
        lower=min(test.limits.lower, pooled.lower, bursty.lower),
        upper=max(test.limits.upper, pooled.upper, bursty.upper),
    )
    p_value = float(pooled.lower <= margin) if breach else relative_errors_p(*counts)
    shown = (baseline.missed / baseline.scheduled, candidate.missed / candidate.scheduled)
    return replace(
        finding,
        baseline=1 - shown[0] if flip else shown[0],
        candidate=1 - shown[1] if flip else shown[1],
        harm=shown[1] - shown[0],
        limits=limits,
        p_value=max(p_value, test.p_harm),
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Per-block counts of one arm in one stage."""

    kept: tuple[int, ...]
    totals: tuple[int, ...]

    @classmethod
    def of(cls, blocks: list[LoadObservation], misses: Misses) -> _Counts:
        return cls(
            kept=tuple(len(b.requests) - misses(b) for b in blocks), totals=tuple(len(b.requests) for b in blocks)
        )

    @property
    def scheduled(self) -> int:
        return sum(self.totals)

    @property
    def missed(self) -> int:
        return self.scheduled - sum(self.kept)


def _bursty_difference(candidate: _Counts, baseline: _Counts, alpha: float) -> Limits | None:
    """Newcombe's combination (MOVER) of the two arms' limits on their effective numbers of requests."""
    ours = attainment_limits(candidate.kept, candidate.totals, alpha)
    theirs = attainment_limits(baseline.kept, baseline.totals, alpha)
    if ours is None or theirs is None:
        return None
    share, other = candidate.missed / candidate.scheduled, baseline.missed / baseline.scheduled
    return Limits(
        lower=share - other - math.hypot(share - ours.lower, theirs.upper - other),
        upper=share - other + math.hypot(ours.upper - share, other - theirs.lower),
    )


def _differences(evidence: Evidence, stage: str, misses: Misses) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Candidate's miss share minus the baseline's, one per block."""
    return np.array(
        [misses(c) / len(c.requests) - misses(b) / len(b.requests) for b, c in paired_load(evidence, stage)],
        dtype=np.float64,
    )


def _unmeasured(stage: str) -> Problem:
    return Problem(Outcome.INVALID, f"stage {stage} was not measured on both arms", "see the faults of the targets")
