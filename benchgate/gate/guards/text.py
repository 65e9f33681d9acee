"""Guards over the text of answers under load: it fits the usage, it answers, it is not noise, the right model wrote it.

Evals may be answered well by a server that sends blanks, repeats itself or leaves text out once it is under load. Why
the bounds are where they are: docs/decisions.md, "Guards".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence

import numpy as np

from benchgate.gate.comparison import load_of, paired_load, places
from benchgate.gate.evidence.tokens import ROUNDING, LogRatio, TextRatios, same_rows, text_ratios
from benchgate.gate.guards.base import A_LOAD, SPEED, Caution, NotApplicable, Violation, guard
from benchgate.gate.guards.load import is_significantly_more
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, BoolArray, RequestColumns
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence
from benchgate.suite.schema import Suite

_INFLATED = 1.10  # tokens counted over tokens shown: beyond it no number of the arm can be restated
_MISSING = 0.75  # characters per token, of the other arm's: no style of one vocabulary is so short of text
_SPARSE = 0.90  # the same, where a style may still explain it
_TIMES = 2  # as many answers of one arm alone as of the other alone; fewer is how two models differ
_MOSTLY_BLANK = 0.5
_MOSTLY_REPEATED = 0.9
_REPEATED_PERCENT = 80  # natural text compresses by 25 to 45 %, code and tables by up to 70 %

Marks = Callable[[RequestColumns], tuple[BoolArray, BoolArray]]
"""Function that marks requests. Returns two masks: the marked ones, and those of which it is known."""


@guard(
    "same-text", "the text of both arms fits the tokens that they count", invalidates=SPEED, by_arm=True, needs=A_LOAD
)
def same_text(run: Evidence, suite: Suite) -> Violation | Caution | NotApplicable | None:
    """Flag text that is missing, or usage that counts more than was written.

    Of the requests that both arms answered and counted by usage (metrics.md, "Text against usage"): a token that one
    arm counts is shown to have less than 0.75 times as many visible characters as one of the other arm's; or one arm's
    usage is shown to count more than 1.10 times the tokens that its text shows. *Warns* where the candidate's tokens
    are shown to have less than 0.9 times the characters. Not applicable below 10 such requests, and where the
    vocabularies may differ.
    """
    sparse: Caution | None = None
    compared = False
    for place in places(suite):
        ratios = text_ratios(run, place.name, suite)
        if ratios is None:
            continue
        compared = True
        for arm in (Arm.CANDIDATE, Arm.BASELINE):
            contradiction = _contradiction(ratios, arm)
            if contradiction is not None:
                remedy = (
                    "see what this server leaves out of its text, or counts as output tokens and does not send; where "
                    "a token is other text on purpose, write `gate.allow_different: [vocabulary]`"
                )
                return Violation(f"stage {place.name}: {contradiction}", remedy, arm)
        if sparse is None and ratios.chars_per_token.limits.upper < math.log(_SPARSE) - ROUNDING:
            reason = f"stage {place.name}: {_less_text(ratios.chars_per_token, Arm.CANDIDATE, _SPARSE)}"
            remedy = "read answers of both arms: tokens per second and time per token count tokens that hold less text"
            sparse = Caution(reason, remedy)
    if compared:
        return sparse
    return NotApplicable("text and usage were not compared: too few answers have both, or vocabularies differ")


def _contradiction(ratios: TextRatios, arm: Arm) -> str | None:
    """Return how this arm's text contradicts its usage; None where it does not, or too little to flag."""
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


@guard("answers-there", "where one arm answered, the other did too", invalidates=SPEED, by_arm=True, needs=A_LOAD)
def answers_there(run: Evidence, suite: Suite) -> Violation | Caution | NotApplicable | None:
    """Flag requests that one arm answered and the other did not: reasoning alone, or nothing visible.

    Of the requests that both arms answered, more than 1 % more of one arm's than of the other's have no answer (no
    visible character and no tool call outside the reasoning), beyond chance (exact McNemar) and at least twice as often
    on one arm alone as on the other alone. Less than twice *warns*. Models that both think until the limit are alike.
    """
    remedy = (
        "let both arms reason alike, with room for the answer (`output`), or see why this server's answers are empty"
    )
    kinds: dict[str, Marks] = {"have no answer (no visible text and no tool call outside the reasoning)": _no_answer}
    return _more_marked(run, suite, kinds, remedy)


