"""The simple model of time: every stream by itself, at a stated pace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from benchgate.sim.jobs import Due, Job, Tally

_BURST_TOKENS = 4096  # at one instant, when tokens take no time: an endless answer must not be made in one go
_BURST_GAP_NS = 1_000_000


class Paced:
    """The first token `ttft_ns` after the request arrived, then one every `itl_ns`.

    Each of these times is spread evenly over ±`jitter_ratio`. Every instant follows from the one before it, never from
    the instant at which it was taken, so a late server does not shift its own schedule.
    """

    def __init__(self, ttft_ns: int, itl_ns: int, jitter_ratio: float, rng: random.Random) -> None:
        self.tally = Tally()  # nothing is preempted or cached
        self._ttft_ns = ttft_ns
        self._itl_ns = itl_ns
        self._jitter_ratio = jitter_ratio
        self._draw = rng.random
        self._heap: list[tuple[int, int, Job]] = []  # next instant, order, job: at most one entry a job
        self._running = 0

    @property
    def running(self) -> int:
        """Jobs with tokens still to come."""
        return self._running

    @property
    def waiting(self) -> int:
        """Nobody waits."""
        return 0

    @property
    def kv_ratio(self) -> float:
        """There is no KV cache here."""
        return 0.0

    def sheds(self, job: Job) -> bool:
        """Nobody is turned away."""
        return False

    def admit(self, job: Job, now_ns: int) -> bool:
        """Every job is taken in at once."""
        self._begin(job, job.arrived_ns + self._spread(self._ttft_ns, job))
        return True

    def drop(self, job: Job) -> None:
        """The entry in the heap stays until its time comes, and is then thrown away."""
        if not job.over:
            job.over = True
            self._running -= 1

    def abandon(self, job: Job) -> None:
        """As `drop`."""
        self.drop(job)

    def hold(self, job: Job, until_ns: int) -> None:
        """What the job would have got before then comes from then on, at its pace."""
        job.held_until_ns = until_ns

    def due_ns(self) -> int | None:
        """The next instant of all."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ns: int) -> Iterator[Due]:
        """One token at a time; all the rest of an answer at once, if it is not very long, when `itl_ns` is 0."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            at_ns, order, job = heap[0]
            if job.over:
                heappop(heap)
            elif job.held_until_ns > at_ns:
                heapreplace(heap, (job.held_until_ns, order, job))
            else:
                tokens = 1 if self._itl_ns else min(_BURST_TOKENS, job.left)
                job.produced += tokens
                if job.produced < job.output_tokens:
                    heapreplace(heap, (at_ns + (self._gap_ns(job) or _BURST_GAP_NS), order, job))
                else:
                    heappop(heap)
                    self.drop(job)
                yield Due(at_ns, job, tokens)

    def _begin(self, job: Job, first_ns: int) -> None:
        """Let the job have its first token at that instant."""
        heappush(self._heap, (first_ns, job.order, job))
        self._running += 1

    def _gap_ns(self, job: Job) -> int:
        """From one token of the job to the next."""
        return self._spread(self._itl_ns, job)

    def _spread(self, mean_ns: float, job: Job) -> int:
        if self._jitter_ratio:
            mean_ns *= 1 + self._jitter_ratio * (2 * self._draw() - 1)
        return int(mean_ns / job.speed)
