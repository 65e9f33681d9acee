"""One number per block and arm, for latencies and rates: requests inside a block are not independent.

Request by request: what one and the same prompt, asked at the same instant of the same block, took on each arm.

How one request differs from the next (its length, what else runs) cancels in such a pair, so their mean is a sharp
number. It is that of the ratio, the geometric mean: a quantile of the differences would be no difference of quantiles.

Both arms' numbers of a stage, block by block, as pairs: a quantile or a rate of each block, or its paired requests.

A block of few requests has no high quantile: the p99 of thirty requests is their slowest one, whatever its name says,
and that of a hundred lies near p98, where a tail that grew may not have begun. So blocks are taken together until they
have as many requests as an upper limit of the quantile takes. It costs little: fewer numbers, that vary less each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np

from benchgate.gate.comparison import load_of, paired_load
from benchgate.gate.decision import Problem
from benchgate.gate.evidence.costs import block_cost, output_tokens
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import COST_METRICS, MEAN, METRICS
from benchgate.model.records import BoolArray, FloatArray
from benchgate.model.request_metrics import Slo, succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.quantiles import min_n_for_quantile

LATENCIES: Mapping[str, Callable[..., FloatArray]] = MappingProxyType(
    {
        "ttft": request_metrics.ttft_s,
        "ttfot": request_metrics.ttfot_s,
        "tpot": request_metrics.tpot_s,
        "itl": request_metrics.itl_s,
        "e2e": request_metrics.e2e_s,
    }
)
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
        return lambda o: request_metrics.quantile(LATENCIES[metric](o.requests), q)
    rate = request_metrics.output_tokens_per_s if metric == "output_throughput" else request_metrics.requests_per_s
    return lambda o: rate(o.requests, o.window_s)


def unpaced(metric: str, q: float, stage: str, blocks: list[LoadObservation]) -> Problem | None:
    """TPOT judged on the few answers that have one speaks of other requests than the users'.

    A client or server that pauses for the length of one answer sends or sees it in one piece, so a few are met on any
    busy machine: up to 5 % leave a median what it is, 0.5 % a p95.
    """
    if metric not in ("tpot", "itl") or not blocks:
        return None
    answered = sum(int(request_metrics.succeeded(block.requests).sum()) for block in blocks)
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
    theirs, ours = request_metrics.quantile(baseline, 0.5), request_metrics.quantile(candidate, 0.5)
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
        answered = request_metrics.succeeded(block.requests)
        answers.append(
            block.requests.output_tokens[answered] / request_metrics.distinct_arrivals(block.requests)[answered]
        )
    return np.concatenate(answers)


def _has_no_pace(block: LoadObservation) -> BoolArray:
    """Successful requests without a TPOT, and long ones that a proxy or server held back and sent in two pieces."""
    columns = block.requests
    held_back = (columns.output_tokens >= _LONG_TOKENS) & (request_metrics.distinct_arrivals(columns) <= 2)
    without: BoolArray = np.isnan(request_metrics.tpot_s(columns)) | held_back
    return without & request_metrics.succeeded(columns)


def too_few(blocks: int) -> Problem:
    """An interval needs two blocks at least."""
    advice = "measure more blocks: two at least, and as many as `benchgate plan` says that the margin takes"
    return Problem(Outcome.INCONCLUSIVE, f"{blocks} blocks give no interval", advice)


NO_PRICE = "give the deployment its `price` in the suite, and measure again"
NO_PACE = "let the server stream token by token, or judge e2e and output_throughput instead"
OTHER_PIECES = "let both servers stream alike, or judge e2e and output_throughput instead"
OWN_MACHINE = "give the load generator a machine or cores of its own, or judge the median"
LOOK_AT_ERRORS = "see the errors by class in the load table and the server's log"


@dataclass(frozen=True, slots=True)
class PairedRequests:
    """One block: the mean of ln(candidate/baseline) over `n` requests, +inf where the candidate failed one.

    `baseline` and `candidate` are the geometric means over the same requests, in seconds; of lengths the means in
    tokens.
    """

    mean: float
    n: int
    baseline: float
    candidate: float


def paired_requests(baseline: LoadObservation, candidate: LoadObservation, metric: str) -> PairedRequests | Problem:
    """The requests of a block, paired by their planned number; a Problem where one has no counterpart.

    No request is left out, except one that has no such value on either arm (TPOT of a one-token answer). One without a
    record, or without a value on one arm alone, could be the slow one. A baseline that failed one is infinite, and an
    infinite baseline would forgive everything.
    """
    known = _KNOWN_PAIRS.setdefault(candidate, WeakKeyDictionary()).setdefault(baseline, {})
    if metric not in known:
        known[metric] = _paired(baseline, candidate, metric)
    return known[metric]


_Known = WeakKeyDictionary[LoadObservation, dict[str, "PairedRequests | Problem"]]
_KNOWN_PAIRS: WeakKeyDictionary[LoadObservation, _Known] = WeakKeyDictionary()


def _paired(baseline: LoadObservation, candidate: LoadObservation, metric: str) -> PairedRequests | Problem:
    where = f"stage {baseline.stage}, block {baseline.block + 1}"
    if not np.array_equal(baseline.requests.index, candidate.requests.index):
        return _unpaired(baseline, candidate, where)
    theirs, ours = (LATENCIES[metric](one.requests) for one in (baseline, candidate))
    missing = np.isnan(theirs)
    if (missing != np.isnan(ours)).any():
        alone = int(np.count_nonzero(missing != np.isnan(ours)))
        reason = f"{where}: {alone} requests have a {metric} on one arm alone, so they have no pair"
        return Problem(Outcome.INVALID, reason, _WITHOUT_PAIRS)
    theirs, ours = theirs[~missing], ours[~missing]
    if len(theirs) == 0:
        return Problem(Outcome.INVALID, f"{where}: no request has a {metric}", LOOK_AT_ERRORS)
    if np.isinf(theirs).any():
        failed = int(np.count_nonzero(np.isinf(theirs)))
        reason = f"{where}: {failed} of the baseline's own requests failed, so its mean is infinite"
        return Problem(Outcome.INVALID, reason, _WITHOUT_PAIRS)
    if min(theirs.min(), ours.min()) <= 0:
        return Problem(Outcome.INVALID, f"{where}: a {metric} of 0, which is no pace", NO_PACE)
    logs = float(np.mean(np.log(theirs))), float(np.mean(np.log(ours)))
    return PairedRequests(logs[1] - logs[0], len(theirs), math.exp(logs[0]), math.exp(logs[1]))


def paired_lengths(baseline: LoadObservation, candidate: LoadObservation) -> PairedRequests | Problem:
    """Output tokens of the requests that both arms answered: ln of the ratio of their sums, and the means per answer.

    An answer that failed has no length; whether many fail is for `error_rate` to say, which a policy must have.
    """
    where = f"stage {baseline.stage}, block {baseline.block + 1}"
    if not np.array_equal(baseline.requests.index, candidate.requests.index):
        return _unpaired(baseline, candidate, where)
    both = succeeded(baseline.requests) & succeeded(candidate.requests)
    n = int(np.count_nonzero(both))
    theirs, ours = (int(one.requests.output_tokens[both].sum()) for one in (baseline, candidate))
    if min(theirs, ours) <= 0:
        return Problem(Outcome.INVALID, f"{where}: there is no request that both arms answered", LOOK_AT_ERRORS)
    return PairedRequests(math.log(ours / theirs), n, theirs / n, ours / n)


def _unpaired(baseline: LoadObservation, candidate: LoadObservation, where: str) -> Problem:
    lone = len(np.setxor1d(baseline.requests.index, candidate.requests.index))
    reason = f"{where}: {lone} requests have a record on one arm alone, so they have no pair"
    return Problem(Outcome.INVALID, reason, _WITH_ALL)


_WITH_ALL = "run the suite again to its end, or judge p50"
_WITHOUT_PAIRS = "judge p50, which does not take every request"


Pair = tuple[LoadObservation, LoadObservation]
"""(baseline, candidate) of one block; where one stage is held over another, the candidate's executions of the two."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What is judged of a latency or a rate: a quantile `q`, or with `mean` the geometric mean of paired requests.

    `slo` is what makes a request good, where a cost is that of good ones. With `each` a rate is divided by the
    accelerators of its deployment. `inflation` is, block by block, ln of how many times the tokens of its text the
    candidate's usage counts: its metrics in tokens are restated by it.
    """

    metric: str
    q: float
    statistic: str | None = None
    slo: Slo | None = None
    each: bool = False
    inflation: Mapping[int, float] = field(default_factory=dict)

    def restated(self, value: float, blocks: Sequence[LoadObservation]) -> float:
        """Return the candidate's value in these blocks by the tokens of its text instead of its usage."""
        worse = self.worse_by(blocks)
        return value * math.exp(-worse if self.rises else worse)

    def worse_by(self, blocks: Sequence[LoadObservation]) -> float:
        """Return by how much, as a log, that makes it worse; 0 where its text fits its usage."""
        return sum(self.inflation.get(block.block, 0.0) for block in blocks) / len(blocks) if self.inflation else 0.0

    @property
    def by_request(self) -> bool:
        """Whether requests are paired one by one."""
        return self.statistic == MEAN or self.metric == "output_length"

    @property
    def rises(self) -> bool:
        """Whether more of it is better."""
        return METRICS[self.metric].higher_is_better

    @property
    def is_latency(self) -> bool:
        """Whether a block has a quantile of it."""
        return self.metric in LATENCIES


