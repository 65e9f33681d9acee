"""Latency, throughput, cost and length of answers against the baseline: paired log ratios over interleaved blocks.

One number per block and arm (a quantile, a rate, a mean over paired requests), because requests inside a block are not
independent. Blocks are: the same prompts on the same schedule, in A B B A order.

SLOs on latency quantiles, rates and costs: the candidate's own values, whatever the baseline's are.

The candidate against itself: its value at one stage over its value at another, block by block.

What a drill teaches is a ratio: a long prompt makes the first token so many times later, and must not make the others
slower. Blocks are paired, because both stages of a block met the same mood of the machine.

A candidate measured alone, against a stored run that was measured alone: nothing live ties the two together.

What a live baseline takes out (another day, another room, a restart) stays in the difference. So it counts against what
the runs' own blocks say twice the spread between runs that the noise profile tells, and where none does, nothing is
decided; of shares nothing ever is. Why so: docs/decisions.md, "Two stored runs".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.checks.base import (
    Span,
    bound_of,
    by_tokens_of_text,
    held_to_noise_profile,
    over_stage_finding,
    stage_pairs,
)
from benchgate.gate.checks.cost import repriced_between
from benchgate.gate.checks.margin import Allowance, Terms, allowance, log_margin
from benchgate.gate.comparison import Comparison, apart_notes, beside, between_runs, load_of, paired_load
from benchgate.gate.decision import Finding, Problem
from benchgate.gate.derivation import (
    PooledQuantile,
    apart_steps,
    cost_steps,
    log_ratio_steps,
    quantile_steps,
    rate_steps,
)
from benchgate.gate.evidence.blocks import (
    LATENCIES,
    LOOK_AT_ERRORS,
    BlockPairs,
    Measure,
    Pair,
    block_pairs,
    grouped,
    no_price,
    no_quantile,
    priced,
    taken_together,
    too_few,
    unpaced,
    value_of,
)
from benchgate.gate.evidence.tokens import LogRatio
from benchgate.gate.policy import CheckSpec
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import COST_METRICS, LATENCY_METRICS, METRICS, PER_ACCELERATOR_UNITS, THROUGHPUT_METRICS
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import Limits, binom_sf
from benchgate.stats.means import MeanTest, VarianceComponent, combined_t, paired_t, sign_test_p, two_sample_t
from benchgate.stats.quantiles import min_n_for_upper_limit, order_statistic_limits
from benchgate.stats.series import bootstrap_block_length, moving_block_error
from benchgate.suite.schema import Suite
from benchgate.units import show_duration

_LENGTH_BAND = (0.9, 1.1)  # outside it tokens/s compares different work


def timing_against_baseline(
    comparison: Comparison, stage: str, measure: Measure, terms: Terms, *, alpha: float
) -> Finding:
    """Harm as a log ratio per block, against a margin given as a ratio.

    Latency: d = ln(candidate/baseline), allowed up to ln(1 + margin). Throughput: d = ln(baseline/candidate), allowed
    up to -ln(1 - margin), so that "5 %" means 5 % fewer tokens/s. Either way: within ±ln(1 + margin). A cost is harmed
    as a latency is.
    """
    empty = Finding(
        unit=unit_of(measure),
        scale=Scale.LOG_RATIO,
        margin=log_margin(terms, measure),
        method=_method(comparison, measure),
        n=len(paired_load(comparison.judged, stage)),
        n_unit="blocks",
        breach=terms.breach,
        two_sided=terms.two_sided,
    )
    judged = block_pairs(comparison.judged, stage, measure)
    if isinstance(judged, Problem):
        return replace(empty, problem=judged)
    as_counted = replace(measure, inflation={})  # a stored run's usage is no fault of the judged candidate's
    reference = None if comparison.reference is None else block_pairs(comparison.reference, stage, as_counted)
    if isinstance(reference, Problem):
        return replace(empty, candidate=_geometric_mean(judged.candidate), problem=reference)
    held_against = judged.baseline if reference is None else reference.candidate
    shown = replace(empty, baseline=_geometric_mean(held_against), candidate=_geometric_mean(judged.candidate))
    repriced = repriced_between(comparison, measure.metric)
    if repriced is not None:
        return replace(shown, problem=repriced)
    if reference is not None and np.isinf(reference.harm).any():
        reason = "in the reference run the candidate's own requests failed, so it is nothing to be held against"
        return replace(shown, problem=Problem(Outcome.INVALID, reason, "compare with a run that was promoted"))
    allowed = allowance(terms, measure, held_against)
    if isinstance(allowed, Problem):
        return replace(shown, problem=allowed)
    shown = replace(shown, margin=allowed.margin, least=allowed.least, margin_told=allowed.told)
    if np.isinf(judged.harm).any():
        return _unbounded(shown, judged.harm)
    found = _tested(judged.harm, None if reference is None else reference.harm, allowed, terms, alpha)
    if found is None:
        return replace(shown, problem=too_few(len(judged.harm)))
    steps = log_ratio_steps(judged, reference, measure, allowed, terms, found.limits, alpha)
    return replace(found.on(shown), notes=judged.notes(measure, shown.n), steps=steps)


@dataclass(frozen=True, slots=True)
class Tested:
    """Mean harm, its limits, the p-value of no harm (with `breach`: of harm inside the margin), and what warns."""

    harm: float
    limits: Limits
    p_value: float
    warning: str | None = None

    def on(self, finding: Finding) -> Finding:
        """The finding with these numbers."""
        return replace(finding, harm=self.harm, limits=self.limits, p_value=self.p_value, warning=self.warning)


def _tested(
    judged: FloatArray, reference: FloatArray | None, allowed: Allowance, terms: Terms, alpha: float
) -> Tested | None:
    """With a least change the two ends answer two questions.

    Is what passes the allowance of each block below 0 (the upper one), and is what passes the least change above it
    (the lower one and the p-value). The mean of a block's excess is what is tested, so that a baseline that varies
    between blocks costs what it must.
    """

    def test(shift: FloatArray | float, margin: float, sign: int) -> MeanTest | None:
        if reference is None:
            return paired_t(sign * judged - shift, alpha, margin=margin)
        return two_sample_t(sign * reference + shift, sign * judged, alpha, margin=margin)

    return tested(test, allowed, terms)


Test = Callable[["FloatArray | float", float, int], "MeanTest | None"]
"""t of a mean harm less a shift (of each block, or of all) over a margin; with sign -1 of a gain."""


def tested(test: Test, allowed: Allowance, terms: Terms) -> Tested | None:
    """The same with any such test; None where a test has no answer."""
    margin = allowed.margin if terms.breach else 0.0
    tests = [test(0.0, margin, 1)]
    if terms.two_sided:
        tests.append(test(0.0, margin, -1))
    elif terms.least_change is not None:
        tests += [test(allowed.margins, 0.0, 1), test(allowed.leasts, 0.0, 1)]
    known = [one for one in tests if one is not None]
    if len(known) < len(tests):
        return None
    plain = known[0]
    if terms.least_change is None:
        p_value = min(one.p_value for one in known)
        return Tested(plain.mean, plain.limits, min(1.0, len(known) * p_value))
    inside, beyond = known[1:]
    limits = Limits(allowed.least + beyond.limits.lower, allowed.margin + inside.limits.upper)
    warning = allowed.beyond if plain.limits.lower > allowed.plain else None
    return Tested(plain.mean, limits, inside.p_value if terms.breach else beyond.p_value, warning)


def _unbounded(finding: Finding, ratios: FloatArray) -> Finding:
    """So many of the candidate's requests failed that a value is infinite: only signs can be tested."""
    p_value = sign_test_p(ratios - (finding.margin if finding.breach else finding.least))
    failed = int(np.isinf(ratios).sum())
    return replace(
        finding,
        harm=math.inf,
        limits=Limits(lower=-math.inf, upper=math.inf),
        p_value=min(1.0, 2 * p_value) if finding.two_sided and p_value is not None else p_value,
        method="exact sign test over blocks",
        notes=(f"in {failed} of {len(ratios)} blocks the candidate has no finite value, because its requests failed",),
    )


