"""The arithmetic behind a check, step by step and with the numbers put in, so that a reader can do it again.

Numbers have eight digits: enough for a pocket calculator to come to the same limits. A step whose formula is empty was
observed. `t(p, f)` is the p-quantile of Student's t with f degrees of freedom, `T(f)` a value drawn from it.

The arithmetic of comparisons of items, step by step: eval items, and answers to recorded prompts.

The arithmetic of comparisons of load, step by step: log ratios of blocks, shares of requests, quantiles and SLOs.

The arithmetic of two runs without a live baseline, step by step.

How the harm of several promotions adds up, step by step.

The last steps of a check: the correction for many checks, the rule that applied, and the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.gate.checks.margin import Allowance, Terms
from benchgate.gate.decision import Finding, slo_share, too_soon
from benchgate.gate.evidence.blocks import BlockPairs, Measure
from benchgate.gate.evidence.shares import Counts
from benchgate.model.history import PastRun
from benchgate.model.records import FloatArray
from benchgate.model.verdict import ArithmeticStep, Outcome, Scale
from benchgate.stats.clusters import cluster_mean, pool_means
from benchgate.stats.distributions import Limits, binom_sf, norm_ppf, t_ppf, t_sf
from benchgate.stats.evals import ScorePairs
from benchgate.stats.means import MeanTest, VarianceComponent, combined_t
from benchgate.stats.meta import ChainLink, ChainSum
from benchgate.stats.overdispersed import effective_sample_size, miss_share_limits
from benchgate.stats.proportions import mcnemar_p, newcombe_difference, poisson_rates_p, tango_limits, wilson
from benchgate.stats.quantiles import limit_ranks

_SHOWN_VALUES = 200


def number(value: float) -> str:
    """Eight significant digits."""
    return f"{value:.8g}"


def listed(values: Sequence[float] | FloatArray) -> str:
    """All of them, up to a length at which nobody adds them up by hand."""
    shown = ", ".join(number(float(value)) for value in values[:_SHOWN_VALUES])
    more = len(values) - _SHOWN_VALUES
    return f"{shown}, and {more} more" if more > 0 else shown


def observed(what: str, values: Sequence[float] | FloatArray) -> ArithmeticStep:
    """Numbers as they were measured."""
    return ArithmeticStep(what, "", listed(values))


def count(what: str, value: int, formula: str = "") -> ArithmeticStep:
    """A number of things."""
    return ArithmeticStep(what, formula, str(value))


def made(what: str, formula: str, value: float) -> ArithmeticStep:
    """What a formula comes to."""
    return ArithmeticStep(what, formula, number(value))


def limits_steps(limits: Limits, how: tuple[str, str]) -> tuple[ArithmeticStep, ArithmeticStep]:
    """Both one-sided limits, with the formula of each."""
    return made("lower limit", how[0], limits.lower), made("upper limit", how[1], limits.upper)


def mean_steps(
    values: FloatArray, what: str, alpha: float, *, margin: float = 0.0, two_sided: bool = False
) -> tuple[ArithmeticStep, ...]:
    """Student's t over differences, from their list to limits and p-value. Nothing below two of them.

    Without any spread t is not defined: the limits are the mean, and the p-value is that of signs. `two_sided`: both
    p-values, of which the smaller one counts.
    """
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return ()
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    error, quantile = sd / math.sqrt(n), t_ppf(1 - alpha, n - 1)
    reach = quantile * error
    return (
        observed(what, values),
        made("their mean", f"sum of them / {n}", mean),
        made("their standard deviation", f"sqrt(sum of (each - {number(mean)})^2 / ({n} - 1))", sd),
        made("standard error of the mean", f"{number(sd)} / sqrt({n})", error),
        made("t quantile", f"t({number(1 - alpha)}, {n - 1})", quantile),
        made("lower limit", f"{number(mean)} - {number(quantile)} * {number(error)}", mean - reach),
        made("upper limit", f"{number(mean)} + {number(quantile)} * {number(error)}", mean + reach),
        *(_tails(mean, margin, error, n - 1, two_sided=two_sided) if error > 0 else ()),
    )


def _tails(mean: float, margin: float, error: float, freedom: float, *, two_sided: bool) -> tuple[ArithmeticStep, ...]:
    """Statistic and p-value of a mean beyond the margin; of either sign where both count."""
    if not two_sided:
        return _tail(mean, margin, error, freedom, "")
    likelier = min(t_sf((sign * mean - margin) / error, freedom) for sign in (1, -1))
    return (
        *_tail(mean, margin, error, freedom, " of a positive change"),
        *_tail(-mean, margin, error, freedom, " of a negative change"),
        made("p-value of the likelier one", "the smaller of both", likelier),
    )


def _tail(mean: float, margin: float, error: float, freedom: float, of: str) -> tuple[ArithmeticStep, ArithmeticStep]:
    ratio = (mean - margin) / error
    return (
        made(f"t statistic{of}", f"({number(mean)} - {number(margin)}) / {number(error)}", ratio),
        made(f"p-value{of}", f"P(T({number(freedom)}) > {number(ratio)})", t_sf(ratio, freedom)),
    )


def welch_steps(
    reference: FloatArray, judged: FloatArray, alpha: float, *, margin: float = 0.0, two_sided: bool = False
) -> tuple[ArithmeticStep, ...]:
    """Welch's t for the difference of two means, from both lists to limits and statistic; `two_sided` as above."""
    if min(len(reference), len(judged)) < 2 or not (np.isfinite(reference).all() and np.isfinite(judged).all()):
        return ()
    n, m = len(reference), len(judged)
    means = float(np.mean(reference)), float(np.mean(judged))
    variances = float(np.var(reference, ddof=1)), float(np.var(judged, ddof=1))
    parts, difference = (variances[0] / n, variances[1] / m), means[1] - means[0]
    error = math.sqrt(sum(parts))
    known = (
        observed("ln ratios of the reference run, one per block", reference),
        observed("ln ratios of the judged run, one per block", judged),
        made("mean of the reference run", f"sum of them / {n}", means[0]),
        made("mean of the judged run", f"sum of them / {m}", means[1]),
        made("harm: their difference", f"{number(means[1])} - {number(means[0])}", difference),
        made("variance of the reference run", "of its list", variances[0]),
        made("variance of the judged run", "of its list", variances[1]),
        made("standard error", f"sqrt({number(variances[0])} / {n} + {number(variances[1])} / {m})", error),
    )
    if error == 0:
        return known
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
    quantile = t_ppf(1 - alpha, freedom)
    shown = [number(part) for part in parts]
    how = f"({shown[0]} + {shown[1]})^2 / ({shown[0]}^2 / {n - 1} + {shown[1]}^2 / {m - 1})"
    ends = tuple(f"{number(difference)} {sign} {number(quantile)} * {number(error)}" for sign in "-+")
    return (
        *known,
        made("degrees of freedom (Welch)", how, freedom),
        made("t quantile", f"t({number(1 - alpha)}, {number(freedom)})", quantile),
        *limits_steps(Limits(difference - quantile * error, difference + quantile * error), (ends[0], ends[1])),
        *_tails(difference, margin, error, freedom, two_sided=two_sided),
    )


