"""Ramp: extra requests that bring a class of traffic into steady state (docs/metrics.md, "Steady state").

They are not part of a plan's identity. They follow from the same seed by a random stream of their own, and are drawn
when a stage is sent. None has the prompt of a measured request, which would then be in a prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.plan.arrivals import ramp_offsets_ns
from benchgate.plan.model import PlannedRequest, RecordedRequest
from benchgate.plan.requests import RequestGroup, draw_requests
from benchgate.suite.load import TrafficClass

POOL_UNITS = 4
"""Distinct requests, or conversations, per slot of a closed loop. They repeat when more are needed."""
_STREAM = 0x5A3_7EAD  # random stream of the ramp
_LEAST_TAIL = 5.0  # service times for which an open loop at least continues after its last measured request


@dataclass(frozen=True, slots=True)
class Ramp:
    """Source of the ramp requests of one class in one block. `service_times` is the length of an open loop's lead.

    `spare` are recorded prompts that the ramp may send; None for synthetic prompts.
    """

    group: RequestGroup
    seeds: tuple[int, ...]
    service_times: float
    spare: Sequence[RecordedRequest] | None = None

    @classmethod
    def of(cls, group: RequestGroup, seeds: Sequence[int], spare: Sequence[RecordedRequest] | None) -> Ramp | None:
        """Return the ramp of a class; None for one without ramp (`keeps_edges`)."""
        if has_no_ramp(group.traffic):
            return None
        return cls(group, (*seeds, _STREAM), group.traffic.schedule.ramp_service_times, spare)

    @property
    def size(self) -> int:
        """Approximate number of distinct requests of a closed loop's ramp; 0 for an open loop, whose ramp is a time."""
        schedule, session = self.group.traffic.schedule, self.group.traffic.workload.session
        turns = session.turns if session is not None and isinstance(session.turns, int) else 1
        return POOL_UNITS * (schedule.concurrency or 0) * turns

    def pool(self) -> tuple[PlannedRequest, ...]:
        """Draw the requests that the slots of a closed loop repeat; numbers begin at 0."""
        return self._drawn([None] * (POOL_UNITS * (self.group.traffic.schedule.concurrency or 0)))

    def arrivals(self, lead_s: float, service_s: float, last_ns: int) -> tuple[PlannedRequest, ...]:
        """Draw the arrivals of an open loop's ramp by its own process, in order; numbers begin at 0.

        Those before `lead_s` come first. The measured schedule begins there and has its last arrival `last_ns` later.
        Then the process continues for the lead's number of service times, at least five.
        """
        schedule = self.group.traffic.schedule
        assert schedule.mean_rps is not None, "an open loop at a level rate"
        tail_s = max(self.service_times, _LEAST_TAIL) * service_s
        return self._drawn(ramp_offsets_ns(schedule.process, schedule.mean_rps, lead_s, tail_s, last_ns, self.seeds))

    def _drawn(self, offsets: Sequence[int | None]) -> tuple[PlannedRequest, ...]:
        spare = self.spare
        recorded = None if spare is None else [spare[unit % len(spare)] for unit in range(len(offsets))]
        generator = np.random.default_rng([*self.seeds, 2])
        return draw_requests(replace(self.group, generator=generator, recorded=recorded), offsets)


def has_no_ramp(traffic: TrafficClass) -> bool:
    """Return True for traffic whose beginning and end are part of the measurement: it has no ramp.

    These are an open loop with a varying rate or a trace, background traffic, a stage with actions, whose times count
    from its start, and an open loop with `ramp: 0`.
    """
    schedule = traffic.schedule
    if traffic.is_background or traffic.has_actions:
        return True
    return schedule.concurrency is None and (not schedule.is_level_rate or schedule.ramp_service_times == 0)
