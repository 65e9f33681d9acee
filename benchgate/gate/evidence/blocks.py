"""Numbers per block and arm: latencies, rates and costs, and the pairs of both arms' numbers.

Requests inside a block are not independent, so a block counts once. A quantile, a rate or a cost is computed of all its
requests. A mean is computed request by request, as the geometric mean of ratios of the same prompt on both arms: what
differs from request to request (length, other load) cancels.

A block of few requests has no high quantile: the p99 of thirty requests is their slowest one, and that of a hundred
lies near p98. So blocks are pooled until they have as many requests as an upper limit of the quantile takes. It costs
little: fewer numbers, that vary less each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from benchgate.gate.comparison import load_of, paired_load
from benchgate.gate.decision import CannotJudge, inconclusive, invalid
from benchgate.gate.evidence.costs import block_cost, output_tokens
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import COST_METRICS, MEAN, METRICS, Slo
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import LATENCIES, THROUGHPUTS, succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.stats.quantiles import min_n_for_quantile

_LONG_TOKENS = 8  # an answer of as many tokens in two arrivals was not streamed
_UNPACED_OF_TAIL = 0.1  # of the answers slower than the quantile judged: so many without a pace cannot hide its loss
_PIECES_GAP = 0.1  # of the arm with more tokens an arrival
_MERGED_GAP = 0.2  # of an arm's answers: a median then stands a quarter deeper among the others
_ROUNDING = 1e-6

_VALUES: WeakKeyDictionary[LoadObservation, dict[tuple[str, float], float | None]] = WeakKeyDictionary()


def block_value(execution: LoadObservation, metric: str, q: float) -> float | None:
    """Return one number of one execution: a quantile in seconds, or a rate per second. Computed once, then cached."""
    known = _VALUES.setdefault(execution, {})
    if (metric, q) not in known:
        requests, window_s = execution.requests, execution.window_s
        if metric in LATENCIES:
            known[metric, q] = request_metrics.quantile(LATENCIES[metric](requests), q)
        else:
            known[metric, q] = THROUGHPUTS[metric](requests, window_s)
    return known[metric, q]


def require_pace(metric: str, q: float, stage: str, blocks: Sequence[LoadObservation]) -> None:
    """Raise CannotJudge if too many answers have no TPOT or ITL: the others are not the users' requests.

    A client or server that pauses for the length of one answer sends or sees it in one piece, so a few are met on any
    busy machine: up to 5 % leave a median what it is, 0.5 % a p95.
    """
    if not METRICS[metric].paced or not blocks:
        return
    answered = without = 0
    for columns in (block.requests for block in blocks):
        ok = succeeded(columns)
        # no TPOT, or a long answer that a proxy or server sent in two pieces
        held_back = (columns.output_tokens >= _LONG_TOKENS) & (request_metrics.paced_arrivals(columns) <= 2)
        without += int(np.count_nonzero(ok & (np.isnan(request_metrics.tpot_s(columns)) | held_back)))
        answered += int(np.count_nonzero(ok))
    if answered > 0 and without > _UNPACED_OF_TAIL * (1 - q) * answered:
        reason = (
            f"stage {stage}: {without} of {answered} answers of the {blocks[0].arm.value} came in one or two pieces"
        )
        raise invalid(f"{reason}, and have no pace", NO_PACE)


def require_same_pieces(evidence: Evidence, stage: str, *, of_candidate: bool = False) -> None:
    """Raise CannotJudge if the arms streamed in pieces of different sizes, which makes another TPOT of the same speed.

    The median answer is compared, so that reads which a busy machine merges now and then do not count; and the share of
    merged answers, because a fifth of them moves the median pace. `of_candidate`: refuse only larger pieces of the
    candidate, which make its own pace seem quicker; a bound on it does not depend on the baseline.
    """
    per_arrival: dict[Arm, FloatArray] = {}
    for arm in Arm:
        answers: list[FloatArray] = [np.empty(0)]
        for columns in (block.requests for block in load_of(evidence, stage, arm).values()):
            ok = succeeded(columns)
            answers.append(columns.output_tokens[ok] / request_metrics.paced_arrivals(columns)[ok])
        per_arrival[arm] = np.concatenate(answers)
    baseline, candidate = per_arrival[Arm.BASELINE], per_arrival[Arm.CANDIDATE]
    theirs, ours = request_metrics.quantile(baseline, 0.5), request_metrics.quantile(candidate, 0.5)
    if theirs is None or ours is None:
        return
    own_pace_is_true = of_candidate and ours <= max(theirs, 1.0)  # one token an arrival hides none
    if round(1 - min(theirs, ours) / max(theirs, ours), 6) > _PIECES_GAP and not own_pace_is_true:
        reason = f"the answers came in other pieces: {ours:.1f} tokens an arrival against {theirs:.1f}"
        raise invalid(f"stage {stage}: {reason} (bound {_PIECES_GAP:.0%})", OTHER_PIECES)
    usual = max(theirs, ours) / (1 - _PIECES_GAP) + _ROUNDING
    merged, of_ours = (float(np.mean(tokens > usual)) for tokens in (baseline, candidate))
    if abs(of_ours - merged) > _MERGED_GAP and not (of_candidate and of_ours < merged):
        reason = f"{of_ours:.0%} of the candidate's answers came in larger pieces than usual"
        raise invalid(
            f"stage {stage}: {reason}, {merged:.0%} of the baseline's (bound {_MERGED_GAP:.0%} apart)", OTHER_PIECES
        )


def too_few(blocks: int) -> CannotJudge:
    """Return the refusal of fewer blocks than the two that an interval needs."""
    advice = "measure more blocks: two at least, and as many as `benchgate plan` says that the margin takes"
    return inconclusive(f"{blocks} blocks give no interval", advice)


NO_PRICE = "give the deployment its `price` in the suite, and measure again"
NO_PACE = "let the server stream token by token, or judge e2e and output_throughput instead"
OTHER_PIECES = "let both servers stream alike, or judge e2e and output_throughput instead"
OWN_MACHINE = "give the load generator a machine or cores of its own, or judge the median"
LOOK_AT_ERRORS = "see the errors by class in the load table and the server's log"


@dataclass(frozen=True, slots=True)
class PairedRequests:
    """Mean of ln(candidate/baseline) over the `n` paired requests of a block, +inf if the candidate failed one.

    `baseline` and `candidate` are the geometric means over these requests in seconds, or mean lengths in tokens.
    """

    mean: float
    n: int
    baseline: float
    candidate: float


def paired_requests(baseline: LoadObservation, candidate: LoadObservation, metric: str) -> PairedRequests:
    """Pair the requests of a block by their planned number. Raises CannotJudge if one has no counterpart.

    No request is left out, except one without a value on either arm (TPOT of a one-token answer). One without a record,
    or without a value on one arm alone, could be the slow one. If the baseline failed one its mean is infinite, and an
    infinite baseline would forgive everything.
    """
    where = f"stage {baseline.stage}, block {baseline.block + 1}"
    _require_same_requests(baseline, candidate, where)
    theirs, ours = (LATENCIES[metric](one.requests) for one in (baseline, candidate))
    missing = np.isnan(theirs)
    if (missing != np.isnan(ours)).any():
        alone = int(np.count_nonzero(missing != np.isnan(ours)))
        reason = f"{where}: {alone} requests have a {metric} on one arm alone, so they have no pair"
        raise invalid(reason, _WITHOUT_PAIRS)
    theirs, ours = theirs[~missing], ours[~missing]
    if len(theirs) == 0:
        raise invalid(f"{where}: no request has a {metric}", LOOK_AT_ERRORS)
    if np.isinf(theirs).any():
        failed = int(np.count_nonzero(np.isinf(theirs)))
        reason = f"{where}: {failed} of the baseline's own requests failed, so its mean is infinite"
        raise invalid(reason, _WITHOUT_PAIRS)
    if min(theirs.min(), ours.min()) <= 0:
        raise invalid(f"{where}: a {metric} of 0, which is no pace", NO_PACE)
    logs = float(np.mean(np.log(theirs))), float(np.mean(np.log(ours)))
    return PairedRequests(logs[1] - logs[0], len(theirs), math.exp(logs[0]), math.exp(logs[1]))


def paired_lengths(baseline: LoadObservation, candidate: LoadObservation) -> PairedRequests:
    """Return ln of the ratio of output tokens of the requests that both arms answered, and the means per answer.

    A failed answer has no length; `error_rate`, which a policy must have, judges how many fail.
    """
    where = f"stage {baseline.stage}, block {baseline.block + 1}"
    _require_same_requests(baseline, candidate, where)
    both = succeeded(baseline.requests) & succeeded(candidate.requests)
    n = int(np.count_nonzero(both))
    theirs, ours = (int(one.requests.output_tokens[both].sum()) for one in (baseline, candidate))
    if min(theirs, ours) <= 0:
        raise invalid(f"{where}: there is no request that both arms answered", LOOK_AT_ERRORS)
    return PairedRequests(math.log(ours / theirs), n, theirs / n, ours / n)


def _require_same_requests(baseline: LoadObservation, candidate: LoadObservation, where: str) -> None:
    if not np.array_equal(baseline.requests.index, candidate.requests.index):
        lone = len(np.setxor1d(baseline.requests.index, candidate.requests.index))
        reason = f"{where}: {lone} requests have a record on one arm alone, so they have no pair"
        raise invalid(reason, "run the suite again to its end, or judge p50")


_WITHOUT_PAIRS = "judge p50, which does not take every request"


Pair = tuple[LoadObservation, LoadObservation]
"""(baseline, candidate) of one block; of a check with `over`, the candidate's executions of both stages."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Statistic of a latency, rate, length or cost: the quantile `q`, or `mean`, the geometric mean of paired requests.

    `slo` makes a request good, for the cost of good ones. With `each` a rate is divided by the accelerators of its
    deployment. `inflation` is, per block, ln(tokens in the candidate's usage / tokens of its text): its metrics in
    tokens are restated by it.
    """

    metric: str
    q: float
    statistic: str | None = None
    slo: Slo | None = None
    each: bool = False
    inflation: Mapping[int, float] = field(default_factory=dict)

    def slo_of(self, arm: Arm) -> Slo | None:
        """Return the SLO of an arm's requests; the candidate's TPOT is held to it by the tokens of its text."""
        if self.slo is None or arm is Arm.BASELINE or not self.inflation:
            return self.slo
        return self.slo.restated(sum(self.inflation.values()) / len(self.inflation))

    def restated(self, value: float, blocks: Sequence[LoadObservation]) -> float:
        """Return the candidate's value in these blocks by the tokens of its text instead of its usage."""
        worse = self.worse_by(blocks)
        return value * math.exp(-worse if self.rises else worse)

    def worse_by(self, blocks: Sequence[LoadObservation]) -> float:
        """Return how much worse that makes it, as a log; 0 if text and usage agree."""
        return sum(self._inflation_in(block) for block in blocks) / len(blocks) if self.inflation else 0.0

    def _inflation_in(self, block: LoadObservation) -> float:
        inflation = self.inflation.get(block.block, 0.0)
        total = request_metrics.total_tokens(block.requests) if self.metric == "total_throughput" else None
        if not total:
            return inflation
        # The inflation is of output tokens alone.
        output_ratio = request_metrics.output_tokens(block.requests) / total
        return -math.log1p(output_ratio * math.expm1(-inflation))

    @property
    def by_request(self) -> bool:
        """Return True if requests are paired one by one."""
        return self.statistic == MEAN or self.metric == "output_length"

    @property
    def rises(self) -> bool:
        """Return True if more of it is better."""
        return METRICS[self.metric].higher_is_better

    @property
    def is_latency(self) -> bool:
        """Return True if a block has a quantile of it."""
        return self.metric in LATENCIES


@dataclass(frozen=True, slots=True)
class BlockPairs:
    """Values of both arms: one element per block, or per group of at least `together` blocks.

    `harm` is ln(candidate/baseline) of a latency or a cost and ln(baseline/candidate) of a rate, +inf if only the
    candidate has no finite value.
    """

    harm: FloatArray
    baseline: FloatArray
    candidate: FloatArray
    together: int = 1


def pooling_note(measure: Measure, blocks: int, groups: int) -> str:
    """Explain why there are fewer numbers than blocks."""
    fewest = f"at least {min_n_for_quantile(measure.q)} requests"
    return f"p{measure.q * 100:g} needs {fewest}, so the {blocks} blocks were taken as {groups} groups"


def block_pairs(evidence: Evidence, stage: str, measure: Measure) -> BlockPairs:
    """Return the values of every block that both arms have. Raises CannotJudge if one has none."""
    for side in Arm:
        require_pace(measure.metric, measure.q, stage, list(load_of(evidence, stage, side).values()))
    pairs = paired_load(evidence, stage)
    if not pairs:
        raise invalid(f"stage {stage} was not measured on both arms", "see the faults of the targets")
    require_price(evidence, measure, tuple(Arm))
    require_cached_input_reported(evidence, pairs, measure)
    groups = grouped(pairs, measure)
    rows: list[tuple[float, float, float]] = []
    for group in groups:
        if measure.by_request:
            pair = group[0]
            paired = paired_requests(*pair, measure.metric) if measure.is_latency else paired_lengths(*pair)
            row = paired.mean, paired.baseline, paired.candidate
        else:
            row = _by_block(group, measure, evidence)
        ours = [candidate for _, candidate in group]
        rows.append((row[0] + measure.worse_by(ours), row[1], measure.restated(row[2], ours)))
    harm, baseline, candidate = np.array(rows, dtype=np.float64).T
    if len(groups) < 2 < len(pairs):
        raise no_quantile(stage, measure, pairs)
    return BlockPairs(harm, baseline, candidate, min(len(group) for group in groups))


def grouped(pairs: list[Pair], measure: Measure) -> list[list[Pair]]:
    """Return the blocks one by one, or pooled with the next ones until each group has enough requests for q."""
    if not measure.is_latency or measure.by_request or measure.q <= 0.5:
        return [[pair] for pair in pairs]
    fewest = min(_count(execution, measure.metric) for pair in pairs for execution in pair)
    together = math.ceil(min_n_for_quantile(measure.q) / max(fewest, 1))
    parts = np.array_split(np.arange(len(pairs)), max(len(pairs) // together, 1))
    return [[pairs[at] for at in part] for part in parts]


def require_quantile_of_block(stage: str, measure: Measure, pairs: list[Pair]) -> None:
    """Raise CannotJudge unless there is one block, of enough requests for q: of it alone the variance is known."""
    if measure.is_latency and not measure.by_request and measure.q > 0.5:
        fewest = min(_count(execution, measure.metric) for pair in pairs for execution in pair)
        if len(pairs) > 1 or fewest < min_n_for_quantile(measure.q):
            raise no_quantile(stage, measure, pairs)


def _count(execution: LoadObservation, metric: str) -> int:
    """Count a block's values of a latency: one per request or session; of ITL the gaps between its chunks."""
    columns = execution.requests
    if metric == "session_e2e":
        return len(request_metrics.session_succeeded(columns))
    return len(columns.chunk_ns) - len(columns) if metric == "itl" else len(columns)


def require_price(evidence: Evidence, measure: Measure, sides: Sequence[Arm]) -> None:
    """Raise CannotJudge if a cost is judged of a deployment that has no price, or costs nothing."""
    for side in sides if measure.metric in COST_METRICS else ():
        deployment = evidence.run.arms.get(side)
        if deployment is None or not (deployment.price_usd_per_hour or deployment.token_prices):
            found = "a price of $0" if deployment is not None and deployment.has_price else "no price"
            raise invalid(f"the {side.value} has {found}, so nothing is known of what its tokens cost", NO_PRICE)


def require_cached_input_reported(evidence: Evidence, pairs: Sequence[Pair], measure: Measure) -> None:
    """Raise CannotJudge if the baseline has a lower price for cached input and never reported any.

    Its cost is then only an upper bound. A candidate that is paid by the token and reports none either is overrated
    alike.
    """
    baseline, candidate = (evidence.run.arms.get(arm) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    prices = {} if baseline is None or measure.metric not in COST_METRICS else baseline.token_prices
    if candidate is None or not prices or prices["cached_input"] >= prices["input"]:
        return
    reports = [any(request_metrics.reports_cached_tokens(pair[at].requests) for pair in pairs) for at in (0, 1)]
    if not reports[0] and (reports[1] or not candidate.token_prices):
        raise invalid(
            "the baseline has a price of cached input and never told how much of its input was cached, so it may cost "
            "less",
            "leave `cached_input` out where that is not billed, or ask a server that tells",
        )


def _by_block(group: list[Pair], measure: Measure, evidence: Evidence) -> tuple[float, float, float]:
    b, c = (
        priced([pair[at] for pair in group], measure, side, evidence.run.arms.get(side))
        for at, side in enumerate((Arm.BASELINE, Arm.CANDIDATE))
    )
    first, last = group[0][0], group[-1][0]
    blocks = f"block {first.block + 1}" if first is last else f"blocks {first.block + 1} to {last.block + 1}"
    where = f"stage {first.stage}, {blocks}"
    if b is None or c is None:
        raise invalid(
            f"{where}: the {'baseline' if b is None else 'candidate'} has no value for this metric", LOOK_AT_ERRORS
        )
    if measure.is_latency and 0 in (b, c):
        raise invalid(f"{where}: the median of {measure.metric} is 0, which is no pace", NO_PACE)
    if not math.isfinite(b) or b <= 0:
        raise invalid(f"{where}: too many of the baseline's own requests failed", LOOK_AT_ERRORS)
    if not math.isfinite(c) or c <= 0:
        return math.inf, b, c
    return (math.log(b / c) if measure.rises else math.log(c / b)), b, c


def priced(
    executions: Sequence[LoadObservation], measure: Measure, arm: Arm, deployment: Deployment | None
) -> float | None:
    """Return `value_of`, or the cost of a block's tokens on this arm's deployment; with `each`, per accelerator."""
    if measure.metric not in COST_METRICS:
        value = value_of(executions, measure)
        if value is None or not measure.each:
            return value
        return None if deployment is None else value / deployment.accelerators
    slo = measure.slo_of(arm) if measure.metric == "usd_per_million_good_tokens" else None
    return None if deployment is None else block_cost(deployment, executions[0], output_tokens(slo))


def value_of(executions: Sequence[LoadObservation], measure: Measure) -> float | None:
    """Return the value of one block, or of the pooled requests of several; None if those of one block have none."""
    if len(executions) == 1:
        return block_value(executions[0], measure.metric, measure.q)
    if any(len(one.requests) and block_value(one, measure.metric, measure.q) is None for one in executions):
        return None
    values = [LATENCIES[measure.metric](execution.requests) for execution in executions]
    return request_metrics.quantile(np.concatenate(values), measure.q)


def no_quantile(stage: str, measure: Measure, pairs: list[Pair]) -> CannotJudge:
    """Return the refusal of a quantile for which all blocks together make less than two groups."""
    needed = min_n_for_quantile(measure.q)
    fewest = min(_count(execution, measure.metric) for pair in pairs for execution in pair)
    reason = f"p{measure.q * 100:g} is not estimable from {len(pairs)} blocks of {fewest} requests at stage {stage}"
    advice = f"measure at least {needed} requests in every block of this stage, or more blocks"
    return inconclusive(reason, f"{advice}, or judge a lower statistic")
