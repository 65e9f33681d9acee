"""What else is known of the answers of a shadow comparison: how alike, how long, how often cut, how often refusals.

Whether answers have the form that recorded prompts asked for: JSON, a schema, calls of tools that were offered.

An accuracy of its own, and directional: a candidate that breaks the form loses what its clients live on, so there is no
noise to be taken off. Paired with the baseline's first answer; Tango's score limits and exact McNemar.

A judge's verdicts: how much oftener it finds the candidate's answer worse than the baseline's than better.

Losses and wins of pairs, as of eval items: Tango's score limits and exact McNemar. What a judge says of two answers of
the baseline itself should come to nothing; that is shown beside it, and warns where it does not.

Shadow: how much oftener the candidate's answer differs from the baseline's than the baseline's from itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from benchgate.gate.checks.base import bound_of
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Finding, Problem
from benchgate.gate.derivation import excess_steps, score_steps
from benchgate.gate.evidence.prompts import (
    APART,
    RowPairs,
    invalid,
    left_out,
    paired_rows,
    read_pairs,
    too_many_unread,
    unread_decide,
    unread_notes,
)
from benchgate.gate.policy import CheckSpec
from benchgate.model.metric import names_of
from benchgate.model.records import (
    NO_VERDICT,
    UNFIT_JUDGE,
    AnswerAgreement,
    AnswerFacts,
    BoolArray,
    FloatArray,
    JudgeVerdict,
    ShadowItem,
)
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import binom_cdf
from benchgate.stats.evals import MAX_EXCESS_CHANGE, Excess, excess_change, excess_disagreement, excess_sampled
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import clopper_pearson, mcnemar_p, tango_limits, tango_noninferiority_p
from benchgate.suite.schema import Suite

LENGTH_BAND = (0.9, 1.1)
"""Outside it a candidate that disagrees no oftener still rambles, or breaks off."""
_CUT_GAP = 0.01
_WARNINGS = 4


def warnings_on(rows: Sequence[ShadowItem], alpha: float) -> Iterator[str]:
    """What turns a PASS into a WARN: each is shown, not only seen, and all four share the error rate."""
    alpha = alpha / _WARNINGS
    yield from islice((told for lengths in _lengths(rows) for told in _length(lengths, alpha)), 1)
    both = [row for row in rows if row.primary_facts is not None and row.candidate_facts is not None]
    lost, gained = discordant(both, _refused)
    if lost > gained and mcnemar_p(lost, gained) <= alpha:
        yield f"the candidate refuses {lost} prompts that the baseline answers, and answers {gained} that it refuses"
    lost, gained = discordant(both, _cut)
    if lost - gained > _CUT_GAP * len(both) and mcnemar_p(lost, gained) <= alpha:
        told = f"{lost} answers of the candidate were cut at `max_tokens` where the baseline's ended"
        yield f"{told}, {gained} the reverse"


def notes_on(rows: Sequence[ShadowItem]) -> Iterator[str]:
    """Counts beside the number that decides."""
    labels = Counter(row.with_primary.label for row in rows if row.with_primary is not None)
    if labels:
        told = ", ".join(f"{labels[label]} {label.value}" for label in AnswerAgreement if labels[label])
        yield f"the candidate's answers beside the baseline's first: {told}"
    ratio = length_ratio(rows)
    if ratio is not None:
        yield f"the candidate's answers are {ratio:.2f} times as long"
    refused = [sum(_refused(row)[side] for row in rows) for side in (0, 1)]
    if any(refused):
        yield f"refusals: {refused[0]} of the baseline, {refused[1]} of the candidate"


def length_ratio(rows: Sequence[ShadowItem]) -> float | None:
    """All of the candidate's answers over all of the baseline's first ones; None with nothing to divide by.

    In tokens or in characters, whichever differs more.
    """
    ratios = [ratio for lengths in _lengths(rows) if (ratio := _ratio(lengths)) is not None]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio if ratio else math.inf), default=None)


def discordant(rows: Sequence[ShadowItem], of: Callable[[ShadowItem], tuple[bool, bool]]) -> tuple[int, int]:
    """How often only the candidate has it, and how often only the baseline."""
    found = [of(row) for row in rows]
    return sum(ours and not theirs for theirs, ours in found), sum(theirs and not ours for theirs, ours in found)


def _ratio(lengths: Sequence[tuple[int, int]]) -> float | None:
    total = sum(baseline for baseline, _ in lengths)
    return sum(candidate for _, candidate in lengths) / total if total else None


def _length(lengths: Sequence[tuple[int, int]], alpha: float) -> Iterator[str]:
    ratio = _ratio(lengths)
    if ratio is None or LENGTH_BAND[0] <= ratio <= LENGTH_BAND[1]:
        return
    gaps = np.array([candidate - baseline for baseline, candidate in lengths], dtype=np.float64)
    test = paired_t(gaps if ratio > 1 else -gaps, alpha / 2)
    if test is not None and test.p_value <= alpha / 2:
        yield f"the candidate's answers are {ratio:.2f} times as long as the baseline's"


def _lengths(rows: Sequence[ShadowItem]) -> Iterator[list[tuple[int, int]]]:
    """Of every two answers: in tokens, where both sides always tell them, and in characters, which nobody tells."""
    facts = [(row.primary_facts, row.candidate_facts) for row in rows]
    both = [(theirs, ours) for theirs, ours in facts if theirs is not None and ours is not None]
    tokens = [(theirs.tokens, ours.tokens) for theirs, ours in both]
    known = [(theirs, ours) for theirs, ours in tokens if theirs is not None and ours is not None]
    if len(known) == len(both):
        yield known
    yield [(theirs.characters, ours.characters) for theirs, ours in both]


def _refused(row: ShadowItem) -> tuple[bool, bool]:
    """Of the baseline's first answer, and of the candidate's."""
    theirs, ours = row.primary_facts, row.candidate_facts
    return theirs is not None and theirs.refusal, ours is not None and ours.refusal


def _cut(row: ShadowItem) -> tuple[bool, bool]:
    return row.primary_finish == "length", row.candidate_finish == "length"


_NOTHING_ASKED = "no recorded prompt asks for a form (`response_format`, or `tools` that an answer calls)"
_ASK = "draw prompts that ask for JSON or offer tools, or remove the check"
_MORE_TOKENS = "raise `shadow.max_tokens` and measure again"


@dataclass(frozen=True, slots=True)
class _Counts:
    """`lost`: the baseline's answer has the form and the candidate's has not. `cut_lost`: of them, cut at the limit.

    `cut_without`: of all answers of the candidate without the form, those that were cut.
    """

    n: int
    baseline: int
    candidate: int
    lost: int
    gained: int
    cut_lost: int
    cut_gained: int
    cut_without: int


def validity_against_baseline(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
    """Harm as a paired difference, (lost - gained) / n over the prompts where the form of an answer is judged."""
    finding = _finding(
        Scale.DIFFERENCE, margin, "Tango's score limits and exact McNemar, answers paired by prompt", breach
    )
    pairs = paired_rows(comparison)
    if isinstance(pairs, Problem):
        return replace(finding, problem=pairs)
    stored = comparison.reference is not None
    found = _counted([_sides(judged, reference if stored else None) for judged, reference in pairs])
    if found.n == 0:
        return replace(finding, problem=invalid(_NOTHING_ASKED, _ASK))
    if clopper_pearson(found.baseline, found.n, alpha).lower <= margin:
        reason = f"only {found.baseline} of {found.n} answers of the baseline have the form that was asked for: "
        reason += "a candidate that never has it would stay inside the margin"
        return replace(finding, n=found.n, problem=invalid(reason, "see whether the server supports what is asked for"))
    limits = tango_limits(found.lost, found.gained, found.n, alpha)
    finding = replace(
        finding,
        n=found.n,
        baseline=found.baseline / found.n,
        candidate=found.candidate / found.n,
        harm=(found.lost - found.gained) / found.n,
        limits=limits,
        p_value=_harm_p(found.lost, found, margin, breach),
        notes=(f"{found.lost} lost, {found.gained} gained, of {found.n}", *left_out(comparison, len(pairs))),
        steps=score_steps(found.lost, found.gained, found.n, alpha),
    )
    return replace(finding, problem=_only_by_cuts(found, margin, breach, alpha, limits.upper))


def validity_against_bound(comparison: Comparison, *, slo: float, alpha: float) -> Finding:
    """The candidate's own share against a floor: Clopper-Pearson limits."""
    finding = replace(_finding(Scale.ABSOLUTE, slo, "Clopper-Pearson limits over answers", True), lower_is_worse=True)
    pairs = paired_rows(comparison)
    if isinstance(pairs, Problem):
        return replace(finding, problem=pairs)
    found = _counted([_sides(judged, None) for judged, _ in pairs])
    if found.n == 0:
        return replace(finding, problem=invalid(_NOTHING_ASKED, _ASK))
    value, limits = found.candidate / found.n, clopper_pearson(found.candidate, found.n, alpha)
    p_value = binom_cdf(found.candidate, found.n, slo)
    finding = replace(finding, n=found.n, candidate=value, harm=value, limits=limits, p_value=p_value)
    whole = found.candidate + found.cut_without
    if limits.lower < slo and (
        clopper_pearson(whole, found.n, alpha).lower >= slo or p_value <= alpha < binom_cdf(whole, found.n, slo)
    ):
        reason = (
            f"{found.cut_without} of the {found.n - found.candidate} answers without it were cut by the token limit"
        )
        return replace(finding, problem=invalid(reason, _MORE_TOKENS))
    return finding