@guard(
    "text-not-degenerate", "no arm alone writes blank or repeated text", invalidates=SPEED, by_arm=True, needs=A_LOAD
)
def text_not_degenerate(run: Evidence, suite: Suite) -> Violation | Caution | NotApplicable | None:
    """Flag blank answers and endless repetition that one arm has more of.

    The rule of `answers-there`, for answers that are blank (no visible character at all, though tokens of text were
    counted), or whose end compresses by 80 % or more. *Warns* too where both arms are alike and more than half of all
    answers are blank, or more than nine tenths repeat themselves.
    """
    repeats = f"repeat themselves (their end compresses by {_REPEATED_PERCENT} % or more)"
    kinds: dict[str, Marks] = {"are blank although tokens were counted": _blank, repeats: _repeated}
    remedy = "read its answers under load: blank or repeated text is what a broken quantisation or kernel writes"
    found = _more_marked(run, suite, kinds, remedy)
    if isinstance(found, Violation | Caution):
        return found
    for place in places(suite):
        for (what, marks), bound in zip(kinds.items(), (_MOSTLY_BLANK, _MOSTLY_REPEATED), strict=True):
            counts = [_count_marked(run, place.name, arm, marks) for arm in Arm]
            measured = [(marked, known) for marked, known in counts if known]
            if measured and all(marked > bound * known for marked, known in measured):
                shares = " and ".join(f"{marked} of {known}" for marked, known in measured)
                remedy = (
                    "read answers of both arms: their speed is that of text nobody wants; let answers end "
                    "(`ignore_eos: false`)"
                )
                return Caution(f"stage {place.name}: {shares} answers {what} (bound {bound:.0%})", remedy)
    return found


def _more_marked(
    run: Evidence, suite: Suite, kinds: dict[str, Marks], remedy: str
) -> Violation | Caution | NotApplicable | None:
    """Compare one arm's marked answers with the other's, for the same requests.

    Beyond chance and by more than a point, it is a violation where one arm alone is marked twice as often as the other
    alone; else it warns.
    """
    caution: Caution | None = None
    any_known = False
    for place in places(suite):
        for what, marks in kinds.items():
            alone, n = _marked_alone(run, place.name, marks)
            any_known = any_known or n > 0
            worse = max(Arm, key=lambda arm: alone[arm])
            more, fewer = alone[worse], alone[worse.other]
            if not is_significantly_more(more, fewer, n, suite.gate.alpha):
                continue
            found = f"{more} of {n} answers of the {worse.value} alone {what}, {fewer} of the {worse.other.value} alone"
            reason = f"stage {place.name}: {found} (bound 1% apart)"
            if more >= _TIMES * fewer:
                return Violation(reason, remedy, worse)
            caution = caution or Caution(reason, remedy)
    return caution if any_known else NotApplicable("there is no request for which both arms' text was recorded")


def _marked_alone(run: Evidence, stage: str, marks: Marks) -> tuple[dict[Arm, int], int]:
    """Count the requests that are marked on one arm alone, and those known on both arms."""
    alone, n = dict.fromkeys(Arm, 0), 0
    for pair in paired_load(run, stage):
        (theirs, known), (ours, also_known) = (
            tuple(mask[at] for mask in marks(o.requests)) for o, at in zip(pair, same_rows(*pair), strict=True)
        )
        both = known & also_known
        n += int(both.sum())
        alone[Arm.BASELINE] += int((both & theirs & ~ours).sum())
        alone[Arm.CANDIDATE] += int((both & ours & ~theirs).sum())
    return alone, n


def _count_marked(run: Evidence, stage: str, arm: Arm, marks: Marks) -> tuple[int, int]:
    """Count one arm's marked answers, and those of which it is known."""
    found = [marks(execution.requests) for execution in load_of(run, stage, arm).values()]
    return sum(int((one & known).sum()) for one, known in found), sum(int(known.sum()) for _, known in found)


def _has_counted_text(columns: RequestColumns) -> BoolArray:
    """Mark successful answers with output tokens whose visible characters were counted."""
    recorded = (columns.answer_chars != ABSENT) & (columns.reasoning_chars != ABSENT)
    known: BoolArray = succeeded(columns) & recorded & (columns.output_tokens > 0)
    return known


