"""Guards over both arms' responses to the same requests: resends, prompts, token counts, work done and failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchgate.gate.comparison import load_of, paired_load
from benchgate.gate.evidence.tokens import ROUNDING, same_rows, text_ratios
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
from benchgate.model.records import ABSENT, BoolArray, IntArray, TokenSource
from benchgate.model.request_metrics import MISCOUNTED_SHARE, WITHHELD, succeeded, undercounted
from benchgate.model.run import Evidence, LoadObservation
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import mcnemar_p, poisson_rates_p
from benchgate.suite.checks import covers, judges
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, all_traffic, traffic_classes
from benchgate.suite.stages import region_name

Pair = tuple[LoadObservation, LoadObservation]  # executions of baseline and candidate in one block of a stage

_POINT = 0.01  # largest difference between the arms' shares of responses that two sound servers show


def answered_by_both(pair: Pair) -> tuple[IntArray, IntArray]:
    """Return the rows of the requests that both arms answered, in the baseline and in the candidate."""
    baseline, candidate = same_rows(*pair)
    both = succeeded(pair[0].requests)[baseline] & succeeded(pair[1].requests)[candidate]
    return baseline[both], candidate[both]


def is_significantly_more(more: int, fewer: int, n: int, alpha: float) -> bool:
    """Return True if counts among n paired responses differ by over 1 point and significantly (exact McNemar)."""
    return more - fewer > _POINT * n and 2 * mcnemar_p(more, fewer) <= alpha


def with_all_stages(counts: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return counts by title of a stage, and those of all stages together: a little in each shows only there.

    Whoever tests them shares alpha among them: one of many stages differs as much by chance.
    """
    titled = {f"stage {name}": count for name, count in counts.items()}
    return titled | ({"all stages": tuple(map(sum, zip(*counts.values(), strict=True)))} if len(counts) > 1 else {})


# --- Resent requests --------------------------------------------------------------------------------------------------

_RESENT_LEAST = 3  # beyond the baseline's share; one or two connections break anywhere
_HABIT = 0.1  # of the baseline's connections; llama.cpp's server closes after every stream
_HABIT_ALONE = 0.5  # of the candidate's own, where no baseline was measured
_CLOSING_ENGINES = ("llamacpp",)


@guard(
    "sent-once",
    "no more of the candidate's requests were resent than of the baseline's",
    invalidates=LOAD,
    needs=A_LOAD,
)
def sent_once(run: Evidence, suite: Suite) -> Violation | None:
    """Flag requests that had to be resent, which the candidate's error rate does not show.

    The candidate closed connections during 1 point more of its requests than the baseline, and during three at least.
    A connection that closed before anything was sent on it is replaced and not counted. A baseline that closed more
    than 10 % of its connections, during a request or within a second of a response, does so by design: a faster
    candidate then meets more closed ones, and nothing is flagged. The same holds if only the candidate's engine is
    llama.cpp, which closes connections by design, and it closed more than half of them. A candidate measured alone may
    have 1 % resent, or two requests, unless its engine is llama.cpp or it closed more than half of its connections.

    Or the candidate sent data over connections without a request in progress, three times at least and by 1 point of
    its requests more often than the baseline: a server that responds twice also responds to the next request.
    """
    for place in traffic_classes(suite):
        unrequested = _unrequested(run, place.name)
        if unrequested is not None:
            return Violation(unrequested, "check whether the candidate, or a proxy before it, responds twice")
        baseline, candidate = (_Closed.of(run, suite, place, arm) for arm in Arm)
        closes = {arm: one.engine in _CLOSING_ENGINES for arm, one in run.run.arms.items()}
        often = candidate.habit > _HABIT_ALONE
        by_design = closes[Arm.CANDIDATE] or often
        if baseline.requests:
            by_design = closes[Arm.CANDIDATE] and not closes.get(Arm.BASELINE) and often
        if by_design or baseline.habit > _HABIT:
            continue
        more = candidate.share - baseline.share
        if more > _POINT and more * candidate.requests >= _RESENT_LEAST:
            against = f"the baseline during {baseline.share:.1%}" if baseline.requests else "no baseline was measured"
            what = f"the candidate closed the connection during {candidate.resent} of {candidate.requests} requests"
            remedy = "find in the candidate's log why it closes connections: lost ones must not count as answered"
            return Violation(f"stage {place.name}: {what}, which were resent ({against})", remedy)
    return None


