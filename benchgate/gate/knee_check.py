"""Where the candidate does no more at once, however many requests are in flight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchgate.gate.block_values import block_value
from benchgate.gate.comparison import load_of
from benchgate.gate.rule import Bound, Finding, Problem
from benchgate.model.deployment import Arm
from benchgate.model.metrics import decoding_at_once
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import binom_sf
from benchgate.stats.knee import Curve, NoKnee, ServerKnee, find_server_knee
from benchgate.stats.limits import Limits
from benchgate.stats.quantiles import min_n_for_upper_limit, order_statistic_limits


def absolute(evidence: Evidence, levels: Sequence[tuple[str, int]], bound: Bound, *, alpha: float) -> Finding:
    """The median over blocks of each block's own knee, with order-statistic limits.

    A block without a knee may have it below the first level or beyond the last one, so it counts as on the wrong side
    of the bound, whichever that is.
    """
    finding = Finding(
        unit=Unit.COUNT,
        scale=Scale.ABSOLUTE,
        margin=bound.value,
        method="order-statistic limits of the median over the blocks' own knees",
        n=0,
        n_unit="blocks",
        breach=True,
        lower_is_worse=bound.at_least,
        nears=False,
    )
    found = knees_by_block(evidence, levels)
    if isinstance(found, Problem):
        return replace(finding, problem=found)
    finding = replace(finding, n=len(found))
    without = [knee for knee in found if isinstance(knee, NoKnee)]
    if len(without) == len(found):
        return replace(finding, problem=Problem(Outcome.INVALID, f"there is no knee: {without[0].reason}", _WIDER))
    lost = -math.inf if bound.at_least else math.inf
    values = np.array([knee.level if isinstance(knee, ServerKnee) else lost for knee in found], dtype=np.float64)
    limits = order_statistic_limits(values, 0.5, alpha)
    if limits is None:
        reason = f"the median of {len(values)} blocks has no limits"
        advice = f"measure at least {min_n_for_upper_limit(0.5, alpha)} blocks"
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, advice))
    beyond = values < bound.value if bound.at_least else values > bound.value
    value = float(np.quantile(values, 0.5, method="inverted_cdf"))
    return replace(
        finding,
        candidate=value,
        harm=value,
        limits=Limits(limits.lower, limits.upper),
        p_value=binom_sf(int(beyond.sum()) - 1, len(values), 0.5),
        notes=_notes(found),
    )


def _notes(found: Sequence[ServerKnee | NoKnee]) -> tuple[str, ...]:
    """Which curves bent, and why some did not."""
    notes = [
        f"{count} of {len(found)} blocks by {curve.value}"
        for curve in Curve
        if (count := sum(1 for knee in found if isinstance(knee, ServerKnee) and knee.curve is curve))
    ]
    without = [knee for knee in found if isinstance(knee, NoKnee)]
    if without:
        notes.append(f"in {len(without)} of {len(found)} blocks there is no knee: {without[0].reason}")
    return tuple(notes)


def knees_by_block(
    evidence: Evidence, levels: Sequence[tuple[str, int]], arm: Arm = Arm.CANDIDATE
) -> list[ServerKnee | NoKnee] | Problem:
    """Of every block in which each level was measured and answered."""
    stages = [load_of(evidence, name, arm) for name, _ in levels]
    blocks = sorted(set.intersection(*(set(stage) for stage in stages))) if stages else []
    if not blocks:
        return Problem(Outcome.INVALID, "no block has every closed-loop stage of the sweep", _WIDER)
    throughput, latency = block_value("output_throughput", 0.5), block_value("e2e", 0.5)
    found: list[ServerKnee | NoKnee] = []
    for block in blocks:
        rates, waits = ([of(stage[block]) for stage in stages] for of in (throughput, latency))
        known = [value for value in (*rates, *waits) if value is not None and 0 < value < math.inf]
        if len(known) < 2 * len(levels):
            reason = f"in block {block + 1} a stage has no throughput or latency: too many of its requests failed"
            return Problem(Outcome.INVALID, reason, "see the errors by class in the load table")
        concurrency = [float(level) for _, level in levels]
        decoding = [decoding_at_once(stage[block].requests, stage[block].window_s) for stage in stages]
        spans = [value for value in decoding if value is not None]
        at_once = spans if len(spans) == len(levels) else None
        found.append(find_server_knee(concurrency, known[: len(levels)], at_once, known[len(levels) :]))
    return found


_WIDER = "sweep over at least five numbers of requests in flight, from few to well beyond what the server does at once"