def score_steps(b: int, c: int, n: int, alpha: float) -> tuple[ArithmeticStep, ...]:
    """Tango's limits: where the score statistic of the paired difference is z and -z; and exact McNemar."""
    z, limits = norm_ppf(1 - alpha), tango_limits(b, c, n, alpha)
    statistic = "q(x) = (sqrt(B^2 - 8n*C) - B) / (4n), B = (2n - b + c)*x - b - c, C = -c*x*(1 - x)"
    at = f"the x at which (b - c - n*x) / sqrt(n * (2*q(x) + x*(1 - x))) = {{}}, {statistic}"
    return (
        count("b: items that only the baseline got right", b),
        count("c: items that only the candidate got right", c),
        count("n: items", n),
        made("discordance", f"({b} + {c}) / {n}", (b + c) / n),
        made("harm", f"({b} - {c}) / {n}", (b - c) / n),
        made("z", f"the {number(1 - alpha)} quantile of the normal law", z),
        *limits_steps(limits, (at.format(number(z)), at.format(number(-z)))),
        made("p-value of no harm (exact McNemar)", f"P(X >= {b}), X ~ Bin({b + c}, 1/2)", mcnemar_p(b, c)),
    )


def answers_steps(tasks: Sequence[ScorePairs], alpha: float) -> tuple[ArithmeticStep, ...]:
    """Items that are right or wrong: each task's counts, and what they come to where it is one sample.

    Where items come in clusters, also the mean with its cluster-robust error; whichever claims less counts.
    """
    counts = [_counts(one) for one in tasks]
    steps: list[ArithmeticStep] = []
    if len({n for _, _, n, _, _ in counts}) == 1:
        b, c, n = (sum(one[at] for one in counts) for at in range(3))
        steps += [count("right answers of the baseline", sum(one[3] for one in counts))]
        steps += [count("right answers of the candidate", sum(one[4] for one in counts))]
        steps += score_steps(b, c, n, alpha)
    else:
        for at, (b, c, n, _, _) in enumerate(counts):
            steps.append(made(f"harm in task {at + 1}", f"({b} - {c}) / {n}", (b - c) / n))
        shares = [(b - c) / n for b, c, n, _, _ in counts]
        formula = f"({' + '.join(map(number, shares))}) / {len(shares)}"
        steps.append(made("harm: their mean, each task with equal weight", formula, sum(shares) / len(shares)))
    if any(one.clusters is not None for one in tasks):
        steps += _cluster_steps(tasks, alpha)
    return tuple(steps)


