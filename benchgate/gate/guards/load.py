"""Guards over both arms' answers to the same requests: sent once, read whole, counted alike, and the same work done.

Why the bounds are where they are: docs/decisions.md, "Guards".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchgate.gate.comparison import Place, arms_of, load_of, paired_load, places
from benchgate.gate.evidence.tokens import MISCOUNTED_SHARE, WITHHELD, same_rows, undercounted
from benchgate.gate.guards.base import (
    A_LOAD,
    BACKGROUND,
    LOAD,
    SPEED,
    SPEED_METRICS,
    TOKENS,
    NotApplicable,
    Violation,
    compared,
    guard,
    most_serious,
)
from benchgate.model.deployment import Arm
from benchgate.model.records import BoolArray, IntArray, TokenSource
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import mcnemar_p, poisson_rates_p
from benchgate.suite.checks import Check, looks_at, looks_at_background
from benchgate.suite.schema import Suite

Pair = tuple[LoadObservation, LoadObservation]
"""The executions of the baseline and of the candidate in one block of a stage."""

_POINT = 0.01
"""A difference of one point between shares of the arms' answers is beyond what a sound pair of servers shows."""


def answered_by_both(pair: Pair) -> tuple[IntArray, IntArray]:
    """Return the rows, on either arm, of the requests that both answered."""
    theirs, ours = same_rows(*pair)
    both = succeeded(pair[0].requests)[theirs] & succeeded(pair[1].requests)[ours]
    return theirs[both], ours[both]


def is_significantly_more(more: int, fewer: int, n: int, alpha: float) -> bool:
    """Return True where counts among n paired answers differ by over a point and beyond chance (exact McNemar)."""
    return more - fewer > _POINT * n and 2 * mcnemar_p(more, fewer) <= alpha


# --- Requests that were sent again ------------------------------------------------------------------------------------

_RESENT_LEAST = 3  # more than the baseline's share: one or two connections break anywhere
_HABIT = 0.1  # of the baseline's connections; llama.cpp's server closes after every stream
_HABIT_ALONE = 0.5  # of the candidate's own, where no baseline was measured
_CLOSING_ENGINES = ("llamacpp",)


@guard(
    "sent-once",
    "no more of the candidate's requests were sent again than of the baseline's",
    invalidates=LOAD,
    needs=A_LOAD,
)
def sent_once(run: Evidence, suite: Suite) -> Violation | None:
    """Flag requests that had to be sent again, which a candidate's error rate does not show.

    The candidate closed connections under more than 1 point more of its requests than the baseline, and under three at
    least. A connection that is known to be closed before anything is sent on it is replaced and not counted. A baseline
    that closed more than 10 % of its connections, under a request or within a second of an answer, does so by habit:
    then a faster candidate meets more closed ones, and nothing is flagged. Nor is it where the candidate's engine alone
    is llama.cpp, which has that habit, and it closed more than half of them. A candidate measured alone may have 1 %
    sent again, or two, unless its engine is llama.cpp or it closed more than half of them.

    Or the candidate sent something over connections without a request under way, three times at least and 1 point of
    its requests more often than the baseline: a server that answers twice answers the next request too.
    """
    for place in places(suite):
        unrequested = _unrequested(run, place.name)
        if unrequested is not None:
            return Violation(unrequested, "see whether the candidate, or a proxy before it, answers twice")
        theirs, ours = (_Closed.of(run, suite, place, arm) for arm in Arm)
        if theirs.habit > _HABIT or _closes_by_habit(run, theirs, ours):
            continue
        more = ours.share - theirs.share
        if more > _POINT and more * ours.requests >= _RESENT_LEAST:
            beside = f"the baseline under {theirs.share:.1%}" if theirs.requests else "no baseline was measured"
            what = f"the candidate closed connections under {ours.resent} of {ours.requests} requests"
            remedy = (
                "see in the candidate's log why it closes them; lost connections must not pass as answered requests"
            )
            return Violation(f"stage {place.name}: {what}, which were sent again ({beside})", remedy)
    return None


