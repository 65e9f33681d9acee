"""The interface of check families, and the estimate that every check begins with."""

from __future__ import annotations

import math
from typing import Protocol

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Estimate, Rule
from benchgate.gate.evidence.tokens import LogRatio
from benchgate.gate.policy import CheckSpec
from benchgate.model.metric import METRICS, PER_ACCELERATOR_UNITS
from benchgate.model.verdict import Scale, Unit
from benchgate.suite.schema import Suite


class CheckFamily(Protocol):
    """Checks of metrics that are measured alike. It knows no guard, no other check and no outcome."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that it measures."""
        ...

    def measure(self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison) -> None:
        """Fill in the estimate of one check. Raises CannotJudge for evidence that cannot carry it."""
        ...


def begin(spec: CheckSpec) -> Estimate:
    """Return the empty estimate of a check: unit, scale, direction and margin, by the metric and the policy."""
    check, metric = spec.check, METRICS[spec.check.metric]
    if check.over is not None:
        unit = Unit.POINTS if metric.kind == "share" else Unit.MULTIPLE
        rule = Rule(unit, Scale.ABSOLUTE, breach=True, lower_is_worse=check.min is not None, nears=False)
        return Estimate(rule, _bound(spec))
    unit = PER_ACCELERATOR_UNITS[metric.unit] if check.per is not None else metric.unit
    if check.margin is None:
        at_least = check.slo_value is None or check.min is not None
        nears = metric.kind != "telemetry" and metric.scope != "sweep"
        rule = Rule(unit, Scale.ABSOLUTE, breach=True, lower_is_worse=at_least, nears=nears)
        return Estimate(rule, _bound(spec))
    breach, two_sided = check.block_when == "breach", check.direction == "either"
    if metric.margin == "points":
        rule = Rule(unit, Scale.DIFFERENCE, breach=breach, falls=metric.higher_is_better, two_sided=two_sided)
        return Estimate(rule, check.margin)
    rule = Rule(unit, Scale.LOG_RATIO, breach=breach, two_sided=two_sided)
    return Estimate(rule, log_margin(check.margin, falling=metric.higher_is_better and not two_sided))


def log_margin(margin: float, *, falling: bool) -> float:
    """Return a margin as a log ratio: 5 % of a latency is ln 1.05 more; of a rate, which may fall, -ln 0.95."""
    return -math.log1p(-margin) if falling else math.log1p(margin)


def _bound(spec: CheckSpec) -> float:
    """Return the bound on the candidate's own value; without one it is the target of goodput's SLO."""
    bound = spec.check.slo_value if spec.check.slo_value is not None else spec.target_ratio
    assert bound is not None, "goodput needs an slo: the suite was validated"
    return bound


def note_inflation(estimate: Estimate, metric: str, inflation: LogRatio) -> None:
    """Note that the metric was computed from the tokens of the text, and warn."""
    times, least = math.exp(inflation.estimate), math.exp(inflation.limits.lower)
    counts = f"the candidate's usage counts {times:.2f} times the tokens that its text shows"
    estimate.notes.append(f"{counts} (at least {least:.2f}), so its {metric} was computed from the tokens of the text")
    estimate.warn(counts)
