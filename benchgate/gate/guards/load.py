"""Guards over the same requests on both arms: were the prompts read whole, and was every answer the first one?

Did both arms do the same work for the same requests? Whoever writes less is faster, and its speed says nothing.

Lengths within a tenth are the model's own way; beyond that a check warns (`load_checks`). Here is what goes further.
Why the bounds are where they are: docs/decisions.md, "Guards".

What no check of a policy looks at, and what can be lost there without anybody being told.

A latency's median does not feel that a tenth of the requests failed, and a server that drops some is faster for the
rest. So failures that no required check counts are a guard's business.

Guards over the load: was what was planned sent, and on time, and do the servers' counts of tokens mean the same?

Guard over traffic in the background: was it as much in the way of the candidate as of the baseline?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchgate.gate.comparison import Comparison, Place, arms_of, beside, load_of, paired_load, places
from benchgate.gate.evidence.client_strain import losses, strained_blocks
from benchgate.gate.evidence.tokens import MISCOUNTED_SHARE, WITHHELD, same_rows, undercounted
from benchgate.gate.guards.arms import model_names
from benchgate.gate.guards.base import (
    SPEED,
    SPEED_METRICS,
    TO_ITS_END,
    TOKENS,
    compared,
    gravest,
    held,
    spoils_of,
    tripped,
    unknown,
)
from benchgate.gate.guards.caches import load_not_cached, order_does_not_matter
from benchgate.gate.guards.client import impossible
from benchgate.gate.guards.text import answers_there, same_text, text_not_degenerate
from benchgate.model.deployment import Arm
from benchgate.model.records import BoolArray, IntArray, TokenSource
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import mcnemar_harm_p, relative_errors_p
from benchgate.suite.checks import looks_at, looks_at_background
from benchgate.suite.schema import Check, Suite

_RESENT_GAP = 0.01
_RESENT_LEAST = 3  # more than the baseline's share: one or two connections break anywhere
_HABIT = 0.1  # of the baseline's connections; llama.cpp's server closes after every stream
_HABIT_ALONE = 0.5  # of the candidate's own, where no baseline was measured
_CLOSING_ENGINES = ("llamacpp",)
_PROMPT_GAP = 0.01
_UNTOLD_GAP = 0.01  # of the requests that both arms answered


def sent_once(evidence: Evidence, suite: Suite) -> GuardResult:
    """A request sent again hides that the server dropped it, from its error rate too. An answer sent again is as bad.

    Where the baseline closes its connections as a habit, how many requests meet a closed one is a matter of pace (a
    faster server leaves more of them idle), so numbers that differ say nothing. Measured alone, a candidate has that
    habit where its engine is known for it, or where it closed most of them; beside a baseline, where the engine is the
    change to judge, it alone is known for it, and it closed most of them.
    """
    for place in places(suite):
        told = _unasked(evidence, place.name)
        if told is not None:
            return tripped(
                "sent-once", told, "see whether the candidate, or a proxy before it, answers twice", ("load",)
            )
        theirs, ours = (_closed(evidence, suite, place, arm) for arm in (Arm.BASELINE, Arm.CANDIDATE))
        if theirs.habit > _HABIT or _is_habit(evidence, theirs, ours):
            continue
        more = ours.share - theirs.share
        if more > _RESENT_GAP and more * ours.requests >= _RESENT_LEAST:
            found = f"the candidate closed connections under {ours.resent} of {ours.requests} requests"
            what = f"{found}, which were sent again"
            remedy = (
                "see in the candidate's log why it closes them; lost connections must not pass as answered requests"
            )
            beside = (
                f"{theirs.share:.1%} of the baseline's" if theirs.requests else "there is no baseline to have as many"
            )
            told = f"stage {place.name}: {what} ({beside})"
            return tripped("sent-once", told, remedy, ("load",))
    return held("sent-once", "no more of the candidate's requests were sent again than the baseline's explain")


def prompts_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """A server that cuts prompts has less to do; where the change is another tokenizer, counts cannot tell."""
    if "vocabulary" in suite.gate.allow_different:
        return unknown("prompts-alike", "the vocabularies may differ, so the lengths of prompts were not compared")
    found = []
    for place in places(suite):
        lengths = _prompt_lengths(evidence, place)
        if lengths.told_by_one > _UNTOLD_GAP * lengths.answered:
            found.append(_untold(place.name, lengths))
        elif abs(lengths.ours - lengths.theirs) > _PROMPT_GAP * lengths.theirs:
            what = f"for the same prompts the candidate counts {lengths.ours} tokens and the baseline {lengths.theirs}"
            remedy = "see whether a server cuts prompts or puts another template around them; " + _OTHER_TOKENIZER
            bound = f"(bound {_PROMPT_GAP:.0%})"
            spoils = spoils_of(Arm.CANDIDATE if lengths.ours < lengths.theirs else Arm.BASELINE, SPEED)
            found.append(tripped("prompts-alike", f"stage {place.name}: {what} {bound}", remedy, spoils))
    alike = "the prompts were as long on both arms, as far as the servers say"
    return gravest(found) or held("prompts-alike", alike)


@dataclass(slots=True)
class _Lengths:
    """Tokens of the prompts that both arms tell, and of how many requests, answered by both, one arm alone tells."""

    theirs: int = 0
    ours: int = 0
    only_theirs: int = 0
    only_ours: int = 0
    answered: int = 0

    @property
    def told_by_one(self) -> int:
        return self.only_theirs + self.only_ours


def _prompt_lengths(evidence: Evidence, place: Place) -> _Lengths:
    """Later turns of a conversation hold what the model itself has said, which is as long as it is."""
    lengths = _Lengths()
    for pair in paired_load(evidence, place.name):
        rows = same_rows(*pair)
        theirs, ours = (o.requests.input_tokens[at] for o, at in zip(pair, rows, strict=True))
        both = np.logical_and(*(succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True)))
        known = (theirs > 0) & (ours > 0)
        same = known & place.is_first_turn(pair[0].requests.index[rows[0]])
        lengths.theirs += int(theirs[same].sum())
        lengths.ours += int(ours[same].sum())
        lengths.only_theirs += int((both & (theirs > 0) & ~known).sum())
        lengths.only_ours += int((both & (ours > 0) & ~known).sum())
        lengths.answered += int(both.sum())
    return lengths


def _untold(stage: str, lengths: _Lengths) -> GuardResult:
    """What one server alone withholds cannot be shown to be the same."""
    teller = Arm.BASELINE if lengths.only_theirs > lengths.only_ours else Arm.CANDIDATE
    found = f"for {lengths.told_by_one} of {lengths.answered} answers only one arm, mostly the {teller.value},"
    what = f"{found} tells how long the prompt was (bound {_UNTOLD_GAP:.0%})"
    spoils = spoils_of(Arm.BASELINE if lengths.only_ours > lengths.only_theirs else Arm.CANDIDATE, SPEED)
    return tripped("prompts-alike", f"stage {stage}: {what}", "make both servers report usage", spoils)


def _unasked(evidence: Evidence, stage: str) -> str | None:
    """What there is to say of answers that the candidate alone sent without being asked; None when there are few.

    One that comes a moment later, when a request is under way, is taken for the answer to that.
    """
    shares = {}
    for arm in Arm:
        executions = load_of(evidence, stage, arm).values()
        shares[arm] = sum(o.client.unasked for o in executions), sum(o.recorded for o in executions)
    (theirs, scheduled), (unasked, ours) = shares[Arm.BASELINE], shares[Arm.CANDIDATE]
    if not scheduled or not ours or unasked < _RESENT_LEAST or unasked / ours - theirs / scheduled <= _RESENT_GAP:
        return None
    return (
        f"stage {stage}: over connections without a request under way, the candidate sent something {unasked} times "
        f"beside {ours} requests (the baseline {theirs} times)"
    )


def _is_habit(evidence: Evidence, theirs: _Closed, ours: _Closed) -> bool:
    """Whether a candidate is known to close its connections after every answer, where no baseline can show that."""
    closing = {arm: one.engine in _CLOSING_ENGINES for arm, one in evidence.run.arms.items()}
    if not theirs.requests:
        return closing[Arm.CANDIDATE] or ours.habit > _HABIT_ALONE
    known = closing[Arm.CANDIDATE] and not closing.get(Arm.BASELINE, False)
    return known and ours.habit > _HABIT_ALONE


@dataclass(frozen=True, slots=True)
class _Closed:
    """What an arm's closed connections came to.

    `resent` of the requests were sent again. `habit` is the share of those, and of the connections that were closed
    right after an answer and before another request met that.
    """

    requests: int
    resent: int
    habit: float

    @property
    def share(self) -> float:
        return self.resent / self.requests if self.requests else 0.0


def _closed(evidence: Evidence, suite: Suite, place: Place, arm: Arm) -> _Closed:
    """The classes of a stage share its connections, so those that nobody met are held against all of its requests."""
    executions = load_of(evidence, place.name, arm)
    parts = [columns for o in executions.values() for columns in o.parts]
    resent = sum(int(np.count_nonzero(columns.reconnects > 0)) for columns in parts)
    requests = sum(map(len, parts))
    early = sum(o.client.closed_early for o in executions.values())
    beside = [other.name for other in places(suite) if other.stage == place.stage]
    in_all = sum(o.recorded for name in beside for o in load_of(evidence, name, arm).values())
    return _Closed(requests, resent, (resent / requests if requests else 0.0) + (early / in_all if in_all else 0.0))


_OTHER_TOKENIZER = "where the tokenizer is the change to judge, write `gate.allow_different: [vocabulary]`"


_TO_THE_LIMIT = 0.99  # of an arm's answers: it was told to go on to the limit, or all of its answers are cut there
_GAP = 0.01
_AS_MUCH = 0.95  # of what was asked for, and one token less at most: some servers (LM Studio) end so at their limit
_HALF = 0.5
_NOTHING_TOKENS = 2  # a word, or the end of the text alone
_SOMETHING_TOKENS = 8


def same_work(evidence: Evidence, suite: Suite) -> GuardResult:
    """Answers of one arm that ended early, said nothing, or were half as long on the whole."""
    for place in places(suite):
        pairs = [_Rows.of(pair, place) for pair in paired_load(evidence, place.name)]
        for told, remedy in _found(pairs, suite.gate.alpha):
            return tripped("same-work", f"stage {place.name}: {told}", remedy, (SPEED,))
    return held("same-work", "for the same requests both arms wrote about as much, as far as a guard can tell")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Every request that both arms answered in one block: tokens of the answers, and which went to their limit."""

    tokens: tuple[IntArray, IntArray]
    to_limit: tuple[BoolArray, BoolArray]

    @classmethod
    def of(cls, pair: tuple[LoadObservation, LoadObservation], place: Place) -> _Rows:
        rows = same_rows(*pair)
        both = np.logical_and(*(succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True)))
        kept = [at[both] for at in rows]
        theirs, ours = (_of_one(o, at, place.output_tokens) for o, at in zip(pair, kept, strict=True))
        return cls((theirs[0], ours[0]), (theirs[1], ours[1]))


