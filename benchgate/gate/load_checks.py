"""Latency, throughput, cost and length of answers against the baseline: paired log ratios over interleaved blocks.

One number per block and arm (a quantile, a rate, a mean over paired requests), because requests inside a block are not
independent. Blocks are: the same prompts on the same schedule, in A B B A order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.allowance import Allowance, Terms, allowance, log_margin
from benchgate.gate.block_pairs import Measure, block_pairs
from benchgate.gate.block_values import EACH_UNITS, VALUE_UNITS, too_few
from benchgate.gate.comparison import Comparison, paired_load
from benchgate.gate.load_steps import log_ratio_steps
from benchgate.gate.priced_between import repriced_between
from benchgate.gate.rule import Finding, Problem
from benchgate.model import metrics
from benchgate.model.records import FloatArray
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.paired import Paired, paired_t, sign_p, two_sample_t

_LENGTH_BAND = (0.9, 1.1)  # outside it tokens/s compares different work


def relative(comparison: Comparison, stage: str, measure: Measure, terms: Terms, *, alpha: float) -> Finding:
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

    def test(shift: FloatArray | float, margin: float, sign: int) -> Paired | None:
        if reference is None:
            return paired_t(sign * judged - shift, alpha, margin=margin)
        return two_sample_t(sign * reference + shift, sign * judged, alpha, margin=margin)

    return tested(test, allowed, terms)


Test = Callable[["FloatArray | float", float, int], "Paired | None"]
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
        p_value = min(one.p_harm for one in known)
        return Tested(plain.mean, plain.limits, min(1.0, len(known) * p_value))
    inside, beyond = known[1:]
    limits = Limits(allowed.least + beyond.limits.lower, allowed.margin + inside.limits.upper)
    warning = allowed.beyond if plain.limits.lower > allowed.plain else None
    return Tested(plain.mean, limits, inside.p_harm if terms.breach else beyond.p_harm, warning)


def _unbounded(finding: Finding, ratios: FloatArray) -> Finding:
    """So many of the candidate's requests failed that a value is infinite: only signs can be tested."""
    p_value = sign_p(ratios - (finding.margin if finding.breach else finding.least))
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
        both = metrics.succeeded(pair[0].requests) & metrics.succeeded(pair[1].requests)
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
    if measure.is_latency:
        return Unit.SECONDS
    unit = VALUE_UNITS.get(measure.metric, Unit.TOKENS)
    return EACH_UNITS[unit] if measure.each else unit


def _method(comparison: Comparison, measure: Measure) -> str:
    if comparison.stored:
        return "Welch t between two runs' log ratios, each over its own live baseline"
    of = ", each the mean over its paired requests" if measure.by_request and measure.is_latency else ""
    return f"paired t over interleaved blocks of the log ratio{of}"
