"""A queue as queueing theory has it: requests wait, first come, first served, for one of a number of servers.

Each server works on one request at a time, for a constant or an exponential time. With a service until the last token
this is M/D/c or M/M/c, given Poisson arrivals. With a service until the first token it is a server that reads one
prompt at a time, or a few, and writes its answers independently of each other.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from heapq import heapreplace

from benchgate.sim.jobs import Due, Job
from benchgate.sim.paced import Paced
from benchgate.sim.settings import NS, QueueCosts


class Queue(Paced):
    """Requests wait in order of admission. A service that has begun takes its time, whatever becomes of the request.

    Until the first token: that token comes at the end of the service, the others every `itl_ns`. Until the last token:
    an answer of n tokens has one every nth part of its service.
    """

    def __init__(self, costs: QueueCosts, itl_ns: int, jitter_ratio: float, rng: random.Random) -> None:
        whole = costs.service_until == "last-token"
        super().__init__(0, NS if whole else itl_ns, jitter_ratio, rng)  # that there is a gap is all that matters then
        self._costs = costs
        self._whole = whole
        self._draw_service = rng.expovariate
        self._waiting: deque[Job] = deque()
        self._free_ns = [0] * costs.servers  # a heap: when each server has done what it has begun

    @property
    def waiting(self) -> int:
        """Requests that no server works on yet."""
        return len(self._waiting)

    def admit(self, job: Job, now_ns: int) -> bool:
        """Queue a job; any number may wait."""
        self._waiting.append(job)
        self._start(now_ns)
        return True

    def drop(self, job: Job) -> None:
        """A job that waits makes room for those behind it."""
        if not job.over and job.admitted_ns is None:
            job.over = True
            self._waiting.remove(job)
        else:
            super().drop(job)

    def due_ns(self) -> int | None:
        """The next token, or the next start of a service."""
        first_ns = super().due_ns()
        if not self._waiting:
            return first_ns
        starts_ns = self._starts_ns()
        return starts_ns if first_ns is None else min(first_ns, starts_ns)

    def take(self, now_ns: int) -> Iterator[Due]:
        """Start what could start by now, and give what is due."""
        self._start(now_ns)
        yield from super().take(now_ns)

    def _starts_ns(self) -> int:
        """When the service of the first in the queue begins."""
        return max(self._waiting[0].arrived_ns, self._free_ns[0])

    def _start(self, now_ns: int) -> None:
        while self._waiting and (start_ns := self._starts_ns()) <= now_ns:
            job = self._waiting.popleft()
            drawn = self._draw_service(1.0) if self._costs.service_law == "exponential" else 1.0
            job.admitted_ns, job.service_ns = start_ns, self._spread(drawn * self._costs.service_s * NS, job)
            heapreplace(self._free_ns, start_ns + job.service_ns)
            self._begin(job, start_ns + (self._gap_ns(job) if self._whole else job.service_ns))

    def _gap_ns(self, job: Job) -> int:
        if self._whole and job.service_ns is not None:
            return job.service_ns // job.output_tokens
        return super()._gap_ns(job)