def _unrequested(run: Evidence, stage: str) -> str | None:
    """Describe unsolicited responses of the candidate; None if there are few.

    One that arrives while the next request is in progress is taken for its response and not counted.
    """
    executions = {arm: load_of(run, stage, arm).values() for arm in Arm}
    sent = {arm: sum(o.recorded for o in found) for arm, found in executions.items()}
    times = {arm: sum(o.client.unasked for o in found) for arm, found in executions.items()}
    candidate, baseline = times[Arm.CANDIDATE], times[Arm.BASELINE]
    if not all(sent.values()) or candidate < _RESENT_LEAST:
        return None
    if candidate / sent[Arm.CANDIDATE] - baseline / sent[Arm.BASELINE] <= _POINT:
        return None
    return (
        f"stage {stage}: the candidate sent data {candidate} times over connections without a request in progress, in "
        f"{sent[Arm.CANDIDATE]} requests (the baseline {baseline} times)"
    )


@dataclass(frozen=True, slots=True)
class _Closed:
    """Closed connections of an arm.

    `habit` is the share of requests that were resent, plus that of connections closed right after a response.
    """

    requests: int
    resent: int
    share: float  # resent of all requests
    habit: float

    @classmethod
    def of(cls, run: Evidence, suite: Suite, place: TrafficClass, arm: Arm) -> _Closed:
        executions = load_of(run, place.name, arm).values()
        parts = [columns for o in executions for columns in o.parts]
        resent = sum(int(np.count_nonzero(columns.reconnects > 0)) for columns in parts)
        requests = sum(map(len, parts))
        early = sum(o.client.closed_early for o in executions)
        # the classes of a stage share its connections, so early closes are divided by all requests of the stage
        names = [other.name for other in traffic_classes(suite) if other.stage == place.stage]
        total = sum(o.recorded for name in names for o in load_of(run, name, arm).values())
        share = resent / requests if requests else 0.0
        return cls(requests, resent, share, share + (early / total if total else 0.0))


# --- Prompts and tokens -----------------------------------------------------------------------------------------------

_SAME_CHUNKS = 0.9  # of the other arm's characters in a chunk


