"""Checks of the shadow comparison: baseline and candidate answer the same recorded prompts.

- `shadow_excess`: how much more often the candidate differs from the baseline than the baseline differs from itself.
- `shadow_validity`: answers in the form that a prompt requires (JSON, a schema, calls of offered tools). A candidate
  that breaks the form loses what its clients need, so no noise is subtracted.
- `judge_loss`: answers that a judge finds worse, less those it finds better. Its verdicts on two answers of the
  baseline itself should balance; where they do not, it warns.

Length, refusals and answers cut by the token limit do not decide: they warn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Comparison, TiedRuns
from benchgate.gate.decision import CannotJudge, Estimate, inconclusive, invalid
from benchgate.gate.evidence.items import (
    DIFFERENT,
    MEASURE_AGAIN,
    RowPairs,
    lacks_similarity,
    paired_rows,
    pairs_with_similarity,
    require_pass_at_worst,
    require_similarity,
    unanswered_notes,
)
from benchgate.gate.policy import CheckSpec
from benchgate.model.metric import names_of
from benchgate.model.records import (
    NO_VERDICT,
    UNFIT_JUDGE,
    AnswerAgreement,
    BoolArray,
    FloatArray,
    JudgeVerdict,
    ShadowItem,
)
from benchgate.stats.distributions import binom_cdf
from benchgate.stats.evals import MAX_EXCESS_CHANGE, Excess, excess_change, excess_disagreement, excess_sampled
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import clopper_pearson, mcnemar_p, tango_limits, tango_noninferiority_p
from benchgate.stats.trace import Trace
from benchgate.suite.schema import Suite


class ShadowChecks:
    """Checks of the shadow comparison."""

    metrics = names_of(lambda metric: metric.family == "shadow")

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Measure one check over the prompts that the baseline answered."""
        if spec.check.margin is None:
            measure_validity_bound(estimate, comparison, alpha)
            return
        by_metric = {
            "shadow_excess": measure_excess, "shadow_validity": measure_validity, "judge_loss": measure_judge_loss,
        }  # fmt: skip
        by_metric[spec.check.metric](estimate, comparison, alpha)


# Length, refusals and cut answers: warnings and notes beside `shadow_excess`

LENGTH_BAND = (0.9, 1.1)  # ratio of answer lengths that does not warn; outside of it, a candidate rambles or breaks off
_CUT_GAP = 0.01
_WARNINGS = 4


def behaviour_warnings(rows: Sequence[ShadowItem], alpha: float) -> Iterator[str]:
    """Yield significant differences in length, refusals and cut answers; the four tests share the error rate."""
    alpha = alpha / _WARNINGS
    for lengths in _lengths(rows):
        ratio = _ratio(lengths)
        if ratio is None or LENGTH_BAND[0] <= ratio <= LENGTH_BAND[1]:
            continue
        gaps = np.array([candidate - baseline for baseline, candidate in lengths], dtype=np.float64)
        test = paired_t(gaps if ratio > 1 else -gaps, alpha / 2)
        if test is not None and test.p_value <= alpha / 2:
            yield f"the candidate's answers are {ratio:.2f} times as long as the baseline's"
            break
    both = [row for row in rows if row.primary_facts is not None and row.candidate_facts is not None]
    more, fewer = _discordant(both, _refused)
    if more > fewer and mcnemar_p(more, fewer) <= alpha:
        yield f"the candidate refuses {more} prompts that the baseline answers, and answers {fewer} that it refuses"
    more, fewer = _discordant(both, lambda row: (row.primary_finish == "length", row.candidate_finish == "length"))
    if more - fewer > _CUT_GAP * len(both) and mcnemar_p(more, fewer) <= alpha:
        warning = f"{more} answers of the candidate were cut at `max_tokens` where the baseline's ended"
        yield f"{warning}, {fewer} the reverse"


