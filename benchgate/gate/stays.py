"""How long requests stayed at the levels of a run, and whether more and more of them were inside: of its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.gate.metric_limits import ALPHA
from benchgate.model.deployment import Arm
from benchgate.model.metrics import e2e_s
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence
from benchgate.stats.probe import RESIDENCES, LookCounts, growth_p
from benchgate.stats.window import look_counts
from benchgate.suite.levels import Level
from benchgate.suite.schema import Suite


def mean_stays_s(evidence: Evidence, arm: Arm) -> dict[str, float]:
    """Seconds from when a successful request was due to its end, on the mean over all blocks, by place.

    Little's law takes this mean, the arithmetic one: the geometric one of a check is that of a ratio, and less.
    """
    stays: dict[str, list[FloatArray]] = {}
    for seen in evidence.load:
        if seen.arm is arm:
            times_s = e2e_s(seen.requests)
            stays.setdefault(seen.stage, []).append(times_s[np.isfinite(times_s)])
    return {place: float(np.concatenate(of).mean()) for place, of in stays.items() if any(map(len, of))}


@dataclass(frozen=True, slots=True)
class Watched:
    """What a stage of a steady rate shows of a queue: how long a block was watched, how long its last requests stayed.

    Both are means over the measured windows of its blocks (`stats.window`). `piles_up`: more and more requests are
    shown to be inside at once.
    """

    window_s: float
    stay_s: float
    piles_up: bool

    @property
    def is_brief(self) -> bool:
        """Whether a queue that grows could have gone unseen: of a rate 10 % too high none is watched as long as this.

        Sent f times what it can do, a server lets requests stay (f - 1)t after t seconds.
        """
        return self.window_s < RESIDENCES * self.stay_s


def watched_stages(evidence: Evidence, suite: Suite, arm: Arm) -> dict[str, Watched]:
    """Every stage with a steady rate, by its name, all its classes of such a rate together."""
    looks: dict[str, list[LookCounts]] = {}
    for level in suite.load.levels() if suite.load is not None else ():
        looks.setdefault(level.stage, []).extend(_looks(evidence, suite, level, arm))
    return {stage: found for stage, of in looks.items() if (found := _watched(of)) is not None}


def _looks(evidence: Evidence, suite: Suite, level: Level, arm: Arm) -> list[LookCounts]:
    """Its blocks; none of what has no steady rate, by which more requests come to be inside with no fault of a server.

    Conversations have none either: their later turns come on top of the first ones.
    """
    course, slo = level.course, level.slo or suite.slo
    if not course.is_level_rate or level.workload.session is not None or slo is None:
        return []
    blocks = load_of(evidence, level.name, arm).values()
    found = (look_counts(seen.requests, slo.per_request, None, len(seen.requests), ramp=seen.ramp) for seen in blocks)
    return [look for look in found if look is not None]


def _watched(looks: Sequence[LookCounts]) -> Watched | None:
    stays_s = [look.backlog.residence_s for look in looks if look.backlog is not None]
    if not stays_s:
        return None
    window_s = sum(look.window_s for look in looks) / len(looks)
    return Watched(window_s, sum(stays_s) / len(stays_s), growth_p(looks) <= ALPHA)