def scores_steps(task: ScorePairs, alpha: float) -> tuple[ArithmeticStep, ...]:
    """Scores by degrees: t over items, or over clusters where there are any."""
    gaps = task.baseline - task.candidate
    if task.clusters is None:
        return mean_steps(gaps, "baseline's score minus the candidate's, of each item", alpha)
    return tuple(_cluster_steps([task], alpha))


def _cluster_steps(tasks: Sequence[ScorePairs], alpha: float) -> list[ArithmeticStep]:
    means = [cluster_mean(one.baseline - one.candidate, one.clusters) for one in tasks]
    known = [mean for mean in means if mean is not None]
    steps = []
    for at, mean in enumerate(known):
        what = f"standard error of task {at + 1} over its clusters"
        formula = f"sqrt({mean.clusters} / {mean.clusters - 1} * sum over clusters of (sum of (d - mean))^2) / {mean.n}"
        steps.append(made(what, formula, mean.error))
    if len(known) < len(means):
        return steps
    pool = pool_means(known)
    quantile, limits = t_ppf(1 - alpha, pool.freedom), pool.limits(alpha)
    steps.append(made("t quantile", f"t({number(1 - alpha)}, {number(pool.freedom)})", quantile))
    ends = [f"{number(pool.mean)} {sign} {number(quantile)} * {number(pool.error)}" for sign in "-+"]
    return [*steps, *limits_steps(Limits(limits.lower, limits.upper), (ends[0], ends[1]))]


