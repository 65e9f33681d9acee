"""The arithmetic behind a check, step by step and with the numbers put in, so that a reader can do it again.

Numbers have eight digits: enough for a pocket calculator to come to the same limits. A step whose formula is empty was
observed. `t(p, f)` is the p-quantile of Student's t with f degrees of freedom, `T(f)` a value drawn from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.model.verdict import Step
from benchgate.stats.distributions import t_ppf, t_sf
from benchgate.stats.limits import Limits

_SHOWN_VALUES = 200


def number(value: float) -> str:
    """Eight significant digits."""
    return f"{value:.8g}"


def listed(values: Sequence[float] | FloatArray) -> str:
    """All of them, up to a length at which nobody adds them up by hand."""
    shown = ", ".join(number(float(value)) for value in values[:_SHOWN_VALUES])
    more = len(values) - _SHOWN_VALUES
    return f"{shown}, and {more} more" if more > 0 else shown


def observed(what: str, values: Sequence[float] | FloatArray) -> Step:
    """Numbers as they were measured."""
    return Step(what, "", listed(values))


def count(what: str, value: int, formula: str = "") -> Step:
    """A number of things."""
    return Step(what, formula, str(value))


def made(what: str, formula: str, value: float) -> Step:
    """What a formula comes to."""
    return Step(what, formula, number(value))


def limits_steps(limits: Limits, how: tuple[str, str]) -> tuple[Step, Step]:
    """Both one-sided limits, with the formula of each."""
    return made("lower limit", how[0], limits.lower), made("upper limit", how[1], limits.upper)


def mean_steps(
    values: FloatArray, what: str, alpha: float, *, margin: float = 0.0, two_sided: bool = False
) -> tuple[Step, ...]:
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


def _tails(mean: float, margin: float, error: float, freedom: float, *, two_sided: bool) -> tuple[Step, ...]:
    """Statistic and p-value of a mean beyond the margin; of either sign where both count."""
    if not two_sided:
        return _tail(mean, margin, error, freedom, "")
    likelier = min(t_sf((sign * mean - margin) / error, freedom) for sign in (1, -1))
    return (
        *_tail(mean, margin, error, freedom, " of a positive change"),
        *_tail(-mean, margin, error, freedom, " of a negative change"),
        made("p-value of the likelier one", "the smaller of both", likelier),
    )


def _tail(mean: float, margin: float, error: float, freedom: float, of: str) -> tuple[Step, Step]:
    ratio = (mean - margin) / error
    return (
        made(f"t statistic{of}", f"({number(mean)} - {number(margin)}) / {number(error)}", ratio),
        made(f"p-value{of}", f"P(T({number(freedom)}) > {number(ratio)})", t_sf(ratio, freedom)),
    )


def welch_steps(
    reference: FloatArray, judged: FloatArray, alpha: float, *, margin: float = 0.0, two_sided: bool = False
) -> tuple[Step, ...]:
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