def _behaviour_notes(rows: Sequence[ShadowItem]) -> Iterator[str]:
    labels = Counter(row.with_primary.label for row in rows if row.with_primary is not None)
    if labels:
        counts = ", ".join(f"{labels[label]} {label.value}" for label in AnswerAgreement if labels[label])
        yield f"the candidate's answers beside the baseline's first: {counts}"
    ratio = length_ratio(rows)
    if ratio is not None:
        yield f"the candidate's answers are {ratio:.2f} times as long"
    refused = [sum(_refused(row)[side] for row in rows) for side in (0, 1)]
    if any(refused):
        yield f"refusals: {refused[0]} of the baseline, {refused[1]} of the candidate"


def length_ratio(rows: Sequence[ShadowItem]) -> float | None:
    """Return the total length of the candidate's answers over that of the baseline's first ones.

    In tokens or in characters, whichever differs more. None if the baseline's have no length.
    """
    ratios = [ratio for lengths in _lengths(rows) if (ratio := _ratio(lengths)) is not None]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio if ratio else math.inf), default=None)


def _discordant(rows: Sequence[ShadowItem], property_of: Callable[[ShadowItem], tuple[bool, bool]]) -> tuple[int, int]:
    pairs = [property_of(row) for row in rows]
    return sum(ours and not theirs for theirs, ours in pairs), sum(theirs and not ours for theirs, ours in pairs)


def _ratio(lengths: Sequence[tuple[int, int]]) -> float | None:
    total = sum(baseline for baseline, _ in lengths)
    return sum(candidate for _, candidate in lengths) / total if total else None


def _lengths(rows: Sequence[ShadowItem]) -> Iterator[list[tuple[int, int]]]:
    facts = [(row.primary_facts, row.candidate_facts) for row in rows]
    both = [(theirs, ours) for theirs, ours in facts if theirs is not None and ours is not None]
    tokens = [(theirs.tokens, ours.tokens) for theirs, ours in both]
    known = [(theirs, ours) for theirs, ours in tokens if theirs is not None and ours is not None]
    if len(known) == len(both):
        yield known
    yield [(theirs.characters, ours.characters) for theirs, ours in both]


def _refused(row: ShadowItem) -> tuple[bool, bool]:
    theirs, ours = row.primary_facts, row.candidate_facts
    return theirs is not None and theirs.refusal, ours is not None and ours.refusal


# shadow_validity

_NO_FORM = "no recorded prompt asks for a form (`response_format`, or `tools` that an answer calls)"
_ADD_PROMPTS = "draw prompts that ask for JSON or offer tools, or remove the check"
_MORE_TOKENS = "raise `shadow.max_tokens` and measure again"


@dataclass(frozen=True, slots=True)
class _FormCounts:
    """Counts of answers whose form is judged.

    `lost`: only the baseline's answer has the form; `gained`: only the candidate's. `cut_lost` and `cut_gained` are
    those of them where the answer without the form was cut by the token limit.
    """

    n: int
    baseline: int
    candidate: int
    lost: int
    gained: int
    cut_lost: int
    cut_gained: int


def measure_validity(estimate: Estimate, comparison: Comparison, alpha: float) -> None:
    """Estimate the paired difference (lost - gained) / n over the prompts where the form of an answer is judged."""
    estimate.n_unit, estimate.method = "answers", "Tango's score limits and exact McNemar, answers paired by prompt"
    pairs, margin = paired_rows(comparison), estimate.margin
    counts = _count_forms(pairs, stored=isinstance(comparison, TiedRuns))
    n, lost, gained = counts.n, counts.lost, counts.gained
    estimate.n = n
    if clopper_pearson(counts.baseline, n, alpha).lower <= margin:
        reason = f"only {counts.baseline} of {n} answers of the baseline have the form that was asked for"
        advice = "see whether the server supports what is asked for"
        raise invalid(f"{reason}: a candidate that never has it would stay inside the margin", advice)
    estimate.baseline, estimate.candidate = counts.baseline / n, counts.candidate / n
    estimate.value, limits = (lost - gained) / n, tango_limits(lost, gained, n, alpha, estimate.trace)
    estimate.trace.made("regression", f"({lost} - {gained}) / {n}", estimate.value)
    estimate.limits, estimate.p_value = limits, _p_value(estimate, lost, gained, n, estimate.trace)
    estimate.notes = [f"{lost} lost, {gained} gained, of {n}", *unanswered_notes(comparison, len(pairs))]
    # An answer that the token limit cut says nothing about a model: it may neither make a loss nor pay for one.
    uncut = lost - counts.cut_lost
    could_pass = tango_limits(uncut, gained, n, alpha).upper < margin
    could_not_block = estimate.p_value <= alpha < _p_value(estimate, uncut, gained, n)
    if limits.upper >= margin and (could_pass or could_not_block):
        raise invalid(f"{counts.cut_lost} of the {lost} lost answers were cut by the token limit", _MORE_TOKENS)
    if limits.upper < margin <= tango_limits(lost, gained - counts.cut_gained, n, alpha).upper:
        reason = f"{counts.cut_gained} of the {gained} gained answers make up for lost ones only because the token "
        raise invalid(f"{reason}limit cut the baseline's answer", _MORE_TOKENS)


