"""One arm's capacity search, fed with what was measured: while it runs, and again from the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle

from benchgate.gate.saturation import saturation_reasons
from benchgate.gate.token_counts import miscounted
from benchgate.model.deployment import Arm
from benchgate.model.metrics import Slo
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse
from benchgate.stats.probe import LOOK_SHARES
from benchgate.stats.search import Look, SearchSettings, Stop, TakenLook, next_look
from benchgate.stats.window import look_counts
from benchgate.suite.capacity import Capacity
from benchgate.suite.client_bounds import ClientBounds
from benchgate.suite.schema import Suite

_ALPHA = 0.025  # of one arm's bracket: a comparison of two is wrong when either is
_MOST_IN_A_ROW = 3  # looks that measured their client, before it is given up


@dataclass(slots=True)
class ArmSearch:
    """A search under way. A look that measured its own client does not count, and is taken again.

    `fault` says why it cannot go on; None while it can, and when it came to its end.
    """

    settings: SearchSettings
    slo: Slo
    bounds: ClientBounds
    asked: int | None = None  # output tokens of every request, where all ask for as many
    looks: list[TakenLook] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # why, look by look
    fault: str | None = None
    _executions: dict[float, int] = field(default_factory=dict)
    _in_a_row: int = 0

    @property
    def next(self) -> Look | None:
        """The look to take; None when the search is over."""
        step = next_look(self.settings, self.looks)
        return None if self.fault is not None or isinstance(step, Stop) else step

    def executions(self, level: float) -> int:
        """How often a level has been looked at, whether or not that counted."""
        return self._executions.get(level, 0)

    def take(
        self, level: float, columns: RequestColumns, client: ClientUse, ramp: RequestColumns | None = None
    ) -> None:
        """Take one execution of a level: its measured requests, those of its ramp, and what client sent them."""
        planned = self._planned(level, len(columns))
        self._executions[level] = self.executions(level) + 1
        concurrency = int(level) if self.settings.over == "concurrency" else None
        strained = saturation_reasons(client, columns, level if concurrency is None else None, self.bounds)
        if strained:
            self.left_out.append(strained[0])
            self._in_a_row += 1
            if self._in_a_row >= _MOST_IN_A_ROW:
                self.fault = f"the load generator was the bottleneck at {level:g}: {strained[0]}"
            return
        self._in_a_row = 0
        if self.slo.tpot_s is not None and (doubt := miscounted(columns, self.asked)) is not None:
            self.fault = f"at {level:g} {doubt}: no TPOT can be judged by it"
            return
        counts = look_counts(columns, self.slo, concurrency, planned, ramp=ramp)
        if counts is None:
            self.fault = f"{level:g} requests were never in flight"
        else:
            self.looks.append(TakenLook(level, len(columns), counts))

    def _planned(self, level: float, sent: int) -> int:
        """How many requests the look was to send.

        Judged by another slo than it was made under, the search might not have taken this look: then it is as it was.
        """
        step = next_look(self.settings, self.looks)
        return step.requests if isinstance(step, Look) and step.level == level else sent


def search_settings(capacity: Capacity, slo_target_ratio: float) -> SearchSettings:
    """What is searched for on each arm. The policy's alpha has no part in it: a run can be judged by another one."""
    return SearchSettings(
        over=capacity.over,
        lowest=capacity.lowest,
        highest=capacity.highest,
        target_ratio=capacity.target_ratio if capacity.target_ratio is not None else slo_target_ratio,
        resolution_ratio=capacity.resolution_ratio,
        probe_requests=capacity.probe_requests,
        budget_requests=capacity.budget_requests,
        alpha=_ALPHA,
    )


def search_of(suite: Suite) -> ArmSearch | None:
    """The search of either arm, at its beginning; None where the suite has none."""
    if suite.load is None or suite.load.capacity is None or suite.slo is None:
        return None
    settings = search_settings(suite.load.capacity, suite.slo.target_ratio)
    return ArmSearch(settings, suite.slo.per_request, suite.gate.client)


def most_looks(settings: SearchSettings) -> int:
    """How many looks count at most."""
    return settings.most_probes * len(LOOK_SHARES)


def alternating(searches: Mapping[Arm, ArmSearch]) -> Iterator[tuple[Arm, Look]]:
    """One look of one arm, then one of the other, until both are over; so a drift of the machine meets both.

    Every look must have been taken before the next one is asked for.
    """
    idle = 0
    for arm in cycle(searches):
        look = searches[arm].next
        idle = 0 if look is not None else idle + 1
        if idle == len(searches):
            return
        if look is not None:
            yield arm, look
