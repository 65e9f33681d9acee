"""Checks of latency, throughput, cost and answer length.

Against the baseline: log ratios of both arms, one per interleaved block, because requests inside a block are not
independent. Against a bound: the candidate's own values. Over another stage: ratios of the candidate's own two stages,
block by block. Between two stored runs without a live baseline: what a live baseline would cancel (another day, another
room, a restart) stays in the difference, so it is held against the spread between runs of a noise profile
(docs/reference/verdict.md, "Two stored runs").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Comparison, TiedRuns, UntiedRuns, load_of, paired_load
from benchgate.gate.decision import Estimate, inconclusive, invalid, log_margin
from benchgate.gate.evidence.blocks import (
    LOOK_AT_ERRORS,
    Measure,
    Pair,
    block_pairs,
    grouped,
    no_quantile,
    pooling_note,
    priced,
    require_pace,
    require_price,
    require_quantile_of_block,
    require_same_pieces,
    too_few,
    value_of,
)
from benchgate.gate.evidence.costs import cost_coverage_warning, idle_cost_warning, require_one_price_list
from benchgate.gate.evidence.deployments import sides_of, vocabulary_warning
from benchgate.gate.evidence.tokens import demonstrated_inflation, note_inflation
from benchgate.gate.policy import CheckSpec
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import COST_METRICS, LATENCY_METRICS, METRICS, THROUGHPUT_METRICS
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import LATENCIES
from benchgate.model.run import Evidence, LoadObservation
from benchgate.stats.clusters import effective_sample_size, miss_share_p
from benchgate.stats.distributions import Limits, binom_sf
from benchgate.stats.means import MeanTest, VarianceComponent, combined_t, paired_t, sign_test_p
from benchgate.stats.quantiles import min_n_for_upper_limit, order_statistic_limits
from benchgate.stats.series import bootstrap_block_length, moving_block_error
from benchgate.stats.trace import Trace, digits
from benchgate.suite.schema import Suite
from benchgate.units import as_written, show_duration, show_percent, show_rate

_LENGTH_BAND = (0.9, 1.1)  # outside it tokens/s compares different work
_MOST_LATENCY, _MOST_RATE = 1 / 2, 1 / 3  # of the baseline's value: a larger `min_abs` is no small change
_FAR_BEYOND_MARGIN = 3  # a `min_abs` so many times the margin decides, and not the margin


class Timing:
    """Checks of latency, throughput, cost and answer length."""

    metrics = (*LATENCY_METRICS, *THROUGHPUT_METRICS, *COST_METRICS, "output_length")

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Measure one check; in tokens of the candidate's text where its usage is shown to count more."""
        assert spec.stage is not None, "a load check has a stage: the suite was validated"
        metric = METRICS[spec.check.metric]
        if spec.check.over is not None:
            over_stage(estimate, comparison.judged, spec, alpha=alpha)
            return
        # by how much the candidate's usage is shown to count more tokens than its text has
        inflation = demonstrated_inflation(comparison.request_pairs, spec.stage, suite) if metric.restated else None
        measure = spec.measure if inflation is None else replace(spec.measure, inflation=inflation.by_block)
        with estimate.keeping_problems():
            if spec.check.margin is None:
                against_bound(estimate, comparison, measure, spec.stage, alpha=alpha)
            elif isinstance(comparison, UntiedRuns):
                with estimate.keeping_problems():
                    between_runs(estimate, comparison, spec.stage, measure, spec, alpha=alpha)
                comparison.hold_to_noise_profile(estimate, suite)
            else:
                against_baseline(estimate, comparison, spec.stage, measure, spec, alpha=alpha)
        if inflation is not None:
            note_inflation(estimate, spec.check.metric, inflation)
        with estimate.keeping_problems():
            if metric.paced:
                absolute = spec.check.margin is None
                require_same_pieces(comparison.request_pairs, spec.stage, of_candidate=absolute)
                if not absolute and isinstance(comparison, TiedRuns) and not isinstance(comparison, UntiedRuns):
                    require_same_pieces(comparison.reference, spec.stage)
        if spec.check.margin is not None and metric.per_token:
            estimate.warn(vocabulary_warning(comparison, suite))
        if metric.kind == "cost":
            sides = sides_of(comparison) if spec.check.margin is not None else None
            if sides is None:
                estimate.warn(cost_coverage_warning(None, comparison.judged.run.arms[Arm.CANDIDATE]))
            else:
                estimate.warn(cost_coverage_warning(*sides) or idle_cost_warning(*sides))
        if metric.timed:
            estimate.warn(length_warning(comparison.request_pairs, spec.stage))