def _no_answer(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    known = _has_counted_text(columns) & (columns.tool_calls != ABSENT)
    return (columns.answer_chars == 0) & (columns.tool_calls <= 0), known


def _blank(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    """Reasoning that was counted and not sent is not blank text."""
    shown = columns.output_tokens > np.maximum(columns.reasoning_tokens, 0)
    return shown & (columns.answer_chars == 0) & (columns.reasoning_chars == 0), _has_counted_text(columns)


def _repeated(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    """A text too short to be compressed repeats nothing endlessly."""
    return columns.redundancy_percent >= _REPEATED_PERCENT, _has_counted_text(columns)


# --- The model's name -------------------------------------------------------------------------------------------------

_SNAPSHOT = r"[-@](\d{4}-\d{2}-\d{2}|\d{8}|[01]\d[0-3]\d)"  # gpt-4o -> gpt-4o-2024-08-06, gpt-4 -> gpt-4-0613
_MOST_SHOWN = 3
_LONGEST_SHOWN = 100


@guard("model-names", "every answer names the model that was asked for, or one that the suite declares", needs=A_LOAD)
def model_names(run: Evidence, suite: Suite) -> Caution | NotApplicable | None:
    """Flag nothing: *warn* where an answer to the load names another model.

    The name is neither the one asked for (`model`, or the workload's `adapter`) nor declared by `answers_as` of the
    deployment. Accepted as the same: another case, an organisation or path before the name, `.gguf` behind it, one
    dated snapshot (`gpt-4o` → `gpt-4o-2024-08-06`). Two snapshots in one arm are two models. Ramp and cancelled
    requests count too.
    """
    levels = suite.load.levels() if suite.load is not None else ()
    adapters = {level.name: level.workload.adapter for level in levels}
    answered: dict[tuple[Arm, str], set[str]] = {}
    for execution in run.load:
        deployment = run.run.arms.get(execution.arm)
        if deployment is None or execution.stage not in adapters:
            continue
        asked = adapters[execution.stage] or deployment.model
        names = {name for part in execution.parts for name in part.answer_model.counts() if name is not None}
        answered.setdefault((execution.arm, asked), set()).update(names)
    if not any(answered.values()):
        return NotApplicable("no answer names its model")
    others, declare = [], []
    for (arm, asked), names in answered.items():
        name = run.run.arms[arm].name
        spec = suite.deployments.get(name)
        other = unexpected_names(names, asked, () if spec is None else spec.answers_as)
        if other:
            others.append(f"the {arm.value} {name} was asked for {_quoted([asked])} and answered as {_quoted(other)}")
            declare.append(f"`answers_as: [{_quoted(other)}]` to `deployments.{name}`")
    if not others:
        return None
    remedy = f"see which model it really serves; if it is the right one, add {' and '.join(declare)}"
    return Caution("; ".join(others), remedy)


def unexpected_names(names: Collection[str], asked: str, declared: Collection[str] = ()) -> list[str]:
    """Return the names in answers that are not the model asked for, sorted.

    A name is expected where it is declared, or equals the one asked for apart from case, an organisation or path before
    it, a `.gguf` behind it and a dated snapshot. Two different snapshots are not one model: both are returned.
    """
    undeclared = [name for name in sorted(set(names)) if name not in declared]
    expected = re.compile(re.escape(_bare(asked)) + f"({_SNAPSHOT})?")
    other = [name for name in undeclared if not expected.fullmatch(_bare(name))]
    if len({_bare(name) for name in undeclared if name not in other}) > 1:
        return [name for name in undeclared if _bare(name) != _bare(asked)]
    return other


def _bare(name: str) -> str:
    return re.split(r"[/\\]", name)[-1].lower().removesuffix(".gguf")


def _quoted(names: Sequence[str]) -> str:
    """Names as JSON strings, which YAML reads too."""
    shown = [json.dumps(name[:_LONGEST_SHOWN], ensure_ascii=False) for name in names[:_MOST_SHOWN]]
    return ", ".join([*shown, *(["…"] if len(names) > _MOST_SHOWN else [])])
