"""Where load is judged: a stage of the sweep, or a class of one, by the name under which its executions were stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchgate.model.metrics import Slo
from benchgate.model.records import BoolArray, IntArray
from benchgate.suite.levels import Level
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Place:
    """One level of the load. `requests` are those of one execution; None in the background, where none are planned.

    `mean_rps` is the rate that an open loop offers; None for a closed loop, and for a trace, whose rows say it.
    `output_tokens` is how long every answer was asked to be; None where each row says its own, or none has a length.
    `slo` and `target_ratio` are the class's own, else the suite's; `own_slo` tells which.
    `turns` are those of each conversation; None where their number is drawn. `cycle` is how many requests differ.
    """

    name: str
    stage: str
    class_name: str | None
    requests: int | None
    is_open: bool
    mean_rps: float | None
    output_tokens: int | None
    slo: Slo | None
    target_ratio: float | None
    own_slo: bool
    turns: int | None = 1
    cycle: int = 1

    def is_first_turn(self, index: IntArray) -> BoolArray:
        """Which requests, by number, are known to begin a conversation, or stand by themselves.

        Of conversations of drawn lengths that is the first one alone. In the background requests begin again.
        """
        if self.turns == 1:
            return np.ones(len(index), dtype=np.bool_)
        place: IntArray = index % self.cycle
        first: BoolArray = place == 0 if self.turns is None else place % self.turns == 0
        return first


def places(suite: Suite) -> tuple[Place, ...]:
    """Every place of a suite's load, in order; none without a load."""
    found = []
    for level in suite.load.levels() if suite.load is not None else ():
        asked = level.workload.output_tokens
        slo = level.slo or suite.slo
        found.append(
            Place(
                name=level.name,
                stage=level.stage,
                class_name=level.group or None,
                requests=None if level.background else level.course.requests,
                is_open=level.course.is_open,
                mean_rps=level.course.mean_rps,
                output_tokens=asked if isinstance(asked, int) and level.course.trace is None else None,
                slo=slo.per_request if slo is not None else None,
                target_ratio=slo.target_ratio if slo is not None else None,
                own_slo=level.slo is not None,
                turns=_turns(level),
                cycle=level.course.requests,
            )
        )
    return tuple(found)


def _turns(level: Level) -> int | None:
    session = level.workload.session
    if session is None:
        return 1
    return session.turns if isinstance(session.turns, int) else None