def excess_steps(
    x: FloatArray, y: FloatArray, limits: Limits, alpha: float, *, by_score: bool
) -> tuple[ArithmeticStep, ...]:
    """How much oftener the candidate differs from the baseline than the baseline from itself.

    `by_score`: the limits are those of the score statistic over prompts of which each was asked of all three.
    """
    theirs, ours, n = float(np.mean(y)), float(np.mean(x)), len(x)
    steps = (
        count("prompts", n),
        made("x: how much the candidate differs, 1 or 1/2 a prompt", f"{number(float(np.sum(x)))} / {n}", ours),
        made("y: how much the baseline differs from itself", f"{number(float(np.sum(y)))} / {len(y)}", theirs),
        made("harm", f"{number(ours)} - {number(theirs)}", ours - theirs),
    )
    if not by_score:
        return steps
    z, gap = norm_ppf(1 - alpha), x - y
    b, c = int(np.count_nonzero(gap == 1)), int(np.count_nonzero(gap == -0.5))
    statistic = "w(d) = (sqrt(B^2 - 3n*C) - B) / (1.5n), B = 1.5*d*(n - b) - (b + c)*(1 - d)/2, C = -c*d*(1 - d)"
    at = f"the d at which (b - c/2 - n*d) / sqrt(n * (0.75*w(d) + d*(1 - d))) = {{}}, {statistic}"
    return (
        *steps,
        count("b: prompts with x - y = 1", b),
        count("c: prompts with x - y = -1/2", c),
        *limits_steps(limits, (at.format(number(z)), at.format(number(-z)))),
        made("p-value of no harm (exact)", f"P(X >= {b}), X ~ Bin({b + c}, 1/3)", binom_sf(b - 1, b + c, 1 / 3)),
    )


def _counts(one: ScorePairs) -> tuple[int, int, int, int, int]:
    """b, c, n, and how many items each arm got right."""
    right, ours = one.baseline == 1, one.candidate == 1
    return int(np.sum(right & ~ours)), int(np.sum(ours & ~right)), len(right), int(np.sum(right)), int(np.sum(ours))


def log_ratio_steps(
    judged: BlockPairs,
    reference: BlockPairs | None,
    measure: Measure,
    allowed: Allowance,
    terms: Terms,
    limits: Limits,
    alpha: float,
) -> tuple[ArithmeticStep, ...]:
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
) -> tuple[ArithmeticStep, ...]:
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
    mine, other = (miss_share_limits(side.kept, side.totals, alpha) for side in (ours, theirs))
    assert mine is not None and other is not None, "the widest of three limits is there only with these"
    bursty = Limits(
        harm - math.hypot(ours.share - mine.lower, other.upper - theirs.share),
        harm + math.hypot(mine.upper - ours.share, theirs.share - other.lower),
    )
    worth = (effective_sample_size(side.kept, side.totals, alpha) for side in (ours, theirs))
    told = " and ".join(number(one or 0.0) for one in worth)
    steps += _combined(f"3. over the effective numbers of requests, n* = {told}", ours, theirs, [mine, other], bursty)
    failed = ours.missed + theirs.missed
    law = f"Bin({failed}, {ours.scheduled} / {ours.scheduled + theirs.scheduled})"
    exact = poisson_rates_p(ours.missed, ours.scheduled, theirs.missed, theirs.scheduled)
    steps.append(made("p-value of misses falling so by chance", f"P(X >= {ours.missed}), X ~ {law}", exact))
    steps.append(_widest("the widest of the three limits on each side; the larger p-value", limits, p_value))
    return tuple(steps)


def _widest(how: str, limits: Limits, p_value: float) -> ArithmeticStep:
    """What of several ways counts."""
    return ArithmeticStep(
        "limits and p-value", how, f"{number(limits.lower)} to {number(limits.upper)}; p {number(p_value)}"
    )


def _side_steps(name: str, side: Counts, alpha: float) -> list[ArithmeticStep]:
    steps = [
        ArithmeticStep(
            f"{name}: misses of requests, in each block", "", ", ".join(map("{}/{}".format, side.misses, side.totals))
        ),
        made(f"{name}: share of misses", f"{side.missed} / {side.scheduled}", side.share),
    ]
    effective, n, blocks = effective_sample_size(side.kept, side.totals, alpha), side.scheduled, len(side.totals)
    what = f"{name}: effective number of requests, n* (Korn and Graubard)"
    if effective is not None and 0 < side.missed < n:
        quantiles = f"(t({number(1 - alpha)}, {n - 1}) / t({number(1 - alpha)}, {blocks - 1}))^2"
        spread = f"{blocks} / {blocks - 1} * sum over blocks of (misses - share * requests)^2"
        design = f"the design effect {spread} / ({n} * share * (1 - share))"
        steps.append(made(what, f"{n} / max(1, {design}) * {quantiles}, at most {n}", effective))
    elif effective is not None:
        steps.append(made(what, f"all of them: {'none' if side.missed == 0 else 'each'} missed", effective))
    return steps


