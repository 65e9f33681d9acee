"""Latency and throughput against the baseline: paired log ratios over interleaved blocks.

One number per block and arm (a quantile, or a rate), because requests inside a block are not independent. Blocks are:
the same prompts on the same schedule, in A B B A order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from benchgate.gate.block_values import (
    LATENCIES,
    LOOK_AT_ERRORS,
    NO_PACE,
    RATE_UNITS,
    Value,
    block_value,
    too_few,
    unpaced,
)
from benchgate.gate.comparison import Comparison, load_of, paired_load
from benchgate.gate.rule import Finding, Problem
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t, sign_flip_p, sign_p, two_sample_t

_LENGTH_BAND = (0.9, 1.1)  # outside it tokens/s compares different work
_EXACT_SIGN_FLIP_BLOCKS = 20  # 2^20 sign patterns are enumerated; beyond, the t-test alone is reported


def relative(
    comparison: Comparison, metric: str, stage: str, q: float, *, margin: float, breach: bool, alpha: float
) -> Finding:
    """Harm as a log ratio per block, against a margin given as a ratio.

    Latency: d = ln(candidate/baseline), allowed up to ln(1 + margin). Throughput: d = ln(baseline/candidate), allowed
    up to -ln(1 - margin), so that "5 %" means 5 % fewer tokens/s.
    """
    slower_is_higher = metric in LATENCIES
    log_margin = math.log1p(margin) if slower_is_higher else -math.log1p(-margin)
    value = block_value(metric, q)
    pairs = paired_load(comparison.judged, stage)
    empty = Finding(
        unit=Unit.SECONDS if slower_is_higher else RATE_UNITS[metric],
        scale=Scale.LOG_RATIO,
        margin=log_margin,
        method=_METHOD_STORED if comparison.stored else _METHOD_LIVE,
        n=len(pairs),
        n_unit="blocks",
        breach=breach,
    )
    judged = _log_ratios(comparison.judged, stage, metric, q)
    if isinstance(judged, Problem):
        return replace(empty, problem=judged)
    baseline, candidate = _shown_values(comparison, stage, value)
    shown = replace(empty, baseline=baseline, candidate=candidate)
    tested_margin = log_margin if breach else 0.0
    if np.isinf(judged).any():
        return _unbounded(shown, judged, breach)
    if comparison.reference is not None:
        reference = _log_ratios(comparison.reference, stage, metric, q)
        if isinstance(reference, Problem):
            return replace(shown, problem=reference)
        if np.isinf(reference).any():
            reason = "in the reference run the candidate's own requests failed, so it is nothing to be held against"
            return replace(shown, problem=Problem(Outcome.INVALID, reason, "compare with a run that was promoted"))
        test = two_sample_t(reference, judged, alpha, margin=tested_margin)
    else:
        test = paired_t(judged, alpha, margin=tested_margin)
    if test is None:
        return replace(shown, problem=too_few(len(judged)))
    return replace(
        shown,
        harm=test.mean,
        limits=test.limits,
        p_value=test.p_harm,
        notes=_spread_notes(comparison, pairs, judged, value),
    )


def _log_ratios(evidence: Evidence, stage: str, metric: str, q: float) -> FloatArray | Problem:
    """One d per block, positive = the candidate is worse; +inf where only the candidate has no finite value."""
    slower_is_higher, value = metric in LATENCIES, block_value(metric, q)
    ratios: list[float] = []
    for side in Arm:
        blocks = list(load_of(evidence, stage, side).values())
        unusable = unpaced(metric, q, stage, blocks)
        if unusable is not None:
            return unusable
    for baseline, candidate in paired_load(evidence, stage):
        b, c = value(baseline), value(candidate)
        where = f"stage {stage}, block {baseline.block + 1}"
        if b is None or c is None:
            arm = "baseline" if b is None else "candidate"
            return Problem(Outcome.INVALID, f"{where}: the {arm} has no value for this metric", LOOK_AT_ERRORS)
        if slower_is_higher and 0 in (b, c):
            return Problem(Outcome.INVALID, f"{where}: the median of {metric} is 0, which is no pace", NO_PACE)
        if not math.isfinite(b) or b <= 0:
            return Problem(Outcome.INVALID, f"{where}: too many of the baseline's own requests failed", LOOK_AT_ERRORS)
        if not math.isfinite(c) or c <= 0:
            ratios.append(math.inf)
        else:
            ratios.append(math.log(c / b) if slower_is_higher else math.log(b / c))
    if not ratios:
        return Problem(Outcome.INVALID, f"stage {stage} was not measured on both arms", "see the faults of the targets")
    return np.array(ratios, dtype=np.float64)


def _unbounded(finding: Finding, ratios: FloatArray, breach: bool) -> Finding:
    """So many of the candidate's requests failed that a quantile is infinite: only signs can be tested."""
    p_value = sign_p(ratios - (finding.margin if breach else 0.0))
    failed = int(np.isinf(ratios).sum())
    return replace(
        finding,
        harm=math.inf,
        limits=Limits(lower=-math.inf, upper=math.inf),
        p_value=p_value,
        method="exact sign test over blocks",
        notes=(f"in {failed} of {len(ratios)} blocks the candidate has no finite value, because its requests failed",),
    )