def length_warning(evidence: Evidence, stage: str) -> str | None:
    """Return a warning if the candidate's answers to the same prompts are much longer or shorter: other work."""
    totals = [0, 0]
    for pair in paired_load(evidence, stage):
        if len(pair[0].requests) != len(pair[1].requests):
            continue  # a guard reports missing records
        both = request_metrics.succeeded(pair[0].requests) & request_metrics.succeeded(pair[1].requests)
        for side, observation in enumerate(pair):
            totals[side] += int(observation.requests.output_tokens[both].sum())
    if totals[0] == 0:
        return None
    ratio = totals[1] / totals[0]
    if _LENGTH_BAND[0] <= ratio <= _LENGTH_BAND[1]:
        return None
    return f"on the same prompts the candidate's answers are {ratio:.2f} times as long as the baseline's"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Allowed regression on the log scale, one element per block of the baseline.

    A change below `leasts` is no regression; one below `margins`, which is never less, is allowed.
    """

    margins: FloatArray
    leasts: FloatArray
    plain: float  # the margin without `min_abs`
    warning: str | None = None  # of a regression that only a `min_abs` far beyond the margin let through


def allowance(estimate: Estimate, spec: CheckSpec, measure: Measure, baseline: FloatArray) -> Allowance:
    """Return what is allowed beside the baseline's values, one per block: the margin, or `min_abs` where that is more.

    The estimate's margin and least change are the means over blocks. `min_abs` is taken as a share of each block's own
    value: of their mean, which is measured too, the limits would not hold. Raises CannotJudge for one of more than half
    of a latency, or a third of a rate, and more than the margin: that is no small change.
    """
    ratio, least = spec.check.margin, spec.check.least_change
    assert ratio is not None, "only a check against the baseline has a margin"
    margin = log_margin(ratio, falling=measure.rises and spec.check.direction != "either")
    if least is None:
        margins = np.full(len(baseline), margin)
        estimate.margin, estimate.least = float(margins.mean()), 0.0
        return Allowance(margins, np.zeros(len(baseline)), margin)
    shown = _amount(least, measure)
    if measure.rises and least >= baseline.min():
        reason = f"a `min_abs` of {shown} is no less than the baseline's own {_amount(baseline.min(), measure)}"
        raise invalid(f"{reason}: it would allow any loss", "write a smaller `min_abs`, or none")
    share = least / baseline
    leasts = -np.log1p(-share) if measure.rises else np.log1p(share)
    allowed = float(-np.expm1(-leasts.mean()) if measure.rises else np.expm1(leasts.mean()))
    if allowed > max(_MOST_RATE if measure.rises else _MOST_LATENCY, ratio):
        reason = f"a `min_abs` of {shown} allows {_percent(allowed)} of the baseline's value, which is no small change"
        raise invalid(reason, "write a smaller `min_abs`, or write what is allowed as the `margin`")
    binding = "now the one and now the other"
    if (leasts >= margin).all() or (leasts < margin).all():
        binding = shown if leasts[0] >= margin else _percent(ratio)
    warning, margins = None, np.maximum(leasts, margin)
    if allowed > _FAR_BEYOND_MARGIN * ratio:
        warning = f"by `min_abs` alone, which allows {_percent(allowed)}: a regression beyond the margin of "
        warning += f"{_percent(ratio)} is shown"
    estimate.margin, estimate.least = float(margins.mean()), float(leasts.mean())
    estimate.margin_text = f"{_percent(ratio)} or {shown}, whichever is more (here {binding})"
    return Allowance(margins, leasts, margin, warning)


def _percent(ratio: float) -> str:
    return as_written(show_percent, ratio)


def _amount(value: float, measure: Measure) -> str:
    return as_written(show_duration if measure.is_latency else show_rate, value)


def against_baseline(
    estimate: Estimate, comparison: Comparison, stage: str, measure: Measure, spec: CheckSpec, *, alpha: float
) -> None:
    """Test the log ratio of every block against a margin given as a ratio.

    Latency and cost: d = ln(candidate/baseline), allowed up to ln(1 + margin). Throughput: d = ln(baseline/candidate),
    allowed up to -ln(1 - margin), so that "5 %" means 5 % fewer tokens/s. In either direction: within ±ln(1 + margin).
    """
    estimate.n = len(paired_load(comparison.judged, stage))
    of = ", each the mean over its paired requests" if measure.by_request and measure.is_latency else ""
    estimate.method = f"paired t over interleaved blocks of the log ratio{of}"
    if isinstance(comparison, TiedRuns):
        estimate.method = "Welch t between two runs' log ratios, each over its own live baseline"
    judged = block_pairs(comparison.judged, stage, measure)
    estimate.candidate = _geometric_mean(judged.candidate)
    measured = [judged]
    if isinstance(comparison, TiedRuns):  # a stored run's usage is no fault of the judged candidate's
        measured.append(block_pairs(comparison.reference, stage, replace(measure, inflation={})))
    baseline = judged.baseline if len(measured) == 1 else measured[1].candidate
    estimate.baseline = _geometric_mean(baseline)
    if measure.metric in COST_METRICS:
        require_one_price_list(comparison)
    if any(np.isinf(reference.harm).any() for reference in measured[1:]):
        reason = "in the reference run the candidate's own requests failed, so it is nothing to be held against"
        raise invalid(reason, "compare with a run that was promoted")
    allowed = allowance(estimate, spec, measure, baseline)
    if np.isinf(judged.harm).any():
        _test_failed_blocks(estimate, *(pairs.harm for pairs in measured))
        return

    def test(shift: FloatArray | float, margin: float, sign: int, trace: Trace) -> MeanTest:
        regressions = [pairs.harm for pairs in measured]
        found = comparison.mean_test(regressions, alpha, margin=margin, shift=shift, sign=sign, trace=trace)
        if found is None and len(judged.harm) < 2 <= estimate.n:
            raise no_quantile(stage, measure, paired_load(comparison.judged, stage))
        if found is None:
            raise too_few(min(len(pairs.harm) for pairs in measured))
        return found

    each = "block" if judged.together == 1 else f"group of at least {judged.together} blocks"
    trace = estimate.trace
    trace.observed(f"baseline, one value for each {each}", judged.baseline)
    trace.observed(f"candidate, one value for each {each}", judged.candidate)
    ratio = "ln(baseline / candidate)" if measure.rises else "ln(candidate / baseline)"
    trace.observed(f"regression in each {each}, {ratio}", judged.harm)
    for reference in measured[1:]:
        trace.observed("the same in the reference run", reference.harm)
    apply_test(estimate, test, allowed)
    trace_margin(estimate, measure, spec)
    if judged.together > 1:
        estimate.notes.append(pooling_note(measure, estimate.n, len(judged.harm)))


Test = Callable[["FloatArray | float", float, int, Trace], MeanTest]
"""Test of a mean regression less a shift (of each block, or of all) over a margin; with sign -1 of an improvement.

