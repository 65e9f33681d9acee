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
from benchgate.model.records import FloatArray, ShadowItem
from benchgate.model.shadow import NO_VERDICT, UNFIT_JUDGE, Judged
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.excess import excess_change
from benchgate.stats.proportions import clopper_pearson, mcnemar_harm_p, tango_limits, tango_p_margin

MOST_MISSING = 0.05
"""Verdicts that may be missing, of those asked for: a judge that says less is not there, or does not do as told."""

MOST_BY_POSITION = 0.5
"""Of the pairs that a judge was asked about, that it may decide by the position; beyond that it sees too little."""

_ANOTHER = "take a judge that reads both answers, or a prompt that lets it call them a tie"
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
    for side in (rows, tuple(row for _, row in pairs)):
        problem = _too_few(side, comparison) or _by_position(side, alpha)
        if problem is not None:
            return replace(finding, problem=problem)
    if comparison.stored:
        return _between_runs(replace(finding, notes=left_out(comparison, len(rows))), pairs, alpha)
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
        return replace(finding, problem=_depends(f"the {missing} verdicts that are missing: were they losses"))
    lost, won = _with_the_undecided(rows)
    if limits.upper < margin <= tango_limits(lost + missing, won, len(rows), alpha).upper:
        where = f"the {said[Judged.INCONSISTENT]} pairs where the judge went by the position"
        return replace(finding, problem=_depends(f"{where}: were they lost and won as the others are"))
    return finding


def _depends(on: str) -> Problem:
    return Problem(Outcome.INCONCLUSIVE, f"depends on {on}, the margin would not be held", _ADVICE)


def _too_few(rows: tuple[ShadowItem, ...], comparison: Comparison) -> Problem | None:
    missing = sum(row.judged in (None, Judged.MISSING) for row in rows)
    if len(rows) > missing <= max(1.0, MOST_MISSING * len(rows)):
        return None
    first = next((row.judge_error for row in rows if row.judge_error), "the judge was not asked")
    return invalid(f"{missing} of {len(rows)} verdicts are missing: {first}", _remedy(first, comparison))


def _remedy(why: str, comparison: Comparison) -> str:
    """By why the first verdict is missing: it was not in form, the judge cannot tell, or no reply came."""
    if why == NO_VERDICT:
        return _ADVICE
    if why.startswith(UNFIT_JUDGE):
        return _ANOTHER
    shadow = comparison.judged.run.suite.get("shadow")
    judge = shadow.get("judge") if isinstance(shadow, dict) else None
    where = f" at {judge['url']}" if isinstance(judge, dict) and "url" in judge else ""
    return f"see whether the judge{where} is up, and takes the model and the key of `shadow.judge`; then measure again"


def _by_position(rows: tuple[ShadowItem, ...], alpha: float) -> Problem | None:
    """A judge that prefers whatever stands first would find nothing worse than anything."""
    asked = _asked(rows)
    swayed, n = asked[Judged.INCONSISTENT], asked.total()
    if not n or clopper_pearson(swayed, n, alpha).lower <= MOST_BY_POSITION:
        return None
    return invalid(f"the judge goes by the position in {swayed} of the {n} pairs that it was asked about", _ANOTHER)


def _asked(rows: tuple[ShadowItem, ...]) -> Counter[Judged | None]:
    """The verdicts on pairs that a judge was asked about: answers that are one are a tie, one not there has lost."""
    return Counter(row.judged for row in rows if row.judged not in (None, Judged.MISSING) and not _is_settled(row))


def _is_settled(row: ShadowItem) -> bool:
    if row.candidate is None:
        return True
    return row.judged is Judged.TIE and row.with_primary is not None and row.with_primary.exact


def _weight(asked: Counter[Judged | None]) -> tuple[int, int]:
    """How many pairs each one stands for that the judge did decide, as a fraction: 3/2 where it decided two of three.

    Counted as ties, the others would thin out every loss: half of them undecided, a margin of 5 points would be 10.
    Counted as losses, no candidate would pass with the position flips of sound judges (a fifth of all pairs).
    """
    decided = asked.total() - asked[Judged.INCONSISTENT]
    return (asked.total(), decided) if decided else (1, 1)


def _with_the_undecided(rows: tuple[ShadowItem, ...]) -> tuple[int, int]:
    """Losses and wins, had those that went by the position been lost and won as often as the others."""
    asked, said = _asked(rows), Counter(row.judged for row in rows)
    total, decided = _weight(asked)
    lost = -(-asked[Judged.LOSS] * total // decided) + said[Judged.LOSS] - asked[Judged.LOSS]
    return lost, asked[Judged.WIN] * total // decided


def _between_runs(finding: Finding, pairs: tuple[tuple[ShadowItem, ShadowItem], ...], alpha: float) -> Finding:
    """Each candidate beside the same baseline, prompt by prompt: how many more net losses one has than the other."""
    worth = [(_WORTH.get(ours.judged), _WORTH.get(theirs.judged)) for ours, theirs in pairs]
    both = [(ours, theirs) for ours, theirs in worth if ours is not None and theirs is not None]
    ours, theirs = (np.array([pair[side] for pair in both], dtype=np.float64) for side in (0, 1))
    tested = finding.margin if finding.breach else 0.0
    change = excess_change(ours, theirs, alpha, margin=tested, widest=2.0)
    if change is None:
        return replace(finding, problem=invalid("there are too few verdicts on the same prompts in both runs", _ADVICE))
    judged, reference = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    at_worst = _worths(judged, 1.0), _worths(reference, -1.0)
    widest = sum(float(np.abs(worths).max(initial=1.0)) for worths in at_worst)
    worst = excess_change(*at_worst, alpha, margin=tested, widest=widest)
    problem = None
    if change.limits.upper < finding.margin and (worst is None or worst.limits.upper >= finding.margin):
        problem = _depends("verdicts that are missing or went by the position: were they losses, or as the others are")
    return replace(
        finding,
        n=change.n,
        method="paired t over a judge's verdicts, each beside the same baseline",
        baseline=float(np.mean(theirs)),
        candidate=float(np.mean(ours)),
        harm=change.estimate,
        limits=change.limits,
        p_value=change.p_harm,
        notes=(*_of_run("judged", judged), *_of_run("reference", reference), *finding.notes),
        problem=problem,
    )


def _of_run(name: str, rows: tuple[ShadowItem, ...]) -> tuple[str, ...]:
    said = Counter(row.judged for row in rows)
    counts = _counts(said, said[None] + said[Judged.MISSING])
    return tuple(f"{name} run: {told}" for told in (*counts, *_floor(rows)))


def _worths(rows: tuple[ShadowItem, ...], missing: float) -> FloatArray:
    """What each verdict counts, had those that went by the position fallen as the others, and were one `missing`."""
    total, decided = _weight(_asked(rows))
    known = [None if row.judged is None else _WORTH.get(row.judged) for row in rows]
    return np.array([missing if one is None else one * total / decided for one in known], dtype=np.float64)


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
