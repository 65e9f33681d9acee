"""Whether answers have the form that recorded prompts asked for: JSON, a schema, calls of tools that were offered.

An accuracy of its own, and directional: a candidate that breaks the form loses what its clients live on, so there is no
noise to be taken off. Paired with the baseline's first answer; Tango's score limits and exact McNemar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchgate.gate.comparison import Comparison
from benchgate.gate.item_steps import score_steps
from benchgate.gate.rule import Finding, Problem
from benchgate.gate.shadow_rows import invalid, left_out, paired_rows
from benchgate.model.records import ShadowItem
from benchgate.model.shadow import AnswerFacts
from benchgate.model.verdict import Scale, Unit
from benchgate.stats.distributions import binom_cdf
from benchgate.stats.proportions import clopper_pearson, mcnemar_harm_p, tango_limits, tango_p_margin

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


def relative(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
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


def absolute(comparison: Comparison, *, slo: float, alpha: float) -> Finding:
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
        return 1 - tango_p_margin(lost, found.gained, found.n, margin)
    return mcnemar_harm_p(lost, found.gained)


def _finding(scale: Scale, margin: float, method: str, breach: bool) -> Finding:
    return Finding(
        unit=Unit.RATIO, scale=scale, margin=margin, method=method, n=0, n_unit="answers", breach=breach, falls=True
    )