It raises CannotJudge if there are too few values.
"""


def apply_test(estimate: Estimate, test: Test, allowed: Allowance) -> None:
    """Fill in value, limits and p-value by a test.

    With a least change the two limits answer two questions: is what passes the allowance of each block below 0 (the
    upper one), and is what passes the least change above it (the lower one and the p-value). The mean of a block's
    excess is tested, so that a baseline that varies between blocks costs what it must.
    """
    trace, breach = estimate.trace, estimate.rule.breach
    margin = estimate.margin if breach else 0.0
    plain = test(0.0, margin, 1, trace)
    estimate.value, estimate.limits, estimate.p_value = plain.mean, plain.limits, plain.p_value
    estimate.freedom = plain.freedom
    if plain.freedom != estimate.n - 1:
        estimate.freedom_by_side = (plain.freedom, plain.freedom)
    if estimate.rule.two_sided:
        opposite = Trace()
        falling = test(0.0, margin, -1, opposite)
        tested = [step for step in opposite.steps if step.what in ("t statistic", "p-value")]
        trace.add(tested, of=" of the opposite change")
        likelier = min(plain.p_value, falling.p_value)
        trace.made("p-value of the likelier one", "the smaller of both", likelier)
        estimate.p_value = min(1.0, 2 * likelier)
        return
    if not allowed.leasts.any():
        return
    trace.observed("least change (`min_abs`) in each block", allowed.leasts)
    trace.observed("allowed in each block, the larger of that and the margin", allowed.margins)
    trace.made("margin: the mean of what is allowed", "", estimate.margin)
    trace.text("regression beyond what is allowed, in each block", "regression - allowed", "tested like that")
    inside = test(allowed.margins, 0.0, 1, trace)
    upper = estimate.margin + inside.limits.upper
    trace.made("upper limit of the regression", f"{digits(estimate.margin)} + {digits(inside.limits.upper)}", upper)
    trace.text("regression beyond the least change, in each block", "regression - least change", "tested like that")
    beyond = test(allowed.leasts, 0.0, 1, trace)
    lower = estimate.least + beyond.limits.lower
    trace.made("lower limit of the regression", f"{digits(estimate.least)} + {digits(beyond.limits.lower)}", lower)
    estimate.limits = Limits(lower, upper)
    estimate.p_value = inside.p_value if breach else beyond.p_value
    if plain.limits.lower > allowed.plain:
        estimate.warn(allowed.warning)


def trace_margin(estimate: Estimate, measure: Measure, spec: CheckSpec) -> None:
    """Record the margin on the log scale, unless `min_abs` made it."""
    if spec.check.margin is None or spec.check.least_change is not None:
        return
    two_sided = estimate.rule.two_sided
    formula = ("-ln(1 - {})" if measure.rises and not two_sided else "ln(1 + {})").format(digits(spec.check.margin))
    estimate.trace.made("margin, either way" if two_sided else "margin", formula, estimate.margin)


def _test_failed_blocks(estimate: Estimate, ratios: FloatArray, reference: FloatArray | None = None) -> None:
    """Test blocks of which some have an infinite value, because the candidate failed so many requests.

    Beside its own baseline by signs alone. Against a reference run, in which no block is infinite, by Fisher's exact
    test of the infinite ones: signs beside the own baseline would not tell the two candidates apart.
    """
    failed = int(np.isinf(ratios).sum())
    if reference is None:
        p_value = sign_test_p(ratios - (estimate.margin if estimate.rule.breach else estimate.least))
        estimate.method = "exact sign test over blocks"
    else:
        p_value = math.comb(len(ratios), failed) / math.comb(len(ratios) + len(reference), failed)
        estimate.method = "Fisher's exact test of the blocks without a finite value in both runs"
    estimate.value, estimate.limits = math.inf, Limits(lower=-math.inf, upper=math.inf)
    estimate.p_value = min(1.0, 2 * p_value) if estimate.rule.two_sided and p_value is not None else p_value
    estimate.notes.append(
        f"in {failed} of {len(ratios)} blocks the candidate has no finite value, because its requests failed"
    )


def _geometric_mean(values: FloatArray) -> float:
    """Return the geometric mean, so that the ratio of two is the regression shown; 0 or infinite where a value is."""
    if values.min() <= 0:
        return 0.0
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values.max() < math.inf else math.inf


def against_bound(estimate: Estimate, comparison: Comparison, measure: Measure, stage: str, *, alpha: float) -> None:
    """Hold the candidate's own value to a bound: t-limits over blocks on the log scale.

    For a latency quantile they are widened to the distribution-free order-statistic limits over the pooled requests.
    These also show when there are too few requests for the quantile to have an upper limit at all.
    """
    metric, q = measure.metric, measure.q
    blocks = list(load_of(comparison.judged, stage, Arm.CANDIDATE).values())
    estimate.method, estimate.n = "t-limits over blocks of ln(value)", len(blocks)
    require_pace(metric, q, stage, blocks)
    require_price(comparison.judged, measure, (Arm.CANDIDATE,))
    deployment = comparison.judged.run.arms.get(Arm.CANDIDATE)
    values = [priced([block], measure, Arm.CANDIDATE, deployment) for block in blocks]
    known = np.array([measure.restated(v, [b]) for v, b in zip(values, blocks, strict=True) if v is not None])
    if len(known) < len(values) or len(known) == 0:
        raise invalid(f"{metric} was not measured in every block of stage {stage}", LOOK_AT_ERRORS)
    if metric in LATENCIES:
        _quantile_against_bound(estimate, measure, blocks, known, alpha)
    else:
        _rate_against_bound(estimate, known, alpha)


def _quantile_against_bound(
    estimate: Estimate, measure: Measure, blocks: list[LoadObservation], per_block: FloatArray, alpha: float
) -> None:
    """Estimate a quantile over requests.

    A block whose quantile is infinite or 0 leaves no upper limit and no t over blocks. Requests of a block share its
    bad moments there too, so as many beyond the bound are tested on the effective number of requests.
    """
    q, slo, trace = measure.q, estimate.margin, estimate.trace
    each = [_one_per_request(measure.metric, block, q) * measure.restated(1.0, [block]) for block in blocks]
    each = [values[~np.isnan(values)] for values in each]
    pooled = np.concatenate(each)
    value = request_metrics.quantile(pooled, q)
    n = len(pooled)
    order = order_statistic_limits(pooled, q, alpha, trace=trace)
    if order is None or value is None:
        reason = f"p{q * 100:g} has no upper limit from {n} requests"
        advice = f"measure at least {min_n_for_upper_limit(q, alpha)} requests in this stage over all blocks"
        raise inconclusive(reason, advice)
    above = int(np.count_nonzero(pooled > slo))
    p_value = binom_sf(above - 1, n, 1 - q)  # as many above the bound, if its quantile were there
    rank = max(math.ceil(n * q - 1e-9), 1)
    trace.made(f"p{q * 100:g}", f"request {rank} of {n} by size: {n} * {digits(q)}, rounded up", value)
    trace.count("requests beyond the bound", above)
    trace.made("p-value over requests", f"P(X >= {above}), X ~ Bin({n}, 1 - {digits(q)})", p_value)
    trace.observed("its value in each block", per_block)
    limits = Limits(lower=order.lower, upper=math.inf)
    if np.isfinite(per_block).all() and (per_block > 0).all():
        logs = np.log(per_block)
        trace.observed("ln of its value in each block", logs)
        test = paired_t(logs, alpha, margin=math.log(slo), trace=trace)
        if test is None:
            raise too_few(len(per_block))
        over_blocks = test.limits.mapped(math.exp)
        trace.limits(over_blocks, f"exp({digits(test.limits.lower)})", f"exp({digits(test.limits.upper)})")
        limits, p_value = order.widened(over_blocks), max(test.p_value, p_value)
        estimate.freedom = None if limits == order else test.freedom
        beside = "widened to t-limits over blocks of ln(quantile)"
        trace_widest(trace, "the wider limit on each side; the larger p-value", limits, p_value)
    else:
        within, totals = [int(np.count_nonzero(values <= slo)) for values in each], [len(values) for values in each]
        over_effective = miss_share_p(within, totals, 1 - q, alpha)
        if over_effective is None:
            raise too_few(len(per_block))
        p_value = max(over_effective, p_value)
        if p_value > alpha:
            limits = Limits(min(limits.lower, slo), math.inf)
        effective_sample_size(within, totals, alpha, trace)
        beside = "and those beyond the bound among effective requests"
        trace_widest(trace, "as many beyond the bound of n* requests; the larger p-value", limits, p_value)
    estimate.candidate = estimate.value = value
    estimate.limits, estimate.p_value = limits, p_value
    estimate.n, estimate.n_unit = n, "sessions" if measure.metric == "session_e2e" else "requests"
    each_by = f", each by the p{q * 100:g} of its own gaps" if measure.metric == "itl" else ""
    estimate.method = f"order-statistic limits over requests{each_by}, {beside}"


def trace_widest(trace: Trace, formula: str, limits: Limits, p_value: float) -> None:
    """Record the widest of several intervals with the largest p-value."""
    value = f"{digits(limits.lower)} to {digits(limits.upper)}; p {digits(p_value)}"
    trace.text("limits and p-value", formula, value)


def _one_per_request(metric: str, block: LoadObservation, q: float) -> FloatArray:
    """Return a request's latency; for ITL, whose gaps go together, the quantile `q` of its own; +inf if it failed."""
    if metric != "itl":
        return LATENCIES[metric](block.requests)
    columns = block.requests
    values = np.full(len(columns), np.inf)
    for row in np.flatnonzero(request_metrics.succeeded(columns)):
        chunks = columns.chunk_ns[columns.chunk_start[row] : columns.chunk_start[row + 1]]
        gap = request_metrics.quantile(np.diff(chunks) * 1e-9, q)
        values[row] = np.nan if gap is None else gap
    return values