def _shown_values(comparison: Comparison, stage: str, value: Value) -> tuple[float | None, float | None]:
    """Geometric means over blocks of baseline and candidate, so that their ratio is the harm shown beside them."""
    baseline = comparison.reference if comparison.reference is not None else comparison.judged
    arm = Arm.CANDIDATE if comparison.stored else Arm.BASELINE
    theirs = _geometric_mean(load_of(baseline, stage, arm).values(), value)
    return theirs, _geometric_mean(load_of(comparison.judged, stage, Arm.CANDIDATE).values(), value)


def _geometric_mean(observations: Iterable[LoadObservation], value: Value) -> float | None:
    values = [value(o) for o in observations]
    known = [v for v in values if v is not None]
    if not values or len(known) < len(values):
        return None
    if min(known) <= 0:
        return 0.0
    return math.exp(sum(math.log(v) for v in known) / len(known)) if max(known) < math.inf else math.inf


def _spread_notes(
    comparison: Comparison, pairs: list[tuple[LoadObservation, LoadObservation]], ratios: FloatArray, value: Value
) -> tuple[str, ...]:
    """The paired beside the unpaired spread, and the permutation test beside the t-test."""
    if len(ratios) < 2:
        return ()
    notes = [f"block-to-block spread of the paired difference {np.std(ratios, ddof=1):.1%}"]
    baseline = [value(b) for b, _ in pairs]
    logs = [math.log(v) for v in baseline if v is not None and 0 < v < math.inf]
    if len(logs) == len(baseline):
        notes[0] += f", of the baseline alone {np.std(logs, ddof=1):.1%}"
    if not comparison.stored and len(ratios) <= _EXACT_SIGN_FLIP_BLOCKS:
        p_value = sign_flip_p(ratios)
        if p_value is not None:
            notes.append(f"sign-flip permutation p = {p_value:.3g}")
    return tuple(notes)


def length_warning(comparison: Comparison, stage: str) -> str | None:
    """Speed compares like with like only when both arms answered the same prompts at about the same length."""
    totals = [0, 0]
    for pair in paired_load(comparison.judged, stage):
        if len(pair[0].requests) != len(pair[1].requests):
            continue  # a guard has more to say of missing records
        both = metrics.succeeded(pair[0].requests) & metrics.succeeded(pair[1].requests)
        for side, observation in enumerate(pair):
            totals[side] += int(observation.requests.output_tokens[both].sum())
    if totals[0] == 0:
        return None
    ratio = totals[1] / totals[0]
    if _LENGTH_BAND[0] <= ratio <= _LENGTH_BAND[1]:
        return None
    return f"on the same prompts the candidate's answers are {ratio:.2f} times as long as the baseline's"


_METHOD_LIVE = "paired t over interleaved blocks of the log ratio"
_METHOD_STORED = "Welch t between two runs' log ratios, each over its own live baseline"