def _of_one(execution: LoadObservation, rows: IntArray, asked: int | None) -> tuple[IntArray, BoolArray]:
    """Tokens, and which answers went to their limit.

    A server that says "length" of a shorter answer than was asked for did not go there; one that only miscounts its
    tokens has sent as many pieces. One token less is as much.
    """
    columns = execution.requests
    tokens = columns.output_tokens[rows]
    ended: BoolArray = columns.finish_reason.are(("length",))[rows]
    if asked is None:
        return tokens, ended
    counted = columns.token_source.are((TokenSource.USAGE,))[rows]
    written = np.maximum(tokens, np.diff(columns.chunk_start)[rows])
    return tokens, ended & (~counted | (written >= max(asked - 1, _AS_MUCH * asked)))


def _found(pairs: list[_Rows], alpha: float) -> Iterator[tuple[str, str]]:
    """What there is to say of a stage, the plainest first, and what to do about it."""
    theirs, ours = (_joined([rows.tokens[side] for rows in pairs]) for side in (0, 1))
    n = len(theirs)
    if n == 0:
        return
    if ours.sum() < _HALF * theirs.sum():
        ratio = f"{ours.sum() / theirs.sum():.2f} times as long as the baseline's"
        yield f"on the same requests the candidate's answers are {ratio} (bound {_HALF:g})", _SHORTER
    silent = [_silent(one, other) for one, other in _ways(theirs, ours)]
    if _differ(silent, n, alpha) and silent[1] > silent[0]:
        what = f"{silent[1]} of {n} answers of the candidate end at once where the baseline writes on"
        yield f"{what}, {silent[0]} the reverse (bound {_GAP:.0%})", _SHORTER
    to_limit = [_joined([rows.to_limit[side] for rows in pairs]).astype(bool) for side in (0, 1)]
    counts = [int(one.sum()) for one in to_limit]
    early = [int((~one & other).sum()) for one, other in _ways(*to_limit)]
    if max(counts) >= _TO_THE_LIMIT * n and _differ(early, n, alpha):
        what = (
            f"{counts[0]} of {n} answers of the baseline, and {counts[1]} of the candidate, go on to the length asked"
        )
        yield f"{what} for (bound {_GAP:.0%})", _ALIKE


