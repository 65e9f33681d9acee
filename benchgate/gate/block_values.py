"""One number per block and arm, for latencies and rates: requests inside a block are not independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.gate.rule import Problem
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import BoolArray, FloatArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Unit
from benchgate.suite.metric_kinds import COST_METRICS

LATENCIES: Mapping[str, Callable[..., FloatArray]] = MappingProxyType(
    {
        "ttft": metrics.ttft_s,
        "ttfot": metrics.ttfot_s,
        "tpot": metrics.tpot_s,
        "itl": metrics.itl_s,
        "e2e": metrics.e2e_s,
    }
)
RATE_UNITS: Mapping[str, Unit] = MappingProxyType(
    {"output_throughput": Unit.TOKENS_PER_S, "request_throughput": Unit.REQUESTS_PER_S}
)
EACH_UNITS: Mapping[Unit, Unit] = MappingProxyType(
    {
        Unit.TOKENS_PER_S: Unit.TOKENS_PER_S_EACH,
        Unit.REQUESTS_PER_S: Unit.REQUESTS_PER_S_EACH,
        Unit.COUNT: Unit.COUNT_EACH,
    }
)
"""The units of values that are divided by a deployment's accelerators."""
VALUE_UNITS: Mapping[str, Unit] = MappingProxyType({**RATE_UNITS, **dict.fromkeys(COST_METRICS, Unit.USD)})
_LONG_TOKENS = 8  # an answer of as many tokens in two arrivals was not streamed
_UNPACED_OF_TAIL = 0.1  # of the answers slower than the quantile judged: so many without a pace cannot hide its loss
_PIECES_GAP = 0.1  # of the arm with more tokens an arrival
_MERGED_GAP = 0.2  # of an arm's answers: a median then stands a quarter deeper among the others
_ROUNDING = 1e-6

Value = Callable[[LoadObservation], "float | None"]


def block_value(metric: str, q: float) -> Value:
    """The function that makes one number of one stage execution: a quantile in seconds, or a rate per second."""
    compute = _computed(metric, q)

    def value(execution: LoadObservation) -> float | None:
        """Computed once of each execution: checks, their notes and the history all ask for it."""
        known = _KNOWN.setdefault(execution, {})
        if (metric, q) not in known:
            known[metric, q] = compute(execution)
        return known[metric, q]

    return value


_KNOWN: WeakKeyDictionary[LoadObservation, dict[tuple[str, float], float | None]] = WeakKeyDictionary()


def _computed(metric: str, q: float) -> Value:
    if metric in LATENCIES:
        return lambda o: metrics.quantile(LATENCIES[metric](o.requests), q)
    rate = metrics.output_tokens_per_s if metric == "output_throughput" else metrics.requests_per_s
    return lambda o: rate(o.requests, o.window_s)


def unpaced(metric: str, q: float, stage: str, blocks: list[LoadObservation]) -> Problem | None:
    """TPOT judged on the few answers that have one speaks of other requests than the users'.

    A client or server that pauses for the length of one answer sends or sees it in one piece, so a few are met on any
    busy machine: up to 5 % leave a median what it is, 0.5 % a p95.
    """
    if metric not in ("tpot", "itl") or not blocks:
        return None
    answered = sum(int(metrics.succeeded(block.requests).sum()) for block in blocks)
    without = sum(int(_has_no_pace(block).sum()) for block in blocks)
    if answered == 0 or without <= _UNPACED_OF_TAIL * (1 - q) * answered:
        return None
    reason = f"stage {stage}: {without} of {answered} answers of the {blocks[0].arm.value} came in one or two pieces"
    return Problem(Outcome.INVALID, f"{reason}, and have no pace", NO_PACE)


def in_other_pieces(evidence: Evidence, stage: str, *, of_candidate: bool = False) -> Problem | None:
    """Tokens that come several at a time make another pace of the same speed: a span of fewer gaps over as many tokens.

    Of the median answer, so that reads which a busy machine merges now and then do not count; and of so many answers of
    one arm alone that its median pace is that of its quicker ones. `of_candidate`: only where the larger pieces are the
    candidate's, which makes its own pace seem quicker; a bound of its own has nothing to do with the baseline's.
    """
    baseline, candidate = (_tokens_an_arrival(load_of(evidence, stage, arm)) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    theirs, ours = metrics.quantile(baseline, 0.5), metrics.quantile(candidate, 0.5)
    if theirs is None or ours is None:
        return None
    own_pace_is_true = of_candidate and ours <= max(theirs, 1.0)  # one token an arrival hides none
    if round(1 - min(theirs, ours) / max(theirs, ours), 6) > _PIECES_GAP and not own_pace_is_true:
        reason = f"the answers came in other pieces: {ours:.1f} tokens an arrival against {theirs:.1f}"
        return Problem(Outcome.INVALID, f"stage {stage}: {reason} (bound {_PIECES_GAP:.0%})", OTHER_PIECES)
    usual = max(theirs, ours) / (1 - _PIECES_GAP) + _ROUNDING
    merged, of_ours = (float(np.mean(arm > usual)) for arm in (baseline, candidate))
    if abs(of_ours - merged) <= _MERGED_GAP or (of_candidate and of_ours < merged):
        return None
    told = f"{of_ours:.0%} of the candidate's answers came in larger pieces than usual, {merged:.0%} of the baseline's"
    return Problem(Outcome.INVALID, f"stage {stage}: {told} (bound {_MERGED_GAP:.0%} apart)", OTHER_PIECES)


def _tokens_an_arrival(blocks: Mapping[int, LoadObservation]) -> FloatArray:
    """Of every successful answer of all blocks."""
    answers: list[FloatArray] = [np.empty(0)]
    for block in blocks.values():
        answered = metrics.succeeded(block.requests)
        answers.append(block.requests.output_tokens[answered] / metrics.arrivals(block.requests)[answered])
    return np.concatenate(answers)


def _has_no_pace(block: LoadObservation) -> BoolArray:
    """Successful requests without a TPOT, and long ones that a proxy or server held back and sent in two pieces."""
    columns = block.requests
    held_back = (columns.output_tokens >= _LONG_TOKENS) & (metrics.arrivals(columns) <= 2)
    without: BoolArray = np.isnan(metrics.tpot_s(columns)) | held_back
    return without & metrics.succeeded(columns)


def too_few(blocks: int) -> Problem:
    """An interval needs two blocks at least."""
    advice = "measure more blocks: two at least, and as many as `benchgate plan` says that the margin takes"
    return Problem(Outcome.INCONCLUSIVE, f"{blocks} blocks give no interval", advice)


NO_PRICE = "give the deployment its `price` in the suite, and measure again"
NO_PACE = "let the server stream token by token, or judge e2e and output_throughput instead"
OTHER_PIECES = "let both servers stream alike, or judge e2e and output_throughput instead"
OWN_MACHINE = "give the load generator a machine or cores of its own, or judge the median"
LOOK_AT_ERRORS = "see the errors by class in the load table and the server's log"
