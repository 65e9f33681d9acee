"""Accuracy: every item paired with itself; Tango's score test for the margin, exact McNemar for harm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace

from benchgate.gate.comparison import Comparison
from benchgate.gate.rule import Finding, Problem
from benchgate.model.records import EvalItem
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import binom_cdf
from benchgate.stats.proportions import clopper_pearson, mcnemar_harm_p, tango_limits, tango_p_margin


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two arms' answers to the same items. `lost` = baseline right, candidate wrong; `gained` = the reverse.

    `cut_lost` and `cut_gained` are those whose wrong answer the token limit cut short: they say nothing about what the
    model knows, so they may neither make a loss nor pay for one.
    """

    n: int
    baseline_right: int
    candidate_right: int
    lost: int
    gained: int
    cut_lost: int
    cut_gained: int


def pair_items(comparison: Comparison, tasks: Iterable[str]) -> Pairing | Problem:
    """Pair the items of the tasks by their own id; a Problem when they are not the same items or not all scored."""
    counts = [0] * len(fields(Pairing))
    for task in tasks:
        baseline, candidate = comparison.baseline_quality(task), comparison.candidate_quality(task)
        if baseline is None or candidate is None:
            arm = "baseline" if baseline is None else "candidate"
            return _invalid(f"task {task} was not run on the {arm}", "see the faults of the targets")
        for observation in (baseline, candidate):
            if observation.fault is not None:
                arm = observation.arm.value
                return _invalid(f"task {task} failed on the {arm}: {observation.fault}", _MEND_HARNESS)
            if len(observation.items) != observation.expected_n:
                found = f"{len(observation.items)} of {observation.expected_n} items"
                return _invalid(f"task {task} has only {found} on the {observation.arm.value}", _MEND_HARNESS)
        paired = _pair_task(task, baseline.items, candidate.items)
        if isinstance(paired, Problem):
            return paired
        counts = [total + more for total, more in zip(counts, astuple(paired), strict=True)]
    return Pairing(*counts)


def relative(comparison: Comparison, tasks: tuple[str, ...], *, margin: float, breach: bool, alpha: float) -> Finding:
    """Harm in accuracy as a paired difference, (lost - gained) / n."""
    finding = _finding(Scale.DIFFERENCE, margin, "Tango's score limits and exact McNemar, items paired by id", breach)
    pairing = pair_items(comparison, tasks)
    if isinstance(pairing, Problem):
        return replace(finding, problem=pairing)
    if pairing.n == 0:
        return replace(finding, problem=_invalid("there are no items", "give the task rows, or raise `limit`"))
    if clopper_pearson(pairing.baseline_right, pairing.n, alpha).lower <= margin:
        share = f"{pairing.baseline_right} of {pairing.n} items"
        reason = f"the baseline gets only {share} right: a candidate that gets none right would stay inside the margin"
        return replace(finding, n=pairing.n, problem=_invalid(reason, "use items that the baseline can do"))
    limits = tango_limits(pairing.lost, pairing.gained, pairing.n, alpha)
    finding = replace(
        finding,
        n=pairing.n,
        baseline=pairing.baseline_right / pairing.n,
        candidate=pairing.candidate_right / pairing.n,
        harm=(pairing.lost - pairing.gained) / pairing.n,
        limits=limits,
        p_value=_harm_p(pairing.lost, pairing, margin, breach),
        notes=(f"{pairing.lost} items lost, {pairing.gained} gained, of {pairing.n}",),
    )
    if limits.upper >= margin and _only_cut_answers_fail(pairing, margin, breach, alpha):
        reason = f"{pairing.cut_lost} of the {pairing.lost} lost items were cut short by the token limit"
        return replace(finding, problem=_invalid(reason, _MORE_TOKENS))
    earned = tango_limits(pairing.lost, pairing.gained - pairing.cut_gained, pairing.n, alpha)
    if limits.upper < margin <= earned.upper:
        reason = f"{pairing.cut_gained} of the {pairing.gained} gained items pay for lost ones only because the token "
        return replace(finding, problem=_invalid(f"{reason}limit cut the baseline's answer short", _MORE_TOKENS))
    return finding


def absolute(comparison: Comparison, tasks: tuple[str, ...], *, slo: float, alpha: float) -> Finding:
    """The candidate's own accuracy against a floor: Clopper-Pearson limits."""
    finding = replace(_finding(Scale.ABSOLUTE, slo, "Clopper-Pearson limits over items", True), lower_is_worse=True)
    pairing = pair_items(comparison, tasks)
    if isinstance(pairing, Problem):
        return replace(finding, problem=pairing)
    if pairing.n == 0:
        return replace(finding, problem=_invalid("there are no items", "give the task rows, or raise `limit`"))
    value = pairing.candidate_right / pairing.n
    p_value = binom_cdf(pairing.candidate_right, pairing.n, slo)
    limits = clopper_pearson(pairing.candidate_right, pairing.n, alpha)
    return replace(finding, n=pairing.n, candidate=value, harm=value, limits=limits, p_value=p_value)


def _pair_task(task: str, baseline: tuple[EvalItem, ...], candidate: tuple[EvalItem, ...]) -> Pairing | Problem:
    theirs = {item.item_id: item for item in baseline}
    ours = {item.item_id: item for item in candidate}
    if len(theirs) != len(baseline) or len(ours) != len(candidate) or theirs.keys() != ours.keys():
        return _invalid(f"task {task}: the arms did not answer the same items", "give every row its own `id`")
    lost = gained = cut_lost = cut_gained = right = ours_right = 0
    for item_id, b in theirs.items():
        c = ours[item_id]
        if (b.doc_hash, b.prompt_hash, b.target_hash) != (c.doc_hash, c.prompt_hash, c.target_hash):
            return _invalid(f"task {task}, item {item_id}: the arms got different prompts", _MEND_HARNESS)
        for arm, item in (("baseline", b), ("candidate", c)):
            if item.correct is None:
                why = item.error or "it has no score"
                return _invalid(f"task {task}, item {item_id} was not scored on the {arm}: {why}", _MEND_HARNESS)
        right += bool(b.correct)
        ours_right += bool(c.correct)
        lost += bool(b.correct) and not c.correct
        gained += bool(c.correct) and not b.correct
        cut_lost += bool(b.correct) and not c.correct and c.finish_reason == "length"
        cut_gained += bool(c.correct) and not b.correct and b.finish_reason == "length"
    return Pairing(len(theirs), right, ours_right, lost, gained, cut_lost, cut_gained)


def _harm_p(lost: int, pairing: Pairing, margin: float, breach: bool) -> float:
    if breach:
        return 1 - tango_p_margin(lost, pairing.gained, pairing.n, margin)
    return mcnemar_harm_p(lost, pairing.gained)


def _only_cut_answers_fail(pairing: Pairing, margin: float, breach: bool, alpha: float) -> bool:
    """Harm would not be shown if every answer that the token limit cut short had been right."""
    if pairing.cut_lost == 0:
        return False
    return _harm_p(pairing.lost - pairing.cut_lost, pairing, margin, breach) > alpha


def _finding(scale: Scale, margin: float, method: str, breach: bool) -> Finding:
    return Finding(
        unit=Unit.RATIO, scale=scale, margin=margin, method=method, n=0, n_unit="items", breach=breach, falls=True
    )


def _invalid(reason: str, advice: str) -> Problem:
    return Problem(Outcome.INVALID, reason, advice)


_MORE_TOKENS = "raise `quality.max_tokens` and measure again"
_MEND_HARNESS = "see the harness's log and the server's; nothing here speaks for or against the candidate"
