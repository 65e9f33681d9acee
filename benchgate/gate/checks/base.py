"""What all families of checks share: their interface, bounds, and estimates that a family begins with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from benchgate.gate.comparison import Comparison, beside, cannot_decide, load_of
from benchgate.gate.decision import Bound, Finding, Problem
from benchgate.gate.evidence.tokens import LogRatio, demonstrated_inflation
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.suite.schema import Suite


class CheckFamily(Protocol):
    """Turns evidence into the estimate of one check. It knows no guard, no other check and no outcome."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that it judges."""
        ...

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Measure one check. Evidence that cannot carry it is a problem of the finding, not an error."""
        ...


def bound_of(spec: CheckSpec) -> Bound:
    """Return the bound of a check on the candidate's own value; of goodput without one the target of its SLO."""
    if spec.check.slo_value is not None:
        return Bound(spec.check.slo_value, at_least=spec.check.min is not None)
    assert spec.target_ratio is not None, "goodput needs an slo: the suite was validated"
    return Bound(spec.target_ratio, at_least=True)


def by_tokens_of_text(
    spec: CheckSpec, suite: Suite, comparison: Comparison, estimate: Callable[[LogRatio | None], Finding]
) -> Finding:
    """Estimate by the tokens of the candidate's text where its usage is shown to count more, else as counted."""
    assert spec.stage is not None, "a load check has a stage: the suite was validated"
    both = beside(comparison) if comparison.apart else comparison.judged
    inflation = demonstrated_inflation(both, spec.stage, suite)
    found = estimate(inflation)
    if inflation is None:
        return found
    times, least = math.exp(inflation.estimate), math.exp(inflation.limits.lower)
    told = f"the candidate's usage counts {times:.2f} times the tokens that its text shows"
    note = f"{told} (at least {least:.2f}), so its {spec.check.metric} was computed from the tokens of the text"
    return replace(found, notes=(*found.notes, note), warning=found.warning or told)


def held_to_noise_profile(found: Finding, suite: Suite, comparison: Comparison) -> Finding:
    """Take the limits away from a comparison of two untied runs that no noise profile carries."""
    cannot = cannot_decide(comparison, suite.gate.noise_max_age_s)
    if cannot is None or (found.problem is not None and found.problem.outcome is Outcome.INVALID):
        return found
    return replace(found, limits=None, p_value=None, problem=cannot)


@dataclass(frozen=True, slots=True)
class Span:
    """`stage` is held over `over`; `bound` is the least (`at_least`) or the most that it may come to."""

    stage: str
    over: str
    bound: float
    at_least: bool

    @classmethod
    def of(cls, spec: CheckSpec) -> Span:
        """Return the span of a check that holds one stage over another."""
        assert spec.stage is not None and spec.check.over is not None, "a check over a stage names both"
        bound = bound_of(spec)
        return cls(spec.stage, spec.check.over, bound.value, bound.at_least)


def over_stage_finding(span: Span, unit: Unit, method: str) -> Finding:
    """Begin the finding of a check that holds one stage over another."""
    return Finding(
        unit=unit,
        scale=Scale.ABSOLUTE,
        margin=span.bound,
        method=method,
        n=0,
        n_unit="blocks",
        breach=True,
        lower_is_worse=span.at_least,
        nears=False,
    )


def stage_pairs(evidence: Evidence, span: Span) -> list[tuple[LoadObservation, LoadObservation]]:
    """Return (at the other stage, at the stage) of every block that has both."""
    theirs, ours = (load_of(evidence, stage, Arm.CANDIDATE) for stage in (span.over, span.stage))
    return [(theirs[block], ours[block]) for block in sorted(theirs.keys() & ours.keys())]


def never_measured(spec: CheckSpec) -> Finding:
    """Begin the finding of a check whose tasks were never run, as INVALID."""
    check = spec.check
    return Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE if check.margin is not None else Scale.ABSOLUTE,
        margin=check.margin if check.margin is not None else check.slo_value or 0.0,
        method="none",
        n=0,
        n_unit="items",
        problem=Problem(
            Outcome.INVALID,
            "no eval task of this kind was run",
            "see the faults of the targets and run the suite again",
        ),
    )