@dataclass(frozen=True, slots=True)
class BlockPairs:
    """One element for every block, or for every group of `together` blocks (the last ones may have more).

    `harm` is ln(candidate/baseline) of a latency or a cost and ln(baseline/candidate) of a rate, +inf where the
    candidate alone has no finite value. `baseline` and `candidate` are the values themselves.
    """

    harm: FloatArray
    baseline: FloatArray
    candidate: FloatArray
    together: int = 1

    def notes(self, measure: Measure, blocks: int) -> tuple[str, ...]:
        """That blocks were taken together, and why."""
        return () if self.together == 1 else (taken_together(measure, blocks, len(self.harm)),)


def taken_together(measure: Measure, blocks: int, groups: int) -> str:
    """Why there are fewer numbers than blocks."""
    fewest = f"at least {min_n_for_quantile(measure.q)} requests"
    return f"p{measure.q * 100:g} needs {fewest}, so the {blocks} blocks were taken as {groups} groups"


def block_pairs(evidence: Evidence, stage: str, measure: Measure) -> BlockPairs | Problem:
    """The values of every block that both arms have, or why there are none."""
    for side in Arm:
        unusable = unpaced(measure.metric, measure.q, stage, list(load_of(evidence, stage, side).values()))
        if unusable is not None:
            return unusable
    pairs = paired_load(evidence, stage)
    if not pairs:
        return Problem(Outcome.INVALID, f"stage {stage} was not measured on both arms", "see the faults of the targets")
    unpriced = no_price(evidence, measure, tuple(Arm))
    if unpriced is not None:
        return unpriced
    untold = cache_untold(evidence, pairs, measure)
    if untold is not None:
        return untold
    groups = grouped(pairs, measure)
    rows: list[tuple[float, float, float]] = []
    for group in groups:
        row = _by_request(group[0], measure) if measure.by_request else _by_block(group, measure, evidence)
        if isinstance(row, Problem):
            return row
        ours = [candidate for _, candidate in group]
        rows.append((row[0] + measure.worse_by(ours), row[1], measure.restated(row[2], ours)))
    harm, baseline, candidate = np.array(rows, dtype=np.float64).T
    if len(groups) < 2 < len(pairs):
        return no_quantile(stage, measure, pairs)
    return BlockPairs(harm, baseline, candidate, min(len(group) for group in groups))