def _silent(one: IntArray, other: IntArray) -> int:
    """In how many requests this arm says next to nothing, and the other does not."""
    return int(np.count_nonzero((one <= _NOTHING_TOKENS) & (other >= _SOMETHING_TOKENS)))


def _ways(theirs: IntArray, ours: IntArray) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """(one, other) for the baseline as the one, and for the candidate."""
    return (theirs, ours), (ours, theirs)


def _differ(counts: list[int], n: int, alpha: float) -> bool:
    """Whether the arms differ in it by more than a point, and beyond chance: an exact McNemar test of both sides."""
    more, fewer = max(counts), min(counts)
    return more - fewer > _GAP * n and 2 * mcnemar_harm_p(more, fewer) <= alpha


def _joined(parts: list[IntArray] | list[BoolArray]) -> IntArray:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)


_SHORTER = "see why its answers end so early (template, stop words, a broken model); its speed cannot be judged before"
_ALIKE = (
    "see whether both servers are told, and able, to go on past the end of a text (`ignore_eos`), and have the same "
    "context; or let answers end by themselves: `ignore_eos: false`"
)


_MANY = 0.05
_COUNTING = ("error_rate", "goodput", "validity", "rejected")
"""Metrics that failures are part of."""


def failures_judged(evidence: Evidence, suite: Suite) -> GuardResult:
    """Failures that nobody counts: more of the candidate's than of the baseline's, or so many on either arm."""
    name = "failures-judged"
    if not places(suite):
        return unknown(name, "no load was measured")
    for place in places(suite):
        counts = {arm: _counted(evidence, suite, place, arm) for arm in arms_of(evidence)}
        for arm, (failed, of) in counts.items():
            if failed > _MANY * of:
                what = f"{failed} of {of} requests of the {arm.value} failed (bound {_MANY:.0%})"
                return _unseen(place, what, load_of(evidence, place.name, arm).values())
        failed, of = counts[Arm.CANDIDATE]
        theirs, beside = counts.get(Arm.BASELINE, (0, 0))
        if not of or not beside or failed / of - theirs / beside <= _GAP:
            continue
        if relative_errors_p(failed, of, theirs, beside) <= suite.gate.alpha:
            what = f"{failed} of {of} requests of the candidate failed, {theirs} of {beside} of the baseline"
            return _unseen(place, what, load_of(evidence, place.name, Arm.CANDIDATE).values())
    return held(name, "what failed is judged by a required check, or is hardly more than the baseline's")


