"""Guards over what was said under load: text that fits the usage, answers that answer, text that is no noise.

Evals may be answered well by a server that sends blanks, repeats itself or leaves text out once it is under load. Why
the bounds are where they are: docs/decisions.md, "Guards".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchgate.gate.comparison import load_of, paired_load, places
from benchgate.gate.evidence.tokens import ROUNDING, LogRatio, TextRatios, same_rows, text_ratios
from benchgate.gate.guards.base import SPEED, held, spoils_of, tripped, unknown, warned
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, BoolArray, RequestColumns
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.stats.proportions import mcnemar_harm_p
from benchgate.suite.schema import Suite

_INFLATED = 1.10  # tokens counted over tokens shown: beyond it no number of the arm can be restated
_MISSING = 0.75  # characters per token, of the other arm's: no style of one vocabulary is so short of text
_SPARSE = 0.90  # the same, where a style may still explain it
_GAP = 0.01  # of the answers
_TIMES = 2  # as many answers of one arm alone as of the other alone; fewer is how two models differ
_MOSTLY_BLANK = 0.5
_MOSTLY_REPEATED = 0.9
_REPEATED_PERCENT = 80  # natural text compresses by 25 to 45 %, code and tables by up to 70 %

Marks = Callable[[RequestColumns], tuple[BoolArray, BoolArray]]
"""Function that marks requests. Returns two masks: the marked ones, and those of which it is known."""


def same_text(evidence: Evidence, suite: Suite) -> GuardResult:
    """Compare the text of both arms with the tokens that their usage counts.

    Trips where text is missing on one arm, or where one arm's usage counts more than 10 % more tokens than its text
    shows. Warns where the candidate's tokens hold less text than any usual style explains.
    """
    sparse = None
    compared = False
    for place in places(suite):
        ratios = text_ratios(evidence, place.name, suite)
        if ratios is None:
            continue
        compared = True
        for arm in (Arm.CANDIDATE, Arm.BASELINE):
            found = _contradiction(ratios, arm)
            if found is not None:
                return tripped("same-text", f"stage {place.name}: {found}", _TEXT_MISSING, spoils_of(arm, SPEED))
        if sparse is None and ratios.chars_per_token.limits.upper < math.log(_SPARSE) - ROUNDING:
            sparse = f"stage {place.name}: {_less_text(ratios.chars_per_token, Arm.CANDIDATE, _SPARSE)}"
    if sparse is not None:
        return warned("same-text", sparse, _LESS_TEXT)
    if not compared:
        return unknown(
            "same-text", "text and usage were not compared: too few answers have both, or vocabularies differ"
        )
    return held("same-text", "the text of both arms fits the tokens that they count")


def _contradiction(ratios: TextRatios, arm: Arm) -> str | None:
    """Return how this arm's text contradicts its usage; None where it does not, or too little to trip."""
    text = ratios.chars_per_token if arm is Arm.CANDIDATE else ratios.chars_per_token.reversed()
    if text.limits.upper < math.log(_MISSING) - ROUNDING:
        return _less_text(text, arm, _MISSING)
    inflation = ratios.inflation(arm)
    if inflation is None or inflation.limits.lower <= math.log(_INFLATED) + ROUNDING:
        return None
    counted = f"the {arm.value}'s usage counts {math.exp(inflation.estimate):.2f} times the tokens that its text shows"
    return (
        f"beside the {arm.other.value}, {counted} (bound {_INFLATED:g}): fewer characters a token, more tokens a piece"
    )


def _less_text(text: LogRatio, arm: Arm, bound: float) -> str:
    times = f"{math.exp(text.estimate):.2f} times as many visible characters as one of the {arm.other.value}'s"
    return f"a token that the {arm.value} counts has {times} (bound {bound:g})"


def answers_there(evidence: Evidence, suite: Suite) -> GuardResult:
    """Count requests that one arm answered and the other did not: reasoning alone, or nothing visible."""
    return _compared(
        evidence,
        suite,
        "answers-there",
        [("have no answer (no visible text and no tool call outside the reasoning)", _no_answer)],
        "where one arm answered, the other did too",
        _NO_ANSWER,
    )


