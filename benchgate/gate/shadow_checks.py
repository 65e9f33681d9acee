"""Shadow: how much oftener the candidate's answer differs from the baseline's than the baseline's from itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.rule import Finding, Problem
from benchgate.model.records import FloatArray, ShadowItem
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.excess import excess_change, excess_disagreement


def relative(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
    """Excess disagreement, e = mean(x - y), x = half the times C differs from P and from S, y = P differs from S."""
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="paired excess over the baseline's disagreement with itself",
        n=0,
        n_unit="prompts",
        breach=breach,
    )
    judged = _disagreements(comparison.judged)
    if isinstance(judged, Problem):
        return replace(finding, problem=judged)
    tested = margin if breach else 0.0
    ours, itself = judged.candidate, judged.baseline
    if comparison.reference is not None:
        reference = _disagreements(comparison.reference)
        if isinstance(reference, Problem):
            return replace(finding, problem=reference)
        if reference.prompt_ids != judged.prompt_ids:
            return replace(finding, problem=_invalid("the two runs shadowed different prompts"))
        # Each net of its own baseline's noise; both candidates against the same baseline, prompt by prompt.
        ours, itself = ours - itself, reference.candidate - reference.baseline
        excess = excess_change(ours, itself, alpha, margin=tested)
    else:
        excess = excess_disagreement(ours, itself, alpha, margin=tested)
    if excess is None:
        return replace(finding, problem=_invalid("there are too few prompts"))
    return replace(
        finding,
        n=excess.n,
        baseline=float(itself.mean()),
        candidate=float(ours.mean()),
        harm=excess.estimate,
        limits=excess.limits,
        p_value=excess.p_harm,
    )


class _Disagreements:
    """Per prompt, in order of id: x of the candidate and y of the baseline with itself."""

    def __init__(self, items: tuple[ShadowItem, ...]) -> None:
        rows = sorted(items, key=lambda item: item.prompt_id)
        self.prompt_ids = tuple(item.prompt_id for item in rows)
        self.candidate: FloatArray = np.array([_differs_from_baseline(item) for item in rows], dtype=np.float64)
        self.baseline: FloatArray = np.array([_own_noise(item) for item in rows], dtype=np.float64)


def _differs_from_baseline(item: ShadowItem) -> float:
    """0, 0.5 or 1; a candidate that did not answer differs from every answer."""
    if item.candidate is None:
        return 1.0
    return 0.5 * (item.candidate != item.primary) + 0.5 * (item.candidate != item.secondary)


def _own_noise(item: ShadowItem) -> float:
    """1 where the baseline differs from itself; 0 where the candidate gave no answer, which no noise excuses."""
    return float(item.candidate is not None and item.primary != item.secondary)


def _disagreements(evidence: Evidence) -> _Disagreements | Problem:
    shadow = evidence.shadow
    if shadow is None:
        return _invalid("the shadow comparison was not made")
    if shadow.fault is not None:
        return _invalid(f"the shadow comparison failed: {shadow.fault}")
    if len(shadow.items) != shadow.expected_n or shadow.expected_n == 0:
        return _invalid(f"only {len(shadow.items)} of {shadow.expected_n} prompts were shadowed")
    unanswered = [item for item in shadow.items if item.primary is None or item.secondary is None]
    if unanswered:
        first = unanswered[0]
        return _invalid(
            f"the baseline itself failed on {len(unanswered)} prompts, first {first.prompt_id}: {first.error}"
        )
    return _Disagreements(shadow.items)


def _invalid(reason: str) -> Problem:
    return Problem(Outcome.INVALID, reason, "see the server's log and measure again")
