"""Shadow: how much oftener the candidate's answer differs from the baseline's than the baseline's from itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchgate.gate import judge_check, shadow_validity
from benchgate.gate.comparison import Comparison
from benchgate.gate.item_steps import excess_steps
from benchgate.gate.rule import Finding, Problem
from benchgate.gate.shadow_notes import notes_on, warnings_on
from benchgate.gate.shadow_rows import invalid, left_out, paired_rows
from benchgate.gate.shadow_unread import (
    APART,
    RowPairs,
    read_pairs,
    too_many_unread,
    unread_decide,
    unread_notes,
)
from benchgate.model.records import BoolArray, FloatArray, ShadowItem
from benchgate.model.run import Evidence
from benchgate.model.verdict import Scale, Unit
from benchgate.stats.excess import WIDEST, Excess, excess_change, excess_disagreement, excess_sampled
from benchgate.suite.schema import Check

_PAIRED = "paired excess over the baseline's disagreement with itself"
_COMPARE_LESS = "compare what matters instead of every word (`shadow.compare`, `shadow.similarity`)"
_SAMPLED = "excess over the baseline's disagreement with itself on the prompts that it was asked twice"


def found(check: Check, comparison: Comparison, *, alpha: float) -> Finding:
    """Any check that rests on the shadow comparison."""
    if check.margin is None:
        assert check.slo_value is not None, "it has a bound where it has no margin: the suite was validated"
        return shadow_validity.absolute(comparison, slo=check.slo_value, alpha=alpha)
    by_metric = {"judge_loss": judge_check.relative, "shadow_validity": shadow_validity.relative}
    judged = by_metric.get(check.metric, relative)
    return judged(comparison, margin=check.margin, breach=check.block_when == "breach", alpha=alpha)


def relative(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
    """Excess disagreement, e = mean(x - y), x = half the times C differs from P and from S, y = P differs from S."""
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method=_PAIRED,
        n=0,
        n_unit="prompts",
        breach=breach,
    )
    pairs = paired_rows(comparison)
    if isinstance(pairs, Problem):
        return replace(finding, problem=pairs)
    rows = tuple(row for row, _ in pairs)
    problem = too_many_unread(rows) or too_many_unread(tuple(row for _, row in pairs))
    if problem is not None:
        return replace(finding, n=len(rows), problem=problem)
    stored, tested, read = comparison.reference is not None, margin if breach else 0.0, read_pairs(pairs)

    def measured(some: RowPairs) -> Excess | None:
        return _excess(some, alpha, tested, stored=stored)

    excess, judged = measured(read), _Disagreements(tuple(row for row, _ in read))
    if excess is None:
        return replace(finding, problem=invalid("there are too few prompts"))
    ours, itself = judged.candidate_share, judged.own_share
    if stored:
        ours, itself = judged.net, _Disagreements(tuple(row for _, row in read)).net
    finding = replace(
        finding,
        n=excess.n,
        method=_SAMPLED if judged.sampled else _PAIRED,
        baseline=float(itself.mean()),
        candidate=float(ours.mean()),
        harm=excess.estimate,
        limits=excess.limits,
        p_value=excess.p_harm,
        warning="; ".join(warnings_on(rows, alpha)) or None,
        steps=excess_steps(ours, itself, excess.limits, alpha, by_score=not stored and not judged.sampled),
        notes=(*left_out(comparison, len(rows)), *unread_notes(rows), *notes_on(rows)),
    )
    blocked = excess.limits.upper >= margin and excess.p_harm <= alpha
    problem = None if blocked else _no_room(judged, measured(_sharing_nothing(read)), margin, stored=stored)
    return replace(finding, problem=problem or unread_decide(excess, pairs, margin, measured))


def excess_of(evidence: Evidence, alpha: float) -> Excess | None:
    """A run's own excess disagreement with both limits, whatever is allowed; None where it cannot be told."""
    pairs = paired_rows(Comparison(evidence))
    if isinstance(pairs, Problem) or too_many_unread(tuple(row for row, _ in pairs)) is not None:
        return None
    return _excess(read_pairs(pairs), alpha, 0.0, stored=False)