def _geometric_mean(values: FloatArray) -> float:
    """Over blocks, so that the ratio of two is the harm shown beside them; 0 or infinite where one of them is."""
    if values.min() <= 0:
        return 0.0
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values.max() < math.inf else math.inf


def length_warning(comparison: Comparison, stage: str) -> str | None:
    """Speed compares like with like only when both arms answered the same prompts at about the same length."""
    totals = [0, 0]
    for pair in paired_load(comparison.judged, stage):
        if len(pair[0].requests) != len(pair[1].requests):
            continue  # a guard has more to say of missing records
        both = request_metrics.succeeded(pair[0].requests) & request_metrics.succeeded(pair[1].requests)
        for side, observation in enumerate(pair):
            totals[side] += int(observation.requests.output_tokens[both].sum())
    if totals[0] == 0:
        return None
    ratio = totals[1] / totals[0]
    if _LENGTH_BAND[0] <= ratio <= _LENGTH_BAND[1]:
        return None
    return f"on the same prompts the candidate's answers are {ratio:.2f} times as long as the baseline's"


def unit_of(measure: Measure) -> Unit:
    """What its values are in."""
    unit = METRICS[measure.metric].unit
    return PER_ACCELERATOR_UNITS[unit] if measure.each else unit


def _method(comparison: Comparison, measure: Measure) -> str:
    if comparison.stored:
        return "Welch t between two runs' log ratios, each over its own live baseline"
    of = ", each the mean over its paired requests" if measure.by_request and measure.is_latency else ""
    return f"paired t over interleaved blocks of the log ratio{of}"


