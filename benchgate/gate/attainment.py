"""How many requests met their SLO, and which bound the others missed. It shows and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.gate.metric_limits import kept_limits
from benchgate.gate.shares import Counts, tally_of
from benchgate.model import metrics
from benchgate.model.metrics import Slo
from benchgate.model.run import LoadObservation
from benchgate.stats.limits import Limits

FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Attainment:
    """Of all `scheduled` requests of a stage on one side, `good` met every bound.

    `missed` counts by reason: `failed` for requests that did not succeed, and `ttft`, `tpot` and `e2e` for answered
    ones past that bound, as far as there is one. One answer may miss several, so the counts may add up to more than
    `scheduled - good`, never to less. `limits` are 95 % limits of the share that is good; None where there are none.
    """

    scheduled: int
    good: int
    missed: Mapping[str, int]
    limits: Limits | None

    @property
    def share(self) -> float | None:
        """Good of scheduled; None where nothing was scheduled."""
        return self.good / self.scheduled if self.scheduled else None


def attainment(blocks: Sequence[LoadObservation], slo: Slo) -> Attainment | None:
    """Over all blocks of a stage, or of a class of it, on one side; None where there are none."""
    if not blocks:
        return None
    counts = Counts.of(blocks, tally_of("goodput", slo))
    missed = {FAILED: 0} | {name: 0 for name, bound in _bounds(slo).items() if bound is not None}
    for block in blocks:
        for name, number in _missed(block, slo).items():
            missed[name] += number
    return Attainment(counts.scheduled, sum(counts.kept), missed, kept_limits(counts))


def _bounds(slo: Slo) -> dict[str, float | None]:
    return {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}


def _missed(block: LoadObservation, slo: Slo) -> dict[str, int]:
    """By the rule of `metrics.good`: what does not apply is met."""
    columns = block.requests
    answered = metrics.succeeded(columns)
    values = {"ttft": metrics.ttft_s, "tpot": metrics.tpot_s, "e2e": metrics.e2e_s}
    past = {
        name: int(np.count_nonzero(answered & (values[name](columns) > bound)))
        for name, bound in _bounds(slo).items()
        if bound is not None
    }
    return {FAILED: int(np.count_nonzero(~answered)), **past}
