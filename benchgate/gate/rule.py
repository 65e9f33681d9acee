"""The three-way rule: an estimate of harm, its limits and its margin give an outcome.

The shape is non-inferiority with a harm test (docs/decisions.md): PASS needs proof that harm stays inside the margin,
BLOCK needs proof of harm, and everything between says so instead of guessing.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check measured, before any decision.

    `harm` and `limits` are on `scale`, positive = worse; for an absolute check they are the candidate's own value with
    its limits and `margin` is the SLO. `p_value` tests "no harm", or, where `breach` is set, "harm within the margin".
    `problem` is set when the evidence cannot carry the check: then there is no estimate and never a PASS.
    """

    unit: Unit
    scale: Scale
    margin: float
    method: str
    n: int
    n_unit: str
    baseline: float | None = None
    candidate: float | None = None
    harm: float | None = None
    limits: Limits | None = None
    p_value: float | None = None
    breach: bool = False
    lower_is_worse: bool = False  # absolute checks only: goodput, accuracy, throughput
    falls: bool = False  # harm of a share shows as a fall (accuracy, goodput), not as a rise (errors, disagreement)
    nears: bool = True  # absolute checks only: a value close to its bound warns
    warning: str | None = None  # turns a PASS into a WARN
    notes: tuple[str, ...] = ()
    problem: Problem | None = None
    by_estimate: bool = False  # harm counts only where the estimate itself is beyond the margin
    needs: int | None = None  # about how many of `n_unit` in all would settle it, where the check itself can say


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a check has no usable estimate: INVALID (the evidence is broken) or INCONCLUSIVE (there is too little)."""

    outcome: Outcome
    reason: str
    advice: str


@dataclass(frozen=True, slots=True)
class Bound:
    """What an absolute check is held to, in base units: the least or the most that its value may be."""

    value: float
    at_least: bool


def decide(finding: Finding, p_holm: float | None, alpha: float, warn_fraction: float) -> Outcome:
    """The outcome of one check. `p_holm` is its p-value after Holm over the checks of its kind.

    WARN, too, goes by the adjusted p-value: of ten checks on equal deployments at 5 %, four in ten runs would
    otherwise carry a warning about nothing.
    """
    if finding.problem is not None:
        return finding.problem.outcome
    if finding.limits is None or finding.harm is None or finding.p_value is None or p_holm is None:
        return Outcome.INVALID
    blocked = p_holm <= alpha and not (finding.by_estimate and finding.harm <= finding.margin)
    if not _within(finding, finding.limits):
        return Outcome.BLOCK if blocked else Outcome.INCONCLUSIVE
    if finding.warning is not None or _real_harm(finding, finding.limits, p_holm, alpha):
        return Outcome.WARN
    if finding.scale is Scale.ABSOLUTE and finding.nears and slo_share(finding) > warn_fraction:
        return Outcome.WARN
    return Outcome.PASS


def slo_share(finding: Finding) -> float:
    """How much of what an SLO allows is used up; above 1 it is missed.

    A share target (goodput at least 95 %) allows misses, so it is misses over allowed misses; a minimum of a quantity
    is minimum over value; a maximum is value over maximum.
    """
    value, slo = finding.harm, finding.margin
    if value is None:
        return float("inf")
    if finding.lower_is_worse and finding.unit is Unit.RATIO:
        used, allowed = 1 - value, 1 - slo
    elif finding.lower_is_worse:
        used, allowed = slo, value
    else:
        used, allowed = value, slo
    if allowed <= 0:
        return 0.0 if used <= 0 else float("inf")
    return used / allowed


def _within(finding: Finding, limits: Limits) -> bool:
    """The unfavourable limit stays inside the margin (or, for an SLO, does not pass it)."""
    if finding.scale is not Scale.ABSOLUTE:
        return limits.upper < finding.margin
    return limits.lower >= finding.margin if finding.lower_is_worse else limits.upper <= finding.margin


def _real_harm(finding: Finding, limits: Limits, p_holm: float, alpha: float) -> bool:
    """Harm is shown although it stays inside the margin."""
    if finding.scale is Scale.ABSOLUTE or finding.by_estimate:
        return False
    return limits.lower > 0 if finding.breach else p_holm <= alpha