def timing_against_bound(comparison: Comparison, measure: Measure, stage: str, *, slo: float, alpha: float) -> Finding:
    """The candidate's own value against an SLO: t-limits over blocks on the log scale.

    For a latency quantile they are widened to the distribution-free order-statistic limits over the pooled requests,
    which also say when there are too few requests for the quantile to have an upper limit at all.
    """
    metric, q = measure.metric, measure.q
    blocks = list(load_of(comparison.judged, stage, Arm.CANDIDATE).values())
    finding = Finding(
        unit=unit_of(measure),
        scale=Scale.ABSOLUTE,
        margin=slo,
        method="t-limits over blocks of ln(value)",
        n=len(blocks),
        n_unit="blocks",
        breach=True,
        lower_is_worse=measure.rises,
    )
    unusable = unpaced(metric, q, stage, blocks)
    if unusable is not None:
        return replace(finding, problem=unusable)
    unpriced = no_price(comparison.judged, measure, (Arm.CANDIDATE,))
    if unpriced is not None:
        return replace(finding, problem=unpriced)
    values = [priced([block], measure, comparison.judged.run.arms.get(Arm.CANDIDATE)) for block in blocks]
    known = np.array([measure.restated(v, [b]) for v, b in zip(values, blocks, strict=True) if v is not None])
    if len(known) < len(values) or len(known) == 0:
        return replace(finding, problem=_missing(metric, stage))
    if metric in LATENCIES:
        return _latency_slo(finding, measure, blocks, known, alpha)
    return _rate_slo(finding, known, alpha)