def text_not_degenerate(evidence: Evidence, suite: Suite) -> GuardResult:
    """Count blank and endlessly repeated answers: trips where one arm has more, warns where most of both are so."""
    kinds: list[tuple[str, Marks]] = [("are blank although tokens were counted", _blank), (_REPEATS, _repeated)]
    told = "no arm's text is blank or repeats itself more than the other's"
    result = _compared(evidence, suite, "text-not-degenerate", kinds, told, _DEGENERATE)
    if result.tripped or result.warns:
        return result
    for place in places(suite):
        for (what, marks), bound in zip(kinds, (_MOSTLY_BLANK, _MOSTLY_REPEATED), strict=True):
            counts = [_counts(evidence, place.name, arm, marks) for arm in Arm]
            measured = [(marked, known) for marked, known in counts if known]
            if measured and all(marked > bound * known for marked, known in measured):
                shares = " and ".join(f"{marked} of {known}" for marked, known in measured)
                reason = f"stage {place.name}: {shares} answers {what} (bound {bound:.0%})"
                return warned("text-not-degenerate", reason, _BOTH_DEGENERATE)
    return result


def _compared(
    evidence: Evidence, suite: Suite, name: str, kinds: Sequence[tuple[str, Marks]], fine: str, remedy: str
) -> GuardResult:
    """Hold one arm's marked answers against the other's, for the same requests.

    Beyond chance (exact McNemar) and by more than a point, it trips where one arm alone is marked twice as often as the
    other alone; else it warns.
    """
    warning: GuardResult | None = None
    any_known = False
    for place in places(suite):
        for what, marks in kinds:
            alone, n = _alone(evidence, place.name, marks)
            any_known = any_known or n > 0
            worse = max(Arm, key=lambda arm: alone[arm])
            more, fewer = alone[worse], alone[worse.other]
            if more - fewer <= _GAP * n or 2 * mcnemar_harm_p(more, fewer) > suite.gate.alpha:
                continue
            found = f"{more} of {n} answers of the {worse.value} alone {what}, {fewer} of the {worse.other.value} alone"
            reason = f"stage {place.name}: {found} (bound {_GAP:.0%} apart)"
            if more >= _TIMES * fewer:
                return tripped(name, reason, remedy, spoils_of(worse, SPEED))
            warning = warning or warned(name, reason, remedy)
    if warning is not None:
        return warning
    if not any_known:
        return unknown(name, "of no request it is known what both arms said")
    return held(name, fine)


def _alone(evidence: Evidence, stage: str, marks: Marks) -> tuple[dict[Arm, int], int]:
    """Count the requests that are marked on one arm alone, and those of which both arms are known."""
    alone, n = dict.fromkeys(Arm, 0), 0
    for pair in paired_load(evidence, stage):
        rows = same_rows(*pair)
        (theirs, told), (ours, known) = (
            tuple(column[at] for column in marks(execution.requests)) for execution, at in zip(pair, rows, strict=True)
        )
        both = told & known
        n += int(both.sum())
        alone[Arm.BASELINE] += int((both & theirs & ~ours).sum())
        alone[Arm.CANDIDATE] += int((both & ours & ~theirs).sum())
    return alone, n


def _counts(evidence: Evidence, stage: str, arm: Arm, marks: Marks) -> tuple[int, int]:
    """Count one arm's marked answers, and those of which it is known."""
    found = [marks(execution.requests) for execution in load_of(evidence, stage, arm).values()]
    return sum(int((one & known).sum()) for one, known in found), sum(int(known.sum()) for _, known in found)


def _known(columns: RequestColumns) -> BoolArray:
    """Mark successful answers with output tokens whose visible characters were counted."""
    told = (columns.answer_chars != ABSENT) & (columns.reasoning_chars != ABSENT)
    known: BoolArray = succeeded(columns) & told & (columns.output_tokens > 0)
    return known


def _no_answer(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    return (columns.answer_chars == 0) & (columns.tool_calls <= 0), _known(columns) & (columns.tool_calls != ABSENT)


def _blank(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    """Reasoning that was counted and not sent is no blank text."""
    shown = columns.output_tokens > np.maximum(columns.reasoning_tokens, 0)
    return shown & (columns.answer_chars == 0) & (columns.reasoning_chars == 0), _known(columns)


def _repeated(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    """A text too short to be compressed repeats nothing endlessly."""
    return columns.redundancy_percent >= _REPEATED_PERCENT, _known(columns)


_REPEATS = f"repeat themselves (their end compresses by {_REPEATED_PERCENT} % or more)"
_TEXT_MISSING = (
    "see what this server leaves out of its text, or counts as output tokens and does not send; where a token is other "
    "text on purpose, write `gate.allow_different: [vocabulary]`"
)
_LESS_TEXT = "read answers of both arms: tokens per second and time per token count tokens that hold less text"
_NO_ANSWER = (
    "let both arms reason alike and leave room for the answer (`output`), or see why this server's answers are empty"
)
_DEGENERATE = "read its answers under load: blank or repeated text is what a broken quantisation or kernel writes"
_BOTH_DEGENERATE = (
    "read answers of both arms: their speed is that of text nobody wants; let answers end (`ignore_eos: false`)"
)