def measure_validity_bound(estimate: Estimate, comparison: Comparison, alpha: float) -> None:
    """Estimate the share of the candidate's own answers in the form asked for, with Clopper-Pearson limits."""
    estimate.n_unit, estimate.method = "answers", "Clopper-Pearson limits over answers"
    least = estimate.margin
    rows = [row for row, _ in paired_rows(comparison)]
    answers = [(form, row.candidate_finish) for row in rows if (form := _form_shown(row)) is not None]
    if not answers:
        raise invalid(_NO_FORM, _ADD_PROMPTS)
    n, valid = len(answers), sum(form for form, _ in answers)
    cut_without = sum(not form and finish == "length" for form, finish in answers)
    limits, p_value = clopper_pearson(valid, n, alpha), binom_cdf(valid, n, least)
    estimate.n, estimate.candidate, estimate.value = n, valid / n, valid / n
    estimate.limits, estimate.p_value = limits, p_value
    uncut = valid + cut_without
    could_pass = clopper_pearson(uncut, n, alpha).lower >= least
    if limits.lower < least and (could_pass or p_value <= alpha < binom_cdf(uncut, n, least)):
        reason = f"{cut_without} of the {n - valid} answers without it were cut by the token limit"
        raise invalid(reason, _MORE_TOKENS)


def _form_shown(row: ShadowItem) -> bool | None:
    """Return whether the candidate's answer has its form: not, if it is words where the baseline makes a sound call.

    Words where the baseline's call is broken are no form: they show nothing of the candidate's calls.
    """
    own = candidate_valid(row)
    lacks_call = own is None and row.primary_facts is not None and row.primary_facts.valid is True
    return False if lacks_call else own


def _count_forms(pairs: RowPairs, *, stored: bool) -> _FormCounts:
    """Count answers with and without their form. Raises CannotJudge if no prompt asks for one.

    The form of an answer is None if none was required, or if tools were offered and words came. Where only one of two
    answers is judged, a sound call on one side is what the other lacks, and a broken one is what the other does
    without, if it is an answer at all.
    """
    n = baseline = candidate = lost = gained = cut_lost = cut_gained = 0
    for judged, reference in pairs:
        if stored:
            theirs, finish = candidate_valid(reference), reference.candidate_finish
        else:
            facts, finish = judged.primary_facts, judged.primary_finish
            theirs = None if facts is None else facts.valid
        ours, ours_cut = candidate_valid(judged), judged.candidate_finish == "length"
        if theirs is None and ours is None:
            continue
        has = theirs if theirs is not None else ours is False and not (stored and reference.candidate is None)
        keeps = ours if ours is not None else theirs is False and judged.candidate is not None
        n, baseline, candidate = n + 1, baseline + has, candidate + keeps
        lost, gained = lost + (has and not keeps), gained + (keeps and not has)
        cut_lost += has and not keeps and ours_cut
        cut_gained += keeps and not has and finish == "length"
    if n == 0:
        raise invalid(_NO_FORM, _ADD_PROMPTS)
    return _FormCounts(n, baseline, candidate, lost, gained, cut_lost, cut_gained)