def _combined(what: str, ours: Counts, theirs: Counts, sides: list[Limits], found: Limits) -> list[ArithmeticStep]:
    """Each side's distance to its own limit, as a root sum of squares."""
    p, q = number(ours.share), number(theirs.share)
    shown = [f"{number(one.lower)} to {number(one.upper)}" for one in sides]
    lower = f"{p} - {q} - sqrt(({p} - {number(sides[0].lower)})^2 + ({number(sides[1].upper)} - {q})^2)"
    upper = f"{p} - {q} + sqrt(({number(sides[0].upper)} - {p})^2 + ({q} - {number(sides[1].lower)})^2)"
    limits = limits_steps(found, (lower, upper))
    return [ArithmeticStep(what, "limits of the candidate's share, and of the baseline's", "; ".join(shown)), *limits]


def own_share_steps(counts: Counts, limits: Limits, alpha: float) -> tuple[ArithmeticStep, ...]:
    """One arm's counts and the exact limits of the share that missed, on the effective number of requests."""
    effective = effective_sample_size(counts.kept, counts.totals, alpha)
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
    pooled: PooledQuantile, slo: float, alpha: float, per_block: FloatArray, test: MeanTest | None
) -> tuple[ArithmeticStep, ...]:
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
    wider = _widest("the wider limit on each side; the larger p-value", widest, max(p_value, test.p_value))
    return (*steps, observed("its value in each block", per_block), *blocks, *shown, wider)


def rate_steps(
    per_block: FloatArray, slo: float, value: float, limits: Limits, alpha: float
) -> tuple[ArithmeticStep, ...]:
    """A rate held to a least one: minus its logarithm, so that positive is harm."""
    return (
        observed("the rate in each block", per_block),
        *mean_steps(-np.log(per_block), "-ln of the rate in each block", alpha, margin=-math.log(slo)),
        made("the rate", "exp(-(mean))", value),
        *limits_steps(limits, ("exp(-(upper limit))", "exp(-(lower limit))")),
    )


def cost_steps(
    per_block: FloatArray, most: float, value: float, limits: Limits, alpha: float
) -> tuple[ArithmeticStep, ...]:
    """A cost held to a highest one, by its logarithm."""
    return (
        observed("$ per million tokens in each block", per_block),
        *mean_steps(np.log(per_block), "ln of the cost in each block", alpha, margin=math.log(most)),
        made("the cost", "exp(mean)", value),
        *limits_steps(limits, ("exp(lower limit)", "exp(upper limit)")),
    )


_OWN = ("variance of the stored run's mean", "variance of the judged run's mean")
_BETWEEN = "variance between runs, by the noise profile"


def apart_steps(
    what: str, theirs: FloatArray, ours: FloatArray, parts: Sequence[VarianceComponent], alpha: float, *, margin: float
) -> tuple[ArithmeticStep, ...]:
    """From both runs' blocks, turned so that more is worse, to limits and p-value; nothing without any variance.

    The first two `parts` are each run's own, the others lie between runs.
    """
    harm = float(ours.mean() - theirs.mean())
    found = combined_t(harm, parts, alpha, margin=margin)
    if found is None:
        return ()
    names = [*_OWN, *[_BETWEEN] * (len(parts) - len(_OWN))]
    shown = [number(part.variance) for part in parts]
    total = " + ".join(shown)
    weighed = " + ".join(f"{one}^2 / {part.freedom:g}" for one, part in zip(shown, parts, strict=True))
    quantile = t_ppf(1 - alpha, found.freedom)
    ends = [f"{number(harm)} {sign} {number(quantile)} * {number(found.error)}" for sign in "-+"]
    return (
        observed(f"stored run: {what} of each block", theirs),
        observed(f"judged run: {what} of each block", ours),
        made("harm: their means' difference", f"{number(float(ours.mean()))} - {number(float(theirs.mean()))}", harm),
        *(
            made(name, f"{part.freedom:g} degrees of freedom", part.variance)
            for name, part in zip(names, parts, strict=True)
        ),
        made("standard error", f"sqrt({total})", found.error),
        made("degrees of freedom (Satterthwaite)", f"({total})^2 / ({weighed})", found.freedom),
        made("t quantile", f"t({number(1 - alpha)}, {number(found.freedom)})", quantile),
        *limits_steps(found.limits, (ends[0], ends[1])),
        made(
            "p-value",
            f"P(T({number(found.freedom)}) > ({number(harm)} - {margin:g}) / {number(found.error)})",
            found.p_value,
        ),
    )