def commonest_failure(executions: Iterable[LoadObservation]) -> str | None:
    """Return the commonest reason why requests failed, with their number; None where none failed.

    Like `144 of 160 requests failed, most of them so: protocol, a tool call, although no tools were offered`.
    """
    reasons: Counter[tuple[str, str]] = Counter()
    sent = failed = 0
    for rows in (rows for execution in executions for rows in execution.with_ramp):
        bad = np.flatnonzero(~succeeded(rows))
        sent, failed = sent + len(rows), failed + len(bad)
        if len(bad):
            told = zip(rows.error.take(bad), rows.error_detail.take(bad), strict=True)
            reasons.update((error or "no success", detail or "no reason recorded") for error, detail in told)
    if not failed:
        return None
    error, detail = reasons.most_common(1)[0][0]
    return f"{failed} of {sent} requests failed, most of them so: {error}, {detail}"


def _unseen(place: Place, what: str, executions: Iterable[LoadObservation]) -> GuardResult:
    why = commonest_failure(executions)
    told = f"stage {place.name}: {what}, and no required check counts them ({why})"
    where = f"stage: {place.stage}" + (f", class: {place.class_name}" if place.class_name else "")
    judge = f"judge them too, by {{metric: error_rate, {where}, margin: 1 point}}"
    return tripped("failures-judged", told, f"{judge}, and see in the report why they failed")