def candidate_valid(row: ShadowItem) -> bool | None:
    """Return the candidate's form: False for a missing answer to a prompt that the baseline answers in a form."""
    facts = row.primary_facts if row.candidate is None else row.candidate_facts
    if facts is None or facts.valid is None:
        return None
    return facts.valid and row.candidate is not None


def _p_value(estimate: Estimate, lost: int, gained: int, n: int, trace: Trace | None = None) -> float:
    if estimate.rule.breach:
        return 1 - tango_noninferiority_p(lost, gained, n, estimate.margin, trace)
    return mcnemar_p(lost, gained, trace)


# judge_loss

MAX_MISSING_VERDICTS = 0.05
"""Share of verdicts that may be missing: a judge that gives fewer is down or does not follow its instructions."""

MAX_BY_POSITION = 0.5  # share of pairs that a judge may decide by their position; beyond it, the judge sees too little

_OTHER_JUDGE = "take a judge that reads both answers, or a prompt that lets it call them a tie"
_CHECK_JUDGE = "see whether the judge answers with the JSON object that it is asked for, and measure again"
_NET_LOSS: dict[JudgeVerdict | None, float] = {
    JudgeVerdict.LOSS: 1.0,
    JudgeVerdict.WIN: -1.0,
    JudgeVerdict.TIE: 0.0,
    JudgeVerdict.INCONSISTENT: 0.0,
}