def _latency_slo(
    finding: Finding, measure: Measure, blocks: list[LoadObservation], per_block: FloatArray, alpha: float
) -> Finding:
    """The quantile of a request's latency. Of the gaps of one request (ITL), which go together, one counts.

    A block whose quantile is infinite has no logarithm and leaves only one thing to say of the upper limit.
    """
    q = measure.q
    pooled = np.concatenate(
        [_one_per_request(measure.metric, block, q) * measure.restated(1.0, [block]) for block in blocks]
    )
    pooled = pooled[~np.isnan(pooled)]
    estimate = request_metrics.quantile(pooled, q)
    order = order_statistic_limits(pooled, q, alpha)
    if order is None or estimate is None:
        reason = f"p{q * 100:g} has no upper limit from {len(pooled)} requests"
        advice = f"measure at least {min_n_for_upper_limit(q, alpha)} requests in this stage over all blocks"
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, advice))
    above = int(np.count_nonzero(pooled > finding.margin))
    p_value = binom_sf(above - 1, len(pooled), 1 - q)  # as many above the SLO, were its quantile there
    limits, test = Limits(lower=order.lower, upper=math.inf), None
    if np.isfinite(per_block).all() and (per_block > 0).all():
        test = paired_t(np.log(per_block), alpha, margin=math.log(finding.margin))
        if test is None:
            return replace(finding, problem=too_few(len(per_block)))
        limits = Limits(
            lower=min(order.lower, math.exp(test.limits.lower)), upper=max(order.upper, math.exp(test.limits.upper))
        )
        p_value = max(test.p_value, p_value)
    return replace(
        finding,
        candidate=estimate,
        harm=estimate,
        limits=limits,
        p_value=p_value,
        n=len(pooled),
        n_unit="requests",
        method="order-statistic limits over requests, widened to t-limits over blocks of ln(quantile)",
        steps=quantile_steps(
            PooledQuantile(q, estimate, order, len(pooled), above), finding.margin, alpha, per_block, test
        ),
    )


def _one_per_request(metric: str, block: LoadObservation, q: float) -> FloatArray:
    """A request's latency; for ITL the same quantile of its own gaps, +inf for a failed request."""
    if metric != "itl":
        return LATENCIES[metric](block.requests)
    columns = block.requests
    succeeded = request_metrics.succeeded(columns)
    values = np.full(len(columns), np.inf)
    for row in np.flatnonzero(succeeded):
        chunks = columns.chunk_ns[columns.chunk_start[row] : columns.chunk_start[row + 1]]
        gap = request_metrics.quantile(np.diff(chunks) * 1e-9, q)
        values[row] = np.nan if gap is None else gap
    return values


def _rate_slo(finding: Finding, per_block: FloatArray, alpha: float) -> Finding:
    """A rate, of which less is worse, or a cost, of which more is."""
    sign = -1 if finding.lower_is_worse else 1
    if not (np.isfinite(per_block).all() and (per_block > 0).all()):
        what = "no request was answered" if finding.lower_is_worse else "no token that counts came"
        reason = f"in at least one block {what}, so there is nothing to hold against the SLO"
        return replace(
            finding, problem=Problem(Outcome.INVALID, reason, "see the errors by class and the server's log")
        )
    test = paired_t(sign * np.log(per_block), alpha, margin=sign * math.log(finding.margin))
    if test is None:
        return replace(finding, problem=too_few(len(per_block)))
    value = math.exp(sign * test.mean)
    lower, upper = sorted(math.exp(sign * end) for end in (test.limits.lower, test.limits.upper))
    limits = Limits(lower, upper)
    steps = (rate_steps if finding.lower_is_worse else cost_steps)(per_block, finding.margin, value, limits, alpha)
    return replace(finding, candidate=value, harm=value, limits=limits, p_value=test.p_value, steps=steps)


def _missing(metric: str, stage: str) -> Problem:
    return Problem(Outcome.INVALID, f"{metric} was not measured in every block of stage {stage}", LOOK_AT_ERRORS)


_FAR = 10  # a bound so many times nearer than the limits reach would take a hundred times the blocks, or more