def _counted(evidence: Evidence, suite: Suite, place: Place, arm: Arm) -> tuple[int, int]:
    """Failures on an arm that no required check counts, and requests."""
    checks = [check for check in suite.gate.checks if check.required and _is_of(check, suite, place)]
    executions = list(load_of(evidence, place.name, arm).values())
    sent = [rows for o in executions for rows in o.with_ramp]
    of = sum(map(len, sent))
    if any(check.metric != "rejected" and check.of is None for check in checks):
        return 0, of
    classes = {"http_429" if check.metric == "rejected" else str(check.of) for check in checks}
    return sum(int(np.count_nonzero(~succeeded(rows) & ~rows.error.are(classes))) for rows in sent), of


def _is_of(check: Check, suite: Suite, place: Place) -> bool:
    """Whether a check counts failures there; background traffic is counted by checks that do not name it, too."""
    if check.metric not in _COUNTING or check.over is not None:  # against another stage, both may fail
        return False
    if place.requests is None:
        return looks_at_background(check, suite.gate.checks, place.stage, place.class_name, own_slo=place.own_slo)
    return looks_at(check, place.stage, place.class_name)


_SOURCE_GAP = 0.01
_OVERLONG_GAP = 0.01


def load_guards(evidence: Evidence, suite: Suite) -> list[GuardResult]:
    """All of them, in a fixed order; without a load they hold."""
    of_client = (_as_planned, _times_possible, _client_keeps_up, _one_client)
    of_answers = (sent_once, prompts_alike, _tokens_counted_alike, _tokens_plausible, _answers_not_too_long)
    of_text = (text_not_degenerate, answers_there, same_text, model_names)  # the most specific first
    of_both = (same_work, load_not_cached, order_does_not_matter, failures_judged)
    return [guard(evidence, suite) for guard in (*of_client, *of_answers, *of_text, *of_both)]


def guards_apart(comparison: Comparison, suite: Suite) -> list[GuardResult]:
    """Those that look at both sides of the same requests, where the two sides are of two runs with nothing between."""
    if not comparison.apart:
        return []
    both = beside(comparison)
    of_both = (prompts_alike, _tokens_counted_alike, _answers_not_too_long, same_work, load_not_cached)
    of_text = (text_not_degenerate, answers_there, same_text)
    return [guard(both, suite) for guard in (*of_both, *of_text)]


def _as_planned(evidence: Evidence, suite: Suite) -> GuardResult:
    """What the client's own machine lost was never offered to the server: another load than the planned one."""
    for stage, arm in product(_names(suite), Arm):
        for execution in load_of(evidence, stage, arm).values():
            lost = losses(execution.client, *execution.with_ramp)
            if lost:
                what = f"stage {stage}, block {execution.block + 1}, {arm.value}: {lost[0]}"
                remedy = f"see the error details in the report and the load generator's own machine; {TO_ITS_END}"
                return tripped("load-as-planned", what, remedy, ("load",))
    return held("load-as-planned", "the load generator lost no request and no worker")


