"""Guards over the text of responses under load: plausible usage, visible answers, no degenerate text, the right model.

A server may pass its evals and still send blank, repeated or truncated text under load. The bounds are justified in
docs/adr/17-text-against-usage.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence

import numpy as np

from benchgate.gate.comparison import by_adapter, load_of, paired_load
from benchgate.gate.evidence.tokens import (
    ROUNDING,
    LogRatio,
    TextRatios,
    has_recorded_text,
    has_text_and_count,
    hidden_reasoning,
    same_rows,
    text_ratios,
)
from benchgate.gate.guards.base import (
    A_LOAD,
    FIRST,
    FIRST_METRICS,
    SPEED,
    TOKENS,
    Caution,
    NotApplicable,
    Violation,
    guard,
)
from benchgate.gate.guards.load import is_significantly_more, with_all_stages
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, BoolArray, RequestColumns, TokenSource
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence
from benchgate.suite.schema import Suite, all_traffic, traffic_classes

_INFLATED = 1.10  # tokens counted per token shown by the text: beyond it the arm's numbers cannot be restated
_MISSING = 0.75  # of the other arm's characters per token: no style explains less with the same vocabulary
_SPARSE = 0.90  # the same ratio, which style may still explain
_HIDDEN = 0.01  # largest difference of the shares of hidden reasoning that two sound servers show
_EMPTY_BLOCK = 4  # tokens of `<think>`, a blank line, `</think>` and a blank line: no reasoning was hidden
_TIMES = 2  # ratio of marked answers on one arm alone to the other alone; two sound models stay below
_MOSTLY_BLANK = 0.5
_MOSTLY_REPEATED = 0.9
_REPEATED_PERCENT = 80  # natural text compresses by 25 to 45 %, code and tables by up to 70 %

Marks = Callable[[RequestColumns], tuple[BoolArray, BoolArray]]
"""Function that marks requests. Returns two masks: marked requests, and those with enough data to tell."""


@guard(
    "same-text", "the text of both arms fits the tokens that they count", invalidates=SPEED, by_arm=True, needs=A_LOAD
)
def same_text(run: Evidence, suite: Suite) -> Violation | Caution | NotApplicable | None:
    """Flag missing text, or usage that counts more tokens than were written.

    Among the requests that both arms answered and counted by usage ("Text against usage"): one arm's tokens
    have significantly less than 0.75 times the visible characters of the other arm's; or one arm's usage counts
    significantly more than 1.10 times the tokens that its text shows. *Warns* if the candidate's tokens have
    significantly less than 0.9 times the characters. Not applicable below 10 such requests, or if the vocabularies may
    differ.

    Reasoning that usage counts and the stream does not show cannot be checked. Tokens are invalidated too if its share
    of one arm's output tokens is over 1 point higher, significantly in a stage or over all (exact McNemar, Bonferroni),
    and the arm hides at least twice as many tokens per token that it shows. Less than twice *warns*. Up to four tokens
    of an answer are an empty block of reasoning and do not count.
    """
    unshown = _other_hidden_reasoning(run, suite)
    if isinstance(unshown, Violation):
        return unshown
    sparse, compared = unshown, False
    for place in all_traffic(suite):
        ratios = text_ratios(run, place.name, suite)
        if ratios is None:
            continue
        compared = True
        for arm in (Arm.CANDIDATE, Arm.BASELINE):
            contradiction = _contradiction(ratios, arm)
            if contradiction is not None:
                remedy = (
                    "find out which text this server omits, or which tokens it counts and does not send; if a token is "
                    "other text on purpose, write `gate.allow_different: [vocabulary]`"
                )
                return Violation(f"stage {place.name}: {contradiction}", remedy, arm)
        if sparse is None and ratios.chars_per_token.limits.upper < math.log(_SPARSE) - ROUNDING:
            reason = f"stage {place.name}: {_less_text(ratios.chars_per_token, Arm.CANDIDATE, _SPARSE)}"
            remedy = "read answers of both arms: tokens with less text distort tokens per second and time per token"
            sparse = Caution(reason, remedy)
    if compared or sparse is not None:
        return sparse
    return NotApplicable("text and usage were not compared: too few answers have both, or vocabularies differ")


def _other_hidden_reasoning(run: Evidence, suite: Suite) -> Violation | Caution | None:
    caution: Caution | None = None
    counted = with_all_stages({place.name: _hidden_counts(run, place.name) for place in all_traffic(suite)})
    for title, (n, *more_on, of_baseline, of_candidate, hidden_b, hidden_c) in counted.items():
        tokens, hidden = (of_baseline, of_candidate), (hidden_b, hidden_c)
        shares = [part / max(1, whole) for part, whole in zip(hidden, tokens, strict=True)]
        worse = int(shares[1] > shares[0])
        other = 1 - worse
        differs = is_significantly_more(more_on[worse], more_on[other], n, suite.gate.alpha / len(counted))
        if not differs or shares[worse] - shares[other] <= _HIDDEN + ROUNDING:
            continue
        arm = tuple(Arm)[worse]
        what = f"{shares[worse]:.0%} of the {arm.value}'s output tokens are reasoning that is not shown"
        reason = f"{title}: {what}, and {shares[other]:.0%} of the {arm.other.value}'s (bound {_HIDDEN:.0%} apart)"
        remedy = "let both servers send their reasoning, and give them equal reasoning settings"
        if hidden[worse] * (tokens[other] - hidden[other]) >= _TIMES * hidden[other] * (tokens[worse] - hidden[worse]):
            return Violation(reason, remedy, arm, invalidates=(SPEED, TOKENS))
        caution = caution or Caution(reason, remedy)
    return caution


def _hidden_counts(run: Evidence, stage: str) -> tuple[int, ...]:
    """Count answers of both arms, those with a larger share of hidden reasoning on each, tokens, and hidden ones."""
    counts = np.zeros(7, dtype=np.int64)
    for pair in paired_load(run, stage):
        sides = [(o.requests, at) for o, at in zip(pair, same_rows(*pair), strict=True)]
        both = np.logical_and(*(has_text_and_count(columns, TokenSource.USAGE)[at] for columns, at in sides))
        tokens = np.array([columns.output_tokens[at][both] for columns, at in sides])
        hidden = np.array([hidden_reasoning(columns)[at][both] for columns, at in sides])
        hidden = np.where(hidden > _EMPTY_BLOCK, hidden, 0)
        larger = hidden * tokens[::-1] > hidden[::-1] * tokens
        counts += np.array([both.sum(), *larger.sum(axis=1), *tokens.sum(axis=1), *hidden.sum(axis=1)])
    return tuple(counts.tolist())


def _contradiction(ratios: TextRatios, arm: Arm) -> str | None:
    text = ratios.chars_per_token if arm is Arm.CANDIDATE else ratios.chars_per_token.reversed()
    if text.limits.upper < math.log(_MISSING) - ROUNDING:
        return _less_text(text, arm, _MISSING)
    inflation = ratios.inflation(arm)
    if inflation is None or inflation.limits.lower <= math.log(_INFLATED) + ROUNDING:
        return None
    counted = f"the {arm.value}'s usage counts {math.exp(inflation.estimate):.2f} times the tokens that its text shows"
    return f"{counted}, compared with the {arm.other.value} (bound {_INFLATED:g})"


def _less_text(text: LogRatio, arm: Arm, bound: float) -> str:
    times = f"{math.exp(text.estimate):.2f} times as many visible characters as the {arm.other.value}'s"
    return f"the {arm.value}'s tokens have {times} (bound {bound:g})"


@guard("answers-there", "where one arm answered, the other did too", invalidates=SPEED, by_arm=True, needs=A_LOAD)
def answers_there(run: Evidence, suite: Suite) -> Violation | Caution | NotApplicable | None:
    """Flag requests with an answer, or a tool call, from one arm and none from the other.

    Among the requests that both arms completed, one arm has no answer (no visible character and no tool call outside
    the reasoning), or no tool call, in over 1 % more than the other, significantly in a stage or over all (exact
    McNemar, Bonferroni) and at least twice as often on that arm alone. Less than twice *warns*. Two models that both
    reason until the limit do not differ. An answer in words to tools that need not be called is not in `validity`.
    """
    remedy = (
        "give both arms equal reasoning settings and room for the answer (`output`), or find out why some are empty or "
        "call no tool (its parser of tool calls)"
    )
    kinds: dict[str, Marks] = {
        "have no answer (no visible text and no tool call outside the reasoning)": lambda columns: (
            (columns.answer_chars == 0) & (columns.tool_calls <= 0),
            has_recorded_text(columns) & (columns.tool_calls != ABSENT),
        ),
        "call no tool": lambda columns: (
            columns.tool_calls == 0,
            has_recorded_text(columns) & (columns.tool_calls != ABSENT),
        ),
    }
    return _more_marked(run, suite, kinds, remedy)


@guard(
    "first-token-visible",
    "no arm alone begins its answers with blank text",
    invalidates=FIRST,
    by_arm=True,
    needs=A_LOAD,
)
def first_token_visible(run: Evidence, suite: Suite) -> Violation | Caution | NotApplicable | None:
    """Flag an arm whose answers begin with blank text before the model has written: its first token comes too early.

    The rule of `answers-there`, for answers whose first output chunk has no visible character and whose second comes
    after more than twice the mean time between later ones. If the second comes sooner, the blank text may be a token of
    the model, and the guard only *warns*. Not applicable if no check depends on the first chunk.
    """
    budget = () if suite.error_budget is None else (suite.error_budget.metric,)
    if FIRST_METRICS.isdisjoint((*budget, *(check.metric for check in suite.gate.checks))):
        return NotApplicable("no check depends on when the first token came")
    remedy = (
        "find out what sends blank text first, and switch it off: a gateway that keeps connections alive, a template"
    )
    early = _more_marked(run, suite, {"begin with blank text, long before the next": _blank_early}, remedy)
    if isinstance(early, Violation | Caution):
        return early
    blank = _more_marked(run, suite, {"begin with blank text": _blank_first}, remedy)
    return Caution(blank.reason, remedy) if isinstance(blank, Violation) else blank


def _blank_first(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    return columns.first_visible == 0, succeeded(columns) & (columns.first_visible != ABSENT)


def _blank_early(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    blank, known = _blank_first(columns)
    chunks, rows = np.diff(columns.chunk_start), np.flatnonzero(blank & known)
    begin = columns.chunk_start[rows]
    first, second, last = (
        columns.chunk_ns[begin + np.minimum(at, chunks[rows] - 1)] for at in (0, 1, chunks[rows] - 1)
    )
    early = np.zeros(len(columns), dtype=np.bool_)
    early[rows] = (second - first) * np.maximum(chunks[rows] - 2, 1) > _TIMES * (last - second)
    return early, known


@guard(
    "text-not-degenerate", "no arm alone writes blank or repeated text", invalidates=SPEED, by_arm=True, needs=A_LOAD
)
def text_not_degenerate(run: Evidence, suite: Suite) -> Violation | Caution | NotApplicable | None:
    """Flag an arm with more blank or endlessly repeating answers than the other.

    The rule of `answers-there`, for answers that are blank (no visible character, and not all of it hidden reasoning)
    or whose end compresses by 80 % or more. Also *warns* if, on both arms, more than half of all answers are blank or
    more than nine tenths repeat themselves.
    """
    repeats = f"repeat themselves (their end compresses by {_REPEATED_PERCENT} % or more)"
    kinds: dict[str, Marks] = {
        "are blank (no visible character)": _blank,
        repeats: lambda columns: (columns.redundancy_percent >= _REPEATED_PERCENT, has_recorded_text(columns)),
    }
    remedy = "read its answers under load: broken quantisations and kernels write blank or repeated text"
    found = _more_marked(run, suite, kinds, remedy)
    if isinstance(found, Violation | Caution):
        return found
    for place in all_traffic(suite):
        for (what, marks), bound in zip(kinds.items(), (_MOSTLY_BLANK, _MOSTLY_REPEATED), strict=True):
            measured = []
            for arm in Arm:
                masks = [marks(execution.requests) for execution in load_of(run, place.name, arm).values()]
                known = sum(int(enough.sum()) for _, enough in masks)
                if known:
                    measured.append((sum(int((marked & enough).sum()) for marked, enough in masks), known))
            if measured and all(marked > bound * known for marked, known in measured):
                shares = " and ".join(f"{marked} of {known}" for marked, known in measured)
                remedy = (
                    "read answers of both arms, which are not realistic text; let answers end (`ignore_eos: false`)"
                )
                return Caution(f"stage {place.name}: {shares} answers {what} (bound {bound:.0%})", remedy)
    return found


def _more_marked(
    run: Evidence, suite: Suite, kinds: dict[str, Marks], remedy: str
) -> Violation | Caution | NotApplicable | None:
    """Compare the arms' marked answers to the same requests.

    A significant difference of over 1 point is a violation if one arm alone is marked at least twice as often as the
    other alone, else a caution.
    """
    caution: Caution | None = None
    any_known = False
    for what, marks in kinds.items():
        counted = with_all_stages({place.name: _marked_alone(run, place.name, marks) for place in all_traffic(suite)})
        for title, (of_baseline, of_candidate, n) in counted.items():
            any_known = any_known or n > 0
            worse = Arm.BASELINE if of_baseline >= of_candidate else Arm.CANDIDATE
            fewer, more = sorted((of_baseline, of_candidate))
            if not is_significantly_more(more, fewer, n, suite.gate.alpha / len(counted)):
                continue
            found = f"{more} of {n} answers of the {worse.value} alone {what}, {fewer} of the {worse.other.value} alone"
            reason = f"{title}: {found} (bound 1% apart)"
            if more >= _TIMES * fewer:
                return Violation(reason, remedy, worse)
            caution = caution or Caution(reason, remedy)
    return caution if any_known else NotApplicable("no request has recorded text from both arms")


def _marked_alone(run: Evidence, stage: str, marks: Marks) -> tuple[int, int, int]:
    """Return how many answers of the baseline alone are marked, and of the candidate alone, among how many."""
    of_baseline = of_candidate = n = 0
    for pair in paired_load(run, stage):
        (baseline, known), (candidate, also_known) = (
            tuple(mask[at] for mask in marks(o.requests)) for o, at in zip(pair, same_rows(*pair), strict=True)
        )
        both = known & also_known
        n += int(both.sum())
        of_baseline += int((both & baseline & ~candidate).sum())
        of_candidate += int((both & candidate & ~baseline).sum())
    return of_baseline, of_candidate, n


def _blank(columns: RequestColumns) -> tuple[BoolArray, BoolArray]:
    # hidden reasoning is not blank
    has_text = (columns.tokenless == 1) | (columns.output_tokens > np.maximum(columns.reasoning_tokens, 0))
    return has_text & (columns.answer_chars == 0) & (columns.reasoning_chars == 0), has_recorded_text(columns)


# --- The model's name -------------------------------------------------------------------------------------------------

_SNAPSHOT = r"[-@](\d{4}-\d{2}-\d{2}|\d{8}|[01]\d[0-3]\d)"  # gpt-4o -> gpt-4o-2024-08-06, gpt-4 -> gpt-4-0613
_MOST_SHOWN = 3
_LONGEST_SHOWN = 100


@guard("model-names", "every answer names the requested model, or one that the suite declares", needs=A_LOAD)
def model_names(run: Evidence, suite: Suite) -> Caution | NotApplicable | None:
    """Flag nothing: *warn* if an answer to the load names another model.

    The name is neither the requested one (`model`, or the workload's `adapter`) nor declared by `answers_as` of the
    deployment. Accepted as equal: different case, an organisation or path before the name, `.gguf` after it, one dated
    snapshot (`gpt-4o` → `gpt-4o-2024-08-06`). Two snapshots on one arm are two models. Cancelled requests count too,
    and those of the ramp unless there are several adapters.
    """
    levels = {level.name: level for level in traffic_classes(suite)}
    answered: dict[tuple[Arm, str], set[str]] = {}
    for execution in run.load:
        deployment = run.run.arms.get(execution.arm)
        if deployment is None or execution.stage not in levels:
            continue
        level = levels[execution.stage]
        parts = {level.workload.adapters[0] if level.workload.adapters else deployment.model: execution}
        if len(level.workload.adapters) > 1:
            parts = by_adapter(execution, level, suite.seed)
        for model, own in parts.items():
            names = {name for part in own.parts for name in part.answer_model.counts() if name is not None}
            answered.setdefault((execution.arm, model), set()).update(names)
    if not any(answered.values()):
        return NotApplicable("no answer names its model")
    others, declare = [], []
    for (arm, requested), names in answered.items():
        name = run.run.arms[arm].name
        spec = suite.deployments.get(name)
        other = unexpected_names(names, requested, () if spec is None else spec.answers_as)
        if other:
            others.append(
                f"the {arm.value} {name} was asked for {_quoted([requested])} and answered as {_quoted(other)}"
            )
            declare.append(f"`answers_as: [{_quoted(other)}]` to `deployments.{name}`")
    if not others:
        return None
    remedy = f"check which model it really serves; if it is the right one, add {' and '.join(declare)}"
    return Caution("; ".join(others), remedy)


def unexpected_names(names: Collection[str], requested: str, declared: Collection[str] = ()) -> list[str]:
    """Return the names in answers that are neither the requested model nor declared, sorted.

    Case, an organisation or path before a name, `.gguf` after it and one dated snapshot are ignored. Of two different
    snapshots both are returned.
    """
    undeclared = [name for name in sorted(set(names)) if name not in declared]
    expected = re.compile(re.escape(_bare(requested)) + f"({_SNAPSHOT})?")
    other = [name for name in undeclared if not expected.fullmatch(_bare(name))]
    if len({_bare(name) for name in undeclared if name not in other}) > 1:
        return [name for name in undeclared if _bare(name) != _bare(requested)]
    return other


def _bare(name: str) -> str:
    return re.split(r"[/\\]", name)[-1].lower().removesuffix(".gguf")


def _quoted(names: Sequence[str]) -> str:
    quoted = [json.dumps(name[:_LONGEST_SHOWN], ensure_ascii=False) for name in names[:_MOST_SHOWN]]
    return ", ".join([*quoted, *(["…"] if len(names) > _MOST_SHOWN else [])])
