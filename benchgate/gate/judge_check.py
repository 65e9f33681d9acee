"""A judge's verdicts: how much oftener it finds the candidate's answer worse than the baseline's than better.

Losses and wins of pairs, as of eval items: Tango's score limits and exact McNemar. What a judge says of two answers of
the baseline itself should come to nothing; that is shown beside it, and warns where it does not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.rule import Finding, Problem
from benchgate.gate.shadow_rows import invalid, left_out, paired_rows
from benchgate.model.records import ShadowItem
from benchgate.model.shadow import Judged
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.excess import excess_change
from benchgate.stats.proportions import mcnemar_harm_p, tango_limits, tango_p_margin

MOST_MISSING = 0.05
"""Verdicts that may be missing, of those asked for: a judge that says less is not there, or does not do as told."""

_ADVICE = "see whether the judge answers with the JSON object that it is asked for, and measure again"


def relative(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
    """Net losses, (lost - won) / n over the prompts that the judge spoke of."""
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="Tango's score limits and exact McNemar over a judge's verdicts, asked in both positions",
        n=0,
        n_unit="prompts",
        breach=breach,
    )
    pairs = paired_rows(comparison)
    if isinstance(pairs, Problem):
        return replace(finding, problem=pairs)
    rows = tuple(row for row, _ in pairs)
    problem = _too_few(rows) or _too_few(tuple(row for _, row in pairs))
    if problem is not None:
        return replace(finding, problem=problem)
    if comparison.stored:
        return _between_runs(finding, pairs, alpha)
    said = Counter(row.judged for row in rows)
    missing = said[None] + said[Judged.MISSING]
    n, lost, won = len(rows) - missing, said[Judged.LOSS], said[Judged.WIN]
    limits = tango_limits(lost, won, n, alpha)
    finding = replace(
        finding,
        n=n,
        baseline=won / n,
        candidate=lost / n,
        harm=(lost - won) / n,
        limits=limits,
        p_value=1 - tango_p_margin(lost, won, n, margin) if breach else mcnemar_harm_p(lost, won),
        warning=_bias(rows, alpha),
        notes=(*_counts(said, missing), *_floor(rows), *left_out(comparison, len(rows))),
    )
    if limits.upper < margin <= tango_limits(lost + missing, won, len(rows), alpha).upper:
        reason = (
            f"it depends on the {missing} verdicts that are missing: were they losses, the margin would not be held"
        )
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, _ADVICE))
    return finding


def _too_few(rows: tuple[ShadowItem, ...]) -> Problem | None:
    missing = sum(row.judged in (None, Judged.MISSING) for row in rows)
    if len(rows) > missing <= MOST_MISSING * len(rows):
        return None
    first = next((row.judge_error for row in rows if row.judge_error), "the judge was not asked")
    return invalid(f"{missing} of {len(rows)} verdicts are missing: {first}", _ADVICE)


def _between_runs(finding: Finding, pairs: tuple[tuple[ShadowItem, ShadowItem], ...], alpha: float) -> Finding:
    """Each candidate beside the same baseline, prompt by prompt: how many more net losses one has than the other."""
    worth = [(_WORTH.get(ours.judged), _WORTH.get(theirs.judged)) for ours, theirs in pairs]
    both = [(ours, theirs) for ours, theirs in worth if ours is not None and theirs is not None]
    ours, theirs = (np.array([pair[side] for pair in both], dtype=np.float64) for side in (0, 1))
    tested = finding.margin if finding.breach else 0.0
    change = excess_change(ours, theirs, alpha, margin=tested, widest=2.0)
    if change is None:
        return replace(finding, problem=invalid("there are too few verdicts on the same prompts in both runs", _ADVICE))
    return replace(
        finding,
        n=change.n,
        method="paired t over a judge's verdicts, each beside the same baseline",
        baseline=float(np.mean(theirs)),
        candidate=float(np.mean(ours)),
        harm=change.estimate,
        limits=change.limits,
        p_value=change.p_harm,
    )


_WORTH: dict[Judged | None, float] = {Judged.LOSS: 1.0, Judged.WIN: -1.0, Judged.TIE: 0.0, Judged.INCONSISTENT: 0.0}


def itself(rows: tuple[ShadowItem, ...]) -> tuple[int, int, int]:
    """Of the baseline's second answer beside its first: losses, wins, and of how many."""
    said = Counter(row.judged_itself for row in rows)
    n = sum(said.values()) - said[None] - said[Judged.MISSING]
    return said[Judged.LOSS], said[Judged.WIN], n


def _bias(rows: tuple[ShadowItem, ...], alpha: float) -> str | None:
    """Two answers of one deployment, of which the judge prefers one kind: it sees something that is not there."""
    lost, won, n = itself(rows)
    if 2 * mcnemar_harm_p(max(lost, won), min(lost, won)) > alpha:
        return None
    return (
        f"of two answers of the baseline itself the judge prefers the first {lost} times and the second {won}, of {n}"
    )


def _counts(said: Counter[Judged | None], missing: int) -> tuple[str, ...]:
    told = f"{said[Judged.LOSS]} lost, {said[Judged.WIN]} won, {said[Judged.TIE]} ties, "
    told += f"{said[Judged.INCONSISTENT]} where the judge went by the position"
    return (told, f"{missing} verdicts missing") if missing else (told,)


def _floor(rows: tuple[ShadowItem, ...]) -> tuple[str, ...]:
    lost, won, n = itself(rows)
    return (f"the baseline beside itself: {lost} lost, {won} won, of {n}",) if n else ()