def _times_possible(evidence: Evidence, suite: Suite) -> GuardResult:
    """Nothing is answered before it is asked, and a stage lasts as long as its requests, by figures that are numbers.

    Else a clock, or whoever wrote the records, is not to be believed.
    """
    for place, arm in product(places(suite), Arm):
        for execution in load_of(evidence, place.name, arm).values():
            what = impossible(execution, place.is_open, conversing=place.turns != 1)
            if what:
                where = f"stage {place.name}, block {execution.block + 1}, {arm.value}"
                remedy = "see what clock the load generator's machines have; measure again on others"
                return tripped("times-possible", f"{where}: {what}", remedy, ("load",))
    return held("times-possible", "no request was answered before it was sent, and no stage was over before them")


def _client_keeps_up(evidence: Evidence, suite: Suite) -> GuardResult:
    """The load generator itself did not set the pace.

    A server that fails at once makes a closed loop spin and its client busy. Those failures are the server's own
    answers, so they stay judged: only what is measured in time is spoilt, unless failures may be the client's too.
    """
    stages = [strained_blocks(evidence, place, suite) for place in places(suite)]
    spoilt = [stage for stage in stages if stage.spoil]
    if spoilt:
        first = spoilt[0]
        what = f"the load generator was the bottleneck in {first.place}: {first.why}"
        if first.hides:
            what += "; the candidate failed more requests there, so they cannot be left out"
        doubtful = any(stage.doubtful for stage in spoilt)
        return tripped("client-keeps-up", what, _RELIEVE, ("load",) if doubtful else (SPEED,))
    kept_up = "the load generator kept up with its schedule"
    if unusual := suite.gate.client.unusual():
        kept_up = f"the load generator kept up within the policy's own bounds: {unusual}"
    left_out = [f"{stage.place} ({stage.why})" for stage in stages if stage.left_out]
    if left_out:
        kept_up += f"; left out of times and rates, because it did not: {', '.join(left_out)}"
    return held("client-keeps-up", kept_up)


def _one_client(evidence: Evidence, suite: Suite) -> GuardResult:
    """More processes keep another schedule, and find other connections open: a load of another kind."""
    for stage in _names(suite):
        numbers = {arm: _workers_of(evidence, stage, arm) for arm in Arm}
        if len(set().union(*numbers.values())) > 1:
            told = ", ".join(f"{_several(numbers[arm])} for the {arm.value}" for arm in Arm)
            what = f"stage {stage}: not every execution was sent by as many load generator processes ({told})"
            return tripped("one-client", what, "send all of a run from the same machine or cluster", (SPEED,))
    return held("one-client", "every execution of a stage was sent by as many load generator processes")


def _workers_of(evidence: Evidence, stage: str, arm: Arm) -> frozenset[int]:
    """By how many load generator processes the executions of a stage were sent."""
    return frozenset(execution.client.workers for execution in load_of(evidence, stage, arm).values())


def _several(numbers: frozenset[int]) -> str:
    return " and ".join(str(number) for number in sorted(numbers)) or "none"


def _tokens_counted_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """Tokens counted by usage on one arm and by chunks on the other are not the same unit."""
    found = []
    for stage in _names(suite):
        shares = {arm: _share(load_of(evidence, stage, arm), _by_usage) for arm in Arm}
        baseline, candidate = shares[Arm.BASELINE], shares[Arm.CANDIDATE]
        if baseline is not None and candidate is not None and abs(baseline - candidate) > _SOURCE_GAP:
            shown = f"{baseline:.0%} of the baseline's answers and {candidate:.0%} of the candidate's"
            what = f"stage {stage}: the server's own count of output tokens is there for {shown}"
            spoils = (*compared("load"), *((TOKENS,) if candidate < baseline else ()))
            found.append(tripped("tokens-alike", what, "make both servers report usage in their streams", spoils))
    return gravest(found) or held("tokens-alike", "output tokens were counted the same way on both arms")


