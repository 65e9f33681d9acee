"""Guards over the load: was what was planned sent, and on time, and do the servers' counts of tokens mean the same?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from benchgate.gate.answer_cache import load_not_cached, order_does_not_matter
from benchgate.gate.between_runs import beside
from benchgate.gate.comparison import Comparison, load_of, paired_load
from benchgate.gate.guard import SPEED, TO_ITS_END, TOKENS, compared, gravest, held, spoils_of, tripped
from benchgate.gate.impossible import impossible
from benchgate.gate.model_names import model_names
from benchgate.gate.paired_guards import prompts_alike, same_rows, sent_once
from benchgate.gate.places import places
from benchgate.gate.same_work import same_work
from benchgate.gate.saturation import losses
from benchgate.gate.text_guards import answers_there, same_text, text_not_degenerate
from benchgate.gate.token_counts import MISCOUNTED_SHARE, WITHHELD, undercounted
from benchgate.gate.unjudged import failures_judged
from benchgate.gate.usable_blocks import strained_blocks
from benchgate.model.deployment import Arm
from benchgate.model.metrics import succeeded
from benchgate.model.records import BoolArray, TokenSource
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite

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