def _excess(pairs: RowPairs, alpha: float, tested: float, *, stored: bool) -> Excess | None:
    judged = _Disagreements(tuple(row for row, _ in pairs))
    if not stored:
        return judged.excess(alpha, tested)
    # Each net of its own baseline's noise; both candidates against the same baseline, prompt by prompt.
    reference = _Disagreements(tuple(row for _, row in pairs))
    return excess_change(judged.net, reference.net, alpha, margin=tested, widest=judged.widest)


def _sharing_nothing(pairs: RowPairs) -> RowPairs:
    """The same prompts with a candidate whose every answer is another one than either of the baseline's."""
    return tuple((replace(ours, with_primary=APART, with_secondary=APART), theirs) for ours, theirs in pairs)


def _no_room(judged: _Disagreements, worst: Excess | None, margin: float, *, stored: bool) -> Problem | None:
    """Noise leaves 1 - y for a candidate to lose: where that is no more than the margin, everything would pass."""
    if worst is not None and worst.limits.lower > margin:
        return None
    itself = f"{int(judged.own_share.sum())} of {len(judged.own_share)}"
    why = f"the baseline differs from itself on {itself} prompts"
    if stored:
        why = f"the candidate it is compared with, or the baseline itself ({itself} prompts), differs too often"
    return invalid(f"{why}: a candidate that shares nothing with it would not be blocked", _COMPARE_LESS)


def excess_over(rows: tuple[ShadowItem, ...], alpha: float) -> tuple[float, float | None, Excess | None]:
    """Of some prompts of one run: how often the candidate differs, how often the baseline from itself, the excess.

    The rows are of those that `usable_rows` finds, at least one of them.
    """
    judged = _Disagreements(rows)
    own = judged.own_share
    return float(judged.candidate_share.mean()), float(own.mean()) if len(own) else None, judged.excess(alpha, 0.0)


class _Disagreements:
    """Per prompt: x of the candidate and y of the baseline with itself.

    Where the baseline was asked twice on a part of the prompts only, x looks at its first answer alone, and y is of
    that part.
    """

    def __init__(self, rows: tuple[ShadowItem, ...]) -> None:
        self.sampled = any(row.once for row in rows)
        self._twice: BoolArray = np.array([not row.once for row in rows], dtype=np.bool_)
        x = [_from_primary(row) if self.sampled else _from_either(row) for row in rows]
        self.candidate_share: FloatArray = np.array(x, dtype=np.float64)
        self._own: FloatArray = np.array([_own_noise(row) for row in rows], dtype=np.float64)

    @property
    def own_share(self) -> FloatArray:
        """y of the prompts that the baseline was asked twice."""
        return self._own[self._twice]

    @property
    def widest(self) -> float:
        """The largest difference that one prompt can make between two runs."""
        return 1.0 + self._weight if self.sampled else WIDEST

    @property
    def net(self) -> FloatArray:
        """x - y per prompt; of a part, y stands for as many more prompts, so that the mean is the excess."""
        return self.candidate_share - np.where(self._twice, self._weight * self._own, 0.0)

    @property
    def _weight(self) -> float:
        asked_twice = int(self._twice.sum())
        return len(self._twice) / asked_twice if asked_twice else 0.0

    def excess(self, alpha: float, margin: float) -> Excess | None:
        """Of one run."""
        if not self.sampled:
            return excess_disagreement(self.candidate_share, self._own, alpha, margin=margin)
        return excess_sampled(self.candidate_share > 0, self.own_share > 0, alpha, margin=margin)


def _from_either(row: ShadowItem) -> float:
    """0, 0.5 or 1; a candidate that did not answer differs from every answer."""
    return 0.5 * row.differs_from_primary + 0.5 * row.differs_from_secondary


def _from_primary(row: ShadowItem) -> float:
    return float(row.differs_from_primary)


def _own_noise(row: ShadowItem) -> float:
    """1 where the baseline differs from itself; 0 where the candidate gave no answer, which no noise excuses."""
    return float(not row.once and row.candidate is not None and row.differs_itself)
