"""Guards over the load: was what was planned sent, and on time, and do the servers' counts of tokens mean the same?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.gate.guard import SPEED, TO_ITS_END, TOKENS, held, tripped
from benchgate.gate.saturation import STRAINED_SHARE, doubtful_failures, losses, strains
from benchgate.model.deployment import Arm
from benchgate.model.metrics import succeeded
from benchgate.model.records import BoolArray, TokenSource
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Stage, Suite

_SOURCE_GAP = 0.01
_OVERLONG_GAP = 0.01
_UNDERCOUNTED_SHARE = 0.01
_WITHHELD = 1  # events with text beyond the tokens counted: a server may close a stream with the tail of a token


def load_guards(evidence: Evidence, suite: Suite) -> list[GuardResult]:
    """All of them, in a fixed order; without a load they hold."""
    found = (_as_planned, _client_keeps_up, _tokens_counted_alike, _tokens_plausible, _answers_not_too_long)
    return [guard(evidence, suite) for guard in found]


def _as_planned(evidence: Evidence, suite: Suite) -> GuardResult:
    """What the client's own machine lost was never offered to the server: another load than the planned one."""
    for stage, arm in product(_names(suite), Arm):
        for execution in load_of(evidence, stage, arm).values():
            lost = losses(execution.client, execution.requests)
            if lost:
                what = f"stage {stage}, block {execution.block + 1}, {arm.value}: {lost[0]}"
                remedy = f"see the error details in the report and the load generator's own machine; {TO_ITS_END}"
                return tripped("load-as-planned", what, remedy, ("load",))
    return held("load-as-planned", "the load generator lost no request and no worker")


def _client_keeps_up(evidence: Evidence, suite: Suite) -> GuardResult:
    """The load generator itself did not set the pace.

    A server that fails at once makes a closed loop spin and its client busy. Those failures are the server's own
    answers, so they stay judged: only what is measured in time is spoilt, unless failures may be the client's too.
    """
    found: list[str] = []
    doubtful = 0
    for stage, arm in product(suite.load.sweep if suite.load else (), Arm):
        executions = list(load_of(evidence, stage.name, arm).values())
        reasons = [strains(o.client, o.requests, _offered_rps(stage, o), suite.gate.client) for o in executions]
        strained = [(o, why[0]) for o, why in zip(executions, reasons, strict=True) if why]
        if strained and len(strained) > STRAINED_SHARE * len(executions):
            where = f"{len(strained)} of {len(executions)} executions of stage {stage.name} on the {arm.value}"
            found.append(f"the load generator was the bottleneck in {where}: {strained[0][1]}")
            doubtful += sum(doubtful_failures(o.requests) for o, _ in strained)
    if found:
        return tripped("client-keeps-up", found[0], _RELIEVE, ("load",) if doubtful else (SPEED,))
    if unusual := suite.gate.client.unusual():
        return held("client-keeps-up", f"the load generator kept up within the policy's own bounds: {unusual}")
    return held("client-keeps-up", "the load generator kept up with its schedule")


def _tokens_counted_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """Tokens counted by usage on one arm and by chunks on the other are not the same unit."""
    for stage in _names(suite):
        shares = {arm: _share(load_of(evidence, stage, arm), _by_usage) for arm in Arm}
        baseline, candidate = shares[Arm.BASELINE], shares[Arm.CANDIDATE]
        if baseline is not None and candidate is not None and abs(baseline - candidate) > _SOURCE_GAP:
            found = f"{baseline:.0%} of the baseline's answers and {candidate:.0%} of the candidate's"
            what = f"stage {stage}: the server's own count of output tokens is there for {found}"
            return tripped("tokens-alike", what, "make both servers report usage in their streams", ("load",))
    return held("tokens-alike", "output tokens were counted the same way on both arms")


def _tokens_plausible(evidence: Evidence, suite: Suite) -> GuardResult:
    """A token makes at most one event with text, so a server that counts fewer tokens than it sent texts miscounts.

    More tokens than events are no fault: servers merge tokens into one event under load, and count those they withhold.
    """
    for stage, arm in product(_names(suite), Arm):
        share = _share(load_of(evidence, stage, arm), _undercounted)
        if share is not None and share > _UNDERCOUNTED_SHARE:
            what = (
                f"in {share:.0%} of the {arm.value}'s answers usage counts fewer tokens than there were pieces of text"
            )
            remedy = "see what this server's usage counts; tokens per second cannot be judged by it"
            bound = f"(bound {_UNDERCOUNTED_SHARE:.0%})"
            return tripped("tokens-plausible", f"stage {stage}: {what} {bound}", remedy, (TOKENS,))
    return held("tokens-plausible", "the servers' counts of output tokens fit the texts they sent")


def _answers_not_too_long(evidence: Evidence, suite: Suite) -> GuardResult:
    """More tokens than were asked for, on one arm only: it ignores the limit or miscounts, and its tokens/s with it."""
    asked = suite.load.workload.output_tokens if suite.load else 0
    for stage in _names(suite):
        shares = {}
        for arm in Arm:
            tokens = [o.requests.output_tokens for o in load_of(evidence, stage, arm).values()]
            shares[arm] = float(np.mean(np.concatenate(tokens) > asked)) if tokens else 0.0
        worse = max(Arm, key=lambda arm: shares[arm])
        if shares[worse] - shares[worse.other] > _OVERLONG_GAP:
            what = f"{shares[worse]:.0%} of the {worse.value}'s answers have more than the {asked} tokens asked for"
            remedy = "see whether this server honours max_tokens and what its usage counts"
            return tripped("answers-not-too-long", f"stage {stage}: {what}", remedy, ("load",))
    return held("answers-not-too-long", "no arm alone answers with more tokens than were asked for")


def _names(suite: Suite) -> list[str]:
    return [stage.name for stage in suite.load.sweep] if suite.load else []


def _offered_rps(stage: Stage, execution: LoadObservation) -> float | None:
    """The rate an open loop was meant to send at, over the span of its schedule; None for a closed loop."""
    if not stage.is_open:
        return None
    intended_ns = execution.requests.intended_ns
    span_s = float(np.ptp(intended_ns)) * 1e-9 if len(intended_ns) else 0.0
    return stage.mean_rps or ((len(intended_ns) - 1) / span_s if span_s > 0 else None)  # a trace has no stated rate


def _share(executions: dict[int, LoadObservation], marked: Callable[[LoadObservation], BoolArray]) -> float | None:
    """Share of the successful answers that are marked; None when there are none."""
    answered = [succeeded(o.requests) for o in executions.values()]
    count = sum(int(ok.sum()) for ok in answered)
    hits = sum(int((ok & marked(o)).sum()) for ok, o in zip(answered, executions.values(), strict=True))
    return hits / count if count else None


def _by_usage(execution: LoadObservation) -> BoolArray:
    return np.array([source == TokenSource.USAGE for source in execution.requests.token_source], dtype=np.bool_)


def _undercounted(execution: LoadObservation) -> BoolArray:
    columns = execution.requests
    fewer: BoolArray = columns.output_tokens < np.diff(columns.chunk_start) - _WITHHELD
    return fewer & _by_usage(execution)


_RELIEVE = "lower the load, or give the load generator a machine, cores or workers of its own (`benchgate doctor`)"
