"""Latency and throughput: paired log ratios over interleaved blocks, and SLOs on the candidate's own values.

One number per block and arm (a quantile, or a rate), because requests inside a block are not independent. Blocks are:
the same prompts on the same schedule, in A B B A order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from benchgate.gate.comparison import Comparison, load_of, paired_load
from benchgate.gate.rule import Finding, Problem
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t, sign_flip_p, sign_p, two_sample_t
from benchgate.stats.quantiles import min_n_for_upper_limit, order_statistic_limits

LATENCIES: Mapping[str, Callable[..., FloatArray]] = MappingProxyType(
    {"ttft": metrics.ttft_s, "tpot": metrics.tpot_s, "itl": metrics.itl_s, "e2e": metrics.e2e_s}
)
RATE_UNITS: Mapping[str, Unit] = MappingProxyType(
    {"output_throughput": Unit.TOKENS_PER_S, "request_throughput": Unit.REQUESTS_PER_S}
)
_LENGTH_BAND = (0.9, 1.1)  # outside it tokens/s compares different work
_EXACT_SIGN_FLIP_BLOCKS = 20  # 2^20 sign patterns are enumerated; beyond, the t-test alone is reported

Value = Callable[[LoadObservation], "float | None"]


def block_value(metric: str, q: float) -> Value:
    """The function that makes one number of one stage execution: a quantile in seconds, or a rate per second."""
    if metric in LATENCIES:
        return lambda o: metrics.quantile(LATENCIES[metric](o.requests), q)
    rate = metrics.output_tokens_per_s if metric == "output_throughput" else metrics.requests_per_s
    return lambda o: rate(o.requests, o.window_s)


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
    judged = _log_ratios(comparison.judged, stage, value, slower_is_higher)
    if isinstance(judged, Problem):
        return _with(empty, problem=judged)
    shown = _with(empty, **_shown_values(comparison, stage, value))
    tested_margin = log_margin if breach else 0.0
    if comparison.reference is not None:
        reference = _log_ratios(comparison.reference, stage, value, slower_is_higher)
        if isinstance(reference, Problem):
            return _with(shown, problem=reference)
        test = two_sample_t(reference, judged, alpha, margin=tested_margin)
    elif np.isinf(judged).any():
        return _unbounded(shown, judged, breach)
    else:
        test = paired_t(judged, alpha, margin=tested_margin)
    if test is None:
        return _with(shown, problem=_too_few(len(judged)))
    return _with(
        shown,
        harm=test.mean,
        limits=test.limits,
        p_value=test.p_harm,
        warning=_length_warning(pairs) if not slower_is_higher else None,
        notes=_spread_notes(comparison, pairs, judged, value),
    )


def absolute(comparison: Comparison, metric: str, stage: str, q: float, *, slo: float, alpha: float) -> Finding:
    """The candidate's own value against an SLO: t-limits over blocks on the log scale.

    For a latency quantile they are widened to the distribution-free order-statistic limits over the pooled requests,
    which also say when there are too few requests for the quantile to have an upper limit at all.
    """
    value = block_value(metric, q)
    blocks = list(load_of(comparison.judged, stage, Arm.CANDIDATE).values())
    finding = Finding(
        unit=Unit.SECONDS if metric in LATENCIES else RATE_UNITS[metric],
        scale=Scale.ABSOLUTE,
        margin=slo,
        method="t-limits over blocks of ln(value)",
        n=len(blocks),
        n_unit="blocks",
        breach=True,
        lower_is_worse=metric not in LATENCIES,
    )
    values = [value(block) for block in blocks]
    known = np.array([v for v in values if v is not None], dtype=np.float64)
    if len(known) < len(values) or len(known) == 0:
        return _with(finding, problem=_missing(metric, stage))
    if metric in LATENCIES:
        return _latency_slo(finding, metric, blocks, known, q, alpha)
    return _throughput_slo(finding, known, alpha)


def _latency_slo(
    finding: Finding, metric: str, blocks: list[LoadObservation], per_block: FloatArray, q: float, alpha: float
) -> Finding:
    pooled = np.concatenate([LATENCIES[metric](block.requests) for block in blocks])
    pooled = pooled[~np.isnan(pooled)]
    estimate = metrics.quantile(pooled, q)
    order = order_statistic_limits(pooled, q, alpha)
    if order is None or estimate is None:
        reason = f"p{q * 100:g} has no upper limit from {len(pooled)} requests"
        advice = f"measure at least {min_n_for_upper_limit(q, alpha)} requests in this stage over all blocks"
        return _with(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, advice))
    limits, p_value = order, 0.0 if order.lower > finding.margin else 1.0
    if np.isfinite(per_block).all() and (per_block > 0).all():
        test = paired_t(np.log(per_block), alpha, margin=math.log(finding.margin))
        if test is not None:
            limits = Limits(
                lower=min(order.lower, math.exp(test.limits.lower)), upper=max(order.upper, math.exp(test.limits.upper))
            )
            p_value = max(test.p_harm, p_value)
    return _with(
        finding,
        candidate=estimate,
        harm=estimate,
        limits=limits,
        p_value=p_value,
        n=len(pooled),
        n_unit="requests",
        method="order-statistic limits over requests, widened to t-limits over blocks of ln(quantile)",
    )


def _throughput_slo(finding: Finding, per_block: FloatArray, alpha: float) -> Finding:
    if (per_block <= 0).any():
        reason = "in at least one block no request was answered, so there is no rate to hold against the SLO"
        return _with(finding, problem=Problem(Outcome.INVALID, reason, "see the errors by class and the server's log"))
    test = paired_t(-np.log(per_block), alpha, margin=-math.log(finding.margin))
    if test is None:
        return _with(finding, problem=_too_few(len(per_block)))
    value = math.exp(-test.mean)
    limits = Limits(lower=math.exp(-test.limits.upper), upper=math.exp(-test.limits.lower))
    return _with(finding, candidate=value, harm=value, limits=limits, p_value=test.p_harm)


def _log_ratios(evidence: Evidence, stage: str, value: Value, slower_is_higher: bool) -> FloatArray | Problem:
    """One d per block, positive = the candidate is worse; +inf where only the candidate has no finite value."""
    ratios: list[float] = []
    for baseline, candidate in paired_load(evidence, stage):
        b, c = value(baseline), value(candidate)
        where = f"stage {stage}, block {baseline.block + 1}"
        if b is None or c is None:
            arm = "baseline" if b is None else "candidate"
            return Problem(Outcome.INVALID, f"{where}: the {arm} has no value for this metric", _LOOK_AT_ERRORS)
        if not math.isfinite(b) or b <= 0:
            return Problem(Outcome.INVALID, f"{where}: too many of the baseline's own requests failed", _LOOK_AT_ERRORS)
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
    return _with(
        finding,
        harm=math.inf,
        limits=Limits(lower=-math.inf, upper=math.inf),
        p_value=p_value,
        method="exact sign test over blocks",
        notes=(f"in {failed} of {len(ratios)} blocks the candidate has no finite value, because its requests failed",),
    )


def _shown_values(comparison: Comparison, stage: str, value: Value) -> dict[str, float | None]:
    """Geometric means over blocks, so that their ratio is the harm shown beside them."""
    baseline = comparison.reference if comparison.reference is not None else comparison.judged
    arm = Arm.CANDIDATE if comparison.stored else Arm.BASELINE
    return {
        "baseline": _geometric_mean(load_of(baseline, stage, arm).values(), value),
        "candidate": _geometric_mean(load_of(comparison.judged, stage, Arm.CANDIDATE).values(), value),
    }


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


def _length_warning(pairs: list[tuple[LoadObservation, LoadObservation]]) -> str | None:
    """Tokens/s compares like with like only when both arms answered the same prompts at about the same length."""
    totals = [0, 0]
    for pair in pairs:
        both = metrics.succeeded(pair[0].requests) & metrics.succeeded(pair[1].requests)
        for side, observation in enumerate(pair):
            totals[side] += int(observation.requests.output_tokens[both].sum())
    if totals[0] == 0:
        return None
    ratio = totals[1] / totals[0]
    if _LENGTH_BAND[0] <= ratio <= _LENGTH_BAND[1]:
        return None
    return f"on the same prompts the candidate's answers are {ratio:.2f} times as long as the baseline's"


def _with(finding: Finding, **changes: object) -> Finding:
    return replace(finding, **changes)  # type: ignore[arg-type]  # field names are checked by replace itself


def _too_few(blocks: int) -> Problem:
    return Problem(Outcome.INCONCLUSIVE, f"{blocks} blocks give no interval", "measure more blocks")


def _missing(metric: str, stage: str) -> Problem:
    return Problem(Outcome.INVALID, f"{metric} was not measured in every block of stage {stage}", _LOOK_AT_ERRORS)


_LOOK_AT_ERRORS = "see the errors by class in the load table and the server's log"
_METHOD_LIVE = "paired t over interleaved blocks of the log ratio"
_METHOD_STORED = "Welch t between two runs' log ratios, each over its own live baseline"
