"""The arithmetic of comparisons of load, step by step: log ratios of blocks, shares of requests, quantiles and SLOs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchgate.gate.allowance import Allowance, Terms
from benchgate.gate.block_pairs import BlockPairs, Measure
from benchgate.gate.shares import Counts
from benchgate.gate.steps import count, limits_steps, made, mean_steps, number, observed, welch_steps
from benchgate.model.records import FloatArray
from benchgate.model.verdict import Step
from benchgate.stats.attainment import attainment_limits, effective_requests
from benchgate.stats.distributions import binom_sf
from benchgate.stats.limits import Limits
from benchgate.stats.paired import Paired
from benchgate.stats.proportions import newcombe_difference, relative_errors_p, wilson
from benchgate.stats.quantiles import limit_ranks


def log_ratio_steps(
    judged: BlockPairs,
    reference: BlockPairs | None,
    measure: Measure,
    allowed: Allowance,
    terms: Terms,
    limits: Limits,
    alpha: float,
) -> tuple[Step, ...]:
    """From each block's two values to the `limits` of their mean log ratio, and the margin on that scale."""
    ratio = "ln(baseline / candidate)" if measure.rises else "ln(candidate / baseline)"
    tested, both = allowed.margin if terms.breach else 0.0, terms.two_sided
    margin = ("-ln(1 - {})" if measure.rises and not both else "ln(1 + {})").format(number(terms.margin))
    own_margin = made("margin, either way" if both else "margin", margin, allowed.margin)
    each = "block" if judged.together == 1 else f"group of at least {judged.together} blocks"
    seen = (
        observed(f"baseline, one value for each {each}", judged.baseline),
        observed(f"candidate, one value for each {each}", judged.candidate),
    )
    if reference is not None:
        return (*seen, *welch_steps(reference.harm, judged.harm, alpha, margin=tested, two_sided=both), own_margin)
    harms = mean_steps(judged.harm, f"harm in each {each}, {ratio}", alpha, margin=tested, two_sided=both)
    if terms.least_change is None:
        return (*seen, *harms, own_margin)
    return (
        *seen,
        *harms,
        observed(f"no harm up to (`min_abs`), in each {each}", allowed.leasts),
        observed(f"allowed in each {each}, the larger of that and the margin", allowed.margins),
        made("margin: the mean of what is allowed", "", allowed.margin),
        *mean_steps(judged.harm - allowed.margins, "harm beyond what is allowed", alpha),
        made("upper limit of harm", f"{number(allowed.margin)} + that upper limit", limits.upper),
        *mean_steps(judged.harm - allowed.leasts, "harm beyond what is no harm", alpha),
        made("lower limit of harm", f"{number(allowed.least)} + that lower limit", limits.lower),
    )


def share_steps(
    ours: Counts, theirs: Counts, differences: FloatArray, limits: Limits, p_value: float, alpha: float
) -> tuple[Step, ...]:
    """Both arms' counts, and the three intervals of which the widest counts on each side: `limits`."""
    pooled = newcombe_difference(ours.missed, ours.scheduled, theirs.missed, theirs.scheduled, alpha)
    harm = ours.share - theirs.share
    formula = f"{number(ours.share)} - {number(theirs.share)}"
    steps = [
        *_side_steps("baseline", theirs, alpha),
        *_side_steps("candidate", ours, alpha),
        made("harm: the difference of both shares", formula, harm),
        *mean_steps(differences, "1. over blocks: the difference in each", alpha),
    ]
    ends = [wilson(side.missed, side.scheduled, alpha) for side in (ours, theirs)]
    steps += _combined("2. over requests (Newcombe, from Wilson's limits)", ours, theirs, ends, pooled)
    mine, other = (attainment_limits(side.kept, side.totals, alpha) for side in (ours, theirs))
    assert mine is not None and other is not None, "the widest of three limits is there only with these"
    bursty = Limits(
        harm - math.hypot(ours.share - mine.lower, other.upper - theirs.share),
        harm + math.hypot(mine.upper - ours.share, theirs.share - other.lower),
    )
    worth = (effective_requests(side.kept, side.totals, alpha) for side in (ours, theirs))
    told = " and ".join(number(one or 0.0) for one in worth)
    steps += _combined(f"3. over the effective numbers of requests, n* = {told}", ours, theirs, [mine, other], bursty)
    failed = ours.missed + theirs.missed
    law = f"Bin({failed}, {ours.scheduled} / {ours.scheduled + theirs.scheduled})"
    exact = relative_errors_p(ours.missed, ours.scheduled, theirs.missed, theirs.scheduled)
    steps.append(made("p-value of misses falling so by chance", f"P(X >= {ours.missed}), X ~ {law}", exact))
    steps.append(_widest("the widest of the three limits on each side; the larger p-value", limits, p_value))
    return tuple(steps)


def _widest(how: str, limits: Limits, p_value: float) -> Step:
    """What of several ways counts."""
    return Step("limits and p-value", how, f"{number(limits.lower)} to {number(limits.upper)}; p {number(p_value)}")