def _rate_against_bound(estimate: Estimate, per_block: FloatArray, alpha: float) -> None:
    at_least, bound, trace = estimate.rule.lower_is_worse, estimate.margin, estimate.trace
    sign = -1 if at_least else 1
    if not (np.isfinite(per_block).all() and (per_block > 0).all()):
        what = "no request was answered" if at_least else "no token that counts came"
        reason = f"in at least one block {what}, so there is nothing to hold against the SLO"
        raise invalid(reason, "see the errors by class and the server's log")
    name, minus = ("the rate", "-") if at_least else ("the cost", "")
    trace.observed("the rate in each block" if at_least else "$ per million tokens in each block", per_block)
    logs = sign * np.log(per_block)
    trace.observed(f"{minus}ln of {name} in each block", logs)
    test = paired_t(logs, alpha, margin=sign * math.log(bound), trace=trace)
    if test is None:
        raise too_few(len(per_block))
    value = math.exp(sign * test.mean)
    ends = (test.limits.upper, test.limits.lower) if at_least else (test.limits.lower, test.limits.upper)
    limits = Limits(*(math.exp(sign * end) for end in ends))
    trace.made(name, f"exp({sign} * {digits(test.mean)})", value)
    trace.limits(limits, *(f"exp({sign} * {digits(end)})" for end in ends))
    estimate.candidate = estimate.value = value
    estimate.limits, estimate.p_value = limits, test.p_value


