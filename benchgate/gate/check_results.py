"""An estimate and its outcome as one line of the verdict, with the last steps of its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.gate.decision import Estimate, too_soon, used_share_of_bound
from benchgate.gate.reasons import check_reason
from benchgate.model.verdict import CheckResult, Outcome, Scale
from benchgate.stats.trace import Trace, digits
from benchgate.suite.schema import Gate


@dataclass(frozen=True, slots=True)
class Line:
    """Identity of a line of the verdict: what is judged, and its title."""

    id: str
    title: str
    family: str
    metric: str
    required: bool
    statistic: str | None = None
    stage: str | None = None
    task: str | None = None
    over: str | None = None  # stage whose value the candidate's is compared with


def check_line(
    line: Line,
    estimate: Estimate,
    outcome: Outcome,
    p_holm: float | None,
    gate: Gate,
    *,
    advice: str | None,
    p_values: Sequence[float],
    ids: Sequence[str] = (),
) -> CheckResult:
    """Return the line with the estimate's numbers. `p_values` and `ids` are of all lines that share its error."""
    rule, limits = estimate.rule, estimate.limits
    return CheckResult(
        id=line.id,
        title=line.title,
        family=line.family,
        metric=line.metric,
        statistic=line.statistic,
        stage=line.stage,
        task=line.task,
        required=line.required,
        outcome=outcome,
        reason=check_reason(estimate, outcome, gate.warn_fraction, gate.alpha),
        advice=advice,
        unit=rule.unit,
        scale=rule.scale,
        baseline=estimate.baseline,
        candidate=estimate.candidate,
        harm=estimate.value,
        lower=limits.lower if limits else None,
        upper=limits.upper if limits else None,
        margin=estimate.margin,
        p_value=estimate.p_value,
        p_holm=p_holm,
        n=estimate.n,
        n_unit=estimate.n_unit,
        n_of=estimate.n_of,
        method=estimate.method,
        notes=tuple(estimate.notes),
        over=line.over,
        at_least=rule.lower_is_worse if rule.scale is Scale.ABSOLUTE else None,
        two_sided=rule.two_sided,
        steps=tuple(_trace(estimate, outcome, p_values, p_holm, gate.alpha, ids).steps),
        limits_alpha=estimate.look.alpha if estimate.look is not None else None,
    )


def _trace(
    estimate: Estimate,
    outcome: Outcome,
    p_values: Sequence[float],
    p_holm: float | None,
    alpha: float,
    ids: Sequence[str],
) -> Trace:
    """Return the arithmetic from the measured numbers to the outcome.

    With a problem (a guard that tripped, say) it ends at the numbers that the verdict shows, and they decide nothing.
    """
    rule, limits = estimate.rule, estimate.limits
    trace = Trace(list(estimate.trace.steps))
    if not trace.steps and estimate.problem is None:
        trace.text("method", "", estimate.method)
        trace.count(estimate.n_unit, estimate.n)
        for what, value in (("baseline", estimate.baseline), ("candidate", estimate.candidate)):
            if value is not None:
                trace.made(what, "", value)
    formula = "a value that is missing is never good"
    value, p_value = estimate.value, estimate.p_value
    complete = value is not None and limits is not None and p_value is not None and p_holm is not None
    if complete and (trace.steps or estimate.problem is None):
        assert value is not None and limits is not None and p_value is not None and p_holm is not None
        own_margin = any(step.what.startswith("margin") for step in trace.steps)
        absolute = rule.scale is Scale.ABSOLUTE
        trace.made("value that is judged" if absolute else "regression that is judged", "", value)
        trace.limits(limits, "", "", " that is judged")
        if not own_margin:
            trace.made("bound" if absolute else "margin", "", estimate.margin)
        doubled = f"2 * {digits(p_value / 2)}" if p_value < 1 else "2 * that of the likelier one, at most 1"
        trace.made("p-value", doubled if rule.two_sided else "", p_value)
        trace.made("p-value among all checks (Holm)", _holm_formula(p_value, p_values, ids), p_holm)
        formula = _rule_formula(estimate, outcome, p_holm, alpha)
    if estimate.problem is not None:
        formula = f"no numbers decide: {estimate.problem.reason}"
    trace.text("outcome", formula, outcome.value)
    return trace


def _holm_formula(p_value: float, p_values: Sequence[float], ids: Sequence[str]) -> str:
    """Return the product that is largest among this p-value and the smaller ones: its p-value after Holm.

    With ids, all p-values are listed by size, so that a reader sees whose decides.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    ordered = [p_values[place] for place in order]
    last, m = max(at for at, other in enumerate(ordered) if other == p_value), len(ordered)
    at = max(range(last + 1), key=lambda at: min(1.0, (m - at) * ordered[at]))
    largest = f"{m - at} * {digits(ordered[at])}"
    formula = f"number {last + 1} of {m} by size: the largest of (m - j + 1) * p(j) up to it, at most 1: {largest}"
    if not ids:
        return formula
    by_size = "; ".join(f"p({j + 1}) {digits(ordered[j])} {ids[place]}" for j, place in enumerate(order))
    return f"{formula}, of {ids[order[at]]}; by size: {by_size}"


def _rule_formula(estimate: Estimate, outcome: Outcome, p_holm: float, alpha: float) -> str:
    assert estimate.limits is not None and estimate.value is not None, "only what has limits is judged by them"
    rule, margin = estimate.rule, digits(estimate.margin)
    lower, upper, inside = estimate.limits.lower, estimate.limits.upper, outcome.promotes
    if rule.scale is not Scale.ABSOLUTE:
        edge = max(upper, -lower) if rule.two_sided else upper
        parts = [f"{digits(edge)} {'<' if inside else '>='} margin {margin}"]
    elif rule.lower_is_worse:
        parts = [f"lower limit {digits(lower)} {'>=' if inside else '<'} {margin}"]
    else:
        parts = [f"upper limit {digits(upper)} {'<=' if inside else '>'} {margin}"]
    if rule.scale is not Scale.ABSOLUTE or not inside:
        parts.append(f"p {digits(p_holm)} {'<=' if p_holm <= alpha else '>'} {digits(alpha)}")
    if not inside and too_soon(estimate):
        parts.append(f"regression {digits(estimate.value)} < margin, which blocks at the last look only")
    if estimate.warning is not None and inside:
        parts.append(estimate.warning)
    elif outcome is Outcome.WARN and rule.scale is Scale.ABSOLUTE:
        parts.append(f"{digits(used_share_of_bound(estimate))} of what is allowed is used")
    return ", and ".join(parts)
