"""Guards over the text of eval and shadow answers: no arm alone loops, breaks characters, changes script or language.

A score per task or a rate of differing answers need not show such faults, and a user sees them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchgate.gate.evidence.items import Arms
from benchgate.gate.guards.answers import Evals
from benchgate.gate.guards.base import Caution, Need, Violation, guard
from benchgate.gate.guards.load import is_significantly_more
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import Evidence
from benchgate.model.text_anomalies import TextAnomalies, find_anomalies
from benchgate.stats.proportions import clopper_pearson
from benchgate.suite.schema import Suite

_ALPHA = 0.001  # of all tests of a guard together: an equal candidate trips it in less than one of a thousand runs
_TIMES = 2  # marked answers of one arm alone to those of the other alone, as for the answers under load
_BOTH = 0.1  # share of marked answers on each arm that casts doubt on what is measured
_OTHER_SCRIPT = 0.01  # or language
_TESTS = 4

_Pair = tuple[TextAnomalies, TextAnomalies]  # of the baseline and of the candidate

_KINDS: Mapping[str, Callable[[TextAnomalies], bool]] = {
    "end in a repetition loop": lambda one: one.looped,
    "contain replacement characters (U+FFFD)": lambda one: one.replaced,
}
_REMEDY = "read its answers: broken quantisations, kernels and tokenisers write such text; see the chat template too"
_BOTH_REMEDY = "read answers of both arms: a limit on tokens, a stop string or the chat template is probably wrong"


def _has_eval_anomalies(run: Evidence, suite: Suite) -> bool:
    return any(find_anomalies(item.answer).any for one in run.quality for item in one.items if item.answer)


def _has_shadow_anomalies(run: Evidence, suite: Suite) -> bool:
    rows = run.shadow.items if run.shadow is not None else ()
    facts = (fact for row in rows for fact in (row.primary_facts, row.candidate_facts) if fact is not None)
    return any(anomalies.any for fact in facts if (anomalies := fact.anomalies) is not None)


@guard(
    "answers-sound",
    "no arm's eval answers alone loop, have broken characters or are in another script or language",
    needs=Need("eval answers with anomalies", _has_eval_anomalies),
)
def answers_sound(evals: Evals, suite: Suite) -> Violation | Caution | None:
    """Flag an arm whose eval answers loop, have replacement characters, or are in another script or language.

    Among the items of a task or group that both arms answered, one arm alone has over 1 point more such answers than
    the other alone, significantly (exact McNemar; 0.001 over all tests together) and at least twice as many; less than
    twice *warns*. A loop is an end of 100 characters or more in which at most 100 characters repeat 5 times or more.
    Scripts differ if the lower limit of the share of items with clear, different scripts is above 1 %, and so do
    languages: English, German, French, Spanish, Italian, Portuguese, Dutch, by their most frequent words. It *warns*
    if over a tenth of both arms' answers are marked. No check becomes INVALID: a lower score still blocks. Omitted if
    no answer has an anomaly, and all are in English.
    """
    named = {f"to {name}": list(_eval_pairs(tasks)) for name, tasks in evals.units.items()}
    return _judge(named)


@guard(
    "shadow-sound",
    "no arm's answers to recorded prompts alone loop, have broken characters or are in another script or language",
    needs=Need("shadow answers with anomalies", _has_shadow_anomalies),
)
def shadow_sound(run: Evidence, suite: Suite) -> Violation | Caution | None:
    """Flag an arm whose answers to recorded prompts are marked by the rule of `answers-sound`.

    Scripts and languages count only where the baseline's second answer, if there is one, has those of its first.
    """
    pairs = []
    for row in run.shadow.items if run.shadow is not None else ():
        primary, secondary, candidate = (
            None if facts is None else facts.anomalies
            for facts in (row.primary_facts, row.secondary_facts, row.candidate_facts)
        )
        if primary is not None and candidate is not None:
            if secondary is not None:
                script = primary.script if secondary.script == primary.script else None
                language = primary.language if secondary.language == primary.language else None
                primary = TextAnomalies(primary.looped, primary.replaced, script, language)
            pairs.append((primary, candidate))
    return _judge({"to recorded prompts": pairs})


def _script(one: TextAnomalies) -> str | None:
    return one.script


def _language(one: TextAnomalies) -> str | None:
    return one.language


def _eval_pairs(tasks: Iterable[Arms]) -> Iterable[_Pair]:
    for baseline, candidate in tasks:
        theirs = {item.item_id: item for item in baseline.items if _is_answered(item)}
        for item in filter(_is_answered, candidate.items):
            if item.item_id in theirs:
                yield find_anomalies(theirs[item.item_id].answer or ""), find_anomalies(item.answer or "")


def _is_answered(item: EvalItem) -> bool:
    return item.error is None and item.answer is not None


def _judge(named: Mapping[str, Sequence[_Pair]]) -> Violation | Caution | None:
    cautions: list[Caution] = []
    alpha = _ALPHA / max(1, _TESTS * len(named))
    for answers, pairs in named.items():
        n = len(pairs)
        for kind, is_marked in _KINDS.items():
            marks = [(is_marked(baseline), is_marked(candidate)) for baseline, candidate in pairs]
            alone = {Arm.BASELINE: marks.count((True, False)), Arm.CANDIDATE: marks.count((False, True))}
            worse = max(Arm, key=lambda arm: alone[arm])
            if is_significantly_more(alone[worse], alone[worse.other], n, alpha):
                counts = f"{alone[worse]} of {n} answers of the {worse.value} alone {answers} {kind}"
                reason = f"{counts}, {alone[worse.other]} of the {worse.other.value} alone (bound 1% apart)"
                if alone[worse] >= _TIMES * alone[worse.other]:
                    return Violation(reason, _REMEDY)
                cautions.append(Caution(reason, _REMEDY))
            shares = [sum(marked) for marked in zip(*marks, strict=True)]
            if shares and min(shares) > _BOTH * n:
                counted = " and ".join(f"{count} of {n}" for count in shares)
                cautions.append(Caution(f"{counted} answers {answers} {kind} (bound {_BOTH:.0%})", _BOTH_REMEDY))
        for what, written in (("script", _script), ("language", _language)):
            known = [(theirs, ours) for b, c in pairs if (theirs := written(b)) and (ours := written(c))]
            other = [pair for pair in known if pair[0] != pair[1]]
            if other and clopper_pearson(len(other), len(known), alpha).lower > _OTHER_SCRIPT:
                usual, found = max(set(other), key=other.count)
                counts = f"{len(other)} of {len(known)} answers {answers} are in another {what} than the baseline's"
                return Violation(f"{counts}, such as {found} where it writes {usual} (bound 1%)", _REMEDY)
    return next(iter(cautions), None)