def measure_judge_loss(estimate: Estimate, comparison: Comparison, alpha: float) -> None:
    """Estimate the net losses (lost - won) / n over the prompts with a verdict.

    Two stored runs are compared prompt by prompt, each candidate beside the same baseline.
    """
    estimate.n_unit = "prompts"
    estimate.method = "Tango's score limits and exact McNemar over a judge's verdicts, asked in both positions"
    pairs, margin = paired_rows(comparison), estimate.margin
    rows = tuple(row for row, _ in pairs)
    for side in (rows, tuple(row for _, row in pairs)):
        _require_sound_judge(side, comparison, alpha)
    if isinstance(comparison, TiedRuns):
        _compare_net_losses(estimate, comparison, pairs, alpha)
        return
    verdicts = Counter(row.judged for row in rows)
    missing = verdicts[None] + verdicts[JudgeVerdict.MISSING]
    n, lost, won = len(rows) - missing, verdicts[JudgeVerdict.LOSS], verdicts[JudgeVerdict.WIN]
    limits = tango_limits(lost, won, n, alpha, estimate.trace)
    estimate.n, estimate.baseline, estimate.candidate, estimate.value = n, won / n, lost / n, (lost - won) / n
    estimate.trace.made("regression", f"({lost} - {won}) / {n}", estimate.value)
    estimate.limits, estimate.p_value = limits, _p_value(estimate, lost, won, n, estimate.trace)
    first, second, of = baseline_self_verdicts(rows)
    if 2 * mcnemar_p(max(first, second), min(first, second)) <= alpha:  # it sees what is not there
        prefers = "of two answers of the baseline itself the judge prefers the first"
        estimate.warn(f"{prefers} {first} times and the second {second}, of {of}")
    estimate.notes = [*_verdict_notes(rows), *unanswered_notes(comparison, len(rows))]
    if limits.upper < margin <= tango_limits(lost + missing, won, len(rows), alpha).upper:
        raise _depends(f"the {missing} verdicts that are missing: were they losses")
    # losses and wins, had the pairs decided by position been lost and won as often as the others
    by_judge = _pairs_put_to_judge(rows)
    total, decided = _weight(by_judge)
    lost += -(-by_judge[JudgeVerdict.LOSS] * total // decided) - by_judge[JudgeVerdict.LOSS]
    won = by_judge[JudgeVerdict.WIN] * total // decided
    if limits.upper < margin <= tango_limits(lost + missing, won, len(rows), alpha).upper:
        pairs_by_position = f"the {verdicts[JudgeVerdict.INCONSISTENT]} pairs that the judge decided by position"
        raise _depends(f"{pairs_by_position}: were they lost and won as the others are")


def _depends(condition: str) -> CannotJudge:
    return inconclusive(f"depends on {condition}, the margin would not be held", _CHECK_JUDGE)


def _require_sound_judge(rows: tuple[ShadowItem, ...], comparison: Comparison, alpha: float) -> None:
    """Raise CannotJudge if too many verdicts are missing, or the judge prefers whatever comes first.

    The advice depends on why the first missing verdict is missing.
    """
    missing = sum(row.judged in (None, JudgeVerdict.MISSING) for row in rows)
    if len(rows) > missing <= max(1.0, MAX_MISSING_VERDICTS * len(rows)):
        decided = _pairs_put_to_judge(rows)
        by_position, n = decided[JudgeVerdict.INCONSISTENT], decided.total()
        if n and clopper_pearson(by_position, n, alpha).lower > MAX_BY_POSITION:
            raise invalid(f"the judge goes by the position in {by_position} of the {n} pairs put to it", _OTHER_JUDGE)
        return
    first = next((row.judge_error for row in rows if row.judge_error), "the judge was not asked")
    if first == NO_VERDICT:
        advice = _CHECK_JUDGE
    elif first.startswith(UNFIT_JUDGE):
        advice = _OTHER_JUDGE
    else:
        shadow = comparison.judged.run.suite.get("shadow")
        judge = shadow.get("judge") if isinstance(shadow, dict) else None
        where = f" at {judge['url']}" if isinstance(judge, dict) and "url" in judge else ""
        advice = f"see whether the judge{where} is up and accepts model and key of `shadow.judge`; then measure again"
    raise invalid(f"{missing} of {len(rows)} verdicts are missing: {first}", advice)


def _pairs_put_to_judge(rows: tuple[ShadowItem, ...]) -> Counter[JudgeVerdict | None]:
    """Count the verdicts that a judge gave. Equal answers are a tie, and a missing one has lost, without a judge."""
    decided: Counter[JudgeVerdict | None] = Counter()
    for row in rows:
        equal = row.judged is JudgeVerdict.TIE and row.with_primary is not None and row.with_primary.exact
        if row.candidate is not None and not equal and row.judged not in (None, JudgeVerdict.MISSING):
            decided[row.judged] += 1
    return decided


def _weight(by_judge: Counter[JudgeVerdict | None]) -> tuple[int, int]:
    """Return the number of pairs that each decided one stands for, as a fraction: 3/2 if two of three were decided.

    Counted as ties, undecided pairs would thin out the losses: with half of them undecided, a margin of 5 points would
    be 10. Counted as losses, no candidate would pass with the position flips of sound judges (a fifth of all pairs).
    """
    decided = by_judge.total() - by_judge[JudgeVerdict.INCONSISTENT]
    return (by_judge.total(), decided) if decided else (1, 1)


def _compare_net_losses(estimate: Estimate, comparison: Comparison, pairs: RowPairs, alpha: float) -> None:
    estimate.notes = unanswered_notes(comparison, len(pairs))
    losses = [(_NET_LOSS.get(ours.judged), _NET_LOSS.get(theirs.judged)) for ours, theirs in pairs]
    both = [(ours, theirs) for ours, theirs in losses if ours is not None and theirs is not None]
    ours, theirs = (np.array([pair[side] for pair in both], dtype=np.float64) for side in (0, 1))
    tested = estimate.margin if estimate.rule.breach else 0.0
    change = excess_change(ours, theirs, alpha, margin=tested, widest=2.0, trace=estimate.trace)
    if change is None:
        raise invalid("there are too few verdicts on the same prompts in both runs", _CHECK_JUDGE)
    judged, reference = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    estimate.n, estimate.method = change.n, "paired t over a judge's verdicts, each beside the same baseline"
    estimate.baseline, estimate.candidate = float(np.mean(theirs)), float(np.mean(ours))
    estimate.value, estimate.limits, estimate.p_value = change.estimate, change.limits, change.p_value
    runs = (("judged", judged), ("reference", reference))
    estimate.notes[:0] = [f"{name} run: {note}" for name, rows in runs for note in _verdict_notes(rows)]
    at_worst = _worst_net_losses(judged, 1.0), _worst_net_losses(reference, -1.0)
    widest = sum(float(np.abs(side).max(initial=1.0)) for side in at_worst)
    worst = excess_change(*at_worst, alpha, margin=tested, widest=widest)
    if change.limits.upper < estimate.margin and (worst is None or worst.limits.upper >= estimate.margin):
        raise _depends("verdicts that are missing or went by the position: were they losses, or as the others are")


def _worst_net_losses(rows: tuple[ShadowItem, ...], missing: float) -> FloatArray:
    """Return net losses at worst: undecided pairs as the decided ones, missing verdicts as `missing`."""
    total, decided = _weight(_pairs_put_to_judge(rows))
    known = [None if row.judged is None else _NET_LOSS.get(row.judged) for row in rows]
    return np.array([missing if one is None else one * total / decided for one in known], dtype=np.float64)


def baseline_self_verdicts(rows: tuple[ShadowItem, ...]) -> tuple[int, int, int]:
    """Count the judge's verdicts on the baseline's second answer beside its first: losses, wins, all verdicts."""
    verdicts = Counter(row.judged_itself for row in rows)
    n = verdicts.total() - verdicts[None] - verdicts[JudgeVerdict.MISSING]
    return verdicts[JudgeVerdict.LOSS], verdicts[JudgeVerdict.WIN], n


def _verdict_notes(rows: tuple[ShadowItem, ...]) -> Iterator[str]:
    verdicts = Counter(row.judged for row in rows)
    lost, won, ties = (verdicts[one] for one in (JudgeVerdict.LOSS, JudgeVerdict.WIN, JudgeVerdict.TIE))
    yield f"{lost} lost, {won} won, {ties} ties, {verdicts[JudgeVerdict.INCONSISTENT]} decided by the position"
    missing = verdicts[None] + verdicts[JudgeVerdict.MISSING]
    if missing:
        yield f"{missing} verdicts missing"
    lost, won, n = baseline_self_verdicts(rows)
    if n:
        yield f"the baseline beside itself: {lost} lost, {won} won, of {n}"


# shadow_excess

_COMPARE_LESS = "compare what matters instead of every word (`shadow.compare`, `shadow.similarity`)"


def measure_excess(estimate: Estimate, comparison: Comparison, alpha: float) -> None:
    """Estimate the excess disagreement mean(x - y).

    x is half the number of times that the candidate differs from the baseline's two answers, y is 1 if these two
    differ.
    """
    estimate.n_unit = "prompts"
    estimate.method = "paired excess over the baseline's disagreement with itself"
    stored, margin = isinstance(comparison, TiedRuns), estimate.margin
    tested = margin if estimate.rule.breach else 0.0

    def measure(some: RowPairs, trace: Trace | None = None) -> Excess | None:
        return _excess(some, alpha, tested, stored=stored, trace=trace)

    pairs = paired_rows(comparison)
    rows = tuple(row for row, _ in pairs)
    estimate.n = len(rows)
    require_similarity(rows)
    require_similarity(tuple(row for _, row in pairs))
    compared = pairs_with_similarity(pairs)
    excess = measure(compared, estimate.trace)
    if excess is None:
        raise invalid("there are too few prompts", MEASURE_AGAIN)
    judged = _Disagreements(tuple(row for row, _ in compared))
    ours, theirs = judged.candidate_share, judged.own_share
    if stored:
        ours, theirs = judged.net, _Disagreements(tuple(row for _, row in compared)).net
    if judged.sampled:
        estimate.method = "excess over the baseline's disagreement with itself on the prompts that it was asked twice"
    estimate.n, estimate.baseline, estimate.candidate = excess.n, float(theirs.mean()), float(ours.mean())
    estimate.value, estimate.limits, estimate.p_value = excess.estimate, excess.limits, excess.p_value
    estimate.warn("; ".join(behaviour_warnings(rows, alpha)) or None)
    estimate.notes = unanswered_notes(comparison, len(rows))
    missing = sum(map(lacks_similarity, rows))
    if missing:
        estimate.notes.append(f"{missing} of {len(rows)} prompts left out: their similarity is missing")
    estimate.notes += _behaviour_notes(rows)
    if excess.limits.upper < margin or excess.p_value > alpha:
        # Even the worst candidate must be able to fail: noise leaves it only 1 - y to lose.
        unlike = tuple((replace(one, with_primary=DIFFERENT, with_secondary=DIFFERENT), b) for one, b in compared)
        worst = measure(unlike)
        if worst is None or worst.limits.lower <= margin:
            count = f"{int(judged.own_share.sum())} of {len(judged.own_share)}"
            why = f"the baseline differs from itself on {count} prompts"
            if stored:
                why = f"the candidate it is compared with, or the baseline itself ({count} prompts), differs too often"
            raise invalid(f"{why}: a candidate that shares nothing with it would not be blocked", _COMPARE_LESS)
    require_pass_at_worst(excess, pairs, margin, measure)


def excess_of_rows(rows: tuple[ShadowItem, ...], alpha: float) -> tuple[float, float | None, Excess | None]:
    """Return the shares of disagreement of candidate and baseline, and the excess, over some of `usable_rows`.

    The baseline's share is None if it was queried twice on none of them. There must be at least one row.
    """
    judged = _Disagreements(rows)
    own = judged.own_share
    return float(judged.candidate_share.mean()), float(own.mean()) if len(own) else None, judged.excess(alpha, 0.0)


def _excess(pairs: RowPairs, alpha: float, tested: float, *, stored: bool, trace: Trace | None = None) -> Excess | None:
    judged = _Disagreements(tuple(row for row, _ in pairs))
    if not stored:
        return judged.excess(alpha, tested, trace)
    # Each net of its own baseline's noise; both candidates against the same baseline, prompt by prompt.
    reference = _Disagreements(tuple(row for _, row in pairs))
    return excess_change(judged.net, reference.net, alpha, margin=tested, widest=judged.widest, trace=trace)


class _Disagreements:
    """Per prompt, how much the candidate differs (x) and whether the baseline differs from itself (y).

    If the baseline was queried twice on a sample of the prompts only, x looks at its first answer alone, and y is known
    on that sample.
    """

    def __init__(self, rows: tuple[ShadowItem, ...]) -> None:
        self.sampled = any(row.once for row in rows)
        # A candidate that did not answer differs from every answer.
        x = [0.5 * row.differs_from_primary + 0.5 * row.differs_from_secondary for row in rows]
        if self.sampled:
            x = [float(row.differs_from_primary) for row in rows]
        self.candidate_share: FloatArray = np.array(x, dtype=np.float64)
        # 0 if the candidate gave no answer, which no noise excuses.
        own = [not row.once and row.candidate is not None and row.differs_itself for row in rows]
        self._own: FloatArray = np.array(own, dtype=np.float64)
        twice: BoolArray = np.array([not row.once for row in rows], dtype=np.bool_)
        self.own_share: FloatArray = self._own[twice]  # y of the prompts with two answers of the baseline
        # x - y per prompt; y of a sample is weighted so that the mean is the excess
        weight = len(twice) / len(self.own_share) if len(self.own_share) else 0.0
        self.net: FloatArray = self.candidate_share - np.where(twice, weight * self._own, 0.0)
        # largest difference that one prompt can make between two runs
        self.widest = 1.0 + weight if self.sampled else MAX_EXCESS_CHANGE

    def excess(self, alpha: float, margin: float, trace: Trace | None = None) -> Excess | None:
        if not self.sampled:
            return excess_disagreement(self.candidate_share, self._own, alpha, margin=margin, trace=trace)
        return excess_sampled(self.candidate_share > 0, self.own_share > 0, alpha, margin=margin, trace=trace)