def _unrequested(run: Evidence, stage: str) -> str | None:
    """Describe answers that the candidate sent unasked; None where there are few.

    One that comes a moment later, when a request is under way, is taken for the answer to that.
    """
    executions = {arm: load_of(run, stage, arm).values() for arm in Arm}
    sent = {arm: sum(o.recorded for o in found) for arm, found in executions.items()}
    times = {arm: sum(o.client.unasked for o in found) for arm, found in executions.items()}
    ours, theirs = times[Arm.CANDIDATE], times[Arm.BASELINE]
    if not all(sent.values()) or ours < _RESENT_LEAST:
        return None
    if ours / sent[Arm.CANDIDATE] - theirs / sent[Arm.BASELINE] <= _POINT:
        return None
    return (
        f"stage {stage}: over connections without a request under way, the candidate sent something {ours} times "
        f"beside {sent[Arm.CANDIDATE]} requests (the baseline {theirs} times)"
    )


@dataclass(frozen=True, slots=True)
class _Closed:
    """An arm's closed connections.

    `resent` of the requests were sent again. `habit` is the share of those, and of the connections that were closed
    right after an answer and before another request met that.
    """

    requests: int
    resent: int
    habit: float

    @property
    def share(self) -> float:
        return self.resent / self.requests if self.requests else 0.0

    @classmethod
    def of(cls, run: Evidence, suite: Suite, place: Place, arm: Arm) -> _Closed:
        """The classes of a stage share its connections, so those that nobody met are held against all its requests."""
        executions = load_of(run, place.name, arm).values()
        parts = [columns for o in executions for columns in o.parts]
        resent = sum(int(np.count_nonzero(columns.reconnects > 0)) for columns in parts)
        requests = sum(map(len, parts))
        early = sum(o.client.closed_early for o in executions)
        of_stage = [other.name for other in places(suite) if other.stage == place.stage]
        in_all = sum(o.recorded for name in of_stage for o in load_of(run, name, arm).values())
        return cls(requests, resent, (resent / requests if requests else 0.0) + (early / in_all if in_all else 0.0))


def _closes_by_habit(run: Evidence, theirs: _Closed, ours: _Closed) -> bool:
    """Return True for a candidate known to close connections after every answer, where no baseline can show that."""
    closing = {arm: one.engine in _CLOSING_ENGINES for arm, one in run.run.arms.items()}
    if not theirs.requests:
        return closing[Arm.CANDIDATE] or ours.habit > _HABIT_ALONE
    known = closing[Arm.CANDIDATE] and not closing.get(Arm.BASELINE, False)
    return known and ours.habit > _HABIT_ALONE


# --- Prompts and tokens -----------------------------------------------------------------------------------------------