def timing_over_stage(evidence: Evidence, metric: str, span: Span, q: float, *, alpha: float) -> Finding:
    """Geometric mean over blocks of value at the stage / value at the other one; t-limits on the log scale."""
    pairs = stage_pairs(evidence, span)
    finding = over_stage_finding(
        span, Unit.MULTIPLE, "t-limits over blocks of ln(value at one stage / value at the other)"
    )
    finding = replace(finding, n=len(pairs), n_unit="blocks")
    measure = Measure(metric, q)
    groups = grouped(pairs, measure) if pairs else []
    ratios = _log_ratios(groups, measure, span)
    if isinstance(ratios, Problem):
        return replace(finding, problem=ratios)
    if len(groups) < 2 < len(pairs):
        return replace(finding, problem=no_quantile(span.stage, measure, pairs))
    sign = -1 if span.at_least else 1  # what is tested is that it passes the bound on its wrong side
    test = paired_t(sign * ratios, alpha, margin=sign * math.log(span.bound))
    if test is None:
        return replace(finding, problem=too_few(len(ratios)))
    ends = sorted((math.exp(sign * test.limits.lower), math.exp(sign * test.limits.upper)))
    value = math.exp(sign * test.mean)
    return replace(
        finding,
        candidate=value,
        harm=value,
        limits=Limits(*ends),
        p_value=test.p_value,
        notes=_told(groups, measure, span, len(pairs)),
        needs=_needed(test, sign * math.log(span.bound), len(pairs)),
    )


def _needed(test: MeanTest, bound: float, blocks: int) -> int | None:
    """About how many blocks would show on which side of the bound the ratio is: limits narrow with the root of n."""
    room = abs(bound - test.mean)
    width = test.limits.upper - test.mean
    return math.ceil(blocks * (width / room) ** 2) if room > width / _FAR else None


def _log_ratios(groups: list[list[Pair]], measure: Measure, span: Span) -> FloatArray | Problem:
    """One per group of blocks. Failures make no ratio: an effect that comes from them is none of the load's."""
    if not groups:
        reason = f"no block has both stage {span.stage} and stage {span.over}"
        return Problem(Outcome.INVALID, reason, "see the faults of the targets")
    for at, stage in ((0, span.over), (1, span.stage)):
        problem = unpaced(measure.metric, measure.q, stage, [pair[at] for group in groups for pair in group])
        if problem is not None:
            return problem
    ratios = []
    for group in groups:
        logs = []
        for at in (0, 1):
            found = value_of([pair[at] for pair in group], measure)
            if found is None or not 0 < found < math.inf:
                where = f"stage {group[0][at].stage}, block {group[0][at].block + 1}"
                reason = f"{where}: {measure.metric} has no value there, or too many of the candidate's requests failed"
                return Problem(Outcome.INVALID, reason, LOOK_AT_ERRORS)
            logs.append(math.log(found))
        ratios.append(logs[1] - logs[0])
    return np.array(ratios, dtype=np.float64)


def _told(groups: list[list[Pair]], measure: Measure, span: Span, blocks: int) -> tuple[str, ...]:
    """The two values that the ratio is of, and how many blocks made one."""
    if not measure.is_latency:
        return ()
    values = [[value_of([pair[at] for pair in group], measure) or math.nan for group in groups] for at in (1, 0)]
    means = [show_duration(math.exp(float(np.mean(np.log(of_stage))))) for of_stage in values]
    told = f"{means[0]} at {span.stage}, {means[1]} at {span.over}"
    return (told,) if len(groups) == blocks else (told, taken_together(measure, blocks, len(groups)))


METHOD = "difference of two runs without a live baseline: t with the spread between runs of the noise profile added"