def _tokens_plausible(evidence: Evidence, suite: Suite) -> GuardResult:
    """A server that counts fewer tokens than it sent texts miscounts.

    No fault is reasoning that is counted apart, where the total of a usage shows it: it is among the tokens then.
    """
    found = []
    for stage, arm in product(_names(suite), Arm):
        share = _share(load_of(evidence, stage, arm), _undercounted)
        if share is not None and share > MISCOUNTED_SHARE:
            what = (
                f"in {share:.0%} of the {arm.value}'s answers usage counts fewer tokens than there were pieces of text"
            )
            remedy = _REASONING_LEFT_OUT if _explained(evidence, stage, arm) else _MISCOUNTED
            bound = f"(bound {MISCOUNTED_SHARE:.0%})"
            spoils = spoils_of(arm, TOKENS)
            found.append(tripped("tokens-plausible", f"stage {stage}: {what} {bound}", remedy, spoils))
    return gravest(found) or held("tokens-plausible", "the servers' counts of output tokens fit the texts they sent")


def _answers_not_too_long(evidence: Evidence, suite: Suite) -> GuardResult:
    """More tokens than were asked for, on one arm only: it ignores the limit or miscounts, and its tokens/s with it."""
    found = []
    for place in places(suite):
        asked = place.output_tokens
        longer = _longer_by_row(evidence, place.name) if asked is None else _longer_than(asked, evidence, place.name)
        if longer is not None:
            arm, what = longer
            remedy = "see whether this server honours max_tokens and what its usage counts"
            spoils = spoils_of(arm, "load")
            found.append(tripped("answers-not-too-long", f"stage {place.name}: {what}", remedy, spoils))
    alike = "no arm alone answers with more tokens than were asked for"
    return gravest(found) or held("answers-not-too-long", alike)


def _longer_than(asked: int, evidence: Evidence, stage: str) -> tuple[Arm, str] | None:
    """Every request asked for as many tokens."""
    shares = {}
    for arm in Arm:
        tokens = [o.requests.output_tokens for o in load_of(evidence, stage, arm).values()]
        answers = np.concatenate(tokens) if tokens else np.empty(0)
        if not len(answers):
            return None  # an arm that was not measured, or answered nothing, says nothing of what is usual here
        shares[arm] = float(np.mean(answers > asked))
    worse = max(Arm, key=lambda arm: shares[arm])
    if shares[worse] - shares[worse.other] <= _OVERLONG_GAP:
        return None
    at_fault = Arm.CANDIDATE if shares[Arm.CANDIDATE] > _OVERLONG_GAP else worse
    return at_fault, f"{shares[worse]:.0%} of the {worse.value}'s answers have more than the {asked} tokens asked for"


def _longer_by_row(evidence: Evidence, stage: str) -> tuple[Arm, str] | None:
    """Where rows ask for lengths of their own, they do so of both arms: answers that reached the limit are as long."""
    longer = both_ended = 0
    for pair in paired_load(evidence, stage):
        baseline, candidate = pair
        theirs, ours = same_rows(baseline, candidate)
        both = _at_limit(baseline)[theirs] & _at_limit(candidate)[ours]
        more = candidate.requests.output_tokens[ours] > baseline.requests.output_tokens[theirs]
        both_ended += int(both.sum())
        longer += int((both & more).sum())
    if longer <= _OVERLONG_GAP * both_ended:
        return None
    what = f"{longer} of {both_ended} answers of the candidate passed the limit at which the baseline's ended"
    return Arm.CANDIDATE, what


def _at_limit(execution: LoadObservation) -> BoolArray:
    return execution.requests.finish_reason.are(("length",)) & succeeded(execution.requests)


def _names(suite: Suite) -> list[str]:
    return [place.name for place in places(suite)]