@dataclass(frozen=True, slots=True)
class _Side:
    """One answer. `valid` is None where no form was asked for, or a call was offered and the answer is in words."""

    valid: bool | None
    cut: bool


def _sides(judged: ShadowItem, reference: ShadowItem | None) -> tuple[_Side, _Side]:
    """What the candidate is held against, and the candidate. One that gave no answer has no form."""
    if reference is None:
        theirs = _Side(_valid(judged.primary_facts), judged.primary_finish == "length")
    else:
        theirs = _Side(_form(reference), reference.candidate_finish == "length")
    return theirs, _Side(_form(judged), judged.candidate_finish == "length")


def _form(row: ShadowItem) -> bool | None:
    """Of the candidate's answer; False for one that is not there, to a prompt that the baseline answers in a form."""
    if row.candidate is None:
        return None if _valid(row.primary_facts) is None else False
    return _valid(row.candidate_facts)


def _valid(facts: AnswerFacts | None) -> bool | None:
    return None if facts is None else facts.valid


def _counted(sides: Sequence[tuple[_Side, _Side]]) -> _Counts:
    """Where only one of two answers is judged, the other one is in words to an offer of tools.

    Then a sound call on one side is what the other lacks, and a broken one is what the other does without.
    """
    n = baseline = candidate = lost = gained = cut_lost = cut_gained = cut_without = 0
    for theirs, ours in sides:
        if theirs.valid is None and ours.valid is None:
            continue
        has, keeps = _good(theirs.valid, ours.valid), _good(ours.valid, theirs.valid)
        n, baseline, candidate = n + 1, baseline + has, candidate + keeps
        lost, gained = lost + (has and not keeps), gained + (keeps and not has)
        cut_lost += has and not keeps and ours.cut
        cut_gained += keeps and not has and theirs.cut
        cut_without += not keeps and ours.cut
    return _Counts(n, baseline, candidate, lost, gained, cut_lost, cut_gained, cut_without)