@dataclass(frozen=True, slots=True)
class _Sides:
    """ln of each block's value in the stored and the judged run, turned so that more is worse.

    `within` is what requests show of a single block each; None where there are more blocks, which show it themselves.
    """

    theirs: FloatArray
    ours: FloatArray
    within: tuple[VarianceComponent, ...] | None = None

    @property
    def harm(self) -> float:
        """How much worse the judged run is."""
        return float(np.mean(self.ours) - np.mean(self.theirs))

    def parts(self, shift: FloatArray | float = 0.0) -> tuple[VarianceComponent, ...]:
        """What each run's own variance adds, where a shift is added to the stored one."""
        return self.within if self.within is not None else (_part(self.theirs + shift), _part(self.ours))


def timing_between_runs(comparison: Comparison, stage: str, measure: Measure, terms: Terms, *, alpha: float) -> Finding:
    """Latency and throughput: d = mean ln(candidate's blocks) - mean ln(stored blocks), turned so that harm is above 0.

    SE² is the sum of what each run's blocks show (of one block: its requests, by a moving-block bootstrap) and of the
    variance between runs, once for each run.
    """
    both = beside(comparison)
    pairs = block_pairs(both, stage, measure)
    if isinstance(pairs, Problem):
        return replace(_empty(measure, terms), problem=pairs)
    finding = replace(_empty(measure, terms), n=len(pairs.harm))
    if np.isinf(pairs.harm).any():
        return replace(finding, problem=_failed(stage, pairs))
    allowed = allowance(terms, measure, pairs.baseline)
    if isinstance(allowed, Problem):
        return replace(finding, problem=allowed)
    sides = _sides(both, stage, measure, pairs)
    finding = _with_values(finding, pairs, allowed)
    repriced = repriced_between(comparison, measure.metric)
    if repriced is not None:
        return replace(finding, problem=repriced)
    between = between_runs(comparison, measure.metric, measure.statistic, stage)
    if isinstance(between, Problem):
        return replace(finding, problem=between)
    found = None if sides is None else _tested_between_runs(sides, between, allowed, terms, alpha)
    if sides is None or found is None:
        return replace(finding, problem=_too_few(stage))
    edge = allowed.margin if terms.breach else 0.0
    what = "-ln" if measure.rises else "ln"
    return replace(
        found.on(finding),
        notes=apart_notes(comparison, between),
        steps=apart_steps(what, sides.theirs, sides.ours, [*sides.parts(), *between], alpha, margin=edge),
    )


def _empty(measure: Measure, terms: Terms) -> Finding:
    return Finding(
        unit=unit_of(measure),
        scale=Scale.LOG_RATIO,
        margin=log_margin(terms, measure),
        method=METHOD,
        n=0,
        n_unit="blocks",
        breach=terms.breach,
        two_sided=terms.two_sided,
    )


def _with_values(finding: Finding, pairs: BlockPairs, allowed: Allowance) -> Finding:
    """Geometric means over blocks, the estimate, and what is allowed beside them."""
    return replace(
        finding,
        baseline=math.exp(float(np.mean(np.log(pairs.baseline)))),
        candidate=math.exp(float(np.mean(np.log(pairs.candidate)))),
        harm=float(np.mean(pairs.harm)),
        margin=allowed.margin,
        least=allowed.least,
        margin_told=allowed.told,
    )


def _sides(both: Evidence, stage: str, measure: Measure, pairs: BlockPairs) -> _Sides | None:
    """None where one block is all there is and its requests do not show how far it may be off."""
    theirs, ours = np.log(pairs.baseline), np.log(pairs.candidate)
    if measure.rises:
        theirs, ours = -theirs, -ours
    if len(pairs.harm) > 1:
        return _Sides(theirs, ours)
    within = _within(both, stage, measure)
    return None if within is None else _Sides(theirs, ours, within)