def _side_steps(name: str, side: Counts, alpha: float) -> list[Step]:
    steps = [
        Step(
            f"{name}: misses of requests, in each block", "", ", ".join(map("{}/{}".format, side.misses, side.totals))
        ),
        made(f"{name}: share of misses", f"{side.missed} / {side.scheduled}", side.share),
    ]
    effective, n, blocks = effective_requests(side.kept, side.totals, alpha), side.scheduled, len(side.totals)
    what = f"{name}: effective number of requests, n* (Korn and Graubard)"
    if effective is not None and 0 < side.missed < n:
        quantiles = f"(t({number(1 - alpha)}, {n - 1}) / t({number(1 - alpha)}, {blocks - 1}))^2"
        spread = f"{blocks} / {blocks - 1} * sum over blocks of (misses - share * requests)^2"
        design = f"the design effect {spread} / ({n} * share * (1 - share))"
        steps.append(made(what, f"{n} / max(1, {design}) * {quantiles}, at most {n}", effective))
    elif effective is not None:
        steps.append(made(what, f"all of them: {'none' if side.missed == 0 else 'each'} missed", effective))
    return steps


def _combined(what: str, ours: Counts, theirs: Counts, sides: list[Limits], found: Limits) -> list[Step]:
    """Each side's distance to its own limit, as a root sum of squares."""
    p, q = number(ours.share), number(theirs.share)
    shown = [f"{number(one.lower)} to {number(one.upper)}" for one in sides]
    lower = f"{p} - {q} - sqrt(({p} - {number(sides[0].lower)})^2 + ({number(sides[1].upper)} - {q})^2)"
    upper = f"{p} - {q} + sqrt(({number(sides[0].upper)} - {p})^2 + ({q} - {number(sides[1].lower)})^2)"
    limits = limits_steps(found, (lower, upper))
    return [Step(what, "limits of the candidate's share, and of the baseline's", "; ".join(shown)), *limits]


def own_share_steps(counts: Counts, limits: Limits, alpha: float) -> tuple[Step, ...]:
    """One arm's counts and the exact limits of the share that missed, on the effective number of requests."""
    effective = effective_requests(counts.kept, counts.totals, alpha)
    beta = f"Beta({{}}) with n* = {number(effective or 0.0)} requests of which n* * {number(counts.share)} missed"
    low = beta.format("missed, kept + 1") + f", its {number(alpha)} quantile"
    high = beta.format("missed + 1, kept") + f", its {number(1 - alpha)} quantile"
    return (*_side_steps("candidate", counts, alpha), *limits_steps(limits, (low, high)))


@dataclass(frozen=True, slots=True)
class PooledQuantile:
    """A quantile of `n` requests with its limits, and how many of them lie beyond the SLO."""

    q: float
    estimate: float
    limits: Limits
    n: int
    beyond: int


def quantile_steps(
    pooled: PooledQuantile, slo: float, alpha: float, per_block: FloatArray, test: Paired | None
) -> tuple[Step, ...]:
    """Which of the ordered requests is the quantile and which are its limits; and t-limits over blocks beside them.

    `test` is None where a block's value has no logarithm: then there is no upper limit.
    """
    n, q, above = pooled.n, pooled.q, pooled.beyond
    (low, high), rank = limit_ranks(n, q, alpha), max(math.ceil(n * q - 1e-9), 1)
    worst = f"P(Bin({n}, {number(q)}) <= {high - 1}) >= {number(1 - alpha)}"
    best = f"P(Bin({n}, {number(q)}) >= {low}) >= {number(1 - alpha)}"
    steps = (
        count("requests", n),
        made(f"p{q * 100:g}", f"request {rank} of {n} by size: {n} * {number(q)}, rounded up", pooled.estimate),
        made("lower limit over requests", f"request {low}, the last for which {best}", pooled.limits.lower),
        made("upper limit over requests", f"request {high}, the first for which {worst}", pooled.limits.upper),
        count("requests beyond the SLO", above),
        made("p-value over requests", f"P(X >= {above}), X ~ Bin({n}, 1 - {number(q)})", binom_sf(above - 1, n, 1 - q)),
    )
    if test is None:
        return (*steps, observed("its value in each block", per_block))
    blocks = mean_steps(np.log(per_block), "ln of its value in each block", alpha, margin=math.log(slo))
    found, p_value = test.limits, binom_sf(above - 1, n, 1 - q)
    over = Limits(math.exp(found.lower), math.exp(found.upper))
    shown = limits_steps(over, (f"exp({number(found.lower)})", f"exp({number(found.upper)})"))
    widest = Limits(min(pooled.limits.lower, over.lower), max(pooled.limits.upper, over.upper))
    wider = _widest("the wider limit on each side; the larger p-value", widest, max(p_value, test.p_harm))
    return (*steps, observed("its value in each block", per_block), *blocks, *shown, wider)


def rate_steps(per_block: FloatArray, slo: float, value: float, limits: Limits, alpha: float) -> tuple[Step, ...]:
    """A rate held to a least one: minus its logarithm, so that positive is harm."""
    return (
        observed("the rate in each block", per_block),
        *mean_steps(-np.log(per_block), "-ln of the rate in each block", alpha, margin=-math.log(slo)),
        made("the rate", "exp(-(mean))", value),
        *limits_steps(limits, ("exp(-(upper limit))", "exp(-(lower limit))")),
    )


def cost_steps(per_block: FloatArray, most: float, value: float, limits: Limits, alpha: float) -> tuple[Step, ...]:
    """A cost held to a highest one, by its logarithm."""
    return (
        observed("$ per million tokens in each block", per_block),
        *mean_steps(np.log(per_block), "ln of the cost in each block", alpha, margin=math.log(most)),
        made("the cost", "exp(mean)", value),
        *limits_steps(limits, ("exp(lower limit)", "exp(upper limit)")),
    )