def creep_steps(
    links: Sequence[ChainLink], since: Sequence[PastRun], total: ChainSum, alpha: float
) -> tuple[ArithmeticStep, ...]:
    """Every link of a chain of promotions with its standard errors, and what they come to."""
    steps = []
    for k, link in enumerate(links):
        quantile = t_ppf(1 - link.alpha, link.n - 1)
        down, up = (link.harm - link.limits.lower) / quantile, (link.limits.upper - link.harm) / quantile
        where = "this run" if k == 0 else f"run {since[k - 1].told}"
        formula = f"limits {number(link.limits.lower)} and {number(link.limits.upper)}, n = {link.n}, "
        formula += f"t({number(1 - link.alpha)}, {link.n - 1}) = {number(quantile)}: "
        formula += f"standard errors {number(down)} down and {number(up)} up"
        steps.append(made(f"harm in {where}", formula, link.harm))
    harms = " + ".join(number(link.harm) for link in links)
    ends = ("down", total.errors[0], total.limits.lower), ("up", total.errors[1], total.limits.upper)
    squares = "root of the sum of the squares of the standard errors"
    return (
        *steps,
        made("harm of all of them", harms, total.harm),
        *(made(f"standard error {name}", squares, error) for name, error, _ in ends),
        *limits_steps(total.limits, (_of_sum(total.harm, ends[0], "-"), _of_sum(total.harm, ends[1], "+"))),
        made("alpha of the limits", "", alpha),
    )


def _of_sum(harm: float, end: tuple[str, float, float], sign: str) -> str:
    """The limit of a sum, with the quantile that its degrees of freedom give."""
    quantile = abs(end[2] - harm) / end[1] if end[1] > 0 else 0.0
    return f"{number(harm)} {sign} {number(quantile)} * {number(end[1])} (t, degrees of freedom by Satterthwaite)"


def decision_steps(
    finding: Finding,
    outcome: Outcome,
    p_values: Sequence[float],
    p_holm: float | None,
    alpha: float,
    *,
    ids: Sequence[str] = (),
) -> tuple[ArithmeticStep, ...]:
    """From limits, margin and p-value to the outcome. `p_values` are those of all checks that share the error alpha.

    `ids` are those checks' own, in the same order; without them no other check is named.
    With a problem (a guard, say, that spoilt them) the numbers end at those that the verdict shows, and decide nothing.
    """
    if finding.problem is not None:
        formula = f"no numbers decide: {finding.problem.reason}"
        numbers = (*finding.steps, *_numbers(finding, p_values, p_holm, ids)) if finding.steps else ()
        return (*numbers, ArithmeticStep("outcome", formula, outcome.value))
    steps = tuple(finding.steps) or tuple(_plain(finding))
    numbers = _numbers(finding, p_values, p_holm, ids)
    if not numbers:
        return (*steps, ArithmeticStep("outcome", "a value that is missing is never good", outcome.value))
    assert p_holm is not None, "there is no last number without it"
    return (*steps, *numbers, ArithmeticStep("outcome", _rule(finding, outcome, p_holm, alpha), outcome.value))


