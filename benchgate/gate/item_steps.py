"""The arithmetic of comparisons of items, step by step: eval items, and answers to recorded prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchgate.gate.steps import count, limits_steps, made, mean_steps, number
from benchgate.model.records import FloatArray
from benchgate.model.verdict import Step
from benchgate.stats.clusters import cluster_mean, pooled
from benchgate.stats.distributions import binom_sf, norm_ppf, t_ppf
from benchgate.stats.limits import Limits
from benchgate.stats.proportions import mcnemar_harm_p, tango_limits
from benchgate.stats.recovery import ScorePairs


def score_steps(b: int, c: int, n: int, alpha: float) -> tuple[Step, ...]:
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
        made("p-value of no harm (exact McNemar)", f"P(X >= {b}), X ~ Bin({b + c}, 1/2)", mcnemar_harm_p(b, c)),
    )


def answers_steps(tasks: Sequence[ScorePairs], alpha: float) -> tuple[Step, ...]:
    """Items that are right or wrong: each task's counts, and what they come to where it is one sample.

    Where items come in clusters, also the mean with its cluster-robust error; whichever claims less counts.
    """
    counts = [_counts(one) for one in tasks]
    steps: list[Step] = []
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


def scores_steps(task: ScorePairs, alpha: float) -> tuple[Step, ...]:
    """Scores by degrees: t over items, or over clusters where there are any."""
    gaps = task.baseline - task.candidate
    if task.clusters is None:
        return mean_steps(gaps, "baseline's score minus the candidate's, of each item", alpha)
    return tuple(_cluster_steps([task], alpha))


def _cluster_steps(tasks: Sequence[ScorePairs], alpha: float) -> list[Step]:
    means = [cluster_mean(one.baseline - one.candidate, one.clusters) for one in tasks]
    known = [mean for mean in means if mean is not None]
    steps = []
    for at, mean in enumerate(known):
        what = f"standard error of task {at + 1} over its clusters"
        formula = f"sqrt({mean.clusters} / {mean.clusters - 1} * sum over clusters of (sum of (d - mean))^2) / {mean.n}"
        steps.append(made(what, formula, mean.error))
    if len(known) < len(means):
        return steps
    pool = pooled(known)
    quantile, limits = t_ppf(1 - alpha, pool.freedom), pool.limits(alpha)
    steps.append(made("t quantile", f"t({number(1 - alpha)}, {number(pool.freedom)})", quantile))
    ends = [f"{number(pool.mean)} {sign} {number(quantile)} * {number(pool.error)}" for sign in "-+"]
    return [*steps, *limits_steps(Limits(limits.lower, limits.upper), (ends[0], ends[1]))]


def excess_steps(x: FloatArray, y: FloatArray, limits: Limits, alpha: float, *, by_score: bool) -> tuple[Step, ...]:
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
