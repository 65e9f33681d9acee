"""A finding and its outcome as a line of the verdict: the one way from what was found to what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.gate.decision import Finding
from benchgate.gate.derivation import decision_steps
from benchgate.gate.reasons import check_reason
from benchgate.model.verdict import CheckResult, Outcome, Scale
from benchgate.suite.schema import Gate


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of the verdict is about, and what it is called."""

    id: str
    title: str
    family: str
    metric: str
    required: bool
    statistic: str | None = None
    stage: str | None = None
    task: str | None = None
    over: str | None = None  # the stage whose value the candidate's is held against


def check_line(
    line: Line,
    finding: Finding,
    outcome: Outcome,
    p_holm: float | None,
    gate: Gate,
    *,
    advice: str | None,
    p_values: Sequence[float],
    ids: Sequence[str] = (),
) -> CheckResult:
    """The line with the finding's numbers. `p_values` are of all lines that share its error, `ids` are their ids."""
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
        reason=check_reason(finding, outcome, gate.warn_fraction, gate.alpha),
        advice=advice,
        unit=finding.unit,
        scale=finding.scale,
        baseline=finding.baseline,
        candidate=finding.candidate,
        harm=finding.harm,
        lower=finding.limits.lower if finding.limits else None,
        upper=finding.limits.upper if finding.limits else None,
        margin=finding.margin,
        p_value=finding.p_value,
        p_holm=p_holm,
        n=finding.n,
        n_unit=finding.n_unit,
        n_of=finding.n_of,
        method=finding.method,
        notes=finding.notes,
        over=line.over,
        at_least=finding.lower_is_worse if finding.scale is Scale.ABSOLUTE else None,
        two_sided=finding.two_sided,
        steps=decision_steps(finding, outcome, p_values, p_holm, gate.alpha, ids=ids),
        limits_alpha=finding.look.alpha if finding.look is not None else None,
    )