@guard("prompts-alike", "both arms read prompts of the same length", invalidates=SPEED, by_arm=True, needs=A_LOAD)
def prompts_alike(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a server that cuts prompts: it has less to do.

    For the same prompts the arms count more than 1 % more or fewer input tokens, or one arm alone reports how many
    there were in more than 1 % of the answers. Of conversations only first turns count: later ones hold what the model
    has said. The arm at fault is the one that counts fewer or does not report. Not applicable where `vocabulary` is
    declared as part of the change.
    """
    if "vocabulary" in suite.gate.allow_different:
        return NotApplicable("the vocabularies may differ, so the lengths of prompts were not compared")
    return most_serious([found for place in places(suite) if (found := _other_prompts(run, place)) is not None])


def _other_prompts(run: Evidence, place: Place) -> Violation | None:
    tokens, only, answered = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64), 0
    for pair in paired_load(run, place.name):
        rows = same_rows(*pair)
        counts = np.array([o.requests.input_tokens[at] for o, at in zip(pair, rows, strict=True)], dtype=np.int64)
        both = np.logical_and(*(succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True)))
        known = (counts > 0).all(axis=0)
        tokens += counts[:, known & place.is_first_turn(pair[0].requests.index[rows[0]])].sum(axis=1)
        only += (both & (counts > 0) & ~known).sum(axis=1)
        answered += int(both.sum())
    theirs, ours = (int(total) for total in tokens)
    if only.sum() > _POINT * answered:
        teller = Arm.BASELINE if only[0] > only[1] else Arm.CANDIDATE
        found = f"for {only.sum()} of {answered} answers only one arm, mostly the {teller.value},"
        reason = f"stage {place.name}: {found} reports how long the prompt was (bound {_POINT:.0%})"
        silent = Arm.BASELINE if only[1] > only[0] else Arm.CANDIDATE
        return Violation(reason, "make both servers report usage", silent)
    if abs(ours - theirs) > _POINT * theirs:
        what = f"for the same prompts the candidate counts {ours} tokens and the baseline {theirs}"
        remedy = (
            "see whether a server cuts prompts or puts another template around them; where the tokenizer is the change "
            "to judge, write `gate.allow_different: [vocabulary]`"
        )
        fewer = Arm.CANDIDATE if ours < theirs else Arm.BASELINE
        return Violation(f"stage {place.name}: {what} (bound {_POINT:.0%})", remedy, fewer)
    return None


def _share(run: Evidence, stage: str, arm: Arm, mark: Callable[[LoadObservation], BoolArray]) -> float | None:
    """Return the share of an arm's successful answers that are marked; None where there are none."""
    found = [mark(o)[succeeded(o.requests)] for o in load_of(run, stage, arm).values()]
    count = sum(map(len, found))
    return sum(int(one.sum()) for one in found) / count if count else None


@guard("tokens-alike", "output tokens were counted the same way on both arms", invalidates=compared(LOAD), needs=A_LOAD)
def tokens_alike(run: Evidence, suite: Suite) -> Violation | None:
    """Flag arms whose output tokens are not the same unit: the server's own count on one, chunks of text on the other.

    The share of answers that the server itself counted differs between the arms by more than a point. Where the
    candidate's server counts fewer of them, the guard also invalidates tokens.
    """
    found = []
    for place in places(suite):
        baseline, candidate = (
            _share(run, place.name, arm, lambda o: o.requests.token_source.are((TokenSource.USAGE,))) for arm in Arm
        )
        if baseline is not None and candidate is not None and abs(baseline - candidate) > _POINT:
            shown = f"{baseline:.0%} of the baseline's answers and {candidate:.0%} of the candidate's"
            reason = f"stage {place.name}: the server's own count of output tokens is there for {shown}"
            kinds = (*compared(LOAD), *((TOKENS,) if candidate < baseline else ()))
            found.append(Violation(reason, "make both servers report usage in their streams", invalidates=kinds))
    return most_serious(found)


@guard(
    "tokens-plausible", "the counts of output tokens fit the texts sent", invalidates=TOKENS, by_arm=True, needs=A_LOAD
)
def tokens_plausible(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a server that counts fewer tokens than it sent texts.

    In more than 1 % of an arm's answers, usage counts fewer tokens than there were pieces of text, less one. Reasoning
    that is counted apart is counted in first, where the total of the usage shows it; where nothing shows it, tokens per
    second would be too low, so it is flagged.
    """
    found = []
    for place, arm in product(places(suite), Arm):
        share = _share(run, place.name, arm, lambda o: undercounted(o.requests))
        if share is not None and share > MISCOUNTED_SHARE:
            what = (
                f"in {share:.0%} of the {arm.value}'s answers usage counts fewer tokens than there were pieces of text"
            )
            reason = f"stage {place.name}: {what} (bound {MISCOUNTED_SHARE:.0%})"
            remedy = _COUNT_REASONING if _lacks_reasoning(load_of(run, place.name, arm).values()) else _MISCOUNTED
            found.append(Violation(reason, remedy, arm))
    return most_serious(found)


def _lacks_reasoning(executions: Iterable[LoadObservation]) -> bool:
    """Return True where the reasoning tokens of most such answers make up for the tokens that they lack."""
    explained = found = 0
    for execution in executions:
        columns, fewer = execution.requests, undercounted(execution.requests)
        lacking = np.diff(columns.chunk_start) - WITHHELD - columns.output_tokens
        found += int(fewer.sum())
        explained += int((fewer & (columns.reasoning_tokens >= lacking)).sum())
    return 2 * explained > found


_MISCOUNTED = "see what this server's usage counts; tokens per second cannot be judged by it"
_COUNT_REASONING = (
    "its usage reports reasoning tokens and seems not to count them as output: let it, or the gateway before it, count "
    "them in or report a `total_tokens` that holds them; tokens per second cannot be judged before"
)


@guard("answers-not-too-long", "no arm alone exceeds the length asked for", invalidates=LOAD, by_arm=True, needs=A_LOAD)
def answers_not_too_long(run: Evidence, suite: Suite) -> Violation | None:
    """Flag one arm alone that answers with more tokens than were asked for: it ignores the limit or miscounts.

    More than 1 point more of its answers than of the other arm's are longer. The rows of a trace ask for lengths of
    their own, so there: the candidate's answer is longer in more than 1 % of the rows in which both arms ended at the
    limit.
    """
    found = []
    for place in places(suite):
        longer = _longer_than_baseline(run, place) if place.output_tokens is None else _longer_than_asked(run, place)
        if longer is not None:
            arm, what = longer
            remedy = "see whether this server honours max_tokens and what its usage counts"
            found.append(Violation(f"stage {place.name}: {what}", remedy, arm))
    return most_serious(found)


def _longer_than_asked(run: Evidence, place: Place) -> tuple[Arm, str] | None:
    shares = {}
    for arm in Arm:
        answers = [o.requests.output_tokens for o in load_of(run, place.name, arm).values()]
        if not sum(map(len, answers)):
            return None  # an arm that was not measured, or answered nothing, says nothing of what is usual here
        shares[arm] = float(np.mean(np.concatenate(answers) > (place.output_tokens or 0)))
    worse = max(Arm, key=lambda arm: shares[arm])
    if shares[worse] - shares[worse.other] <= _POINT:
        return None
    at_fault = Arm.CANDIDATE if shares[Arm.CANDIDATE] > _POINT else worse
    what = (
        f"{shares[worse]:.0%} of the {worse.value}'s answers have more than the {place.output_tokens} tokens asked for"
    )
    return at_fault, what


def _longer_than_baseline(run: Evidence, place: Place) -> tuple[Arm, str] | None:
    """Rows that ask for lengths of their own ask both arms for them: answers that reached the limit are as long."""
    longer = both_ended = 0
    for pair in paired_load(run, place.name):
        theirs, ours = answered_by_both(pair)
        ended = [o.requests.finish_reason.are(("length",))[at] for o, at in zip(pair, (theirs, ours), strict=True)]
        both = ended[0] & ended[1]
        more = pair[1].requests.output_tokens[ours] > pair[0].requests.output_tokens[theirs]
        both_ended += int(both.sum())
        longer += int((both & more).sum())
    if longer <= _POINT * both_ended:
        return None
    what = f"{longer} of {both_ended} answers of the candidate passed the limit at which the baseline's ended"
    return Arm.CANDIDATE, what


# --- The same work ----------------------------------------------------------------------------------------------------

_TO_THE_LIMIT = 0.99  # of an arm's answers: it was told to go on to the limit, or all of its answers are cut there
_AS_MUCH = 0.95  # of what was asked for, and one token less at most: some servers (LM Studio) end so at their limit
_HALF = 0.5
_NOTHING_TOKENS = 2  # a word, or the end of the text alone
_SOMETHING_TOKENS = 8
_SHORTER = "see why its answers end so early (template, stop words, a broken model); its speed cannot be judged before"
_ALIKE = (
    "see whether both servers are told, and able, to go on past the end of a text (`ignore_eos`), and have the same "
    "context; or let answers end by themselves: `ignore_eos: false`"
)


@guard("same-work", "both arms wrote about as much for the same requests", invalidates=SPEED, needs=A_LOAD)
def same_work(run: Evidence, suite: Suite) -> Violation | None:
    """Flag arms that did not do the same work for the same requests: an arm that writes less is faster.

    Of the requests that both arms answered: the candidate's answers are less than half as long on the whole; or more
    than 1 % more of them than the reverse end after two tokens where the baseline writes eight and more; or one arm
    goes on to the length asked for in 99 % of its answers and the other in more than 1 % fewer. The last two beyond
    chance (exact McNemar). An answer of a fixed length must really be that long, or one token less and 95 % at least,
    whatever the finish reason says. Between half and nine tenths of the length a check warns; a candidate whose answers
    are longer is judged by what that costs.
    """
    for place in places(suite):
        tokens, to_limit = _lengths(run, place)
        n, (theirs, ours) = len(tokens), tokens.sum(axis=0)
        if n == 0:
            continue
        if ours < _HALF * theirs:
            what = (
                f"on the same requests the candidate's answers are {ours / theirs:.2f} times as long as the baseline's"
            )
            return Violation(f"stage {place.name}: {what} (bound {_HALF:g})", _SHORTER)
        says_nothing, says_something = tokens <= _NOTHING_TOKENS, tokens >= _SOMETHING_TOKENS
        silent, reverse = (int((says_nothing[:, a] & says_something[:, 1 - a]).sum()) for a in (1, 0))
        if is_significantly_more(silent, reverse, n, suite.gate.alpha):
            what = f"{silent} of {n} answers of the candidate end at once where the baseline writes on"
            return Violation(f"stage {place.name}: {what}, {reverse} the reverse (bound {_POINT:.0%})", _SHORTER)
        counts = to_limit.sum(axis=0)
        fewer, more = sorted(int((~to_limit[:, a] & to_limit[:, 1 - a]).sum()) for a in (0, 1))
        if counts.max() >= _TO_THE_LIMIT * n and is_significantly_more(more, fewer, n, suite.gate.alpha):
            what = (
                f"{counts[0]} of {n} answers of the baseline, and {counts[1]} of the candidate, reach the length asked"
            )
            return Violation(f"stage {place.name}: {what} for (bound {_POINT:.0%})", _ALIKE)
    return None


def _lengths(run: Evidence, place: Place) -> tuple[IntArray, BoolArray]:
    """Return of every request that both arms answered the tokens, and whether the answer went to its limit.

    One row a request, baseline and candidate in its columns.
    """
    tokens, to_limit = [np.empty((0, 2), dtype=np.int64)], [np.empty((0, 2), dtype=np.bool_)]
    for pair in paired_load(run, place.name):
        rows = answered_by_both(pair)
        tokens.append(np.column_stack([o.requests.output_tokens[at] for o, at in zip(pair, rows, strict=True)]))
        limits = [_went_to_limit(o, place.output_tokens)[at] for o, at in zip(pair, rows, strict=True)]
        to_limit.append(np.column_stack(limits))
    return np.concatenate(tokens), np.concatenate(to_limit)


def _went_to_limit(execution: LoadObservation, asked: int | None) -> BoolArray:
    """Mark answers that went on to their limit.

    A server that says "length" of a shorter answer than was asked for did not go there; one that only miscounts its
    tokens has sent as many pieces. One token less is as much.
    """
    columns = execution.requests
    ended = columns.finish_reason.are(("length",))
    if asked is None:
        return ended
    estimated = ~columns.token_source.are((TokenSource.USAGE,))
    written = np.maximum(columns.output_tokens, np.diff(columns.chunk_start))
    reached: BoolArray = ended & (estimated | (written >= max(asked - 1, _AS_MUCH * asked)))
    return reached


# --- Failures that no check counts, and traffic in the background -----------------------------------------------------

_MANY_FAILED = 0.05
_COUNTING = ("error_rate", "goodput", "validity", "rejected")
"""Metrics that failures are part of."""
_LEAST_SHARE = 2 / 3  # of what the baseline answered in the background
_NOISE_SD = 2.0


@guard("failures-judged", "failed requests are judged by a required check, or are few", needs=A_LOAD)
def failures_judged(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag failed requests that no required check counts.

    More than 5 % of an arm's requests failed, or more than 1 point more of the candidate's than of the baseline's,
    beyond chance. `error_rate`, `goodput` and `validity` count failures; `rejected`, and `error_rate` with `of`, count
    those of their class. A latency's median does not feel that a tenth of the requests failed, and a server that drops
    some is faster for the rest.
    """
    if not places(suite):
        return NotApplicable("no load was measured")
    for place in places(suite):
        counts = {arm: _uncounted_failures(run, suite, place, arm) for arm in arms_of(run)}
        for arm, (failed, of) in counts.items():
            if failed > _MANY_FAILED * of:
                what = f"{failed} of {of} requests of the {arm.value} failed (bound {_MANY_FAILED:.0%})"
                return _uncounted(run, place, arm, what)
        failed, of = counts[Arm.CANDIDATE]
        theirs, beside = counts.get(Arm.BASELINE, (0, 0))
        if not of or not beside or failed / of - theirs / beside <= _POINT:
            continue
        if poisson_rates_p(failed, of, theirs, beside) <= suite.gate.alpha:
            what = f"{failed} of {of} requests of the candidate failed, {theirs} of {beside} of the baseline"
            return _uncounted(run, place, Arm.CANDIDATE, what)
    return None


def _uncounted(run: Evidence, place: Place, arm: Arm, what: str) -> Violation:
    why = most_common_failure(load_of(run, place.name, arm).values())
    where = f"stage: {place.stage}" + (f", class: {place.class_name}" if place.class_name else "")
    check = f"{{metric: error_rate, {where}, margin: 1 point}}"
    reason = f"stage {place.name}: {what}, and no required check counts them ({why})"
    return Violation(reason, f"judge them too, by {check}, and see in the report why they failed")


def most_common_failure(executions: Iterable[LoadObservation]) -> str | None:
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


def _uncounted_failures(run: Evidence, suite: Suite, place: Place, arm: Arm) -> tuple[int, int]:
    """Return the number of failures on an arm that no required check counts, and of requests."""
    checks = [check for check in suite.gate.checks if check.required and _counts_failures(check, suite, place)]
    sent = [rows for o in load_of(run, place.name, arm).values() for rows in o.with_ramp]
    of = sum(map(len, sent))
    if any(check.metric != "rejected" and check.of is None for check in checks):
        return 0, of
    classes = {"http_429" if check.metric == "rejected" else str(check.of) for check in checks}
    return sum(int(np.count_nonzero(~succeeded(rows) & ~rows.error.are(classes))) for rows in sent), of


def _counts_failures(check: Check, suite: Suite, place: Place) -> bool:
    """Return True for a check that counts failures there. Background traffic is counted without being named, too."""
    if check.metric not in _COUNTING or check.over is not None:  # against another stage, both may fail
        return False
    if place.requests is None:
        return looks_at_background(check, suite.gate.checks, place.stage, place.class_name, own_slo=place.own_slo)
    return looks_at(check, place.stage, place.class_name)


@guard("background-alike", "the candidate answered its background traffic, or is judged by it", needs=BACKGROUND)
def background_alike(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a candidate that lets background traffic wait: it is faster for the rest.

    In the background it answered less than two thirds of the requests that the baseline answered, beyond chance over
    the blocks, and no required check names that class and holds its times or rates to something. No check is
    invalidated: a candidate that is slower at everything gets less done too, and is blocked for being slower.
    """
    for place in places(suite):
        if place.requests is not None or _speed_is_judged(place, suite):
            continue
        starved = _starved(run, place.name, suite.gate.alpha)
        if starved is not None:
            where = f"stage: {place.stage}, class: {place.class_name}"
            remedy = f"judge that class too, say by {{metric: e2e, {where}, margin: 50%}}, or see what holds it up"
            return Violation(starved, remedy)
    return None


def _speed_is_judged(place: Place, suite: Suite) -> bool:
    return any(
        check.required
        and check.metric in SPEED_METRICS
        and (check.class_name is not None or check.place == place.name)
        and looks_at(check, place.stage, place.class_name)
        for check in suite.gate.checks
    )


def _starved(run: Evidence, name: str, alpha: float) -> str | None:
    """Describe a candidate that answered far fewer requests in its blocks, beyond chance; None of any other."""
    pairs = paired_load(run, name)
    counts = np.array([[np.count_nonzero(succeeded(o.requests)) for o in pair] for pair in pairs], dtype=np.float64)
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