def _tested_between_runs(
    sides: _Sides, between: Sequence[VarianceComponent], allowed: Allowance, terms: Terms, alpha: float
) -> Tested | None:
    def test(shift: FloatArray | float, margin: float, sign: int) -> MeanTest | None:
        harm = sign * sides.harm - float(np.mean(shift))
        found = combined_t(harm, [*sides.parts(sign * np.asarray(shift)), *between], alpha, margin=margin)
        return None if found is None else MeanTest(harm, found.error, found.limits, found.p_value, len(sides.ours))

    return tested(test, allowed, terms)


def _part(values: FloatArray) -> VarianceComponent:
    """What the blocks of one run, two at least, show of how far their mean may be off."""
    return VarianceComponent(float(np.var(values, ddof=1)) / len(values), len(values) - 1)


def _within(both: Evidence, stage: str, measure: Measure) -> tuple[VarianceComponent, ...] | None:
    """The same of one block of each run, from its requests in the order they were due; None where none is known.

    Gaps between tokens are of one request and go together; what a rate counts of requests does not tell its window.
    """
    if not measure.is_latency or measure.by_request or measure.metric == "itl":
        return None
    parts = []
    for arm in Arm:
        block = next(iter(load_of(both, stage, arm).values()))
        values = LATENCIES[measure.metric](block.requests)
        values = values[~np.isnan(values)]
        generator = np.random.default_rng([both.run.seed, block.block, arm is Arm.CANDIDATE])
        error = moving_block_error(values, lambda drawn: _log_quantile(drawn, measure.q), generator)
        if error is None:
            return None
        parts.append(VarianceComponent(error**2, max(1, len(values) // bootstrap_block_length(len(values)) - 1)))
    return tuple(parts)


def _log_quantile(values: FloatArray, q: float) -> float:
    found = request_metrics.quantile(values, q)
    return math.log(found) if found is not None and found > 0 else math.nan


def _too_few(stage: str) -> Problem:
    reason = f"stage {stage}: what there is tells nothing of how much this varies within a run"
    return Problem(Outcome.INCONCLUSIVE, reason, "measure two blocks at least, of a server whose times vary")


def _failed(stage: str, pairs: BlockPairs) -> Problem:
    failed = int(np.isinf(pairs.harm).sum())
    reason = f"stage {stage}: in {failed} of {len(pairs.harm)} blocks the candidate has no finite value"
    advice = "see the errors by class in the load table; a live baseline would tell whose they are"
    return Problem(Outcome.INCONCLUSIVE, f"{reason}, because its requests failed", advice)


class Timing:
    """Latency, throughput, cost, and how long answers are."""

    metrics = (*LATENCY_METRICS, *THROUGHPUT_METRICS, *COST_METRICS, "output_length")

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Measure one check; in tokens of the candidate's text where its usage is shown to count more."""
        if spec.check.over is not None:
            span = Span.of(spec)
            return timing_over_stage(comparison.judged, spec.check.metric, span, spec.q, alpha=suite.gate.alpha)
        if not METRICS[spec.check.metric].restated:
            return self._at_stage(spec, suite, comparison, None)
        return by_tokens_of_text(
            spec, suite, comparison, lambda inflation: self._at_stage(spec, suite, comparison, inflation)
        )

    def _at_stage(self, spec: CheckSpec, suite: Suite, comparison: Comparison, inflation: LogRatio | None) -> Finding:
        assert spec.stage is not None, "a load check has a stage: the suite was validated"
        check, alpha = spec.check, suite.gate.alpha
        measure = spec.measure if inflation is None else replace(spec.measure, inflation=inflation.by_block)
        if check.margin is None:
            return timing_against_bound(comparison, measure, spec.stage, slo=bound_of(spec).value, alpha=alpha)
        terms = Terms(check.margin, check.block_when == "breach", check.direction == "either", check.least_change)
        if not comparison.apart:
            return timing_against_baseline(comparison, spec.stage, measure, terms, alpha=alpha)
        found = timing_between_runs(comparison, spec.stage, measure, terms, alpha=alpha)
        return held_to_noise_profile(found, suite, comparison)