def _good(valid: bool | None, other: bool | None) -> bool:
    return valid if valid is not None else other is False


def _only_by_cuts(found: _Counts, margin: float, breach: bool, alpha: float, upper: float) -> Problem | None:
    """JSON that the token limit cut short says nothing of a model: it may neither make a loss nor pay for one."""
    if upper >= margin and found.cut_lost and _harm_p(found.lost - found.cut_lost, found, margin, breach) > alpha:
        return invalid(f"{found.cut_lost} of the {found.lost} lost answers were cut by the token limit", _MORE_TOKENS)
    earned = tango_limits(found.lost, found.gained - found.cut_gained, found.n, alpha).upper
    if upper < margin <= earned:
        reason = f"{found.cut_gained} of the {found.gained} gained answers pay for lost ones only because the token "
        return invalid(f"{reason}limit cut the baseline's answer short", _MORE_TOKENS)
    return None


def _harm_p(lost: int, found: _Counts, margin: float, breach: bool) -> float:
    if breach:
        return 1 - tango_noninferiority_p(lost, found.gained, found.n, margin)
    return mcnemar_p(lost, found.gained)


def _finding(scale: Scale, margin: float, method: str, breach: bool) -> Finding:
    return Finding(
        unit=Unit.RATIO, scale=scale, margin=margin, method=method, n=0, n_unit="answers", breach=breach, falls=True
    )