def _numbers(
    finding: Finding, p_values: Sequence[float], p_holm: float | None, ids: Sequence[str]
) -> tuple[ArithmeticStep, ...]:
    """What the rule is applied to, as the verdict shows it; nothing where one of these is missing."""
    if finding.limits is None or finding.harm is None or finding.p_value is None or p_holm is None:
        return ()
    return (
        made(
            "harm that is judged" if finding.scale is not Scale.ABSOLUTE else "value that is judged", "", finding.harm
        ),
        made("its lower limit", "", finding.limits.lower),
        made("its upper limit", "", finding.limits.upper),
        *_bound(finding),
        made("p-value", _doubled(finding.p_value) if finding.two_sided else "", finding.p_value),
        made("p-value among all checks (Holm)", _holm(finding.p_value, p_values, ids), p_holm),
    )


def _plain(finding: Finding) -> list[ArithmeticStep]:
    """What every check has, where its own way has no steps."""
    steps = [ArithmeticStep("method", "", finding.method), ArithmeticStep(finding.n_unit, "", str(finding.n))]
    for what, value in (("baseline", finding.baseline), ("candidate", finding.candidate)):
        steps += [made(what, "", value)] if value is not None else []
    return steps


def _bound(finding: Finding) -> list[ArithmeticStep]:
    """What the limits are held against, where its own way has not told it."""
    if any(step.what.startswith("margin") for step in finding.steps):
        return []
    return [made("bound" if finding.scale is Scale.ABSOLUTE else "margin", "", finding.margin)]


def _doubled(p_value: float) -> str:
    """A change either way has two chances to look like one."""
    return f"2 * {number(p_value / 2)}" if p_value < 1 else "2 * that of the likelier one, at most 1"


def _holm(p_value: float, p_values: Sequence[float], ids: Sequence[str]) -> str:
    """The product that is largest among this p-value and the smaller ones: that is its p-value after Holm.

    With ids, all of them by size, so that a reader sees whose p-value decides.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    ordered = [p_values[place] for place in order]
    last, m = max(at for at, other in enumerate(ordered) if other == p_value), len(ordered)
    products = [(min(1.0, (m - at) * ordered[at]), at) for at in range(last + 1)]
    at = max(products, key=lambda one: one[0])[1]
    largest = f"{m - at} * {number(ordered[at])}"
    told = f"number {last + 1} of {m} by size: the largest of (m - j + 1) * p(j) up to it, at most 1: {largest}"
    if not ids:
        return told
    by_size = "; ".join(f"p({j + 1}) {number(ordered[j])} {ids[place]}" for j, place in enumerate(order))
    return f"{told}, of {ids[order[at]]}; by size: {by_size}"


def _rule(finding: Finding, outcome: Outcome, p_holm: float, alpha: float) -> str:
    assert finding.limits is not None and finding.harm is not None, "only what has limits is judged by them"
    inside = outcome in (Outcome.PASS, Outcome.WARN)
    if finding.scale is not Scale.ABSOLUTE:
        sign = "<" if inside else ">="
        edge = finding.limits.upper
        if finding.two_sided:
            edge = max(edge, -finding.limits.lower)
        parts = [f"{number(edge)} {sign} margin {number(finding.margin)}"]
    elif finding.lower_is_worse:
        parts = [f"lower limit {number(finding.limits.lower)} {'>=' if inside else '<'} {number(finding.margin)}"]
    else:
        parts = [f"upper limit {number(finding.limits.upper)} {'<=' if inside else '>'} {number(finding.margin)}"]
    if finding.scale is not Scale.ABSOLUTE or not inside:
        parts.append(f"p {number(p_holm)} {'<=' if p_holm <= alpha else '>'} {number(alpha)}")
    if not inside and too_soon(finding):
        parts.append(f"harm {number(finding.harm)} < margin, which blocks at the last look only")
    if finding.warning is not None and inside:
        parts.append(finding.warning)
    elif outcome is Outcome.WARN and finding.scale is Scale.ABSOLUTE:
        parts.append(f"{number(slo_share(finding))} of what is allowed is used")
    return ", and ".join(parts)