def stage_pairs(evidence: Evidence, spec: CheckSpec) -> list[Pair]:
    """Return the candidate's executions (at `over`, at the stage) of every block that has both."""
    assert spec.stage is not None and spec.over is not None, "a check over a stage names both"
    others, own = (load_of(evidence, stage, Arm.CANDIDATE) for stage in (spec.over, spec.stage))
    return [(others[block], own[block]) for block in sorted(others.keys() & own.keys())]


def over_stage(estimate: Estimate, evidence: Evidence, spec: CheckSpec, *, alpha: float) -> None:
    """Estimate the geometric mean over blocks of (value at the stage / value at `over`), with t-limits of its log."""
    pairs, measure = stage_pairs(evidence, spec), Measure(spec.check.metric, spec.q)
    estimate.method = "t-limits over blocks of ln(value at one stage / value at the other)"
    estimate.n = len(pairs)
    if not pairs:
        reason = f"no block has both stage {spec.stage} and stage {spec.over}"
        raise invalid(reason, "see the faults of the targets")
    groups = grouped(pairs, measure)
    for at in (0, 1):
        require_pace(measure.metric, measure.q, pairs[0][at].stage, [pair[at] for pair in pairs])
    values = np.empty((len(groups), 2))
    for row, group in enumerate(groups):
        for at in (0, 1):
            value = value_of([pair[at] for pair in group], measure)
            if value is None or not 0 < value < math.inf:  # failures make no ratio: their effect is not the load's
                where = f"stage {group[0][at].stage}, block {group[0][at].block + 1}"
                reason = f"{where}: {measure.metric} has no value there, or too many of the candidate's requests failed"
                raise invalid(reason, LOOK_AT_ERRORS)
            values[row, at] = value
    if len(groups) < 2 <= len(pairs):
        raise no_quantile(pairs[0][1].stage, measure, pairs)
    sign = -1 if estimate.rule.lower_is_worse else 1  # the p-value is of passing the bound on its wrong side
    edge = sign * math.log(estimate.margin)
    test = paired_t(sign * (np.log(values[:, 1]) - np.log(values[:, 0])), alpha, margin=edge)
    if test is None:
        raise too_few(len(groups))
    estimate.candidate = estimate.value = math.exp(sign * test.mean)
    estimate.limits = Limits(*sorted(math.exp(sign * end) for end in (test.limits.lower, test.limits.upper)))
    estimate.p_value, estimate.freedom = test.p_value, test.freedom
    if measure.is_latency:
        means = [show_duration(math.exp(float(np.mean(np.log(values[:, at]))))) for at in (1, 0)]
        estimate.notes.append(f"{means[0]} at {spec.stage}, {means[1]} at {spec.over}")
        if len(groups) < len(pairs):
            estimate.notes.append(pooling_note(measure, len(pairs), len(groups)))