@guard("prompts-alike", "both arms read prompts of the same length", invalidates=SPEED, by_arm=True, needs=A_LOAD)
def prompts_alike(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a server that truncates prompts: it has less to do.

    For the same prompts the arms' input token counts differ by more than 1 %, or in more than 1 % of the responses only
    one arm reports a count. In conversations only first turns count: later ones contain the model's own responses. The
    arm at fault counts fewer or does not report. Not applicable if `vocabulary` is declared as part of the change, or
    if no prompt has a count from both arms.
    """
    if "vocabulary" in suite.gate.allow_different:
        return NotApplicable("the vocabularies may differ, so prompt lengths were not compared")
    counted = {place.name: _prompt_tokens(run, place) for place in all_traffic(suite)}
    found = [one for stage, counts in counted.items() if (one := _other_prompts(stage, *counts)) is not None]
    if not found and not any(tokens.any() for tokens, _, _ in counted.values()):
        return NotApplicable("no prompt has a length from both servers")
    return most_serious(found)


def _prompt_tokens(run: Evidence, place: TrafficClass) -> tuple[IntArray, IntArray, int]:
    """Count, by arm, prompt tokens that both arms report and answers where one arm alone does; and all answers."""
    tokens, only, answered = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64), 0
    for pair in paired_load(run, place.name):
        rows = same_rows(*pair)
        counts = np.array([o.requests.input_tokens[at] for o, at in zip(pair, rows, strict=True)], dtype=np.int64)
        both = np.logical_and(*(succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True)))
        known = (counts > 0).all(axis=0)
        tokens += counts[:, known & place.is_first_turn(pair[0].requests.index[rows[0]])].sum(axis=1)
        only += (both & (counts > 0) & ~known).sum(axis=1)
        answered += int(both.sum())
    return tokens, only, answered


def _other_prompts(stage: str, tokens: IntArray, only: IntArray, answered: int) -> Violation | None:
    baseline, candidate = (int(total) for total in tokens)
    if only.sum() > _POINT * answered:
        reporting = Arm.BASELINE if only[0] > only[1] else Arm.CANDIDATE
        found = f"for {only.sum()} of {answered} answers only one arm, mostly the {reporting.value},"
        reason = f"stage {stage}: {found} reports the prompt's length (bound {_POINT:.0%})"
        silent = Arm.BASELINE if only[1] > only[0] else Arm.CANDIDATE
        return Violation(reason, "make both servers report usage", silent)
    if abs(candidate - baseline) > _POINT * baseline:
        what = f"for the same prompts the candidate counts {candidate} tokens and the baseline {baseline}"
        remedy = (
            "check whether a server truncates prompts or applies another chat template; if the tokenizer is the change "
            "under test, write `gate.allow_different: [vocabulary]`"
        )
        fewer = Arm.CANDIDATE if candidate < baseline else Arm.BASELINE
        return Violation(f"stage {stage}: {what} (bound {_POINT:.0%})", remedy, fewer)
    return None


def _share(run: Evidence, stage: str, arm: Arm, mark: Callable[[LoadObservation], BoolArray]) -> float | None:
    found = [mark(o)[succeeded(o.requests)] for o in load_of(run, stage, arm).values()]
    count = sum(map(len, found))
    return sum(int(one.sum()) for one in found) / count if count else None


def _is_counted(execution: LoadObservation) -> BoolArray:
    return execution.requests.token_source.are((TokenSource.USAGE,))


@guard("tokens-alike", "output tokens were counted the same way on both arms", invalidates=compared(LOAD), needs=A_LOAD)
def tokens_alike(run: Evidence, suite: Suite) -> Violation | None:
    """Flag output tokens in different units: the server's own count on one arm, or chunks of another size.

    The share of responses with the server's own count differs between the arms by more than a point. If the candidate's
    share is the smaller one, the guard also invalidates tokens. Or chunks are counted on both arms, and one arm's hold
    significantly less than 0.9 times the characters of the other's: only comparisons of tokens are invalidated.
    """
    shares_differ, chunks_differ, remedy = [], [], "make both servers report usage in their streams"
    for place in all_traffic(suite):
        baseline, candidate = (_share(run, place.name, arm, _is_counted) for arm in Arm)
        if baseline is not None and candidate is not None and abs(baseline - candidate) > _POINT:
            shares = f"{baseline:.0%} of the baseline's answers and {candidate:.0%} of the candidate's"
            reason = f"stage {place.name}: the server's own count of output tokens is reported for {shares}"
            kinds = (*compared(LOAD), *((TOKENS,) if candidate < baseline else ()))
            shares_differ.append(Violation(reason, remedy, invalidates=kinds))
        chunks = text_ratios(run, place.name, suite, TokenSource.CHUNKS)
        chars = None if chunks is None else chunks.chars_per_token
        if chars is not None and max(-chars.limits.upper, chars.limits.lower) > -math.log(_SAME_CHUNKS) + ROUNDING:
            times = f"{math.exp(chars.estimate):.2f} times as many characters as the baseline's"
            reason = f"stage {place.name}: chunks are counted as tokens, and the candidate's hold {times}"
            chunks_differ.append(Violation(reason, remedy, invalidates=compared(TOKENS)))
    return most_serious([*shares_differ, *chunks_differ])


@guard(
    "tokens-plausible", "the counts of output tokens fit the texts sent", invalidates=TOKENS, by_arm=True, needs=A_LOAD
)
def tokens_plausible(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a server that counts fewer tokens than it sent pieces of text.

    In more than 1 % of an arm's responses, usage counts fewer tokens than pieces of text minus one. Reasoning tokens
    that are counted apart are added first if the total of the usage includes them; otherwise tokens per second would be
    too low, so the guard trips. Not applicable without usage.
    """
    found, places = [], list(product(all_traffic(suite), Arm))
    if not any(_share(run, place.name, arm, _is_counted) for place, arm in places):
        return NotApplicable("no server counted the tokens of its answers")
    for place, arm in places:
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
    explained = found = 0
    for execution in executions:
        columns, fewer = execution.requests, undercounted(execution.requests)
        lacking = np.diff(columns.chunk_start) - WITHHELD - columns.output_tokens
        found += int(fewer.sum())
        explained += int((fewer & (columns.reasoning_tokens >= lacking)).sum())
    return 2 * explained > found


_MISCOUNTED = "find out what this server's usage counts; until then ignore its tokens per second"
_COUNT_REASONING = (
    "its usage seems not to count reasoning tokens as output: configure the server, or its gateway, to include them or "
    "to report a `total_tokens` that does; until then ignore its tokens per second"
)


@guard("answers-not-too-long", "no arm alone exceeds the requested length", invalidates=LOAD, by_arm=True, needs=A_LOAD)
def answers_not_too_long(run: Evidence, suite: Suite) -> Violation | None:
    """Flag one arm that exceeds the requested number of tokens: it ignores the limit or miscounts.

    Its share of longer answers exceeds the other arm's by more than 1 point. Rows of a trace request individual
    lengths, so there: the candidate's answer is longer in more than 1 % of the rows in which both arms ended at the
    limit.
    """
    found = []
    for place in all_traffic(suite):
        longer = (
            _longer_than_baseline(run, place) if place.output_tokens is None else _longer_than_requested(run, place)
        )
        if longer is not None:
            arm, what = longer
            remedy = "check whether this server honours max_tokens, and what its usage counts"
            found.append(Violation(f"stage {place.name}: {what}", remedy, arm))
    return most_serious(found)


def _longer_than_requested(run: Evidence, place: TrafficClass) -> tuple[Arm, str] | None:
    shares = {}
    for arm in Arm:
        answers = [o.requests.output_tokens for o in load_of(run, place.name, arm).values()]
        if not sum(map(len, answers)):
            return None  # nothing to compare with: an arm was not measured or answered nothing
        shares[arm] = float(np.mean(np.concatenate(answers) > (place.output_tokens or 0)))
    worse = max(Arm, key=lambda arm: shares[arm])
    if shares[worse] - shares[worse.other] <= _POINT:
        return None
    at_fault = Arm.CANDIDATE if shares[Arm.CANDIDATE] > _POINT else worse
    what = f"answers exceed the {place.output_tokens} requested tokens"
    return at_fault, f"{shares[worse]:.0%} of the {worse.value}'s {what}"


def _longer_than_baseline(run: Evidence, place: TrafficClass) -> tuple[Arm, str] | None:
    longer = both_ended = 0
    for pair in paired_load(run, place.name):
        baseline, candidate = answered_by_both(pair)
        ended = [
            o.requests.finish_reason.are(("length",))[at] for o, at in zip(pair, (baseline, candidate), strict=True)
        ]
        both = ended[0] & ended[1]
        more = pair[1].requests.output_tokens[candidate] > pair[0].requests.output_tokens[baseline]
        both_ended += int(both.sum())
        longer += int((both & more).sum())
    if longer <= _POINT * both_ended:
        return None
    return (
        Arm.CANDIDATE,
        f"{longer} of {both_ended} answers of the candidate exceed the limit at which the baseline's ended",
    )


# --- The same work ----------------------------------------------------------------------------------------------------

_TO_THE_LIMIT = 0.99  # of an arm's answers: it ignores the end of text, or all answers are truncated
_AS_MUCH = 0.95  # of the requested length, at most one token short: some servers (LM Studio) stop there
_HALF = 0.5
_NOTHING_TOKENS = 2  # a word, or only the end-of-text token
_SOMETHING_TOKENS = 8
_SCALE = 2.0  # a candidate that writes half as much throughout is another matter: a check warns
_USUAL = 0.99  # of the answers: their ratio of lengths is natural variation
_SHORTER = "find out why its answers end early (template, stop words, a broken model); until then ignore its speed"
_ALIKE = (
    "check that both servers support `ignore_eos` and have the same context length; or let answers end by themselves: "
    "`ignore_eos: false`"
)


@guard("same-work", "both arms wrote about as much for the same requests", invalidates=SPEED, needs=A_LOAD)
def same_work(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag arms that did not do the same work for the same requests: an arm that writes less is faster.

    Among the requests that both arms answered: the candidate's answers are less than half as long in total; or it ends
    at once where the baseline writes eight tokens or more, in over 1 % more requests than the reverse; or one arm
    reaches the requested length in 99 % of its answers and the other in over 1 % fewer. The last two must be
    significant in a stage or over all (exact McNemar, Bonferroni). An answer ends at once after two tokens, or after
    fewer than eight if the other arm's is longer by more than twice the ratio that 99 % of the candidate's lengths to
    the baseline's stay within. An answer of a fixed length must be that long, or one token less and at least 95 %,
    whatever its finish reason. Where lengths vary, an answer that was cut must be as long by that rule as the
    baseline's, if that was cut too. Between 0.5 and 0.9 of the length a check warns. The visible characters of a text
    without tokens (`infer`) are compared in total. Not applicable if no answer has a length.
    """
    lengths = {place.name: _lengths(run, place) for place in all_traffic(suite)}
    totals = {place.name: lengths[place.name][0].sum(axis=0) + _characters(run, place) for place in all_traffic(suite)}
    if not any(total.any() for total in totals.values()):
        return NotApplicable("no answer from both arms has a length")
    for stage, total in totals.items():
        baseline, candidate = total.tolist()
        if baseline > 0 and candidate < _HALF * baseline:
            what = f"the candidate's answers are {candidate / baseline:.2f} times as long as the baseline's"
            return Violation(f"stage {stage}: {what} to the same requests (bound {_HALF:g})", _SHORTER)
    counted = with_all_stages({stage: _length_counts(*found) for stage, found in lengths.items()})
    alpha = suite.gate.alpha / max(1, len(counted))
    for title, (n, silent, reverse, of_baseline, of_candidate, *alone) in counted.items():
        if is_significantly_more(silent, reverse, n, alpha):
            what = f"{silent} of {n} answers of the candidate end at once where the baseline's go on"
            return Violation(f"{title}: {what}, {reverse} the reverse (bound {_POINT:.0%})", _SHORTER)
        is_limited = n > 0 and max(of_baseline, of_candidate) >= _TO_THE_LIMIT * n
        if is_limited and is_significantly_more(max(alone), min(alone), n, alpha):
            what = f"{of_baseline} of {n} answers of the baseline and {of_candidate} of the candidate"
            return Violation(f"{title}: {what} reach the requested length (bound {_POINT:.0%})", _ALIKE)
    return None


def _length_counts(tokens: IntArray, to_limit: BoolArray) -> tuple[int, ...]:
    """Count requests, answers that ended at once on one arm alone, and at the limit: by arm, and on one arm alone."""
    silent, reverse = (int(np.count_nonzero(ended)) for ended in _ended_at_once(tokens)) if len(tokens) else (0, 0)
    of_baseline, of_candidate = to_limit.sum(axis=0).tolist()
    alone = [int((to_limit[:, a] & ~to_limit[:, 1 - a]).sum()) for a in (0, 1)]
    return len(tokens), silent, reverse, of_baseline, of_candidate, *alone


def _ended_at_once(tokens: IntArray) -> tuple[BoolArray, BoolArray]:
    """Mark the requests whose answer ends at once on the candidate alone, and those on the baseline alone.

    The bound on the ratio of lengths is twice the upper percentile of candidate to baseline. Two samples of one model
    pass it in 1 % of the requests, and so does a candidate that writes half as much throughout.
    """
    lengths = np.maximum(tokens, 1)
    usual = float(np.quantile(lengths[:, 1] / lengths[:, 0], _USUAL, method="higher"))
    short = lengths * (_SCALE * max(usual, 1.0)) < lengths[:, ::-1]
    ended = (tokens <= _NOTHING_TOKENS) | ((tokens < _SOMETHING_TOKENS) & short)
    alone = ended & (tokens >= _SOMETHING_TOKENS)[:, ::-1]
    return alone[:, 1], alone[:, 0]


def _lengths(run: Evidence, place: TrafficClass) -> tuple[IntArray, BoolArray]:
    """Return the token counts, and masks of answers that reached their limit: a row per request, a column per arm.

    The finish reason "length" alone does not suffice: usage or the number of pieces must reach the requested length, or
    one token less. Where lengths vary, that is the length of the baseline's, if both have that finish reason.
    """
    tokens, to_limit = [np.empty((0, 2), dtype=np.int64)], [np.empty((0, 2), dtype=np.bool_)]
    for pair in paired_load(run, place.name):
        sides = [(o.requests, at) for o, at in zip(pair, answered_by_both(pair), strict=True)]
        counted = np.column_stack([columns.output_tokens[at] for columns, at in sides])
        pieces = np.column_stack([np.diff(columns.chunk_start)[at] for columns, at in sides])
        ended = np.column_stack([columns.finish_reason.are(("length",))[at] for columns, at in sides])
        estimated = np.column_stack([~columns.token_source.are((TokenSource.USAGE,))[at] for columns, at in sides])
        requested = place.output_tokens or np.where(ended.all(axis=1), counted[:, 0], 0)[:, np.newaxis]
        least = np.maximum(requested - 1, _AS_MUCH * requested)
        tokens.append(counted)
        to_limit.append(ended & (estimated | (np.maximum(counted, pieces) >= least)))
    return np.concatenate(tokens), np.concatenate(to_limit)


def _characters(run: Evidence, place: TrafficClass) -> IntArray:
    """Return the visible characters of texts without tokens, by arm, of the requests that both arms answered."""
    total = np.zeros(2, dtype=np.int64)
    for pair in paired_load(run, place.name):
        sides = [(o.requests, at) for o, at in zip(pair, answered_by_both(pair), strict=True)]
        chars = np.array([np.where(c.tokenless == 1, c.answer_chars, ABSENT)[at] for c, at in sides], dtype=np.int64)
        total += chars[:, (chars != ABSENT).all(axis=0)].sum(axis=1)
    return total


# --- Uncounted failures and background traffic ------------------------------------------------------------------------

_MANY_FAILED = 0.05
_COUNTING = ("error_rate", "goodput", "validity", "session_success", "rejected")  # metrics that count failures
_LEAST_SHARE = 2 / 3  # of the background requests that the baseline answered
_NOISE_SD = 2.0


@guard("failures-judged", "failed requests are judged by a required check, or are few", needs=A_LOAD)
def failures_judged(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag failed requests that no required check counts.

    In a stage, or a region of it, more than 5 % of an arm's requests failed, or significantly more of the candidate's,
    by over 1 point. `error_rate` counts failures; `goodput`, `validity` and `session_success` count those outside the
    ramp; `rejected`, and `error_rate` with `of`, those of their class. A `rejected` check with `min` asks for refusals:
    it counts them, but not those by which the candidate exceeds the baseline. A median latency hides that a tenth of
    the requests failed, and a server that drops some is faster for the rest.
    """
    if not traffic_classes(suite):
        return NotApplicable("no load was measured")
    regions: tuple[str | None, ...] = tuple(suite.regions) or (None,)
    together = [regions] if len(regions) > 1 else []  # failures may be few in every region, and many in all
    for place, parts in product(traffic_classes(suite), [*((region,) for region in regions), *together]):
        region = parts[0] if len(parts) == 1 else None
        for arm in Arm:
            failed, of = _uncounted_failures(run, suite, place, parts, arm)
            by_chance = len(regions) > len(parts)  # of a few requests, one may fail so
            if failed > max(_MANY_FAILED * of, by_chance):
                what = f"{failed} of {of} requests of the {arm.value} failed (bound {_MANY_FAILED:.0%})"
                return _uncounted(run, place, region, arm, what, "counts")
        (baseline_failed, total), (failed, of) = (
            _uncounted_failures(run, suite, place, parts, arm, only_limited=True) for arm in Arm
        )
        if not of or not total or failed / of - baseline_failed / total <= _POINT:
            continue
        if poisson_rates_p(failed, of, baseline_failed, total) <= suite.gate.alpha / (len(regions) + len(together)):
            what = f"{failed} of {of} requests of the candidate failed, {baseline_failed} of {total} of the baseline"
            return _uncounted(run, place, region, Arm.CANDIDATE, what, "limits")
    return None


def _uncounted(run: Evidence, place: TrafficClass, region: str | None, arm: Arm, what: str, does: str) -> Violation:
    name = region_name(place.name, region)
    why = most_common_failure(load_of(run, name, arm).values())
    where = f"stage: {place.stage}" + (f", class: {place.class_name}" if place.class_name else "")
    where += f", region: {region}" if region is not None else ""
    check = f"{{metric: error_rate, {where}, margin: 1 point}}"
    reason = f"stage {name}: {what}, and no required check {does} them ({why})"
    return Violation(reason, f"add the check {check}, and find in the report why they failed")


def most_common_failure(executions: Iterable[LoadObservation]) -> str | None:
    """Describe the number of failed requests and their most common reason; None if none failed.

    `144 of 160 requests failed, mostly with: protocol, a tool call, although no tools were offered`.
    """
    reasons: Counter[tuple[str, str]] = Counter()
    sent = failed = 0
    for rows in (rows for execution in executions for rows in execution.with_ramp):
        bad = np.flatnonzero(~succeeded(rows))
        sent, failed = sent + len(rows), failed + len(bad)
        if len(bad):
            errors = zip(rows.error.take(bad), rows.error_detail.take(bad), strict=True)
            reasons.update((error or "no success", detail or "no reason recorded") for error, detail in errors)
    if not failed:
        return None
    error, detail = reasons.most_common(1)[0][0]
    return f"{failed} of {sent} requests failed, mostly with: {error}, {detail}"


def _uncounted_failures(
    run: Evidence,
    suite: Suite,
    place: TrafficClass,
    regions: Sequence[str | None],
    arm: Arm,
    *,
    only_limited: bool = False,
) -> tuple[int, int]:
    """Return the failures that no required check counts, or that none limits, and the number of requests."""
    counts = [_uncounted_in_region(run, suite, place, region, arm, only_limited=only_limited) for region in regions]
    return sum(failed for failed, _ in counts), sum(of for _, of in counts)


def _uncounted_in_region(
    run: Evidence, suite: Suite, place: TrafficClass, region: str | None, arm: Arm, *, only_limited: bool
) -> tuple[int, int]:
    checks = [
        check
        for check in suite.gate.checks
        if check.required
        and check.metric in _COUNTING
        and check.over is None  # in the other stage, requests may fail too
        and not (only_limited and check.metric == "rejected" and check.min is not None)
        and check.region in (None, region)
        and judges(check, place, suite.gate.checks)
    ]
    executions = load_of(run, region_name(place.name, region), arm).values()
    of = sum(len(rows) for execution in executions for rows in execution.with_ramp)
    every = [check.metric for check in checks if check.metric != "rejected" and check.of is None]
    if "error_rate" in every or (every and place.schedule.verify_ratio is not None):
        return 0, of  # eval items among a load are kept with its ramp, and judged by their accuracy
    classes = {"http_429" if check.metric == "rejected" else str(check.of) for check in checks}
    # The other metrics that count all failures leave the ramp out.
    sent = [rows for execution in executions for rows in ((execution.ramp,) if every else execution.with_ramp)]
    return sum(int(np.count_nonzero(~succeeded(rows) & ~rows.error.are(classes))) for rows in sent), of


@guard("background-alike", "the candidate answered its background traffic, or a check covers it", needs=BACKGROUND)
def background_alike(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a candidate that starves background traffic: it is faster for the rest.

    It answered less than 2/3 of the background requests that the baseline answered, significantly over the blocks, and
    no required check covers latency or throughput of that class. No check is invalidated: a candidate that is slower
    everywhere also answers fewer, and is blocked for being slower.
    """
    for place in traffic_classes(suite):
        judged = any(
            check.required
            and check.metric in SPEED_METRICS
            and (check.class_name is not None or check.place == place.name)
            and covers(check, place)
            for check in suite.gate.checks
        )
        if place.requests is not None or judged:
            continue
        starved = _starved(run, place.name, suite.gate.alpha)
        if starved is not None:
            where = f"stage: {place.stage}, class: {place.class_name}"
            remedy = (
                f"add a check of that class, such as {{metric: e2e, {where}, margin: 50%}}, or find out what delays it"
            )
            return Violation(starved, remedy)
    return None


def _starved(run: Evidence, name: str, alpha: float) -> str | None:
    pairs = paired_load(run, name)
    counts = np.array([[np.count_nonzero(succeeded(o.requests)) for o in pair] for pair in pairs], dtype=np.float64)
    if len(counts) < 2:
        return None
    baseline, candidate = (int(total) for total in counts.sum(axis=0))
    if candidate >= _LEAST_SHARE * baseline or baseline - candidate <= _NOISE_SD * math.sqrt(baseline + candidate):
        return None
    test = paired_t(np.log((counts[:, 1] + 0.5) / (counts[:, 0] + 0.5)), alpha)
    if test is None or test.limits.upper >= 0:
        return None
    return (
        f"stage {name}: the candidate answered {candidate} background requests and the baseline {baseline} "
        f"(bound {_LEAST_SHARE:.0%}), so other requests met less background traffic"
    )