def _share(executions: dict[int, LoadObservation], marked: Callable[[LoadObservation], BoolArray]) -> float | None:
    """Share of the successful answers that are marked; None when there are none."""
    answered = [succeeded(o.requests) for o in executions.values()]
    count = sum(int(ok.sum()) for ok in answered)
    hits = sum(int((ok & marked(o)).sum()) for ok, o in zip(answered, executions.values(), strict=True))
    return hits / count if count else None


def _by_usage(execution: LoadObservation) -> BoolArray:
    return execution.requests.token_source.are((TokenSource.USAGE,))


def _undercounted(execution: LoadObservation) -> BoolArray:
    return undercounted(execution.requests)


def _explained(evidence: Evidence, stage: str, arm: Arm) -> bool:
    """Whether the tokens of reasoning, which are told too, are as many as most of such answers lack."""
    explained = found = 0
    for execution in load_of(evidence, stage, arm).values():
        columns, fewer = execution.requests, _undercounted(execution)
        lacking = np.diff(columns.chunk_start) - WITHHELD - columns.output_tokens
        found += int(fewer.sum())
        explained += int((fewer & (columns.reasoning_tokens >= lacking)).sum())
    return 2 * explained > found


_MISCOUNTED = "see what this server's usage counts; tokens per second cannot be judged by it"
_REASONING_LEFT_OUT = (
    "its usage tells of reasoning tokens and seems not to count them as output: let it, or the gateway before it, "
    "count them in or tell a `total_tokens` that holds them; tokens per second cannot be judged before"
)
_RELIEVE = "lower the load, or give the load generator a machine, cores or workers of its own (`benchgate doctor`)"


_LEAST_SHARE = 2 / 3  # of what the baseline answered
_NOISE_SD = 2.0


def background_guards(evidence: Evidence, suite: Suite) -> list[GuardResult]:
    """The guard, for a suite that has traffic in the background.

    A candidate that lets it wait is faster for the rest. It spoils nothing: a candidate that is slower at everything
    gets less done too, and is then still blocked by what it is slower at.
    """
    behind = [place for place in places(suite) if place.requests is None]
    if not behind:
        return []
    for place in behind:
        told = None if _is_judged(place, suite) else _starved(evidence, place.name, suite.gate.alpha)
        if told is not None:
            where = f"stage: {place.stage}, class: {place.class_name}"
            remedy = f"judge that class too, say by {{metric: e2e, {where}, margin: 50%}}, or see what holds it up"
            return [tripped("background-alike", told, remedy)]
    return [held("background-alike", "the candidate did as much in the background as the baseline, or is judged by it")]


def _is_judged(place: Place, suite: Suite) -> bool:
    """Whether a required check names the class and holds its times or rates to something."""
    return any(
        check.required
        and check.metric in SPEED_METRICS
        and (check.class_name is not None or check.place == place.name)
        and looks_at(check, place.stage, place.class_name)
        for check in suite.gate.checks
    )


def _starved(evidence: Evidence, name: str, alpha: float) -> str | None:
    """What there is to say of a candidate that answered far fewer requests, in its blocks and beyond chance."""
    pairs = paired_load(evidence, name)
    counts = np.array([[_answered(baseline), _answered(candidate)] for baseline, candidate in pairs], dtype=np.float64)
    if len(counts) < 2:
        return None
    theirs, ours = (int(total) for total in counts.sum(axis=0))
    if ours >= _LEAST_SHARE * theirs or theirs - ours <= _NOISE_SD * math.sqrt(theirs + ours):
        return None
    test = paired_t(np.log((counts[:, 1] + 0.5) / (counts[:, 0] + 0.5)), alpha)
    if test is None or test.limits.upper >= 0:
        return None
    return (
        f"stage {name}: in the background the candidate answered {ours} requests where the baseline answered {theirs} "
        f"(bound {_LEAST_SHARE:.0%}), so the rest had less beside it"
    )


def _answered(execution: LoadObservation) -> int:
    return int(np.count_nonzero(succeeded(execution.requests)))