MOST_MISSING = 0.05
"""Verdicts that may be missing, of those asked for: a judge that says less is not there, or does not do as told."""

MOST_BY_POSITION = 0.5
"""Of the pairs that a judge was asked about, that it may decide by the position; beyond that it sees too little."""

_ANOTHER = "take a judge that reads both answers, or a prompt that lets it call them a tie"
_ADVICE = "see whether the judge answers with the JSON object that it is asked for, and measure again"


def judge_loss_against_baseline(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
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
    missing = said[None] + said[JudgeVerdict.MISSING]
    n, lost, won = len(rows) - missing, said[JudgeVerdict.LOSS], said[JudgeVerdict.WIN]
    limits = tango_limits(lost, won, n, alpha)
    finding = replace(
        finding,
        n=n,
        baseline=won / n,
        candidate=lost / n,
        harm=(lost - won) / n,
        limits=limits,
        p_value=1 - tango_noninferiority_p(lost, won, n, margin) if breach else mcnemar_p(lost, won),
        warning=_bias(rows, alpha),
        notes=(*_counts(said, missing), *_floor(rows), *left_out(comparison, len(rows))),
    )
    if limits.upper < margin <= tango_limits(lost + missing, won, len(rows), alpha).upper:
        return replace(finding, problem=_depends(f"the {missing} verdicts that are missing: were they losses"))
    lost, won = _with_the_undecided(rows)
    if limits.upper < margin <= tango_limits(lost + missing, won, len(rows), alpha).upper:
        where = f"the {said[JudgeVerdict.INCONSISTENT]} pairs where the judge went by the position"
        return replace(finding, problem=_depends(f"{where}: were they lost and won as the others are"))
    return finding


def _depends(on: str) -> Problem:
    return Problem(Outcome.INCONCLUSIVE, f"depends on {on}, the margin would not be held", _ADVICE)


def _too_few(rows: tuple[ShadowItem, ...], comparison: Comparison) -> Problem | None:
    missing = sum(row.judged in (None, JudgeVerdict.MISSING) for row in rows)
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
    swayed, n = asked[JudgeVerdict.INCONSISTENT], asked.total()
    if not n or clopper_pearson(swayed, n, alpha).lower <= MOST_BY_POSITION:
        return None
    return invalid(f"the judge goes by the position in {swayed} of the {n} pairs that it was asked about", _ANOTHER)


def _asked(rows: tuple[ShadowItem, ...]) -> Counter[JudgeVerdict | None]:
    """The verdicts on pairs that a judge was asked about: answers that are one are a tie, one not there has lost."""
    return Counter(
        row.judged for row in rows if row.judged not in (None, JudgeVerdict.MISSING) and not _is_settled(row)
    )


def _is_settled(row: ShadowItem) -> bool:
    if row.candidate is None:
        return True
    return row.judged is JudgeVerdict.TIE and row.with_primary is not None and row.with_primary.exact


def _weight(asked: Counter[JudgeVerdict | None]) -> tuple[int, int]:
    """How many pairs each one stands for that the judge did decide, as a fraction: 3/2 where it decided two of three.

    Counted as ties, the others would thin out every loss: half of them undecided, a margin of 5 points would be 10.
    Counted as losses, no candidate would pass with the position flips of sound judges (a fifth of all pairs).
    """
    decided = asked.total() - asked[JudgeVerdict.INCONSISTENT]
    return (asked.total(), decided) if decided else (1, 1)


def _with_the_undecided(rows: tuple[ShadowItem, ...]) -> tuple[int, int]:
    """Losses and wins, had those that went by the position been lost and won as often as the others."""
    asked, said = _asked(rows), Counter(row.judged for row in rows)
    total, decided = _weight(asked)
    lost = -(-asked[JudgeVerdict.LOSS] * total // decided) + said[JudgeVerdict.LOSS] - asked[JudgeVerdict.LOSS]
    return lost, asked[JudgeVerdict.WIN] * total // decided


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
        p_value=change.p_value,
        notes=(*_of_run("judged", judged), *_of_run("reference", reference), *finding.notes),
        problem=problem,
    )


def _of_run(name: str, rows: tuple[ShadowItem, ...]) -> tuple[str, ...]:
    said = Counter(row.judged for row in rows)
    counts = _counts(said, said[None] + said[JudgeVerdict.MISSING])
    return tuple(f"{name} run: {told}" for told in (*counts, *_floor(rows)))


def _worths(rows: tuple[ShadowItem, ...], missing: float) -> FloatArray:
    """What each verdict counts, had those that went by the position fallen as the others, and were one `missing`."""
    total, decided = _weight(_asked(rows))
    known = [None if row.judged is None else _WORTH.get(row.judged) for row in rows]
    return np.array([missing if one is None else one * total / decided for one in known], dtype=np.float64)


_WORTH: dict[JudgeVerdict | None, float] = {
    JudgeVerdict.LOSS: 1.0,
    JudgeVerdict.WIN: -1.0,
    JudgeVerdict.TIE: 0.0,
    JudgeVerdict.INCONSISTENT: 0.0,
}


def itself(rows: tuple[ShadowItem, ...]) -> tuple[int, int, int]:
    """Of the baseline's second answer beside its first: losses, wins, and of how many."""
    said = Counter(row.judged_itself for row in rows)
    n = sum(said.values()) - said[None] - said[JudgeVerdict.MISSING]
    return said[JudgeVerdict.LOSS], said[JudgeVerdict.WIN], n


def _bias(rows: tuple[ShadowItem, ...], alpha: float) -> str | None:
    """Two answers of one deployment, of which the judge prefers one kind: it sees something that is not there."""
    lost, won, n = itself(rows)
    if 2 * mcnemar_p(max(lost, won), min(lost, won)) > alpha:
        return None
    return (
        f"of two answers of the baseline itself the judge prefers the first {lost} times and the second {won}, of {n}"
    )


def _counts(said: Counter[JudgeVerdict | None], missing: int) -> tuple[str, ...]:
    told = f"{said[JudgeVerdict.LOSS]} lost, {said[JudgeVerdict.WIN]} won, {said[JudgeVerdict.TIE]} ties, "
    told += f"{said[JudgeVerdict.INCONSISTENT]} where the judge went by the position"
    return (told, f"{missing} verdicts missing") if missing else (told,)


def _floor(rows: tuple[ShadowItem, ...]) -> tuple[str, ...]:
    lost, won, n = itself(rows)
    return (f"the baseline beside itself: {lost} lost, {won} won, of {n}",) if n else ()


_PAIRED = "paired excess over the baseline's disagreement with itself"
_COMPARE_LESS = "compare what matters instead of every word (`shadow.compare`, `shadow.similarity`)"
_SAMPLED = "excess over the baseline's disagreement with itself on the prompts that it was asked twice"


def excess_against_baseline(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
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
        p_value=excess.p_value,
        warning="; ".join(warnings_on(rows, alpha)) or None,
        steps=excess_steps(ours, itself, excess.limits, alpha, by_score=not stored and not judged.sampled),
        notes=(*left_out(comparison, len(rows)), *unread_notes(rows), *notes_on(rows)),
    )
    blocked = excess.limits.upper >= margin and excess.p_value <= alpha
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
        return 1.0 + self._weight if self.sampled else MAX_EXCESS_CHANGE

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


class ShadowChecks:
    """Checks of the shadow comparison."""

    metrics = names_of(lambda metric: metric.family == "shadow")

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Measure one check over the prompts that both sides answered."""
        check, alpha = spec.check, suite.gate.alpha
        if check.margin is None:
            return validity_against_bound(comparison, slo=bound_of(spec).value, alpha=alpha)
        by_metric = {"judge_loss": judge_loss_against_baseline, "shadow_validity": validity_against_baseline}
        judged = by_metric.get(check.metric, excess_against_baseline)
        return judged(comparison, margin=check.margin, breach=check.block_when == "breach", alpha=alpha)
