"""Both arms' numbers of a stage, block by block, as pairs: a quantile or a rate of each block, or its paired requests.

A block of few requests has no high quantile: the p99 of thirty requests is their slowest one, whatever its name says,
and that of a hundred lies near p98, where a tail that grew may not have begun. So blocks are taken together until they
have as many requests as an upper limit of the quantile takes. It costs little: fewer numbers, that vary less each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchgate.gate.block_values import (
    LATENCIES,
    LOOK_AT_ERRORS,
    NO_PACE,
    NO_PRICE,
    block_value,
    unpaced,
)
from benchgate.gate.comparison import load_of, paired_load
from benchgate.gate.request_pairs import paired_lengths, paired_requests
from benchgate.gate.rule import Problem
from benchgate.gate.unit_costs import block_cost, output_tokens
from benchgate.model import metrics
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metrics import Slo
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.quantiles import fewest_of_a_quantile
from benchgate.suite.metric_kinds import COST_METRICS, KINDS, MEAN

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
        return KINDS[self.metric].rises

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
    fewest = f"at least {fewest_of_a_quantile(measure.q)} requests"
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
    together = math.ceil(fewest_of_a_quantile(measure.q) / max(fewest, 1))
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
    told = [any(metrics.tells_of_cache(pair[at].requests) for pair in pairs) for at in (0, 1)]
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
    return metrics.quantile(np.concatenate(values), measure.q)


def _by_request(pair: Pair, measure: Measure) -> tuple[float, float, float] | Problem:
    found = paired_requests(*pair, measure.metric) if measure.is_latency else paired_lengths(*pair)
    return found if isinstance(found, Problem) else (found.mean, found.baseline, found.candidate)


def _where(group: list[Pair]) -> str:
    first, last = group[0][0], group[-1][0]
    blocks = f"block {first.block + 1}" if first is last else f"blocks {first.block + 1} to {last.block + 1}"
    return f"stage {first.stage}, {blocks}"


def no_quantile(stage: str, measure: Measure, pairs: list[Pair]) -> Problem:
    """That all blocks together make no two groups."""
    needed = fewest_of_a_quantile(measure.q)
    fewest = min(_count(execution, measure.metric) for pair in pairs for execution in pair)
    reason = f"p{measure.q * 100:g} is not estimable from {len(pairs)} blocks of {fewest} requests at stage {stage}"
    advice = (
        f"measure at least {needed} requests in every block of this stage, or more blocks, or judge a lower statistic"
    )
    return Problem(Outcome.INCONCLUSIVE, reason, advice)