def between_runs(
    estimate: Estimate, comparison: UntiedRuns, stage: str, measure: Measure, spec: CheckSpec, *, alpha: float
) -> None:
    """Test d = mean ln(candidate's blocks) - mean ln(stored blocks), signed so that above 0 is worse.

    SE² is the sum of the variance within each run (of several blocks: between them; of a single one: of its requests,
    by a moving-block bootstrap) and of the variance between runs, once for each run.
    """
    estimate.method = (
        "difference of two runs without a live baseline: t with the spread between runs of the noise profile added"
    )
    both = comparison.interleaved
    pairs = block_pairs(both, stage, measure)
    estimate.n = len(pairs.harm)
    if estimate.n < 2:
        require_quantile_of_block(stage, measure, paired_load(both, stage))
    if np.isinf(pairs.harm).any():
        failed = int(np.isinf(pairs.harm).sum())
        reason = f"stage {stage}: in {failed} of {len(pairs.harm)} blocks the candidate has no finite value"
        advice = "see the errors by class in the load table; a live baseline would tell whose they are"
        raise inconclusive(f"{reason}, because its requests failed", advice)
    allowed = allowance(estimate, spec, measure, pairs.baseline)
    estimate.baseline = math.exp(float(np.mean(np.log(pairs.baseline))))
    estimate.candidate = math.exp(float(np.mean(np.log(pairs.candidate))))
    estimate.value = float(np.mean(pairs.harm))
    if measure.metric in COST_METRICS:
        require_one_price_list(comparison)
    between = comparison.variance_between_runs(measure.metric, measure.statistic, stage)
    turn = -1 if measure.rises else 1
    theirs, ours = turn * np.log(pairs.baseline), turn * np.log(pairs.candidate)
    within = None if len(pairs.harm) > 1 else _variance_of_requests(both, stage, measure)
    reason = f"stage {stage}: what there is tells nothing of how much this varies within a run"
    no_variance = inconclusive(reason, "measure two blocks at least, of a server whose times vary")

    def test(shift: FloatArray | float, margin: float, sign: int, trace: Trace) -> MeanTest:
        harm = sign * float(np.mean(ours) - np.mean(theirs)) - float(np.mean(shift))
        if within is None and len(ours) == 1:
            raise no_variance
        blocks = (theirs + sign * np.asarray(shift), ours)
        parts = within or [VarianceComponent(float(np.var(run, ddof=1)) / len(run), len(run) - 1) for run in blocks]
        for run, part in zip(("stored", "judged"), parts, strict=True):
            how = "variance of its blocks / their number" if within is None else "bootstrap of its requests"
            formula = f"{how}, {part.freedom:g} degrees of freedom"
            trace.made(f"variance of the {run} run's mean", formula, part.variance)
        found = combined_t(harm, [*parts, *between], alpha, margin=margin, trace=trace)
        if found is None:
            raise no_variance
        return MeanTest(harm, found.error, found.limits, found.p_value, len(ours), found.freedom)

    minus = "-ln" if measure.rises else "ln"
    trace = estimate.trace
    trace.observed(f"stored run: {minus} of each block", theirs)
    trace.observed(f"judged run: {minus} of each block", ours)
    means = digits(float(np.mean(ours))), digits(float(np.mean(theirs)))
    trace.made("regression: the difference of their means", "{} - {}".format(*means), estimate.value)
    for part in between:
        trace.made("variance between runs, by the noise profile", f"{part.freedom:g} degrees of freedom", part.variance)
    apply_test(estimate, test, allowed)
    trace_margin(estimate, measure, spec)
    estimate.notes.append(comparison.variance_note(between))


def _variance_of_requests(both: Evidence, stage: str, measure: Measure) -> tuple[VarianceComponent, ...] | None:
    """Return the variance of each run's single block, by its requests in the order they were due; None if unknown.

    Gaps between tokens of one request go together, and what a rate counts does not tell how its window varies.
    """
    if not measure.is_latency or measure.by_request or measure.metric == "itl":
        return None

    def log_quantile(drawn: FloatArray) -> float:
        found = request_metrics.quantile(drawn, measure.q)
        return math.log(found) if found is not None and found > 0 else math.nan

    parts = []
    for arm in Arm:
        block = next(iter(load_of(both, stage, arm).values()))
        values = LATENCIES[measure.metric](block.requests)
        values = values[~np.isnan(values)]
        generator = np.random.default_rng([both.run.seed, block.block, arm is Arm.CANDIDATE])
        error = moving_block_error(values, log_quantile, generator)
        if error is None:
            return None
        parts.append(VarianceComponent(error**2, max(1, len(values) // bootstrap_block_length(len(values)) - 1)))
    return tuple(parts)
