"""From a calibration's evidence to figures: how much each number varies by itself, and how often answers differ."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchgate.gate.block_pairs import Measure, block_pairs
from benchgate.gate.block_values import LATENCIES, RATE_UNITS
from benchgate.gate.comparison import paired_load, quality_of
from benchgate.gate.places import Place, places
from benchgate.gate.quality_pairs import pair_task
from benchgate.gate.rule import Problem
from benchgate.gate.shadow_rows import usable_rows
from benchgate.gate.shares import tally_of
from benchgate.model.deployment import Arm
from benchgate.model.noise import Disagreement, Spread
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence
from benchgate.stats.spread import pooled_deviation
from benchgate.suite.metric_kinds import MEAN
from benchgate.suite.schema import STATISTICS, Suite

SHARES = ("error_rate", "goodput", "rejected", "validity")
"""The shares of requests that a block has."""


def spreads(evidence: Evidence, suite: Suite) -> tuple[Spread, ...]:
    """Every number of every place of the load that both arms have in each of two blocks at least.

    A number that a block lacks (nothing succeeded, nothing of the kind was asked) has no spread, and is left out.
    Blocks that a high quantile needs together count as one, as in a check.
    """
    found: list[Spread] = []
    for place in places(suite):
        ratios = (_of_ratio(evidence, place, measure) for measure in _measures())
        shares = (_of_share(evidence, place, metric) for metric in SHARES)
        found += [one for one in (*ratios, *shares) if one is not None]
    return tuple(found)


def _measures() -> Iterator[Measure]:
    for metric in LATENCIES:
        for statistic, q in STATISTICS.items():
            yield Measure(metric, q, statistic)
        if metric != "itl":  # it has many values a request, so its requests are not paired
            yield Measure(metric, 0.5, MEAN)
    for metric in (*RATE_UNITS, "output_length"):
        yield Measure(metric, 0.5)


def _of_ratio(evidence: Evidence, place: Place, measure: Measure) -> Spread | None:
    pairs = block_pairs(evidence, place.name, measure)
    if isinstance(pairs, Problem):
        return None
    values = np.concatenate([pairs.baseline, pairs.candidate])
    if not np.isfinite(values).all() or values.min() <= 0:
        return None
    return _spread(measure.metric, measure.statistic, place, np.log(pairs.baseline), np.log(pairs.candidate))


def _of_share(evidence: Evidence, place: Place, metric: str) -> Spread | None:
    """Of requests that missed, in every block of both arms; None where a block has none that could."""
    if metric == "goodput" and place.slo is None:
        return None
    tally = tally_of(metric, place.slo)
    counted = [[tally(execution) for execution in pair] for pair in paired_load(evidence, place.name)]
    if any(of == 0 for pair in counted for _, of in pair):
        return None
    first, second = (np.array([pair[side][0] / pair[side][1] for pair in counted]) for side in (0, 1))
    return _spread(metric, None, place, first, second)


def _spread(metric: str, statistic: str | None, place: Place, first: FloatArray, second: FloatArray) -> Spread | None:
    deviation = pooled_deviation(first, second)
    if deviation is None:
        return None
    return Spread(metric, statistic, place.name, deviation, float(np.std(second - first, ddof=1)), len(first))


def disagreements(evidence: Evidence) -> tuple[Disagreement, ...]:
    """How often the deployment, asked twice, answered an item of each task otherwise (right one time, wrong the other;
    another score), and a shadow prompt. What could not be paired is left out."""
    found = []
    for task in dict.fromkeys(o.task for o in evidence.quality if o.repeat == 0):
        first, again = (quality_of(evidence, arm, task) for arm in Arm)
        pairs = pair_task(first, again) if first is not None and again is not None else None
        if pairs is not None and not isinstance(pairs, Problem) and len(pairs):
            share = float(np.mean(pairs.baseline != pairs.candidate))
            found.append(Disagreement("task", task, share, len(pairs)))
    rows = usable_rows(evidence) if evidence.shadow is not None else ()
    twice = [row for row in rows if not row.once] if not isinstance(rows, Problem) else []
    if twice:
        share = sum(row.differs_itself for row in twice) / len(twice)
        found.append(Disagreement("shadow", "shadow", share, len(twice)))
    return tuple(found)
