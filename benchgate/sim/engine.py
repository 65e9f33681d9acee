"""A continuous-batching engine as a pure simulation: requests arrive, steps take their time, tokens fall out.

Each step decodes one token for every running sequence and reads a bounded piece of the prompts that are still to be
read, as vLLM and SGLang do with chunked prefill. So a long prompt slows every running stream, a full batch or a full
KV cache makes requests wait, and throughput bends as load grows.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from benchgate.sim.jobs import Due, Job, Tally
from benchgate.sim.prefix_cache import PrefixCache
from benchgate.sim.settings import NS, BatchingCosts


@dataclass(frozen=True, slots=True)
class _Step:
    """One step under way: when it ends, and who then gets a token."""

    ends_ns: int
    rewarded: list[Job]
    idle: bool = False  # a wait in which nothing can run


class Engine:
    """Steps follow each other without a gap while there is work, on an absolute schedule."""

    def __init__(self, costs: BatchingCosts, jitter_ratio: float, rng: random.Random) -> None:
        self.tally = Tally()
        self._costs = costs
        self._jitter_ratio = jitter_ratio
        self._draw = rng.random
        self._waiting: deque[Job] = deque()  # by rank
        self._running: list[Job] = []  # in order of admission
        self._cache = PrefixCache(costs.prefix_blocks, costs.block_tokens)
        self._taken_tokens = 0  # KV room of the running, and what has leaked
        self._step: _Step | None = None

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def kv_ratio(self) -> float:
        """Taken tokens of all the tokens there is room for. What only the prefix cache holds is free to be taken."""
        return self._taken_tokens / self._costs.kv_tokens

    def sheds(self, job: Job) -> bool:
        """Whether so many would wait with the job that it had better be turned away, unless it is exempt.

        Who enters the batch with the next step does not count as waiting.
        """
        most = self._costs.shed_above
        if most is None or job.priority <= self._costs.shed_exempt:
            return False
        head = self._waiting[0] if self._waiting else job
        slots = self._costs.batch - len(self._running) if self._has_room_for(head) else 0
        return len(self._waiting) + 1 - slots > most

    def admit(self, job: Job, now_ns: int) -> bool:
        """Queue a job; refuse it when so many wait already. `reserved_tokens` must fit an empty cache."""
        queue = self._costs.queue
        if queue is not None and len(self._waiting) >= queue and not self._fits_at_once(job):
            return False
        self._enqueue(job)
        if self._step is None or self._step.idle:
            self._begin(now_ns)
        return True

    def drop(self, job: Job) -> None:
        """Its slot and its KV room are free at once; a step under way still takes the time it takes."""
        if job.over:
            return
        job.over = True
        if job in self._running:
            self._cache_read_tokens(job)
            self._leave_batch(job)
        else:
            self._waiting.remove(job)

    def abandon(self, job: Job) -> None:
        """Its client has left; its room is free as well, unless the engine leaks."""
        leaked_tokens = job.room_tokens if self._costs.leak_kv and not job.over else 0
        self.drop(job)
        self._taken_tokens += leaked_tokens

    def hold(self, job: Job, until_ns: int) -> None:
        """The sequence keeps its slot and its room and gets no token before then."""
        job.held_until_ns = until_ns

    def due_ns(self) -> int | None:
        """The end of the step under way."""
        return None if self._step is None else self._step.ends_ns

    def take(self, now_ns: int) -> Iterator[Due]:
        """The tokens of every step that has ended by now; the next step begins where the last one ended."""
        while self._step is not None and self._step.ends_ns <= now_ns:
            step = self._step
            due = [job for job in step.rewarded if not job.over and job.held_until_ns <= step.ends_ns]
            for job in due:
                job.produced += 1
                if self._costs.preempts:
                    job.room_tokens += 1
                    self._taken_tokens += 1
                if job.produced == job.output_tokens:
                    self.drop(job)
            self._begin(step.ends_ns)
            for job in due:
                yield Due(step.ends_ns, job, 1)

    def _enqueue(self, job: Job) -> None:
        if self._waiting and self._waiting[-1].rank > job.rank:
            self._waiting.insert(bisect_right(self._waiting, job.rank, key=lambda waiting: waiting.rank), job)
        else:
            self._waiting.append(job)

    def _leave_batch(self, job: Job) -> None:
        self._running.remove(job)
        self._taken_tokens -= job.room_tokens
        job.room_tokens = 0

    def _fits_at_once(self, job: Job) -> bool:
        return not self._waiting and len(self._running) < self._costs.batch and self._has_room_for(job)

    def _has_room_for(self, job: Job) -> bool:
        growth = len(self._running) + 1 if self._costs.preempts else 0  # a token for everybody must fit as well
        return self._taken_tokens + self._room_of(job) + growth <= self._costs.kv_tokens

    def _room_of(self, job: Job) -> int:
        """KV room that the job takes when it enters the batch."""
        return job.input_tokens + job.produced if self._costs.preempts else job.reserved_tokens

    def _begin(self, at_ns: int) -> None:
        """Start the next step at that instant."""
        if self._costs.preempts:
            self._preempt()
        self._fill_batch(at_ns)
        able = [job for job in self._running if job.held_until_ns <= at_ns]
        if not able:
            self._step = self._idle_after(at_ns)
            return
        decoding = [job for job in able if job.prefilled_tokens >= job.unread_tokens]
        prefilled_tokens, ready = self._prefill([job for job in able if job.prefilled_tokens < job.unread_tokens])
        with_adapter = sum(job.with_adapter for job in able) if self._costs.adapter_s else 0
        ends_ns = at_ns + self._duration_ns(prefilled_tokens, len(decoding), with_adapter)
        self._step = _Step(ends_ns, decoding + ready)

    def _idle_after(self, at_ns: int) -> _Step | None:
        """The wait until a held sequence may go on, or a job that is queued already arrives: looks may be late."""
        instants = [job.held_until_ns for job in self._running] + [job.arrived_ns for job in self._waiting]
        later = [instant for instant in instants if instant > at_ns]
        return _Step(min(later), [], idle=True) if later else None

    def _preempt(self) -> None:
        """Throw the least urgent back into the queue until everybody left has room for one more token."""
        while len(self._running) > 1 and self._taken_tokens + len(self._running) > self._costs.kv_tokens:
            job = max(self._running, key=lambda running: running.rank)
            self._leave_batch(job)
            self._enqueue(job)
            self.tally.preemptions += 1

    def _fill_batch(self, at_ns: int) -> None:
        """Let in who waits, by rank; the first who does not fit stops all behind it."""
        while self._waiting and len(self._running) < self._costs.batch:
            job = next((job for job in self._waiting if job.arrived_ns <= at_ns), None)  # looks may be late
            if job is None or not self._has_room_for(job):
                break  # nobody overtakes
            self._waiting.remove(job)
            self._running.append(job)
            job.room_tokens = self._room_of(job)
            self._taken_tokens += job.room_tokens
            job.unread_tokens, job.prefilled_tokens = job.input_tokens + job.produced, 0
            if job.admitted_ns is None:
                job.admitted_ns = at_ns

    def _prefill(self, unread: list[Job]) -> tuple[int, list[Job]]:
        """Read the next piece of the prompts: how many tokens, and whose prompt is then read whole."""
        budget, ready = self._costs.prefill_chunk_tokens, []
        for job in unread:
            if not job.prefilled_tokens:
                self._find_prefix(job)
            piece = min(budget, job.unread_tokens - job.prefilled_tokens)
            job.prefilled_tokens += piece
            budget -= piece
            self._cache_read_tokens(job)
            if job.prefilled_tokens == job.unread_tokens:
                ready.append(job)
            if not budget:
                break
        return self._costs.prefill_chunk_tokens - budget, ready

    def _find_prefix(self, job: Job) -> None:
        """Skip what is in the cache; looked for when the first piece is read, so that equal neighbours share."""
        if not self._cache.in_use:
            return
        job.prefilled_tokens = self._cache.find(job.blocks, job.unread_tokens)
        if job.cached_tokens is None:  # the first time; what a preempted one finds of its own is no sharing
            job.cached_tokens = job.prefilled_tokens
            self.tally.prefix_queried_tokens += job.input_tokens
            self.tally.prefix_hit_tokens += job.cached_tokens

    def _cache_read_tokens(self, job: Job) -> None:
        if self._cache.in_use:
            read_tokens = job.prefilled_tokens
            if read_tokens >= job.unread_tokens:
                read_tokens = job.input_tokens + job.produced
            job.kept_blocks = self._cache.keep(job.blocks, job.kept_blocks, read_tokens)

    def _duration_ns(self, prefilled_tokens: int, decoding: int, with_adapter: int) -> int:
        costs = self._costs
        duration_s = costs.prefill_s * prefilled_tokens + costs.adapter_s * with_adapter
        if decoding:
            duration_s += costs.decode_s + costs.decode_per_sequence_s * decoding
        if self._jitter_ratio:
            duration_s *= 1 + self._jitter_ratio * (2 * self._draw() - 1)
        return max(1, round(duration_s * NS))
