"""The last steps of a check: the correction for many checks, the rule that applied, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.rule import Finding, slo_share, too_soon
from benchgate.gate.steps import made, number
from benchgate.model.verdict import Outcome, Scale, Step


def decision_steps(
    finding: Finding,
    outcome: Outcome,
    p_values: Sequence[float],
    p_holm: float | None,
    alpha: float,
    *,
    ids: Sequence[str] = (),
) -> tuple[Step, ...]:
    """From limits, margin and p-value to the outcome. `p_values` are those of all checks that share the error alpha.

    `ids` are those checks' own, in the same order; without them no other check is named.
    With a problem (a guard, say, that spoilt them) the numbers end at those that the verdict shows, and decide nothing.
    """
    if finding.problem is not None:
        formula = f"no numbers decide: {finding.problem.reason}"
        numbers = (*finding.steps, *_numbers(finding, p_values, p_holm, ids)) if finding.steps else ()
        return (*numbers, Step("outcome", formula, outcome.value))
    steps = tuple(finding.steps) or tuple(_plain(finding))
    numbers = _numbers(finding, p_values, p_holm, ids)
    if not numbers:
        return (*steps, Step("outcome", "a value that is missing is never good", outcome.value))
    assert p_holm is not None, "there is no last number without it"
    return (*steps, *numbers, Step("outcome", _rule(finding, outcome, p_holm, alpha), outcome.value))


def _numbers(finding: Finding, p_values: Sequence[float], p_holm: float | None, ids: Sequence[str]) -> tuple[Step, ...]:
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


def _plain(finding: Finding) -> list[Step]:
    """What every check has, where its own way has no steps."""
    steps = [Step("method", "", finding.method), Step(finding.n_unit, "", str(finding.n))]
    for what, value in (("baseline", finding.baseline), ("candidate", finding.candidate)):
        steps += [made(what, "", value)] if value is not None else []
    return steps


def _bound(finding: Finding) -> list[Step]:
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