def grouped(pairs: list[Pair], measure: Measure) -> list[list[Pair]]:
    """The blocks by themselves, or consecutive ones together until each group has requests enough for the quantile."""
    if not measure.is_latency or measure.by_request or measure.q <= 0.5:
        return [[pair] for pair in pairs]
    fewest = min(_count(execution, measure.metric) for pair in pairs for execution in pair)
    together = math.ceil(min_n_for_quantile(measure.q) / max(fewest, 1))
    parts = np.array_split(np.arange(len(pairs)), max(len(pairs) // together, 1))
    return [[pairs[at] for at in part] for part in parts]


def _count(execution: LoadObservation, metric: str) -> int:
    """How many values a block has of a latency: one a request, of the gaps between chunks one less than chunks."""
    columns = execution.requests
    return len(columns.chunk_ns) - len(columns) if metric == "itl" else len(columns)


def no_price(evidence: Evidence, measure: Measure, sides: Sequence[Arm]) -> Problem | None:
    """That a cost is asked for of a deployment that has no price, or costs nothing, which is no part of anything."""
    for side in sides if measure.metric in COST_METRICS else ():
        deployment = evidence.run.arms.get(side)
        if deployment is None or not (deployment.price_usd_per_hour or deployment.token_prices):
            found = "a price of $0" if deployment is not None and deployment.has_price else "no price"
            return Problem(
                Outcome.INVALID, f"the {side.value} has {found}, so nothing is known of what its tokens cost", NO_PRICE
            )
    return None


def cache_untold(evidence: Evidence, pairs: Sequence[Pair], measure: Measure) -> Problem | None:
    """That the baseline never told of cached input, for which it has a lower price: its cost is only at most so much.

    Where the candidate, paid by the token too, tells as little, both are dear alike.
    """
    baseline, candidate = (evidence.run.arms.get(arm) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    prices = {} if baseline is None or measure.metric not in COST_METRICS else baseline.token_prices
    if candidate is None or not prices or prices["cached_input"] >= prices["input"]:
        return None
    told = [any(request_metrics.reports_cached_tokens(pair[at].requests) for pair in pairs) for at in (0, 1)]
    if told[0] or (candidate.token_prices and not told[1]):
        return None
    return Problem(
        Outcome.INVALID,
        "the baseline has a price of cached input and never told how much of its input was cached, so it may cost less",
        "leave `cached_input` out where that is not billed, or ask a server that tells",
    )


def _by_block(group: list[Pair], measure: Measure, evidence: Evidence) -> tuple[float, float, float] | Problem:
    b, c = (
        priced([pair[at] for pair in group], measure, evidence.run.arms.get(side))
        for at, side in enumerate((Arm.BASELINE, Arm.CANDIDATE))
    )
    where = _where(group)
    if b is None or c is None:
        arm = "baseline" if b is None else "candidate"
        return Problem(Outcome.INVALID, f"{where}: the {arm} has no value for this metric", LOOK_AT_ERRORS)
    if measure.is_latency and 0 in (b, c):
        return Problem(Outcome.INVALID, f"{where}: the median of {measure.metric} is 0, which is no pace", NO_PACE)
    if not math.isfinite(b) or b <= 0:
        return Problem(Outcome.INVALID, f"{where}: too many of the baseline's own requests failed", LOOK_AT_ERRORS)
    if not math.isfinite(c) or c <= 0:
        return math.inf, b, c
    return (math.log(b / c) if measure.rises else math.log(c / b)), b, c


def priced(executions: Sequence[LoadObservation], measure: Measure, deployment: Deployment | None) -> float | None:
    """Return `value_of`, or the cost of a block's tokens on this deployment; with `each`, per accelerator."""
    if measure.metric not in COST_METRICS:
        value = value_of(executions, measure)
        if value is None or not measure.each:
            return value
        return None if deployment is None else value / deployment.accelerators
    slo = measure.slo if measure.metric == "usd_per_million_good_tokens" else None
    return None if deployment is None else block_cost(deployment, executions[0], output_tokens(slo))


def value_of(executions: Sequence[LoadObservation], measure: Measure) -> float | None:
    """Of a block, or of the requests of several that were taken together."""
    if len(executions) == 1:
        return block_value(measure.metric, measure.q)(executions[0])
    values = [LATENCIES[measure.metric](execution.requests) for execution in executions]
    return request_metrics.quantile(np.concatenate(values), measure.q)


def _by_request(pair: Pair, measure: Measure) -> tuple[float, float, float] | Problem:
    found = paired_requests(*pair, measure.metric) if measure.is_latency else paired_lengths(*pair)
    return found if isinstance(found, Problem) else (found.mean, found.baseline, found.candidate)


def _where(group: list[Pair]) -> str:
    first, last = group[0][0], group[-1][0]
    blocks = f"block {first.block + 1}" if first is last else f"blocks {first.block + 1} to {last.block + 1}"
    return f"stage {first.stage}, {blocks}"


def no_quantile(stage: str, measure: Measure, pairs: list[Pair]) -> Problem:
    """That all blocks together make no two groups."""
    needed = min_n_for_quantile(measure.q)
    fewest = min(_count(execution, measure.metric) for pair in pairs for execution in pair)
    reason = f"p{measure.q * 100:g} is not estimable from {len(pairs)} blocks of {fewest} requests at stage {stage}"
    advice = (
        f"measure at least {needed} requests in every block of this stage, or more blocks, or judge a lower statistic"
    )
    return Problem(Outcome.INCONCLUSIVE, reason, advice)
