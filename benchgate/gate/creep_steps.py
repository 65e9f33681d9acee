"""How the harm of several promotions adds up, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.steps import limits_steps, made, number
from benchgate.model.history import PastRun
from benchgate.model.verdict import Step
from benchgate.stats.creep import Link, Summed
from benchgate.stats.distributions import t_ppf


def creep_steps(links: Sequence[Link], since: Sequence[PastRun], total: Summed, alpha: float) -> tuple[Step, ...]:
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
